//! Instances of inotify, and the events that they tell.

use std::cell::Cell;

use crate::harness::*;
use user::sys;

pub const ACCESS: u32 = libc::IN_ACCESS;
pub const MODIFY: u32 = libc::IN_MODIFY;
pub const ATTRIB: u32 = libc::IN_ATTRIB;
pub const WRITTEN: u32 = libc::IN_CLOSE_WRITE;
pub const UNWRITTEN: u32 = libc::IN_CLOSE_NOWRITE;
pub const OPEN: u32 = libc::IN_OPEN;
pub const FROM: u32 = libc::IN_MOVED_FROM;
pub const TO: u32 = libc::IN_MOVED_TO;
pub const CREATE: u32 = libc::IN_CREATE;
pub const DELETE: u32 = libc::IN_DELETE;
pub const DELETE_SELF: u32 = libc::IN_DELETE_SELF;
pub const MOVE_SELF: u32 = libc::IN_MOVE_SELF;
pub const IGNORED: u32 = libc::IN_IGNORED;
pub const DIR: u32 = libc::IN_ISDIR;
pub const ALL: u32 = libc::IN_ALL_EVENTS;

pub fn init(flags: i32) -> Result<i32, i32> {
    sc!(SYS_inotify_init1, flags).map(|fd| fd as i32)
}

pub fn add(fd: i32, at: &str, mask: u32) -> Result<i32, i32> {
    sc!(SYS_inotify_add_watch, fd, path(at), mask).map(|wd| wd as i32)
}

pub fn remove(fd: i32, wd: i32) -> Result<u64, i32> {
    sc!(SYS_inotify_rm_watch, fd, wd)
}

/// An event: watch descriptor, mask, name. The cookies are apart.
pub type Event = (i32, u32, String);

pub fn event(wd: i32, mask: u32, name: &str) -> Event {
    (wd, mask, name.into())
}

/// The events of a read, and their cookies.
pub fn parse(bytes: &[u8]) -> (Vec<Event>, Vec<u32>) {
    let (mut events, mut cookies, mut at) = (Vec::new(), Vec::new(), 0);
    while at < bytes.len() {
        let word = |i: usize| {
            let from = at + 4 * i;
            u32::from_ne_bytes(bytes[from..from + 4].try_into().expect("four bytes"))
        };
        let len = word(3) as usize;
        let name = &bytes[at + 16..at + 16 + len];
        let end = name.iter().position(|&b| b == 0).unwrap_or(len);
        let name = String::from_utf8_lossy(&name[..end]).into_owned();
        events.push((word(0) as i32, word(1), name));
        cookies.push(word(2));
        at += 16 + len;
    }
    (events, cookies)
}

/// An instance that does not wait, in a directory of its own.
pub struct Notes {
    pub fd: i32,
    pub dir: String,
    pub cookies: Cell<Vec<u32>>,
}

impl Notes {
    pub fn new() -> Result<Notes, String> {
        let fd = ok!(init(libc::IN_NONBLOCK));
        let (dir, cookies) = (scratch(), Cell::default());
        Ok(Notes { fd, dir, cookies })
    }

    pub fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    pub fn add(&self, name: &str, mask: u32) -> Result<i32, i32> {
        add(self.fd, &self.at(name), mask)
    }

    /// All events until now.
    pub fn read(&self) -> Vec<Event> {
        let mut bytes = vec![0; 1 << 16];
        let len = sys::read(self.fd, &mut bytes).unwrap_or(0);
        let (events, cookies) = parse(&bytes[..len]);
        self.cookies.set(cookies);
        events
    }

    /// A file, made and closed before anything is watched or read.
    pub fn file(&self, name: &str) -> Result<(), String> {
        let fd = ok!(sys::open(
            &self.at(name),
            libc::O_CREAT | libc::O_WRONLY,
            0o644
        ));
        ok!(sys::close(fd));
        Ok(())
    }

    pub fn mkdir(&self, name: &str) -> Result<u64, i32> {
        sc!(SYS_mkdir, path(&self.at(name)), 0o755)
    }

    pub fn rename(&self, from: &str, to: &str, flags: u32) -> Result<u64, i32> {
        let (from, to) = (path(&self.at(from)), path(&self.at(to)));
        sc!(
            SYS_renameat2,
            libc::AT_FDCWD,
            from,
            libc::AT_FDCWD,
            to,
            flags
        )
    }

    pub fn unlink(&self, name: &str) -> Result<u64, i32> {
        sc!(SYS_unlink, path(&self.at(name)))
    }
}
