//! Leaves of 2 MiB, one operation after the other: each operation at each kind, and what becomes of A and D.
#![cfg(not(any(loom, shuttle)))]

use vm::pmap::{EnterError, Entered, Revoke, Scan};
use vm::{Gather, Pfn, Prot, Pte, Rights};
use vm_host::PageFault;
use vm_host::mmu::LARGE;
use vm_host::runs::{BASE, PAGE, PAGES, Runs};

const ABSENT: PageFault = PageFault { present: false };
const FORBIDDEN: PageFault = PageFault { present: true };

/// Whether a store succeeds, at the latest after a fault that has dropped older rights of the CPU.
fn writes(lab: &Runs, cpu: usize, n: usize) -> bool {
    lab.write(cpu, n, 1)
        .or_else(|_| lab.write(cpu, n, 1))
        .is_ok()
}

fn entries(lab: &Runs) -> Vec<Option<Pte>> {
    (0..PAGES).map(|n| lab.lookup(0, n)).collect()
}

/// Pages that an operation on page 7 must leave alone.
const OTHERS: [usize; 6] = [0, 6, 8, 255, 256, 511];

#[test]
fn a_promotion_changes_no_translation() {
    let lab = Runs::new(3, 1);
    lab.fill(0, Prot::WRITE);
    (0..3).for_each(|cpu| lab.run_on(cpu));
    (0..PAGES).for_each(|n| lab.write(n % 3, n, n as u64).unwrap());
    let before = entries(&lab);
    assert_eq!((lab.pmap.tables(), lab.pmap.resident(&lab.vm)), (4, PAGES));
    assert!(lab.promote(0) && lab.is_large(0));
    assert_eq!(entries(&lab), before);
    assert_eq!((lab.pmap.tables(), lab.pmap.resident(&lab.vm)), (3, PAGES));
    assert!(!lab.promote(0), "it is a leaf already");
    for n in 0..PAGES {
        assert_eq!(lab.read((n + 1) % 3, n), Ok(n as u64));
        assert_eq!(lab.write(n % 3, n, 1), Ok(()));
    }
    lab.demote(0);
    assert!(!lab.is_large(0));
    assert_eq!(entries(&lab), before);
    assert_eq!((lab.pmap.tables(), lab.pmap.resident(&lab.vm)), (4, PAGES));
    assert!(lab.promote(0), "and back");
    (0..3).for_each(|cpu| lab.stop_on(cpu));
    lab.finish();
}

/// Each case spoils the agreement of one entry. Nothing changes, and no CPU is interrupted.
#[test]
fn what_does_not_agree_is_not_promoted() {
    type Spoil = fn(&Runs, usize) -> Option<Pte>;
    let spoils: [(&str, Spoil); 7] = [
        ("another frame", |lab, _| {
            Some(Pte::user(lab.frame(1, 0), Prot::READ).untouched())
        }),
        ("nothing", |_, _| None),
        ("less rights", |lab, n| {
            Some(Pte::user(lab.frame(0, n), Prot::READ).untouched())
        }),
        ("other rights", |lab, n| {
            Some(Pte::user(lab.frame(0, n), Prot::ALL))
        }),
        ("wired", |lab, n| {
            Some(Pte::user(lab.frame(0, n), Prot::WRITE).wired())
        }),
        ("unmanaged", |lab, n| {
            Some(Pte::unmanaged(lab.frame(0, n), Prot::WRITE))
        }),
        ("the neighbour's frame", |lab, n| {
            Some(Pte::user(lab.frame(0, n ^ 1), Prot::WRITE))
        }),
    ];
    for (what, spoil) in spoils {
        for n in [0, 1, 300, 511] {
            let lab = Runs::new(1, 2);
            lab.fill(0, Prot::WRITE);
            lab.run_on(0);
            for n in [2, 3, 510] {
                lab.write(0, n, 9).unwrap();
            }
            lab.remove(0, n..n + 1);
            if let Some(pte) = spoil(&lab, n) {
                lab.enter(Runs::va(0, n), pte);
            }
            let (before, interrupts) = (entries(&lab), lab.vm.machine.interrupts());
            assert!(!lab.promote(0), "{what} at {n}");
            assert_eq!(entries(&lab), before, "{what} at {n}");
            assert_eq!(lab.vm.machine.interrupts(), interrupts);
            assert_eq!(lab.read(0, 2), Ok(9));
            lab.stop_on(0);
            lab.finish();
        }
    }
}

