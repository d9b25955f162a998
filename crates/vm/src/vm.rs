//! The one value that everything hangs off.

use ksync::atomic::{AtomicU64, Ordering::Relaxed};
use ksync::{Epoch, PerCpu};

use crate::limbo::Limbo;
use crate::page::Pfn;
use crate::pmap::Pmaps;
use crate::rmap;
use crate::space::background::Background;
use crate::stats::VmCounts;
use crate::{Machine, PageAllocator, PageArray, Tuning};

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
    /// The reverse map's own state.
    pub rmap: rmap::Map,
    /// Counts of each CPU.
    pub stats: PerCpu<VmCounts>,
    /// Spaces that wait for work in the background.
    pub(crate) background: Background,
    /// Bounds and frequencies. Const.
    pub(crate) tuning: Tuning,
    /// Bytes that a read fault on a file maps at most. Atomic.
    fault_around: AtomicU64,
}

/// Linux's default, and the most that one step maps.
const FAULT_AROUND: u64 = 64 << 10;

impl<M: Machine> Vm<M> {
    /// Puts the parts together. `empty_root` is as for [`Pmaps::new`].
    pub fn new(machine: M, pages: PageArray, alloc: PageAllocator, empty_root: Pfn) -> Vm<M> {
        let ncpus = machine.ncpus();
        Vm {
            machine,
            pages,
            alloc,
            epoch: Epoch::new(ncpus),
            limbo: Limbo::new(ncpus),
            pmaps: Pmaps::new(ncpus, empty_root),
            rmap: rmap::Map::default(),
            stats: PerCpu::new(ncpus, |_| VmCounts::default()),
            background: Background::new(ncpus),
            tuning: Tuning::DEFAULT,
            fault_around: AtomicU64::new(FAULT_AROUND),
        }
    }

    /// Sets other bounds, before anything runs.
    pub fn tune(&mut self, tuning: Tuning) {
        debug_assert!(tuning.ask_every.is_power_of_two() && tuning.fold_every.is_power_of_two());
        self.tuning = tuning;
    }

    /// How many bytes around a read fault on a file are mapped, if they are resident.
    #[inline]
    pub fn fault_around(&self) -> u64 {
        self.fault_around.load(Relaxed)
    }

    /// Sets [`fault_around`](Vm::fault_around): rounded down to a power of two, between one page and 64 KiB.
    pub fn set_fault_around(&self, bytes: u64) {
        let bytes = bytes.clamp(1 << crate::page::PAGE_SHIFT, FAULT_AROUND);
        self.fault_around.store(1 << bytes.ilog2(), Relaxed);
    }

    /// Counts of all CPUs.
    pub fn counts(&self) -> crate::stats::VmTotals {
        crate::stats::VmTotals::sum(self.stats.iter())
    }
}
