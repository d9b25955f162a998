//! Interval timers: setitimer(2) and alarm(2).
//!
//! ITIMER_REAL is a timer on a CPU's wheel. The lock of `real_timer` orders everything that arms the timer or takes it
//! off: setting it, its expiry, the taking of its signal, and the process's end. The wheel takes an expired timer off
//! under its own lock, before `expired` takes the timer's lock. In between, the timer is `Set` but not armed; setting
//! it anew then cancels that expiry. A timer with an interval is armed again when its signal is taken, as in Linux:
//! however short the interval, a process causes one interrupt for each time that it runs.
//!
//! ITIMER_VIRTUAL, ITIMER_PROF, RLIMIT_CPU, and what else waits for CPU time (`timers::watch`) compare with the CPU time that getrusage(2) reports. A thread looks at them
//! on its way to user mode when a tick has hit it, and when it begins to run after a sleep: so a process that sleeps
//! before each tick does not avoid them. They are late by one tick at most, or by the rest of a system call.

pub(super) mod state;

use core::num::NonZeroU64;
use ksync::atomic::{AtomicU64, Ordering};

use task::current::current;
use task::thread::{Thread, flag};
use task::{time, timer};

pub use self::state::Setting;
use self::state::{RealTimer, Seldom};
use super::process::Process;
use super::signal::{self, SigInfo, sig};
use crate::{UserThreadExt, timers};

/// Which of a process's interval timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Real time, SIGALRM.
    Real,
    /// User CPU time, SIGVTALRM.
    Virtual,
    /// CPU time, SIGPROF.
    Prof,
}

impl Seldom {
    /// The setting of ITIMER_VIRTUAL or ITIMER_PROF, of a process that has used so much of its CPU time. The caller holds the lock of
    /// `real_timer`.
    fn setting(&self, which: Which, used: [u64; 2]) -> Setting {
        let value = match self.at[index(which)].load(Ordering::SeqCst) {
            0 => 0,
            // One that is about to expire is still set.
            at => at.saturating_sub(used[index(which)]).max(1),
        };
        let interval = self.interval[index(which)].load(Ordering::Relaxed);
        Setting { value, interval }
    }
}

impl RealTimer {
    fn interval(self) -> u64 {
        match self {
            RealTimer::Off => 0,
            RealTimer::Set(interval) => interval,
            RealTimer::Fired(interval) => interval.get(),
        }
    }

    /// The setting, if the node has `left` nanoseconds left.
    fn setting(self, left: Option<u64>) -> Setting {
        let value = match self {
            // Set but not armed: it is expiring now.
            RealTimer::Set(_) => left.unwrap_or(1),
            RealTimer::Off | RealTimer::Fired(_) => 0,
        };
        Setting {
            value,
            interval: self.interval(),
        }
    }
}

fn index(which: Which) -> usize {
    usize::from(which == Which::Prof)
}

/// A timer's present setting.
pub fn get(p: &Process, which: Which) -> Setting {
    if which == Which::Real {
        let timer = p.real_timer.lock();
        return timer.get().setting(p.real_node.left());
    }
    let Some(timers) = p.seldom.get() else {
        return Setting::default();
    };
    let used = used(p);
    let _turn = p.real_timer.lock();
    timers.setting(which, used)
}

/// Sets a timer, or takes it off if `new.value` is 0; returns the old setting. Of two calls at once one returns what the other has
/// set. The first CPU-time timer of a process allocates.
pub fn set(p: &Process, which: Which, new: Setting) -> Setting {
    if which == Which::Real {
        return set_real(p, new);
    }
    if new.value == 0 && p.seldom.get().is_none() {
        return Setting::default();
    }
    let timers = p.seldom();
    let used = used(p);
    let _turn = p.real_timer.lock();
    let old = timers.setting(which, used);
    timers.interval[index(which)].store(new.interval, Ordering::Relaxed);
    let at = match new.value {
        0 => 0,
        value => used[index(which)].saturating_add(value),
    };
    timers.at[index(which)].store(at, Ordering::SeqCst);
    timers.changed();
    old
}

/// The CPU time of `p` in user mode, and all of it; that of the calling thread up to now.
fn used(p: &Process) -> [u64; 2] {
    current().charge_now();
    used_when_charged(p)
}

/// As [`used`]; that of the calling thread up to its last charge.
fn used_when_charged(p: &Process) -> [u64; 2] {
    let times = p.times_of_threads();
    [times.user_ns, times.user_ns + times.sys_ns]
}

