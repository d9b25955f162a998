//! The 512 pages of a run, inserted into an object at once.

use ksync::CpuPin;

use super::node::FAN;
use super::{Next, Object, discard};
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
    /// is taken, there is no memory for a node, the block has a reservation, or lies partly beyond the end: the frames are
    /// free again then. The caller is pinned until it ends the result; no scan waits for it unpinned.
    pub(crate) fn insert_run<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (first, run): (u32, Pfn),
        flags: Flags,
    ) -> Option<HeldRun<'_>> {
        debug_assert!(self.is_anon() && first.is_multiple_of(RUN_FRAMES));
        let object = self.identity();
        let place = Place {
            object,
            index: first,
        };
        if !vm.alloc.fill_run(run, (place, &self.blocks)) {
            vm.alloc.free_order(pin, run, RUN_ORDER);
            return None;
        }
        for n in 0..RUN_FRAMES {
            let page = vm.pages.get(run.add(n));
            page.init_flags(State::Anon, flags | Flags::VALID);
            page.set_identity(object, first + n);
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
            self.slots.next_step(pin, first, first + (len - 1)) == Next::End
        };
        is_empty(FAN as u32) && is_empty(RUN_FRAMES)
    }
}

impl HeldRun<'_> {
    /// Ends the busy state of all pages.
    pub(crate) fn release(self, pages: PageArray) {
        for n in 0..RUN_FRAMES {
            drop(HardBusy::of_fresh(pages.get(self.run.add(n))));
        }
    }

    /// Takes all pages out of their slots again, and frees them. Nothing maps them.
    #[cold]
    pub(crate) fn take_back<M: Machine>(self, vm: &Vm<M>, pin: &CpuPin) {
        self.take_back_some(vm, pin, RUN_FRAMES);
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
    }
}
