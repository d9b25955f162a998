//! Threads that lock futexes with priority inheritance.

use std::sync::{Arc, Mutex};

use proc::futex::{FutexError, pi};
use proc::ids;
use task::park::Deadline;
use task::sched::{Policy, Setting};
use task::thread::Thread;

/// Bits of a word.
pub const WAITERS: u32 = 0x8000_0000;
/// See [`WAITERS`].
pub const OWNER_DIED: u32 = 0x4000_0000;

/// FUTEX_LOCK_PI of a private word.
pub fn lock(addr: u64) -> Result<(), FutexError> {
    pi::lock(addr, false, Deadline::Never)
}

/// FUTEX_UNLOCK_PI.
pub fn unlock(addr: u64) -> Result<(), FutexError> {
    pi::unlock(addr, false)
}

/// Names in the order in which threads had a lock.
pub type Order = Arc<Mutex<Vec<u32>>>;

/// The priority of a thread, with what it is lent.
pub fn priority(tid: u32) -> u32 {
    pi::priority_of(&ids::find_thread(tid).expect("a thread"))
}

/// Gives a thread SCHED_FIFO of a priority, as sched_setscheduler does, or SCHED_OTHER for 0.
pub fn set_priority(t: &Thread, priority: u32) {
    t.set_setting(Setting {
        policy: if priority > 0 {
            Policy::Fifo
        } else {
            Policy::Other
        },
        priority: priority as u8,
        reset_on_fork: false,
    });
    pi::priority_changed(t);
}
