//! Frames at their places: an object's side of reservations (`alloc/reservation/mod.rs`).

use ksync::CpuPin;

use super::slots::INLINE;
use super::{Object, Slot};
use crate::alloc::{NoMemory, Place, Placed};
use crate::{Machine, Vm};

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
}
