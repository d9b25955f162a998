//! Layers of a mapping.
//!
//! Guarantee: while a page-table entry of a pmap maps a page of an object, the object's hub has a member that leads
//! from the page's index to the entry's address.
//!
//! Mechanism: a [`Backing`] is one layer of one mapping, and its membership in the object's hub is its reference on the
//! object. Entries that were clipped from one mapping share its backings; so the extent that a backing announces may be
//! larger than what is still mapped, never smaller. `uses` counts the chains that contain a backing; when the last use
//! ends, after its page-table entries were removed, the backing is detached.
//!
//! An index has 32 bits. All addresses of mappings that share a backing satisfy [`Relation::holds`], so that an index
//! stands for one address; and that address is announced only if it is a user address.

mod relation;

use core::ops::Range;

use ksync::CpuPin;
use ksync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use rust_alloc::sync::Arc;
use smallvec::{SmallVec, smallvec};

pub use self::relation::Relation;
use crate::alloc::NoMemory;
use crate::object::{Attachment, Next, Object, ObjectRef, Progress, Remainder, Swept};
use crate::page::PAGE_SIZE;
use crate::pmap::{Pmap, USER_END};
use crate::{Machine, Vm};

/// The longest range of private memory that one entry covers before it has an object: 4 TiB, so that indexes fit in 32
/// bits.
pub(crate) const LONGEST: u64 = 1 << 42;

/// An object's hub entry for a layer: enough to find the page-table entry of an index.
pub struct MappedExtent {
    pmap: Arc<Pmap>,
    relation: Relation,
    start: u64,
    end: u64,
}

impl MappedExtent {
    /// The address at which `index` may be mapped.
    pub fn address(&self, index: u32) -> Option<u64> {
        let at = self.relation.address(index);
        (self.start <= at && at < self.end).then_some(at)
    }

    /// The mapping between addresses and indexes.
    pub(crate) fn relation(&self) -> Relation {
        self.relation
    }

    /// The addresses at which pages `first..behind` of a file may be mapped.
    pub(crate) fn addresses(&self, first: u32, behind: u32) -> Range<u64> {
        debug_assert!(!self.relation.is_down(), "files do not grow down");
        let from = first.max(self.relation.index(self.start));
        let to = behind.min(self.index_end());
        if from >= to {
            return 0..0;
        }
        self.relation.address(from)..self.relation.address(to - 1) + PAGE_SIZE as u64
    }

    /// One more than the highest index that may be mapped here.
    pub(crate) fn index_end(&self) -> u32 {
        let (first, last) = (self.start, self.end - 1);
        self.relation
            .index(first)
            .max(self.relation.index(last))
            .saturating_add(1)
    }

    /// The pmap that may map the extent.
    pub fn pmap(&self) -> &Arc<Pmap> {
        &self.pmap
    }
}

/// One layer of one mapping.
pub struct Backing {
    relation: Relation,
    start: u64,
    end: u64,
    attachment: Attachment,
    /// Number of chains that contain this layer. Guarded by the map's lock.
    uses: AtomicU32,
    /// Number of calls of `may_ask`. Atomic, approximate.
    asked: AtomicU32,
    /// The index at which folding last found a page that younger layers do not shadow: a hint. Guarded by the map's
    /// lock.
    fold_hint: AtomicU32,
    /// Number of the object's pages when they were counted, plus one; 0 if they were not. Guarded by the map's lock.
    counted: AtomicU32,
}

/// The layer is detached from its object.
pub(crate) struct Detached;

