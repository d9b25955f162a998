//! Chains: a thread waits for a lock, whose owner waits for another one, and so on. Each step takes one bucket's lock.

use ksync::atomic::Ordering;
use task::thread::Thread;
use task::wait::Threads;

use super::donation::{exchange, priority_of};
use crate::futex::{again, bucket_index, lock_at, place, unlock};
use crate::{UserThreadExt, ids};

/// Steps that are taken along a chain (Linux's limit).
const STEPS: usize = 1024;

/// What a walk that has taken all steps sees: a longer chain is refused, as a ring is.
const TOO_LONG: u64 = u64::MAX;

/// Whether `tid` waits, over one or more locks, for itself. Every thread looks after it has begun to wait, so the last one of a ring sees it.
///
/// The owners may change while a walk looks at one after another, so a ring counts only if a second walk finds the same
/// waits. Each of them then lasted from the first walk to the second, and a thread that waits gives no lock away: all of it was there between the two.
pub fn is_ring(tid: u32) -> bool {
    loop {
        let Some(first) = ring(tid) else { return false };
        match ring(tid) {
            None => return false,
            Some(second) if second == first => return true,
            // It waits for nothing more.
            Some(_) if again().is_err() => return false,
            Some(_) => ksync::relax(),
        }
    }
}

/// Walks from `tid` to itself; returns which waits were on the way.
fn ring(tid: u32) -> Option<u64> {
    let (mut at, mut seen) = (tid, 0u64);
    for _ in 0..STEPS {
        let (owner, arrival) = wait_of(at)?;
        for part in [u64::from(at), arrival, u64::from(owner)] {
            seen = (seen ^ part)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
        if owner == tid {
            return Some(seen & !(1 << 63));
        }
        at = owner;
    }
    Some(TOO_LONG)
}

/// The owner of the lock for which a thread waits, and the number of its wait; `None` if it does not wait for an owner.
fn wait_of(tid: u32) -> Option<(u32, u64)> {
    let pin = ksync::pin();
    let t = user_thread(&pin, tid)?;
    let (b, slot) = lock_at(&t.user().futex_place);
    let (w, rank) = b.pi.waiter_of(slot, tid)?;
    let owner = b.pi.owner(&w.word.key)?;
    (owner != 0).then_some((owner, rank.arrival))
}

fn user_thread(pin: &ksync::CpuPin, tid: u32) -> Option<&Thread> {
    ids::thread(pin, tid).filter(|t| !t.is_kernel())
}

/// Gives a thread that waits the place that its priority asks for, and goes on to the owner of its lock as long as priorities change. Called without
/// a lock whenever the priority of `tid` may have changed.
pub fn adjust(tid: u32) {
    let mut at = Some(tid);
    for _ in 0..STEPS {
        match at {
            Some(tid) => at = adjust_one(tid),
            None => return,
        }
    }
}

/// Returns the owner, if its priority has changed.
fn adjust_one(tid: u32) -> Option<u32> {
    let pin = ksync::pin();
    let t = user_thread(&pin, tid)?;
    let (mut b, slot) = lock_at(&t.user().futex_place);
    let (w, rank) = b.pi.waiter_of(slot, tid)?;
    let now = priority_of(t);
    if w.priority == now {
        return None;
    }
    let (key, owner) = (w.word.key, b.pi.owner(&w.word.key));
    let before = b.pi.first(&key).and_then(|at| b.pi.tid(at));
    let mut w = b.pi.remove(slot)?;
    w.priority = now;
    let slot = b.pi.add_again(w, rank.arrival);
    let at = place(bucket_index(&key), slot);
    t.user().futex_place.store(at, Ordering::Relaxed);
    let first = b.pi.first(&key);
    let after = first.and_then(|at| b.pi.tid(at));
    let mut changed = None;
    match owner {
        None => {}
        Some(0) => {
            // The lock waits for its first waiter to take it.
            if let Some((w, _)) = first.and_then(|at| b.pi.waiter(at)) {
                w.sleeper.notify::<Threads>(&pin);
            }
        }
        Some(owner) if [before, after].contains(&Some(tid)) => {
            let lent = exchange(&pin, owner, before, after);
            changed = lent.unwrap_or(false).then_some(owner);
        }
        Some(_) => {}
    }
    unlock(b);
    changed
}
