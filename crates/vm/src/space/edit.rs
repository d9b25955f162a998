//! Changing the tree of a map.
//!
//! Every change has three steps: build the new entries (may fail, and then changes nothing); [commit](Locked::commit)
//! them (the old entries are marked dead and leave the tree, the new ones enter it); and, after the page tables have
//! been brought up to date, end the old entries' use of their layers.

use ksync::MutexGuard;
use rust_alloc::sync::Arc;
use smallvec::{SmallVec, smallvec};

use super::{Space, VmError};
use crate::backing::{Chain, LONGEST};
use crate::map::{EntryArgs, EntryFlags, Extent, MAX_ENTRIES, MapEntry, MapLock, Prot, Tree};
use crate::page::PAGE_SHIFT;
use crate::tlb::Gather;
use crate::{Machine, Vm};

/// The entries that one change concerns: few, as a rule.
pub(crate) type Entries = SmallVec<[Arc<MapEntry>; 4]>;

/// State that the map's lock guards, besides changes of the tree.
pub(super) struct MapState {
    low: u64,
    high: u64,
    mmap_base: u64,
    /// Number of pages mapped.
    pages: u64,
    /// Cleared: the page tables are gone for good.
    closed: bool,
}

/// Number of pages of the entries.
fn pages(entries: &[Arc<MapEntry>]) -> u64 {
    let of = |entry: &Arc<MapEntry>| (entry.end() - entry.start()) >> PAGE_SHIFT;
    entries.iter().map(of).sum()
}

impl MapState {
    pub(super) fn new(low: u64, high: u64) -> MapState {
        MapState {
            low,
            high,
            mmap_base: high,
            pages: 0,
            closed: false,
        }
    }
}

/// A map whose lock is held.
pub(crate) struct Locked<'s> {
    space: &'s Space,
    state: MutexGuard<'s, MapState, MapLock>,
}

/// A change that is ready to be committed.
pub(super) struct Edit {
    /// The entries that overlap the range; the commit removes them.
    pub(super) old: Entries,
    /// The entries that the commit puts in their place.
    pub(super) new: Entries,
}

/// Changes of up to this many entries are made without a check of free memory.
const FEW: usize = 64;
/// Entries that a large change builds between two checks of free memory.
const STRIDE: usize = 16;
/// Entries that a change removes between two calls of [`Vm::let_retired_go`]: as many as two pages of the epoch's lists
/// hold.
const RETIRED: usize = 512;
/// Bytes that a copy of an entry takes at most, with its node of the tree and its layers, in nearly all cases.
const ENTRY_BYTES: usize = 1024;

/// Whether enough memory is free for copies of `entries` entries. Asked before a change, because an allocation in the
/// middle of one must not fail.
pub(super) fn affordable<M: Machine>(vm: &Vm<M>, entries: usize) -> bool {
    entries <= FEW || vm.alloc.spare_pages() > (entries * ENTRY_BYTES) >> PAGE_SHIFT
}

/// Whether a change of many entries, of which `made` are built, should be given up because memory is short. The check
/// at its beginning may be out of date, and allocations that must not fail would then come out of the reserve.
pub(super) fn is_short<M: Machine>(vm: &Vm<M>, made: usize) -> bool {
    made >= FEW && made.is_multiple_of(STRIDE) && vm.alloc.low_memory()
}

/// Called after each removal of an entry by a change; frees retired entries after every [`RETIRED`] of them if memory
/// is short.
fn breathe<M: Machine>(vm: &Vm<M>, gone: usize) {
    if (gone + 1).is_multiple_of(RETIRED) {
        vm.let_retired_go();
    }
}

