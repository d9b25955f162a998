//! Permissions to pass, and threads that sleep until they get one.
#![allow(dead_code, reason = "no test uses all of it")]

// Counts are not the model checker's: they add no step to a schedule.
use core::sync::atomic::AtomicU32 as Count;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use task::wait::{WaitQueue, Waiter};

/// Permissions, a queue of those that wait for one, and how often a step has run and a wake-up was passed on.
#[derive(Default)]
pub struct Gate {
    pub open: AtomicU32,
    pub queue: WaitQueue,
    runs: Count,
    pub passed_on: Count,
}

impl Gate {
    /// Gives a permission. Returns whether a thread was woken for it.
    pub fn admit(&self) -> bool {
        self.open.fetch_add(1, SeqCst);
        self.queue.wake_one()
    }

    /// Takes a permission, if there is one.
    pub fn take(&self) -> Step<()> {
        self.runs.fetch_add(1, SeqCst);
        let lower = |open: u32| open.checked_sub(1);
        match self.open.fetch_update(SeqCst, SeqCst, lower) {
            Ok(_) => Step::Done(()),
            Err(_) => Step::Wait,
        }
    }

    /// Sleeps until there is a permission, and takes it.
    pub fn pass(&self, deadline: Deadline, interruptible: Interruptible) -> Result<(), ParkError> {
        let step = |gate: &mut &Gate, waiter: &mut Waiter| {
            waiter.listen(&gate.queue);
            gate.take()
        };
        // A wake-up that comes when a permission has been taken without it is for another thread.
        let pass_on = |gate: &mut &Gate| {
            gate.passed_on.fetch_add(1, SeqCst);
            gate.queue.wake_one();
        };
        park::park_and_pass_on(&mut &*self, deadline, interruptible, step, pass_on)
    }

    /// How often a step has run.
    pub fn runs(&self) -> u32 {
        self.runs.load(SeqCst)
    }
}
