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
use core::sync::atomic::{AtomicUsize, Ordering};

use cred::{Charge, Payer};
use fscore::locks::{END, Lock, Locks, TooMany, Waits};
use ksync::Spin;
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::{WaitQueue, Waiter};

use super::error::{FsError, Result};
use super::fdtable::FdTable;
use super::file::File;
use super::inode::Inode;

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
    ranges: Locks<LockCharge>,
    whole: Locks<LockCharge>,
}

/// Locks that a user without privileges may have on all files together.
const USER_MOST: u64 = 1 << 16;
/// Bytes of a lock: lists have room for twice as many as they hold.
const LOCK_BYTES: usize = 128;

/// A lock that is charged to an account for as long as this lives.
struct LockCharge(Payer);

impl LockCharge {
    /// None where the caller may have no more.
    fn new() -> Option<LockCharge> {
        let me = current();
        let payer = me.payer();
        payer.charge(Charge::Locks, 1);
        payer.charge(Charge::Memory, LOCK_BYTES);
        let charge = LockCharge(payer);
        let over = payer.is_limited() && payer.is_over(Charge::Locks, USER_MOST);
        (!over || me.cred().beyond_user_limits()).then_some(charge)
    }
}

impl Drop for LockCharge {
    fn drop(&mut self) {
        self.0.give_back(Charge::Locks, 1);
        self.0.give_back(Charge::Memory, LOCK_BYTES);
    }
}

impl FileLocks {
    /// What tells it from others while it is waited for.
    fn id(&self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }

    /// The owner's locks have changed, under the lock of the lists: what waited for one of them looks again.
    fn let_go(&self, owner: u64) {
        if WAITING.load(Ordering::Relaxed) != 0 {
            with_waits(|waits| waits.let_go(owner, self.id()));
        }
    }
}

impl Lists {
    fn of(&mut self, family: Family) -> &mut Locks<LockCharge> {
        match family {
            Family::Ranges => &mut self.ranges,
            Family::Whole => &mut self.whole,
        }
    }
}

/// Which processes wait for which, for ranges of processes. A wait is noted, and taken back, under the lock of the file's
/// lists, so what it says is true whenever those are unlocked. Taken only while some process waits.
static WAITS: Spin<Waits, WaitsLock> = Spin::new(Waits::new());
/// How many waits there are. Written under the lock of [`WAITS`]; of a file's waits one learns under the lock of its lists.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Changes the waits.
fn with_waits<R>(change: impl FnOnce(&mut Waits) -> R) -> R {
    let mut waits = WAITS.lock();
    let result = change(&mut waits);
    WAITING.store(waits.len(), Ordering::Relaxed);
    result
}

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
    /// Grants the lock, or notes the wait for what is in the way if it is to `wait`. Returns whether it is granted.
    fn try_once(&mut self, wait: bool) -> Result<bool> {
        let mut lists = self.locks.lists.lock();
        let list = lists.of(self.family);
        let owner = self.wanted.owner;
        if let Some(held) = list.conflict(&self.wanted) {
            let holder = held.owner;
            if wait && self.may_circle {
                let file = self.locks.id();
                let alright = with_waits(|waits| {
                    waits.remove(owner);
                    waits.add(owner, holder, file)
                })?;
                if !alright {
                    return Err(FsError::Deadlock);
                }
            }
            return Ok(false);
        }
        list.grant(self.wanted, LockCharge::new)?;
        if wait && self.may_circle {
            with_waits(|waits| waits.remove(owner));
        }
        // What it replaced may have kept others out.
        self.locks.let_go(owner);
        drop(lists);
        self.locks.waiters.wake_all();
        Ok(true)
    }

    fn step(&mut self, waiter: &mut Waiter) -> Step<Result<()>> {
        waiter.listen(&self.locks.waiters);
        match self.try_once(true) {
            Ok(true) => Step::Done(Ok(())),
            Ok(false) => Step::Wait,
            Err(e) => Step::Done(Err(e)),
        }
    }
}

/// Gives `wanted.owner` a lock, which replaces what it held in the range.
///
/// Fails with `WouldBlock` if another's is in the way and `wait` is false; with `Deadlock` if it `may_circle` and the
/// wait would never end; with `Interrupted`; with `NoLocks` for want of memory, or where the
/// caller's user has as many as it may.
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
    if request.try_once(false)? {
        return Ok(());
    }
    if !wait {
        return Err(FsError::WouldBlock);
    }
    let ended = park(
        &mut request,
        Deadline::Never,
        Interruptible::Yes,
        |request, waiter| request.step(waiter),
    );
    if may_circle && !matches!(ended, Ok(Ok(()))) {
        with_waits(|waits| waits.remove(wanted.owner));
    }
    ended.unwrap_or(Err(FsError::Interrupted))
}

/// Ends what the owner of `range` holds in it.
pub fn unset(inode: &Inode, family: Family, range: &Lock) -> Result<()> {
    let Some(locks) = inode.locks.get() else {
        return Ok(());
    };
    let mut lists = locks.lists.lock();
    let released = lists.of(family).release(range, LockCharge::new)?;
    if released {
        locks.let_go(range.owner);
    }
    drop(lists);
    if released {
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
    locks.let_go(owner);
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