#[test]
fn only_an_aligned_run_is_promoted() {
    let lab = Runs::new(1, 2);
    // The second half of a run and the first of the next one.
    for n in 0..PAGES {
        let pfn = Pfn(lab.frame(0, 0).0.min(lab.frame(1, 0).0) + 256 + n as u32);
        lab.enter(Runs::va(0, n), Pte::user(pfn, Prot::READ));
    }
    assert!(!lab.promote(0));
    assert!(!lab.promote(1), "there is no table");
    assert!(!Runs::new(1, 1).promote(0), "there is no root");
    lab.finish();
}

#[test]
fn accessed_and_dirty_survive() {
    let lab = Runs::new(1, 1);
    lab.fill(0, Prot::READ);
    lab.run_on(0);
    let marks = |n| {
        let pte = lab.lookup(0, n).unwrap();
        (pte.is_accessed(), pte.is_dirty())
    };
    assert!(lab.promote(0));
    assert!((0..PAGES).all(|n| marks(n) == (false, false)));
    assert!(lab.read(0, 300).is_ok());
    lab.demote(0);
    assert!(
        (0..PAGES).all(|n| marks(n) == (true, false)),
        "A of the leaf"
    );
    // One dirty entry makes a dirty leaf, even if it may not be written to any more.
    lab.remove(0, 0..PAGES);
    lab.fill(0, Prot::WRITE);
    lab.write(0, 17, 1).unwrap();
    lab.protect(0, 0..PAGES);
    assert!(lab.promote(0) && lab.is_large(0));
    assert!((0..PAGES).all(|n| marks(n) == (true, true)));
    assert_eq!(lab.write(0, 17, 2), Err(FORBIDDEN));
    lab.stop_on(0);
    lab.finish();
}

/// Nobody has stored through it, and hardware need not mark it.
#[test]
fn a_writable_leaf_is_dirty_from_its_first_moment() {
    let lab = Runs::promoted(1, Prot::WRITE);
    assert!((0..PAGES).all(|n| lab.lookup(0, n).unwrap().is_dirty()));
    lab.protect(0, 0..PAGES);
    assert!(
        (0..PAGES).all(|n| lab.lookup(0, n).unwrap().is_dirty()),
        "D stays"
    );
    lab.demote(0);
    assert!((0..PAGES).all(|n| lab.lookup(0, n).unwrap().is_dirty()));
    lab.finish();
}

/// The walk to the old table, and translations of 4 KiB, are cached. The table's frame is used for something else.
#[test]
fn nothing_leads_to_the_old_table() {
    let lab = Runs::new(2, 1);
    lab.fill(0, Prot::WRITE);
    (0..2).for_each(|cpu| lab.run_on(cpu));
    assert!(lab.read(0, 3).is_ok() && lab.read(1, 4).is_ok());
    assert!(lab.promote(0));
    assert!(!lab.vm.machine.has_cached(0, Runs::va(0, 3)));
    lab.vm.drain_limbo();
    let mut taken = Vec::new();
    while let Ok(pfn) = lab.vm.alloc.alloc(&ksync::pin(), Rights::User) {
        taken.push(pfn);
    }
    assert!(lab.read(0, 5).is_ok() && lab.read(1, 6).is_ok());
    for pfn in taken {
        lab.vm.alloc.free(&ksync::pin(), pfn);
    }
    (0..2).for_each(|cpu| lab.stop_on(cpu));
    lab.finish();
}

#[test]
fn a_whole_leaf_is_removed_with_one_address() {
    let lab = Runs::promoted(3, Prot::WRITE);
    (0..2).for_each(|cpu| lab.run_on(cpu));
    assert!(lab.read(0, 3).is_ok() && lab.read(1, 4).is_ok());
    let mut gather = Gather::new();
    lab.pmap
        .remove_range(&lab.vm, BASE, BASE + LARGE, &mut gather);
    assert!(!gather.is_full());
    let mut runs = gather.runs();
    assert_eq!(runs.next(), Some(BASE..BASE + PAGE));
    assert_eq!(runs.next(), None);
    drop(runs);
    gather.finish(&lab.vm);
    for n in 0..PAGES {
        assert_eq!(lab.read(n % 2, n), Err(ABSENT));
    }
    assert_eq!((lab.pmap.tables(), lab.pmap.resident(&lab.vm)), (4, 1));
    (0..2).for_each(|cpu| lab.stop_on(cpu));
    lab.finish();
}

