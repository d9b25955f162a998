//! What is done to a lock with priority inheritance in one hold of its bucket's lock. A user's word is read and written here without faults.

use hal::user;
use ksync::CpuPin;
use task::wait::Threads;

use super::donation::{exchange, takes_locks};
use super::inherited;
use super::queue::Waiter;
use crate::futex::{Bucket, FutexError, Key, OWNER_DIED, TID_MASK, WAITERS};
use crate::ids;

/// What is to be locked, and for which thread.
pub struct Want<'a> {
    /// The lock's key.
    pub key: &'a Key,
    /// The address of its word in the caller's memory.
    pub addr: u64,
    /// The thread.
    pub tid: u32,
    /// The word shall say that others wait.
    pub more: bool,
}

/// What became of an attempt to lock.
pub enum Taken {
    /// The thread owns the lock.
    Mine,
    /// That thread does, and the word says that others wait. 0: the last owner has ended, and the first waiter is to take it.
    Owned(u32),
    /// The word was changed meanwhile: to be tried again.
    Again,
    /// Its page is not there.
    Fault,
}

/// Takes a lock that is free, or finds its owner. `b` is its bucket.
///
/// # Errors
/// `Deadlock`, `Invalid`, `NoOwner`, `NotPermitted`; see [`lock`](super::lock).
pub fn take(pin: &CpuPin, b: &Bucket, want: &Want<'_>) -> Result<Taken, FutexError> {
    let Ok(old) = user::load_u32(want.addr) else {
        return Ok(Taken::Fault);
    };
    let named = old & TID_MASK;
    if named == want.tid {
        return Err(FutexError::Deadlock);
    }
    if let Some(owner) = b.pi.owner(want.key) {
        // An owner that ends first marks the word, and is known as the owner until it hands the lock over.
        let died = old & OWNER_DIED != 0 && named == 0;
        return if owner == 0 || owner == named || died {
            Ok(Taken::Owned(owner))
        } else {
            Err(FutexError::Invalid)
        };
    }
    if b.pi.has(want.key) || b.waits_plainly(want.key) {
        return Err(FutexError::Invalid);
    }
    let new = match named {
        0 => old & OWNER_DIED | want.tid | if want.more { WAITERS } else { 0 },
        _ => old | WAITERS,
    };
    match user::atomic_cmpxchg_u32(want.addr, old, new) {
        Err(_) => return Ok(Taken::Fault),
        Ok(now) if now != old => return Ok(Taken::Again),
        Ok(_) if named == 0 => return Ok(Taken::Mine),
        Ok(_) => {}
    }
    match ids::thread(pin, named) {
        Some(t) if t.is_kernel() => Err(FutexError::NotPermitted),
        Some(t) if takes_locks(t) => Ok(Taken::Owned(named)),
        // It may have marked the word as it ended.
        _ if user::load_u32(want.addr) != Ok(new) => Ok(Taken::Again),
        _ => Err(FutexError::NoOwner),
    }
}

/// Adds a waiter for the lock that `owner` has. Returns its slot, and whether that changes the owner's priority.
///
/// # Errors
/// The owner takes no locks any more; gives the waiter back.
pub fn add(
    pin: &CpuPin,
    b: &mut Bucket,
    owner: u32,
    waiter: Waiter,
) -> Result<(u32, bool), Waiter> {
    let (key, tid) = (waiter.word.key, waiter.sleeper.tid());
    let before = b.pi.first(&key).and_then(|at| b.pi.tid(at));
    if before.is_none() {
        b.pi.add_lock(&key, owner);
    }
    let slot = b.pi.add(waiter);
    if owner == 0 || b.pi.first(&key) != Some(slot) {
        return Ok((slot, false));
    }
    match exchange(pin, owner, before, Some(tid)) {
        Ok(changed) => Ok((slot, changed)),
        Err(_) => {
            let waiter = b.pi.remove(slot);
            b.pi.remove_lock(&key);
            Err(waiter.expect("it was added above"))
        }
    }
}