impl Backing {
    /// Attaches a layer of `object` for `start..end` of `pmap`. `writes` says whether it is a shared mapping that may be
    /// written to.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn attach(
        object: &ObjectRef,
        pmap: &Arc<Pmap>,
        relation: Relation,
        (start, end): (u64, u64),
        writes: bool,
    ) -> Result<Arc<Backing>, NoMemory> {
        let extent = MappedExtent {
            pmap: pmap.clone(),
            relation,
            start,
            end,
        };
        let attachment = object.attach(extent, writes)?;
        Ok(Backing::of(attachment, relation, start, end))
    }

    /// Attaches a new object of private memory, for any address of `pmap`. It has no reference but its attachments.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn attach_anon<M: Machine>(
        vm: &Vm<M>,
        pmap: &Arc<Pmap>,
        relation: Relation,
    ) -> Result<Arc<Backing>, NoMemory> {
        Backing::attach_new(ObjectRef::new_anon(vm)?, pmap, relation)
    }

    /// As `attach_anon`, for an object of `bytes` of shared memory.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn attach_shared<M: Machine>(
        vm: &Vm<M>,
        pmap: &Arc<Pmap>,
        relation: Relation,
        bytes: u64,
    ) -> Result<Arc<Backing>, NoMemory> {
        Backing::attach_new(ObjectRef::new_shared(vm, bytes)?, pmap, relation)
    }

    fn attach_new(
        object: ObjectRef,
        pmap: &Arc<Pmap>,
        relation: Relation,
    ) -> Result<Arc<Backing>, NoMemory> {
        // The base reference ends here by a plain drop. If the attachment failed, the object is empty and needs no
        // more.
        Backing::attach(&object, pmap, relation, (0, USER_END), false)
    }

    /// Attaches the same object, over the same extent, for `pmap`, with what folding has found out about it. The caller keeps
    /// `self` attached meanwhile.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn replicate(&self, pmap: &Arc<Pmap>) -> Result<Arc<Backing>, NoMemory> {
        self.attach_like(pmap, self.relation, (self.start, self.end))
    }

    /// Attaches the same object for `start..end`, where an index is mapped `distance` (modulo 2^64) higher than by this
    /// layer. The caller keeps `self` attached meanwhile.
    ///
    /// The rest of this layer's extent is not announced: it does not move, and may have no user address at that
    /// distance.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn replicate_at(
        &self,
        pmap: &Arc<Pmap>,
        distance: u64,
        (start, end): (u64, u64),
    ) -> Result<Arc<Backing>, NoMemory> {
        let bounds = if self.is_unbounded() {
            (self.start, self.end)
        } else {
            (start, end)
        };
        self.attach_like(pmap, self.relation.moved(distance), bounds)
    }

    fn attach_like(
        &self,
        pmap: &Arc<Pmap>,
        relation: Relation,
        (start, end): (u64, u64),
    ) -> Result<Arc<Backing>, NoMemory> {
        let extent = MappedExtent {
            pmap: pmap.clone(),
            relation,
            start,
            end,
        };
        let copy = Backing::of(self.attachment.attach(extent)?, relation, start, end);
        // What folding has found out also holds for the copy, whose chain is the same.
        copy.fold_hint.store(self.fold_hint(), Relaxed);
        copy.counted.store(self.counted.load(Relaxed), Relaxed);
        Ok(copy)
    }

    fn of(attachment: Attachment, relation: Relation, start: u64, end: u64) -> Arc<Backing> {
        let zero = AtomicU32::new;
        Arc::new(Backing {
            relation,
            start,
            end,
            attachment,
            uses: zero(0),
            asked: zero(0),
            fold_hint: zero(0),
            counted: zero(0),
        })
    }

    /// Whether the layer's extent is all of user space: its object was made for a single range of addresses.
    pub(crate) fn is_unbounded(&self) -> bool {
        self.start == 0 && self.end == USER_END
    }

    /// The object; `None` once the layer is detached, which the entry's state also shows.
    #[inline(always)]
    pub fn object<'p>(&self, pin: &'p CpuPin) -> Option<&'p Object> {
        self.attachment.object(pin)
    }

    /// A base reference on the object; `None` if the layer is detached. The caller releases it.
    pub fn object_ref(&self) -> Option<ObjectRef> {
        self.attachment.object_ref()
    }

    /// The first index in `first..=last` at which the object has a page; an error if the layer is detached. No pin is
    /// held between steps.
    pub(crate) fn next_resident(&self, first: u32, last: u32) -> Result<Option<u32>, Detached> {
        let mut at = first;
        loop {
            let pin = ksync::pin();
            match self
                .object(&pin)
                .ok_or(Detached)?
                .next_resident_step(&pin, at, last)
            {
                Next::Page(index, _) => return Ok(Some(index)),
                Next::Unseen(next) => at = next,
                Next::End => return Ok(None),
            }
        }
    }

    /// Whether the layer is attached, and its object has no page in `first..=last`.
    pub(crate) fn is_empty(&self, first: u32, last: u32) -> bool {
        matches!(self.next_resident(first, last), Ok(None))
    }

    /// The mapping between addresses and indexes.
    #[inline]
    pub fn relation(&self) -> Relation {
        self.relation
    }

    /// The index of `at`.
    #[inline]
    pub fn index(&self, at: u64) -> u32 {
        self.relation.index(at)
    }

    /// Whether several chains of the map contain it. The map's lock is held.
    pub(crate) fn is_in_several(&self) -> bool {
        self.uses.load(Relaxed) > 1
    }

    /// Whether the object counts the layer as a writer.
    pub(crate) fn writes(&self) -> bool {
        self.attachment.writes()
    }

    /// Whether the object is anonymous.
    pub fn is_anon(&self) -> bool {
        self.object(&ksync::pin()).is_some_and(Object::is_anon)
    }

    /// Whether no other mapping can see the object's pages: there is no other attachment and no base reference. Stays
    /// true while the caller holds the map's lock.
    pub fn is_sole(&self) -> bool {
        self.attachment.is_sole()
    }

    /// Whether the layer is private memory that no other mapping can see.
    pub(crate) fn is_own(&self) -> bool {
        self.is_private() && self.is_sole()
    }

    /// Whether the object is private memory, of which a range that was unmapped is never mapped again. Shared memory
    /// can be mapped again as long as any part of it is mapped.
    fn is_private(&self) -> bool {
        self.object(&ksync::pin()).is_some_and(Object::is_private)
    }

    /// Whether a fault should ask `is_own` again. The answer is on a cache line that all users of the object share, so
    /// only one in [`ask_every`](crate::Tuning::ask_every) faults reads it.
    pub(crate) fn may_ask<M: Machine>(&self, vm: &Vm<M>) -> bool {
        let asked = self.asked.load(Relaxed);
        self.asked.store(asked.wrapping_add(1), Relaxed);
        asked & (vm.tuning.ask_every - 1) == 0
    }
}

