//! Fault-around: a read fault also maps resident neighbours of a page of a file, or of shared memory.

use super::{Attempt, Found};
use crate::Machine;
use crate::object::Slot;
use crate::page::PAGE_SIZE;
use crate::pmap::AROUND;

impl<M: Machine> Attempt<'_, M> {
    /// Maps the resident pages in the window around the fault: those of a file read-only; those of shared memory, whose
    /// stores need not be recorded, with all rights of the mapping. Does nothing for pages of private memory, or of
    /// a file with unwritten ones.
    #[inline(never)]
    pub(super) fn map_around(&self, found: &Found<'_>) {
        if found.object.is_anon() && !self.entry.is_shared() {
            // Pages shared by a fork are mostly written next.
            return;
        }
        if found.object.may_be_unwritten() {
            // Mapping an unwritten page makes it count as data, so each one gets a fault of its own.
            return;
        }
        let bytes = self.vm.fault_around().min((AROUND * PAGE_SIZE) as u64);
        // A power of two no larger than a table's reach, so the window lies under one table.
        let window = self.va & !(bytes - 1);
        let args = self.entry.args();
        let (start, end) = (window.max(args.start), (window + bytes).min(args.end));
        let count = ((end - start) / PAGE_SIZE as u64) as usize;
        let object = found.object;
        let writable = found.depth == 0 && object.is_anon() && self.front_writable(true);
        // Indexes of shared memory rise with the addresses.
        debug_assert!(!self.layers[found.depth].relation().is_down());
        let first = self.layers[found.depth].index(start);
        let index = |n: usize| first.wrapping_add(n as u32);
        let va = |n: usize| start + (n * PAGE_SIZE) as u64;
        let (mut run, mut run_at): (&[Slot], usize) = (&[], 0);
        let entered = self.space.pmap().enter_around(
            self.vm,
            self.pin,
            &self.ticket,
            start,
            count,
            self.prot(writable),
            || self.is_unchanged(),
            |n| {
                if n - run_at >= run.len() {
                    (run, run_at) = (object.slots_from(self.pin, index(n))?, n);
                }
                let pfn = run.get(n - run_at)?.page()?;
                // The slot first: a write puts its page there before the file reaches as far, and may take it away again.
                let good = object.has_index(index(n)) && self.empty_above(va(n), found.depth);
                good.then_some(pfn)
            },
            |n, pfn| {
                Found {
                    index: index(n),
                    pfn,
                    page: self.vm.pages.get(pfn),
                    ..*found
                }
                .is_still(writable)
            },
        );
        if let Ok(count) = entered {
            self.vm.stats.get(self.pin).around.add(count as u64);
        }
    }
}
