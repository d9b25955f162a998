//! Leaves of 2 MiB, stopped at the decisive step: between a promotion and its flush; at a table that dies; at each look at
//! a table. `shuttle_superpages.rs` stops at each access to an entry.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use vm::page::Flags;
#[cfg(not(feature = "listed"))]
use vm::pmap::AROUND;
use vm::pmap::{Entered, Revoke, Scan};
use vm::{Prot, Pte};
use vm_host::mmu::LARGE;
use vm_host::runs::{BASE, PAGES, Runs};

/// Pages of which CPUs have translations cached.
const CACHED: [usize; 5] = [0, 7, 8, 300, 511];

fn reads(lab: &Runs, cpu: usize, n: usize) -> bool {
    lab.read(cpu, n).is_ok()
}

fn writes(lab: &Runs, cpu: usize, n: usize) -> bool {
    lab.write(cpu, n, 1).is_ok()
}

fn is_marked(lab: &Runs, n: usize) -> bool {
    let pte = lab.lookup(0, n);
    let flags = lab.vm.pages.get(lab.frame(0, n)).flags();
    pte.is_some_and(Pte::is_dirty) || flags.contains(Flags::DIRTY)
}

/// Runs `act` between a promotion and its flush, while CPUs have translations of both sizes cached.
fn before_the_flush(act: impl Fn(&Runs) + Send + Sync + 'static) {
    let lab = Arc::new(Runs::new(2, 2));
    lab.enter(0, Pte::user(lab.frame(1, 0), Prot::READ));
    lab.fill(0, Prot::WRITE);
    for cpu in 0..2 {
        lab.run_on(cpu);
        assert!(CACHED.iter().all(|&n| writes(&lab, cpu, n)));
    }
    let (inner, ran) = (lab.clone(), Arc::<AtomicBool>::default());
    let has_run = ran.clone();
    lab.vm.machine.on_flush(Some(Arc::new(move || {
        if has_run.swap(true, SeqCst) {
            return;
        }
        assert!(inner.is_large(0));
        // The first look takes the cached way to the old table; the second finds the leaf.
        for cpu in [0, 0, 1, 1] {
            inner.vm.machine.speculate(cpu, Runs::va(0, 200));
        }
        act(&inner);
    })));
    assert!(lab.promote(0));
    assert!(ran.load(SeqCst));
    lab.vm.machine.on_flush(None);
    (0..2).for_each(|cpu| lab.stop_on(cpu));
    Arc::into_inner(lab).expect("the hook is gone").finish();
}

fn assert_none(lab: &Runs, what: &str, reaches: fn(&Runs, usize, usize) -> bool) {
    for (cpu, n) in (0..2).flat_map(|cpu| CACHED.map(|n| (cpu, n))) {
        assert!(!reaches(lab, cpu, n), "CPU {cpu}, page {n}: {what}");
    }
}

/// One address drops one translation of 4 KiB, so an operation on the leaf must know that more are cached.
#[test]
#[cfg_attr(feature = "pv-stock", ignore = "a removal in a pinned hook")]
fn what_takes_a_leaf_before_its_flush_flushes_everything() {
    before_the_flush(|lab| {
        lab.remove(0, 0..PAGES);
        assert_none(lab, "removal", reads);
    });
    before_the_flush(|lab| {
        lab.protect(0, 0..PAGES);
        assert_none(lab, "protection", writes);
    });
    before_the_flush(|lab| {
        lab.fork();
        assert_none(lab, "fork", writes);
    });
    before_the_flush(|lab| {
        lab.pmap.drop_tables(&lab.vm, |_, _| ());
        assert_none(lab, "dropping", reads);
    });
    before_the_flush(|lab| {
        lab.without_memory(|| lab.remove(0, 7..8));
        assert_none(lab, "removal of a part", reads);
    });
    before_the_flush(|lab| {
        lab.without_memory(|| lab.protect(0, 7..8));
        assert_none(lab, "protection of a part", reads);
    });
    before_the_flush(|lab| {
        lab.without_memory(|| lab.scan_remove(0, 7));
        assert_none(lab, "scan", reads);
        assert!((0..PAGES).all(|n| n == 7 || is_marked(lab, n)));
    });
    before_the_flush(|lab| {
        lab.without_memory(|| lab.scan_write_protect(0, 7));
        assert_none(lab, "write-protecting scan", reads);
    });
}

