//! Walking, making missing tables, and unlinking empty ones.
//!
//! A walk holds no lock. A table that it finds may be unlinked the next moment; it is not freed before the pin is
//! dropped, and under its lock one can tell whether it is dead. Instead of a table of level 1 a walk may find a leaf of
//! 2 MiB, which may become a table the next moment.

use ksync::CpuPin;
use ksync::atomic::Ordering::{Relaxed, SeqCst};

use super::enter::{EnterError, Entered, says_all};
use super::pte::Pte;
use super::table::{ENTRIES, LeafLock, ROOT_LEVEL, Table, entry_shift, slot};
use super::{AROUND, Pmap, USER_END};
use crate::limbo::FrameList;
use crate::page::{Flags, PAGE_SIZE, Pfn, State};
use crate::tlb;
use crate::{Machine, NoMemory, Rights, Vm};

/// The level-1 table that a walk found.
pub(super) struct Leaf<'a> {
    pub table: Table<'a>,
    /// Whether all levels above allow writing.
    pub writable: bool,
}

/// Why a walk found no level-1 table.
#[derive(Clone, Copy)]
pub(super) enum Miss {
    /// Nothing is mapped.
    Empty,
    /// A leaf of 2 MiB maps the address.
    Large {
        /// The leaf.
        pte: Pte,
        /// Whether all levels above allow writing.
        writable: bool,
    },
}

/// What an entry of level 2 that is not empty maps its 2 MiB by.
pub(super) enum Mapper<'a> {
    Table(Table<'a>),
    /// This leaf.
    Large(Pte),
}

/// A level-1 table, locked and not dead.
pub(super) type Locked<'a> = (Table<'a>, ksync::RawSpinGuard<'a, LeafLock>);

/// The result of a fault that enters nothing.
pub(super) type Answer = Result<Entered, EnterError>;

