//! Robust lists: the locks that a thread holds when it ends.

use hal::uaccess::{UserFault, UserPtr};
use hal::user;
use ksync::atomic::Ordering;
use task::current::Current;

use super::{OWNER_DIED, TID_MASK, WAITERS, wake_exited};
use crate::UserThreadExt;

/// Most entries of a robust list that exit follows (Linux's limit).
const ROBUST_LIMIT: usize = 2048;

/// Marks the robust futexes that `me`, which exits or calls execve, holds, and wakes waiters of each that has some. Follows the
/// list in user memory, which may sleep, up to [`ROBUST_LIMIT`] entries and as far as it is accessible. After that the thread has
/// no list.
pub(crate) fn release_robust(me: &Current) {
    let head = me.user().robust_list.swap(0, Ordering::Relaxed);
    if head == 0 {
        return;
    }
    let Ok([first, offset, pending]) = UserPtr::<[u64; 3]>::new(head).read() else {
        return;
    };
    let mut entry = first;
    for _ in 0..ROBUST_LIMIT {
        let (at, pi) = entry_of(entry);
        if at == head {
            break;
        }
        // Read before the word is marked: then another thread may take the futex and change the entry.
        let next = UserPtr::<u64>::new(at).read();
        let pends = at == entry_of(pending).0;
        if !pends && mark_dead(me, at.wrapping_add(offset), pi, false).is_err() {
            break;
        }
        match next {
            Ok(n) => entry = n,
            Err(_) => break,
        }
    }
    let (at, pi) = entry_of(pending);
    if at != 0 {
        let _ = mark_dead(me, at.wrapping_add(offset), pi, true);
    }
}

/// The address that an entry has, and whether it is a futex with priority inheritance: that is bit 0.
fn entry_of(entry: u64) -> (u64, bool) {
    (entry & !1, entry & 1 != 0)
}

/// Marks the robust futex at `addr` if `me` holds it. A `pending` one is that which the thread was locking or unlocking. Fails if
/// the word is not accessible. Waiters of one with priority inheritance (`pi`) are not woken: the kernel knows its owner, and [`disown`](super::pi::disown) wakes
/// the heir.
fn mark_dead(me: &Current, addr: u64, pi: bool, pending: bool) -> Result<(), UserFault> {
    loop {
        // Fails also if the word is not aligned.
        let old = user::load_u32(addr)?;
        if pending && !pi && old == 0 {
            // The thread unlocked the futex, but perhaps died before it could wake a waiter.
            wake_exited(addr);
            return Ok(());
        }
        if old & TID_MASK != me.tid() {
            return Ok(());
        }
        let new = old & WAITERS | OWNER_DIED;
        if user::atomic_cmpxchg_u32(addr, old, new)? == old {
            if !pi && old & WAITERS != 0 {
                wake_exited(addr);
            }
            return Ok(());
        }
    }
}
