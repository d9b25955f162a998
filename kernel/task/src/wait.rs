//! Wait queues: threads register with them and sleep, and are woken when something may have changed.
//!
//! [`ksync::WaitQueue`] has the protocol, and the reason why no wake-up is lost; this file binds it to threads.

use ksync::{CpuPin, Registration, Round};

use crate::{ids, lock, sched};

/// Threads by tid, as wait queues find them.
pub enum Threads {}

impl ksync::Sleepers for Threads {
    fn round(pin: &CpuPin, tid: u32) -> Option<&Round> {
        ids::thread(pin, tid).map(|t| &t.round)
    }

    fn wake(pin: &CpuPin, tid: u32) {
        if let Some(t) = ids::thread(pin, tid) {
            sched::wake(pin, t);
        }
    }
}

/// A queue of sleepers, which are woken in the order in which they came.
pub type WaitQueue = ksync::WaitQueue<Threads, lock::WaitQueueLock>;

/// The present waiting round of a thread, passed to the step function of [`crate::park::park`]. The step may listen to any
/// number of queues; every registration ends with the round.
pub struct Waiter {
    me: Registration,
    /// A queue had no memory to register the thread. It may not be woken then, so the step is to be run again by itself.
    unheard: bool,
}

impl Waiter {
    /// Round `round` of thread `tid`, which listens to no queue yet.
    pub fn new(tid: u32, round: u64) -> Self {
        Waiter {
            me: Registration::new(tid, round),
            unheard: false,
        }
    }

    /// Whether a queue had no memory to register the thread.
    pub fn unheard(&self) -> bool {
        self.unheard
    }

    /// What a list that is not a wait queue keeps to wake this thread.
    pub fn registration(&self) -> Registration {
        self.me
    }

    /// Registers the thread with `queue`, whose wake-ups then reach it. To be called before the condition is tested. Takes
    /// the queue's lock. May allocate; without memory the thread is not registered, and the step is run again after a short
    /// while.
    pub fn listen(&mut self, queue: &WaitQueue) {
        self.unheard |= !queue.add(self.me);
    }
}
