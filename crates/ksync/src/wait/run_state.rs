//! Whether a thread runs or sleeps: the word that a sleep and a wake-up both change. The parent has the protocol.

use crate::{
    atomic::{AtomicU8, Ordering::*},
    shim::fence_after_rmw,
};

/// State of a thread with regard to sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Run {
    /// On a CPU or on a run queue.
    Running = 0,
    /// Still on its CPU, but has declared that it will sleep.
    Waiting = 1,
    /// Asleep; its context is saved.
    Blocked = 2,
    /// Will not run again.
    Dead = 3,
}

/// A thread's [`Run`].
pub struct RunState(AtomicU8);

impl RunState {
    const_fn! {
        /// A thread that runs, or is not queued yet.
        pub fn new() -> Self {
            Self(AtomicU8::new(Run::Running as u8))
        }
    }

    /// The present state.  A hint, but for the thread itself while it is `Running` or `Dead`.
    pub fn get(&self) -> Run {
        [Run::Running, Run::Waiting, Run::Blocked, Run::Dead][self.0.load(Relaxed) as usize & 3]
    }

    /// Declares that the thread will sleep unless it is woken from now on. The thread then tests everything that could
    /// have woken it before.
    pub fn declare_waiting(&self) {
        self.0.swap(Run::Waiting as u8, Relaxed);
        fence_after_rmw();
    }

    /// Withdraws the declaration. By the thread itself: a concurrent waker writes the same value.
    pub fn declare_running(&self) {
        self.0.store(Run::Running as u8, Relaxed);
    }

    /// Declares that the thread will leave its CPU once more and never sleep again. By the thread itself.
    pub fn declare_dead(&self) {
        self.0.store(Run::Dead as u8, Relaxed);
    }

    /// Completes the declaration after the thread's context was saved: from here on a waker may run it on another CPU,
    /// so this is the last access. False if it was woken since it declared that it would sleep; the caller must then
    /// queue it.
    pub fn settle(&self) -> bool {
        self.0
            .compare_exchange(Run::Waiting as u8, Run::Blocked as u8, Release, Relaxed)
            .is_ok()
    }

    /// Ends a sleep, or the declaration of one; true if the caller must queue the thread. Does nothing to a running
    /// thread. The caller has made the reason for the wake-up visible by a read-modify-write.
    pub fn wake(&self) -> bool {
        fence_after_rmw();
        loop {
            let state = self.0.load(Relaxed);
            if state != Run::Waiting as u8 && state != Run::Blocked as u8 {
                return false;
            }
            if self
                .0
                .compare_exchange(state, Run::Running as u8, Acquire, Relaxed)
                .is_ok()
            {
                return state == Run::Blocked as u8;
            }
        }
    }
}

impl Default for RunState {
    fn default() -> Self {
        Self::new()
    }
}