/// Makes the first waiter of a lock, in that slot, its owner, and takes it off the queue. The word names it already.
pub fn hand_over(pin: &CpuPin, b: &mut Bucket, slot: u32) -> Option<Waiter> {
    let heir = b.pi.remove(slot)?;
    let (key, tid) = (heir.word.key, heir.sleeper.tid());
    let owner = b.pi.owner(&key).unwrap_or(0);
    if owner != 0 {
        let _ = exchange(pin, owner, Some(tid), None);
    }
    match b.pi.first(&key).and_then(|at| b.pi.tid(at)) {
        None => b.pi.remove_lock(&key),
        Some(next) => {
            b.pi.set_owner(&key, tid);
            // A thread that waits does not end.
            let lent = exchange(pin, tid, None, Some(next));
            debug_assert!(lent.is_ok(), "an heir has ended");
        }
    }
    Some(heir)
}

/// What became of an attempt to take a lock whose owner has ended.
pub enum Claim {
    /// The waiter owns it, and its word names it.
    Done(Option<Waiter>),
    /// It is not its turn.
    Not,
    /// The word was changed meanwhile: to be tried again.
    Again,
    /// Its page is not there.
    Fault,
}

/// Makes the waiter in that slot the owner if its lock has none and it is the first; `addr` is the address of the word in its memory, which
/// the calling thread uses.
pub fn inherit(pin: &CpuPin, b: &mut Bucket, slot: u32, addr: u64) -> Claim {
    let Some((w, _)) = b.pi.waiter(slot) else {
        return Claim::Not;
    };
    let (key, tid) = (w.word.key, w.sleeper.tid());
    if b.pi.owner(&key) != Some(0) || b.pi.first(&key) != Some(slot) {
        return Claim::Not;
    }
    let Ok(old) = user::load_u32(addr) else {
        return Claim::Fault;
    };
    match user::atomic_cmpxchg_u32(addr, old, inherited(tid)) {
        Err(_) => Claim::Fault,
        Ok(now) if now != old => Claim::Again,
        Ok(_) => Claim::Done(hand_over(pin, b, slot)),
    }
}

/// Takes the waiter in that slot off the queue. If it was the first, the next one is that now: it is woken if the lock has no owner. Returns it, and
/// the owner if that one's priority has changed.
pub fn remove(pin: &CpuPin, b: &mut Bucket, slot: u32) -> (Option<Waiter>, Option<u32>) {
    let Some((w, _)) = b.pi.waiter(slot) else {
        return (None, None);
    };
    let (key, tid) = (w.word.key, w.sleeper.tid());
    let was_first = b.pi.first(&key) == Some(slot);
    let removed = b.pi.remove(slot);
    let Some(owner) = b.pi.owner(&key) else {
        return (removed, None);
    };
    let next = b.pi.first(&key);
    let mut changed = None;
    if was_first && owner != 0 {
        let next = next.and_then(|at| b.pi.tid(at));
        let lent = exchange(pin, owner, Some(tid), next);
        changed = lent.unwrap_or(false).then_some(owner);
    } else if was_first && let Some((next, _)) = next.and_then(|at| b.pi.waiter(at)) {
        next.sleeper.notify::<Threads>(pin);
    }
    if next.is_none() {
        b.pi.remove_lock(&key);
    }
    (removed, changed)
}

/// The lock for which `first`, in that slot, is the first waiter has no owner from here on, if `owner` owned it; wakes `first`.
pub fn orphan(pin: &CpuPin, b: &mut Bucket, slot: u32, (first, owner): (u32, u32)) {
    let Some((w, _)) = b.pi.waiter_of(slot, first) else {
        return;
    };
    let (key, sleeper) = (w.word.key, w.sleeper);
    if b.pi.owner(&key) == Some(owner) && b.pi.first(&key) == Some(slot) {
        b.pi.set_owner(&key, 0);
        let _ = exchange(pin, owner, Some(first), None);
        sleeper.notify::<Threads>(pin);
    }
}
