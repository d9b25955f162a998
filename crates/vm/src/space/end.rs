//! The end of an entry's use of its layers. The map's lock is held, and the entry is dead, or its space ends.

use crate::backing::{Backing, Chain};
use crate::map::{Extent, MapEntry};
use crate::object::Remainder;
use crate::{Machine, Vm};

impl MapEntry {
    /// Ends a dead entry's use of its layers, after its page-table entries were removed.
    pub(super) fn end_chain<M: Machine>(&self, vm: &Vm<M>) {
        self.end_part(vm, self.start(), self.end());
    }

    /// Ends an entry's use of its layers at the end of its whole space.
    pub(super) fn end_for_good<M: Machine>(&self, vm: &Vm<M>) {
        // No range needs to be freed on its own: detaching the last use frees or leaves the pages.
        self.end_shared(vm);
    }

    /// Ends a dead entry's use of its layers, where a [`fresh`](MapEntry::fresh) entry took over `start..end`.
    pub(super) fn end_replaced<M: Machine>(&self, vm: &Vm<M>, start: u64, end: u64) {
        if self.is_shared() {
            return self.end_shared(vm);
        }
        self.with_layers(|chain| match chain.terminal_file() {
            Some(file) => chain.end_use_but(vm, file, start, end),
            None => chain.end_use(vm, start, end),
        });
    }

    /// As `end_chain`, where only `start..end` was unmapped and new entries took over the rest.
    #[inline(always)]
    pub(super) fn end_part<M: Machine>(&self, vm: &Vm<M>, start: u64, end: u64) {
        self.each_layer(|layer| layer.end_use(vm, Some((start, end))));
    }

    /// Ends a dead entry's use of its layers where new entries use all of them.
    pub(super) fn end_shared<M: Machine>(&self, vm: &Vm<M>) {
        // As in `each_layer`; but what is left to do for most layers needs no sleep, so one pin serves for all of those.
        let mut at = usize::MAX;
        while let Some(left) = self.end_some(vm, &mut at) {
            left.finish(vm);
        }
    }

    /// Ends the use of layers, from the one before `at`, or from the last, to the front, up to the first for which more is to be
    /// done: that.
    fn end_some<M: Machine>(&self, vm: &Vm<M>, at: &mut usize) -> Option<Remainder> {
        let pin = ksync::pin();
        let layers = self.chain(&pin)?.layers();
        *at = (*at).min(layers.len());
        while let Some(before) = at.checked_sub(1) {
            *at = before;
            let left = layers.get(before)?.end_use_pinned(vm, &pin);
            if left.is_some() {
                return left;
            }
        }
        None
    }

    /// Passes each layer to `f`, which may take long, so no pin is held. The map's lock keeps the chain unchanged.
    ///
    /// From the oldest layer to the front, the direction in which faults move pages: a page that is being moved is
    /// found busy in its old layer, or later in the new one. A front may end before an older layer that another entry
    /// shares; [`Object::move_page`](crate::object::Object::move_page) moves nothing there any more.
    #[inline(always)]
    fn each_layer(&self, f: impl Fn(&Backing)) {
        // A mapping that was never written to has no layers.
        (0..self.depth())
            .rev()
            .filter_map(|at| self.layer(at))
            .for_each(|layer| f(&layer));
    }

    /// Passes a copy of the list of layers to `f`, which may take long, so no pin is held.
    fn with_layers(&self, f: impl FnOnce(&Chain)) {
        if let Some(copy) = self.view() {
            f(&copy);
        }
    }
}
