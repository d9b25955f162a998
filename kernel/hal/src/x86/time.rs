//! Clocks: nanoseconds since boot by the TSC, and the wall-clock time of boot.
use core::sync::atomic::{AtomicU64, Ordering};

use super::calibrate::{self, tsc};
use super::{percpu, rtc};

/// Nanoseconds per TSC tick, as a 32.32 fixed-point number. Written once at boot.
static NS_PER_TICK: AtomicU64 = AtomicU64::new(0);
/// TSC at the time from which nanoseconds are counted. Written once, at boot.
static TSC_AT_ZERO: AtomicU64 = AtomicU64::new(0);
/// TSC ticks a second. Written once at boot.
static TSC_HZ: AtomicU64 = AtomicU64::new(0);
/// Wall-clock time, in nanoseconds since 1970, at that moment. Written once, at boot.
static REALTIME_AT_ZERO: AtomicU64 = AtomicU64::new(0);

const SECOND: u64 = 1_000_000_000;

/// Starts the clocks. Called once, at boot.
pub(super) fn init(pm_timer: u16) {
    let hz = calibrate::tsc_hz(pm_timer).max(1);
    TSC_HZ.store(hz, Ordering::Relaxed);
    let ratio = (u128::from(SECOND) << 32) / u128::from(hz);
    NS_PER_TICK.store(ratio as u64, Ordering::Relaxed);
    TSC_AT_ZERO.store(tsc(), Ordering::Relaxed);
    REALTIME_AT_ZERO.store(rtc::read().saturating_mul(SECOND), Ordering::Relaxed);
}

/// Nanoseconds since boot. Never decreases on one CPU.
#[inline]
pub fn now_ns() -> u64 {
    let ns = ns_at(tsc());
    let last = &percpu::area().last_ns;
    let ns = ns.max(last.load(Ordering::Relaxed));
    last.store(ns, Ordering::Relaxed);
    ns
}

/// The time, as [`now_ns`] counts it, at which [`ticks`] was `tsc`.
#[inline]
pub fn ns_at(tsc: u64) -> u64 {
    let ticks = tsc.wrapping_sub(TSC_AT_ZERO.load(Ordering::Relaxed));
    // A TSC that is slightly behind the boot CPU's must not wrap around directly after boot.
    ticks_to_ns(if ticks > u64::MAX / 2 { 0 } else { ticks })
}

/// Nanoseconds since boot, for the log; 0 before the clock runs. May be called at any time of the boot, because it uses no
/// per-CPU area.
pub(super) fn stamp_ns() -> u64 {
    match TSC_AT_ZERO.load(Ordering::Relaxed) {
        0 => 0,
        zero => {
            let ticks = tsc().saturating_sub(zero);
            ticks_to_ns(ticks)
        }
    }
}

/// The wall-clock time, in nanoseconds since 1970, at which [`now_ns`] was 0, by the real-time clock (whole seconds).
pub fn boot_realtime_ns() -> u64 {
    REALTIME_AT_ZERO.load(Ordering::Relaxed)
}

/// What [`now_ns`] is computed with: nanoseconds a tick, as a 32.32 fixed-point number, and the TSC at zero.
pub fn scale() -> [u64; 2] {
    [&NS_PER_TICK, &TSC_AT_ZERO].map(|word| word.load(Ordering::Relaxed))
}

/// TSC ticks a second.
pub fn tsc_hz() -> u64 {
    TSC_HZ.load(Ordering::Relaxed)
}

/// The TSC: the cheapest clock, for accounting.
#[inline]
pub fn ticks() -> u64 {
    tsc()
}

/// Converts TSC ticks to nanoseconds.
#[inline]
pub fn ticks_to_ns(ticks: u64) -> u64 {
    let ratio = u128::from(NS_PER_TICK.load(Ordering::Relaxed));
    ((u128::from(ticks) * ratio) >> 32) as u64
}

/// The TSC at a time as [`now_ns`] counts it.
pub(super) fn tsc_at(ns: u64) -> u64 {
    let ticks = u128::from(ns) * u128::from(tsc_hz()) / u128::from(SECOND);
    TSC_AT_ZERO
        .load(Ordering::Relaxed)
        .saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX))
}

/// Waits, without giving up the CPU.
pub fn spin_ns(ns: u64) {
    let end =
        tsc().saturating_add((u128::from(ns) * u128::from(tsc_hz()) / u128::from(SECOND)) as u64);
    while tsc() < end {
        core::hint::spin_loop();
    }
}