impl<'s> Locked<'s> {
    pub(super) fn new(space: &'s Space, state: MutexGuard<'s, MapState, MapLock>) -> Locked<'s> {
        Locked { space, state }
    }

    /// The tree, whose changes the lock guards. The reference to the guarded state compiles to nothing; with it a model
    /// checker reports a call without the lock.
    pub(crate) fn tree(&self) -> &Tree<MapEntry> {
        let _guarded: &MapState = &self.state;
        &self.space.tree
    }

    pub(crate) fn find(&self, va: u64) -> Option<Arc<MapEntry>> {
        self.tree().get(va)
    }

    pub(crate) fn low(&self) -> u64 {
        self.state.low
    }

    pub(super) fn high(&self) -> u64 {
        self.state.high
    }

    pub(super) fn mmap_base(&self) -> u64 {
        self.state.mmap_base
    }

    pub(super) fn set_mmap_base(&mut self, base: u64) {
        self.state.mmap_base = base.clamp(self.state.low, self.state.high);
    }

    /// Whether the space was cleared, so that nothing can be mapped any more.
    pub(super) fn is_closed(&self) -> bool {
        self.state.closed
    }

    /// Number of pages mapped.
    pub(crate) fn pages(&self) -> u64 {
        self.state.pages
    }

    /// Number of pages of locked mappings. Walks all entries.
    pub(crate) fn locked_pages(&self) -> u64 {
        let mut sum = 0;
        self.tree().for_overlapping(0, u64::MAX, &mut |entry| {
            sum += entry.locked_pages();
            true
        });
        sum
    }

    /// An empty state with the same bounds, for the child of a fork.
    pub(super) fn empty_like(&self) -> MapState {
        MapState {
            pages: 0,
            ..*self.state
        }
    }

    /// Empties the map for good. The caller then releases the pmap, and after that ends the entries' use of layers.
    ///
    /// The entries are not marked dead. A fault that another process makes in this space, and that has already found an
    /// entry, either enters its page into a table that the release frees, or finds the pmap released, starts again and
    /// finds no entry.
    pub(super) fn take_all<M: Machine>(&mut self, vm: &Vm<M>) -> Tree<MapEntry> {
        self.state.pages = 0;
        self.state.closed = true;
        self.tree().take(&vm.epoch)
    }

    /// The entries that overlap a range.
    ///
    /// # Errors
    /// `NoMemory`: too little memory is free for the list, or for a change of so many entries.
    pub(super) fn overlapping<M: Machine>(
        &self,
        vm: &Vm<M>,
        start: u64,
        end: u64,
    ) -> Result<Entries, VmError> {
        let mut found = Entries::new();
        let mut room = true;
        self.tree().collect(start, end, &mut |entry| {
            room = room && found.try_reserve(1).is_ok();
            if room {
                found.push(entry);
            }
        });
        if room && affordable(vm, found.len()) {
            Ok(found)
        } else {
            Err(VmError::NoMemory)
        }
    }

    /// Checks that `more` entries may be added.
    ///
    /// # Errors
    /// `NoMemory`: the map would have more than [`MAX_ENTRIES`].
    pub(crate) fn admit_more(&self, more: usize) -> Result<(), VmError> {
        if self.tree().len() + more <= MAX_ENTRIES {
            Ok(())
        } else {
            Err(VmError::NoMemory)
        }
    }

    /// Checks that `more` entries may be added after an edit.
    ///
    /// # Errors
    /// `NoMemory`: the map would have more than [`MAX_ENTRIES`].
    pub(super) fn admit(&self, edit: &Edit, more: usize) -> Result<(), VmError> {
        if self.tree().len() + edit.new.len() + more - edit.old.len() <= MAX_ENTRIES {
            Ok(())
        } else {
            Err(VmError::NoMemory)
        }
    }

    /// Whether every address of a range is mapped.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        self.tree().for_overlapping(start, end, &mut |entry| {
            let next = entry.start() <= at;
            at = if next { entry.end() } else { at };
            next
        });
        at >= end
    }

    /// Whether no address of a range is mapped or in a guard gap.
    pub(super) fn is_free(&self, start: u64, end: u64) -> bool {
        self.tree()
            .first_ending_above(start)
            .is_none_or(|entry| entry.low() >= end)
    }

    /// As `is_free`, but guard gaps count as free.
    pub(super) fn is_unused(&self, start: u64, end: u64) -> bool {
        self.tree()
            .first_ending_above(start)
            .is_none_or(|entry| entry.start() >= end)
    }

    /// Ends the use of layers by new entries that will not be committed.
    pub(super) fn give_up<M: Machine>(vm: &Vm<M>, new: &Entries) {
        new.iter().for_each(|entry| entry.end_shared(vm));
    }

    /// Prepares to replace `start..end`. Parts of entries outside the range are kept, clipped; for each part inside,
    /// `middle` returns the entry that replaces it, if any.
    ///
    /// # Errors
    /// `NoMemory`: memory is short, or there would be too many entries. The map is as before, and the new entries' uses of
    /// layers have ended.
    pub(super) fn cut<M: Machine>(
        &self,
        vm: &Vm<M>,
        (start, end): (u64, u64),
        mut middle: impl FnMut(&Arc<MapEntry>, EntryArgs) -> Option<Arc<MapEntry>>,
    ) -> Result<Edit, VmError> {
        let old = self.overlapping(vm, start, end)?;
        let mut new = Entries::new();
        let below = old.first().filter(|entry| entry.start() < start);
        let above = old.last().filter(|entry| entry.end() > end);
        if below
            .into_iter()
            .chain(above)
            .any(|entry| entry.is_special())
        {
            return Err(VmError::Invalid);
        }
        let clipped = usize::from(below.is_some()) + usize::from(above.is_some());
        new.try_reserve(old.len() + clipped)
            .map_err(|_| VmError::NoMemory)?;
        for entry in &old {
            if is_short(vm, new.len()) {
                Locked::give_up(vm, &new);
                return Err(VmError::NoMemory);
            }
            let args = entry.args();
            if args.start < start {
                new.push(entry.part(EntryArgs { end: start, ..args }));
            }
            let inside = EntryArgs {
                start: args.start.max(start),
                end: args.end.min(end),
                ..args
            };
            new.extend(middle(entry, inside));
            if args.end > end {
                new.push(entry.part(EntryArgs { start: end, ..args }));
            }
        }
        let edit = Edit { old, new };
        // A change that does not add entries is allowed however many there are.
        if edit.new.len() > edit.old.len()
            && let Err(why) = self.admit(&edit, 0)
        {
            Locked::give_up(vm, &edit.new);
            return Err(why);
        }
        Ok(edit)
    }

    /// Makes a change visible; cannot fail. If it is long and memory is short, may sleep. Faults that saw the old entries
    /// start again. Both lists ascend; a new entry that begins where an old one does replaces it in one step, so that faults
    /// never find it unmapped in between.
    pub(super) fn commit<M: Machine>(&mut self, vm: &Vm<M>, old: &Entries, new: Entries) {
        let (epoch, tree) = (&vm.epoch, &self.space.tree);
        for entry in old {
            entry.kill();
        }
        self.state.pages = self.state.pages + pages(&new) - pages(old);
        if tree.is_empty() {
            return tree.fill(epoch, &new);
        }
        let stays = |entry: &MapEntry, among: &Entries| {
            among
                .binary_search_by_key(&entry.start(), |other| other.start())
                .is_ok()
        };
        for (gone, entry) in old.iter().filter(|old| !stays(old, &new)).enumerate() {
            tree.remove(epoch, entry.start());
            breathe(vm, gone);
        }
        for (gone, entry) in new.into_iter().enumerate() {
            if stays(&entry, old) {
                tree.replace(epoch, entry);
            } else {
                tree.insert(epoch, entry);
            }
            breathe(vm, gone);
        }
    }

    /// Adds entries, ascending, where nothing is mapped.
    pub(crate) fn insert<M: Machine>(&mut self, vm: &Vm<M>, new: Entries) {
        self.commit(vm, &Entries::new(), new);
    }

    /// Adds an entry where nothing is mapped, and merges it with its neighbours where possible.
    #[inline(always)]
    pub(super) fn insert_one<M: Machine>(&mut self, vm: &Vm<M>, new: Arc<MapEntry>) {
        let (start, end) = (new.start(), new.end());
        self.state.pages += (end - start) >> PAGE_SHIFT;
        let (below, above) = self.tree().insert(&vm.epoch, new);
        if above {
            self.merge_at(vm, end);
        }
        if below {
            self.merge_at(vm, start);
        }
    }

    /// Replaces an entry by one with other bounds over the same layers.
    pub(crate) fn replace_one<M: Machine>(
        &mut self,
        vm: &Vm<M>,
        entry: &Arc<MapEntry>,
        args: EntryArgs,
    ) {
        let old = smallvec![entry.clone()];
        self.commit(vm, &old, smallvec![entry.part(args)]);
        entry.end_shared(vm);
    }

    /// Unmaps a range: nothing in it is accessible when this returns. Flushes once. Nothing need be mapped there.
    ///
    /// # Errors
    /// As for [`cut`](Locked::cut); nothing has changed then.
    pub(super) fn unmap<M: Machine>(
        &mut self,
        vm: &Vm<M>,
        start: u64,
        end: u64,
    ) -> Result<(), VmError> {
        // The common case: the range is exactly one entry, and nothing takes its place.
        let whole = self
            .tree()
            .remove_exact(&vm.epoch, start, end, MapEntry::kill);
        if let Some(entry) = whole {
            self.state.pages -= (end - start) >> PAGE_SHIFT;
            if entry.may_be_entered() {
                self.remove_pages(vm, start, end);
                entry.end_chain(vm);
            }
            return Ok(());
        }
        let edit = self.cut(vm, (start, end), |_, _| None)?;
        if edit.old.is_empty() {
            return Ok(());
        }
        self.commit(vm, &edit.old, edit.new);
        self.remove_pages(vm, start, end);
        for entry in &edit.old {
            entry.end_part(vm, entry.start().max(start), entry.end().min(end));
        }
        Ok(())
    }

    /// Removes all page-table entries of a range, and flushes. The caller has changed the map before.
    pub(super) fn remove_pages<M: Machine>(&self, vm: &Vm<M>, start: u64, end: u64) {
        let mut gather = Gather::new();
        self.space.pmap().remove_range(vm, start, end, &mut gather);
        gather.finish(vm);
    }

    /// Merges the entries that meet at the bounds in `start..end`, up to the first gap, and at `end`, where possible. Stops
    /// early if there are many and memory is short.
    pub(super) fn merge_between<M: Machine>(&mut self, vm: &Vm<M>, start: u64, end: u64) {
        let (mut at, mut bounds) = (start, 0);
        while at < end {
            if is_short(vm, bounds) {
                return;
            }
            bounds += 1;
            self.merge_at(vm, at);
            match self.find(at) {
                Some(entry) => at = entry.end(),
                None => break,
            }
        }
        self.merge_at(vm, end);
    }

    /// Merges the entries that meet at `at`, if possible.
    fn merge_at<M: Machine>(&mut self, vm: &Vm<M>, at: u64) {
        let Some((left, right)) = self.tree().meeting(at) else {
            return;
        };
        let Some(donor) = donor(&left, &right) else {
            return;
        };
        let args = EntryArgs {
            start: left.start(),
            end: right.end(),
            ..left.args()
        };
        let new = smallvec![donor.part(args)];
        let old: Entries = smallvec![left, right];
        self.commit(vm, &old, new);
        for entry in &old {
            entry.end_shared(vm);
        }
    }
}

