//! Statistics without shared lines.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A count that one CPU writes, with preemption off, and everybody reads.
///
/// Incrementing is a plain add to memory, no locked instruction; readers sum the tallies of all CPUs.
#[derive(Default)]
pub struct Tally(AtomicU64);

impl Tally {
    /// A tally of zero.
    pub const fn new() -> Tally {
        Tally(AtomicU64::new(0))
    }

    /// Adds `n`. The caller is the CPU that owns the tally, with preemption off.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count, as of some moment.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