/// As [`set`], for ITIMER_REAL. Takes its lock and, under it, that of a wheel. Once this returns, no signal of the old setting is
/// sent.
fn set_real(p: &Process, new: Setting) -> Setting {
    let mut timer = p.real_timer.lock();
    let old = timer.get().setting(p.real_node.left());
    timer::cancel_process(p.pid(), &p.real_node);
    timer.set(match new.value {
        0 => RealTimer::Off,
        value => {
            timer::arm_process(
                p.pid(),
                &p.real_node,
                time::monotonic_ns().saturating_add(value),
            );
            RealTimer::Set(new.interval)
        }
    });
    old
}

/// The process ends: takes ITIMER_REAL off.
pub(super) fn end(p: &Process) {
    set_real(p, Setting::default());
}

/// The wheel has taken ITIMER_REAL off because it has expired. Called in the timer interrupt.
pub(super) fn expired(p: &Process) {
    let mut timer = p.real_timer.lock();
    // Otherwise the timer has been set anew meanwhile.
    if let RealTimer::Set(interval) = timer.get()
        && !p.real_node.armed()
    {
        timer.set(NonZeroU64::new(interval).map_or(RealTimer::Off, RealTimer::Fired));
        // Sent under the lock: once setitimer(2) has returned, no signal of the old setting is sent.
        signal::send_process(p, SigInfo::kernel(sig::ALRM));
    }
}

/// A thread of `p` has taken SIGALRM: a timer that has expired is armed again, at the next multiple of its interval.
pub(super) fn taken(p: &Process) {
    let mut timer = p.real_timer.lock();
    if let RealTimer::Fired(interval) = timer.get() {
        let (was, now) = (p.real_node.at(), time::monotonic_ns());
        let missed = now.saturating_sub(was) / interval;
        let next = was.saturating_add(interval.get().saturating_mul(missed.saturating_add(1)));
        timer::arm_process(p.pid(), &p.real_node, next);
        timer.set(RealTimer::Set(interval.get()));
    }
}

/// Makes `t`, which a tick has hit or which begins to run, look at its process's CPU-time timers before it enters user mode.
/// Called with interrupts off.
pub(super) fn look_soon(t: &Thread) {
    if let Some(timers) = t.process().seldom.get()
        && time::monotonic_ns() >= timers.quiet_until.load(Ordering::Relaxed)
    {
        t.set(flag::CPU_TIMERS);
    }
}

/// Sends the signals of the CPU-time timers that have expired. Called by `t` on its way to user mode.
pub(super) fn look(t: &Thread) {
    t.clear(flag::CPU_TIMERS);
    let p = t.process();
    let Some(timers) = p.seldom.get() else {
        return;
    };
    let changes = timers.changes.load(Ordering::SeqCst);
    let (began, own) = (time::monotonic_ns(), t.charge_now());
    let [user, all] = used_when_charged(p);
    let interval = |which| timers.interval[index(which)].load(Ordering::Relaxed);
    let [virt, prof] = [Which::Virtual, Which::Prof];
    let mut left = u64::MAX;
    for (at, used, again, signo) in [
        (&timers.at[index(virt)], user, interval(virt), sig::VTALRM),
        (&timers.at[index(prof)], all, interval(prof), sig::PROF),
        // Beyond the soft limit, each second brings another SIGXCPU.
        (&timers.warning, all, time::SECOND, sig::XCPU),
        (&timers.death, all, 0, sig::KILL),
    ] {
        if run_out(at, used, again) {
            signal::send_process(p, SigInfo::kernel(signo));
        }
        left = match at.load(Ordering::SeqCst) {
            0 => left,
            // Ticks may divide the time anew: the part in user mode can grow at once.
            _ if signo == sig::VTALRM => 0,
            at => left.min(at.saturating_sub(used)),
        };
    }
    left = left.min(timers::look(t, [user, all]));
    // Counted from before the times were read: the thread may have waited for a CPU since, while others used time.
    let earliest = began.saturating_add(left / hal::cpu::count() as u64);
    // In a process of many threads the look takes long: most of the CPU time is the program's, however close a timer is.
    let pause = (t.charge_now() - own).saturating_mul(8);
    let quiet_until = match left {
        u64::MAX => u64::MAX,
        _ => earliest.max(time::monotonic_ns().saturating_add(pause)),
    };
    timers.quiet_until.store(quiet_until, Ordering::SeqCst);
    if timers.changes.load(Ordering::SeqCst) != changes {
        timers.quiet_until.store(0, Ordering::SeqCst);
    }
}

/// Whether the CPU time `used` has reached `at`, which then moves on by a multiple of `again`, or to never if that is 0.
/// True for one of the threads that look at once.
fn run_out(at: &AtomicU64, used: u64, again: u64) -> bool {
    let was = at.load(Ordering::SeqCst);
    if was == 0 || was > used {
        return false;
    }
    let next = match (used - was).checked_div(again) {
        Some(missed) => was.saturating_add(again.saturating_mul(missed + 1)),
        None => 0,
    };
    at.compare_exchange(was, next, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}
