//! Leaves of 2 MiB: promotion and demotion, and what runs beside them, stopped at accesses to entries.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_superpages`
#![cfg(shuttle)]

use std::sync::Arc;

use shuttle::thread;
use vm::page::Flags;
use vm::pmap::Entered;
use vm::{Prot, Pte};
use vm_host::one_stop::sparsely;
use vm_host::runs::{PAGES, Runs};

type Op = fn(&Runs);

/// Runs the operations at once, each on a CPU of its own.
fn play_all(lab: &Arc<Runs>, ops: &'static [Op]) {
    let play = |(n, op): (usize, &'static Op)| {
        let lab = lab.clone();
        thread::spawn(move || lab.play(n + 1, || op(&lab)))
    };
    let all: Vec<_> = ops.iter().enumerate().map(play).collect();
    all.into_iter().for_each(|op| op.join().unwrap());
}

/// Stops the first operation at its steps while the others run, each on a CPU of its own. CPU 0 runs the program.
fn stop_first(large: bool, prot: Prot, ops: &'static [Op], check: Op) {
    // Three steps further each time: the 512 entries are alike.
    let tried = sparsely(1, 3, move || {
        let lab = Arc::new(Runs::new(ops.len() + 1, 1));
        lab.fill(0, prot);
        assert!(!large || lab.promote(0));
        lab.run_on(0);
        for n in [7, 8, 300] {
            lab.vm.machine.speculate(0, Runs::va(0, n));
        }
        play_all(&lab, ops);
        check(&lab);
        let present = (0..PAGES).filter(|&n| lab.lookup(0, n).is_some()).count();
        assert_eq!(lab.pmap.resident(&lab.vm), present);
        lab.stop_on(0);
        Arc::into_inner(lab).expect("all have ended").finish();
    });
    println!("{tried} schedules");
}

fn promotes(lab: &Runs) {
    lab.promote(0);
}

fn reads(lab: &Runs, n: usize) -> bool {
    lab.read(0, n).is_ok()
}

/// The program stores to page 300; the second attempt follows the fault that drops the way to an old table.
fn stores(lab: &Runs) {
    for _ in 0..2 {
        let _either = lab.write(0, 300, 1);
    }
}

/// The page is unmapped when the scan returns, and has what the entry said.
fn scans(lab: &Runs) {
    let found = lab
        .scan_remove(0, 255)
        .pte()
        .expect("nothing else unmaps it");
    assert!(found.pfn() == lab.frame(0, 255));
    assert!(!reads(lab, 255));
}

fn protects(lab: &Runs) {
    lab.scan_write_protect(0, 255);
    let stored = lab.write(0, 255, 1);
    assert!(stored.is_err());
}

/// What the program has stored is marked.
fn marked(lab: &Runs) {
    let word = &mut [0; 8];
    vm::page::read_frame(&lab.vm.machine, lab.frame(0, 300), 0, word);
    if word[0] != 0 {
        let flags = lab.vm.pages.get(lab.frame(0, 300)).flags();
        let dirty = lab.lookup(0, 300).is_some_and(Pte::is_dirty);
        assert!(
            dirty || flags.contains(Flags::DIRTY),
            "a store is forgotten"
        );
    }
}

fn gone(lab: &Runs) {
    marked(lab);
    assert_eq!(lab.lookup(0, 255), None);
    assert!(!reads(lab, 255));
    let others = (0..PAGES).filter(|&n| n != 255);
    assert!(others.into_iter().all(|n| lab.lookup(0, n).is_some()));
}

#[test]
fn a_promotion_at_each_entry_beside_a_scan_and_stores() {
    stop_first(false, Prot::WRITE, &[promotes, scans, stores], gone);
}

#[test]
fn a_scan_beside_a_promotion() {
    stop_first(false, Prot::WRITE, &[scans, promotes, stores], gone);
}

#[test]
fn a_write_protecting_scan_beside_a_promotion() {
    stop_first(false, Prot::WRITE, &[protects, promotes, stores], marked);
}

#[test]
fn a_promotion_at_each_entry_beside_a_removal_and_a_fault() {
    let ops: &[Op] = &[
        promotes,
        |lab| {
            lab.remove(0, 100..101);
            assert!(!reads(lab, 100));
        },
        |lab| {
            let done = lab.fault(9, Prot::WRITE);
            assert!(matches!(done, Entered::Same | Entered::Upgraded));
        },
    ];
    stop_first(false, Prot::WRITE, ops, |lab| {
        assert_eq!(lab.lookup(0, 100), None);
        assert!(lab.lookup(0, 9).is_some_and(Pte::is_writable));
    });
}

#[test]
fn a_demotion_at_each_entry_beside_another_and_accessed_bits() {
    let ops: &[Op] = &[
        |lab| lab.demote(0),
        |lab| {
            lab.vm.machine.speculate(0, Runs::va(0, 5));
            lab.demote(0);
        },
    ];
    stop_first(true, Prot::READ, ops, |lab| {
        assert!(!lab.is_large(0));
        // Each page, or the one that the access found an entry for.
        assert!(lab.lookup(0, 5).is_some_and(Pte::is_accessed));
    });
}

