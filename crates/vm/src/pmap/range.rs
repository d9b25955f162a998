//! Removal and protection of address ranges.
//!
//! The caller has changed the map, or marked the map's entries dead, before. Both walks start with a full fence and skip
//! missing tables without a lock; `next_leaf` explains why no entry is missed. A range is processed one level-1 table or
//! leaf of 2 MiB at a time, with one pin for each. Where one has become the other before the lock was taken, the walk
//! looks at the address again. A leaf of which the range covers a part is divided first.

use core::ops::Range;

use ksync::atomic::{Ordering::SeqCst, fence};

use super::pte::Pte;
use super::table::{ENTRIES, Table, entry_shift, slot};
use super::walk::Mapper;
#[cfg(feature = "pv")]
use super::walk::Miss;
use super::{Loss, Pmap, USER_END};
use crate::page::{PAGE_SIZE, Pfn};
use crate::rmap::{self, Blocked, Map, ReverseMap};
use crate::tlb::Gather;
use crate::{Machine, Vm};

/// Bytes under one level-1 table.
pub(crate) const SPAN: u64 = 1 << entry_shift(2);

/// Receives A and D of removed entries.
pub(super) trait Harvest {
    /// Whether they are needed at all.
    const WANTED: bool;
    fn take(&mut self, pfn: Pfn, pte: Pte);
}

/// Drops them.
struct Discard;

impl Harvest for Discard {
    const WANTED: bool = false;
    fn take(&mut self, _: Pfn, _: Pte) {}
}

impl<F: FnMut(Pfn, Pte)> Harvest for F {
    const WANTED: bool = true;
    fn take(&mut self, pfn: Pfn, pte: Pte) {
        self(pfn, pte);
    }
}

/// Rights that [`Pmap::protect_range`] withdraws.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Revoke {
    /// Writing. D stays in the entry until that is removed or scanned.
    pub write: bool,
    /// Instruction fetch.
    pub exec: bool,
}

