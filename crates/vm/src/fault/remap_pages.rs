//! What was mapped at an old address is mapped at the new one, without a fault for each page.
//!
//! Guarantee: what is entered is what a fault would enter at that moment. What is not, for want of memory or because somebody
//! holds the page, faults bring.
//!
//! Mechanism: no entry moves. The old range has left the map, or starts afresh, but its tables are still there and tell which pages
//! are worth it; they are looked up in the new entry's layers and entered as a fault's neighbours are, under claims. So a scan
//! finds each page at all of its places at every moment, and the old entries go afterwards.

use super::{Attempt, Found, allows, cut_off};
use crate::Machine;
use crate::Vm;
use crate::fault::Access;
use crate::map::Extent;
use crate::page::PAGE_SIZE;
use crate::pmap::{EnterError, Mapped, TABLE_BYTES};
use crate::rmap::{self, ReverseMap};
use crate::space::Space;
use ksync::CpuPin;

impl Space {
    /// Maps what the tables map in `start..end` at `distance` from there as well. The map's lock is held, a full fence lies behind the
    /// death of the old range's entries, and the new range has entries over their layers.
    pub(crate) fn remap_pages<M: Machine>(&self, vm: &Vm<M>, start: u64, end: u64, distance: u64) {
        let mut va = start;
        loop {
            // A new one for each run: the range may be long.
            let pin = ksync::pin();
            let Some(run) = self.pmap().mapped_from(vm, &pin, va, end) else {
                return;
            };
            let Some(pages) = self.remap_run(vm, &pin, &run, run.va.wrapping_add(distance)) else {
                return;
            };
            va = run.va + (pages * PAGE_SIZE) as u64;
        }
    }

    /// Enters the pages of a run from `to` on; how many of them were dealt with, or none if there is no more to be done.
    fn remap_run<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        run: &Mapped,
        to: u64,
    ) -> Option<usize> {
        let entry = self.find(pin, to)?;
        let attempt = Attempt {
            space: self,
            vm,
            pin,
            state: entry.state(),
            entry,
            chain: entry.chain(pin)?,
            va: to,
            write: false,
        };
        // The map's lock is held, under which no entry dies, and what nobody may read is in no table.
        debug_assert!(!attempt.state.is_dead() && allows(entry.prot(), Access::Read));
        let reach = ((to | (TABLE_BYTES - 1)) + 1).min(entry.end());
        let pages = run.pages.min(((reach - to) / PAGE_SIZE as u64) as usize);
        for depth in 0..attempt.chain.layers().len() {
            attempt.remap_layer(depth, pages, run.bits).ok()?;
        }
        Some(pages)
    }
}

impl<M: Machine> Attempt<'_, M> {
    /// Enters those of the next `pages` pages with a bit that the layer has, and none above it.
    fn remap_layer(&self, depth: usize, pages: usize, bits: u32) -> Result<(), EnterError> {
        let layers = self.chain.layers();
        let layer = &layers[depth];
        let Some(object) = layer.object(self.pin) else {
            return Ok(());
        };
        let is_last = depth + 1 == layers.len();
        let writable = depth == 0 && self.front_writable(object.is_anon());
        let va = |n: usize| self.va + (n * PAGE_SIZE) as u64;
        let wanted = |n: usize| bits >> n & 1 != 0;
        if rmap::Map::PER_PAGE {
            for va in (0..pages).filter(|&n| wanted(n)).map(va) {
                let index = layer.index(va);
                self.vm.rmap.enter(object, index, self.space.pmap_arc(), va);
            }
        }
        let entered = self.space.pmap().enter_around(
            self.vm,
            self.pin,
            self.va,
            pages,
            self.prot(writable),
            // The map's lock is held.
            || true,
            |n| {
                let index = layer.index(va(n));
                let pfn = object.lookup(self.pin, index).filter(|_| wanted(n))?;
                let good = object.has_index(index)
                    && (is_last || !cut_off(self.chain, self.pin, va(n)))
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