/// A change of one page needs no more than its own address.
#[test]
#[cfg_attr(feature = "pv-stock", ignore = "a removal in a pinned hook")]
fn what_takes_a_page_before_the_flush_takes_that_page() {
    before_the_flush(|lab| {
        lab.remove(0, 7..8);
        assert!((0..2).all(|cpu| !reads(lab, cpu, 7) && writes(lab, cpu, 8)));
    });
    before_the_flush(|lab| {
        lab.protect(0, 7..8);
        assert!((0..2).all(|cpu| !writes(lab, cpu, 7) && writes(lab, cpu, 8)));
    });
    before_the_flush(|lab| {
        assert!(matches!(lab.scan_remove(0, 7), Scan::Found(pte) if pte.is_dirty()));
        assert!((0..2).all(|cpu| !reads(lab, cpu, 7) && writes(lab, cpu, 8)));
    });
    before_the_flush(|lab| {
        lab.scan_write_protect(0, 7);
        assert!((0..2).all(|cpu| !writes(lab, cpu, 7) && writes(lab, cpu, 8)));
    });
}

/// Between the removal of a leaf that could not be divided and the flush, its other pages are in the list, too: what is
/// entered there waits, even if the operation was to take rights away and no frame.
#[test]
fn a_frame_comes_where_a_leaf_was_after_the_flush() {
    let acts: [fn(&Runs); 4] = [
        |lab| {
            lab.scan_remove(0, 7);
        },
        |lab| {
            lab.scan_write_protect(0, 7);
        },
        |lab| lab.remove(0, 7..8),
        |lab| lab.protect(0, 7..8),
    ];
    acts.into_iter().for_each(enter_before_the_flush);
}

fn enter_before_the_flush(act: fn(&Runs)) {
    let lab = Arc::new(Runs::promoted(2, Prot::WRITE));
    lab.run_on(0);
    assert!(writes(&lab, 0, 9));
    let (inner, ran) = (lab.clone(), Arc::<AtomicBool>::default());
    let has_run = ran.clone();
    lab.vm.machine.on_flush(Some(Arc::new(move || {
        if !has_run.swap(true, SeqCst) {
            inner.vm.alloc.set_injector(0, 0);
            assert!(!inner.is_large(0));
            // Another page at the address: CPU 0 may not use the old one any more.
            inner.enter(Runs::va(0, 9), Pte::user(inner.frame(1, 9), Prot::WRITE));
            let _fault_or_none = writes(&inner, 0, 9);
            assert!(writes(&inner, 0, 9));
            let word = inner.vm.machine.read(0, Runs::va(0, 9));
            assert_eq!(word, Ok(1));
            let mut bytes = [0; 8];
            vm::page::read_frame(&inner.vm.machine, inner.frame(1, 9), 0, &mut bytes);
            assert_eq!(
                u64::from_le_bytes(bytes),
                1,
                "the store went to the old page"
            );
        }
    })));
    lab.without_memory(|| act(&lab));
    assert!(ran.load(SeqCst));
    lab.vm.machine.on_flush(None);
    lab.stop_on(0);
    Arc::into_inner(lab).expect("the hook is gone").finish();
}

/// Performs `act` on CPU 1, which has found the table of the run when a promotion replaces it.
fn at_a_dying_table<R: Send>(prot: Prot, act: impl FnOnce(&Runs) -> R + Send) -> (Runs, R) {
    let lab = Runs::new(3, 2);
    lab.enter(0, Pte::user(lab.frame(1, 0), Prot::READ));
    lab.fill(0, prot);
    lab.run_on(0);
    let table = lab.directory_entry(0).pfn();
    let mut done = None;
    let theirs = || done = Some(act(&lab));
    let promote = || assert!(lab.promote(0));
    // CPU 1 has no lock there, so the promotion comes to its end.
    let patience = Duration::from_secs(600);
    assert!(lab.stopped((1, Some(table)), patience, theirs, promote));
    (lab, done.expect("it ran"))
}

