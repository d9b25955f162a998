//! What the reverse map does to single entries.
//!
//! A scan comes from a page, which it holds hard-busy, to an address where the page may be mapped. It takes no lock
//! and acts by compare-and-swap, on an entry that carries the frame: live ones, and claims of faults on their way. A
//! busy entry is waited for: its remover is handing A and D to the page, pinned.
//!
//! If the pmap has invalidations pending, the address is flushed whatever its entry looks like, because a translation
//! that somebody took out, or restricted, may still be cached (see `tlb`).
//!
//! A scan that empties a table unlinks it, so that memory pressure takes tables along with their pages.

use ksync::CpuPin;

use super::Pmap;
use super::pte::Pte;
use super::table::slot;
use super::walk::Leaf;
use crate::limbo::FrameList;
use crate::page::Pfn;
use crate::tlb::Gather;
use crate::{Machine, Vm};

/// What a scan found at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// The frame is not mapped here.
    Absent,
    /// A fault had claimed the slot for the frame; it will start again.
    Unclaimed,
    /// The frame was mapped by this entry, which has been acted on. Its A and D are the caller's where the
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

impl Pmap {
    /// Takes the entry of `va` out if it maps `pfn`; no translation is usable on return. The caller holds the page hard-busy
    /// and has put a full fence after that. Marking the page with A and D of the entry is its task.
    pub fn scan_remove<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64, pfn: Pfn) -> Scan {
        let found = self.scan(vm, pin, va, Some(pfn), |_| Pte::EMPTY);
        if found != Scan::Absent {
            vm.pmaps.counts(pin).scan_removed.add(1);
        }
        found
    }

    /// Takes the entry of `va` out whatever it maps. The pmap being a cache, nothing is lost but the time of a fault.
    pub(crate) fn scan_remove_any<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64) {
        if self.scan(vm, pin, va, None, |_| Pte::EMPTY) != Scan::Absent {
            vm.pmaps.counts(pin).scan_removed.add(1);
        }
    }

    /// Clears W and D in the entry of `va` if it maps `pfn`: before its contents are written out. Conditions as for
    /// [`scan_remove`](Pmap::scan_remove).
    pub fn scan_write_protect<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> Scan {
        self.scan(vm, pin, va, Some(pfn), |pte| {
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
        let Some(Leaf { table, .. }) = self.walk(vm, pin, va) else {
            return false;
        };
        let at = slot(va, 1);
        let pte = table.get(at);
        let ours = pte.is_present() && pte.pfn() == pfn && pte.is_accessed();
        // One attempt: an entry that changes under the hint is in use.
        ours && (table.compare_exchange(at, pte, pte.without(Pte::A)).is_ok()
            || table.get(at).pfn() == pfn)
    }

    /// Replaces the entry by what `change` makes of it, if it is live and carries `pfn`, or any frame if that is `None`;
    /// removes it if it is a claim.
    ///
    /// It flushes before it returns, inside the pmap's pending count: a removal of the range that finds the entry gone
    /// already must not return before no CPU can use it.
    fn scan<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Option<Pfn>,
        change: impl Fn(Pte) -> Pte,
    ) -> Scan {
        self.raise_pending();
        let (found, may_be_empty) = self.scan_entry(vm, pin, va, pfn, change);
        let unlinked = if may_be_empty {
            self.prune(vm, pin, va)
        } else {
            FrameList::EMPTY
        };
        if matches!(found, Scan::Found(_)) || self.pending_beyond(1) || !unlinked.is_empty() {
            let mut gather = Gather::new();
            gather.record_scan(self, va);
            gather.free_list_later(vm, unlinked);
            gather.finish(vm);
        }
        self.lower_pending();
        found
    }

    /// The entry's part of [`scan`](Pmap::scan); also returns whether the table may be empty now.
    fn scan_entry<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Option<Pfn>,
        change: impl Fn(Pte) -> Pte,
    ) -> (Scan, bool) {
        let Some(Leaf { table, .. }) = self.walk(vm, pin, va) else {
            return (Scan::Absent, false);
        };
        let at = slot(va, 1);
        loop {
            let pte = table.get(at);
            if pte.is_empty() || pfn.is_some_and(|pfn| pte.pfn() != pfn) {
                return (Scan::Absent, false);
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
            if table.compare_exchange(at, pte, new).is_err() {
                continue;
            }
            let may_be_empty = new.is_empty() && table.shrink(1);
            return if pte.is_present() {
                (Scan::Found(pte), may_be_empty)
            } else {
                // The fault that claimed the slot is still there and starts again.
                (Scan::Unclaimed, false)
            };
        }
    }
}
