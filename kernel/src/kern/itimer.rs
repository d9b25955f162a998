//! Interval timers: setitimer(2) and alarm(2).
//!
//! ITIMER_REAL is a timer on a CPU's wheel.  ITIMER_VIRTUAL and ITIMER_PROF count the process's CPU
//! time at ticks, so they are as exact as a tick; so is RLIMIT_CPU.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use super::process::Process;
use super::rlimit::{self, Limit};
use super::signal::{self, SigInfo, sig};
use super::thread::Thread;
use super::{time, timer};

/// Which timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Real time, SIGALRM.
    Real,
    /// User CPU time, SIGVTALRM.
    Virtual,
    /// CPU time, SIGPROF.
    Prof,
}

/// Nanoseconds to the next expiry, 0 for never, and between expiries, 0 for once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// To the next expiry.
    pub value: u64,
    /// Between expiries.
    pub interval: u64,
}

/// The CPU-time timers of a process that has used them.  Fields atomic.
#[derive(Default)]
pub struct CpuTimers {
    left: [AtomicU64; 2],
    interval: [AtomicU64; 2],
    /// CPU time to the next SIGXCPU, 0 for never.
    to_warning: AtomicU64,
    /// CPU time to SIGKILL, 0 for never.
    to_death: AtomicU64,
}

fn index(which: Which) -> usize {
    usize::from(which == Which::Prof)
}

/// The present setting.
pub fn get(p: &Process, which: Which) -> Setting {
    if which == Which::Real {
        return Setting {
            value: p.real_timer.left().unwrap_or(0),
            interval: p.real_interval.load(Ordering::Relaxed),
        };
    }
    match p.cpu_timers.get() {
        None => Setting::default(),
        Some(t) => Setting {
            value: t.left[index(which)].load(Ordering::Relaxed),
            interval: t.interval[index(which)].load(Ordering::Relaxed),
        },
    }
}

/// Sets a timer; returns the old setting.
pub fn set(p: &Process, which: Which, new: Setting) -> Setting {
    let old = get(p, which);
    if which == Which::Real {
        timer::cancel_process(p);
        p.real_interval.store(new.interval, Ordering::Relaxed);
        if new.value != 0 {
            timer::arm_process(p, time::monotonic_ns().saturating_add(new.value));
        }
    } else if new.value != 0 || p.cpu_timers.get().is_some() {
        let timers = p.cpu_timers.get_or_init(|| Box::new(CpuTimers::default()));
        timers.interval[index(which)].store(new.interval, Ordering::Relaxed);
        timers.left[index(which)].store(new.value, Ordering::Relaxed);
    }
    old
}

/// ITIMER_REAL went off.  In the timer interrupt.
pub(super) fn expired(p: &Process) {
    let interval = p.real_interval.load(Ordering::Relaxed);
    if interval != 0 {
        timer::arm_process(p, time::monotonic_ns().saturating_add(interval));
    }
    signal::send_process(p, SigInfo::kernel(sig::ALRM));
}

/// RLIMIT_CPU is now `limit`; the process has used `used` nanoseconds.
pub(super) fn set_cpu_limit(p: &Process, limit: Limit, used: u64) {
    // A process that is beyond the limit already hears of it at its next tick.
    let left = |seconds: u64| match seconds {
        rlimit::INFINITY => 0,
        s => s.saturating_mul(time::SECOND).saturating_sub(used).max(1),
    };
    if p.cpu_timers.get().is_none() && limit.soft == rlimit::INFINITY {
        return;
    }
    let timers = p.cpu_timers.get_or_init(|| Box::new(CpuTimers::default()));
    timers.to_warning.store(left(limit.soft), Ordering::Relaxed);
    timers.to_death.store(left(limit.hard), Ordering::Relaxed);
}

/// A tick of `ns` found `t` running.  In the timer interrupt.
pub(super) fn cpu_tick(t: &Thread, user: bool, ns: u64) {
    let Some(timers) = t.process.cpu_timers.get() else {
        return;
    };
    let send = |signo| signal::send_process(&t.process, SigInfo::kernel(signo));
    for (which, signo) in [(Which::Virtual, sig::VTALRM), (Which::Prof, sig::PROF)] {
        let i = index(which);
        let interval = timers.interval[i].load(Ordering::Relaxed);
        if (user || which == Which::Prof) && run_out(&timers.left[i], ns, interval) {
            send(signo);
        }
    }
    // Beyond the soft limit each second brings another warning.
    if run_out(&timers.to_warning, ns, time::SECOND) {
        send(sig::XCPU);
    }
    if run_out(&timers.to_death, ns, 0) {
        send(sig::KILL);
    }
}

/// Takes `ns` off a count of nanoseconds, which begins again at `again` when it has run out. Returns whether it has.
fn run_out(left: &AtomicU64, ns: u64, again: u64) -> bool {
    let hit = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |l| match l {
        0 => None,
        l if l <= ns => Some(again),
        l => Some(l - ns),
    });
    hit.is_ok_and(|l| l <= ns)
}
