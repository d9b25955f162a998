//! The resource limits of a process.

use ksync::atomic::Ordering;

use super::{Process, small};
use crate::itimer::state::{prepare_cpu_limit, set_cpu_limit};
use crate::rlimit::{INFINITY, Limit, LimitError, Resource, Rlimits};
use crate::signal::sig;

/// Microseconds by which the soft RLIMIT_RTTIME moves on when it is exceeded.
const RT_STEP_US: u64 = 1_000_000;

impl Process {
    /// Passes the resource limits to `f`. Takes a lock only if the process, or one of its ancestors, has changed a limit.
    #[inline]
    fn with_limits<R>(&self, f: impl FnOnce(&Rlimits) -> R) -> R {
        if self.limits_changed.load(Ordering::Acquire) {
            f(&self.limits.lock())
        } else {
            f(&Rlimits::new())
        }
    }

    /// A resource limit.
    pub fn limit(&self, r: Resource) -> Limit {
        self.with_limits(|limits| limits.get(r))
    }

    /// The soft value of a resource limit.
    pub fn rlimit(&self, r: Resource) -> u64 {
        self.limit(r).soft
    }

    /// The soft values of several resource limits, all of the same moment.
    pub fn rlimits<const N: usize>(&self, which: [Resource; N]) -> [u64; N] {
        self.with_limits(|limits| which.map(|r| limits.get(r).soft))
    }

    /// An independent copy of all limits.
    pub(crate) fn limits(&self) -> Rlimits {
        let values = self.limits.lock().values();
        Rlimits::from_values(values)
    }

    /// prlimit(2): replaces a limit; returns the old one. RLIMIT_CPU sets the process's timers. Allocates; no lock held.
    ///
    /// # Errors
    /// As for [`Rlimits::check`]; nothing has changed.
    pub fn set_limit(
        &self,
        r: Resource,
        new: Limit,
        privileged: bool,
    ) -> Result<Limit, LimitError> {
        // The first change of a limit allocates, which must not happen under the lock.
        let mut fresh = Rlimits::own();
        if r == Resource::Cpu {
            prepare_cpu_limit(&self.seldom, new);
        }
        let mut limits = self.limits.lock();
        let old = limits.get(r);
        limits.check(r, new, privileged)?;
        if limits.is_default() {
            core::mem::swap(&mut *limits, &mut fresh);
        }
        limits.set(r, new);
        self.limits_changed.store(true, Ordering::Release);
        // Under the lock: of two changes at once, the later one is in force.
        match r {
            Resource::Sigpending => self.sigpending.store(small(new.soft), Ordering::Relaxed),
            Resource::Cpu => set_cpu_limit(&self.seldom, new),
            _ => {}
        }
        Ok(old)
    }

    /// A thread has run for `used` microseconds with a real-time priority since it slept. Returns the signal that it gets for it by
    /// RLIMIT_RTTIME. Takes the lock of the limits if one has been changed.
    pub(crate) fn exceed_rt_time(&self, used: u64) -> Option<u8> {
        if !self.limits_changed.load(Ordering::Acquire) {
            return None;
        }
        let mut limits = self.limits.lock();
        let Limit { soft, hard } = limits.get(Resource::Rttime);
        if soft == INFINITY {
            None
        } else if hard != INFINITY && used >= hard {
            Some(sig::KILL)
        } else if used >= soft {
            let soft = soft.saturating_add(RT_STEP_US);
            limits.set(Resource::Rttime, Limit { soft, hard });
            Some(sig::XCPU)
        } else {
            None
        }
    }

    /// The soft RLIMIT_SIGPENDING, without a lock.
    pub(crate) fn sigpending_limit(&self) -> u64 {
        self.sigpending.load(Ordering::Relaxed).into()
    }
}