/// The one of two neighbours whose layers serve both, if they can be merged.
fn donor<'a>(left: &'a Arc<MapEntry>, right: &'a Arc<MapEntry>) -> Option<&'a Arc<MapEntry>> {
    let (a, b) = (left.args(), right.args());
    let alike = (a.prot, a.maxprot, a.flags) == (b.prot, b.maxprot, b.flags);
    if !alike || left.is_special() || left.state().needs_copy() != right.state().needs_copy() {
        return None;
    }
    let pin = ksync::pin();
    match (left.chain(&pin), right.chain(&pin)) {
        (None, None) => (b.end - a.start <= LONGEST).then_some(left),
        (Some(x), Some(y)) => x.same_layers(y).then_some(left),
        (Some(x), None) => can_extend(left, x, b.start, b.end).then_some(left),
        (None, Some(y)) => can_extend(right, y, a.start, a.end).then_some(right),
    }
}

/// Whether the layers of an entry can serve `start..end` as well: there is one layer, private and attached to this
/// space only, which has indexes for the range and no page in it.
fn can_extend(entry: &MapEntry, chain: &Chain, start: u64, end: u64) -> bool {
    let layer = chain.front();
    let simple = chain.layers().len() == 1 && layer.is_unbounded() && !entry.state().needs_copy();
    if !simple || entry.is_shared() || !layer.relation().holds(start, end) || !layer.is_own() {
        return false;
    }
    let (first, last) = layer.relation().indexes(start, end);
    layer.is_empty(first, last)
}

