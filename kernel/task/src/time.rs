//! Clocks.
//!
//! Monotonic time comes from the machine and never steps.  Real time is monotonic time plus an
//! offset that clock_settime(2) and settimeofday(2) change.

use ksync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

hal::machine_static! {
    /// Nanoseconds by which clock_settime(2) and its like have moved real time from the machine's. Atomic.
    static STEP: AtomicI64 = AtomicI64::new(0);

    /// How often they have. Atomic; changed after `STEP`.
    static STEPS: AtomicU64 = AtomicU64::new(0);
}

/// Nanoseconds since boot.
#[inline]
pub fn monotonic_ns() -> u64 {
    hal::time::now_ns()
}

fn offset() -> i64 {
    hal::time::boot_realtime_ns() as i64 + STEP.load(Ordering::Relaxed)
}

/// Nanoseconds since 1970: real time.
pub fn realtime_ns() -> u64 {
    monotonic_ns().saturating_add_signed(offset())
}

/// Sets real time, in nanoseconds since 1970.
pub fn set_realtime(ns: u64) {
    let now = realtime_ns();
    STEP.fetch_add(ns as i64 - now as i64, Ordering::Relaxed);
    STEPS.fetch_add(1, Ordering::Release);
}

/// How often real time was set.
pub fn steps() -> u64 {
    STEPS.load(Ordering::Acquire)
}

/// The real time at which monotonic time was `ns`, by the present offset.
pub fn monotonic_to_real(ns: u64) -> u64 {
    ns.saturating_add_signed(offset())
}

/// The monotonic time at which real time is `ns`, by the present offset; 0 if that was before boot.
pub fn real_to_monotonic(ns: u64) -> u64 {
    ns.saturating_add_signed(-offset())
}