fn end(lab: Runs) {
    lab.stop_on(0);
    lab.finish();
}

#[test]
fn a_fault_that_waits_at_a_table_that_dies_finds_the_leaf() {
    let (lab, done) = at_a_dying_table(Prot::WRITE, |lab| lab.fault(7, Prot::WRITE));
    assert_eq!((done, lab.is_large(0)), (Entered::Same, true));
    assert_eq!(lab.pmap.resident(&lab.vm), PAGES + 1);
    end(lab);
    let (lab, done) = at_a_dying_table(Prot::READ, |lab| lab.fault(7, Prot::WRITE));
    assert_eq!((done, lab.is_large(0)), (Entered::Upgraded, false));
    assert!(writes(&lab, 0, 7) && !writes(&lab, 0, 8));
    end(lab);
    let (lab, done) = at_a_dying_table(Prot::READ, |lab| {
        let leaf = Pte::user(lab.frame(1, 7), Prot::WRITE);
        lab.pmap.enter_over(
            &lab.vm,
            &ksync::pin(),
            &lab.ticket(),
            Runs::va(0, 7),
            leaf,
            || true,
        )
    });
    let old = lab.frame(0, 7);
    assert!(matches!(done, Ok(Entered::Replaced(pte)) if pte.pfn() == old));
    assert!(writes(&lab, 0, 7) && reads(&lab, 0, 8));
    end(lab);
}

#[test]
fn a_removal_that_waits_at_a_table_that_dies_removes_the_leaf() {
    let (lab, ()) = at_a_dying_table(Prot::WRITE, |lab| lab.remove(0, 0..PAGES));
    assert_eq!((lab.pmap.resident(&lab.vm), lab.pmap.tables()), (1, 4));
    assert!((0..PAGES).all(|n| !reads(&lab, 0, n)));
    end(lab);
    let (lab, ()) = at_a_dying_table(Prot::WRITE, |lab| lab.remove(0, 7..9));
    assert_eq!(lab.pmap.resident(&lab.vm), PAGES - 1);
    assert!(!reads(&lab, 0, 7) && !reads(&lab, 0, 8) && reads(&lab, 0, 9));
    end(lab);
    let (lab, seen) = at_a_dying_table(Prot::WRITE, |lab| {
        let mut seen = 0;
        let on_page = |_, pte: Pte| seen += usize::from(pte.is_dirty());
        let harvest = |gather: &mut _| {
            lab.pmap
                .harvest_range(&lab.vm, BASE, BASE + LARGE, gather, on_page)
        };
        let mut gather = vm::Gather::new();
        harvest(&mut gather);
        gather.finish(&lab.vm);
        seen
    });
    assert_eq!((seen, lab.pmap.resident(&lab.vm)), (PAGES, 1));
    end(lab);
}

#[test]
fn a_protection_that_waits_at_a_table_that_dies_protects_the_leaf() {
    let (lab, ()) = at_a_dying_table(Prot::WRITE, |lab| lab.protect(0, 0..PAGES));
    assert!((0..PAGES).all(|n| !writes(&lab, 0, n)));
    end(lab);
    let (lab, ()) = at_a_dying_table(Prot::WRITE, |lab| lab.protect(0, 7..9));
    assert!(!writes(&lab, 0, 7) && !writes(&lab, 0, 8) && writes(&lab, 0, 9));
    end(lab);
}

#[test]
fn a_scan_that_has_found_a_table_that_dies_finds_the_leaf() {
    let (lab, found) = at_a_dying_table(Prot::WRITE, |lab| lab.scan_remove(0, 7));
    assert!(matches!(found, Scan::Found(pte) if pte.is_dirty()));
    assert!(!reads(&lab, 0, 7) && reads(&lab, 0, 8));
    end(lab);
    let (lab, found) = at_a_dying_table(Prot::WRITE, |lab| lab.scan_write_protect(0, 7));
    assert!(matches!(found, Scan::Found(pte) if pte.is_dirty()));
    assert!(!writes(&lab, 0, 7) && writes(&lab, 0, 8));
    end(lab);
}

