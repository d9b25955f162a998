//! Sleepers that are given an answer.
//!
//! Guarantee: a sleeper gets one answer, or its sleep ends without one and it takes itself off the list where the answer would have found it.
//! Mechanism: the operation that takes a sleeper off the list, under the object's lock, answers it. A sleeper whose sleep has
//! ended looks for an answer once more under that lock.

use ksync::Spin;
use task::park::{Deadline, Interruptible, ParkError, Step, park};
use task::wait::WaitQueue;

ksync::lock_class!(pub AnswerLock, "answer", rank = 85);

/// A thread that waits for an answer. See the module.
pub struct Sleeper<R> {
    answer: Spin<Option<R>, AnswerLock>,
    queue: WaitQueue,
}

impl<R: Send> Sleeper<R> {
    /// One without an answer.
    pub fn new() -> Self {
        Sleeper {
            answer: Spin::new(None),
            queue: WaitQueue::new(),
        }
    }

    /// Answers it, once, and wakes it. The object's lock is held.
    pub fn answer(&self, answer: R) {
        let before = self.answer.lock().replace(answer);
        debug_assert!(before.is_none(), "a sleeper was answered twice");
        self.queue.wake_all();
    }

    /// The answer, if there is one that was not taken.
    pub fn take(&self) -> Option<R> {
        self.answer.lock().take()
    }

    /// Sleeps until there is an answer.
    ///
    /// # Errors
    /// The deadline, or a signal, came first: see the module for what the caller does then.
    pub fn sleep(&self, deadline: Deadline) -> Result<R, ParkError> {
        let mut me = self;
        park(&mut me, deadline, Interruptible::Yes, |me, waiter| {
            waiter.listen(&me.queue);
            me.take().map_or(Step::Wait, Step::Done)
        })
    }
}

impl<R: Send> Default for Sleeper<R> {
    fn default() -> Self {
        Self::new()
    }
}
