//! Sleeping until an event at an address: for words that have no room for a queue of their own.
//!
//! Guarantee: [`sleep_on`] sleeps only if `due` holds, and a [`wake_all`] of the address that begins after `due` was
//! found to hold wakes the thread.
//!
//! Mechanism: `due` is tested under the lock of the address's queue, which the waker takes to find the sleepers. A
//! waker may use a mark in its word to skip the queue if there are no sleepers: `due` then holds as long as the mark is
//! set, and the waker clears the mark before it looks at the queue.

use core::pin::pin as stack_pin;

use crate::{
    class::LockClass,
    platform,
    queue::{Waiter, Want, list_of},
};

/// Sleeps until [`wake_all`] of `address`, if `due` holds; may return earlier. `due` runs under a spin lock of the
/// highest rank. The wait is counted for `C`, which is not a lock but is waited for like one. With preemption off this
/// does not sleep, but returns at once.
pub fn sleep_on<C: LockClass>(address: usize, due: impl FnOnce() -> bool) {
    if platform::preempt_count() != 0 {
        // The thread that is waited for is pinned, too, on another CPU, or about to be done.
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
    waiter.as_ref().wait(C::stats(), since, 0, || 0);
}

/// Wakes all threads that sleep on `address`.
#[cold]
#[inline(never)]
pub fn wake_all(address: usize) {
    let pin = crate::pin();
    loop {
        let granted = list_of(address).lock().grant(address, 1);
        if granted.is_none() {
            return;
        }
        granted.wake(&pin);
    }
}
