//! What the reverse map does to single entries.
//!
//! A scan comes from a page, which it holds hard-busy, to an address where the page may be mapped. It takes no lock
//! and acts by compare-and-swap, on an entry that carries the frame: live ones, and claims of faults on their way. A
//! busy entry is waited for: its remover is handing A and D to the page, pinned.
//!
//! What a scan changes is flushed when its gather is finished, for all pmaps at once. Where the entry is not the frame's and
//! another operation's flush of the address is due, that flush is the scan's as well, because a translation that was taken
//! out, or restricted, may still be cached. A pmap that does not map the page is not written to.
//!
//! A scan that empties a table unlinks it, so that memory pressure takes tables along with their pages.

use core::ops::Range;

use ksync::CpuPin;
use rust_alloc::sync::Arc;

use super::pte::Pte;
use super::table::slot;
use super::walk::Leaf;
use super::{Loss, Pmap};
use crate::page::{PAGE_SIZE, Pfn};
use crate::tlb::ScanGather;
use crate::{Machine, Vm};

/// What a scan found at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// The frame is not mapped here.
    Absent,
    /// A fault had claimed the slot for the frame; it will start again.
    Unclaimed,
    /// The frame was mapped by this entry, which has been acted on, or was as it is to be. Its A and D are the caller's where the
    /// operation took them.
    Found(Pte),
}

impl Scan {
    /// The entry, if one was found.
    pub fn pte(self) -> Option<Pte> {
        match self {
            Scan::Found(pte) => Some(pte),
            _ => None,
        }
    }
}

/// A scan of one address, with a flush of its own.
fn gathered<M: Machine>(vm: &Vm<M>, scan: impl FnOnce(&mut ScanGather) -> Scan) -> Scan {
    let mut gather = ScanGather::new();
    let found = scan(&mut gather);
    gather.finish(vm);
    found
}

impl Pmap {
    /// Takes the entry of `va` out if it maps `pfn`; no translation is usable on return. The caller holds the page hard-busy
    /// and has put a full fence after that. Marking the page with A and D of the entry is its task.
    pub fn scan_remove<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> Scan {
        gathered(vm, |gather| self.gather_remove(vm, pin, va, pfn, gather))
    }

    /// As [`scan_remove`](Pmap::scan_remove), but translations are usable until `gather`, which has room, is finished.
    pub(crate) fn gather_remove<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
        gather: &mut ScanGather,
    ) -> Scan {
        self.take_out(vm, pin, va, Some(pfn), gather)
    }

    /// Takes the entry of `va` out if it maps `pfn`, or whatever it maps, and counts it.
    fn take_out<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Option<Pfn>,
        gather: &mut ScanGather,
    ) -> Scan {
        let found = self.scan(vm, pin, va, pfn, Loss::Frames, gather, |_| Pte::EMPTY);
        if found != Scan::Absent {
            vm.pmaps.counts(pin).scan_removed.add(1);
        }
        found
    }

    /// Takes all entries of `range` out, whatever they map. The pmap being a cache, nothing is lost but the time of faults.
    /// Translations are usable until `gather`, which has room, is finished.
    pub(crate) fn gather_remove_range<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        range: Range<u64>,
        gather: &mut ScanGather,
    ) {
        let pin = ksync::pin();
        let mut va = range.start;
        while let Some(run) = self.mapped_from(vm, &pin, va, range.end) {
            for n in 0..run.pages {
                let at = run.va + (n * PAGE_SIZE) as u64;
                self.take_out(vm, &pin, at, None, gather);
            }
            va = run.va + (run.pages * PAGE_SIZE) as u64;
        }
        gather.flush_pending(self, &range);
    }

    /// Clears W and D in the entry of `va` if it maps `pfn`: before its contents are written out. Conditions as for
    /// [`scan_remove`](Pmap::scan_remove).
    pub fn scan_write_protect<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> Scan {
        gathered(vm, |gather| {
            self.gather_write_protect(vm, pin, va, pfn, gather)
        })
    }

    /// As [`scan_write_protect`](Pmap::scan_write_protect), but the rights are usable until `gather`, which has room, is finished.
    pub(crate) fn gather_write_protect<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
        gather: &mut ScanGather,
    ) -> Scan {
        self.scan(vm, pin, va, Some(pfn), Loss::Rights, gather, |pte| {
            pte.without(Pte::W | Pte::D | Pte::CLAIMED)
        })
    }

    /// Clears A in the entry of `va` if it maps `pfn`; returns whether it was set. Nothing is flushed: a CPU that has
    /// the translation cached may go on using it unnoticed, for a while. The page need not be busy.
    pub fn scan_test_clear_accessed<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> bool {
        vm.pmaps.counts(pin).scan_visits.add(1);
        let Some(Leaf { table, .. }) = self.walk(vm, pin, va) else {
            return false;
        };
        let at = slot(va, 1);
        let pte = table.get(at);
        let ours = pte.is_present() && pte.pfn() == pfn && pte.is_accessed();
        if ours {
            // One attempt: an entry that changes under the hint is in use, and tells it the next time.
            let _changed = table.compare_exchange(at, pte, pte.without(Pte::A));
        }
        ours
    }

    /// Replaces the entry by what `change` makes of it, if it is live and carries `pfn`, or any frame if that is `None`;
    /// removes it if it is a claim. What that takes away is in `gather`, and in the pmap's list until that is finished: a removal of
    /// the range that finds the entry gone already must not return before no CPU can use it.
    #[expect(
        clippy::too_many_arguments,
        reason = "where, what, and what becomes of it"
    )]
    fn scan<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Option<Pfn>,
        loss: Loss,
        gather: &mut ScanGather,
        change: impl Fn(Pte) -> Pte,
    ) -> Scan {
        vm.pmaps.counts(pin).scan_visits.add(1);
        let Some(Leaf { table, .. }) = self.walk(vm, pin, va) else {
            gather.flush_pending(self, &(va..va + PAGE_SIZE as u64));
            return Scan::Absent;
        };
        let at = slot(va, 1);
        let mut recorded = false;
        loop {
            let pte = table.get(at);
            if pte.is_empty() || pfn.is_some_and(|pfn| pte.pfn() != pfn) {
                gather.flush_pending(self, &(va..va + PAGE_SIZE as u64));
                return Scan::Absent;
            }
            if !pte.is_present() && pte.any(Pte::BUSY) {
                ksync::relax();
                continue;
            }
            let new = if pte.is_present() {
                change(pte)
            } else {
                Pte::EMPTY
            };
            if new == pte {
                // As it is to be: a scan that begins again has come by.
                gather.flush_pending(self, &(va..va + PAGE_SIZE as u64));
                return Scan::Found(pte);
            }
            if pte.is_present() && !recorded {
                gather.record(self, va, loss);
                recorded = true;
            }
            if table.compare_exchange(at, pte, new).is_err() {
                continue;
            }
            let may_be_empty = new.is_empty() && table.shrink(1);
            if !pte.is_present() {
                // The fault that claimed the slot is still there and starts again.
                gather.flush_pending(self, &(va..va + PAGE_SIZE as u64));
                return Scan::Unclaimed;
            }
            if may_be_empty {
                let unlinked = self.prune(vm, pin, va);
                gather.free_list_later(vm, unlinked);
            }
            return Scan::Found(pte);
        }
    }
}
