//! Sizes of memory, for sysinfo(2), statfs(2) and /proc/meminfo.

use hal::PAGE_SIZE;

use crate::machine::{slab, vm};

/// Sizes of memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    /// Bytes that the kernel manages.
    pub total: u64,
    /// Bytes free, the CPUs' caches of free frames included.
    pub free: u64,
    /// Bytes in shared objects and tmpfs; not counted yet, so 0.
    pub shared: u64,
    /// Bytes in buffers: there are none.
    pub buffers: u64,
    /// Bytes of the kernel heap in use.
    pub slab: u64,
}

/// The sizes of memory now. The CPUs' counts are added up without a lock, so the sums may be a little old.
pub fn memory() -> Memory {
    let alloc = &vm().alloc;
    let (total_pages, free_pages) = (alloc.total_pages() as u64, alloc.free_pages() as u64);
    let heap = slab().usage();
    let page = PAGE_SIZE as u64;
    Memory {
        total: total_pages * page,
        free: free_pages * page,
        shared: 0,
        buffers: 0,
        slab: (heap.slab_pages + heap.large_pages) as u64 * page,
    }
}
