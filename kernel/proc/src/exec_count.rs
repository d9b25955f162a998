//! Which program a process runs, as far as a child can tell that it is not the one that made it.

use ksync::atomic::{AtomicU32, Ordering};

/// How many execve calls a process and its ancestors have made. The count ends at its largest value, which says nothing:
/// a count that wrapped around would take another program for the one that a child knew, and a program can make so many
/// calls, given some days.
pub struct ExecCount(AtomicU32);

impl ExecCount {
    /// A count that begins at `count`.
    pub const fn new(count: u32) -> Self {
        ExecCount(AtomicU32::new(count))
    }

    /// The count, for a child that is made now.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// The process runs another program. Called by its only thread.
    pub fn advance(&self) {
        self.0.store(self.get().saturating_add(1), Ordering::SeqCst);
    }

    /// Whether the process certainly runs the program that it ran when [`get`](Self::get) returned `then`.
    pub fn is_still(&self, then: u32) -> bool {
        then != u32::MAX && then == self.0.load(Ordering::SeqCst)
    }
}
