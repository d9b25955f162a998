//! Release at exit, and dropping of tables.

use ksync::atomic::Ordering::{Relaxed, Release, SeqCst};

use super::table::{ENTRIES, Table};
use super::{CLOSED, Loss, Pmap, Pte, USER_END};
use crate::limbo::FrameList;
use crate::page::Pfn;
use crate::rmap::ReverseMap;
use crate::tlb::{self, Gather};
use crate::{Machine, Vm};

/// Tables that are retired in one list: bounds the work of a CPU that frees them.
const BATCH: usize = 128;

/// What a release has collected so far.
#[derive(Default)]
struct Released {
    /// Frames of tables not yet retired.
    list: FrameList,
    /// Number of tables in all.
    tables: u32,
    /// Number of pages mapped by level-1 tables and by leaves of 2 MiB.
    entries: usize,
}

impl Pmap {
    /// Frees all tables for good, without reading the entries of level-1 tables; a later enter is `Stale`. For exit and
    /// exec. A and D of the entries must not matter (see [`remove_range`](Pmap::remove_range)).
    ///
    /// Scans, and faults that other processes make in the space, may be walking the tables meanwhile. CPUs that still
    /// have the root loaded, such as an idle one, are told to load the empty root; if there are none, no CPU is
    /// interrupted. Preemptible between tables.
    ///
    /// Returns the number of pages that level-1 tables and leaves of 2 MiB mapped.
    pub fn release<M: Machine>(&self, vm: &Vm<M>) -> usize {
        let listed = self.raise_pending(&(0..USER_END), Loss::Frames);
        let root = self.lookup.root.swap(CLOSED, SeqCst);
        self.bump_generation();
        ksync::fence_after_rmw();
        let running = self.active.snapshot();
        let released = root < CLOSED;
        if released && !running.is_empty() {
            tlb::reload(vm, &running);
        }
        self.lower_pending(listed);
        vm.rmap.forget_pmap(vm, self);
        if !released {
            return 0;
        }
        let mut gone = Released::default();
        self.release_below(vm, Pfn(root), 4, &mut gone);
        vm.retire_frames(gone.list);
        self.tables.fetch_sub(gone.tables, Relaxed);
        gone.entries
    }

    /// Marks an unlinked directory dead, so that no table is linked into it any more, and collects it and all tables
    /// below.
    fn release_below<M: Machine>(&self, vm: &Vm<M>, pfn: Pfn, level: u8, gone: &mut Released) {
        let table = Table::at(vm, pfn);
        if level == 1 {
            gone.entries += table.live();
        } else {
            let guard = table.lock_directory();
            table.set_dead();
            drop(guard);
            // From here on the entries are constant.
            let end = if level == 4 { ENTRIES / 2 } else { ENTRIES };
            let (mut at, mut left) = (0, table.live());
            while left > 0
                && let Some(found) = table.next(at, end)
            {
                left -= 1;
                let pte = table.get(found);
                if pte.is_large() {
                    let pin = ksync::pin();
                    let counts = vm.stats.get(&pin);
                    counts.leaves_removed.add(1);
                    counts
                        .shared_leaves_gone
                        .add(u64::from(pte.any(Pte::SHARED)));
                    gone.entries += ENTRIES;
                } else {
                    self.release_below(vm, pte.pfn(), level - 1, gone);
                }
                at = found + 1;
            }
        }
        gone.list.push(vm.pages, pfn);
        gone.tables += 1;
        if gone.list.len() >= BATCH {
            let batch = core::mem::take(&mut gone.list);
            vm.retire_frames(batch);
        }
    }

    /// Drops all tables but those of wired entries; passes A and D of managed entries to `on_page` as
    /// [`harvest_range`](Pmap::harvest_range) does. The pmap stays usable, even by CPUs that run it, and switching to
    /// it allocates nothing: without a root it runs on the empty one. For long sleepers and `vmchaos`.
    pub fn drop_tables<M: Machine>(&self, vm: &Vm<M>, on_page: impl FnMut(Pfn, super::Pte)) {
        let mut gather = Gather::new();
        self.drop_range(vm, 0, USER_END, &mut gather, on_page);
        self.drop_root(vm, &mut gather);
        gather.finish(vm);
    }

    /// Returns to the empty root if the root has no entries.
    fn drop_root<'p, M: Machine>(&'p self, vm: &Vm<M>, gather: &mut Gather<'p>) {
        let pin = ksync::pin();
        let Some(root) = self.table_at(vm, &pin, 0, 4) else {
            return;
        };
        let guard = root.lock_directory();
        if root.is_dead() || root.live() != 0 {
            return;
        }
        gather.over(self, 0..USER_END, Loss::Frames);
        gather.record_all(self);
        // Release: a CPU that finds no root finds the flush listed.
        let unlinked = self
            .lookup
            .root
            .compare_exchange(root.pfn.0, Pfn::NONE.0, Release, Relaxed);
        if unlinked.is_err() {
            // A release came first, and frees the table.
            return;
        }
        root.set_dead();
        self.tables.fetch_sub(1, Relaxed);
        drop(guard);
        gather.free_later(vm, root.pfn);
    }
}
