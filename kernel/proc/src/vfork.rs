//! What a process keeps for the parent that has made it by vfork.

use ksync::atomic::{AtomicBool, Ordering};

use task::wait::WaitQueue;

/// Where a parent sleeps after vfork until the child does not use its memory any more.
pub struct VforkGate {
    /// The parent waits.
    pub(super) shut: AtomicBool,
    pub(super) queue: WaitQueue,
}

impl VforkGate {
    pub(super) const fn new() -> Self {
        VforkGate {
            shut: AtomicBool::new(false),
            queue: WaitQueue::new(),
        }
    }

    /// Wakes the parent, if it waits: the child, which has called execve or is ending, has left the parent's memory.
    pub(super) fn open(&self) {
        if self.shut.swap(false, Ordering::SeqCst) {
            self.queue.wake_all();
        }
    }
}
