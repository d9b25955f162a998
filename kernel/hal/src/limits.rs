//! What the structures have room for, and where user memory ends.

/// CPUs that the structures have room for.
pub const MAX_CPUS: usize = 256;
/// NUMA nodes that the structures have room for.
pub const MAX_NODES: usize = 16;
/// First address that no user mapping may reach: one page below the end of the lower half, so that a
/// `syscall` at the very end cannot make `sysret` see a non-canonical address.
pub use elfload::USER_END;
/// Bytes of a page.
pub use vm::page::PAGE_SIZE;
