//! Write protection high in the tree, and pushing it down.
//!
//! fork clears W in the root's entries: a cost that does not depend on how much is resident. The first write fault
//! below such an entry pushes the protection down along its own path: under the lock of a directory, W is cleared in
//! every entry of the table below, then set in the directory's entry. Each step leaves the product of the W bits along
//! every path unchanged, so that no flush is needed: no translation loses a right, and a CPU with an older translation
//! takes at most one more fault.
//!
//! Push-down takes the lock of every table on its path, even if nothing is left to clear. So consider a fault whose
//! check preceded a fork, and which fills its entry after that fork: either it filled the entry before push-down looks,
//! and the entry loses W; or it takes the lock later, and its check sees what the fork has changed.

use ksync::CpuPin;
use ksync::atomic::{Ordering::SeqCst, fence};

use super::pte::Pte;
use super::table::{ENTRIES, ROOT_LEVEL, Table, slot};
use super::{Loss, Pmap, USER_END};
use crate::tlb::Gather;
use crate::{Machine, Vm};

impl Pmap {
    /// Makes all mappings read-only. The caller has changed the map entries before, and finishes `gather` before
    /// anything relies on the protection.
    pub fn write_protect_high<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pin: &CpuPin,
        gather: &mut Gather<'p>,
    ) {
        // If this misses a root that a first enter is making, that enter sees the changed map entries: its new root is
        // followed by a fence, too.
        fence(SeqCst);
        let all = 0..USER_END;
        gather.over(self, all.clone(), Loss::Rights);
        if let Some(root) = self.table_at(vm, pin, 0, ROOT_LEVEL) {
            let _guard = root.lock_directory();
            root.for_each_locked(0, ENTRIES / 2, |at, pte| {
                if pte.is_writable() {
                    gather.record_all(self);
                    root.mask(at, Pte::W);
                }
            });
        }
        gather.flush_pending(self, &all);
    }

    /// Pushes the write protection above `va` down to the other leaves.
    #[cold]
    #[inline(never)]
    pub(super) fn push_down<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64) {
        let Some(mut upper) = self.table_at(vm, pin, va, ROOT_LEVEL) else {
            return;
        };
        for level in [4, 3, 2] {
            let at = slot(va, level);
            let mut pte = upper.get(at);
            if pte.is_present() && !pte.is_writable() && !pte.is_large() {
                let _guard = upper.lock_directory();
                pte = upper.get(at);
                let ours = !pte.is_writable() && !pte.is_large();
                if pte.is_present() && ours && !upper.is_dead() {
                    Table::at(vm, pte.pfn()).write_protect(level - 1);
                    upper.allow(at, Pte::W);
                }
            }
            // A leaf of 2 MiB stays without W: the fault divides it.
            if !pte.is_present() || pte.is_large() {
                return;
            }
            upper = Table::at(vm, pte.pfn());
        }
    }
}

impl Table<'_> {
    /// Clears W in all entries, leaves of 2 MiB included. The caller holds the lock of the table above, in which W is clear
    /// for this one.
    fn write_protect(&self, level: u8) {
        let clear = || {
            self.for_each_locked(0, ENTRIES, |at, pte| {
                if pte.is_writable() {
                    self.mask(at, Pte::W);
                }
            });
        };
        if level == 1 {
            let _guard = self.lock_leaf();
            clear();
        } else {
            let _guard = self.lock_lower_directory();
            clear();
        }
    }
}
