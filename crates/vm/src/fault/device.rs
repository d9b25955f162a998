//! Faults on devices.

use super::{Attempt, EmptySlot, Step};
use crate::Machine;
use crate::alloc::{NoMemory, Rights};
use crate::fault::FaultError;
use crate::map::Prot;
use crate::object::{Frames, Object};
use crate::pmap::Pte;

impl<M: Machine> Attempt<'_, M> {
    /// No layer has a page and the oldest is a device: enters its frame, or a copy of its contents for a private write.
    #[inline(never)]
    pub(super) fn fill_device(
        &self,
        device: &Object,
        (index, frames): (u32, Frames),
        front: EmptySlot<'_>,
    ) -> Step {
        let Some(frame) = frames.at(index) else {
            return Step::Fail(FaultError::Bus);
        };
        debug_assert!(!device.is_anon());
        let shared = self.entry.is_shared();
        if self.write && !shared {
            let pfn = match self.vm.alloc.alloc(self.pin, Rights::User) {
                Ok(pfn) => pfn,
                Err(NoMemory) => return Step::Fail(FaultError::NoMemory),
            };
            self.vm.machine.copy_device(pfn, frame);
            self.vm.stats.get(self.pin).cow_copy.add(1);
            return self.put(front, (pfn, true), || true);
        }
        let writable = shared && self.entry.prot().contains(Prot::WRITE);
        let leaf = Pte::unmanaged(frame, self.prot(writable)).with(frames.cache.bits());
        // The frame never leaves its object, so only the entry's state and the layers above can change.
        let depth = self.layers.len() - 1;
        self.enter_leaf(leaf, || {
            self.is_unchanged() && self.empty_above(self.va, depth)
        })
    }
}