impl Pmap {
    /// Removes all entries in `start..end` and drops A and D: for private anonymous memory, and wherever pages are
    /// marked dirty when they are entered writable.
    ///
    /// The entries are removed when this returns, the translations when `gather` is finished. Sleeping context: where entries
    /// are listed with their pages, it waits for lists that are held.
    pub fn remove_range<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        start: u64,
        end: u64,
        gather: &mut Gather<'p>,
    ) {
        self.remove(vm, start..end, gather, false, &mut Discard);
    }

    /// As [`remove_range`](Pmap::remove_range), but passes each managed entry with A or D set to `on_page`.
    ///
    /// While `on_page` runs the entry is busy and a scan for the page waits; so a scan never sees the entry removed and
    /// the page not yet marked. `on_page` runs under a spin lock and must only mark the page.
    pub fn harvest_range<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        start: u64,
        end: u64,
        gather: &mut Gather<'p>,
        mut on_page: impl FnMut(Pfn, Pte),
    ) {
        self.remove(vm, start..end, gather, false, &mut on_page);
    }

    /// As [`harvest_range`](Pmap::harvest_range), but spares wired entries. For dropping tables while the map is
    /// unchanged: later accesses fault the entries in again.
    pub fn drop_range<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        start: u64,
        end: u64,
        gather: &mut Gather<'p>,
        mut on_page: impl FnMut(Pfn, Pte),
    ) {
        self.remove(vm, start..end, gather, true, &mut on_page);
    }

    /// Removes the entries of `range`, but for wired ones if `spare_wired`, and passes them to `harvest` if it wants them.
    fn remove<'p, M: Machine, H: Harvest>(
        &'p self,
        vm: &Vm<M>,
        range: Range<u64>,
        gather: &mut Gather<'p>,
        spare_wired: bool,
        harvest: &mut H,
    ) {
        if range.is_empty() {
            return;
        }
        let guard = vm.rmap.begin(self);
        gather.over(self, range.clone(), Loss::Frames);
        self.for_each_leaf(vm, range.clone(), |pin, mapper, span| {
            let (start, whole) = (span.start, is_whole(&span));
            let looked = match mapper {
                Mapper::Table(table) => {
                    self.remove_in(vm, table, span, gather, spare_wired, harvest)
                }
                Mapper::Large(pte) if spare_wired && pte.any(Pte::WIRED) => Looked::Done,
                Mapper::Large(_) if whole => self.remove_large(vm, pin, start, gather, harvest),
                Mapper::Large(_) => self.divide(vm, pin, start, gather),
            };
            if looked == Looked::Emptied {
                self.unlink_empty(vm, pin, start, gather);
            }
            looked
        });
        gather.flush_pending(self, &range);
        vm.rmap.tidy(vm, self);
        vm.rmap.end(guard);
    }

    /// Unlinks the table around `va` in which no entry was left, and those above it that are empty then.
    fn unlink_empty<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pin: &ksync::CpuPin,
        va: u64,
        gather: &mut Gather<'p>,
    ) {
        let unlinked = self.prune(vm, pin, va, 2);
        if !unlinked.is_empty() {
            gather.record(self, va);
            gather.free_list_later(vm, unlinked);
        }
    }

    /// As [`drop_range`](Pmap::drop_range), for one page. Waits for nothing but the table, and makes no flush that another
    /// operation is to make. Returns whether the page stays because it is wired, or in a leaf of 2 MiB.
    ///
    /// # Errors
    /// The page stays because its list is held.
    #[cfg(feature = "pv")]
    pub(crate) fn try_drop_page<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        va: u64,
        gather: &mut Gather<'p>,
        mut on_page: impl FnMut(Pfn, Pte),
    ) -> Result<bool, Blocked> {
        let (pin, page) = (ksync::pin(), va..va + PAGE_SIZE as u64);
        let leaf = match self.walk(vm, &pin, va) {
            Ok(leaf) => leaf,
            Err(miss) => return Ok(matches!(miss, Miss::Large { .. })),
        };
        if leaf.table.get(slot(va, 1)).any(Pte::WIRED) {
            return Ok(true);
        }
        gather.over(self, page.clone(), Loss::Frames);
        let looked = self.remove_in(vm, leaf.table, page, gather, true, &mut on_page);
        match looked {
            Looked::Blocked(blocked) => return Err(blocked),
            Looked::Emptied => self.unlink_empty(vm, &pin, va, gather),
            Looked::Done | Looked::Again => {}
        }
        Ok(false)
    }

    /// Removes the entries that one level-1 table has in `span`, but for wired ones if `spare_wired`. Takes the table's
    /// lock. The table may be `Emptied`, and is to be unlinked, also if scans, which take no lock, had removed its last
    /// entries before. Not inlined, which keeps the path for untouched ranges small.
    #[inline(never)]
    fn remove_in<'p, M: Machine, H: Harvest>(
        &'p self,
        vm: &Vm<M>,
        table: Table,
        span: Range<u64>,
        gather: &mut Gather<'p>,
        spare_wired: bool,
        harvest: &mut H,
    ) -> Looked {
        let guard = table.lock_leaf();
        if table.is_dead() {
            return Looked::dead(&table);
        }
        let first = slot(span.start, 1);
        let mut removed = 0;
        let all = table.try_each_locked(first, slots_end(&span), |at, pte| {
            if spare_wired && pte.any(Pte::WIRED) {
                return Ok(());
            }
            let va = span.start + ((at - first) * PAGE_SIZE) as u64;
            let held = rmap::leave(vm, self, pte, va)?;
            gather.record(self, va);
            let taken = take_out(&table, at, pte, harvest);
            held.settle(taken);
            removed += u32::from(taken);
            Ok(())
        });
        let empty = table.shrink(removed);
        drop(guard);
        if let Err(blocked) = all {
            return Looked::Blocked(blocked);
        }
        if empty || table.live() == 0 {
            Looked::Emptied
        } else {
            Looked::Done
        }
    }

    /// Withdraws rights from all entries in `start..end`. No CPU can use them when `gather` is finished. Sleeping context, as
    /// for [`remove_range`](Pmap::remove_range). A leaf of which a part is meant is removed if there is no memory to divide it.
    pub fn protect_range<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        start: u64,
        end: u64,
        revoke: Revoke,
        gather: &mut Gather<'p>,
    ) {
        if start >= end {
            return;
        }
        gather.over(self, start..end, Loss::Rights);
        self.for_each_leaf(vm, start..end, |pin, mapper, span| {
            let table = match mapper {
                Mapper::Table(table) => table,
                // A fault that divides the leaf to add rights checks the state after that, and finds it changed.
                Mapper::Large(pte) if !revoke.takes_from(pte) => return Looked::Done,
                Mapper::Large(_) if is_whole(&span) => {
                    return self.protect_large(vm, pin, span.start, revoke, gather);
                }
                Mapper::Large(_) => return self.divide(vm, pin, span.start, gather),
            };
            let _guard = table.lock_leaf();
            if table.is_dead() {
                return Looked::dead(&table);
            }
            let first = slot(span.start, 1);
            table.for_each_locked(first, slots_end(&span), |at, pte| {
                if revoke.takes_from(pte) {
                    gather.record(self, span.start + ((at - first) * PAGE_SIZE) as u64);
                    restrict(&table, at, pte, revoke);
                }
            });
            Looked::Done
        });
        gather.flush_pending(self, &(start..end));
    }

    /// Calls `visit` for each level-1 table or leaf of 2 MiB in `range`, with the part of the range under it and a new
    /// pin; again if that is the answer, perhaps after a wait.
    fn for_each_leaf<M: Machine>(
        &self,
        vm: &Vm<M>,
        range: Range<u64>,
        mut visit: impl FnMut(&ksync::CpuPin, Mapper, Range<u64>) -> Looked,
    ) {
        debug_assert!(
            range.start.is_multiple_of(PAGE_SIZE as u64)
                && range.end.is_multiple_of(PAGE_SIZE as u64)
        );
        debug_assert!(range.end <= USER_END);
        fence(SeqCst);
        let mut va = range.start;
        loop {
            let pin = ksync::pin();
            let Some((mapper, at)) = self.next_leaf(vm, &pin, va, range.end) else {
                return;
            };
            let end = ((at | (SPAN - 1)) + 1).min(range.end);
            va = match visit(&pin, mapper, at..end) {
                Looked::Again => at,
                Looked::Done | Looked::Emptied => end,
                Looked::Blocked(blocked) => {
                    drop(pin);
                    vm.rmap.wait(blocked);
                    at
                }
            };
        }
    }
}

