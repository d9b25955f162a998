//! Time on the simulated machine.
//!
//! Each CPU has a clock of its own, which only its own looks at it move on, and which follows the others' while it halts. A CPU
//! whose clock is ahead of another's by [`AHEAD_NS`] waits for the other: so all CPUs get on equally fast, however the host runs
//! their threads, and their clocks agree as closely.

use core::sync::atomic::Ordering::Relaxed;

use super::threads::yield_now;
use super::{Cpu, Here, Machine, here};

/// Nanoseconds by which each look at the clock moves it on.
const LOOK_NS: u64 = 50;

/// How far a CPU's clock may be ahead of the others'.
const AHEAD_NS: u64 = 200_000;

/// The clock of this CPU, which moves on with each look.
pub(crate) fn look() -> u64 {
    advance(LOOK_NS)
}

/// Lets `ns` pass on this CPU. Returns the time.
pub(crate) fn advance(ns: u64) -> u64 {
    let Some(Here { machine, cpu }) = here() else {
        return 0;
    };
    let me = &machine.cpus[cpu];
    let now = me.time.fetch_add(ns, Relaxed) + ns;
    // A model checker decides itself which CPU gets on.
    while machine.is_ahead(me, now) && !cfg!(shuttle) {
        yield_now();
    }
    now
}

impl Machine {
    /// The latest time on any CPU.
    pub(super) fn latest(&self) -> u64 {
        let times = self.cpus.iter().map(|cpu| cpu.time.load(Relaxed));
        times.max().unwrap_or(0)
    }

    /// Whether `me`, where it is `now`, must wait for another CPU. Wakes those that halt and whose timers have expired by then.
    fn is_ahead(&self, me: &Cpu, now: u64) -> bool {
        let mut ahead = false;
        for cpu in self.cpus.iter().filter(|cpu| !core::ptr::eq(*cpu, me)) {
            let at = if cpu.halts.load(Relaxed) {
                cpu.armed_ns.load(Relaxed)
            } else {
                cpu.time.load(Relaxed)
            };
            if cpu.halts.load(Relaxed) && at <= now {
                // Locked, so that the CPU is either before its look at the clock or waits.
                let _state = self.state();
                cpu.wake.notify_all();
            }
            ahead |= at.saturating_add(AHEAD_NS) < now;
        }
        ahead && !self.has_failed()
    }

    /// Sets the clock of a CPU that ends its halt: to when its timer expired, or to when another CPU has asked it.
    pub(super) fn resume_clock(&self, cpu: &Cpu) {
        let asked = cpu.asked.load(Relaxed).then(|| cpu.asked_ns.load(Relaxed));
        let armed = cpu.armed_ns.load(Relaxed);
        let woken = asked.map_or(armed, |at| at.min(armed));
        if woken != u64::MAX {
            cpu.time.fetch_max(woken, Relaxed);
        }
    }
}