/// Where the leaf is removed for lack of memory, translations of 4 KiB from before the promotion go with it.
#[test]
fn a_promotion_beside_a_scan_without_memory() {
    let ops: &[Op] = &[promotes, |lab| {
        lab.vm.alloc.set_injector(1, 0);
        assert!(lab.scan_remove(0, 7).pte().is_some());
        lab.vm.alloc.set_injector(0, 0);
        for n in [7, 8, 300] {
            let gone = lab.lookup(0, n).is_none();
            assert!(gone || n != 7);
            assert!(!gone || !reads(lab, n), "page {n}");
        }
    }];
    stop_first(false, Prot::WRITE, ops, marked);
}

#[test]
fn a_demotion_beside_a_removal() {
    let ops: &[Op] = &[
        |lab| lab.demote(0),
        |lab| {
            lab.remove(0, 0..PAGES);
            assert!(!reads(lab, 3));
        },
    ];
    stop_first(true, Prot::WRITE, ops, |lab| {
        assert_eq!(lab.pmap.tables(), 1);
    });
    let ops: &[Op] = &[ops_removal, |lab| lab.demote(0)];
    stop_first(true, Prot::WRITE, ops, |lab| {
        assert_eq!(lab.pmap.resident(&lab.vm), 0);
    });
}

fn ops_removal(lab: &Runs) {
    lab.remove(0, 0..PAGES);
    assert!(!reads(lab, 3));
}

/// A write after a fork pushes its protection down while the table becomes a leaf: what the child shares stays read-only.
#[test]
fn a_fork_beside_a_promotion() {
    fn forks(lab: &Runs) {
        lab.fork();
        lab.enter(Runs::va(0, 9), Pte::user(lab.frame(0, 9), Prot::WRITE));
        let stored = lab.write(0, 255, 1);
        assert!(stored.is_err());
    }
    fn shared(lab: &Runs) {
        assert!(lab.lookup(0, 9).is_some_and(Pte::is_writable));
        assert!(!lab.lookup(0, 255).unwrap().is_writable());
    }
    stop_first(false, Prot::WRITE, &[forks, promotes], shared);
    stop_first(false, Prot::WRITE, &[promotes, forks], shared);
}

/// What a release has counted, or left out, is what it frees.
#[test]
fn a_release_beside_a_promotion_and_a_demotion() {
    fn releases(lab: &Runs) {
        lab.pmap.release(&lab.vm);
        assert!(!reads(lab, 300));
    }
    stop_first(true, Prot::READ, &[|lab| lab.demote(0), releases], |_| ());
    stop_first(false, Prot::READ, &[promotes, releases], |_| ());
}

/// Enters a leaf where nothing is, at whose steps the first of `ops` is stopped while the others run.
#[cfg(not(feature = "listed"))]
fn stop_fill(ops: &'static [Op], check: Op) {
    let tried = sparsely(1, 1, move || {
        let lab = Arc::new(Runs::new(ops.len() + 1, 2));
        lab.enter(0, Pte::user(lab.frame(1, 0), Prot::READ));
        lab.run_on(0);
        lab.vm.machine.speculate(0, Runs::va(0, 7));
        play_all(&lab, ops);
        check(&lab);
        lab.stop_on(0);
        Arc::into_inner(lab).expect("all have ended").finish();
    });
    println!("{tried} schedules");
}

/// Whether the entry of the map is still as the fills found it.
#[cfg(not(feature = "listed"))]
fn fills(lab: &Runs) {
    // The word of a frame that no table maps is the state.
    let state = || lab.vm.pages.get(lab.frame(1, 1)).wire_count() == 0;
    lab.enter_large(0, Prot::WRITE, state);
}

/// Changes the entry of the map, then takes what is mapped away.
#[cfg(not(feature = "listed"))]
fn changes_and_removes(lab: &Runs) {
    lab.vm.pages.get(lab.frame(1, 1)).wire();
    ksync::atomic::fence(ksync::atomic::Ordering::SeqCst);
    lab.remove(0, 0..PAGES);
    assert!(!reads(lab, 7) && !reads(lab, 300));
}

#[test]
#[cfg(not(feature = "listed"))]
fn a_fill_beside_a_removal_and_another_fill() {
    fn gone(lab: &Runs) {
        assert!(!reads(lab, 7) && !lab.is_large(0));
        lab.vm.pages.get(lab.frame(1, 1)).unwire();
    }
    stop_fill(&[fills, changes_and_removes, fills], gone);
    stop_fill(&[changes_and_removes, fills, fills], gone);
}

#[test]
#[cfg(not(feature = "listed"))]
fn a_fill_beside_a_fork_and_an_entry() {
    let ops: &[Op] = &[
        fills,
        |lab| lab.fork(),
        |lab| {
            let (va, leaf) = (Runs::va(0, 9), Pte::user(lab.frame(0, 9), Prot::WRITE));
            let (pin, room) = (ksync::pin(), lab.ticket());
            let entered = lab.pmap.enter(&lab.vm, &pin, &room, va, leaf, || true);
            assert!(entered.is_ok());
        },
    ];
    stop_fill(ops, |lab| {
        // The page, by an entry or by the leaf.
        assert_eq!(lab.lookup(0, 9).map(Pte::pfn), Some(lab.frame(0, 9)));
    });
}
