//! /proc/PID/fdinfo: what a descriptor's open file is doing; and /proc/locks.
//!
//! Guarantee: a file of fdinfo is opened only by a caller that may inspect the process. /proc/locks has each lock once that a program holds
//! through a descriptor of a process; not those of files that are open in messages alone, nor requests that wait.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use cred::MemoryCharge;
use fscore::locks::{END, Lock};
use proc::ids;
use proc::process::Process;
use task::current::current;
use vfs::attr::Attr;
use vfs::dynamic::{DynDir, DynFile, Dynamic, Emit, Entry, Text, ino_below};
use vfs::error::{FsError, Result};
use vfs::file::{File, o};
use vfs::inode::{Inode, mode};
use vfs::lock::{self, Family, LockSlot};
use vfs::put;

use super::numbers::{digits, number};
use super::whom::{Whom, look, owner};

/// The directory /proc/PID/fdinfo.
pub struct FdInfos(pub Whom);

impl DynDir for FdInfos {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let p = self.0.find_dir()?;
        let fd = match name {
            b"0" => 0,
            name => number(name).ok_or(FsError::NotFound)?,
        };
        let fd = i32::try_from(fd).map_err(|_| FsError::NotFound)?;
        p.open_file(fd).ok_or(FsError::NotFound)?;
        let node = Dynamic::File(Box::new(FdInfo {
            whom: self.0.clone(),
            fd,
        }));
        let owner = owner(&p, self.0.tid);
        Ok(node.inode(this.dev, ino_below(this.ino, name), 0o444, owner))
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        let p = self.0.find_dir()?;
        let mut at = from as usize - 2;
        while let Some((fd, file)) = p.next_open_file(at) {
            drop(file);
            let mut buf = [0; 10];
            let name = digits(fd as u32, &mut buf);
            let next = fd as u64 + 3;
            let ino = ino_below(this.ino, name);
            let kind = mode::REG;
            if !emit(Entry {
                next,
                ino,
                kind,
                name,
            }) {
                break;
            }
            at = fd + 1;
        }
        Ok(())
    }
}

struct FdInfo {
    whom: Whom,
    fd: i32,
}

/// What an open file of fdinfo prints: the text of the moment in which it was opened. Later a read holds the lock of its own position, beside
/// which that of another file's must not be taken.
struct Snapshot {
    bytes: Vec<u8>,
    _charge: MemoryCharge,
}

impl DynFile for Snapshot {
    fn print(&self, out: &mut Text) -> Result<()> {
        out.push(&self.bytes);
        Ok(())
    }

    fn pollable(&self) -> bool {
        false
    }
}

impl FdInfo {
    fn describe(&self, out: &mut Text) -> Result<()> {
        let p = self.whom.find()?;
        let file = p.open_file(self.fd).ok_or(FsError::NotFound)?;
        let cloexec = if p.closes_on_exec(self.fd) {
            o::CLOEXEC
        } else {
            0
        };
        let pos = if file.is_place() || !file.ops().seekable() {
            0
        } else {
            file.with_pos(|pos| *pos)
        };
        let flags = file.flags() | cloexec;
        let mount = file.path.as_ref().map_or(0, |path| path.mount.id);
        let attr = file.attr()?;
        put!(
            out,
            "pos:\t{pos}\nflags:\t0{flags:o}\nmnt_id:\t{mount}\nino:\t{}\n",
            attr.ino
        );
        own_locks(&p, &file, &attr, out)?;
        file.ops().print_info(&file, out)
    }
}

impl DynFile for FdInfo {
    /// Not called: an open file has a [`Snapshot`].
    fn print(&self, _: &mut Text) -> Result<()> {
        Err(FsError::Invalid)
    }

    fn open(&self, _: u32) -> Result<Option<Box<dyn DynFile>>> {
        look(&*self.whom.find()?, self.whom.tid)?;
        let mut text = Text::new();
        self.describe(&mut text)?;
        let (bytes, _charge) = text.keep()?;
        Ok(Some(Box::new(Snapshot { bytes, _charge })))
    }

    fn pollable(&self) -> bool {
        false
    }
}

/// Prints the locks on a file that belong to `p` or to the open file.
fn own_locks(p: &Process, file: &File, attr: &Attr, out: &mut Text) -> Result<()> {
    let Some(slot) = file.locks() else {
        return Ok(());
    };
    let owners = [Some(file.lock_owner()), p.owner_of_locks()];
    let mut n = 0;
    for (family, lock) in lock::held(slot)? {
        if owners.contains(&Some(lock.owner)) {
            n += 1;
            out.push(b"lock:\t");
            put_lock(out, n, family, &lock, attr);
        }
    }
    Ok(())
}

/// Prints a lock as Linux does.
fn put_lock(out: &mut Text, n: u64, family: Family, lock: &Lock, attr: &Attr) {
    let kind = match family {
        Family::Whole => "FLOCK ",
        Family::Ranges if lock.pid == -1 => "OFDLCK",
        Family::Ranges => "POSIX ",
    };
    let what = if lock.exclusive { "WRITE" } else { "READ" };
    let (major, minor) = (attr.dev >> 8 & 0xfff, attr.dev & 0xff);
    put!(
        out,
        "{n}: {kind} ADVISORY  {what} {} {major:02x}:{minor:02x}:{} {} ",
        lock.pid,
        attr.ino,
        lock.start
    );
    match lock.last {
        END => out.push(b"EOF\n"),
        last => put!(out, "{last}\n"),
    }
}

/// Prints /proc/locks: looks at the open files of all processes. Sleeps.
///
/// # Errors
/// `NoMemory`; `Interrupted` if the caller is killed.
pub fn locks(out: &mut Text) -> Result<()> {
    // By address, in order: the files whose locks were printed.
    let mut seen = Vec::new();
    let mut n = 0;
    let mut result = Ok(());
    ids::each_process(1, |p| {
        let mut at = 0;
        while let Some((fd, file)) = p.next_open_file(at) {
            at = fd + 1;
            result = match file.locks() {
                _ if current().kill_pending() => Err(FsError::Interrupted),
                Some(slot) => locks_of(&file, slot, &mut seen, &mut n, out),
                None => Ok(()),
            };
            if result.is_err() {
                return false;
            }
        }
        true
    });
    result
}

fn locks_of(
    file: &File,
    slot: &LockSlot,
    seen: &mut Vec<usize>,
    n: &mut u64,
    out: &mut Text,
) -> Result<()> {
    let address = core::ptr::from_ref::<LockSlot>(slot).addr();
    let Err(at) = seen.binary_search(&address) else {
        return Ok(());
    };
    let held = lock::held(slot)?;
    if held.is_empty() {
        return Ok(());
    }
    seen.try_reserve(1).map_err(|_| FsError::NoMemory)?;
    seen.insert(at, address);
    let attr = file.attr()?;
    for (family, lock) in held {
        *n += 1;
        put_lock(out, *n, family, &lock, &attr);
    }
    Ok(())
}
