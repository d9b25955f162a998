//! The pmap's protocols, stopped at the step that matters.
//!
//! Each test brings one CPU to the middle of an operation (a check, a callback, a walk) and lets another CPU act there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use vm::page::PAGE_SIZE;
use vm::pmap::{EnterError, Entered, Revoke, Scan};
use vm::{Gather, Machine, Pfn, Pmap, Prot, Pte, Rights, Vm};
use vm_host::mmu::{run, stop};
use vm_host::ticket;
use vm_host::{PageFault, Sim};

const PAGE: u64 = PAGE_SIZE as u64;
const SPAN: u64 = 512 * PAGE;
const ABSENT: PageFault = PageFault { present: false };

struct Lab {
    vm: Vm<Sim>,
    pmap: Arc<Pmap>,
    free: usize,
}

impl Lab {
    fn new() -> Lab {
        let vm = Sim::new(400, 3, 1).into_vm();
        let free = vm.alloc.free_pages();
        Lab {
            vm,
            pmap: Arc::new(Pmap::new()),
            free,
        }
    }

    fn page(&self) -> Pfn {
        self.vm.alloc.alloc(&ksync::pin(), Rights::User).unwrap()
    }

    /// Enters a leaf, with an arbitrary check.
    fn enter(
        &self,
        va: u64,
        leaf: Pte,
        check: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        self.pmap.enter(
            &self.vm,
            &ksync::pin(),
            &ticket(&self.vm, &self.pmap),
            va,
            leaf,
            check,
        )
    }

    fn map(&self, va: u64) -> Pfn {
        let pfn = self.page();
        assert_eq!(
            self.enter(va, Pte::user(pfn, Prot::WRITE), || true),
            Ok(Entered::New)
        );
        pfn
    }

    fn gathered<'p>(&'p self, act: impl FnOnce(&mut Gather<'p>)) {
        let mut gather = Gather::new();
        act(&mut gather);
        gather.finish(&self.vm);
    }

    fn writable(&self, va: u64) -> bool {
        self.pmap
            .lookup(&self.vm, &ksync::pin(), va)
            .is_some_and(Pte::is_writable)
    }

    /// Runs `act` as CPU 1 in a thread while `meanwhile` runs here, and returns when both are over.
    fn beside(&self, act: impl FnOnce() + Send, meanwhile: impl FnOnce()) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ksync::host::set_cpu(1);
                self.vm.epoch.online(1);
                act();
                self.vm.epoch.offline(1);
            });
            meanwhile();
        });
    }

    fn end(self, held: &[Pfn]) {
        self.pmap.release(&self.vm);
        held.iter()
            .for_each(|&pfn| self.vm.alloc.free(&ksync::pin(), pfn));
        self.vm.drain_limbo();
        assert_eq!(self.pmap.tables(), 0);
        assert_eq!(self.vm.alloc.free_pages(), self.free);
    }
}

/// Waits long enough for the other thread to run as far as it can.
fn pause() {
    std::thread::sleep(Duration::from_millis(30));
}

/// Stops a fault in its check until `change` has had time to run as far as it can; returns whether `change` was still
/// waiting then.
fn change_during_check(lab: &Lab, va: u64, leaf: Pte, change: impl FnOnce() + Send) -> bool {
    let (checking, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut waited = false;
    let act = || {
        while !checking.load(SeqCst) {
            std::thread::yield_now();
        }
        change();
        done.store(true, SeqCst);
    };
    lab.beside(act, || {
        let check = || {
            checking.store(true, SeqCst);
            let mut patience = 200;
            while patience > 0 && !done.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
                patience -= 1;
            }
            waited = !done.load(SeqCst);
            true
        };
        assert_eq!(lab.enter(va, leaf, check), Ok(Entered::New));
    });
    waited
}

#[test]
fn a_removal_waits_for_a_fault_that_has_checked() {
    let lab = Lab::new();
    let (there, late) = (lab.map(0), lab.page());
    let remove = || lab.gathered(|gather| lab.pmap.remove_range(&lab.vm, 0, SPAN, gather));
    assert!(change_during_check(
        &lab,
        PAGE,
        Pte::user(late, Prot::WRITE),
        remove
    ));
    assert_eq!(lab.pmap.lookup(&lab.vm, &ksync::pin(), PAGE), None);
    lab.end(&[there, late]);
}