impl Backing {
    /// The index from which on folding looks for a page that is not shadowed. The map's lock is held.
    pub(crate) fn fold_hint(&self) -> u32 {
        self.fold_hint.load(Relaxed)
    }

    /// Sets it. The map's lock is held.
    pub(crate) fn set_fold_hint(&self, index: u32) {
        self.fold_hint.store(index, Relaxed);
    }

    /// The number of the object's pages, if it was counted. The map's lock is held.
    pub(crate) fn counted(&self) -> Option<u64> {
        self.counted.load(Relaxed).checked_sub(1).map(u64::from)
    }

    /// Sets it. The map's lock is held.
    pub(crate) fn set_counted(&self, pages: u64) {
        let counted = u32::try_from(pages).unwrap_or(u32::MAX).saturating_add(1);
        self.counted.store(counted, Relaxed);
    }

    /// Adds a page to the number, if it was counted. The map's lock is held.
    pub(crate) fn count_another(&self) {
        if let Some(pages) = self.counted() {
            self.set_counted(pages + 1);
        }
    }
}

/// Layers, front to oldest. Up to five, as most chains have, are stored inline, so that a fork allocates nothing for
/// them.
pub(crate) type Layers = SmallVec<[Arc<Backing>; 5]>;

const fn own_key(depth: usize, state: u32) -> u64 {
    (depth as u64 + 1) << 32 | state as u64
}

/// The shadow chain of an entry: its layers, front to oldest. Immutable except for a hint.
pub struct Chain {
    layers: Layers,
    /// A hint: depth plus one of a layer that was found to be visible to this space alone, and the entry's state at
    /// that time. Valid only while the entry has that state. Atomic. It is stored in the chain and not in the entry,
    /// because another chain has other layers at the same depths, and a fault may combine a new chain with the state
    /// before it.
    own: AtomicU64,
}

