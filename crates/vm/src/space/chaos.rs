//! Legal havoc: what may happen at any moment, made to happen.

use crate::object::Object;
use crate::page::{Flags, Pfn, owner};
use crate::rmap::{self, ReverseMap, Visit};
use crate::space::Space;
use crate::{Machine, Vm};

/// What [`Vm::chaos_scan`] came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chaos {
    /// No such frame, or somebody holds it.
    Skipped,
    /// The frame belongs to no object.
    NoObject,
    /// The page was removed from so many tables.
    Removed(usize),
}

impl<M: Machine> Vm<M> {
    /// Removes the page in a frame from every page table that maps it. Harmless: the next access faults it in.
    pub fn chaos_scan(&self, pfn: Pfn) -> Chaos {
        let Some(page) = self.pages.find(pfn) else {
            return Chaos::Skipped;
        };
        let pin = ksync::pin();
        if page.object() == 0 {
            return Chaos::Skipped;
        }
        let Some(busy) = page.try_hard_busy() else {
            return Chaos::Skipped;
        };
        let outcome = match owner(page) {
            None => Chaos::NoObject,
            Some(object) => {
                let removed = rmap::remove_all(self, object, page.index(), pfn);
                if cfg!(debug_assertions) {
                    self.assert_unmapped(object, page.index(), pfn);
                }
                let counts = self.stats.get(&pin);
                counts.scans.add(1);
                counts.scan_removed.add(removed as u64);
                Chaos::Removed(removed)
            }
        };
        drop(busy);
        outcome
    }

    /// Looks once more at every place. The caller holds the page hard-busy since before it removed it; so its flags may
    /// be set again, by faults that then find it busy, but no entry can come back.
    fn assert_unmapped(&self, object: &Object, index: u32, pfn: Pfn) {
        let _all = self.rmap.scan(object, &[index], &mut |_, pmap, va| {
            let entry = pmap.lookup(self, &ksync::pin(), va);
            assert!(
                entry.is_none_or(|pte| pte.pfn() != pfn),
                "{pfn:?} is still mapped at {va:#x} after its removal"
            );
            Visit::Keep
        });
    }
}

impl Space {
    /// Drops all page tables, but for locked ranges: harmless, and what a long sleeper's are for. Returns the table pages
    /// that went.
    pub fn drop_tables<M: Machine>(&self, vm: &Vm<M>) -> usize {
        let before = self.pmap().tables();
        self.pmap().drop_tables(vm, |pfn, pte| {
            let page = vm.pages.get(pfn);
            if pte.is_dirty() {
                page.set_flag(Flags::DIRTY);
            }
            if pte.is_accessed() {
                page.set_flag(Flags::REFERENCED);
            }
        });
        before.saturating_sub(self.pmap().tables())
    }
}
