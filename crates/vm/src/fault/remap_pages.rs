//! Entering the pages of a moved range at the new address, without a fault for each page.
//!
//! Guarantee: each page-table entry made is the one that a fault would make at that moment. Pages that are left out,
//! for lack of memory or because they are held busy, are entered by later faults.
//!
//! Mechanism: no entry is moved. The old range has left the map, or starts afresh, but its page tables still exist and
//! show which pages were in use. These are looked up in the new entry's layers and entered, as in fault-around, under
//! claims. So at every moment a scan finds all addresses of each page. The old page-table entries are removed
//! afterwards.

use super::{Attempt, Found, allows};
use crate::Machine;
use crate::Vm;
use crate::fault::Access;
use crate::map::Extent;
use crate::page::PAGE_SIZE;
use crate::pmap::{EnterError, Mapped, TABLE_BYTES};
use crate::rmap::{ReverseMap, Ticket};
use crate::space::Space;
use ksync::CpuPin;

impl Space {
    /// For each page that the tables map in `start..end`, enters the page at `distance` from there. The map's lock is
    /// held; the old range's entries are dead, followed by a full fence; and the new range has entries over their
    /// layers.
    pub(crate) fn remap_pages<M: Machine>(&self, vm: &Vm<M>, start: u64, end: u64, distance: u64) {
        let mut va = start;
        loop {
            // A new pin for each run: the range may be long. Room for entries is had as the pages are found, or not.
            let guard = vm.rmap.begin(self.pmap());
            let Ok((_guard, ticket)) = vm.rmap.prepare(vm, guard, self.pmap(), 0) else {
                return;
            };
            let pin = ksync::pin();
            let Some(run) = self.pmap().mapped_from(vm, &pin, va, end) else {
                return;
            };
            let to = run.va.wrapping_add(distance);
            let Some(pages) = self.remap_run(vm, &pin, ticket, &run, to) else {
                return;
            };
            va = run.va + (pages * PAGE_SIZE) as u64;
        }
    }

    /// Enters the pages of a run from `to` on. Returns how many were handled, or `None` if there is nothing more to do.
    fn remap_run<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: Ticket<'_>,
        run: &Mapped,
        to: u64,
    ) -> Option<usize> {
        let entry = self.find(pin, to)?;
        let chain = entry.chain(pin)?;
        let attempt = Attempt {
            space: self,
            vm,
            pin,
            ticket,
            state: entry.state(),
            entry,
            chain,
            layers: chain.layers(),
            va: to,
            write: false,
        };
        // The map's lock is held, so no entry dies; and a page that may not be read is in no table.
        debug_assert!(!attempt.state.is_dead() && allows(entry.prot(), Access::Read));
        let reach = ((to | (TABLE_BYTES - 1)) + 1).min(entry.end());
        let pages = run.pages.min(((reach - to) / PAGE_SIZE as u64) as usize);
        for depth in 0..attempt.layers.len() {
            attempt.remap_layer(depth, pages, run.bits).ok()?;
        }
        Some(pages)
    }
}

impl<M: Machine> Attempt<'_, M> {
    /// Enters those of the next `pages` pages whose bit is set, that the layer has, and no layer above.
    fn remap_layer(&self, depth: usize, pages: usize, bits: u32) -> Result<(), EnterError> {
        let layers = self.layers;
        let layer = &layers[depth];
        let Some(object) = layer.object(self.pin) else {
            return Ok(());
        };
        let writable = depth == 0 && self.front_writable(object.is_anon());
        let va = |n: usize| self.va + (n * PAGE_SIZE) as u64;
        let wanted = |n: usize| bits >> n & 1 != 0;
        let entered = self.space.pmap().enter_around(
            self.vm,
            self.pin,
            &self.ticket,
            self.va,
            pages,
            self.prot(writable),
            // The map's lock is held.
            || true,
            |n| {
                let index = layer.index(va(n));
                let pfn = object.lookup(self.pin, index).filter(|_| wanted(n))?;
                let good = object.has_index(index)
                    && self.is_reached(va(n), depth)
                    && self.empty_above(va(n), depth);
                good.then_some(pfn)
            },
            |n, pfn| {
                Found {
                    depth,
                    object,
                    index: layer.index(va(n)),
                    pfn,
                    page: self.vm.pages.get(pfn),
                }
                .is_still(writable)
            },
        );
        entered.map(drop)
    }
}