/// What became of a visit to one level-1 table or leaf of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// The part of the range under it is done.
    Done,
    /// The same, and the table is empty.
    Emptied,
    /// Something else maps the address by now.
    Again,
    /// The list of a page that is mapped here is held: a part may not be done.
    Blocked(Blocked),
}

impl Looked {
    /// At a dead table.
    fn dead(table: &Table) -> Looked {
        if table.is_replaced() {
            Looked::Again
        } else {
            Looked::Done
        }
    }
}

impl Revoke {
    /// Whether the entry has one of the rights.
    fn takes_from(self, pte: Pte) -> bool {
        (self.write && pte.is_writable()) || (self.exec && pte.is_executable())
    }

    /// The entry without the rights.
    pub(super) fn applied(self, pte: Pte) -> Pte {
        let write = if self.write { Pte::W } else { 0 };
        let no_exec = if self.exec { Pte::NX } else { 0 };
        pte.without(write).with(no_exec)
    }
}

/// Whether the part of a range covers all of its level-1 table.
fn is_whole(span: &Range<u64>) -> bool {
    span.end - span.start == SPAN
}

/// One more than the last slot that `span` covers in its level-1 table.
fn slots_end(span: &Range<u64>) -> usize {
    slot(span.end - PAGE_SIZE as u64, 1) + 1
}

/// Removes one entry of a locked table. Returns whether it was still there: a scan may have been faster.
#[inline]
fn take_out<H: Harvest>(table: &Table, at: usize, mut pte: Pte, harvest: &mut H) -> bool {
    while !pte.is_empty() {
        let marks = H::WANTED && pte.is_managed() && pte.any(Pte::A | Pte::D);
        // Where the page's list is held no scan looks at the entry.
        let busy = marks && !Map::PER_PAGE;
        let next = if busy { pte.busy() } else { Pte::EMPTY };
        match table.compare_exchange(at, pte, next) {
            Ok(()) => {
                if marks {
                    harvest.take(pte.pfn(), pte);
                }
                if busy {
                    table.clear(at);
                }
                return true;
            }
            Err(now) => pte = now,
        }
    }
    false
}

/// Withdraws rights from one entry of a locked table. A scan may remove the entry meanwhile.
fn restrict(table: &Table, at: usize, mut pte: Pte, revoke: Revoke) {
    while !pte.is_empty() {
        match table.compare_exchange(at, pte, revoke.applied(pte)) {
            Ok(()) => return,
            Err(now) => pte = now,
        }
    }
}

const _: () = assert!(SPAN == (ENTRIES * PAGE_SIZE) as u64);
