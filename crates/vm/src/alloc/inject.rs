//! Deliberate failure of allocations, for tests.

use ksync::atomic::{AtomicU32, Ordering::Relaxed};

/// Configuration. Read on slow paths only, because an active injector closes each CPU's gate.
pub(super) struct Injector {
    /// One in so many requests fails; 0 for none.
    period: AtomicU32,
}

/// Requests seen by one CPU; written by it, or while the injector is set up.
#[derive(Default)]
pub(super) struct InjectorCount(AtomicU32);

impl InjectorCount {
    pub(super) fn set(&self, count: u32) {
        self.0.store(count, Relaxed);
    }
}

impl Injector {
    pub(super) fn new() -> Injector {
        Injector {
            period: AtomicU32::new(0),
        }
    }

    pub(super) fn set(&self, period: u32) {
        self.period.store(period, Relaxed);
    }

    pub(super) fn period(&self) -> u32 {
        self.period.load(Relaxed)
    }

    /// Counts a request of the calling CPU and returns whether it fails.
    pub(super) fn fails(&self, count: &InjectorCount) -> bool {
        let period = self.period.load(Relaxed);
        if period == 0 {
            return false;
        }
        let seen = count.0.load(Relaxed).wrapping_add(1);
        count.0.store(seen, Relaxed);
        seen.is_multiple_of(period)
    }
}