#[test]
fn a_protection_waits_for_a_fault_that_has_checked() {
    let lab = Lab::new();
    let (there, late) = (lab.map(0), lab.page());
    let revoke = Revoke {
        write: true,
        exec: false,
    };
    let protect =
        || lab.gathered(|gather| lab.pmap.protect_range(&lab.vm, 0, SPAN, revoke, gather));
    assert!(change_during_check(
        &lab,
        PAGE,
        Pte::user(late, Prot::WRITE),
        protect
    ));
    assert!(!lab.writable(PAGE));
    lab.end(&[there, late]);
}

#[test]
fn a_push_down_catches_a_fault_that_checked_before_the_fork() {
    let lab = Lab::new();
    let (there, late) = (lab.map(0), lab.page());
    let fork_and_write = || {
        lab.gathered(|gather| lab.pmap.write_protect_high(&lab.vm, &ksync::pin(), gather));
        assert_eq!(
            lab.enter(0, Pte::user(there, Prot::WRITE), || true),
            Ok(Entered::Upgraded)
        );
    };
    assert!(change_during_check(
        &lab,
        PAGE,
        Pte::user(late, Prot::WRITE),
        fork_and_write
    ));
    assert!(lab.writable(0));
    assert!(
        !lab.writable(PAGE),
        "it was entered writable before the fork, and the fork shares it"
    );
    lab.end(&[there, late]);
}

#[test]
fn a_scan_waits_until_a_removed_dirty_bit_is_in_the_page() {
    let lab = Lab::new();
    run(&lab.vm, &ksync::pin(), &lab.pmap);
    let pfn = lab.map(0);
    lab.vm.machine.write(0, 0, 1).unwrap();
    let (busy, marked, seen) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    let scan = || {
        while !busy.load(SeqCst) {
            std::thread::yield_now();
        }
        let found = lab.pmap.scan_remove(&lab.vm, &ksync::pin(), 0, pfn);
        seen.store(marked.load(SeqCst), SeqCst);
        assert_eq!(found, Scan::Absent);
    };
    lab.beside(scan, || {
        lab.gathered(|gather| {
            lab.pmap
                .harvest_range(&lab.vm, 0, PAGE, gather, |found, pte| {
                    assert!(found == pfn && pte.is_dirty());
                    busy.store(true, SeqCst);
                    pause();
                    marked.store(true, SeqCst);
                });
        });
    });
    assert!(
        seen.load(SeqCst),
        "the scan saw neither the entry nor the mark"
    );
    stop(&lab.vm, &ksync::pin(), &lab.pmap);
    lab.end(&[pfn]);
}

/// `unlink` unlinks so many tables while another CPU may walk them: they are freed when it no longer does.
fn unlinked_beside_a_walker(lab: &Lab, tables: usize, unlink: impl FnOnce()) {
    // Skips the first epochs, in which nothing is old enough to be freed.
    while lab.vm.epoch.current() < 20 {
        lab.vm.epoch.quiescent(&mut ksync::pin());
        lab.vm.epoch.advance();
    }
    let (pinned, removed) = (AtomicBool::new(false), AtomicBool::new(false));
    let walker = || {
        let _pin = ksync::pin();
        pinned.store(true, SeqCst);
        while !removed.load(SeqCst) {
            std::thread::yield_now();
        }
    };
    lab.beside(walker, || {
        while !pinned.load(SeqCst) {
            std::thread::yield_now();
        }
        unlink();
        for _ in 0..10 {
            lab.vm.epoch.quiescent(&mut ksync::pin());
            lab.vm.poll_limbo(&ksync::pin());
        }
        let kept = lab.vm.limbo.frames();
        removed.store(true, SeqCst);
        assert_eq!(kept, tables);
    });
    lab.vm.drain_limbo();
    assert_eq!(lab.vm.limbo.frames(), 0);
}

#[test]
fn an_unlinked_table_stays_while_a_walker_may_be_in_it() {
    let lab = Lab::new();
    let pfn = lab.map(0);
    unlinked_beside_a_walker(&lab, 3, || {
        lab.gathered(|gather| lab.pmap.remove_range(&lab.vm, 0, SPAN, gather));
    });
    lab.end(&[pfn]);
}