#[test]
fn directories_that_led_to_a_leaf_alone_go_with_it() {
    let lab = Runs::new(1, 1);
    lab.run_on(0);
    lab.fill(0, Prot::READ);
    assert!(lab.promote(0) && lab.read(0, 9).is_ok());
    lab.remove(0, 0..PAGES);
    assert_eq!(lab.pmap.tables(), 1);
    // The CPU has forgotten the way: another leaf is found.
    lab.vm.drain_limbo();
    lab.fill(0, Prot::READ);
    assert!(lab.read(0, 9).is_ok());
    lab.stop_on(0);
    lab.finish();
}

#[test]
fn a_harvest_passes_each_page_of_a_leaf() {
    for wanted in [true, false] {
        let lab = Runs::new(1, 1);
        for n in 0..PAGES {
            let pte = if wanted {
                Pte::user(lab.frame(0, n), Prot::WRITE)
            } else {
                Pte::unmanaged(lab.frame(0, n), Prot::WRITE)
            };
            lab.enter(Runs::va(0, n), pte);
        }
        assert!(lab.promote(0));
        let mut seen = Vec::new();
        lab.gathered(|gather| {
            let mut on_page = |pfn, pte: Pte| {
                assert!(pte.is_accessed() && pte.is_dirty() && pte.pfn() == pfn);
                seen.push(pfn);
            };
            lab.pmap
                .harvest_range(&lab.vm, BASE, BASE + LARGE, gather, &mut on_page);
        });
        let run: Vec<Pfn> = (0..PAGES).map(|n| lab.frame(0, n)).collect();
        assert_eq!(seen, if wanted { run } else { Vec::new() });
        lab.finish();
    }
}

/// Removal of a part, protection of a part, scans: the page changes, and no other.
#[test]
fn a_change_of_one_page_divides_the_leaf() {
    type Act = fn(&Runs);
    let acts: [(&str, Act, Option<bool>); 5] = [
        ("removal", |lab| lab.remove(0, 7..8), None),
        ("protection", |lab| lab.protect(0, 7..8), Some(true)),
        (
            "scan, removal",
            |lab| {
                let found = lab.scan_remove(0, 7).pte().expect("an entry");
                assert!(found.is_dirty() && found.pfn() == lab.frame(0, 7));
                assert!(!found.is_large());
            },
            None,
        ),
        (
            "scan, protection",
            |lab| assert!(lab.scan_write_protect(0, 7).pte().unwrap().is_dirty()),
            Some(false),
        ),
        (
            "copy on write",
            |lab| {
                let (va, leaf) = (Runs::va(0, 7), Pte::user(lab.frame(1, 7), Prot::READ));
                let (room, pin) = (lab.ticket(), ksync::pin());
                let done = lab.pmap.enter_over(&lab.vm, &pin, &room, va, leaf, || true);
                let old = lab.frame(0, 7);
                assert!(
                    matches!(done, Ok(Entered::Replaced(pte)) if pte.pfn() == old && pte.is_dirty())
                );
                drop((room, pin));
                lab.remove(0, 7..8);
            },
            None,
        ),
    ];
    for (what, act, left) in acts {
        let lab = Runs::promoted(2, Prot::WRITE);
        (0..2).for_each(|cpu| lab.run_on(cpu));
        (0..2).for_each(|cpu| lab.write(cpu, 7, 70).unwrap());
        act(&lab);
        assert!(!lab.is_large(0), "{what}");
        for cpu in 0..2 {
            match left {
                None => assert_eq!(lab.read(cpu, 7), Err(ABSENT), "{what}"),
                Some(_) => assert_eq!(lab.write(cpu, 7, 0), Err(FORBIDDEN), "{what}"),
            }
            for n in OTHERS {
                assert_eq!(lab.write(cpu, n, 1), Ok(()), "{what}");
                assert!(lab.lookup(0, n).unwrap().is_dirty(), "{what}");
            }
        }
        assert_eq!(lab.lookup(0, 7).map(Pte::is_dirty), left, "{what}");
        let resident = PAGES + usize::from(left.is_some());
        assert_eq!(lab.pmap.resident(&lab.vm), resident, "{what}");
        (0..2).for_each(|cpu| lab.stop_on(cpu));
        lab.finish();
    }
}

