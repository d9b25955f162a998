//! Policies, and the word that has a thread's policy and its real-time priorities, so that they change together.

/// Scheduling policies, by Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Policy {
    /// SCHED_OTHER.
    Other = 0,
    /// SCHED_FIFO: runs until it sleeps, yields or is preempted.
    Fifo = 1,
    /// SCHED_RR: as SCHED_FIFO, in time slices among threads of one priority.
    RoundRobin = 2,
    /// SCHED_BATCH: never preempts when it wakes.
    Batch = 3,
    /// SCHED_IDLE: the least weight.
    Idle = 5,
}

impl Policy {
    /// Whether a thread of the policy has a real-time priority.
    pub const fn is_real_time(self) -> bool {
        matches!(self, Policy::Fifo | Policy::RoundRobin)
    }
}

/// The highest real-time priority; 1 is the lowest.
pub const HIGHEST: u8 = 99;

/// Nanoseconds of a time slice of SCHED_RR.
pub const RR_NS: u64 = 100_000_000;

/// What sched_setscheduler(2) sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The policy.
    pub policy: Policy,
    /// The real-time priority, 1..=[`HIGHEST`]; 0 for other policies.
    pub priority: u8,
    /// Whether children begin without settings that need a privilege (SCHED_RESET_ON_FORK).
    pub reset_on_fork: bool,
}

impl Setting {
    /// A policy without real-time priorities.
    pub const fn ordinary(policy: Policy) -> Self {
        debug_assert!(!policy.is_real_time());
        Setting {
            policy,
            priority: 0,
            reset_on_fork: false,
        }
    }
}

/// Why a thread has been lent a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lender {
    /// By the caller of `sched::lend_priority`, until that takes it back.
    Caller,
    /// Because it has a lock of the kernel: see [`LockLoan`].
    Lock,
}

/// The highest priority that threads which wait for locks of the kernel have lent a thread, and for which lock. The loan ends when the thread hands that
/// lock over; one for several locks, when the thread enters user mode. In bits 0 to 7 the priority, 0 for no loan, and above it part of the
/// lock's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockLoan(u64);

impl LockLoan {
    pub const NONE: LockLoan = LockLoan(0);
    /// For several locks. No lock has an odd address.
    const SEVERAL: u64 = 1 << 8;

    fn lock_bits(lock: usize) -> u64 {
        (lock as u64) << 8
    }

    /// The priority, 0 for no loan.
    pub fn priority(self) -> u8 {
        self.0 as u8
    }

    /// Whether it is a loan for that lock alone.
    pub fn is_for(self, lock: usize) -> bool {
        self.priority() > 0 && self.0 & !0xff == Self::lock_bits(lock)
    }

    /// With another loan.
    pub fn and(self, priority: u8, lock: usize) -> Self {
        let lock = match self {
            Self::NONE => Self::lock_bits(lock),
            _ if self.is_for(lock) => Self::lock_bits(lock),
            _ => Self::SEVERAL,
        };
        LockLoan(lock | u64::from(self.priority().max(priority)))
    }

    /// As it is stored.
    pub const fn word(self) -> u64 {
        self.0
    }

    /// As it was stored.
    pub const fn from_word(word: u64) -> Self {
        LockLoan(word)
    }
}

impl Lender {
    fn shift(self) -> u32 {
        match self {
            Lender::Caller => 8,
            Lender::Lock => 16,
        }
    }
}

/// A thread's own priority in bits 0 to 7, those lent in 8 to 15 and 16 to 23, its policy in 24 to 30, and SCHED_RESET_ON_FORK in 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class(u32);

const OWN: u32 = 0xff;
const PRIORITIES: u32 = 0xff_ffff;
const POLICY_SHIFT: u32 = 24;
const RESET: u32 = 1 << 31;

impl Class {
    /// That of a thread that has been lent nothing.
    pub const fn of(setting: Setting) -> Self {
        let reset = if setting.reset_on_fork { RESET } else { 0 };
        Class(setting.priority as u32 | (setting.policy as u32) << POLICY_SHIFT | reset)
    }

    /// The same setting, and other loans.
    pub fn with_setting(self, setting: Setting) -> Self {
        Class(Self::of(setting).0 | self.0 & PRIORITIES & !OWN)
    }

    /// The same, but that lender lends `priority`, 0 for nothing.
    pub fn lent(self, lender: Lender, priority: u8) -> Self {
        let shift = lender.shift();
        Class(self.0 & !(0xff << shift) | u32::from(priority) << shift)
    }

    /// What that lender lends.
    pub fn loan(self, lender: Lender) -> u8 {
        (self.0 >> lender.shift()) as u8
    }

    /// As it is stored.
    pub const fn word(self) -> u32 {
        self.0
    }

    /// As it was stored.
    pub const fn from_word(word: u32) -> Self {
        Class(word)
    }

    /// Whether the thread runs before all that have no real-time priority.
    #[inline]
    pub const fn is_real_time(self) -> bool {
        self.0 & PRIORITIES != 0
    }

    /// Whether the policy is SCHED_OTHER and the thread has no real-time priority.
    #[inline]
    pub const fn is_other(self) -> bool {
        self.0 & !RESET == 0
    }

    /// The highest of its priorities, 0 for none.
    pub fn priority(self) -> u8 {
        let [own, lent, for_lock, _] = self.0.to_le_bytes();
        own.max(lent).max(for_lock)
    }

    /// The policy.
    pub fn policy(self) -> Policy {
        match (self.0 & !RESET) >> POLICY_SHIFT {
            1 => Policy::Fifo,
            2 => Policy::RoundRobin,
            3 => Policy::Batch,
            5 => Policy::Idle,
            _ => Policy::Other,
        }
    }

    /// The thread's own part.
    pub fn setting(self) -> Setting {
        Setting {
            policy: self.policy(),
            priority: self.0 as u8,
            reset_on_fork: self.0 & RESET != 0,
        }
    }
}
