//! File locks: who may use which bytes, among those who ask.
//!
//! Guarantee: locks conflict as fcntl(2) and flock(2) say; a process's locks on a file end when it closes any descriptor of
//! it, those of an open file when its last descriptor closes; a wait ends by the lock, a signal, or an error if it would
//! be for ever.
//!
//! Mechanism: an inode that was ever locked has two lists ([`fscore::locks`]), of byte ranges and of whole files, which know
//! nothing of each other. An owner is the address of what holds the lock: a descriptor table, for a process, or an open
//! file. Both remember whether they ever locked anything, so that closing costs nothing otherwise.

use alloc::boxed::Box;
use core::ptr;

use fscore::locks::{END, Lock, Locks, TooMany, Waits};
use ksync::Spin;

use super::error::{FsError, Result};
use super::fdtable::FdTable;
use super::file::File;
use super::inode::Inode;
use crate::kern::park::{Deadline, Interruptible, Step, park};
use crate::kern::wait::{WaitQueue, Waiter};

ksync::lock_class!(pub LocksLock, "file locks", rank = 88);
ksync::lock_class!(pub WaitsLock, "file lock waits", rank = 89);

/// Which of the two kinds that know nothing of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Byte ranges: fcntl(2).
    Ranges,
    /// Whole files: flock(2).
    Whole,
}

/// The locks on one inode.
#[derive(Default)]
pub struct FileLocks {
    lists: Spin<Lists, LocksLock>,
    /// Who waits for any of them.
    waiters: WaitQueue,
}

#[derive(Default)]
struct Lists {
    ranges: Locks,
    whole: Locks,
}

impl Lists {
    fn of(&mut self, family: Family) -> &mut Locks {
        match family {
            Family::Ranges => &mut self.ranges,
            Family::Whole => &mut self.whole,
        }
    }
}

/// Which processes wait for which, for ranges of processes. Touched only by who has to wait.
static WAITS: Spin<Waits, WaitsLock> = Spin::new(Waits::new());

impl From<TooMany> for FsError {
    fn from(TooMany: TooMany) -> FsError {
        FsError::NoLocks
    }
}

/// The number of a process as an owner.
pub fn table_owner(table: &FdTable) -> u64 {
    ptr::from_ref(table).addr() as u64
}

/// The number of an open file as an owner.
pub fn file_owner(file: &File) -> u64 {
    ptr::from_ref(file).addr() as u64
}

fn locks_of(inode: &Inode) -> &FileLocks {
    inode.locks.get_or_init(|| Box::new(FileLocks::default()))
}

/// A lock that is asked for.
struct Request<'a> {
    locks: &'a FileLocks,
    family: Family,
    wanted: Lock,
    /// Whether the owner may be part of a circle of waits.
    may_circle: bool,
}

impl Request<'_> {
    /// Grants the lock, or says whose is in the way.
    fn try_once(&mut self) -> Result<Option<u64>> {
        let mut lists = self.locks.lists.lock();
        let list = lists.of(self.family);
        if let Some(held) = list.conflict(&self.wanted) {
            return Ok(Some(held.owner));
        }
        list.grant(self.wanted)?;
        drop(lists);
        // What it replaced may have kept others out.
        self.locks.waiters.wake_all();
        Ok(None)
    }

    fn step(&mut self, waiter: &mut Waiter) -> Step<Result<()>> {
        waiter.listen(&self.locks.waiters);
        let holder = match self.try_once() {
            Ok(None) => return Step::Done(Ok(())),
            Ok(Some(holder)) => holder,
            Err(e) => return Step::Done(Err(e)),
        };
        if self.may_circle {
            let mut waits = WAITS.lock();
            waits.remove(self.wanted.owner);
            match waits.add(self.wanted.owner, holder) {
                Ok(true) => {}
                Ok(false) => return Step::Done(Err(FsError::Deadlock)),
                Err(e) => return Step::Done(Err(e.into())),
            }
        }
        Step::Wait
    }
}

/// Gives `wanted.owner` a lock, which replaces what it held in the range.
///
/// Fails with `WouldBlock` if another's is in the way and `wait` is false; with `Deadlock` if it `may_circle` and the
/// wait would never end; with `Interrupted`; with `NoLocks` for want of memory.
pub fn set(
    inode: &Inode,
    family: Family,
    wanted: Lock,
    wait: bool,
    may_circle: bool,
) -> Result<()> {
    let mut request = Request {
        locks: locks_of(inode),
        family,
        wanted,
        may_circle,
    };
    match request.try_once()? {
        None => return Ok(()),
        Some(_) if !wait => return Err(FsError::WouldBlock),
        Some(_) => {}
    }
    let ended = park(
        &mut request,
        Deadline::Never,
        Interruptible::Yes,
        |request, waiter| request.step(waiter),
    );
    if may_circle {
        WAITS.lock().remove(wanted.owner);
    }
    ended.unwrap_or(Err(FsError::Interrupted))
}

/// Ends what the owner of `range` holds in it.
pub fn unset(inode: &Inode, family: Family, range: &Lock) -> Result<()> {
    let Some(locks) = inode.locks.get() else {
        return Ok(());
    };
    if locks.lists.lock().of(family).release(range)? {
        locks.waiters.wake_all();
    }
    Ok(())
}

/// The lock that keeps `wanted` from being granted.
pub fn query(inode: &Inode, family: Family, wanted: &Lock) -> Option<Lock> {
    let locks = inode.locks.get()?;
    locks.lists.lock().of(family).conflict(wanted).copied()
}

/// Ends all locks of an owner on a file.
pub fn release(inode: &Inode, owner: u64) {
    let Some(locks) = inode.locks.get() else {
        return;
    };
    let mut lists = locks.lists.lock();
    let ranges = lists.ranges.release_all(owner);
    let whole = lists.whole.release_all(owner);
    drop(lists);
    if ranges || whole {
        locks.waiters.wake_all();
    }
}

/// A lock on a whole file.
pub const fn whole(owner: u64, pid: i32, exclusive: bool) -> Lock {
    Lock {
        owner,
        pid,
        start: 0,
        last: END,
        exclusive,
    }
}