/// More than are retired in one batch.
#[test]
fn the_tables_of_a_released_pmap_stay_while_a_walker_may_be_in_them() {
    const LEAVES: usize = 130;
    let lab = Lab::new();
    let pfn = lab.page();
    for n in 0..LEAVES as u64 {
        let entered = lab.enter(n * SPAN, Pte::user(pfn, Prot::READ), || true);
        assert_eq!(entered, Ok(Entered::New));
    }
    unlinked_beside_a_walker(&lab, LEAVES + 3, || {
        assert_eq!(lab.pmap.release(&lab.vm), LEAVES);
    });
    lab.end(&[pfn]);
}

#[test]
fn limbo_does_not_grow_while_grace_periods_pass() {
    let lab = Lab::new();
    let pfn = lab.page();
    for round in 0..500 {
        assert_eq!(
            lab.enter(round * SPAN, Pte::user(pfn, Prot::READ), || true),
            Ok(Entered::New)
        );
        lab.gathered(|gather| {
            lab.pmap
                .remove_range(&lab.vm, round * SPAN, (round + 1) * SPAN, gather)
        });
        // A context switch, but never a tick: nothing polls.
        lab.vm.epoch.quiescent(&mut ksync::pin());
        assert!(
            lab.vm.limbo.frames() < 256,
            "{} frames in limbo",
            lab.vm.limbo.frames()
        );
    }
    lab.end(&[pfn]);
}

#[test]
fn an_empty_table_is_forgotten_before_its_frame_is_used_again() {
    let lab = Lab::new();
    lab.beside(|| run(&lab.vm, &ksync::pin(), &lab.pmap), || ());
    let pfn = lab.page();
    // A fault that had to retry leaves an empty table, which the core caches speculatively.
    let leaf = Pte::user(pfn, Prot::READ);
    let refused = lab.pmap.enter_resident(
        &lab.vm,
        &ksync::pin(),
        &ticket(&lab.vm, &lab.pmap),
        0,
        leaf,
        || true,
        || false,
    );
    assert_eq!(refused, Err(EnterError::Retry));
    lab.vm.machine.speculate(1, 0);
    lab.gathered(|gather| lab.pmap.remove_range(&lab.vm, 0, SPAN, gather));
    assert_eq!(lab.pmap.tables(), 1);
    lab.vm.drain_limbo();
    // Whatever the frames contain next, here something that looks like leaves, is not a page table.
    let mut taken = vec![pfn];
    while let Ok(frame) = lab.vm.alloc.alloc(&ksync::pin(), Rights::User) {
        lab.vm.machine.table_words(frame)[0].store(leaf.0, SeqCst);
        taken.push(frame);
    }
    assert_eq!(lab.vm.machine.read(1, 0), Err(ABSENT));
    lab.beside(|| stop(&lab.vm, &ksync::pin(), &lab.pmap), || ());
    lab.end(&taken);
}

/// Lets a stopped fault continue.
const GO: usize = 1 << 20;

/// Stops a fault of CPU 1 at its `look`-th access to table `at` (first in the walk, then in the making of tables), runs
/// `change`, and returns the result of the fault.
fn change_during_walk(
    lab: &Lab,
    (at, look): (Pfn, usize),
    va: u64,
    leaf: Pte,
    change: impl FnOnce(),
) -> Result<Entered, EnterError> {
    let steps = Arc::new(AtomicUsize::new(0));
    let (theirs, ours) = (steps.clone(), steps.clone());
    lab.vm.machine.on_table(Some(Box::new(move |pfn| {
        if pfn == at && ksync::pin().cpu() == 1 && theirs.fetch_add(1, SeqCst) + 1 == look {
            while theirs.load(SeqCst) != GO {
                std::thread::yield_now();
            }
        }
    })));
    let mut done = Ok(Entered::Same);
    lab.beside(
        || done = lab.enter(va, leaf, || true),
        || {
            while ours.load(SeqCst) != look {
                std::thread::yield_now();
            }
            change();
            ours.store(GO, SeqCst);
        },
    );
    lab.vm.machine.on_table(None);
    done
}

/// The table that the entry of `va` in `table`, at `level`, leads to.
fn below(lab: &Lab, table: Pfn, level: u8, va: u64) -> Pfn {
    Pte(lab.vm.machine.table_words(table)[vm::pmap::table::slot(va, level)].load(SeqCst)).pfn()
}

