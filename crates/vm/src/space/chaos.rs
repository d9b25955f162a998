//! Fault injection: forces events that may legally happen at any moment.

use crate::object::Object;
use crate::page::{Flags, Page, Pfn, owner};
use crate::rmap::{self, ReverseMap, Visit};
use crate::space::Space;
use crate::{Machine, Vm};

/// Result of [`Vm::chaos_scan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chaos {
    /// There is no such frame, it has no identity, or the page is held busy.
    Skipped,
    /// The frame belongs to no object.
    NoObject,
    /// The page was removed from this many page-table entries.
    Removed(usize),
}

impl<M: Machine> Vm<M> {
    /// Removes the page in a frame from every page table that maps it. Harmless: the next access faults it in.
    pub fn chaos_scan(&self, pfn: Pfn) -> Chaos {
        let Some(page) = self.pages.find(pfn) else {
            return Chaos::Skipped;
        };
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
                    self.assert_unmapped(object, page, pfn);
                }
                let pin = ksync::pin();
                let counts = self.stats.get(&pin);
                counts.scans.add(1);
                counts.scan_removed.add(removed as u64);
                Chaos::Removed(removed)
            }
        };
        drop(busy);
        outcome
    }

    /// Checks again that no page table maps the page. The caller has held the page hard-busy since before its removal.
    /// Faults may set the page's flags meanwhile, but then find it busy, so that no entry can come back.
    fn assert_unmapped(&self, object: &Object, page: &Page, pfn: Pfn) {
        let _all = self.rmap.scan(object, &[page], &mut |_, pmap, va| {
            let entry = pmap.lookup(self, &ksync::pin(), va);
            assert!(
                // A special mapping's entries are unmanaged, and stay.
                entry.is_none_or(|pte| pte.pfn() != pfn || !pte.is_managed()),
                "{pfn:?} is still mapped at {va:#x} after its removal"
            );
            Visit::Keep
        });
    }
}

impl Space {
    /// Drops all page tables except those of [wired](crate::Pte::WIRED) entries, which only tests make yet. Harmless;
    /// also saves memory for a process that sleeps long.
    /// Returns the number of table pages freed.
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
