//! Pages leave an object: those that nothing maps, and those that the caller unmaps.
//!
//! Guarantee: a page leaves its slot after its translations are gone, or while the caller sees to them, and by the hand
//! of whoever holds it hard-busy. A node of the index that this leaves empty goes as well.

use ksync::CpuPin;

use super::{Next, Object, STEP};
use crate::limbo::FrameList;
use crate::page::{HardBusy, Pfn, Wanted};
use crate::{Machine, Vm, rmap};

impl Object {
    /// Frees the pages of `first..=last`, which nothing maps and no one else can reach. Preemptible.
    pub(crate) fn remove_unmapped<M: Machine>(&self, vm: &Vm<M>, first: u32, last: u32) {
        self.remove(vm, (first, last), true);
    }

    /// As [`remove_unmapped`](Self::remove_unmapped); `prune`s the nodes unless they are to go with the object.
    fn remove<M: Machine>(&self, vm: &Vm<M>, (first, last): (u32, u32), prune: bool) {
        let mut from = first;
        while let Some(next) = self.remove_step(vm, from, last, prune) {
            from = next;
        }
    }

    /// Frees up to [`STEP`] pages; returns where to go on.
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
                Next::Page(first, _) => first,
                Next::Unseen(next) => {
                    more = Some(next);
                    break;
                }
                Next::End => break,
            };
            // Neighbours lie in one node: the tree is walked once for all of them.
            let Some(run) = self.slots.run(&pin, first) else {
                // The page has gone since, and its node with it.
                at = first;
                continue;
            };
            for (index, slot) in (first..=last).zip(run) {
                let Some(pfn) = slot.page() else { continue };
                let page = vm.pages.get(pfn);
                let busy = (count < STEP).then(|| page.try_hard_busy()).flatten();
                let Some(busy) = busy else {
                    more = Some(index);
                    // Somebody holds the page for the length of a fault or a scan.
                    let stuck = count == 0 && self.want(index, pfn, page, Wanted::Free);
                    in_the_way = stuck.then_some(page);
                    break 'nodes;
                };
                // Held, a page that is in the slot is the slot's: whoever moves it away holds it until it has left.
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

    /// Frees everything: nothing is attached, and the caller's reference is the last but for those that
    /// [`end`](super::hub::end) tells of. Faults that are still under way find the limit.
    pub(super) fn die<M: Machine>(&self, vm: &Vm<M>) {
        self.set_limit(0);
        self.remove(vm, (0, u32::MAX), false);
    }

    /// Takes out the page at `index`, which no mapping reaches any more, with what tables still have of it, and adds its
    /// frame to `gone`. False if somebody holds it.
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
        // Held, a page that is in the slot is the slot's.
        let pin = ksync::pin();
        if !self.slots.remove(&pin, index, pfn) {
            return false;
        }
        self.slots.prune(&vm.epoch, &pin, index);
        drop(pin);
        // Folding copies pages to the front without a look at the tables.
        rmap::remove_all(vm, self, index, pfn);
        busy.into_free();
        gone.push(vm.pages, pfn);
        true
    }

    /// Takes the pages of `first..=last` out, hard-busy and without identity, and passes them to `give`, while the
    /// caller sees to their page-table entries. Sleeping context.
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

    /// Takes the page out that the caller holds hard-busy. Its frame is the caller's to free.
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