impl MapEntry {
    /// Whether tables may have entries of the mapping. A page that is entered lies in a layer, but for the special object's; and
    /// the first layer is made with the map's lock, which is held here.
    fn may_be_entered(&self) -> bool {
        !self.chain_slot().is_none() || self.is_special()
    }

    /// Number of its pages if it is locked, else 0.
    pub(super) fn locked_pages(&self) -> u64 {
        let locked = self.flags().contains(EntryFlags::LOCKED);
        if locked {
            (self.end() - self.start()) >> PAGE_SHIFT
        } else {
            0
        }
    }

    /// A new entry for a part of this one, with the contents that the mapping had when it was made: zeroes, or the
    /// file. A shared entry keeps its layers. The map's lock is held.
    pub(super) fn fresh(&self, args: EntryArgs) -> Arc<MapEntry> {
        if self.is_shared() {
            return self.part(args);
        }
        let file = {
            let pin = ksync::pin();
            self.chain(&pin).and_then(Chain::terminal_file).cloned()
        };
        let needs_copy = file.is_some();
        MapEntry::new(args, file.map(Chain::of), needs_copy)
    }
}

impl Space {
    /// Fills the empty map of a space that is not yet published. Returns false, with the map still empty, if that would
    /// take much memory and memory is short.
    pub(super) fn fill<M: Machine>(&mut self, vm: &Vm<M>, entries: &[Arc<MapEntry>]) -> bool {
        let (many, mut nodes) = (entries.len() > FEW, 0);
        let filled = self.tree.fill_while(&vm.epoch, entries, &mut || {
            nodes += usize::from(many);
            !is_short(vm, nodes)
        });
        if filled {
            self.map.get_mut().pages = pages(entries);
        }
        filled
    }