impl Pmap {
    /// Walks to the level-1 table of `va`.
    #[inline(always)]
    pub(super) fn walk<'a, M: Machine>(
        &self,
        vm: &'a Vm<M>,
        _pin: &'a CpuPin,
        va: u64,
    ) -> Result<Leaf<'a>, Miss> {
        debug_assert!(va < USER_END);
        let mut pfn = self.root().ok_or(Miss::Empty)?;
        let mut path = Pte::W;
        for level in [4, 3, 2] {
            // Only the words are read: the `Page` of a directory is not needed on the way down.
            let pte = Pte(vm.machine.table_words(pfn)[slot(va, level)].load(SeqCst));
            if !pte.is_table() {
                return Err(if pte.is_large() {
                    let writable = path != 0;
                    Miss::Large { pte, writable }
                } else {
                    Miss::Empty
                });
            }
            path &= pte.0;
            pfn = pte.pfn();
        }
        Ok(Leaf {
            table: Table::at(vm, pfn),
            writable: path != 0,
        })
    }

    /// The table of this level, 2 or above, around `va`.
    pub(super) fn table_at<'a, M: Machine>(
        &self,
        vm: &'a Vm<M>,
        _pin: &'a CpuPin,
        va: u64,
        level: u8,
    ) -> Option<Table<'a>> {
        let mut table = Table::at(vm, self.root()?);
        for above in (level + 1..=ROOT_LEVEL).rev() {
            let pte = table.get(slot(va, above));
            if !pte.is_present() {
                return None;
            }
            table = Table::at(vm, pte.pfn());
        }
        Some(table)
    }

    /// The entry of `va`, with W set only if it is set on every level; `None` if no entry is present. Where a leaf of
    /// 2 MiB maps the page, the entry of 4 KiB that would say the same.
    pub fn lookup<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64) -> Option<Pte> {
        let (pte, writable) = match self.walk(vm, pin, va) {
            Ok(leaf) => (leaf.table.get(slot(va, 1)), leaf.writable),
            Err(Miss::Large { pte, writable }) => (pte.piece(slot(va, 1)), writable),
            Err(Miss::Empty) => return None,
        };
        let pte = if pte.is_frozen() { pte.thawed() } else { pte };
        pte.is_present()
            .then(|| if writable { pte } else { pte.without(Pte::W) })
    }

    /// The level-1 table of `va`, locked and not dead; made if it is missing. If `wanted` is writable, all levels above
    /// allow writing.
    ///
    /// A leaf of 2 MiB is divided, unless it says all that `wanted` does, or `wanted` is not present: then there is
    /// nothing to enter, and the result is `Err(Ok(Entered::Same))`. Else an error is what the fault returns: `NoTable`, or
    /// `Stale` if the pmap was released.
    #[inline(always)]
    pub(super) fn locked_leaf<'a, M: Machine>(
        &self,
        vm: &'a Vm<M>,
        pin: &'a CpuPin,
        va: u64,
        wanted: Pte,
    ) -> Result<Locked<'a>, Answer> {
        if let Ok(leaf) = self.walk(vm, pin, va)
            && (leaf.writable || !wanted.is_writable())
        {
            let guard = leaf.table.lock_leaf();
            if !leaf.table.is_dead() {
                return Ok((leaf.table, guard));
            }
        }
        self.locked_leaf_slow(vm, pin, va, wanted)
    }

    /// As `locked_leaf`, if a table is missing, write-protected or dead, or there is a leaf of 2 MiB.
    #[cold]
    #[inline(never)]
    fn locked_leaf_slow<'a, M: Machine>(
        &self,
        vm: &'a Vm<M>,
        pin: &'a CpuPin,
        va: u64,
        wanted: Pte,
    ) -> Result<Locked<'a>, Answer> {
        let mut write = wanted.is_writable();
        loop {
            match self.walk(vm, pin, va) {
                Err(Miss::Empty) => self.build(vm, pin, va).map_err(Err)?,
                Ok(Leaf {
                    writable: false, ..
                })
                | Err(Miss::Large {
                    writable: false, ..
                }) if write => {
                    self.push_down(vm, pin, va);
                    // Once is enough: if a fork comes in between, its protection above stays in force until the next
                    // write fault.
                    write = false;
                }
                Err(Miss::Large { pte, .. }) => {
                    if !wanted.is_present() || says_all(pte.piece(slot(va, 1)), wanted) {
                        return Err(Ok(Entered::Same));
                    }
                    self.demote(vm, pin, va)
                        .map_err(|cause| Err(cause.into()))?;
                }
                Ok(leaf) => {
                    let guard = leaf.table.lock_leaf();
                    if !leaf.table.is_dead() {
                        return Ok((leaf.table, guard));
                    }
                    // The CPU that marked it dead is about to unlink it, or has put a leaf into its place.
                    drop(guard);
                    ksync::relax();
                }
            }
        }
    }

    /// Makes the missing tables above the entry of `va`. May return before all are made, if another CPU unlinked one of
    /// them; the caller walks again. `NoTable`, with some made, or `Stale` if the pmap was released.
    #[cold]
    #[inline(never)]
    pub(super) fn build<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
    ) -> Result<(), EnterError> {
        let root = match self.root() {
            Some(root) => root,
            None => self.build_root(vm, pin)?,
        };
        let mut table = Table::at(vm, root);
        for level in [4, 3, 2] {
            let at = slot(va, level);
            let mut pte = table.get(at);
            if !pte.is_present() {
                let new = alloc_table(vm, pin, None)?;
                let guard = table.lock_directory();
                pte = table.get(at);
                if table.is_dead() || pte.is_present() {
                    drop(guard);
                    free_table(vm, pin, new);
                    if !pte.is_present() {
                        ksync::relax();
                        return Ok(());
                    }
                } else {
                    pte = Pte::directory(new);
                    table.link(at, pte);
                    // Counted under the lock, so that a release that finds the table finds it counted.
                    self.count_made(vm, pin);
                    drop(guard);
                }
            }
            if pte.is_large() {
                break;
            }
            table = Table::at(vm, pte.pfn());
        }
        Ok(())
    }

    /// Gives the pmap a root, and makes the CPUs that run it on the empty root load it. `Stale` if it was released.
    fn build_root<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin) -> Result<Pfn, EnterError> {
        let new = alloc_table(vm, pin, Some(vm.pmaps.empty_root))?;
        // Counted before a release can find it.
        self.tables.fetch_add(1, Relaxed);
        let ours = self
            .lookup
            .root
            .compare_exchange(Pfn::NONE.0, new.0, SeqCst, Relaxed);
        if ours.is_err() {
            self.tables.fetch_sub(1, Relaxed);
            free_table(vm, pin, new);
            // Another CPU made the root, which may have been dropped again, or the pmap was released.
            return self.root().ok_or(EnterError::Stale);
        }
        // A CPU that activates the pmap either sees the new root, or is seen here: see `ActiveSet::enter`.
        ksync::fence_after_rmw();
        vm.pmaps.counts(pin).tables_made.add(1);
        let running = self.active.snapshot();
        if !running.is_empty() {
            tlb::reload(vm, &running);
        }
        Ok(new)
    }

    pub(super) fn count_made<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin) {
        self.tables.fetch_add(1, Relaxed);
        vm.pmaps.counts(pin).tables_made.add(1);
    }

    /// The first level-1 table, or leaf of 2 MiB, with addresses in `va..end`, and the first of these addresses. Takes
    /// no lock: a table may be dead, and a leaf a table, before the caller has the lock under which it changes them.
    ///
    /// A table that is linked while this runs may be missed. Its link is followed by a full barrier and then by the
    /// check of the operation that made it. So if the caller first changed the state that is checked, and then put a
    /// full fence before this call, the tables that it misses are used only by operations whose check fails.
    // In loops over many pages, it would take registers that the loop needs.
    #[inline(never)]
    pub(super) fn next_leaf<'a, M: Machine>(
        &self,
        vm: &'a Vm<M>,
        _pin: &'a CpuPin,
        mut va: u64,
        end: u64,
    ) -> Option<(Mapper<'a>, u64)> {
        if va >= end {
            return None;
        }
        // While one entry covers the whole range there is nothing to search.
        let (mut pfn, mut top) = (self.root()?, ROOT_LEVEL);
        while (va ^ (end - 1)) >> entry_shift(top) == 0 {
            let pte = Pte(vm.machine.table_words(pfn)[slot(va, top)].load(SeqCst));
            if !pte.is_table() {
                return pte.is_large().then_some((Mapper::Large(pte), va));
            }
            (pfn, top) = (pte.pfn(), top - 1);
            if top == 1 {
                return Some((Mapper::Table(Table::at(vm, pfn)), va));
            }
        }
        let root = Table::at(vm, pfn);
        let (mut table, mut level) = (root, top);
        while va < end {
            let shift = entry_shift(level);
            let from = slot(va, level);
            // One beyond the last slot of this table that the range touches.
            let to = ENTRIES.min(from + (((end - 1) >> shift) - (va >> shift)) as usize + 1);
            let Some(at) = table.next(from, to) else {
                if level == top {
                    return None;
                }
                va = (va | ((1 << entry_shift(level + 1)) - 1)) + 1;
                (table, level) = (root, top);
                continue;
            };
            if at > from {
                va = ((va >> shift) + (at - from) as u64) << shift;
            }
            let pte = table.get(at);
            if !pte.is_table() {
                if pte.is_large() {
                    return Some((Mapper::Large(pte), va));
                }
                continue;
            }
            table = Table::at(vm, pte.pfn());
            level -= 1;
            if level == 1 {
                return Some((Mapper::Table(table), va));
            }
        }
        None
    }

    /// The first mapped pages in `va..end`. A hint: takes no lock.
    pub fn mapped_from<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        mut va: u64,
        end: u64,
    ) -> Option<Mapped> {
        loop {
            let (mapper, at) = self.next_leaf(vm, pin, va, end)?;
            let from = slot(at, 1);
            let to = ENTRIES.min(from + ((end - at) / PAGE_SIZE as u64) as usize);
            let first = match &mapper {
                Mapper::Table(table) => table.next(from, to),
                Mapper::Large(_) => Some(from),
            };
            if let Some(first) = first {
                let pages = AROUND.min(to - first);
                let mapped = |n: &usize| match &mapper {
                    Mapper::Table(table) => {
                        let pte = table.get(first + n);
                        pte.is_present() || pte.is_frozen()
                    }
                    Mapper::Large(_) => true,
                };
                let bits = (0..pages).filter(mapped).map(|n| 1 << n).sum();
                return Some(Mapped {
                    va: at + ((first - from) * PAGE_SIZE) as u64,
                    pages,
                    bits,
                });
            }
            va = (at | ((1 << entry_shift(2)) - 1)) + 1;
        }
    }

    /// Unlinks the empty tables around `va`, bottom up from those that tables of level `from` lead to, but never the
    /// root. *After* that the caller records `va` in a gather, which makes every CPU drop the cached upper levels of its
    /// path, and passes the frames to the gather.
    #[cold]
    #[must_use = "cached upper levels lead to the frames until they are invalidated"]
    pub(super) fn prune<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        from: u8,
    ) -> FrameList {
        let mut unlinked = FrameList::EMPTY;
        for level in from..=ROOT_LEVEL {
            let Some(parent) = self.table_at(vm, pin, va, level) else {
                break;
            };
            let at = slot(va, level);
            let upper = parent.lock_directory();
            let pte = parent.get(at);
            if parent.is_dead() || !pte.is_present() || pte.is_large() {
                break;
            }
            let child = Table::at(vm, pte.pfn());
            if !child.kill_if_empty(level - 1) {
                break;
            }
            parent.clear(at);
            let go_on = parent.shrink(1);
            // Under the lock, so that a release that does not find the table does not find it counted either.
            self.tables.fetch_sub(1, Relaxed);
            drop(upper);
            vm.pmaps.counts(pin).tables_pruned.add(1);
            unlinked.push(vm.pages, child.pfn);
            if !go_on {
                break;
            }
        }
        unlinked
    }

    /// Number of entries in all level-1 tables, by the tables' own counts, and of pages that leaves of 2 MiB map: the
    /// resident pages. A snapshot while other threads fault.
    pub fn resident<M: Machine>(&self, vm: &Vm<M>) -> usize {
        let (mut pages, mut va) = (0, 0);
        loop {
            let pin = ksync::pin();
            let Some((mapper, at)) = self.next_leaf(vm, &pin, va, USER_END) else {
                return pages;
            };
            pages += match mapper {
                Mapper::Table(table) => table.live(),
                Mapper::Large(_) => ENTRIES,
            };
            va = (at | ((1 << entry_shift(2)) - 1)) + 1;
        }
    }
}

