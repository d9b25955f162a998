//! Leaves of 2 MiB: made of a table or filled at once, divided, restricted and removed.
//!
//! *Guarantees.* Promotion and demotion change no translation, and lose neither A nor D. A promotion that finds the 512
//! entries in disagreement changes nothing. No operation but a fault needs memory: where there is none for a table, a
//! leaf is removed instead of divided, and faults bring its pages back.
//!
//! *Mechanism.* All of this happens under the directory's lock. Promotion freezes the entries one by one, so that scans,
//! which take no lock, wait; hardware marks no entry that is not present. A leaf with W has D from its first moment, so
//! that no store through it has a mark to make; where a leaf is removed, A and D go to the pages *before* that, so that
//! a scan which finds the address empty finds the marks. `doc/vm-superpages.md` has the time lines.
//!
//! No leaf is executable. Between a promotion or a demotion and its flush, a CPU may hold translations of both sizes of an
//! address, and many processors stop the machine where an instruction fetch finds both.

use core::ops::Range;

use ksync::CpuPin;
use ksync::atomic::Ordering::Relaxed;
use rust_alloc::sync::Arc;

use super::pte::Pte;
use super::range::{Harvest, Looked, Revoke, SPAN};
use super::table::{ENTRIES, Table, slot, table_base};
use super::walk::{Leaf, alloc_table, free_table};
use super::{Loss, Pmap};
use crate::page::{Flags, PAGE_SHIFT, Pfn};
use crate::rmap::{self, Blocked, Held, Map, ReverseMap, Scan, Sought, Visit};
use crate::tlb::{Gather, ScanGather};
use crate::{Machine, NoMemory, Vm};

/// What a leaf and the entries that it stands for may differ in.
const MARKS: u64 = Pte::A | Pte::D;

