//! Descriptions of an actor, and of the tree of files.

use crate::actor::{Act, say};
use crate::calls::memory::{self, PAGES};
use crate::dice::{add_digest, digest, short};
use crate::normal::SET_BEFORE;
use std::collections::HashMap;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use user::sys;

/// Describes the actor that executes the order.
pub fn of_actor(act: &mut Act) {
    say!(act, "memory");
    let mut page = 0;
    while page < PAGES {
        let content = memory::content(page);
        let run = (page..PAGES)
            .take_while(|&next| next == page || memory::content(next) == content)
            .count() as u64;
        match run {
            1 => say!(act, " {content}"),
            _ => say!(act, " {content}*{run}"),
        }
        page += run;
    }
    rest(act);
}

/// Describes the state of an actor that survives execve: signals and descriptors.
pub fn rest(act: &mut Act) {
    let (mut pending, mut mask) = (0u64, 0u64);
    let _ = sys::call(libc::SYS_rt_sigpending, &[&raw mut pending as u64, 8]);
    let _ = sys::call(libc::SYS_rt_sigprocmask, &[0, 0, &raw mut mask as u64, 8]);
    say!(
        act,
        "; pending {:#x} mask {:#x} ignored",
        std::hint::black_box(pending),
        std::hint::black_box(mask)
    );
    for signal in [1, 2, 10, 12, 15, 17, 18, 23, 28, 36, 40] {
        let mut action = [0u64; 4];
        let _ = sys::call(
            libc::SYS_rt_sigaction,
            &[signal, 0, action.as_mut_ptr() as u64, 8],
        );
        match std::hint::black_box(action)[0] {
            0 => {}
            1 => say!(act, " {signal}"),
            _ => say!(act, " ({signal})"),
        }
    }
    say!(act, "; files");
    for fd in 3..19u64 {
        let ask = |command: i32| sys::call(libc::SYS_fcntl, &[fd, command as u64]);
        let Ok(flags) = ask(libc::F_GETFD) else {
            continue;
        };
        let mut stat = sys::zeroed_stat();
        let _ = sys::call(libc::SYS_fstat, &[fd, &raw mut stat as u64]);
        let open = ask(libc::F_GETFL).unwrap_or(0);
        say!(
            act,
            " {fd}:{:o},{open:o}{}",
            stat.st_mode >> 12,
            if flags == 1 { "c" } else { "" }
        );
        if let Ok(at @ 1..) = sys::call(libc::SYS_lseek, &[fd, 0, libc::SEEK_CUR as u64]) {
            say!(act, "@{at}");
        }
    }
}

/// The tree of files, and the time of the last snapshot.
#[derive(Default)]
pub struct Tree {
    looked: (i64, i64),
}

fn now(clock: i32) -> (i64, i64) {
    let mut time = [0i64; 2];
    let clock = clock as u64;
    let _ = sys::call(libc::SYS_clock_gettime, &[clock, time.as_mut_ptr() as u64]);
    let time = std::hint::black_box(time);
    (time[0], time[1])
}

impl Tree {
    /// Describes each file below the current directory, by name. Later changes get a later time, although the clock of
    /// files is coarse.
    pub fn look(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut numbers = HashMap::new();
        self.add(Path::new("."), &mut lines, &mut numbers);
        self.next_look();
        lines
    }

    /// Waits until later changes can be distinguished from earlier ones.
    pub fn next_look(&mut self) {
        self.looked = now(libc::CLOCK_REALTIME);
        // The clock of files.
        while now(libc::CLOCK_REALTIME_COARSE) <= self.looked {
            std::hint::spin_loop();
        }
    }

    fn time(&self, time: (i64, i64)) -> String {
        match time {
            (seconds, nanoseconds) if seconds < SET_BEFORE => format!("{seconds}.{nanoseconds}"),
            _ if time > self.looked => "new".into(),
            _ => "old".into(),
        }
    }

    fn add(&self, path: &Path, lines: &mut Vec<String>, numbers: &mut HashMap<u64, usize>) {
        let Ok(about) = std::fs::symlink_metadata(path) else {
            lines.push(format!("{} cannot be looked at", path.display()));
            return;
        };
        let next = numbers.len();
        let number = *numbers.entry(about.ino()).or_insert(next);
        let mut line = format!(
            "{} {:o} #{number} links {} {}:{} size {} blocks {} mtime {} ctime {}",
            path.display(),
            about.mode(),
            about.nlink(),
            about.uid(),
            about.gid(),
            about.size(),
            about.blocks(),
            self.time((about.mtime(), about.mtime_nsec())),
            self.time((about.ctime(), about.ctime_nsec())),
        );
        let kind = about.file_type();
        if kind.is_file() {
            line += &content(path, about.size());
        } else if kind.is_symlink() {
            line += &format!(
                " -> {}",
                std::fs::read_link(path).unwrap_or_default().display()
            );
        } else if kind.is_fifo() {
            line += " fifo";
        }
        lines.push(line);
        if kind.is_dir() {
            let entries = std::fs::read_dir(path).into_iter().flatten();
            let mut names: Vec<_> = entries
                .filter_map(|entry| Some(entry.ok()?.file_name()))
                .collect();
            names.sort();
            names
                .iter()
                .for_each(|name| self.add(&path.join(name), lines, numbers));
        }
    }
}

/// The ranges of data in a file, and a checksum of the contents.
fn content(path: &Path, size: u64) -> String {
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(path);
    let Ok(file) = opened else {
        return " cannot be read".into();
    };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file) as u64;
    let seek = |at: u64, whence: i32| sys::call(libc::SYS_lseek, &[fd, at, whence as u64]);
    let (mut text, mut hash, mut at) = (String::from(" data"), digest(b""), 0);
    let mut buffer = vec![0; 64 << 10];
    while let Ok(from) = seek(at, libc::SEEK_DATA) {
        let to = seek(from, libc::SEEK_HOLE).unwrap_or(size);
        text += &format!(" {from}-{to}");
        at = from;
        while at < to {
            let wanted = buffer.len().min((to - at) as usize);
            match file.read_at(&mut buffer[..wanted], at) {
                Ok(len @ 1..) => {
                    hash = add_digest(hash, &buffer[..len]);
                    at += len as u64;
                }
                _ => return text + " cannot be read",
            }
        }
    }
    text + &format!(" #{:04x}", short(hash))
}
