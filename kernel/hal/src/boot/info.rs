//! What boot hands over to the kernel.
use vm::page::Page;

use crate::frames::FrameRange;
use crate::limits::MAX_NODES;

/// What boot found out, for `kmain`.
pub struct BootInfo {
    /// The kernel command line as given.
    pub cmdline: &'static [u8],
    /// Physical start and end of the initial ramdisk. Its memory is in none of the `memory` ranges.
    pub initrd: Option<(u64, u64)>,
    /// Free memory, apart from each other, in no order: the caller's from now on.
    pub memory: &'static [FrameRange],
    /// Memory for the page array: a descriptor for each frame below `max_pfn`, all bytes zero.
    pub pages: &'static [Page],
    /// One past the highest frame number of RAM.
    pub max_pfn: u32,
    /// CPUs that run, numbered from 0.
    pub ncpus: usize,
    /// NUMA nodes, numbered from 0.
    pub nodes: usize,
    /// Distance from node to node, 10 to itself; the first `nodes` rows and columns count.
    pub distances: &'static [[u8; MAX_NODES]; MAX_NODES],
}
