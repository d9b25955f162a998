//! Faults where superpages are wanted: frames at their places, and promotion when a block has all of them.
//!
//! A block is 2 MiB of addresses, aligned, whose indexes are aligned, too, so that the frames of one run can be mapped by one
//! leaf. The first fault in a block fills the leaf ([`leaf`](super::leaf)); or it reserves a run, later ones take the frame at
//! their place (`alloc/reservation`), and the one that takes the last frame promotes. `doc/vm-superpages.md`.

use super::{Attempt, EmptySlot, Found, Slow, Step};
use crate::alloc::{NoMemory, Placed, RUN_FRAMES, Rights};
use crate::map::{EntryFlags, Extent, Prot};
use crate::object::Object;
use crate::page::{PAGE_SIZE, zero_frame};
use crate::{Machine, SharedSuperpages, Space, Superpages, Vm};

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = RUN_FRAMES as u64 * PAGE_SIZE as u64;

/// Whether a range of addresses contains a whole block.
pub(crate) fn has_block(start: u64, end: u64) -> bool {
    start
        .checked_next_multiple_of(BLOCK_BYTES)
        .is_some_and(|base| base < end && end - base >= BLOCK_BYTES)
}

/// Whether superpages are wanted in an entry of a space with these flags; of shared memory, as far as these say.
pub(crate) fn wants<M: Machine>(vm: &Vm<M>, space: &Space, flags: EntryFlags) -> bool {
    if space.forbids_superpages() {
        return false;
    }
    let (asked, forbidden) = (
        flags.contains(EntryFlags::HUGEPAGE),
        flags.contains(EntryFlags::NOHUGEPAGE),
    );
    if flags.contains(EntryFlags::SHARED) {
        return match vm.shmem_superpages() {
            SharedSuperpages::Never | SharedSuperpages::Deny => false,
            SharedSuperpages::Advised => asked,
            SharedSuperpages::WithinSize | SharedSuperpages::Always | SharedSuperpages::Force => {
                !forbidden
            }
        };
    }
    match vm.superpages() {
        Superpages::Never => false,
        Superpages::Advised => asked,
        Superpages::Always => !forbidden,
    }
}

impl<M: Machine> Attempt<'_, M> {
    /// Whether superpages may be wanted here: what each fault asks, which costs two comparisons.
    #[inline(always)]
    pub(super) fn may_want_superpage(&self) -> bool {
        self.entry.flags().contains(EntryFlags::HUGEPAGE) || self.vm.has_superpages_for_all()
    }

    /// Whether superpages are wanted here, of pages of the front layer's `object`, at `index`, which lies in a block.
    pub(super) fn wants_superpage(&self, object: &Object, index: u32) -> bool {
        let flags = self.entry.flags();
        let by_size = flags.contains(EntryFlags::SHARED)
            && self.vm.shmem_superpages() == SharedSuperpages::WithinSize
            && !flags.contains(EntryFlags::HUGEPAGE);
        // Private mappings of files have the file's pages one by one.
        (object.is_private() || flags.contains(EntryFlags::SHARED))
            && self.is_in_block(index)
            && wants(self.vm, self.space, flags)
            && (!by_size || object.has_index(index | (RUN_FRAMES - 1)))
    }

    /// As `fill_at`, for a page of the front layer, by the frame at its place.
    #[inline(never)]
    pub(super) fn fill_placed(&self, empty: EmptySlot<'_>, writable: bool) -> Step {
        if self.fits_leaf(empty.object, empty.index) {
            return Step::Slow(Slow::Leaf);
        }
        self.fill_one(empty, writable)
    }

    /// As `fill_placed`, one page in any case.
    pub(super) fn fill_one(&self, empty: EmptySlot<'_>, writable: bool) -> Step {
        let Ok(Placed { pfn, whole }) = self.placed_frame(&empty) else {
            return Step::Fail(NoMemory.into());
        };
        zero_frame(&self.vm.machine, pfn);
        self.vm.stats.get(self.pin).zero_fill.add(1);
        let step = self.put(empty, (pfn, writable), || {
            self.layers.len() == 1 || self.empty_but(0)
        });
        self.promoted_if(whole, step)
    }

    /// Copies a page to the front layer, to the frame at its place.
    #[inline(never)]
    pub(super) fn copy_placed(
        &self,
        found: &Found<'_>,
        front: EmptySlot<'_>,
        stayed: &dyn Fn() -> bool,
    ) -> Step {
        let Ok(Placed { pfn, whole }) = self.placed_frame(&front) else {
            return Step::Fail(NoMemory.into());
        };
        let step = self.copy_to(found, front, pfn, stayed);
        self.promoted_if(whole, step)
    }

    /// The frame at the place of an empty slot of the front layer, if superpages are wanted there; or else any.
    #[inline(never)]
    fn placed_frame(&self, empty: &EmptySlot<'_>) -> Result<Placed, NoMemory> {
        if !self.wants_superpage(empty.object, empty.index) {
            let pfn = self.vm.alloc.alloc(self.pin, Rights::User)?;
            return Ok(Placed { pfn, whole: false });
        }
        // Asked for a few times in each block only, so that a machine without free runs is not asked in each fault.
        let reserve = Object::is_first_of_leaf((empty.index, empty.slot));
        empty
            .object
            .placed_frame(self.vm, self.pin, empty.index, reserve)
    }

    /// Whether the fault's address, which has this index in the front layer, lies in a block that the entry maps whole.
    fn is_in_block(&self, index: u32) -> bool {
        let base = self.va & !(BLOCK_BYTES - 1);
        let within = self.va - base;
        let in_order = u64::from(index % RUN_FRAMES) * PAGE_SIZE as u64 == within;
        let front = &self.layers[0];
        in_order
            && !front.relation().is_down()
            && base >= self.entry.start()
            && self.entry.end() - base >= BLOCK_BYTES
    }

    /// Promotes the table around the fault's address if the fault is served and has taken the last frame of a run. Without
    /// effect if the entries do not agree. Returns `step`.
    fn promoted_if(&self, whole: bool, step: Step) -> Step {
        if whole && matches!(step, Step::Done) {
            let shared = self.entry.is_shared();
            self.space
                .pmap()
                .promote_as(self.vm, self.pin, self.va, shared);
        }
        step
    }

    /// The fault, which is served, found a page of the front layer at `index`, and may have made the entries of its block agree:
    /// promotes them if superpages are wanted and they do. Not for pages that a later write will copy, each by itself.
    #[cold]
    #[inline(never)]
    pub(super) fn promote_alike(&self, object: &Object, index: u32) {
        let may_stay =
            self.write || self.entry.is_shared() || !self.entry.prot().contains(Prot::WRITE);
        if may_stay && self.wants_superpage(object, index) {
            let shared = self.entry.is_shared();
            self.space
                .pmap()
                .promote_alike(self.vm, self.pin, self.va, shared);
        }
    }
}
