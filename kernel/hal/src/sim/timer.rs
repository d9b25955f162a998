//! The one-shot timer of each CPU.

use core::sync::atomic::Ordering::Relaxed;

use crate::sim::with_cpu;

/// No deadline.
pub const NEVER: u64 = u64::MAX;

/// Arms this CPU's timer for `deadline_ns` on the clock of [`now_ns`](crate::time::now_ns), in place of the deadline that it
/// had; [`NEVER`] disarms it. Called with preemption off.
pub fn arm(deadline_ns: u64) {
    with_cpu((), |cpu| cpu.armed_ns.store(deadline_ns, Relaxed));
}
