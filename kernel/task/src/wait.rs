//! Wait queues: what sleeps until something may have changed, and how it is woken.
//!
//! The protocol, and why no wake-up is lost, is [`ksync::WaitQueue`]'s; here it meets threads.

use ksync::{CpuPin, Registration, Round};

use crate::{ids, lock, sched};

/// Threads by number, as wait queues see them.
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

/// A set of sleepers, woken in the order in which they came.
pub type WaitQueue = ksync::WaitQueue<Threads, lock::WaitQueueLock>;

/// A thread's present waiting round, handed to the step function of [`crate::park::park`].
/// May listen to any number of queues; every registration ends with the round.
pub struct Waiter {
    me: Registration,
    /// Some queue had no room for it: nobody may wake the thread, so it is to look again by itself.
    unheard: bool,
}

impl Waiter {
    /// Round `round` of thread `tid`, listening to nothing yet.
    pub fn new(tid: u32, round: u64) -> Self {
        Waiter {
            me: Registration::new(tid, round),
            unheard: false,
        }
    }

    /// Whether a queue that was to be listened to had no memory for that.
    pub fn unheard(&self) -> bool {
        self.unheard
    }

    /// What a list that is not a wait queue keeps to wake this thread.
    pub fn registration(&self) -> Registration {
        self.me
    }

    /// Asks to be woken by `queue`.  To be called before the condition is tested.
    /// Takes the queue's lock; may allocate, and does without where there is no memory: the step is then run again
    /// after a short while.
    pub fn listen(&mut self, queue: &WaitQueue) {
        self.unheard |= !queue.add(self.me);
    }
}
