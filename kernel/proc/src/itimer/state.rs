//! What a process keeps of its interval timers, and what else few processes need.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::num::NonZeroU64;
use ksync::atomic::{AtomicU64, Ordering};

use ksync::Once;
use task::time;
use task::wait::WaitQueue;

use crate::of_program::OfProgram;
use crate::rlimit::{self, Limit};
use crate::timers::state::Timers;
use crate::timers::watch::Watch;

/// A timer's setting, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Time to the next expiry, 0 for never.
    pub value: u64,
    /// Time between expiries, 0 for a timer that expires once.
    pub interval: u64,
}

/// What is allocated when a process first needs some of it. The CPU-time timers, in nanoseconds, are atomic. ITIMER_VIRTUAL and ITIMER_PROF are
/// set under the lock of `real_timer`, and RLIMIT_CPU under that of the limits; they expire under neither.
pub struct Seldom {
    /// The process's CPU time at which ITIMER_VIRTUAL and ITIMER_PROF expire, 0 for never.
    pub(super) at: [AtomicU64; 2],
    pub(super) interval: [AtomicU64; 2],
    /// The process's CPU time at the next SIGXCPU, 0 for never.
    pub(super) warning: AtomicU64,
    /// The process's CPU time at SIGKILL, 0 for never.
    pub(super) death: AtomicU64,
    /// How often one of the above was set.
    pub(super) changes: AtomicU64,
    /// Until this monotonic time nothing expires, even if the process runs on all CPUs.
    pub(super) quiet_until: AtomicU64,
    /// The POSIX timers.
    pub(crate) posix: Timers,
    /// What waits for the process's CPU time; allocated at first use.
    pub(crate) cpu_watch: Once<Arc<Watch>>,
    /// What crates above keep for the program; made at first use, and never replaced.
    pub(crate) of_program: Once<Box<dyn OfProgram>>,
    /// Woken by the end of the process.
    pub(crate) ended: WaitQueue,
    /// Woken by each signal that becomes pending for the process or a thread of it, once the process has `HEARS_SIGNALS`.
    pub(crate) arrivals: WaitQueue,
}

impl Default for Seldom {
    /// No timer is set, and nobody waits.
    fn default() -> Self {
        Seldom {
            at: Default::default(),
            interval: Default::default(),
            warning: AtomicU64::new(0),
            death: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            quiet_until: AtomicU64::new(u64::MAX),
            posix: Timers::default(),
            cpu_watch: Once::new(),
            of_program: Once::new(),
            ended: WaitQueue::new(),
            arrivals: WaitQueue::new(),
        }
    }
}

impl Seldom {
    /// A timer has been set: the next thread that runs looks.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.quiet_until.store(0, Ordering::SeqCst);
    }
}

/// Allocates what [`set_cpu_limit`] needs for `limit`.
pub(crate) fn prepare_cpu_limit(timers: &Once<Box<Seldom>>, limit: Limit) {
    // The hard limit is no lower.
    if limit.soft != rlimit::INFINITY {
        timers.get_or_init(|| Box::new(Seldom::default()));
    }
}

/// Makes the process that has `timers` get SIGXCPU and SIGKILL as RLIMIT_CPU says: `limit`, in seconds of CPU time. The caller has
/// called [`prepare_cpu_limit`].
pub(crate) fn set_cpu_limit(timers: &Once<Box<Seldom>>, limit: Limit) {
    // A process that has used more already gets the signal when one of its threads next checks the timers. 0 seconds become one
    // nanosecond, because 0 stands for never.
    let at = |seconds: u64| match seconds {
        rlimit::INFINITY => 0,
        s => s.saturating_mul(time::SECOND).max(1),
    };
    // Otherwise there never was a limit, nor is there one now.
    let Some(timers) = timers.get() else {
        return;
    };
    timers.warning.store(at(limit.soft), Ordering::SeqCst);
    timers.death.store(at(limit.hard), Ordering::SeqCst);
    timers.changed();
}

/// The state of a process's ITIMER_REAL, but for its node on a wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RealTimer {
    /// Not set, or expired for good.
    Off,
    /// Expires when its node on the wheel does, and again after each interval of so many nanoseconds; 0 for once.
    Set(u64),
    /// Has expired; it is armed again, with this interval, when its signal is taken.
    Fired(NonZeroU64),
}

/// A [`RealTimer`] in eight bytes that are aligned to four.
pub(crate) struct RealSlot([u32; 2]);

impl RealSlot {
    pub(crate) const OFF: RealSlot = RealSlot([0; 2]);
    const FIRED: u64 = 1 << 63;

    pub(super) fn get(&self) -> RealTimer {
        let word = u64::from(self.0[0]) | u64::from(self.0[1]) << 32;
        match (word, NonZeroU64::new(word & !Self::FIRED)) {
            (0, _) => RealTimer::Off,
            (Self::FIRED.., Some(interval)) => RealTimer::Fired(interval),
            (word, _) => RealTimer::Set((word & !Self::FIRED) - 1),
        }
    }

    pub(super) fn set(&mut self, timer: RealTimer) {
        let word = match timer {
            RealTimer::Off => 0,
            // Intervals are capped at 2^63 nanoseconds, which is 292 years.
            RealTimer::Set(interval) => interval.min(Self::FIRED - 2) + 1,
            RealTimer::Fired(interval) => interval.get().min(Self::FIRED - 1) | Self::FIRED,
        };
        self.0 = [word as u32, (word >> 32) as u32];
    }
}