#[test]
fn a_look_at_a_table_that_dies_sees_what_it_said() {
    let (lab, entry) = at_a_dying_table(Prot::READ, |lab| lab.lookup(0, 7));
    assert_eq!(entry, lab.lookup(0, 7));
    end(lab);
    let (lab, resident) = at_a_dying_table(Prot::READ, |lab| lab.pmap.resident(&lab.vm));
    assert_eq!(resident, PAGES + 1);
    end(lab);
    let (lab, bits) = at_a_dying_table(Prot::READ, |lab| {
        let pin = ksync::pin();
        let run = lab.pmap.mapped_from(&lab.vm, &pin, BASE, BASE + LARGE);
        run.expect("pages").bits
    });
    assert_eq!(bits, 0xffff);
    end(lab);
    let (lab, ()) = at_a_dying_table(Prot::READ, |lab| {
        let leaf = Pte::user(lab.frame(0, 7), Prot::READ);
        let va = Runs::va(0, 7);
        let around = lab.pmap.enter_around(
            &lab.vm,
            &ksync::pin(),
            &lab.ticket(),
            va,
            4,
            Prot::READ,
            || true,
            |_| Some(leaf.pfn()),
            |_, _| true,
        );
        assert_eq!(around, Ok(0));
    });
    assert!(lab.is_large(0));
    end(lab);
}

/// A page's mark is there before the leaf is gone: a scan that finds the address empty relies on that.
#[test]
fn a_scan_waits_until_the_marks_of_a_removed_leaf_are_in_the_pages() {
    let lab = Runs::promoted(2, Prot::WRITE);
    let [marking, marked, seen] = [(); 3].map(|()| AtomicBool::new(false));
    let scan = || {
        while !marking.load(SeqCst) {
            std::thread::yield_now();
        }
        assert_eq!(lab.scan_remove(0, 500), Scan::Absent);
        seen.store(marked.load(SeqCst), SeqCst);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| lab.play(1, scan));
        lab.gathered(|gather| {
            let end = BASE + LARGE;
            lab.pmap
                .harvest_range(&lab.vm, BASE, end, gather, |pfn, pte| {
                    if pfn == lab.frame(0, 500) {
                        assert!(pte.is_dirty());
                        marking.store(true, SeqCst);
                        std::thread::sleep(Duration::from_millis(30));
                        marked.store(true, SeqCst);
                    }
                });
        });
    });
    assert!(seen.load(SeqCst), "the scan saw neither leaf nor mark");
    lab.finish();
}