/// Processors may hold a translation of either size of an address around a promotion, and some stop the machine where a
/// fetch finds two.
#[test]
fn what_can_be_executed_is_not_promoted() {
    for prot in [Prot::EXEC, Prot::ALL] {
        let lab = Runs::new(2, 1);
        lab.fill(0, prot);
        (0..2).for_each(|cpu| lab.run_on(cpu));
        let (before, interrupts) = (entries(&lab), lab.vm.machine.interrupts());
        assert!(!lab.promote(0) && !lab.is_large(0));
        assert_eq!(entries(&lab), before);
        assert_eq!(lab.vm.machine.interrupts(), interrupts);
        assert!((0..PAGES).all(|n| lab.vm.machine.fetch(n % 2, Runs::va(0, n)).is_ok()));
        (0..2).for_each(|cpu| lab.stop_on(cpu));
        lab.finish();
    }
}

#[test]
fn a_whole_leaf_is_protected_as_one() {
    let lab = Runs::promoted(2, Prot::WRITE);
    (0..2).for_each(|cpu| lab.run_on(cpu));
    (0..2).for_each(|cpu| lab.write(cpu, 7, 70).unwrap());
    let steps = [(true, false), (true, false), (false, true)];
    for (step, (write_too, exec)) in steps.into_iter().enumerate() {
        let revoke = Revoke {
            write: write_too,
            exec,
        };
        let mut gather = Gather::new();
        lab.pmap
            .protect_range(&lab.vm, BASE, BASE + LARGE, revoke, &mut gather);
        assert_eq!(gather.is_empty(), step != 0, "nothing is left to withdraw");
        assert!(!gather.is_full() && lab.is_large(0));
        gather.finish(&lab.vm);
        for n in [0, 7, 511] {
            assert_eq!(lab.write(1, n, 0), Err(FORBIDDEN));
            assert!(lab.read(1, n).is_ok());
            assert!(lab.vm.machine.fetch(0, Runs::va(0, n)).is_err());
            assert!(lab.lookup(0, n).unwrap().is_dirty());
        }
    }
    // A part of it, which has nothing to lose, leaves it alone.
    lab.protect(0, 3..9);
    assert!(lab.is_large(0));
    (0..2).for_each(|cpu| lab.stop_on(cpu));
    lab.finish();
}

#[test]
fn after_a_fork_a_write_gets_its_page_alone() {
    let lab = Runs::promoted(2, Prot::WRITE);
    (0..2).for_each(|cpu| lab.run_on(cpu));
    (0..2).for_each(|cpu| lab.write(cpu, 7, 70).unwrap());
    lab.fork();
    assert!(lab.is_large(0));
    assert!(!lab.lookup(0, 7).unwrap().is_writable());
    (0..2).for_each(|cpu| assert_eq!(lab.write(cpu, 9, 1), Err(FORBIDDEN)));
    // A read fault has nothing to do.
    let fault = |n: usize, prot| {
        let leaf = Pte::user(lab.frame(0, n), prot);
        let va = Runs::va(0, n);
        lab.pmap
            .enter(&lab.vm, &ksync::pin(), &lab.ticket(), va, leaf, || true)
    };
    assert_eq!(fault(7, Prot::READ), Ok(Entered::Same));
    assert!(lab.is_large(0));
    assert_eq!(fault(7, Prot::WRITE), Ok(Entered::Upgraded));
    for cpu in 0..2 {
        assert!(writes(&lab, cpu, 7));
        for n in OTHERS {
            assert!(!writes(&lab, cpu, n), "page {n} is shared");
        }
    }
    // The other one at 0 as well.
    lab.demote(0);
    assert!(!lab.promote(0), "rights differ");
    (0..2).for_each(|cpu| lab.stop_on(cpu));
    lab.finish();
}

