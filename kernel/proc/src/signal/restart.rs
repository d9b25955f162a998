//! What restart_syscall(2) continues.

use task::park::Deadline;

/// What restart_syscall(2) continues.
#[derive(Clone, Copy, Debug)]
pub enum RestartBlock {
    /// Nothing: the call fails with EINTR.
    None,
    /// A sleep until a monotonic time; if it is interrupted again, the time left is written to `rem`.
    Sleep {
        /// Monotonic nanoseconds.
        until: u64,
        /// The address where the time left is written, 0 for nowhere.
        rem: u64,
    },
    /// A sleep until a clock of CPU time shows a time.
    CpuSleep {
        /// The number of the clock.
        clock: i32,
        /// Nanoseconds of CPU time.
        until: u64,
        /// As for [`Sleep`](Self::Sleep).
        rem: u64,
    },
    /// A poll(2).
    Poll {
        /// The address of the list of descriptors.
        addr: u64,
        /// How many descriptors there are.
        count: u32,
        /// When the call times out.
        deadline: Deadline,
    },
    /// A futex wait with a timeout.
    Futex {
        /// The address of the futex word.
        addr: u64,
        /// The value that the word must hold.
        value: u32,
        /// When the wait times out, in monotonic nanoseconds.
        until: u64,
        /// The waiter's bitset.
        bits: u32,
        /// Whether the futex is shared between processes.
        shared: bool,
    },
}
