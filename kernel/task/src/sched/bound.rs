//! The part of each period for which real-time threads may keep a CPU from others: sched_rt_runtime_us and sched_rt_period_us.
//!
//! Periods are counted from boot, on all CPUs alike. A CPU's real-time threads have used up a period when they have run for the
//! permitted time of it; then the CPU's other threads run first until the period ends, if there are any.

use ksync::atomic::{AtomicU64, Ordering};

const NS_PER_US: u64 = 1000;

hal::machine_static! {
    /// The time in microseconds, all bits set for no bound, in the upper half; the period in the lower one.
    static BOUND: AtomicU64 = AtomicU64::new((950_000 << 32) | 1_000_000);
}

/// What real-time threads may use of each period, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The time; `None` for all of it, whatever waits.
    pub runtime_us: Option<u32>,
    /// The period, at least 1.
    pub period_us: u32,
}

/// The bound that was to be set has no period, or a time longer than that, or one beyond the range of an int.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBound;

impl Bound {
    fn from_word(word: u64) -> Self {
        let runtime = (word >> 32) as u32;
        Bound {
            runtime_us: (runtime != u32::MAX).then_some(runtime),
            period_us: word as u32,
        }
    }

    fn word(self) -> u64 {
        u64::from(self.runtime_us.unwrap_or(u32::MAX)) << 32 | u64::from(self.period_us)
    }

    fn is_valid(self) -> bool {
        let most = self.period_us.min(i32::MAX as u32);
        self.period_us > 0 && self.runtime_us.is_none_or(|runtime| runtime <= most)
    }

    fn period_ns(self) -> u64 {
        u64::from(self.period_us) * NS_PER_US
    }
}

/// The bound of all CPUs.
pub fn bound() -> Bound {
    Bound::from_word(BOUND.load(Ordering::Relaxed))
}

/// Replaces the bound by what `new` makes of it. CPUs obey it from their next tick on.
///
/// # Errors
/// [`InvalidBound`]; nothing has changed.
pub fn set_bound(new: impl Fn(Bound) -> Bound) -> Result<(), InvalidBound> {
    let changed = |word| {
        let bound = new(Bound::from_word(word));
        bound.is_valid().then(|| bound.word())
    };
    let set = BOUND.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
    set.map(|_| ()).map_err(|_| InvalidBound)
}

/// What a CPU's real-time threads have used of the present period.
pub(super) struct Used {
    /// The number of that period.
    period: u64,
    ns: u64,
}

impl Used {
    pub const fn new() -> Self {
        Used { period: 0, ns: 0 }
    }

    /// Real-time threads have run for the last `ran` nanoseconds before `now`. Returns what is left.
    pub fn add(&mut self, ran: u64, now: u64) -> Left {
        let bound = bound();
        let period_ns = bound.period_ns();
        let period = now / period_ns;
        if period != self.period {
            (self.period, self.ns) = (period, 0);
        }
        self.ns += ran.min(now % period_ns);
        let runtime = bound.runtime_us.map(|us| u64::from(us) * NS_PER_US);
        Left {
            ns: runtime.map_or(u64::MAX, |ns| ns.saturating_sub(self.ns)),
            until: (period + 1) * period_ns,
        }
    }
}

/// What real-time threads may still run for in a period, in nanoseconds, and when the next period begins.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub ns: u64,
    pub until: u64,
}

impl Left {
    /// Whether other threads come first until the period ends.
    pub fn is_spent(self) -> bool {
        self.ns == 0
    }
}
