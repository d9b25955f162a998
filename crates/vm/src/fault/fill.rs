//! Faults that make a page of zeroes.

use super::{Attempt, EmptySlot, FaultError, Step};
use crate::Machine;
use crate::alloc::NoMemory;
use crate::object::{Insert, Object};
use crate::page::{Flags, Pfn};

impl<M: Machine> Attempt<'_, M> {
    /// No layer has a page, and there are several layers or the only one is a file.
    #[inline(never)]
    pub(super) fn fill_layers(&self, front: EmptySlot<'_>) -> Step {
        let layers = self.layers;
        let last = layers.len() - 1;
        let Some(bottom) = layers[last].object(self.pin) else {
            return Step::Again;
        };
        let index = layers[last].index(self.va);
        if !bottom.is_anon() && !bottom.has_index(index) {
            return Step::Fail(FaultError::Bus);
        }
        if let Some(frames) = bottom.frames() {
            return self.fill_device(bottom, (index, frames), front);
        }
        if bottom.is_anon() {
            return self.fill_at(front, 0, false);
        }
        // A hole of a file gets a page in the file, even for a private write that then copies it: as in Linux.
        let slot = bottom.slot(self.pin, index);
        let empty = EmptySlot {
            object: bottom,
            index,
            slot,
        };
        if self.write && last > 0 {
            self.fill_behind(empty)
        } else {
            self.fill_at(empty, last, false)
        }
    }

    /// Inserts a page of zeroes into a file; the next attempt copies it.
    pub(super) fn fill_behind(&self, empty: EmptySlot<'_>) -> Step {
        let Ok(pfn) = Object::zero_page(self.vm, self.pin) else {
            return Step::Fail(FaultError::NoMemory);
        };
        let EmptySlot {
            object,
            index,
            slot,
        } = empty;
        match object.insert_at(self.vm, self.pin, (index, slot), (pfn, Flags::empty())) {
            Ok(_) => Step::Again,
            // As in `put`.
            Err(NoMemory) if object.is_over_quota() => Step::Fail(FaultError::Bus),
            Err(NoMemory) => Step::Fail(FaultError::NoMemory),
        }
    }

    /// No layer has a page: inserts a new one of zeroes in the front layer of anonymous memory.
    #[inline(always)]
    pub(super) fn fill(&self, front: EmptySlot<'_>) -> Step {
        if self.layers.len() > 1 {
            return self.fill_layers(front);
        }
        self.fill_at(front, 0, true)
    }

    /// Inserts a page of zeroes. `alone` says that there is one layer only.
    #[inline(always)]
    fn fill_at(&self, empty: EmptySlot<'_>, depth: usize, alone: bool) -> Step {
        let writable = depth == 0 && self.front_writable(empty.object.is_anon());
        if depth == 0 && self.may_want_superpage() {
            return self.fill_placed(empty, writable);
        }
        let pfn = match Object::zero_page(self.vm, self.pin) {
            Ok(pfn) => pfn,
            Err(NoMemory) => return Step::Fail(FaultError::NoMemory),
        };
        self.vm.stats.get(self.pin).zero_fill.add(1);
        if alone {
            self.put(empty, (pfn, writable), || true)
        } else {
            self.put(empty, (pfn, writable), || self.empty_but(depth))
        }
    }

    /// Inserts a fresh page into `object` and enters it, if the entry has not changed and `also` holds under the table's lock: what else the
    /// decision rests on, such as that no layer above has a page. If it is not entered, a
    /// page of anonymous memory is taken out again. The frame belongs to the object afterwards, or is freed.
    #[inline(always)]
    pub(super) fn put(
        &self,
        empty: EmptySlot<'_>,
        (pfn, writable): (Pfn, bool),
        also: impl Fn() -> bool,
    ) -> Step {
        let flags = if writable {
            Flags::MAPPED | Flags::WRITEABLE | Flags::DIRTY
        } else {
            Flags::MAPPED
        };
        let EmptySlot {
            object,
            index,
            slot,
        } = empty;
        let place = (index, slot);
        let busy = match object.insert_at(self.vm, self.pin, place, (pfn, flags)) {
            Ok(Insert::Done(busy)) => busy,
            // The size of a file was checked before, and the object is not ending.
            Ok(Insert::Beyond) if object.is_anon() && object.size() != 0 => {
                return Step::Fail(FaultError::Bus);
            }
            Ok(Insert::Lost | Insert::Beyond) => return Step::Again,
            // As beyond the end of a file: there can be no page.
            Err(NoMemory) if object.is_over_quota() => return Step::Fail(FaultError::Bus),
            Err(NoMemory) => return Step::Fail(FaultError::NoMemory),
        };
        if writable && !object.is_anon() {
            object.note_store(self.vm);
        }
        let step = self.enter_busy(pfn, writable, || self.is_unchanged() && also());
        if matches!(step, Step::Done) {
            // A slot that was made on the way stays as it is: it would have to be looked up.
            if let Some(slot) = slot {
                slot.settle(pfn);
            }
        } else if object.is_anon() {
            // A page of a file stays, because readers may have seen it.
            object.take_back(self.vm, self.pin, index, (pfn, busy));
        }
        step
    }
}
