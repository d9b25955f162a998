//! Operations of the reverse map on single entries.
//!
//! A scan starts from a page, which it holds hard-busy (a look for use: soft-busy), and visits the addresses where the page may be mapped. It takes
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

use super::pte::{Prot, Pte};
use super::table::{Table, slot};
use super::walk::{Mapper, Miss};
use super::{Loss, Pmap, TABLE_BYTES};
use crate::page::{PAGE_SIZE, Pfn};
use crate::rmap::{self, Blocked, Map, ReverseMap, Scan, Sought, Visit};
use crate::tlb::ScanGather;
use crate::{Machine, Vm};

/// Scans one address of a page whose list it holds for that time, with a flush of its own, until nothing is in the way.
fn alone<M: Machine>(
    vm: &Vm<M>,
    pmap: &Pmap,
    (va, pfn): (u64, Pfn),
    mut scan: impl FnMut(&mut ScanGather) -> Result<(Scan, Visit), Blocked>,
) -> Scan {
    loop {
        let seen = rmap::leave(vm, pmap, Pte::user(pfn, Prot::READ), va).and_then(|held| {
            let mut gather = ScanGather::new();
            let seen = scan(&mut gather);
            let listed = |pte: Pte| pte.is_managed();
            held.settle(seen.is_ok_and(|(found, visit)| {
                visit == Visit::Gone && found.pte().is_some_and(listed)
            }));
            gather.finish(vm);
            seen
        });
        match seen {
            Ok((found, _)) => return found,
            // Not `wait`: the caller is pinned.
            Err(_) => ksync::relax(),
        }
    }
}

/// What remains of an entry before its page is written out.
fn read_only(pte: Pte) -> Pte {
    pte.without(Pte::W | Pte::D | Pte::CLAIMED)
}

impl Pmap {
    /// Removes the entry of `va` if it maps `pfn`, and unlists it; no translation is usable on return. The caller holds the
    /// page hard-busy, but not its list, and has put a full fence after that. It must mark the page with A and D of the
    /// entry. For tests.
    pub fn scan_remove<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> Scan {
        alone(vm, self, (va, pfn), |gather| {
            self.take_out(vm, pin, va, Sought::Held(pfn), gather)
        })
    }

