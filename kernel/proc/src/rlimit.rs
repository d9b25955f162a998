//! Resource limits.
//!
//! A process that has never changed a limit, nor inherited a changed one, stores none: a null pointer stands for the
//! limits that init starts with.

use alloc::boxed::Box;
use ksync::atomic::{AtomicU64, Ordering};

use hal::PAGE_SIZE;

/// The limited resources, with Linux's numbers.
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
    /// Threads of a user.
    Nproc = 6,
    /// One more than the highest descriptor that may be opened.
    Nofile = 7,
    /// Bytes locked in memory.
    Memlock = 8,
    /// Bytes of address space.
    As = 9,
    /// File locks; not enforced, as in Linux.
    Locks = 10,
    /// Queued signals of a user.
    Sigpending = 11,
    /// Bytes in message queues; not enforced.
    Msgqueue = 12,
    /// Ceiling of nice.
    Nice = 13,
    /// Ceiling of real-time priority.
    Rtprio = 14,
    /// Microseconds of CPU time with a real-time priority without a sleep.
    Rttime = 15,
}

/// How many resources there are.
pub const COUNT: usize = 16;
/// The value for no limit.
pub const INFINITY: u64 = u64::MAX;

impl Resource {
    /// The resource with Linux's number `n`.
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
    /// The limit that is enforced.
    pub soft: u64,
    /// The highest value to which the soft limit may be raised.
    pub hard: u64,
}

const fn limit(soft: u64, hard: u64) -> Limit {
    Limit { soft, hard }
}

/// The limits that init starts with, except [`Resource::Nproc`]: Linux's values for a machine with some GiB of memory.
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

/// Memory for which there may be one thread, in bytes: Linux's measure, eight kernel stacks of 16 KiB.
const MEMORY_PER_THREAD: u64 = 8 * 16384;
/// The fewest threads that there may be, as in Linux.
const FEWEST_THREADS: u64 = 20;

hal::machine_static! {
    /// Threads that the machine's memory is for: atomic; written at boot.
    static MAX_THREADS: AtomicU64 = AtomicU64::new(INFINITY);
}

/// Sets [`max_threads`] by the size of memory. Before the first process.
pub(super) fn init() {
    let bytes = mem::vm().alloc.total_pages() as u64 * PAGE_SIZE as u64;
    let most = (bytes / MEMORY_PER_THREAD).max(FEWEST_THREADS);
    MAX_THREADS.store(most, Ordering::Relaxed);
}

/// The number of threads that the machine's memory suffices for. Half of it is the default limit of a user. It bounds neither
/// all users together nor privileged ones.
pub fn max_threads() -> u64 {
    MAX_THREADS.load(Ordering::Relaxed)
}

/// One of the limits that init starts with.
fn default(r: Resource) -> Limit {
    match r {
        Resource::Nproc => limit(max_threads() / 2, max_threads() / 2),
        _ => DEFAULT[r as usize],
    }
}

/// The limits of one process.
#[derive(Default)]
pub struct Rlimits(Option<Box<[Limit; COUNT]>>);

/// Why a limit was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitError {
    /// The soft limit would exceed the hard one.
    Inverted,
    /// The hard limit rises without privilege, or exceeds what is possible for the resource.
    NotPermitted,
}

impl Rlimits {
    /// The limits that init starts with.
    pub const fn new() -> Self {
        Rlimits(None)
    }

    /// The limit of one resource.
    pub fn get(&self, r: Resource) -> Limit {
        self.0
            .as_deref()
            .map_or_else(|| default(r), |own| own[r as usize])
    }

    /// Checks whether the limit of `r` may be set to `new`.
    ///
    /// # Errors
    /// The soft limit exceeds the hard one; or the hard one rises and the caller is not `privileged`; or RLIMIT_NOFILE
    /// would exceed 2^20.
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

    /// Whether these are the default limits, without storage of their own.
    pub(super) fn is_default(&self) -> bool {
        self.0.is_none()
    }

    /// The default limits with storage of their own, ready to be changed.
    pub(super) fn own() -> Self {
        let mut own = Box::new(DEFAULT);
        own[Resource::Nproc as usize] = default(Resource::Nproc);
        Rlimits(Some(own))
    }

    /// The limits as values; `None` if they are the defaults.
    pub(super) fn values(&self) -> Option<[Limit; COUNT]> {
        self.0.as_deref().copied()
    }

    /// Limits with these values; `None` stands for the defaults.
    pub(super) fn from_values(values: Option<[Limit; COUNT]>) -> Self {
        Rlimits(values.map(Box::new))
    }

    /// Sets one limit that has been checked, of limits that have storage of their own.
    pub(super) fn set(&mut self, r: Resource, new: Limit) {
        if let Some(own) = &mut self.0 {
            own[r as usize] = new;
        }
    }
}