    /// Replaces each part of an entry in the range by one with the protection and flags that `change` returns; skips gaps,
    /// and leaves the page tables to the caller. Returns the accesses that all parts now allow.
    ///
    /// A special mapping is never locked, as in Linux; and where nothing changes, a part of one may be named.
    ///
    /// # Errors
    /// As for [`cut`](Locked::cut); nothing has changed then.
    pub(super) fn change<M: Machine>(
        map: &mut Locked<'_>,
        vm: &Vm<M>,
        range: (u64, u64),
        change: impl Fn(EntryArgs) -> EntryArgs,
    ) -> Result<Prot, VmError> {
        let change = |args| change(args).special_unlocked();
        let mut kept = Prot::all();
        let mut replaced = |entry: &Arc<MapEntry>, args| {
            let new = change(args);
            kept &= new.prot;
            Some(entry.part(new))
        };
        let edit = match map.cut(vm, range, &mut replaced) {
            Err(VmError::Invalid) => {
                let whole = map.with_whole_specials(range, &change);
                map.cut(vm, whole.ok_or(VmError::Invalid)?, &mut replaced)?
            }
            edit => edit?,
        };
        map.commit(vm, &edit.old, edit.new);
        for entry in &edit.old {
            entry.end_shared(vm);
        }
        Ok(kept)
    }
}
