//! The 512 pages of a run, inserted into an object at once.

use ksync::CpuPin;

use super::node::FAN;
use super::{Object, Slot, discard};
use crate::alloc::{Place, RUN_FRAMES, RUN_ORDER};
use crate::page::{Flags, HardBusy, PageArray, Pfn, State};
use crate::{Machine, Vm};

/// All pages of a block, of one run, in their slots and hard-busy, until this is released or taken back.
#[must_use = "the pages stay busy"]
pub(crate) struct HeldRun<'a> {
    object: &'a Object,
    /// Index of the first page.
    first: u32,
    /// Frame of the first page.
    run: Pfn,
}

impl Object {
    /// Inserts the pages of `run`, whose contents are ready, at `first` and behind, with `flags` in addition to VALID: `run` is
    /// from [`alloc_run`](crate::PageAllocator::alloc_run), and `first` the first index of a block. `None` if one of the slots
    /// is taken, there is no memory for a node, the file system is full, the block has a reservation, or lies partly beyond the
    /// end: the frames are free again then, or will be after a grace period. The caller is pinned until it ends the result; no scan waits for it unpinned.
    pub(crate) fn insert_run<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (first, run): (u32, Pfn),
        flags: Flags,
    ) -> Option<HeldRun<'_>> {
        debug_assert!(first.is_multiple_of(RUN_FRAMES));
        if !self.charge_many(RUN_FRAMES as usize) {
            vm.alloc.free_order(pin, run, RUN_ORDER);
            return None;
        }
        let object = self.identity();
        let place = Place {
            object,
            index: first,
        };
        let (flags, mut index) = (flags | Flags::VALID, first);
        let state = self.state_of_pages();
        let owned = vm.alloc.fill_run(run, (place, &self.blocks), |page| {
            page.init_flags(state, flags);
            page.set_identity(object, index);
            index += 1;
        });
        if !owned {
            self.refund(pin, RUN_FRAMES as usize);
            vm.alloc.free_order(pin, run, RUN_ORDER);
            return None;
        }
        let held = HeldRun {
            object: self,
            first,
            run,
        };
        let filled = self.put_run(vm, pin, first, run);
        // After the last slot's fence, as for one page.
        if filled < RUN_FRAMES || !self.has_index(first + (RUN_FRAMES - 1)) {
            held.take_back_some(vm, pin, filled);
            return None;
        }
        Some(held)
    }

    /// Puts the frames of `run` into the slots from `first` on. Returns how many, up to the first that has a page or cannot
    /// be made.
    fn put_run<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, first: u32, run: Pfn) -> u32 {
        let mut n = 0;
        while n < RUN_FRAMES {
            if self.slots.make_slot(&vm.epoch, pin, first + n).is_err() {
                break;
            }
            // None if the node was unlinked since.
            let slots = self.slots.run(pin, first + n).unwrap_or_default();
            for slot in slots.iter().take((RUN_FRAMES - n) as usize) {
                if !slot.put(run.add(n)) {
                    return n;
                }
                n += 1;
            }
        }
        n
    }

    /// Whether no page is in the block around `index`. Looks near `index` first: where a block is filled page by page, it most
    /// often finds one there.
    pub(crate) fn is_block_empty(&self, pin: &CpuPin, index: u32) -> bool {
        let is_empty = |len: u32| {
            let first = index & !(len - 1);
            self.slots.are_empty(pin, first, first + (len - 1))
        };
        is_empty(FAN as u32) && is_empty(RUN_FRAMES)
    }

    /// Whether the page at `first` may be the first of a run's that [`remove_run`](Self::remove_run) takes, of indexes up to
    /// `last`: a hint.
    #[inline]
    pub(super) fn begins_run<M: Machine>(
        &self,
        vm: &Vm<M>,
        (first, last): (u32, u32),
        pfn: Pfn,
    ) -> bool {
        first.is_multiple_of(RUN_FRAMES)
            && last - first >= RUN_FRAMES - 1
            && pfn.0.is_multiple_of(RUN_FRAMES)
            && vm.pages.get(pfn).is_taken()
    }

    /// What a step of a removal that has freed `count` pages does at the first page of a run: frees all of them, as far as they are
    /// in order, if it has done nothing else. Otherwise the pages go one by one.
    ///
    /// # Errors
    /// The step ends, and the next one begins at this index, if there is one up to `last`.
    pub(super) fn remove_run_first<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (first, last, run): (u32, u32, Pfn),
        count: usize,
        prune: bool,
    ) -> Result<(), Option<u32>> {
        if count > 0 {
            return Err(Some(first));
        }
        match self.remove_run(vm, pin, (first, run), prune) {
            0 => Ok(()),
            removed => Err((last - first >= removed).then(|| first + removed)),
        }
    }

    /// Frees the pages of a block from its first index on, which are not mapped and cannot be reached otherwise, as long as each
    /// is the frame at its place of `run` and not held busy. Returns how many. Unlinks empty nodes if `prune`.
    #[cold]
    #[inline(never)]
    fn remove_run<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (first, run): (u32, Pfn),
        prune: bool,
    ) -> u32 {
        let mut n = 0;
        while n < RUN_FRAMES {
            // None if the node was unlinked since.
            let slots = self.slots.run(pin, first + n).unwrap_or_default();
            let count = slots.len().min((RUN_FRAMES - n) as usize);
            let taken = take_slots(&slots[..count], vm.pages, run.add(n));
            if prune && taken > 0 {
                self.slots.prune(&vm.epoch, pin, first + n);
            }
            n += taken;
            if count == 0 || (taken as usize) < count {
                break;
            }
        }
        let place = Place {
            object: self.identity(),
            index: first,
        };
        if n == RUN_FRAMES {
            vm.alloc.free_run(pin, run, place);
        } else {
            vm.alloc.free_neighbours(pin, run, n);
        }
        self.refund(pin, n as usize);
        n
    }
}

