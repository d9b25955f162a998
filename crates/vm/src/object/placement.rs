//! What a page of an object takes: a frame at its place, which is the object's side of reservations (`alloc/reservation/mod.rs`); and
//! a file's page a credit of its file system.

use ksync::CpuPin;

use super::slots::INLINE;
use super::{Object, Quota, Slot};
use crate::alloc::{NoMemory, Place, Placed, Pressure, RUN_FRAMES};
use crate::page::{Pfn, zero_frame};
use crate::{Machine, SharedSuperpages, Vm};

impl Object {
    /// Takes a frame for a page at `index`: the one at its place in the run that is reserved for the block of `index`; with
    /// `reserve`, of a run that is reserved now, if there is one to spare; or else any. For regions in which superpages are
    /// wanted.
    ///
    /// # Errors
    /// No memory for users.
    pub fn placed_frame<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        index: u32,
        reserve: bool,
    ) -> Result<Placed, NoMemory> {
        let object = self.identity();
        let at = (Place { object, index }, &self.blocks);
        vm.alloc
            .alloc_at(pin, at, reserve, || self.has_index(index))
    }

    /// Takes a frame of zeroes for a page that a write makes at `index`: at its place, where the setting asks for superpages without
    /// advice.
    ///
    /// # Errors
    /// No memory for users.
    pub(super) fn zero_page_at<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        index: u32,
    ) -> Result<Pfn, NoMemory> {
        let wanted = match vm.shmem_superpages() {
            SharedSuperpages::Always | SharedSuperpages::Force => true,
            SharedSuperpages::WithinSize => self.has_index(index | (RUN_FRAMES - 1)),
            SharedSuperpages::Never | SharedSuperpages::Advised | SharedSuperpages::Deny => {
                return Object::zero_page(vm, pin);
            }
        };
        let slot = self.slot(pin, index);
        let reserve = wanted && Object::is_first_of_leaf((index, slot));
        let pfn = self.placed_frame(vm, pin, index, reserve)?.pfn;
        zero_frame(&vm.machine, pfn);
        Ok(pfn)
    }

    /// Whether a page at an index, whose slot is looked up, is the first of its leaf of the index, or one of the few that have
    /// slots in the object: about eight times in a block of 512.
    pub(crate) fn is_first_of_leaf((index, slot): (u32, Option<&Slot>)) -> bool {
        slot.is_none() || (index as usize) < INLINE
    }

    /// Ends the reservations for blocks at and beyond an index, after a change of the size. Their pages stay. Preemptible.
    pub(super) fn end_reservations<M: Machine>(&self, vm: &Vm<M>, from: u32) {
        vm.alloc
            .end_reservations(self.identity(), from, &self.blocks);
    }

    /// Takes credits for a page when the CPU has none at hand. A write fails while memory is low: the last memory is
    /// not for files, which no memory killer can free.
    #[cold]
    pub(super) fn charge<M: Machine>(vm: &Vm<M>, pin: &CpuPin, quota: &Quota, write: bool) -> bool {
        (!write || vm.alloc.pressure() == Pressure::None) && quota.take_burst(pin)
    }

    /// Takes credits for many pages at once; false, with nothing taken, if there are not so many.
    pub(super) fn charge_many(&self, pages: usize) -> bool {
        let Some(quota) = self.quota else {
            return true;
        };
        quota.charge_many(pages)
    }

    /// Returns the credits of pages that have left the object.
    #[inline]
    pub(super) fn refund(&self, pin: &CpuPin, pages: usize) {
        if let Some(quota) = self.quota {
            quota.give(pin, pages);
        }
    }
}