impl Chain {
    /// A chain of `layers`, each of which it now uses. The map's lock is held, or the map is not published.
    pub(crate) fn new(layers: Layers) -> Chain {
        let chain = Chain::view_of(layers);
        chain.begin_use();
        chain
    }

    /// Counts a [view](Self::view_of) as a use of its layers. As for [`new`](Self::new).
    pub(crate) fn begin_use(&self) {
        debug_assert!(!self.layers.is_empty());
        for layer in &self.layers {
            layer.uses.store(layer.uses.load(Relaxed) + 1, Relaxed);
        }
    }

    /// Adds an older layer to a view.
    pub(crate) fn add(&mut self, oldest: Arc<Backing>) {
        self.layers.push(oldest);
    }

    /// Whether the layer at `depth` was found to be visible to this space alone while the entry had `state`. A fork
    /// since then would have changed the state.
    pub(crate) fn knows_own(&self, depth: usize, state: u32) -> bool {
        self.own.load(Relaxed) == own_key(depth, state)
    }

    /// Records that it was.
    pub(crate) fn set_own(&self, depth: usize, state: u32) {
        self.own.store(own_key(depth, state), Relaxed);
    }

    /// Forgets what [`set_own`](Self::set_own) recorded.
    pub(crate) fn forget_own(&self) {
        self.own.store(0, Relaxed);
    }

    /// A chain of one layer.
    pub(crate) fn of(layer: Arc<Backing>) -> Chain {
        Chain::new(smallvec![layer])
    }

    /// A chain of `layers` that is not counted as a use of them.
    pub(crate) fn view_of(layers: Layers) -> Chain {
        Chain {
            layers,
            own: AtomicU64::new(0),
        }
    }

    /// A copy of the list of layers, which is not counted as a use.
    pub(crate) fn view(&self) -> Chain {
        Chain::view_of(self.layers.clone())
    }

    /// All layers.
    #[inline]
    pub fn layers(&self) -> &[Arc<Backing>] {
        &self.layers
    }

    /// The layer that receives new private pages.
    #[inline]
    pub fn front(&self) -> &Arc<Backing> {
        &self.layers[0]
    }

    /// The oldest layer, if it is a file.
    pub fn terminal_file(&self) -> Option<&Arc<Backing>> {
        self.layers.last().filter(|layer| !layer.is_anon())
    }

    /// Whether `va` lies beyond the end of the file at the bottom.
    pub(crate) fn is_cut_off(&self, pin: &CpuPin, va: u64) -> bool {
        self.terminal_file().is_some_and(|file| {
            file.object(pin)
                .is_some_and(|object| !object.has_index(file.index(va)))
        })
    }