/// A run of neighbouring pages, of which some are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Address of the first one.
    pub va: u64,
    /// Number of pages: up to [`AROUND`], in one table.
    pub pages: usize,
    /// Bit n is set if page n of the run is mapped.
    pub bits: u32,
}

impl Table<'_> {
    /// Marks the table, of this level, dead if it is empty and not dead yet, under its own lock. Returns whether it did: then the
    /// caller unlinks it. The caller holds the lock of the table above.
    fn kill_if_empty(&self, level: u8) -> bool {
        let kill = || {
            let empty = self.live() == 0 && !self.is_dead();
            if empty {
                self.set_dead();
            }
            empty
        };
        if level == 1 {
            let _guard = self.lock_leaf();
            kill()
        } else {
            let _guard = self.lock_lower_directory();
            kill()
        }
    }
}

/// A new table that the caller owns: empty, or a copy of the empty root.
pub(super) fn alloc_table<M: Machine>(
    vm: &Vm<M>,
    pin: &CpuPin,
    template: Option<Pfn>,
) -> Result<Pfn, NoMemory> {
    let pfn = vm.alloc.alloc(pin, Rights::Table)?;
    vm.pages.get(pfn).init_flags(State::Table, Flags::empty());
    vm.machine.fill_table(pfn, template);
    Table::at(vm, pfn).init();
    Ok(pfn)
}

/// Frees a table that was never linked.
pub(super) fn free_table<M: Machine>(vm: &Vm<M>, pin: &CpuPin, pfn: Pfn) {
    vm.alloc.free(pin, pfn);
}