/// The rights above are part of what is compared with the leaf.
#[test]
fn a_fork_above_a_table_stays_in_force_above_the_leaf() {
    let lab = Runs::new(1, 2);
    lab.run_on(0);
    lab.fill(0, Prot::WRITE);
    lab.fill(1, Prot::READ);
    lab.fork();
    // Pushes the protection down to the entry for the first run.
    let leaf = Pte::user(lab.frame(1, 3), Prot::WRITE);
    lab.enter(Runs::va(1, 3), leaf);
    assert!(!lab.directory_entry(0).is_writable());
    assert!(lab.promote(0));
    assert!(!lab.directory_entry(0).is_writable());
    assert!(!writes(&lab, 0, 3), "the fork's child shares it");
    lab.stop_on(0);
    lab.finish();
}

#[test]
fn a_fault_on_what_a_leaf_maps_does_nothing() {
    let lab = Runs::promoted(1, Prot::WRITE);
    let (pin, va) = (ksync::pin(), Runs::va(0, 7));
    for prot in [Prot::READ, Prot::WRITE] {
        let leaf = Pte::user(lab.frame(0, 7), prot);
        let dirtied = if prot.write { leaf.dirtied() } else { leaf };
        let never = || -> bool { panic!("nothing is entered") };
        let done = lab
            .pmap
            .enter_new(&lab.vm, &pin, &lab.ticket(), va, dirtied, never);
        assert_eq!(done, Ok(Entered::Same));
        let done = lab
            .pmap
            .enter_over(&lab.vm, &pin, &lab.ticket(), va, leaf, never);
        assert_eq!(done, Ok(Entered::Same));
        let done = lab
            .pmap
            .enter_resident(&lab.vm, &pin, &lab.ticket(), va, dirtied, never, never);
        assert_eq!(done, Ok(Entered::Same));
        let page = |_| -> Option<Pfn> { panic!("all slots are occupied") };
        let done = lab.pmap.enter_around(
            &lab.vm,
            &pin,
            &lab.ticket(),
            va,
            9,
            prot,
            never,
            page,
            |_, _| true,
        );
        assert_eq!(done, Ok(0));
        assert!(lab.is_large(0));
    }
    drop(pin);
    lab.finish();
}

#[test]
fn a_fault_for_something_else_divides_the_leaf() {
    let wanted: [fn(&Runs) -> Pte; 3] = [
        |lab| Pte::user(lab.frame(0, 7), Prot::WRITE).dirtied(),
        |lab| Pte::user(lab.frame(0, 7), Prot::EXEC),
        |lab| Pte::user(lab.frame(0, 7), Prot::READ).wired(),
    ];
    for leaf in wanted {
        let lab = Runs::promoted(1, Prot::READ);
        let (pin, va, leaf) = (ksync::pin(), Runs::va(0, 7), leaf(&lab));
        let done = lab
            .pmap
            .enter(&lab.vm, &pin, &lab.ticket(), va, leaf, || false);
        assert_eq!(done, Err(EnterError::Stale));
        let done =
            lab.pmap
                .enter_resident(&lab.vm, &pin, &lab.ticket(), va, leaf, || true, || true);
        assert_eq!(done, Ok(Entered::Upgraded));
        let here = lab.lookup(0, 7).unwrap();
        assert_eq!(here.without(Pte::A), leaf.without(Pte::A));
        assert!(!lab.lookup(0, 8).unwrap().is_writable());
        drop(pin);
        lab.finish();
    }
    let lab = Runs::promoted(1, Prot::READ);
    let (pin, other) = (ksync::pin(), Pte::user(lab.frame(1, 7), Prot::READ));
    let done = lab
        .pmap
        .enter_new(&lab.vm, &pin, &lab.ticket(), Runs::va(0, 7), other, || true);
    let old = lab.frame(0, 7);
    assert!(matches!(done, Err(EnterError::Occupied(pte)) if pte.pfn() == old));
    drop(pin);
    lab.finish();
}

