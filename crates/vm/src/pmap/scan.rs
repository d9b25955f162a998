//! Operations of the reverse map on single entries.
//!
//! A scan starts from a page, which it holds hard-busy, and visits the addresses where the page may be mapped. It takes
//! no lock and acts by compare-and-swap on an entry that carries the frame: a live one, or the claim of a fault in
//! progress. It waits while the entry is busy: its remover, which is pinned, is handing A and D to the page, or a
//! promotion, pinned too, is looking at the other entries of the table. So after the wait it walks again from the root.
//! A leaf of 2 MiB that carries the frame is divided, under the directory's lock, if the page's entry must change.
//!
//! The translations that a scan takes away are flushed when its gather is finished, for all pmaps at once. Where the
//! entry does not carry the frame and another operation's flush of the address is due, the scan makes that flush too,
//! because a translation that was removed or restricted may still be cached. A pmap that does not map the page is not
//! written to.
//!
//! A scan that empties a table unlinks it, so that reclaiming pages frees their tables too.

use core::ops::Range;

use ksync::CpuPin;
use rust_alloc::sync::Arc;

use super::pte::Pte;
use super::table::slot;
use super::walk::Miss;
use super::{Loss, Pmap};
use crate::page::{PAGE_SIZE, Pfn};
use crate::tlb::ScanGather;
use crate::{Machine, Vm};

/// Result of a scan at one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// The frame is not mapped here.
    Absent,
    /// A fault had claimed the slot for the frame; the fault will start again.
    Unclaimed,
    /// This entry mapped the frame. It was changed, or was already as it should be. If the operation removes A or D,
    /// the caller must hand them on.
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

/// Scans one address, with a flush of its own.
fn gathered<M: Machine>(vm: &Vm<M>, scan: impl FnOnce(&mut ScanGather) -> Scan) -> Scan {
    let mut gather = ScanGather::new();
    let found = scan(&mut gather);
    gather.finish(vm);
    found
}

impl Pmap {
    /// Removes the entry of `va` if it maps `pfn`; no translation is usable on return. The caller holds the page
    /// hard-busy and has put a full fence after that. It must mark the page with A and D of the entry.
    pub fn scan_remove<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> Scan {
        gathered(vm, |gather| self.gather_remove(vm, pin, va, pfn, gather))
    }

    /// As [`scan_remove`](Pmap::scan_remove), but translations stay usable until `gather`, which has room, is finished.
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

    /// Removes the entry of `va`, and counts it, if it maps `pfn`; whatever it maps if `pfn` is `None`.
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

    /// Removes all entries of `range`, whatever they map. As the pmap is a cache, this only costs later faults.
    /// Translations stay usable until `gather`, which has room, is finished.
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

    /// Clears W and D in the entry of `va` if it maps `pfn`, before the page is written out. Conditions as for
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

    /// As [`scan_write_protect`](Pmap::scan_write_protect), but the rights stay usable until `gather`, which has room,
    /// is finished.
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

    /// Clears A in the entry of `va` if it maps `pfn`; returns whether it was set. Nothing is flushed: a CPU with the
    /// translation cached may go on using it for a while without setting A. The page need not be busy.
    pub fn scan_test_clear_accessed<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> bool {
        vm.pmaps.counts(pin).scan_visits.add(1);
        let table = match self.walk(vm, pin, va) {
            Ok(leaf) => leaf.table,
            Err(Miss::Large { pte, .. }) => {
                return self.test_clear_large(vm, pin, va, pte, pfn);
            }
            Err(Miss::Empty) => return false,
        };
        let at = slot(va, 1);
        let pte = table.get(at);
        let ours = pte.is_present() && pte.pfn() == pfn && pte.is_accessed();
        if ours {
            // One attempt: an entry that changes at this moment is in use, and has A set the next time.
            let _changed = table.compare_exchange(at, pte, pte.without(Pte::A));
        }
        ours
    }

    /// Replaces the entry by the result of `change`, if it is live and carries `pfn`, or any frame if that is `None`;
    /// removes it if it is a claim. The loss is recorded in `gather`, and so in the pmap's list until the gather is
    /// finished: a removal of the range that finds the entry gone must not return while a CPU can still use it.
    ///
    /// A leaf of 2 MiB is divided if `change` would change the entry, or removed if there is no memory for a table.
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
        let at = slot(va, 1);
        let mut recorded = false;
        loop {
            let (table, pte) = match self.walk(vm, pin, va) {
                Ok(leaf) => (Some(leaf.table), leaf.table.get(at)),
                Err(Miss::Large { pte, .. }) => (None, pte.piece(at)),
                Err(Miss::Empty) => (None, Pte::EMPTY),
            };
            if pte.is_empty() || pfn.is_some_and(|pfn| pte.pfn() != pfn) {
                gather.flush_pending(self, &(va..va + PAGE_SIZE as u64));
                return Scan::Absent;
            }
            if !pte.is_present() && pte.any(Pte::BUSY) {
                ksync::relax();
                continue;
            }
            let live = pte.is_present();
            let new = if live { change(pte) } else { Pte::EMPTY };
            if new == pte {
                // Already as it should be: this scan is a repetition.
                gather.flush_pending(self, &(va..va + PAGE_SIZE as u64));
                return Scan::Found(pte);
            }
            let Some(table) = table else {
                if self.divide_for_scan(vm, pin, va, pte.pfn(), gather) {
                    return Scan::Found(pte);
                }
                continue;
            };
            if live && !recorded {
                gather.record(self, va, loss);
                recorded = true;
            }
            if table.compare_exchange(at, pte, new).is_err() {
                continue;
            }
            let may_be_empty = new.is_empty() && table.shrink(1);
            if !live {
                // The fault that claimed the slot still holds the table's lock, and starts again.
                gather.flush_pending(self, &(va..va + PAGE_SIZE as u64));
                return Scan::Unclaimed;
            }
            if may_be_empty {
                let unlinked = self.prune(vm, pin, va, 2);
                gather.free_list_later(vm, unlinked);
            }
            return Scan::Found(pte);
        }
    }
}
