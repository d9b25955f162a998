//! What boot passes to the kernel.
use vm::page::Page;

use crate::frames::FrameRange;
use crate::limits::MAX_NODES;

/// What boot has found, for `kmain`.
pub struct BootInfo {
    /// The kernel command line as given.
    pub cmdline: &'static [u8],
    /// Physical start and end of the initial ramdisk. Its memory is in none of the `memory` ranges.
    pub initrd: Option<(u64, u64)>,
    /// Free memory: ranges that do not overlap, in no order. It belongs to the caller from now on.
    pub memory: &'static [FrameRange],
    /// Memory for the array of page records: one for each frame below `max_pfn`, all bytes zero.
    pub pages: &'static [Page],
    /// One past the highest frame number of RAM.
    pub max_pfn: u32,
    /// Number of CPUs that run; they are numbered from 0.
    pub ncpus: usize,
    /// Number of NUMA nodes; they are numbered from 0.
    pub nodes: usize,
    /// Distances between nodes, 10 from a node to itself; the first `nodes` rows and columns are used.
    pub distances: &'static [[u8; MAX_NODES]; MAX_NODES],
}
