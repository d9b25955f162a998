//! The limits of the machine's structures, and the end of user memory.

/// The most CPUs that the kernel runs.
pub const MAX_CPUS: usize = 256;
/// The most NUMA nodes that the kernel distinguishes.
pub const MAX_NODES: usize = 16;
/// The end of user memory: no user mapping reaches this address. It is one page below the end of the lower half, so that a
/// `syscall` instruction at the very end does not make `sysret` return to a non-canonical address.
pub use elfload::USER_END;
/// Bytes of a page.
pub use vm::page::PAGE_SIZE;