impl Pmap {
    /// [`promote_as`](Pmap::promote_as) for private memory.
    pub fn promote<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64) -> bool {
        self.promote_as(vm, pin, va, false)
    }

    /// As [`promote_as`](Pmap::promote_as), if the table around `va` is full and some of its entries agree with that of `va`: for faults
    /// of which many may ask in vain.
    #[cold]
    pub fn promote_alike<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        shared: bool,
    ) -> bool {
        // A leaf of 2 MiB is no table.
        let Ok(Leaf { table, .. }) = self.walk(vm, pin, va) else {
            return false;
        };
        let at = slot(va, 1);
        let here = table.get(at).without(MARKS);
        let first = Pte(here.0.wrapping_sub((at as u64) << PAGE_SHIFT));
        let agrees = |n| table.get(n).without(MARKS) == first.piece(n);
        // The ends first: a program that goes through the block has not come to one of them.
        let mut some = [ENTRIES - 1, 0]
            .into_iter()
            .chain((1..8).map(|n| n * ENTRIES / 8));
        table.live() == ENTRIES
            && here.is_present()
            && some.all(agrees)
            && self.promote_as(vm, pin, va, shared)
    }

    /// [`promote_alike`](Pmap::promote_alike) for each table all of whose addresses are in the range. Preemptible between them.
    pub fn promote_alike_in<M: Machine>(&self, vm: &Vm<M>, range: Range<u64>, shared: bool) {
        let mut at = range.start;
        while at < range.end {
            let pin = ksync::pin();
            let Some((_, found)) = self.next_leaf(vm, &pin, at, range.end) else {
                return;
            };
            let span = span_of(found);
            if span.start >= range.start && span.end <= range.end {
                self.promote_alike(vm, &pin, span.start, shared);
            }
            at = span.end;
        }
    }

    /// Replaces the 512 entries around `va` by one leaf of 2 MiB, if they map the frames of an aligned run in order, with
    /// the same rights, and not for execution. Returns whether it did. The caller holds no lock. `shared` says whether it is shared
    /// memory, or a file's, for counts.
    ///
    /// CPUs may use the old translations, which agree with the leaf, until this has flushed everything of the pmap. It is
    /// listed meanwhile, so an operation that takes the leaf away earlier flushes everything, too.
    pub fn promote_as<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64, shared: bool) -> bool {
        let span = span_of(va);
        let Some(directory) = self.table_at(vm, pin, va, 2) else {
            return false;
        };
        let mut gather = Gather::new();
        gather.over(self, span, Loss::Rights);
        let replaced = self.replace_table(vm, &directory, va, |table, link| {
            if table.live() != ENTRIES {
                return None;
            }
            let mut leaf = table.freeze()?;
            if !link.is_writable() {
                leaf = leaf.without(Pte::W);
            }
            if leaf.is_writable() {
                leaf = leaf.dirtied();
            }
            gather.record_all(self);
            Some(leaf.with(if shared { Pte::SHARED } else { 0 }))
        });
        let Some(table) = replaced else {
            return false;
        };
        gather.free_later(vm, table);
        gather.finish(vm);
        let counts = vm.stats.get(pin);
        counts.promotions.add(1);
        counts.shared_leaves_made.add(u64::from(shared));
        true
    }

    /// Puts a leaf into the place of the table around `va`, if there is one and `leaf` returns a leaf for it. `leaf` is called with
    /// the table, whose lock is held, and the link to it; it records the flush, and leaves or makes the table's count not zero.
    /// Returns the table.
    fn replace_table<M: Machine>(
        &self,
        vm: &Vm<M>,
        directory: &Table,
        va: u64,
        leaf: impl FnOnce(&Table, Pte) -> Option<Pte>,
    ) -> Option<Pfn> {
        let at = slot(va, 2);
        let _upper = directory.lock_directory();
        let link = directory.get(at);
        if directory.is_dead() || !link.is_table() {
            return None;
        }
        let table = Table::at(vm, link.pfn());
        let _guard = table.lock_leaf();
        debug_assert!(
            !table.is_dead(),
            "a table dies and leaves its directory in one hold of that lock"
        );
        let leaf = leaf(&table, link)?;
        table.set_dead();
        directory.put(at, leaf);
        // Under the lock: see `prune`.
        self.tables.fetch_sub(1, Relaxed);
        Some(table.pfn)
    }

    /// Enters a leaf of 2 MiB around `va`, for a run whose 512 pages the caller holds busy, where nothing is mapped. `check` is
    /// as for [`enter`](Pmap::enter). Returns whether it did; else nothing has changed, but for tables that were missing. False
    /// also where a translation of another frame may be cached, or there is no memory for a table. The caller holds no lock.
    ///
    /// An operation that takes pages away takes no lock where it finds no table. So the leaf takes the place of an empty table
    /// of level 1, which is made if it is missing: an operation that misses the table has changed what `check` sees.
    pub fn enter_large<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        check: impl FnOnce() -> bool,
    ) -> bool {
        let span = span_of(va);
        match self.locked_leaf(vm, pin, va, leaf) {
            Ok((_table, guard)) => drop(guard),
            Err(_) => return false,
        }
        let Some(directory) = self.table_at(vm, pin, va, 2) else {
            return false;
        };
        let mut gather = Gather::new();
        gather.over(self, span.clone(), Loss::Rights);
        let replaced = self.replace_table(vm, &directory, va, |table, _| {
            let empty = table.live() == 0 && check();
            if !empty || self.is_frame_due(span.start, span.end) {
                return None;
            }
            // CPUs may have the way to the table cached, and nothing else.
            gather.record(self, span.start);
            // Counted full, so that an operation that waits for its lock looks at the address again.
            table.grow_many(0, ENTRIES);
            Some(leaf)
        });
        let Some(table) = replaced else {
            return false;
        };
        gather.free_later(vm, table);
        gather.finish(vm);
        let counts = vm.stats.get(pin);
        counts.leaves_filled.add(1);
        counts
            .shared_leaves_made
            .add(u64::from(leaf.any(Pte::SHARED)));
        true
    }

    /// Makes a table of the leaf of 2 MiB around `va`, if there is one, with entries that say what the leaf says. Nothing
    /// is flushed: one invalidated address drops a translation of either size. When this returns something else may be
    /// there already. The caller holds no table's lock.
    ///
    /// # Errors
    /// No memory for the table; nothing has changed then.
    pub fn demote<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64) -> Result<(), NoMemory> {
        let Some(directory) = self.table_at(vm, pin, va, 2) else {
            return Ok(());
        };
        let at = slot(va, 2);
        if !directory.get(at).is_large() {
            return Ok(());
        }
        let new = alloc_table(vm, pin, None)?;
        let table = Table::at(vm, new);
        table.grow_many(0, ENTRIES);
        let guard = directory.lock_directory();
        let mut leaf = directory.get(at);
        while leaf.is_large() && !directory.is_dead() {
            for n in 0..ENTRIES {
                table.put(n, leaf.piece(n));
            }
            // Hardware may set A meanwhile, and a scan clear it.
            match directory.compare_exchange(at, leaf, Pte::directory(new)) {
                Ok(()) => {
                    // As after `link`: the check of the fault that divides the leaf comes later.
                    ksync::fence_after_rmw();
                    self.count_made(vm, pin);
                    let counts = vm.stats.get(pin);
                    counts.demotions.add(1);
                    counts
                        .shared_leaves_gone
                        .add(u64::from(leaf.any(Pte::SHARED)));
                    return Ok(());
                }
                Err(now) => leaf = now,
            }
        }
        drop(guard);
        free_table(vm, pin, new);
        Ok(())
    }

    /// Removes the whole leaf of 2 MiB at `base`.
    pub(super) fn remove_large<'p, M: Machine, H: Harvest>(
        &'p self,
        vm: &Vm<M>,
        pin: &CpuPin,
        base: u64,
        gather: &mut Gather<'p>,
        harvest: &mut H,
    ) -> Looked {
        let taken = self.take_large(vm, pin, base, None, |leaf| {
            gather.record(self, base);
            if H::WANTED && leaf.is_managed() && leaf.any(MARKS) {
                pieces(leaf).for_each(|pte| harvest.take(pte.pfn(), pte));
            }
            true
        });
        self.looked(vm, pin, base, taken, gather)
    }

    /// Divides the leaf of 2 MiB around `va`, of which an operation changes a part. Without memory removes it; where a
    /// promotion has not flushed yet, one address is not enough for that, and the operation finds it in the list at its
    /// end.
    #[cold]
    pub(super) fn divide<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        gather: &mut Gather<'p>,
    ) -> Looked {
        if self.demote(vm, pin, va).is_ok() {
            return Looked::Again;
        }
        let span = span_of(va);
        let taken = self.take_large(vm, pin, va, None, |leaf| {
            // Listed first, and then widened: the operation's own range is smaller.
            gather.record(self, span.start);
            gather.over(self, span.clone(), Loss::Frames);
            mark_pages(vm, leaf);
            true
        });
        self.looked(vm, pin, span.start, taken, gather)
    }

    /// The answer for a leaf at `base` that was taken out; unlinks the directories that are empty without it.
    fn looked<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pin: &CpuPin,
        base: u64,
        taken: Result<Option<Taken>, Blocked>,
        gather: &mut Gather<'p>,
    ) -> Looked {
        let taken = match taken {
            Ok(Some(taken)) => taken,
            Ok(None) => return Looked::Again,
            Err(blocked) => return Looked::Blocked(blocked),
        };
        if taken.emptied {
            // The address that was recorded lies on the path of each.
            gather.free_list_later(vm, self.prune(vm, pin, base, 3));
        }
        Looked::Done
    }

    /// Divides the leaf around `va`, which stands for `pte` there, for a scan; the scan looks again. Without memory removes it,
    /// or puts it off if the gather says so, and returns the scan's answer. `sought` says whether the scan holds the list of the
    /// page, and unlists it.
    ///
    /// # Errors
    /// There is no memory, and the list of another page of the leaf is held.
    #[cold]
    pub(super) fn divide_for_scan<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        (pte, sought): (Pte, Sought),
        gather: &mut ScanGather,
    ) -> Result<Option<(Scan, Visit)>, Blocked> {
        if gather.put_off(self, va, pte) {
            return Ok(Some((Scan::Absent, Visit::Keep)));
        }
        if self.demote(vm, pin, va).is_ok() {
            return Ok(None);
        }
        let span = span_of(va);
        let mut listed = false;
        let taken = self.take_large(vm, pin, va, sought.held(), |leaf| {
            if leaf.piece(slot(va, 1)).pfn() != pte.pfn() {
                return false;
            }
            if !listed {
                gather.record_leaf(self, &span, Loss::Frames);
                listed = true;
            }
            mark_pages(vm, leaf);
            true
        });
        let Some(taken) = taken? else {
            return Ok(None);
        };
        // Where a promotion has not flushed yet, one address is not enough for the neighbours.
        gather.flush_pending(self, &span);
        if taken.emptied {
            gather.free_list_later(vm, self.prune(vm, pin, span.start, 3));
        }
        Ok(Some((Scan::Found(pte), Visit::Gone)))
    }

    /// Divides the leaf around `va` for a scan that has [put it off](ScanGather::put_off), and holds no lock now, nor its page's
    /// list. Returns whether it was removed instead.
    pub(crate) fn divide_unlocked<M: Machine>(
        self: &Arc<Pmap>,
        vm: &Vm<M>,
        va: u64,
        pte: Pte,
    ) -> bool {
        let (sought, mut gather) = (Sought::Held(pte.pfn()), ScanGather::new());
        let divided = self.divide_for_scan(vm, &ksync::pin(), va, (pte, sought), &mut gather);
        gather.finish(vm);
        divided.is_ok_and(|removed| removed.is_some())
    }

    /// Takes the leaf of 2 MiB around `va` out, unless something else is there by now, or `prepare` refuses. `prepare` is
    /// called with the leaf before it is gone, perhaps several times; it lists the flush and marks the pages. The lists of
    /// all pages are held meanwhile, but for that of `but`, a scan's page, whose list the caller holds.
    ///
    /// # Errors
    /// A list is held. The leaf stays.
    fn take_large<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        but: Option<Pfn>,
        mut prepare: impl FnMut(Pte) -> bool,
    ) -> Result<Option<Taken>, Blocked> {
        let Some(directory) = self.table_at(vm, pin, va, 2) else {
            return Ok(None);
        };
        let at = slot(va, 2);
        let _guard = directory.lock_directory();
        let mut held = Held::nothing();
        // Its frames do not change under the lock.
        if Map::PER_PAGE && directory.get(at).is_large() {
            let base = table_base(va, 1);
            held = rmap::leave_run(vm, self, directory.get(at), base, but)?;
        }
        loop {
            let leaf = directory.get(at);
            if directory.is_dead() || !leaf.is_large() || !prepare(leaf) {
                held.undo();
                return Ok(None);
            }
            if directory.compare_exchange(at, leaf, Pte::EMPTY).is_ok() {
                held.done();
                let counts = vm.stats.get(pin);
                counts.leaves_removed.add(1);
                counts
                    .shared_leaves_gone
                    .add(u64::from(leaf.any(Pte::SHARED)));
                let emptied = directory.shrink(1);
                return Ok(Some(Taken { emptied }));
            }
        }
    }

    /// Withdraws rights from the whole leaf of 2 MiB at `base`.
    pub(super) fn protect_large<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pin: &CpuPin,
        base: u64,
        revoke: Revoke,
        gather: &mut Gather<'p>,
    ) -> Looked {
        let Some(directory) = self.table_at(vm, pin, base, 2) else {
            return Looked::Again;
        };
        let at = slot(base, 2);
        let _guard = directory.lock_directory();
        loop {
            let leaf = directory.get(at);
            // A dead directory has none, or its pmap was released, and no CPU reads it.
            if !leaf.is_large() {
                return Looked::Again;
            }
            gather.record(self, base);
            let restricted = revoke.applied(leaf);
            if directory.compare_exchange(at, leaf, restricted).is_ok() {
                return Looked::Done;
            }
        }
    }

    /// `scan_test_clear_accessed` at a leaf of 2 MiB, as read. All 512 pages report its A; one of them, which depends on
    /// the address, clears it: else a round over the pages would always find the first one alone in use.
    #[cold]
    pub(super) fn test_clear_large<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        leaf: Pte,
        pfn: Pfn,
    ) -> bool {
        let (n, at) = (slot(va, 1), slot(va, 2));
        let ours = leaf.piece(n).pfn() == pfn && leaf.is_accessed();
        if ours
            && n == at
            && let Some(directory) = self.table_at(vm, pin, va, 2)
        {
            // Without the lock: those that hold it change a leaf by compare-and-swap, too.
            let _changed = directory.compare_exchange(at, leaf, leaf.without(Pte::A));
        }
        ours
    }
}

