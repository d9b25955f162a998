//! Which priority a thread has, of its own or lent by those that wait for it.
//!
//! All other files call [`exchange`] when the first waiter of a lock changes, and [`priority_of`] to sort waiters.

use ksync::CpuPin;
use ksync::atomic::Ordering;
use task::idlist::{IdLinks, Role};
use task::sched;
use task::thread::Thread;

use crate::held_futexes::{FirstWaiter, Held};
use crate::{UserThreadExt, ids};

/// Locks of one owner of which the first waiters are asked for their priority. They are looked at under a spin lock.
const LOOKS: usize = 1024;

impl Role for FirstWaiter {
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks> {
        ids::thread(pin, id).map(|t| &t.user().held.links)
    }
}

/// The owner of a lock has ended, or is about to.
#[derive(Debug)]
pub struct Gone;

/// The priority of a thread, by which it is sorted where it waits: the higher of its own and of what it is lent.
pub fn priority_of(t: &Thread) -> u32 {
    let own = u32::from(t.setting().priority);
    own.max(t.user().held.lent.load(Ordering::Relaxed))
}

/// Replaces, on the list of `owner`, the first waiter of one of its locks. Returns whether that changes the priority of `owner`. The caller holds
/// the lock's bucket.
///
/// # Errors
/// `Gone`, if there was no waiter before: the owner takes no more.
pub fn exchange(
    pin: &CpuPin,
    owner: u32,
    old: Option<u32>,
    new: Option<u32>,
) -> Result<bool, Gone> {
    let t = ids::thread(pin, owner).filter(|t| !t.is_kernel());
    let t = t.ok_or(Gone)?;
    let mut held = t.user().held.list.lock();
    if old.is_none() && held.closed {
        return Err(Gone);
    }
    if let Some(old) = old {
        held.waiters.remove(pin, old);
    }
    if let Some(new) = new {
        held.waiters.push_back(pin, new);
        // Those that have something to lend are looked at, however many others wait for the owner.
        if ids::thread(pin, new).is_some_and(|t| priority_of(t) > 0) {
            held.waiters.make_first(new);
        }
    }
    // One that ends keeps what it has been lent until it has given all locks away.
    Ok(!held.closed && lend(pin, t, most(pin, &held)))
}

/// The highest priority of the first waiters of an owner's locks.
fn most(pin: &CpuPin, held: &Held) -> u32 {
    let (mut most, mut left) = (0, LOOKS);
    held.waiters.each(pin, |tid| {
        most = most.max(ids::thread(pin, tid).map_or(0, priority_of));
        left -= 1;
        left > 0
    });
    most
}

/// Lends `owner` that priority, instead of what it was lent before; returns whether that changes its own. The caller holds its list.
fn lend(pin: &CpuPin, owner: &Thread, priority: u32) -> bool {
    let before = priority_of(owner);
    if owner.user().held.lent.swap(priority, Ordering::Relaxed) != priority {
        sched::lend_priority(pin, owner, priority as u8);
    }
    priority_of(owner) != before
}

/// The thread has given all its locks away, and takes no more.
pub fn end(t: &Thread) {
    let pin = ksync::pin();
    let _held = t.user().held.list.lock();
    lend(&pin, t, 0);
}

/// Whether the thread can be made the owner of a lock.
pub fn takes_locks(t: &Thread) -> bool {
    !t.user().held.list.lock().closed
}