    /// Removes the entry of `va` if it maps `pfn`; translations stay usable until `gather`, which has room, is finished.
    /// Conditions as for [`scan_remove`](Pmap::scan_remove), but the caller holds the page's list, and unlists the entry.
    ///
    /// # Errors
    /// Another page's list is held.
    pub(crate) fn gather_remove<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
        gather: &mut ScanGather,
    ) -> Result<Scan, Blocked> {
        self.take_out(vm, pin, va, Sought::Held(pfn), gather)
            .map(|(found, _)| found)
    }

    /// Removes the entry of `va`, and counts it, if it is sought.
    fn take_out<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        sought: Sought,
        gather: &mut ScanGather,
    ) -> Result<(Scan, Visit), Blocked> {
        let seen = self.scan(vm, pin, va, sought, Loss::Frames, gather, |_| Pte::EMPTY)?;
        if seen.0 != Scan::Absent {
            vm.pmaps.counts(pin).scan_removed.add(1);
        }
        Ok(seen)
    }

    /// Removes entries of `range`, whatever they map, from its start on, up to `most`; returns where to go on. As the pmap is
    /// a cache, this only costs later faults. Translations stay usable until `gather`, which has room, is finished. An entry
    /// is left only if it was entered under a hold of its table's lock that began after this had begun.
    ///
    /// # Errors
    /// A page's list is held: entries of it and of later pages may be left.
    pub(crate) fn gather_remove_range<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        range: Range<u64>,
        most: usize,
        gather: &mut ScanGather,
    ) -> Result<u64, Blocked> {
        let pin = ksync::pin();
        let (mut va, mut left, mut passed) = (range.start, most, None);
        while left > 0 {
            let Some((mapper, at)) = self.next_leaf(vm, &pin, va, range.end) else {
                va = range.end;
                break;
            };
            if let Mapper::Table(table) = mapper
                && passed != Some(table.pfn)
            {
                // A fault that is entering a page holds the lock.
                drop(table.lock_leaf());
                passed = Some(table.pfn);
            }
            let reach = ((at | (TABLE_BYTES - 1)) + 1).min(range.end);
            let Some(run) = self.mapped_from(vm, &pin, at, reach) else {
                (va, left) = (reach, left - 1);
                continue;
            };
            let pages = run.pages.min(left);
            for n in 0..pages {
                let at = run.va + (n * PAGE_SIZE) as u64;
                self.take_out(vm, &pin, at, Sought::Any, gather)?;
            }
            va = run.va + (pages * PAGE_SIZE) as u64;
            left -= pages;
        }
        gather.flush_pending(self, &(range.start..va));
        Ok(va)
    }

    /// Clears W and D in the entry of `va` if it maps `pfn`, before the page is written out. Conditions as for
    /// [`scan_remove`](Pmap::scan_remove). For tests.
    pub fn scan_write_protect<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        pfn: Pfn,
    ) -> Scan {
        alone(vm, self, (va, pfn), |gather| {
            self.gather_write_protect(vm, pin, va, Sought::Held(pfn), gather)
        })
    }

    /// As [`scan_write_protect`](Pmap::scan_write_protect), but the rights stay usable until `gather`, which has room,
    /// is finished; and the caller holds the page's list, and unlists the entry if that is the answer.
    ///
    /// # Errors
    /// Another page's list is held; or an entry must go, and the page's list is shared.
    pub(crate) fn gather_write_protect<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        sought: Sought,
        gather: &mut ScanGather,
    ) -> Result<(Scan, Visit), Blocked> {
        self.scan(vm, pin, va, sought, Loss::Rights, gather, read_only)
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

    /// The entry of `va`, or the one of 4 KiB that a leaf of 2 MiB stands for, and its table, if it has one.
    fn walk_to_entry<'a, M: Machine>(
        &self,
        vm: &'a Vm<M>,
        pin: &'a CpuPin,
        va: u64,
    ) -> (Option<Table<'a>>, Pte) {
        let at = slot(va, 1);
        match self.walk(vm, pin, va) {
            Ok(leaf) => (Some(leaf.table), leaf.table.get(at)),
            Err(Miss::Large { pte, .. }) => (None, pte.piece(at)),
            Err(Miss::Empty) => (None, Pte::EMPTY),
        }
    }

    /// Replaces the entry by the result of `change`, if it is live and sought; removes it if it is a claim. Also returns
    /// whether the entry has gone, so that the caller unlists it if it holds the list. The loss is recorded in `gather`, and
    /// so in the pmap's list until the gather is finished: a removal of the range that finds the entry gone must not return
    /// while a CPU can still use it.
    ///
    /// A leaf of 2 MiB is divided if `change` would change the entry, or removed if there is no memory for a table; or the gather
    /// [puts it off](ScanGather::put_off), and the answer is `Absent`.
    ///
    /// # Errors
    /// The list of a page that is not the caller's is held.
    #[expect(
        clippy::too_many_arguments,
        reason = "where, what, and what becomes of it"
    )]
    fn scan<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        sought: Sought,
        loss: Loss,
        gather: &mut ScanGather,
        change: impl Fn(Pte) -> Pte,
    ) -> Result<(Scan, Visit), Blocked> {
        vm.pmaps.counts(pin).scan_visits.add(1);
        let (at, page) = (slot(va, 1), va..va + PAGE_SIZE as u64);
        let mut recorded = false;
        loop {
            let (table, pte) = self.walk_to_entry(vm, pin, va);
            if pte.is_empty() || sought.excludes(pte) {
                gather.flush_pending(self, &page);
                return Ok((Scan::Absent, Visit::Keep));
            }
            if !pte.is_present() && pte.any(Pte::BUSY) {
                ksync::relax();
                continue;
            }
            // Where entries are listed no fault claims a slot.
            let live = Map::PER_PAGE || pte.is_present();
            let new = if live { change(pte) } else { Pte::EMPTY };
            // Already as it should be: this scan is a repetition.
            if new == pte {
                gather.flush_pending(self, &page);
                return Ok((Scan::Found(pte), Visit::Keep));
            }
            let Some(table) = table else {
                if let Some(answer) = self.divide_for_scan(vm, pin, va, (pte, sought), gather)? {
                    return Ok(answer);
                }
                continue;
            };
            let held = rmap::leave_if(sought == Sought::Any, vm, self, pte, va)?;
            if live && !recorded {
                gather.record(self, va, loss);
                recorded = true;
            }
            let changed = table.compare_exchange(at, pte, new).is_ok();
            held.settle(changed && new.is_empty());
            if !changed {
                continue;
            }
            let may_be_empty = new.is_empty() && table.shrink(1);
            if !live {
                // The fault that claimed the slot still holds the table's lock, and starts again.
                gather.flush_pending(self, &page);
                return Ok((Scan::Unclaimed, Visit::Keep));
            }
            if may_be_empty {
                let unlinked = self.prune(vm, pin, va, 2);
                gather.free_list_later(vm, unlinked);
            }
            return Ok((Scan::Found(pte), Visit::gone_if(new.is_empty())));
        }
    }
}
