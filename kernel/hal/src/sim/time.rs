//! Clocks: nanoseconds since boot. A tick of the TSC is a nanosecond.

use crate::sim;

/// Wall-clock time of boot, in nanoseconds since 1970.
const BOOT_NS: u64 = 1_700_000_000_000_000_000;

/// Nanoseconds since boot.
pub fn now_ns() -> u64 {
    sim::clock::look()
}

/// The time, as [`now_ns`] counts it, at which [`ticks`] was `tsc`.
pub fn ns_at(tsc: u64) -> u64 {
    tsc
}

/// The wall-clock time, in nanoseconds since 1970, at which [`now_ns`] was 0.
pub fn boot_realtime_ns() -> u64 {
    BOOT_NS
}

/// TSC ticks a second.
pub fn tsc_hz() -> u64 {
    1_000_000_000
}

/// The TSC.
pub fn ticks() -> u64 {
    sim::clock::look()
}

/// Converts TSC ticks to nanoseconds.
pub fn ticks_to_ns(ticks: u64) -> u64 {
    ticks
}

/// Waits, without giving up the CPU.
pub fn spin_ns(ns: u64) {
    sim::clock::advance(ns);
    sim::deliver();
}

/// As the machine's: nanoseconds are ticks here.
pub fn scale() -> [u64; 2] {
    [1 << 32, 0]
}