/// A leaf that was taken out.
struct Taken {
    /// Whether its directory may be empty.
    emptied: bool,
}

impl Table<'_> {
    /// Freezes all entries of this level-1 table and returns the leaf that says what they say, with A and D if one of them
    /// has it. `None`, with all entries as they were, if they do not map an aligned run, in order, with the same rights,
    /// or if code may be fetched through them: see the module. The caller holds the lock.
    fn freeze(&self) -> Option<Pte> {
        let first = self.get(0).without(MARKS);
        let fits = first.is_present() && first.pfn().index().is_multiple_of(ENTRIES);
        if !fits || first.is_executable() {
            return None;
        }
        let mut leaf = first.with(Pte::PS);
        for n in 0..ENTRIES {
            let Some(pte) = self.freeze_entry(n, first.piece(n)) else {
                (0..n).for_each(|n| self.put(n, self.get(n).thawed()));
                return None;
            };
            leaf = leaf.with(pte.0 & MARKS);
        }
        Some(leaf)
    }

    /// Freezes one entry, if it says the same as `wanted`, and returns it.
    fn freeze_entry(&self, n: usize, wanted: Pte) -> Option<Pte> {
        let mut pte = self.get(n);
        while pte.without(MARKS) == wanted {
            match self.compare_exchange(n, pte, pte.frozen()) {
                Ok(()) => return Some(pte),
                Err(now) => pte = now,
            }
        }
        None
    }
}

/// The addresses of the leaf of 2 MiB around `va`.
fn span_of(va: u64) -> Range<u64> {
    let base = table_base(va, 1);
    base..base + SPAN
}

/// The entries that a leaf stands for.
fn pieces(leaf: Pte) -> impl Iterator<Item = Pte> {
    (0..ENTRIES).map(move |n| leaf.piece(n))
}

/// Hands A and D of a leaf on to its pages.
fn mark_pages<M: Machine>(vm: &Vm<M>, leaf: Pte) {
    if !leaf.is_managed() {
        return;
    }
    for page in pieces(leaf).map(|pte| vm.pages.get(pte.pfn())) {
        if leaf.is_dirty() {
            page.set_flag(Flags::DIRTY);
        }
        if leaf.is_accessed() {
            page.set_flag(Flags::REFERENCED);
        }
    }
}