    /// Whether both consist of the same layers.
    pub(crate) fn same_layers(&self, other: &Chain) -> bool {
        self.layers.len() == other.layers.len()
            && self
                .layers
                .iter()
                .zip(&other.layers)
                .all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// Ends the use of the layers by a dead entry whose range `start..end` was unmapped and flushed. The map's lock is
    /// held.
    ///
    /// Detaches layers that no chain uses any more, and frees pages that only this range could reach. From the oldest
    /// layer to the front, the direction in which faults move pages: a page that is being moved is found busy in its
    /// old layer, or later in the new one.
    pub(crate) fn end_use<M: Machine>(&self, vm: &Vm<M>, start: u64, end: u64) {
        for layer in self.layers.iter().rev() {
            layer.end_use(vm, Some((start, end)));
        }
    }

    /// Ends this chain's uses after `successor`, which contains all its layers, has replaced it. The map's lock is
    /// held.
    pub(crate) fn drop_uses(&self, successor: &Chain) {
        debug_assert!(
            self.layers
                .iter()
                .all(|l| successor.layers.iter().any(|other| Arc::ptr_eq(l, other)))
        );
        for layer in &self.layers {
            layer.uses.store(layer.uses.load(Relaxed) - 1, Relaxed);
        }
    }

    /// As `end_use`, where a new entry maps the range with the layer `kept`.
    pub(crate) fn end_use_but<M: Machine>(
        &self,
        vm: &Vm<M>,
        kept: &Arc<Backing>,
        start: u64,
        end: u64,
    ) {
        for layer in self.layers.iter().rev() {
            layer.end_use(vm, (!Arc::ptr_eq(layer, kept)).then_some((start, end)));
        }
    }

    /// Ends this chain's uses after `successor` has replaced it, and after the page-table entries of layers that are
    /// not in `successor` were removed. The map's lock is held.
    pub(crate) fn succeeded_by<M: Machine>(
        &self,
        vm: &Vm<M>,
        successor: &Chain,
        start: u64,
        end: u64,
    ) {
        for layer in self.layers.iter().rev() {
            let kept = successor
                .layers
                .iter()
                .any(|other| Arc::ptr_eq(layer, other));
            layer.end_use(vm, (!kept).then_some((start, end)));
        }
    }
}

impl Backing {
    /// Ends one chain's use. The map's lock is held. `unreachable` is a range that no other chain of this map reaches.
    ///
    /// The last use detaches the layer. Else private memory's pages in `unreachable` are freed if no other mapping can see
    /// them, or left to a sweep. May wait for pages that are held busy.
    pub(crate) fn end_use<M: Machine>(&self, vm: &Vm<M>, unreachable: Option<(u64, u64)>) {
        if self.ends_last_use() {
            let left = self
                .attachment
                .detach(vm, &ksync::pin(), unreachable.is_some());
            if let Some(left) = left {
                left.finish(vm);
            }
        } else if let Some((start, end)) = unreachable {
            if !self.is_own() {
                self.attachment.leave_pages(vm);
            } else if let Some(object) = self.object_ref() {
                let (first, last) = self.relation.indexes(start, end);
                object.remove_unmapped(vm, first, last);
            }
        }
    }

    /// As [`end_use`](Self::end_use), where no range is unreachable. Returns what is left to do without a pin, if anything is.
    pub(crate) fn end_use_pinned<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin) -> Option<Remainder> {
        self.ends_last_use()
            .then(|| self.attachment.detach(vm, pin, false))
            .flatten()
    }

    /// Counts one use less; returns whether it was the last. The map's lock is held.
    #[inline(always)]
    fn ends_last_use(&self) -> bool {
        let uses = self.uses.load(Relaxed);
        debug_assert!(uses > 0, "a layer is used once more than it was taken");
        self.uses.store(uses - 1, Relaxed);
        uses == 1
    }

    /// Records whether pages of the object may be unreachable, unless the layer is detached.
    pub(crate) fn set_swept(&self, how: Swept) {
        if let Some(object) = self.object(&ksync::pin()) {
            object.set_swept(how);
        }
    }

    /// How far the sweep of the object has come in earlier rounds.
    pub(crate) fn sweep_progress(&self) -> Progress {
        let pin = ksync::pin();
        self.object(&pin)
            .map_or(Progress::default(), |object| object.rest.get())
    }

    /// Leaves the rest of a sweep to another round, unless the layer is detached. Returns whether the object has been marked
    /// since that sweep began, or is to be swept on.
    pub(crate) fn leave_sweep(&self, progress: Progress) -> bool {
        let pin = ksync::pin();
        self.object(&pin).is_some_and(|object| {
            object.rest.set(progress);
            object.is_to_be_swept()
        })
    }

    /// Takes the name of the object's sweeper away, before its attachments are looked at; unless the layer is detached.
    pub(crate) fn forget_sweeper(&self) {
        if let Some(object) = self.object(&ksync::pin()) {
            object.forget_sweeper();
        }
    }

    /// Records that the whole object was swept while only this space had it attached. A mark that was set meanwhile
    /// stays.
    pub(crate) fn sweep_was_whole(&self) {
        if let Some(object) = self.object(&ksync::pin()) {
            object.change_swept(Swept::Shared, Swept::Whole);
        }
    }

    /// Records that a fork did not inherit a part of the object, which may become unreachable when an attachment ends.
    pub(crate) fn sweep_is_shared(&self) {
        if let Some(object) = self.object(&ksync::pin()) {
            object.change_swept(Swept::Whole, Swept::Shared);
        }
    }
}