/// Unlinks all tables while a fault of CPU 1 reads the table that `find` returns; the fault must succeed all the same.
fn walk_starts_again(va: u64, look: usize, find: impl FnOnce(&Lab, Pfn) -> Pfn) {
    let lab = Lab::new();
    let (old, new) = (lab.map(0), lab.page());
    let directory = below(&lab, below(&lab, lab.pmap.root().unwrap(), 4, 0), 3, 0);
    let at = find(&lab, directory);
    let remove = || lab.gathered(|gather| lab.pmap.remove_range(&lab.vm, 0, SPAN, gather));
    let done = change_during_walk(&lab, (at, look), va, Pte::user(new, Prot::READ), remove);
    assert_eq!(done, Ok(Entered::New));
    assert_eq!(
        lab.pmap.lookup(&lab.vm, &ksync::pin(), va).map(Pte::pfn),
        Some(new)
    );
    assert_eq!(lab.pmap.tables(), 4);
    lab.end(&[old, new]);
}

#[test]
fn a_walk_into_an_unlinked_leaf_table_starts_again() {
    walk_starts_again(PAGE, 1, |lab, directory| below(lab, directory, 2, 0));
}

#[test]
fn a_table_is_not_linked_to_an_unlinked_directory() {
    walk_starts_again(3 * SPAN, 2, |_, directory| directory);
}

/// With lists of entries a release waits for the fault instead, which has room for one.
#[test]
#[cfg(not(any(feature = "pv-obm", feature = "pv-stock")))]
fn a_fault_from_outside_leaves_nothing_in_a_released_pmap() {
    let lab = Lab::new();
    let (old, new) = (lab.map(0), lab.page());
    let directory = below(&lab, below(&lab, lab.pmap.root().unwrap(), 4, 0), 3, 0);
    let release = || {
        lab.pmap.release(&lab.vm);
    };
    let done = change_during_walk(
        &lab,
        (directory, 2),
        5 * SPAN,
        Pte::user(new, Prot::READ),
        release,
    );
    assert_eq!(done, Err(EnterError::Stale));
    assert_eq!(lab.pmap.tables(), 0);
    lab.end(&[old, new]);
}

/// An operation that is counted as not yet flushed is uncounted afterwards: else all others would flush for it for
/// ever.
#[test]
fn nothing_is_pending_after_an_operation() {
    type Act = fn(&Lab, Pfn);
    let acts: [(&str, Act); 5] = [
        ("a removal", |lab, _| {
            lab.gathered(|gather| lab.pmap.remove_range(&lab.vm, 0, SPAN, gather));
        }),
        ("dropped tables", |lab, _| {
            lab.pmap.drop_tables(&lab.vm, |_, _| ());
        }),
        ("a scan", |lab, pfn| {
            lab.pmap.scan_remove(&lab.vm, &ksync::pin(), 0, pfn);
        }),
        ("a scan in vain", |lab, pfn| {
            lab.pmap.scan_remove(&lab.vm, &ksync::pin(), PAGE, pfn);
        }),
        ("a release", |lab, _| {
            lab.pmap.release(&lab.vm);
        }),
    ];
    for (name, act) in acts {
        let lab = Lab::new();
        let pfn = lab.map(0);
        act(&lab, pfn);
        // Changes nothing, but makes the flush of another operation.
        lab.gathered(|gather| {
            lab.pmap
                .protect_range(&lab.vm, 0, SPAN, Revoke::default(), gather);
            assert!(gather.is_empty(), "{name}");
        });
        lab.end(&[pfn]);
    }
}

/// An operation that finds an entry already removed, but not yet flushed, may reuse its address: so it flushes, too.
#[test]
fn who_finds_an_entry_gone_finds_its_translation_gone() {
    let lab = Lab::new();
    run(&lab.vm, &ksync::pin(), &lab.pmap);
    let pfn = lab.map(0);
    lab.vm.machine.write(0, 0, 1).unwrap();
    let mut first = Gather::new();
    lab.pmap.remove_range(&lab.vm, 0, SPAN, &mut first);
    assert_eq!(lab.vm.machine.write(0, 0, 2), Ok(()), "nobody has flushed");
    lab.gathered(|gather| lab.pmap.remove_range(&lab.vm, 0, SPAN, gather));
    assert_eq!(lab.vm.machine.write(0, 0, 3), Err(ABSENT));
    first.finish(&lab.vm);
    stop(&lab.vm, &ksync::pin(), &lab.pmap);
    lab.end(&[pfn]);
}