/// Empties slots as long as they hold neighbouring frames, from `first` on, whose pages are not held busy. Returns how many. The
/// frames are in the state of a free one.
#[inline(always)]
fn take_slots(slots: &[Slot], pages: PageArray, first: Pfn) -> u32 {
    let pages = pages.run(first, slots.len() as u32);
    let mut pfn = first;
    for (slot, page) in slots.iter().zip(pages) {
        if slot.page() != Some(pfn) {
            break;
        }
        let Some(busy) = page.try_hard_busy() else {
            break;
        };
        // A page that is held here and still in the slot belongs to the slot.
        if !slot.take(pfn) {
            break;
        }
        busy.into_free();
        page.init_flags(State::Allocated, Flags::empty());
        pfn = pfn.add(1);
    }
    pfn.0 - first.0
}

impl HeldRun<'_> {
    /// Ends the busy state of all pages.
    pub(crate) fn release(self, pages: PageArray) {
        for page in pages.run(self.run, RUN_FRAMES) {
            drop(HardBusy::of_fresh(page));
        }
    }

    /// Nothing maps the pages: takes them out of their slots again, and frees them; those of a file stay, because readers may have
    /// seen them.
    #[cold]
    pub(crate) fn give_up<M: Machine>(self, vm: &Vm<M>, pin: &CpuPin) {
        if self.object.is_anon() {
            self.take_back_some(vm, pin, RUN_FRAMES);
        } else {
            self.release(vm.pages);
        }
    }

    /// As `take_back`, where only the first `filled` are in their slots.
    #[cold]
    fn take_back_some<M: Machine>(self, vm: &Vm<M>, pin: &CpuPin, filled: u32) {
        for n in 0..RUN_FRAMES {
            let pfn = self.run.add(n);
            let busy = HardBusy::of_fresh(vm.pages.get(pfn));
            if n < filled {
                self.object.take_back(vm, pin, self.first + n, (pfn, busy));
            } else {
                discard(vm, pin, busy, pfn);
            }
        }
        self.object.refund(pin, (RUN_FRAMES - filled) as usize);
    }
}
