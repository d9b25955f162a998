//! Write protection high in the tree, and its push-down.
//!
//! fork clears W in the root's entries: a cost that does not depend on what is resident. The first write fault below
//! one of them moves the protection down its own path: under the lock of a directory, W is cleared in every entry of
//! the table below, then set in the directory's entry. Each step leaves the product along every path unchanged, so
//! nothing needs a flush: no translation loses a right, and a CPU that still has fewer faults once more.
//!
//! Push-down takes the lock of every table on its path, even where nothing is left to clear. So a fault whose check
//! preceded a fork, and which fills its entry after that fork, has either filled it before push-down looks, and loses
//! W, or takes the lock later and sees in its check what the fork has changed.

use ksync::CpuPin;
use ksync::atomic::{Ordering::SeqCst, fence};

use super::pte::Pte;
use super::table::{ENTRIES, ROOT_LEVEL, Table, slot};
use super::{Loss, Pmap, USER_END};
use crate::tlb::Gather;
use crate::{Machine, Vm};

impl Pmap {
    /// Makes all that is mapped read-only. The caller has changed the map entries before, and finishes `gather` before
    /// it lets anybody rely on it.
    pub fn write_protect_high<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pin: &CpuPin,
        gather: &mut Gather<'p>,
    ) {
        // A first enter that this misses sees the changed map entries: its new root is followed by a fence, too.
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

    /// Moves write protection above `va` down to the leaves beside it.
    #[cold]
    #[inline(never)]
    pub(super) fn push_down<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, va: u64) {
        let Some(mut upper) = self.table_at(vm, pin, va, ROOT_LEVEL) else {
            return;
        };
        for level in [4, 3, 2] {
            let at = slot(va, level);
            let mut pte = upper.get(at);
            if pte.is_present() && !pte.is_writable() {
                let _guard = upper.lock_directory();
                pte = upper.get(at);
                if pte.is_present() && !pte.is_writable() && !upper.is_dead() {
                    Table::at(vm, pte.pfn()).write_protect(level - 1);
                    upper.allow(at, Pte::W);
                }
            }
            if !pte.is_present() {
                return;
            }
            upper = Table::at(vm, pte.pfn());
        }
    }
}

impl Table<'_> {
    /// Clears W in all entries. The caller holds the lock of the table above, whose entry for this one has W clear.
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
