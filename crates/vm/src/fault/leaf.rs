//! Faults that fill a leaf of 2 MiB at once: `doc/vm-superpages.md`.

use ksync::CpuPin;

use super::superpage::BLOCK_BYTES;
use super::{Access, Attempt, EmptySlot, Step};
use crate::alloc::{NoMemory, Pressure, RUN_FRAMES, RUN_ORDER};
use crate::map::Prot;
use crate::object::{Object, Slot};
use crate::page::{Flags, Pfn, zero_frame};
use crate::pmap::Pte;
use crate::pmap::table::ENTRIES;
use crate::rmap::{Map, ReverseMap, Ticket};
use crate::space::Space;
use crate::{Machine, Vm};

impl Space {
    /// Serves a write fault in a block that [may get a leaf](Attempt::fits_leaf), by that, or else by a page. Returns the step
    /// that follows, which is not this one, and the pin that it was taken under. Sleeping context; most of the time, in which
    /// the pages are zeroed, is spent without a pin.
    #[cold]
    #[inline(never)]
    pub(super) fn fill_leaf<M: Machine>(&self, vm: &Vm<M>, va: u64) -> (CpuPin, Step) {
        let run = vm.alloc.alloc_run(&ksync::pin()).ok();
        if let Some(run) = run {
            (0..RUN_FRAMES).for_each(|n| zero_frame(&vm.machine, run.add(n)));
        }
        let guard = vm.rmap.begin(self.pmap());
        let prepared = vm.rmap.prepare(vm, guard, self.pmap(), 1);
        let pin = ksync::pin();
        let step = match prepared {
            Ok((guard, ticket)) => {
                let step = self.put_run(vm, &pin, va, run, ticket);
                vm.rmap.end(guard);
                step
            }
            Err(NoMemory) => {
                run.inspect(|&run| vm.alloc.free_order(&pin, run, RUN_ORDER));
                Step::Fail(NoMemory.into())
            }
        };
        (pin, step)
    }

    /// The pinned part of `fill_leaf`: the run is mapped, or free again.
    fn put_run<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        va: u64,
        run: Option<Pfn>,
        ticket: Ticket<'_>,
    ) -> Step {
        let mut unused = run;
        let step = self.look(vm, pin, ticket, va, Access::Write, |attempt| {
            match unused.take() {
                Some(run) if attempt.put_leaf(run) => Step::Done,
                _ => attempt.fill_page(),
            }
        });
        if let Some(run) = unused {
            vm.alloc.free_order(pin, run, RUN_ORDER);
        }
        step
    }
}

impl<M: Machine> Attempt<'_, M> {
    /// Fills the front layer's slot, if no layer has a page there by now. Looks at the entry again: filling a leaf takes long enough
    /// that it changes each time, where another thread changes a part of it all the time.
    fn fill_page(mut self) -> Step {
        self.state = self.entry.state();
        let Some(chain) = self.entry.chain(self.pin) else {
            return Step::Again;
        };
        if self.state.is_dead() || self.state.needs_copy() {
            return Step::Again;
        }
        (self.chain, self.layers) = (chain, chain.layers());
        let layers = self.layers;
        let Some(object) = layers[0].object(self.pin) else {
            return Step::Again;
        };
        let index = layers[0].index(self.va);
        let slot = object.slot(self.pin, index);
        if layers.len() > 1 || object.frames().is_some() || slot.and_then(Slot::page).is_some() {
            return Step::Again;
        }
        let empty = EmptySlot {
            object,
            index,
            slot,
        };
        self.fill_one(empty, self.front_writable(object.is_anon()))
    }

    /// Whether the fault's block, in the front layer, where it has this index, may get a leaf: for a write, where no page of it
    /// exists in any layer, and memory is plentiful. Designs that list entries by page get theirs by promotion.
    pub(super) fn fits_leaf(&self, object: &Object, index: u32) -> bool {
        let first = index & !(RUN_FRAMES - 1);
        self.write
            && !Map::PER_PAGE
            // Not in models, whose runs are shorter.
            && RUN_FRAMES as usize == ENTRIES
            && self.vm.tuning.fill_leaves
            && self.layers.len() == 1
            && object.frames().is_none()
            && self.front_writable(object.is_anon())
            && !self.entry.prot().contains(Prot::EXEC)
            && self.wants_superpage(object, index)
            && object.has_index(first + (RUN_FRAMES - 1))
            && object.is_block_empty(self.pin, index)
            && self.vm.alloc.pressure() == Pressure::None
    }

    /// Inserts the zeroed pages of a run into the front layer, and maps them by a leaf. Returns whether it did: else the run is
    /// free again.
    fn put_leaf(&self, run: Pfn) -> bool {
        let front = &self.layers[0];
        let index = front.index(self.va);
        let flags = Flags::MAPPED | Flags::WRITEABLE | Flags::DIRTY;
        let object = front.object(self.pin);
        let Some(object) = object.filter(|object| self.fits_leaf(object, index)) else {
            self.vm.alloc.free_order(self.pin, run, RUN_ORDER);
            return false;
        };
        let first = index & !(RUN_FRAMES - 1);
        let Some(held) = object.insert_run(self.vm, self.pin, (first, run), flags) else {
            return false;
        };
        if !object.is_anon() {
            object.note_store(self.vm);
        }
        let mut leaf = Pte::user(run, self.prot(true)).dirtied().with(Pte::PS);
        if self.entry.is_shared() {
            leaf = leaf.with(Pte::SHARED);
        }
        let base = self.va & !(BLOCK_BYTES - 1);
        let entered = self
            .space
            .pmap()
            .enter_large(self.vm, self.pin, base, leaf, || self.is_unchanged());
        if !entered {
            held.give_up(self.vm, self.pin);
            return false;
        }
        held.release(self.vm.pages);
        self.vm.stats.get(self.pin).zero_fill.add(1);
        true
    }
}
