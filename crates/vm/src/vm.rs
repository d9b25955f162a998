//! The virtual memory system as one value.

use ksync::atomic::{AtomicU64, Ordering::Relaxed};
use ksync::{Epoch, Once, PerCpu};

use crate::limbo::Limbo;
use crate::object::ObjectRef;
use crate::page::Pfn;
use crate::pmap::Pmaps;
use crate::rmap;
use crate::space::background::Background;
use crate::stats::VmCounts;
use crate::superpages::{SharedSuperpages, SuperpageSettings, Superpages};
use crate::{Machine, PageAllocator, PageArray, Tuning};

/// The virtual memory system of one machine.
pub struct Vm<M: Machine> {
    /// The machine that it runs on.
    pub machine: M,
    /// All pages.
    pub pages: PageArray,
    /// The page allocator.
    pub alloc: PageAllocator,
    /// Epoch-based reclamation: a pin is a read section, and delays the grace period.
    pub epoch: Epoch,
    /// Frames that wait for a grace period.
    pub limbo: Limbo,
    /// State that all pmaps share.
    pub pmaps: Pmaps,
    /// State of the reverse map.
    pub rmap: rmap::Map,
    /// Event counts of each CPU.
    pub stats: PerCpu<VmCounts>,
    /// Spaces queued for work in the background.
    pub(crate) background: Background,
    /// Limits and intervals. Const.
    pub(crate) tuning: Tuning,
    /// Most bytes that one read fault on a file maps. Atomic.
    fault_around: AtomicU64,
    /// Which mappings get superpages. Atomic.
    superpages: SuperpageSettings,
    /// What special mappings show. Set once.
    pub(crate) special: Once<ObjectRef>,
}

/// Linux's default, and the most that one call of fault-around maps.
const FAULT_AROUND: u64 = 64 << 10;

impl<M: Machine> Vm<M> {
    /// Builds the system from its parts. `empty_root` is as for [`Pmaps::new`].
    pub fn new(machine: M, pages: PageArray, alloc: PageAllocator, empty_root: Pfn) -> Vm<M> {
        let ncpus = machine.ncpus();
        Vm {
            rmap: <rmap::Map as rmap::ReverseMap>::new(&machine, pages, empty_root),
            machine,
            pages,
            alloc,
            epoch: Epoch::new(ncpus),
            limbo: Limbo::new(ncpus),
            pmaps: Pmaps::new(ncpus, empty_root),
            stats: PerCpu::new(ncpus, |_| VmCounts::default()),
            background: Background::new(ncpus),
            tuning: Tuning::DEFAULT,
            fault_around: AtomicU64::new(FAULT_AROUND),
            superpages: SuperpageSettings::new(),
            special: Once::new(),
        }
    }

    /// Replaces the default limits and intervals. To be called before any operation.
    pub fn tune(&mut self, tuning: Tuning) {
        debug_assert!(tuning.ask_every.is_power_of_two() && tuning.fold_every.is_power_of_two());
        self.tuning = tuning;
    }

    /// Size in bytes of the aligned window around a read fault on a file in which resident pages are mapped as well.
    #[inline]
    pub fn fault_around(&self) -> u64 {
        self.fault_around.load(Relaxed)
    }

    /// Sets [`fault_around`](Vm::fault_around): rounded down to a power of two, between one page and 64 KiB.
    pub fn set_fault_around(&self, bytes: u64) {
        let bytes = bytes.clamp(1 << crate::page::PAGE_SHIFT, FAULT_AROUND);
        self.fault_around.store(1 << bytes.ilog2(), Relaxed);
    }

    /// Which mappings get superpages.
    #[inline]
    pub fn superpages(&self) -> Superpages {
        self.superpages.private()
    }

    /// Sets which mappings get superpages from now on: none, where the allocator makes no reservations.
    pub fn set_superpages(&self, which: Superpages) {
        self.superpages.set_private(which);
    }

    /// Whether memory for which madvise has not asked may get superpages: what a fault asks first.
    #[inline(always)]
    pub(crate) fn has_superpages_for_all(&self) -> bool {
        self.superpages.are_for_all()
    }

    /// Which files in memory, and which shared memory, get superpages.
    #[inline]
    pub fn shmem_superpages(&self) -> SharedSuperpages {
        self.superpages.shared()
    }

    /// Sets which files in memory, and which shared memory, get superpages from now on.
    pub fn set_shmem_superpages(&self, which: SharedSuperpages) {
        self.superpages.set_shared(which);
    }

    /// The event counts, summed over all CPUs.
    pub fn counts(&self) -> crate::stats::VmTotals {
        crate::stats::VmTotals::sum(self.stats.iter())
    }
}
