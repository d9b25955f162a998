//! What the kernel tells programs of its clocks: shared by the kernel and the object that it maps into programs.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The clocks: the first words of the page behind the code. All are written before the first program runs, and `real_at_zero` again whenever
/// real time is set, by one store.
#[repr(C)]
pub struct Clock {
    /// Nanoseconds a tick of the time-stamp counter, as a 32.32 fixed-point number. Constant.
    pub ns_per_tick: AtomicU64,
    /// The counter when monotonic time was 0. Constant.
    pub zero: AtomicU64,
    /// Nanoseconds since 1970 when monotonic time was 0. Atomic.
    pub real_at_zero: AtomicU64,
}

impl Clock {
    /// Monotonic time, by the counter. As the kernel computes it.
    #[inline(always)]
    pub fn monotonic(&self, tsc: u64) -> u64 {
        let ticks = tsc.wrapping_sub(self.zero.load(Relaxed));
        // A counter that is slightly behind that of the CPU that booted.
        let ticks = if ticks > u64::MAX / 2 { 0 } else { ticks };
        ((u128::from(ticks) * u128::from(self.ns_per_tick.load(Relaxed))) >> 32) as u64
    }

    /// Real time, by the counter.
    #[inline(always)]
    pub fn real(&self, tsc: u64) -> u64 {
        self.monotonic(tsc)
            .wrapping_add(self.real_at_zero.load(Relaxed))
    }
}
