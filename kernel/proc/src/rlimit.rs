//! Resource limits.
//!
//! A process that never changed one carries none: a pointer to nothing means the limits that
//! init starts with.

use alloc::boxed::Box;

/// What is limited, by Linux's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Resource {
    /// Seconds of CPU time.
    Cpu = 0,
    /// Bytes of a file.
    Fsize = 1,
    /// Bytes of data, heap and private writable mappings.
    Data = 2,
    /// Bytes of the main thread's stack.
    Stack = 3,
    /// Bytes of a core file.
    Core = 4,
    /// Resident bytes; not enforced, as in Linux.
    Rss = 5,
    /// Processes of a user.
    Nproc = 6,
    /// One more than the highest descriptor.
    Nofile = 7,
    /// Bytes locked in memory.
    Memlock = 8,
    /// Bytes of address space.
    As = 9,
    /// File locks.
    Locks = 10,
    /// Queued signals.
    Sigpending = 11,
    /// Bytes in message queues.
    Msgqueue = 12,
    /// Ceiling of nice.
    Nice = 13,
    /// Ceiling of real-time priority.
    Rtprio = 14,
    /// Microseconds of real-time CPU without a sleep.
    Rttime = 15,
}

/// How many there are.
pub const COUNT: usize = 16;
/// No limit.
pub const INFINITY: u64 = u64::MAX;

impl Resource {
    /// The resource of Linux's number `n`.
    pub fn from_raw(n: u32) -> Option<Self> {
        use Resource::*;
        [
            Cpu, Fsize, Data, Stack, Core, Rss, Nproc, Nofile, Memlock, As, Locks, Sigpending,
            Msgqueue, Nice, Rtprio, Rttime,
        ]
        .get(n as usize)
        .copied()
    }
}

/// A soft limit and the hard one above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is enforced.
    pub soft: u64,
    /// What the soft one may be raised to.
    pub hard: u64,
}

const fn limit(soft: u64, hard: u64) -> Limit {
    Limit { soft, hard }
}

/// What init starts with: Linux's values for a machine of some GiB.
const DEFAULT: [Limit; COUNT] = [
    limit(INFINITY, INFINITY),
    limit(INFINITY, INFINITY),
    limit(INFINITY, INFINITY),
    limit(8 << 20, INFINITY),
    limit(0, INFINITY),
    limit(INFINITY, INFINITY),
    limit(INFINITY, INFINITY),
    limit(1024, 1 << 20),
    limit(8 << 20, 8 << 20),
    limit(INFINITY, INFINITY),
    limit(INFINITY, INFINITY),
    limit(16384, 16384),
    limit(819_200, 819_200),
    limit(0, 0),
    limit(0, 0),
    limit(INFINITY, INFINITY),
];

/// The limits of one process.
#[derive(Default)]
pub struct Rlimits(Option<Box<[Limit; COUNT]>>);

/// Why a limit was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The soft limit would exceed the hard one.
    Inverted,
    /// Raising a hard limit takes privilege.
    NotPermitted,
}

impl Rlimits {
    /// The limits that init starts with.
    pub const fn new() -> Self {
        Rlimits(None)
    }

    /// One limit.
    pub fn get(&self, r: Resource) -> Limit {
        self.0.as_deref().unwrap_or(&DEFAULT)[r as usize]
    }

    /// Whether `set` may be carried out.
    pub fn check(&self, r: Resource, new: Limit, privileged: bool) -> Result<(), LimitError> {
        if new.soft > new.hard {
            return Err(LimitError::Inverted);
        }
        let ceiling = if r == Resource::Nofile {
            1 << 20
        } else {
            INFINITY
        };
        if new.hard > ceiling || new.hard > self.get(r).hard && !privileged {
            return Err(LimitError::NotPermitted);
        }
        Ok(())
    }

    /// Whether the process carries no limits of its own.
    pub(super) fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// The default limits, ready to be changed.
    pub(super) fn own() -> Self {
        Rlimits(Some(Box::new(DEFAULT)))
    }

    /// The limits as values, where they are not the defaults.
    pub(super) fn values(&self) -> Option<[Limit; COUNT]> {
        self.0.as_deref().copied()
    }

    /// Limits of those values.
    pub(super) fn from_values(values: Option<[Limit; COUNT]>) -> Self {
        Rlimits(values.map(Box::new))
    }

    /// Sets one limit that has been checked, of limits that are not the defaults.
    pub(super) fn set(&mut self, r: Resource, new: Limit) {
        if let Some(own) = &mut self.0 {
            own[r as usize] = new;
        }
    }
}
