//! Removal of pages from an object: of unmapped pages, and of pages that the caller unmaps.
//!
//! Guarantee: a page leaves its slot after its translations are gone, or while the caller removes them, and only by an
//! operation that holds it hard-busy. Index nodes that become empty are unlinked.

use ksync::CpuPin;

use super::{Next, Object, STEP};
use crate::limbo::FrameList;
use crate::page::{HardBusy, Pfn, Wanted};
use crate::{Machine, Vm, rmap};

impl Object {
    /// Frees the pages of `first..=last`, which are not mapped and cannot be reached otherwise. Preemptible; waits for pages
    /// that are held busy.
    pub(crate) fn remove_unmapped<M: Machine>(&self, vm: &Vm<M>, first: u32, last: u32) {
        self.remove(vm, (first, last), true);
    }

    /// As [`remove_unmapped`](Self::remove_unmapped). Unlinks empty nodes if `prune`; otherwise they are freed with the
    /// object.
    fn remove<M: Machine>(&self, vm: &Vm<M>, (first, last): (u32, u32), prune: bool) {
        let mut from = first;
        while let Some(next) = self.remove_step(vm, from, last, prune) {
            from = next;
        }
    }

    /// Frees up to [`STEP`] pages; returns the index to continue at, if there may be more. If the first page is held busy,
    /// waits for it without the pin.
    fn remove_step<M: Machine>(
        &self,
        vm: &Vm<M>,
        from: u32,
        last: u32,
        prune: bool,
    ) -> Option<u32> {
        let pin = ksync::pin();
        let mut freed = [Pfn::NONE; STEP];
        let (mut count, mut at, mut more) = (0, from, None);
        let mut in_the_way = None;
        'nodes: loop {
            let first = match self.slots.next_step(&pin, at, last) {
                Next::Page(first, pfn) if self.begins_run(vm, (first, last), pfn) => {
                    match self.remove_run_first(vm, &pin, (first, last, pfn), count, prune) {
                        Ok(()) => first,
                        Err(next) => {
                            more = next;
                            break;
                        }
                    }
                }
                Next::Page(first, _) => first,
                Next::Unseen(next) => {
                    more = Some(next);
                    break;
                }
                Next::End => break,
            };
            // Adjacent slots are in one node: the tree is walked once for all of them.
            let Some(run) = self.slots.run(&pin, first) else {
                // The page was removed since, with its node.
                at = first;
                continue;
            };
            for (index, slot) in (first..=last).zip(run) {
                let Some(pfn) = slot.page() else { continue };
                let page = vm.pages.get(pfn);
                let busy = (count < STEP).then(|| page.try_hard_busy()).flatten();
                let Some(busy) = busy else {
                    more = Some(index);
                    // A fault or a scan holds the page busy for a short time.
                    let stuck = count == 0 && self.want(index, pfn, page, Wanted::Free);
                    in_the_way = stuck.then_some(page);
                    break 'nodes;
                };
                // A page that is held here and still in the slot belongs to the slot: an operation that moves it holds
                // it until it has left.
                if slot.take(pfn) {
                    busy.into_free();
                    freed[count] = pfn;
                    count += 1;
                }
            }
            if prune {
                self.slots.prune(&vm.epoch, &pin, first);
            }
            match first.checked_add(run.len() as u32) {
                Some(next) if next <= last && next > first => at = next,
                _ => break,
            }
        }
        self.refund(&pin, count);
        vm.alloc.free_bulk(&pin, &freed[..count]);
        drop(pin);
        if let Some(page) = in_the_way {
            page.wait();
        }
        more
    }

    /// Frees all pages. Nothing is attached, and the caller's reference is the last, except for those that the comment
    /// of [`end`](super::hub::end) describes. Faults still in progress see the limit.
    pub(super) fn die<M: Machine>(&self, vm: &Vm<M>) {
        self.set_limit(0);
        self.remove(vm, (0, u32::MAX), false);
        // Those whose pages have all gone to their runs have ended; some pages live on in other objects.
        self.end_reservations(vm, 0);
    }

    /// Removes the page at `index`, which no mapping reaches any more, and its remaining page-table entries; adds its
    /// frame to `gone`. False if the page is held busy, or is there no more.
    pub(crate) fn remove_hidden<M: Machine>(
        &self,
        vm: &Vm<M>,
        index: u32,
        pfn: Pfn,
        gone: &mut FrameList,
    ) -> bool {
        let Some(busy) = vm.pages.get(pfn).try_hard_busy() else {
            return false;
        };
        // A page that is held here and still in the slot belongs to the slot.
        let pin = ksync::pin();
        if !self.slots.remove(&pin, index, pfn) {
            return false;
        }
        self.slots.prune(&vm.epoch, &pin, index);
        drop(pin);
        // Folding copies pages to younger layers without removing page-table entries of this one.
        rmap::remove_all(vm, self, index, pfn);
        busy.into_free();
        gone.push(vm.pages, pfn);
        true
    }

    /// Removes the pages of `first..=last`, and passes them, hard-busy and without identity, to `give`; the caller
    /// removes their page-table entries. Sleeping context.
    pub(crate) fn take_out<M: Machine>(
        &self,
        vm: &Vm<M>,
        first: u32,
        last: u32,
        give: &mut dyn FnMut(Pfn),
    ) {
        let mut at = first;
        while let Some((index, _)) = self.next_resident(at, last) {
            if let Some((pfn, busy)) = self.busy_page(vm, index) {
                self.remove_held(vm, &ksync::pin(), index, (pfn, busy));
                give(pfn);
            }
            match index.checked_add(1) {
                Some(next) if next <= last => at = next,
                _ => return,
            }
        }
    }

    /// Empties the slot of a page that the caller holds hard-busy.
    pub(super) fn vacate<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, index: u32, pfn: Pfn) {
        let removed = self.slots.remove(pin, index, pfn);
        debug_assert!(removed, "a hard-busy page left its slot");
        self.slots.prune(&vm.epoch, pin, index);
    }

    /// Removes a page that the caller holds hard-busy. The caller must free the frame.
    pub(super) fn remove_held<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        index: u32,
        (pfn, busy): (Pfn, HardBusy<'_>),
    ) {
        self.vacate(vm, pin, index, pfn);
        busy.into_free();
        self.refund(pin, 1);
    }
}
