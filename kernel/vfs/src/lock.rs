//! File locks: fcntl(2) and flock(2).
//!
//! Guarantee: locks conflict as the two man pages say. A process's locks on a file are released when it closes any descriptor
//! of the file, an open file's when its last descriptor is closed. A wait ends when the lock is granted, by a signal, or with
//! an error if it would never end.
//!
//! Mechanism: an inode on which a lock was ever taken has two lists ([`fscore::locks`]), of byte ranges and of whole files;
//! locks of different lists never conflict. The owner of a lock is identified by an address: that of a descriptor table, for
//! a process, or of an open file. Both record whether they were ever an owner, so that a close costs nothing if they were
//! not.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr;
use ksync::atomic::{AtomicUsize, Ordering};

use cred::{Charge, MemoryCharge, Payer};
use fscore::locks::{END, Lock, Locks, MOST, TooMany, Waits};
use ksync::{Once, Spin};
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::{WaitQueue, Waiter};

use super::error::{FsError, Result};

ksync::lock_class!(pub LocksLock, "file locks", rank = 88);
ksync::lock_class!(pub WaitsLock, "file lock waits", rank = 89);

/// The two kinds of locks, which never conflict with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// Byte ranges: fcntl(2).
    Ranges,
    /// Whole files: flock(2).
    Whole,
}

/// The locks on one inode.
pub struct FileLocks {
    lists: Spin<Lists, LocksLock>,
    /// The threads that wait for a lock on the file.
    waiters: WaitQueue,
    /// The charge for this object, which exists as long as the inode, to the user that first locked the file. Constant.
    _memory: MemoryCharge,
}

/// Where an inode has its locks: they are made with the first of them.
pub type LockSlot = Once<Box<FileLocks>>;

#[derive(Default)]
struct Lists {
    ranges: Locks<LockCharge>,
    whole: Locks<LockCharge>,
}

/// The most locks, on all files together, of a user without privileges.
const USER_MOST: u64 = 1 << 16;
/// Locks on a file that only a caller beyond users' limits may have: nobody can lock out the administrator.
const RESERVED: usize = 256;
/// Bytes charged for a lock; a list may have room for twice as many locks as it holds.
const LOCK_BYTES: usize = 128;

/// Charges a lock, and its memory, to an account as long as this value exists.
struct LockCharge(Payer);

