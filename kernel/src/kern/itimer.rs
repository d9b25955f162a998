//! Interval timers: setitimer(2) and alarm(2).
//!
//! ITIMER_REAL is a timer on a CPU's wheel.  ITIMER_VIRTUAL and ITIMER_PROF count the process's CPU
//! time at ticks, so they are as exact as a tick.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use super::process::Process;
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

/// A tick of `ns` found `t` running.  In the timer interrupt.
pub(super) fn cpu_tick(t: &Thread, user: bool, ns: u64) {
    let Some(timers) = t.process.cpu_timers.get() else {
        return;
    };
    if user {
        count(t, timers, Which::Virtual, sig::VTALRM, ns);
    }
    count(t, timers, Which::Prof, sig::PROF, ns);
}

fn count(t: &Thread, timers: &CpuTimers, which: Which, signo: u8, ns: u64) {
    let left = &timers.left[index(which)];
    let interval = timers.interval[index(which)].load(Ordering::Relaxed);
    let hit = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |l| match l {
        0 => None,
        l if l <= ns => Some(interval),
        l => Some(l - ns),
    });
    if hit.is_ok_and(|l| l <= ns) {
        signal::send_process(&t.process, SigInfo::kernel(signo));
    }
}
