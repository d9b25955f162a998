//! What threads and processes have used: CPU time, page faults, switches.

use ksync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::thread::Thread;

/// CPU time and page faults, of a thread so far, or summed over threads that have ended or children that were waited for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// Nanoseconds in user mode.
    pub user_ns: u64,
    /// Nanoseconds in the kernel.
    pub sys_ns: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u32,
    /// Switches because a thread slept.
    pub voluntary: u64,
    /// Switches because a thread was preempted.
    pub involuntary: u64,
    /// Largest resident set, in KiB; larger values than the type holds are stored as its maximum.
    pub max_rss_kib: u32,
}

impl Times {
    /// Adds the counts of `o`, and takes the larger of the two resident sets.
    pub fn add(&mut self, o: &Times) {
        self.user_ns += o.user_ns;
        self.sys_ns += o.sys_ns;
        self.minor_faults += o.minor_faults;
        self.major_faults += o.major_faults;
        self.voluntary += o.voluntary;
        self.involuntary += o.involuntary;
        self.max_rss_kib = self.max_rss_kib.max(o.max_rss_kib);
    }

    /// Takes `kib`, the resident set of an address space in KiB, into account.
    pub fn note_rss(&mut self, kib: u64) {
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        self.max_rss_kib = self.max_rss_kib.max(kib);
    }
}

/// Counters of one thread. Written by the thread's CPU, read by any.
#[derive(Default)]
pub struct Usage {
    /// Ticks that found the thread in user mode.
    pub user_ticks: AtomicU32,
    /// Ticks that found the thread in the kernel.
    pub sys_ticks: AtomicU32,
    /// How its CPU time was last divided between the two.
    pub told: Told,
    /// Page faults served without I/O.
    pub minor_faults: AtomicU64,
    /// Page faults that waited for I/O.
    pub major_faults: AtomicU64,
    /// Switches because the thread slept.
    pub voluntary: AtomicU32,
    /// Switches because it was preempted.
    pub involuntary: AtomicU32,
}

/// The parts of a thread's CPU time in user mode and in the kernel, in nanoseconds, as they were last reported. Later ticks
/// change the division, but neither part may be reported smaller than before. Atomic.
#[derive(Default)]
pub struct Told {
    user_ns: AtomicU64,
    sys_ns: AtomicU64,
}

impl Told {
    /// Divides `total`, of which `user` was in user mode by the count of ticks, into time in user mode and in the kernel. The
    /// two add up to `total`, except perhaps while another caller is told at the same moment.
    fn divide(&self, total: u64, user: u64) -> (u64, u64) {
        let (told_user, told_sys) = (
            self.user_ns.load(Ordering::Relaxed),
            self.sys_ns.load(Ordering::Relaxed),
        );
        let most = total.saturating_sub(told_sys).max(told_user);
        let user = at_least(&self.user_ns, user.clamp(told_user, most));
        (user, at_least(&self.sys_ns, total.saturating_sub(user)))
    }
}

/// `now`, or the value reported before if that is larger.
fn at_least(told: &AtomicU64, now: u64) -> u64 {
    match told.load(Ordering::Relaxed) {
        before if before >= now => before,
        _ => told.fetch_max(now, Ordering::Relaxed).max(now),
    }
}

impl Thread {
    /// CPU time and page faults so far, without a resident set. The total time is exact, up to the last switch or tick; ticks
    /// divide it between user mode and kernel, and neither part is smaller than it was reported before.
    pub fn times(&self) -> Times {
        let total = self.sched.runtime_ns();
        let u = &self.usage;
        let user = u64::from(u.user_ticks.load(Ordering::Relaxed));
        let sys = u64::from(u.sys_ticks.load(Ordering::Relaxed));
        let by_ticks = match user + sys {
            0 => 0,
            all => (u128::from(total) * u128::from(user) / u128::from(all)) as u64,
        };
        let (user_ns, sys_ns) = u.told.divide(total, by_ticks);
        Times {
            user_ns,
            sys_ns,
            minor_faults: u.minor_faults.load(Ordering::Relaxed),
            major_faults: u.major_faults.load(Ordering::Relaxed) as u32,
            voluntary: u.voluntary.load(Ordering::Relaxed).into(),
            involuntary: u.involuntary.load(Ordering::Relaxed).into(),
            max_rss_kib: 0,
        }
    }
}