impl LockCharge {
    /// Charges the caller's user for a lock on a file with so many; `None`, and no charge, if that user may have no more: on
    /// all files, or because those left on this one are [`RESERVED`]. It charges before it looks at the limit, so that of two
    /// calls at once one sees the other's charge. Takes the lock of the thread's credentials.
    fn new(on_file: usize) -> Option<LockCharge> {
        let me = current();
        let payer = me.payer();
        payer.charge(Charge::Locks, 1);
        payer.charge(Charge::Memory, LOCK_BYTES);
        let charge = LockCharge(payer);
        let over = payer.is_limited() && payer.is_over(Charge::Locks, USER_MOST)
            || on_file >= MOST - RESERVED;
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
    fn new() -> FileLocks {
        FileLocks {
            lists: Spin::default(),
            waiters: WaitQueue::new(),
            _memory: MemoryCharge::names(current().payer(), size_of::<FileLocks>()),
        }
    }

    /// Identifies the file in [`WAITS`].
    fn id(&self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }

    /// Records that locks of `owner` have changed, so that waits for this owner on this file are looked at again. Called
    /// under the lock of the lists.
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

hal::machine_static! {
    /// Which process waits for which, for locks on byte ranges that processes own. A wait is added, and removed when its lock is
    /// granted or the owner that it waits for lets go, under the lock of the file's lists. A wait that a signal or an error ends is
    /// removed without that lock, a moment later. The lock of the graph is taken only while some process waits.
    static WAITS: Spin<Waits, WaitsLock> = Spin::new(Waits::new());
    /// The number of waits. Written under the lock of [`WAITS`]; a wait for a lock of one file becomes visible under the lock of
    /// that file's lists.
    static WAITING: AtomicUsize = AtomicUsize::new(0);
}

/// Calls `change` with the graph of waits, under its lock, and updates their number.
fn with_waits<R>(change: impl FnOnce(&mut Waits) -> R) -> R {
    let mut waits = WAITS.lock();
    let result = change(&mut waits);
    WAITING.store(waits.len(), Ordering::Relaxed);
    let spare = waits.spare();
    drop(waits);
    drop(spare);
    result
}

impl From<TooMany> for FsError {
    fn from(TooMany: TooMany) -> FsError {
        FsError::NoLocks
    }
}

fn locks_of(slot: &LockSlot) -> &FileLocks {
    slot.get_or_init(|| Box::new(FileLocks::new()))
}

/// A lock that is requested.
struct Request<'a> {
    locks: &'a FileLocks,
    family: Family,
    wanted: Lock,
    /// Whether the request may be part of a cycle of waits: for locks on byte ranges that a process owns.
    may_circle: bool,
}

impl Request<'_> {
    /// Grants the lock, or with `wait` puts the wait for the first conflicting lock's owner into the graph, in place of an
    /// earlier one. Returns whether the lock is granted; then the file's waiters are woken. Takes the lock of the lists, and
    /// under it that of the graph. Fails with `NoLocks`, or with `Deadlock`; the caller then removes the wait.
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
        // The new lock may have replaced one that others wait for.
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

/// Gives `wanted.owner` a lock, which replaces the locks that it has in the range. With `wait` it sleeps until the lock can
/// be granted; `may_circle` says whether the request may be part of a cycle of waits.
///
/// # Errors
/// `WouldBlock` if another owner's lock conflicts and `wait` is false; `Deadlock`, only with `may_circle`, if the wait
/// would close a cycle that [`Waits::add`] notices; `Interrupted`; `NoLocks` if there is no memory for the lock or the wait, or
/// the caller's user may have no more locks, on all files or on this one. The owner's locks stay as they were.
pub fn set(
    slot: &LockSlot,
    family: Family,
    wanted: Lock,
    wait: bool,
    may_circle: bool,
) -> Result<()> {
    let mut request = Request {
        locks: locks_of(slot),
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

/// Releases what `range.owner` holds in the range. Fails with `NoLocks` if a lock must be split and there is no memory for
/// the second part, or the user may have no more locks; then nothing is released. Takes the lock of the file's lists.
pub fn unset(slot: &LockSlot, family: Family, range: &Lock) -> Result<()> {
    let Some(locks) = slot.get() else {
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

/// The lock, the first by its start, that keeps `wanted` from being granted. Takes the lock of the file's lists.
pub fn query(slot: &LockSlot, family: Family, wanted: &Lock) -> Option<Lock> {
    let locks = slot.get()?;
    locks.lists.lock().of(family).conflict(wanted).copied()
}

/// The first lock, by its start, that `range.owner` has in the range.
pub fn query_own(slot: &LockSlot, family: Family, range: &Lock) -> Option<Lock> {
    let locks = slot.get()?;
    locks.lists.lock().of(family).own(range).copied()
}

/// A copy of all locks of a file. Takes the lock of its lists; allocates without it.
///
/// # Errors
/// `NoMemory`.
pub fn held(slot: &LockSlot) -> Result<Vec<(Family, Lock)>> {
    let mut copy = Vec::new();
    let Some(locks) = slot.get() else {
        return Ok(copy);
    };
    loop {
        let lists = locks.lists.lock();
        let count = lists.ranges.iter().count() + lists.whole.iter().count();
        if count <= copy.capacity() {
            copy.extend(lists.ranges.iter().map(|lock| (Family::Ranges, *lock)));
            copy.extend(lists.whole.iter().map(|lock| (Family::Whole, *lock)));
            return Ok(copy);
        }
        drop(lists);
        copy.try_reserve_exact(count)
            .map_err(|_| FsError::NoMemory)?;
    }
}

/// Releases all locks of an owner on a file, of both families. Takes the lock of the file's lists, and wakes the waiters.
pub fn release(slot: &LockSlot, owner: u64) {
    let Some(locks) = slot.get() else {
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

/// A lock on a whole file, as flock(2) takes it.
pub const fn whole(owner: u64, pid: i32, exclusive: bool) -> Lock {
    Lock {
        owner,
        pid,
        start: 0,
        last: END,
        exclusive,
    }
}