/// A scan that would change nothing, or that is for another frame, leaves the leaf alone.
#[test]
fn a_scan_with_nothing_to_do_leaves_the_leaf() {
    let lab = Runs::promoted(1, Prot::READ);
    assert!(matches!(lab.scan_write_protect(0, 7), Scan::Found(pte) if !pte.is_writable()));
    let (va, other) = (Runs::va(0, 7), lab.frame(0, 8));
    let pin = ksync::pin();
    let absent = lab.pmap.scan_remove(&lab.vm, &pin, va, other);
    assert_eq!(absent, Scan::Absent);
    assert!(!lab.pmap.scan_test_clear_accessed(&lab.vm, &pin, va, other));
    drop(pin);
    assert!(lab.is_large(0));
    lab.finish();
}

/// Which page that is depends on the address.
#[test]
fn one_page_of_a_leaf_clears_the_accessed_bit() {
    let lab = Runs::promoted(1, Prot::READ);
    lab.run_on(0);
    assert!((0..PAGES).all(|n| !lab.referenced(0, n)));
    assert!(lab.read(0, 400).is_ok());
    // Of frames that the leaf does not map, and of pages at other places, it says nothing.
    let (pin, other) = (ksync::pin(), lab.frame(0, 8));
    let asked = lab
        .pmap
        .scan_test_clear_accessed(&lab.vm, &pin, Runs::va(0, 7), other);
    assert!(!asked);
    drop(pin);
    let one = (BASE / LARGE) as usize;
    assert!(
        (0..PAGES)
            .filter(|&n| n != one)
            .all(|n| lab.referenced(0, n))
    );
    assert!(lab.referenced(0, one), "it is the last one that sees it");
    assert!((0..PAGES).all(|n| !lab.referenced(0, n)));
    assert!(lab.is_large(0));
    lab.stop_on(0);
    lab.finish();
}

#[test]
fn dropped_tables_hand_the_marks_on_and_spare_what_is_wired() {
    for wired in [false, true] {
        let lab = Runs::new(1, 1);
        for n in 0..PAGES {
            let pte = Pte::user(lab.frame(0, n), Prot::WRITE);
            lab.enter(Runs::va(0, n), if wired { pte.wired() } else { pte });
        }
        assert!(lab.promote(0));
        let mut seen = 0;
        lab.gathered(|gather| {
            lab.pmap
                .drop_range(&lab.vm, BASE, BASE + PAGE, gather, |_, _| seen += 1);
        });
        assert_eq!(lab.is_large(0), wired, "a part");
        lab.pmap.drop_tables(&lab.vm, |_, _| seen += 1);
        assert_eq!(seen, if wired { 0 } else { PAGES });
        assert_eq!(lab.pmap.tables(), if wired { 3 } else { 0 });
        lab.finish();
    }
}

#[test]
fn a_release_counts_the_pages_of_leaves() {
    let lab = Runs::promoted(1, Prot::WRITE);
    lab.fill(1, Prot::READ);
    assert!(lab.promote(1));
    assert_eq!(lab.pmap.resident(&lab.vm), 2 * PAGES + 1);
    assert_eq!(lab.pmap.release(&lab.vm), 2 * PAGES + 1);
    let pin = ksync::pin();
    assert_eq!(lab.pmap.demote(&lab.vm, &pin, BASE), Ok(()));
    assert!(!lab.pmap.promote(&lab.vm, &pin, BASE));
    drop(pin);
    assert_eq!(lab.scan_remove(0, 7), Scan::Absent);
    lab.finish();
}

#[test]
fn mapped_pages_are_found_in_a_leaf() {
    let lab = Runs::promoted(1, Prot::READ);
    let pin = ksync::pin();
    let from = |va, end| {
        let run = lab.pmap.mapped_from(&lab.vm, &pin, va, end)?;
        Some((run.va, run.pages, run.bits))
    };
    let end = BASE + LARGE;
    assert_eq!(from(PAGE, end), Some((BASE, 16, 0xffff)));
    let va = Runs::va(0, 500);
    assert_eq!(from(va, end), Some((va, 12, 0xfff)));
    assert_eq!(from(va, va + 3 * PAGE), Some((va, 3, 7)));
    assert_eq!(from(end, end + LARGE), None);
    drop(pin);
    lab.finish();
}
