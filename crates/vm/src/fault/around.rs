//! Fault-around: resident neighbours of a file page are mapped along with it.

use core::cell::Cell;

use super::{Attempt, Found};
use crate::Machine;
use crate::page::{PAGE_SIZE, Pfn};
use crate::pmap::{AROUND, Pte};
use crate::rmap::{self, ReverseMap};

impl<M: Machine> Attempt<'_, M> {
    /// Maps, read-only, the resident pages of the file in the window around the fault.
    #[inline(never)]
    pub(super) fn map_around(&self, found: &Found<'_>) {
        let bytes = self.vm.fault_around().min((AROUND * PAGE_SIZE) as u64);
        if bytes <= PAGE_SIZE as u64 {
            return;
        }
        // A power of two no larger than a table's reach, so the window lies under one table.
        let window = self.va & !(bytes - 1);
        let args = self.entry.args();
        let (start, end) = (window.max(args.start), (window + bytes).min(args.end));
        let count = ((end - start) / PAGE_SIZE as u64) as usize;
        let layer = &self.chain.layers()[found.depth];
        let pfns = [const { Cell::new(Pfn::NONE) }; AROUND];
        let va = |n: usize| start + (n * PAGE_SIZE) as u64;
        let prot = self.prot(false);
        if rmap::Map::PER_PAGE {
            for va in (0..count).map(va) {
                self.vm
                    .rmap
                    .enter(found.object, layer.index(va), self.space.pmap_arc(), va);
            }
        }
        let entered = self.space.pmap().enter_around(
            self.vm,
            self.pin,
            start,
            count,
            || self.entry.state() == self.state,
            |n| {
                let index = layer.index(va(n));
                let pfn = found.object.lookup(index)?;
                if self.vm.pages.get(pfn).is_hard_busy()
                    || !found.object.has_index(index)
                    || !self.empty_above(va(n), found.depth)
                {
                    return None;
                }
                pfns[n].set(pfn);
                Some(Pte::user(pfn, prot).untouched())
            },
            |n| {
                let (pfn, index) = (pfns[n].get(), layer.index(va(n)));
                Found {
                    index,
                    pfn,
                    page: self.vm.pages.get(pfn),
                    ..*found
                }
                .is_still(false)
            },
        );
        if let Ok(count) = entered {
            self.vm.stats.get(self.pin).around.add(count as u64);
        }
    }
}
