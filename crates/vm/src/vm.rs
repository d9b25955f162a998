//! The one value that everything hangs off.

use ksync::Epoch;

use crate::limbo::Limbo;
use crate::pmap::Pmaps;
use crate::{Machine, PageAllocator, PageArray};

/// The virtual memory system of one machine.
pub struct Vm<M: Machine> {
    /// What it runs on.
    pub machine: M,
    /// All pages.
    pub pages: PageArray,
    /// The allocator of pages.
    pub alloc: PageAllocator,
    /// Read sections: pins.
    pub epoch: Epoch,
    /// Frames that wait for a grace period.
    pub limbo: Limbo,
    /// What all pmaps share.
    pub pmaps: Pmaps,
}