type Op = (&'static str, fn(&Runs));

/// Page 7 is taken away, page 9 is faulted on.
const OPS: [Op; 12] = [
    ("promotion", |lab| {
        lab.promote(0);
    }),
    ("demotion", |lab| lab.demote(0)),
    ("removal", |lab| {
        lab.remove(0, 0..PAGES);
        assert!(!reads(lab, 0, 7));
    }),
    ("removal of a part", |lab| {
        lab.remove(0, 7..9);
        assert!(!reads(lab, 0, 7) && !reads(lab, 0, 8));
    }),
    ("protection", |lab| {
        lab.protect(0, 0..PAGES);
        assert!(CACHED.iter().all(|&n| !writes(lab, 0, n)));
    }),
    ("protection of a part", |lab| {
        lab.protect(0, 5..8);
        assert!(!writes(lab, 0, 7));
    }),
    ("removal by a scan", |lab| {
        lab.scan_remove(0, 7);
        assert!(!reads(lab, 0, 7));
    }),
    ("protection by a scan", |lab| {
        lab.scan_write_protect(0, 7);
        assert!(!writes(lab, 0, 7));
    }),
    ("fork and fault", |lab| {
        lab.fork();
        assert!(!writes(lab, 0, 7));
        lab.fault(9, Prot::WRITE);
        assert!(!writes(lab, 0, 7));
    }),
    ("fault", |lab| {
        lab.fault(9, Prot::EXEC);
    }),
    ("release", |lab| {
        lab.pmap.release(&lab.vm);
        assert!(!reads(lab, 0, 7));
    }),
    ("dropping", |lab| {
        lab.pmap.drop_tables(&lab.vm, |pfn, pte| {
            assert!(pte.is_managed());
            lab.vm.pages.get(pfn).set_flag(Flags::DIRTY);
        });
        assert!(!reads(lab, 0, 7));
    }),
];

/// Stops `first` at each of its looks at tables, while `second` runs and CPU 0 uses the pages, which it has used before if
/// it is `warm`. Returns the number of looks.
fn pair(first: Op, second: Op, large: bool, warm: bool) -> usize {
    for look in 1.. {
        let lab = Runs::new(3, 2);
        lab.enter(0, Pte::user(lab.frame(1, 0), Prot::READ));
        lab.fill(0, Prot::WRITE);
        assert!(!large || lab.promote(0));
        lab.run_on(0);
        assert!(!warm || CACHED.iter().all(|&n| writes(&lab, 0, n)));
        let reached = lab.stopped(
            (look, None),
            Duration::from_millis(4),
            || first.1(&lab),
            || {
                second.1(&lab);
                for n in CACHED {
                    lab.vm.machine.speculate(0, Runs::va(0, n));
                }
            },
        );
        let name = format!("{} at look {look}, and {}", first.0, second.0);
        let mapped = (0..PAGES).filter(|&n| {
            let pte = lab.lookup(0, n);
            let right = pte.is_none_or(|pte| pte.pfn() == lab.frame(0, n));
            assert!(right, "{name}: page {n}");
            pte.is_some()
        });
        let others = usize::from(lab.pmap.lookup(&lab.vm, &ksync::pin(), 0).is_some());
        let mapped = mapped.count() + others;
        assert_eq!(lab.pmap.resident(&lab.vm), mapped, "{name}");
        lab.remove(0, 0..PAGES);
        assert!(CACHED.iter().all(|&n| !reads(&lab, 0, n)), "{name}");
        end(lab);
        if !reached {
            return look - 1;
        }
    }
    unreachable!("an operation looks at tables for ever")
}

/// A removal has emptied a table, and is about to unlink it, when it is filled again and becomes a leaf.
#[test]
fn a_leaf_is_not_unlinked_as_an_empty_table() {
    let removal: Op = ("removal", |lab| lab.remove(0, 0..PAGES));
    let refill: Op = ("filling and promotion", |lab| {
        for n in 0..PAGES {
            lab.fault(n, Prot::WRITE);
        }
        lab.promote(0);
    });
    assert!(pair(removal, refill, false, true) > 0);
}

/// Each operation with promotion and demotion, stopped at each table.
#[test]
fn operations_withstand_promotion_and_demotion_at_each_table() {
    for op in OPS {
        for (change, large) in [(OPS[0], false), (OPS[1], true)] {
            for warm in [false, true] {
                let looks = pair(op, change, large, warm) + pair(change, op, large, warm);
                assert!(looks > 0);
            }
        }
    }
}

/// Withdraws writing and execution, as an mprotect to reading.
fn protect_to_read(lab: &Runs) {
    let revoke = Revoke {
        write: true,
        exec: true,
    };
    let range = Runs::va(0, 0)..Runs::va(1, 0);
    lab.gathered(|gather| {
        lab.pmap
            .protect_range(&lab.vm, range.start, range.end, revoke, gather);
    });
}

/// A protection has read the leaf when something else comes to its place. It changes the leaf's rights under the lock, so it
/// looks again whether the leaf is there: an empty entry, or the link to a table, has no rights that it might take.
#[test]
fn a_protection_that_comes_too_late_for_a_leaf_spares_what_is_there() {
    let others: [Op; 3] = [
        ("a removal", |lab| lab.remove(0, 0..PAGES)),
        ("a demotion", |lab| lab.demote(0)),
        ("a new table", |lab| {
            lab.remove(0, 0..PAGES);
            lab.fault(7, Prot::READ);
        }),
    ];
    let mut late = 0;
    for (name, other) in others {
        for look in 1.. {
            let lab = Runs::promoted(3, Prot::WRITE);
            lab.run_on(0);
            let patience = Duration::from_millis(4);
            let protect = || protect_to_read(&lab);
            let reached = lab.stopped((look, None), patience, protect, || other(&lab));
            let entry = lab.directory_entry(0);
            let is_link = entry.is_present() && !entry.any(Pte::NX) && entry.any(Pte::W);
            assert!(
                entry.is_empty() || entry.is_large() || is_link,
                "{name} at look {look}: {entry:?}"
            );
            late += usize::from(reached && !entry.is_large());
            // What is allowed later is allowed.
            lab.fault(7, Prot::EXEC);
            let fetched = lab.vm.machine.fetch(0, Runs::va(0, 7));
            assert_eq!(fetched, Ok(()), "{name} at look {look}");
            end(lab);
            if !reached {
                break;
            }
        }
    }
    assert!(late > 6, "{late}");
}

/// A scan without memory is about to take the leaf of its frame out when that has gone, and a leaf of other frames is there. Not
/// where the scan holds its page's list: without that nobody takes the leaf out.
#[test]
#[cfg(not(feature = "listed"))]
fn a_scan_without_memory_spares_a_leaf_of_other_frames() {
    let mut spared = 0;
    for look in 1.. {
        let lab = Runs::promoted(3, Prot::WRITE);
        lab.run_on(0);
        let replace = || {
            lab.vm.alloc.set_injector(0, 0);
            lab.remove(0, 0..PAGES);
            for n in (0..PAGES).step_by(AROUND) {
                let entered = lab.pmap.enter_around(
                    &lab.vm,
                    &ksync::pin(),
                    &lab.ticket(),
                    Runs::va(0, n),
                    AROUND,
                    Prot::READ,
                    || true,
                    // The first frame of the second run is mapped elsewhere, too.
                    |more| Some(lab.frame(1, n + more)),
                    |_, _| true,
                );
                assert_eq!(entered, Ok(AROUND));
            }
            assert!(lab.promote(0));
            lab.vm.alloc.set_injector(1, 0);
        };
        let mut found = Scan::Unclaimed;
        let reached = lab.without_memory(|| {
            let scan = || found = lab.scan_remove(0, 7);
            lab.stopped((look, None), Duration::from_secs(2), scan, replace)
        });
        if !reached {
            end(lab);
            break;
        }
        // The scan came first if it was stopped with the lock.
        let (leaf, other) = (lab.directory_entry(0), lab.frame(1, 0));
        assert!(
            leaf.is_large() && leaf.pfn() == other,
            "look {look}: {leaf:?}"
        );
        assert_eq!(lab.pmap.resident(&lab.vm), PAGES + 1);
        spared += usize::from(found == Scan::Absent);
        end(lab);
    }
    assert!(spared > 0);
}

/// A release has counted the leaf, and reads the entries of its directories once they are dead: an operation that comes to one
/// later takes nothing out.
#[test]
fn a_leaf_that_a_release_has_found_is_not_taken_out_too() {
    let mut late = 0;
    for act in [OPS[2], OPS[6]] {
        for look in 1.. {
            let lab = Runs::promoted(3, Prot::WRITE);
            let mut released = 0;
            let reached = lab.without_memory(|| {
                let (patience, theirs) = (Duration::from_millis(4), || act.1(&lab));
                let release = || released = lab.pmap.release(&lab.vm);
                lab.stopped((look, None), patience, theirs, release)
            });
            let counts = lab.vm.counts();
            let went = (counts.leaves_removed, counts.demotions);
            assert_eq!(went, (1, 0), "{} at look {look}", act.0);
            late += usize::from(released > PAGES);
            lab.finish();
            if !reached {
                break;
            }
        }
    }
    assert!(late > 0);
}
