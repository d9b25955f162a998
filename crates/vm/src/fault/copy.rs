//! Private writes: a page of a deeper layer comes to the front, as a copy, or itself where no other space can see it.

use super::{Attempt, EmptySlot, FaultError, Found, Slow, Step};
use crate::Machine;
use crate::alloc::{NoMemory, Rights};
use crate::object::Slot;
use crate::page::{Flags, Pfn, Wanted, copy_frame};
use crate::rmap::marks;

impl<M: Machine> Attempt<'_, M> {
    /// The access is a write and the page is in a deeper layer, in `slot`: brings it to the front. If that serves the fault, the next
    /// step may be to fold the chain.
    #[inline(never)]
    pub(super) fn copy(&self, found: &Found<'_>, slot: &Slot, front: EmptySlot<'_>) -> Step {
        if slot.is_settled(found.pfn) {
            // Whatever takes the page away, or lets one of its sharers write to it, empties the slot first.
            let pfn = found.pfn;
            self.bring(found, front, move || slot.is_settled(pfn))
        } else {
            self.copy_unsettled(found, front)
        }
    }

    /// As `copy`, where only the page's record can tell what the page is.
    #[inline(never)]
    fn copy_unsettled(&self, found: &Found<'_>, front: EmptySlot<'_>) -> Step {
        if found.page.is_hard_busy() {
            // A page that is being inserted may be removed again, and its frame reused.
            return found.busy(Wanted::Kept);
        }
        self.bring(found, front, || found.object.holds(found.page, found.index))
    }

    /// As `copy`. After a copy, and a locked instruction, `stayed` says whether the bytes were the page's.
    #[inline(always)]
    fn bring(&self, found: &Found<'_>, front: EmptySlot<'_>, stayed: impl Fn() -> bool) -> Step {
        let step = if found.object.is_anon() && self.is_own(found.depth) {
            self.take_over(found, front)
        } else if self.may_want_superpage() {
            self.copy_placed(found, front, &stayed)
        } else {
            match self.vm.alloc.alloc(self.pin, Rights::User) {
                Ok(pfn) => self.copy_to(found, front, pfn, stayed),
                Err(NoMemory) => Step::Fail(FaultError::NoMemory),
            }
        };
        match step {
            Step::Done
                if self.layers.len() > self.vm.tuning.fault_depth
                    && self.entry.may_fold(self.vm, self.state) =>
            {
                Step::Slow(Slow::Collapse)
            }
            step => step,
        }
    }

    /// Copies a page to a fresh frame and enters that; the frame is freed if it cannot.
    #[inline(always)]
    pub(super) fn copy_to(
        &self,
        found: &Found<'_>,
        front: EmptySlot<'_>,
        pfn: Pfn,
        stayed: impl Fn() -> bool,
    ) -> Step {
        // The source is not held: its frame may be reused. The check detects that, but comes after the copy.
        if pfn == found.pfn {
            self.vm.alloc.free(self.pin, pfn);
            return Step::Again;
        }
        copy_frame(&self.vm.machine, pfn, found.pfn);
        self.vm.stats.get(self.pin).cow_copy.add(1);
        let step = self.put(front, (pfn, true), || {
            self.is_visible_below_front(found.depth) && stayed()
        });
        if matches!(step, Step::Done) && found.object.is_private() {
            // Perhaps no mapping reaches the original any more.
            found
                .object
                .leave_page(self.vm, self.pin, self.space.pmap());
        } else if !found.object.is_anon() {
            // A page whose contents were seen counts as data.
            found.page.clear_flag(Flags::UNWRITTEN);
        }
        step
    }

    /// Whether only this space can see the layer at `depth`. That holds until a fork, which makes the check fail.
    fn is_own(&self, depth: usize) -> bool {
        let layer = &self.layers[depth];
        if self.chain.knows_own(depth, self.state.bits()) {
            return true;
        }
        let own = layer.may_ask(self.vm) && layer.is_own();
        if own {
            self.chain.set_own(depth, self.state.bits());
        }
        own
    }

    /// Moves a page that only this space can see to the front, keeping its frame, and enters it writable. Once it is in the
    /// front it stays there, even if it cannot be entered.
    #[inline(never)]
    fn take_over(&self, found: &Found<'_>, front: EmptySlot<'_>) -> Step {
        let EmptySlot {
            object: front,
            index,
            slot,
        } = front;
        let Some(busy) = found.page.try_hard_busy() else {
            return found.busy(Wanted::Free);
        };
        // Once the page is in its slot, folding does not drop the front layer. A fork from then on inherits both
        // layers, and a lookup finds the page in one of them. A fork before that may have been followed by a fold that
        // dropped the front layer from the chain.
        let still = || self.is_unchanged() && self.empty_between(found.depth);
        if !found.page.is(found.object.identity(), found.index) {
            return Step::Again;
        }
        let from = (found.index, found.pfn, &busy);
        match found
            .object
            .move_page(self.vm, self.pin, from, (front, index), still)
        {
            Ok(true) => {}
            Ok(false) => return Step::Again,
            Err(NoMemory) => return Step::Fail(FaultError::NoMemory),
        }
        // The slot that was found may be one of a node that was unlinked since; then the page is in another one.
        if let Some(slot) = slot
            && slot.page() == Some(found.pfn)
        {
            slot.settle(found.pfn);
        }
        self.vm.stats.get(self.pin).cow_move.add(1);
        found.page.mark(marks(true));
        // If the entry has changed since, the operation that changed it finds the page in front.
        let step = self.enter_busy(found.pfn, true, || self.check_found(0));
        if self.may_want_superpage() && matches!(step, Step::Done) {
            self.promote_alike(front, index);
        }
        step
    }
}
