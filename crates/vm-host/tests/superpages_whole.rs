//! Leaves of 2 MiB that cannot be divided, because there is no memory for a table.
#![cfg(not(any(loom, shuttle)))]

use vm::page::Flags;
use vm::pmap::{EnterError, Entered};
use vm::{NoMemory, Prot, Pte};
use vm_host::PageFault;
use vm_host::runs::{PAGE, PAGES, Runs};

const ABSENT: PageFault = PageFault { present: false };

fn flags(lab: &Runs, n: usize) -> Flags {
    lab.vm.pages.get(lab.frame(0, n)).flags()
}

/// Where there is no memory for a table the leaf is removed, and the pages know that they are dirty.
#[test]
fn without_memory_a_part_takes_the_whole_leaf() {
    type Act = fn(&Runs);
    let acts: [(&str, Act); 5] = [
        ("removal", |lab| lab.remove(0, 7..8)),
        ("protection", |lab| lab.protect(0, 7..8)),
        ("dropping", |lab| {
            lab.gathered(|gather| {
                let va = Runs::va(0, 7);
                lab.pmap
                    .drop_range(&lab.vm, va, va + PAGE, gather, |_, _| ());
            });
        }),
        ("scan, removal", |lab| {
            assert!(lab.scan_remove(0, 7).pte().unwrap().is_dirty())
        }),
        ("scan, protection", |lab| {
            assert!(lab.scan_write_protect(0, 7).pte().unwrap().is_dirty())
        }),
    ];
    for (what, act) in acts {
        for alone in [false, true] {
            let lab = Runs::promoted(2, Prot::WRITE);
            if alone {
                lab.gathered(|gather| lab.pmap.remove_range(&lab.vm, 0, PAGE, gather));
            }
            (0..2).for_each(|cpu| lab.run_on(cpu));
            assert!(lab.write(0, 3, 1).is_ok() && lab.read(1, 4).is_ok());
            lab.without_memory(|| act(&lab));
            for n in 0..PAGES {
                assert_eq!(lab.read(n % 2, n), Err(ABSENT), "{what}");
                let marked = flags(&lab, n).contains(Flags::DIRTY | Flags::REFERENCED);
                assert!(marked, "{what}, page {n}");
            }
            let (tables, resident) = if alone { (1, 0) } else { (4, 1) };
            assert_eq!(lab.pmap.tables(), tables, "{what}");
            assert_eq!(lab.pmap.resident(&lab.vm), resident, "{what}");
            lab.fill(0, Prot::READ);
            (0..2).for_each(|cpu| lab.stop_on(cpu));
            lab.finish();
        }
    }
}

/// A fault fails, as where a table is missing; nothing is lost.
#[test]
fn without_memory_a_fault_leaves_the_leaf() {
    let lab = Runs::promoted(1, Prot::READ);
    let leaf = Pte::user(lab.frame(0, 7), Prot::WRITE);
    let fault = || {
        lab.pmap.enter(
            &lab.vm,
            &ksync::pin(),
            &lab.ticket(),
            Runs::va(0, 7),
            leaf,
            || true,
        )
    };
    let done = lab.without_memory(fault);
    assert_eq!(done, Err(EnterError::NoTable(NoMemory)));
    assert!(lab.is_large(0));
    assert_eq!(fault(), Ok(Entered::Upgraded));
    lab.finish();
}

/// The frames of a leaf that is not dirty, or of no page, are not marked.
#[test]
fn without_memory_marks_are_those_of_the_leaf() {
    for managed in [true, false] {
        let lab = Runs::new(1, 1);
        for n in 0..PAGES {
            let pte = Pte::user(lab.frame(0, n), Prot::READ);
            let manage = if managed { 0 } else { Pte::MANAGED };
            lab.enter(Runs::va(0, n), pte.without(manage));
        }
        assert!(lab.promote(0));
        lab.without_memory(|| lab.remove(0, 0..1));
        let marks = if managed {
            Flags::REFERENCED
        } else {
            Flags::empty()
        };
        assert!((0..PAGES).all(|n| flags(&lab, n) & (Flags::DIRTY | Flags::REFERENCED) == marks));
        lab.finish();
    }
}
