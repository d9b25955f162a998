//! Processes that take locks on files: what fcntl(2) and flock(2) do with the tables and the open files.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;

use cred::Payer;
use fscore::locks::{END, Lock};
use vfs::error::Result;
use vfs::fdtable::FdTable;
use vfs::file::FileRef;
use vfs::lock::{self, Family, LockSlot};

use crate::bytes::open;
use crate::support::users;

pub const SHARED: bool = false;
pub const EXCLUSIVE: bool = true;
/// Numbers of descriptors that no test reaches.
pub const MANY: u64 = 100;
/// An owner that never has a lock, and so learns of all.
pub const STRANGER: u64 = 1;

pub fn range(owner: u64, start: u64, last: u64, exclusive: bool) -> Lock {
    Lock {
        owner,
        pid: owner as i32,
        start,
        last,
        exclusive,
    }
}

/// A process: its table, whose address identifies it as an owner.
#[derive(Clone)]
pub struct Process(pub Arc<FdTable>);

impl Process {
    pub fn new() -> Process {
        Process(FdTable::new())
    }

    pub fn owner(&self) -> u64 {
        self.0.lock_owner()
    }

    /// open(2) of `path`.
    pub fn open(&self, path: &str) -> i32 {
        self.0.add(open(path), false, 0, MANY).unwrap()
    }

    pub fn close(&self, fd: i32) {
        drop(self.0.remove(fd).unwrap());
    }

    pub fn file(&self, fd: i32) -> FileRef {
        self.0.get(fd).unwrap()
    }

    /// fcntl(2) with F_SETLK, or F_SETLKW if it may wait.
    pub fn set(&self, fd: i32, bytes: (u64, u64), exclusive: bool, wait: bool) -> Result<()> {
        self.0.note_lock();
        let wanted = range(self.owner(), bytes.0, bytes.1, exclusive);
        let file = self.file(fd);
        lock::set(locks(&file), Family::Ranges, wanted, wait, true)
    }

    pub fn lock(&self, fd: i32, start: u64, last: u64) -> Result<()> {
        self.set(fd, (start, last), EXCLUSIVE, false)
    }

    pub fn share(&self, fd: i32, start: u64, last: u64) -> Result<()> {
        self.set(fd, (start, last), SHARED, false)
    }

    /// fcntl(2) with F_SETLK and F_UNLCK.
    pub fn unlock(&self, fd: i32, start: u64, last: u64) -> Result<()> {
        let bytes = range(self.owner(), start, last, EXCLUSIVE);
        lock::unset(locks(&self.file(fd)), Family::Ranges, &bytes)
    }
}

pub fn locks(file: &FileRef) -> &LockSlot {
    file.locks().expect("a file that can be locked")
}

/// The locks on a file, by their first byte, as F_GETLK tells a stranger. Shared locks of two owners must not overlap.
pub fn held(file: &FileRef) -> Vec<(u64, u64, bool)> {
    let (mut from, mut all) = (0, Vec::new());
    loop {
        let wanted = range(STRANGER, from, END, EXCLUSIVE);
        let Some(found) = lock::query(locks(file), Family::Ranges, &wanted) else {
            return all;
        };
        all.push((found.start, found.last, found.exclusive));
        if found.last == END {
            return all;
        }
        from = found.last + 1;
    }
}

/// A process with a file that it has open as descriptor 0.
pub fn process() -> (Process, FileRef) {
    let process = Process::new();
    let fd = process.open("/f");
    assert_eq!(fd, 0);
    (process, open("/f"))
}

/// A flock(2) that does not wait.
pub fn flock(file: &FileRef, exclusive: bool) -> Result<()> {
    file.note_lock();
    let wanted = lock::whole(file.lock_owner(), 7, exclusive);
    lock::set(locks(file), Family::Whole, wanted, false, false)
}

/// A record lock of an open file: F_OFD_SETLK.
pub fn lock_by_file(file: &FileRef, start: u64, last: u64) -> Result<()> {
    file.note_lock();
    let wanted = range(file.lock_owner(), start, last, EXCLUSIVE);
    lock::set(locks(file), Family::Ranges, wanted, false, false)
}

/// Runs `act` as a user with an account, which it gets.
pub fn as_user(act: impl FnOnce(Payer)) {
    let mut cred = users::user(1000, &[]);
    let payer = task::account::of_thread(1000).expect("memory for an account");
    cred.payer = payer;
    users::as_user(&cred, || act(payer));
}
