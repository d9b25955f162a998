//! Interval timers: setitimer(2) and alarm(2).
//!
//! ITIMER_REAL is a timer on a CPU's wheel. The lock of `real_timer` orders everything that arms the timer or takes it
//! off: setting it, its expiry, the taking of its signal, and the process's end. The wheel takes an expired timer off
//! under its own lock, before `expired` takes the timer's lock. In between, the timer is `Set` but not armed; setting
//! it anew then cancels that expiry. A timer with an interval is armed again when its signal is taken, as in Linux:
//! however short the interval, a process causes one interrupt for each time that it runs.
//!
//! ITIMER_VIRTUAL and ITIMER_PROF count the process's CPU time at ticks, so they are exact to one tick; so is
//! RLIMIT_CPU.

use alloc::boxed::Box;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicU64, Ordering};

use task::thread::Thread;
use task::{time, timer};

use super::process::Process;
use super::rlimit::{self, Limit};
use super::signal::{self, SigInfo, sig};
use crate::UserThreadExt;

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

/// A timer's setting, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Time to the next expiry, 0 for never.
    pub value: u64,
    /// Time between expiries, 0 for a timer that expires once.
    pub interval: u64,
}

/// The CPU-time timers of a process that has used them, in nanoseconds. Fields atomic.
#[derive(Default)]
pub struct CpuTimers {
    left: [AtomicU64; 2],
    interval: [AtomicU64; 2],
    /// CPU time to the next SIGXCPU, 0 for never.
    to_warning: AtomicU64,
    /// CPU time to SIGKILL, 0 for never.
    to_death: AtomicU64,
}

/// The state of a process's ITIMER_REAL, but for its node on a wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RealTimer {
    /// Not set, or expired for good.
    Off,
    /// Expires when its node on the wheel does, and again after each interval of so many nanoseconds; 0 for once.
    Set(u64),
    /// Has expired; it is armed again, with this interval, when its signal is taken.
    Fired(NonZeroU64),
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

/// A [`RealTimer`] in eight bytes that are aligned to four.
pub(super) struct RealSlot([u32; 2]);

impl RealSlot {
    pub(super) const OFF: RealSlot = RealSlot([0; 2]);
    const FIRED: u64 = 1 << 63;

    fn get(&self) -> RealTimer {
        let word = u64::from(self.0[0]) | u64::from(self.0[1]) << 32;
        match (word, NonZeroU64::new(word & !Self::FIRED)) {
            (0, _) => RealTimer::Off,
            (Self::FIRED.., Some(interval)) => RealTimer::Fired(interval),
            (word, _) => RealTimer::Set((word & !Self::FIRED) - 1),
        }
    }

    fn set(&mut self, timer: RealTimer) {
        let word = match timer {
            RealTimer::Off => 0,
            // Intervals are capped at 2^63 nanoseconds, which is 292 years.
            RealTimer::Set(interval) => interval.min(Self::FIRED - 2) + 1,
            RealTimer::Fired(interval) => interval.get().min(Self::FIRED - 1) | Self::FIRED,
        };
        self.0 = [word as u32, (word >> 32) as u32];
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
    if which == Which::Real {
        return set_real(p, new);
    }
    let old = get(p, which);
    if new.value != 0 || p.cpu_timers.get().is_some() {
        let timers = p.cpu_timers.get_or_init(|| Box::new(CpuTimers::default()));
        timers.interval[index(which)].store(new.interval, Ordering::Relaxed);
        timers.left[index(which)].store(new.value, Ordering::Relaxed);
    }
    old
}

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

/// Sets RLIMIT_CPU to `limit`; the process has used `used` nanoseconds.
pub(super) fn set_cpu_limit(p: &Process, limit: Limit, used: u64) {
    // A process that is already beyond the limit gets the signal at its next tick.
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

/// A tick of `ns` nanoseconds found `t` running. Called in the timer interrupt.
pub(super) fn cpu_tick(t: &Thread, user: bool, ns: u64) {
    let Some(timers) = t.process().cpu_timers.get() else {
        return;
    };
    let send = |signo| signal::send_process(t.process(), SigInfo::kernel(signo));
    for (which, signo) in [(Which::Virtual, sig::VTALRM), (Which::Prof, sig::PROF)] {
        let i = index(which);
        let interval = timers.interval[i].load(Ordering::Relaxed);
        if (user || which == Which::Prof) && run_out(&timers.left[i], ns, interval) {
            send(signo);
        }
    }
    // Beyond the soft limit, each second brings another SIGXCPU.
    if run_out(&timers.to_warning, ns, time::SECOND) {
        send(sig::XCPU);
    }
    if run_out(&timers.to_death, ns, 0) {
        send(sig::KILL);
    }
}

/// Takes `ns` off a count of nanoseconds; a count that runs out begins again at `again`. Returns whether it has run
/// out.
fn run_out(left: &AtomicU64, ns: u64, again: u64) -> bool {
    let hit = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |l| match l {
        0 => None,
        l if l <= ns => Some(again),
        l => Some(l - ns),
    });
    hit.is_ok_and(|l| l <= ns)
}
