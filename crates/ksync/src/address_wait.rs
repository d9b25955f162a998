//! Sleeping until something about an address happens: for words of one's own that have no room for a queue.
//!
//! Guarantee: who calls [`sleep_on`] sleeps only if `due` holds, and no [`wake_all`] of the address that begins after the
//! thread found `due` to hold passes it over. Mechanism: `due` is asked under the lock of the address's queue, which the
//! waker takes to find the sleepers. A waker that takes care of the uncontended case by a mark in its word must leave no
//! gap either: `due` holds as long as the mark is there, and the waker takes the mark away before it looks at the queue.

use core::pin::pin as stack_pin;

use crate::{
    class::LockClass,
    platform,
    queue::{Waiter, Want, list_of},
};

/// Sleeps until [`wake_all`] of `address`, if `due` holds; may return earlier. `due` runs under a spin lock of the highest
/// rank. The wait is booked on `C`, which is a lock only in the sense that one waits for it. With preemption off it does not
/// sleep, but returns at once.
pub fn sleep_on<C: LockClass>(address: usize, due: impl FnOnce() -> bool) {
    if platform::preempt_count() != 0 {
        // Whoever is waited for is pinned, too, on another CPU, or about to be done.
        return platform::relax();
    }
    let since = platform::ticks();
    let waiter = stack_pin!(Waiter::new(Want::Exclusive, address));
    let mut queue = list_of(address).lock();
    if !due() {
        return;
    }
    queue.push(waiter.as_ref());
    drop(queue);
    waiter.as_ref().wait(C::stats(), since, || 0);
}

/// Wakes all that sleep on `address`.
#[cold]
#[inline(never)]
pub fn wake_all(address: usize) {
    let pin = crate::pin();
    loop {
        let granted = list_of(address).lock().grant(address);
        if granted.is_none() {
            return;
        }
        granted.wake(&pin);
    }
}
