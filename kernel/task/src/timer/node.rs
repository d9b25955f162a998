//! A timer, as part of the thread or process that it belongs to.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::idlist::IdLinks;
use crate::time;

/// The CPU of a timer at rest.
pub(super) const NOWHERE: u32 = u32::MAX;

/// A timer, part of what it belongs to.
pub struct TimerNode {
    pub(super) links: IdLinks,
    /// Its wheel's CPU, or `NOWHERE`.  Written under that wheel's lock.
    pub(super) cpu: AtomicU32,
    /// Level and slot, `level * 64 + slot`.  The wheel's lock.
    pub(super) place: AtomicU32,
    /// Monotonic nanoseconds.  The wheel's lock; read without it.
    pub(super) at: AtomicU64,
}

impl Default for TimerNode {
    fn default() -> Self {
        Self::new()
    }
}

impl TimerNode {
    /// A timer at rest.
    pub const fn new() -> Self {
        TimerNode {
            links: IdLinks::new(),
            cpu: AtomicU32::new(NOWHERE),
            place: AtomicU32::new(0),
            at: AtomicU64::new(0),
        }
    }

    /// Whether it is still to go off.
    pub fn armed(&self) -> bool {
        self.cpu.load(Ordering::SeqCst) != NOWHERE
    }

    /// When it is to go off, or was, in monotonic nanoseconds.
    pub fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Monotonic nanoseconds left; `None` if at rest.
    pub fn left(&self) -> Option<u64> {
        self.armed().then(|| {
            self.at
                .load(Ordering::Relaxed)
                .saturating_sub(time::monotonic_ns())
                .max(1)
        })
    }
}

const _: () = assert!(size_of::<TimerNode>() <= 24 + 8);
