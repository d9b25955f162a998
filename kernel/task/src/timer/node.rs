//! A timer, as a part of the thread or process that it belongs to.

use ksync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::idlist::IdLinks;
use crate::time;

/// The value of `cpu` in a timer that is not armed.
pub(super) const NOWHERE: u32 = u32::MAX;

/// A timer: a field of its thread or process.
pub struct TimerNode {
    pub(super) links: IdLinks,
    /// The CPU on whose wheel the timer is, or `NOWHERE`. Written under that wheel's lock.
    pub(super) cpu: AtomicU32,
    /// Level and list, as `level * 64 + list`. Under the wheel's lock.
    pub(super) place: AtomicU32,
    /// When the timer expires, in monotonic nanoseconds. Written under the wheel's lock, read without it.
    pub(super) at: AtomicU64,
}

impl Default for TimerNode {
    fn default() -> Self {
        Self::new()
    }
}

impl TimerNode {
    /// A timer that is not armed.
    pub const fn new() -> Self {
        TimerNode {
            links: IdLinks::new(),
            cpu: AtomicU32::new(NOWHERE),
            place: AtomicU32::new(0),
            at: AtomicU64::new(0),
        }
    }

    /// Whether the timer is armed.
    pub fn armed(&self) -> bool {
        self.cpu.load(Ordering::SeqCst) != NOWHERE
    }

    /// When the timer expires, or was last to expire, in monotonic nanoseconds.
    pub fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Monotonic nanoseconds left, at least 1; `None` if the timer is not armed.
    pub fn left(&self) -> Option<u64> {
        self.armed().then(|| {
            self.at
                .load(Ordering::Relaxed)
                .saturating_sub(time::monotonic_ns())
                .max(1)
        })
    }
}

#[cfg(not(shuttle))]
const _: () = assert!(size_of::<TimerNode>() <= 24 + 8);
