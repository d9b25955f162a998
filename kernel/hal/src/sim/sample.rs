//! What each CPU was doing: not recorded here.

/// Records that this CPU spins for the lock `name`, which CPU `holder` holds.
pub fn spins(_name: &'static str, _holder: usize) {}

/// Records that this CPU has spun `ticks` of the TSC for the lock `name`, or that its thread has slept so long for it.
pub fn stall(_name: &'static str, _asleep: bool, _ticks: u64) {}
