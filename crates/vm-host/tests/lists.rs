//! The naive reverse map's lists: what refuses an entry, and what becomes of the record of one that is not filled.
#![cfg(feature = "naive-rmap")]

use std::sync::Arc;

use vm::page::State;
use vm::pmap::{EnterError, Entered};
use vm::rmap::{Hold, ReverseMap};
use vm::space::MapArgs;
use vm::{MapProt, Pfn, Prot, Pte, Vm};
use vm_host::program::{Program, check_frames};
use vm_host::runs::{PAGES, Runs};
use vm_host::{Sim, listed};

/// Enters a frame at page `n` of the second run's place for a fault that holds its page not busy.
fn resident(
    lab: &Runs,
    n: usize,
    pfn: Pfn,
    good: impl FnMut() -> bool,
) -> Result<Entered, EnterError> {
    let (pin, room, leaf) = (ksync::pin(), lab.ticket(), Pte::user(pfn, Prot::READ));
    let va = Runs::va(1, n);
    lab.pmap
        .enter_resident(&lab.vm, &pin, &room, va, leaf, || true, good)
}

fn check(lab: &Runs) {
    listed::check(&lab.vm, std::iter::once(&*lab.pmap));
}

#[test]
fn what_is_not_filled_is_not_listed() {
    let lab = Runs::new(1, 1);
    let pfn = lab.frame(0, 3);
    assert_eq!(resident(&lab, 0, pfn, || false), Err(EnterError::Retry));
    check(&lab);
    assert_eq!(resident(&lab, 0, pfn, || true), Ok(Entered::New));
    check(&lab);
    lab.finish();
}

#[test]
fn a_list_that_is_held_blocks_entries_of_its_page_alone() {
    let lab = Runs::new(1, 1);
    let (pfn, other) = (lab.frame(0, 3), lab.frame(0, 4));
    assert_eq!(resident(&lab, 0, pfn, || true), Ok(Entered::New));
    let held = lab.vm.rmap.hold(lab.vm.pages.get(pfn));
    let held = held.unwrap_or_else(|why| panic!("{why:?}"));
    let second = resident(&lab, 1, pfn, || true);
    assert!(matches!(second, Err(EnterError::Blocked(_))), "{second:?}");
    assert_eq!(resident(&lab, 2, other, || true), Ok(Entered::New));
    held.undo();
    assert_eq!(resident(&lab, 1, pfn, || true), Ok(Entered::New));
    check(&lab);
    assert_eq!(lab.pmap.resident(&lab.vm), 3);
    lab.finish();
}

#[test]
fn a_ticket_has_room_for_what_was_asked_for() {
    let lab = Runs::new(1, 1);
    let guard = lab.vm.rmap.begin(&lab.pmap);
    let prepared = lab.vm.rmap.prepare(&lab.vm, guard, &lab.pmap, 1);
    let (_guard, room) = prepared.unwrap_or_else(|why| panic!("{why:?}"));
    let enter = |n: usize| {
        let (pin, leaf) = (ksync::pin(), Pte::user(lab.frame(0, n), Prot::READ));
        lab.pmap
            .enter(&lab.vm, &pin, &room, Runs::va(1, n), leaf, || true)
    };
    assert_eq!(enter(0), Ok(Entered::New));
    assert!(matches!(enter(1), Err(EnterError::Blocked(_))));
    lab.vm.rmap.top_up(&lab.vm, &room, 1);
    assert_eq!(enter(1), Ok(Entered::New));
    drop(room);
    check(&lab);
    lab.finish();
}

/// Every second attempt to hold a list fails: removals wait and go on where they were.
#[test]
fn removals_wait_for_lists_that_are_held() {
    for part in [0..PAGES, 7..9] {
        let lab = Runs::new(1, 1);
        lab.fill(0, Prot::WRITE);
        assert!(lab.promote(0));
        lab.vm.rmap.refuse_each(2);
        lab.without_memory(|| lab.remove(0, part.clone()));
        // Without memory for a table the whole leaf goes.
        assert_eq!(lab.pmap.resident(&lab.vm), 0);
        check(&lab);
        lab.vm.rmap.refuse_each(0);
        lab.fill(0, Prot::WRITE);
        lab.vm.rmap.refuse_each(2);
        lab.remove(0, part.clone());
        assert_eq!(lab.pmap.resident(&lab.vm), PAGES - part.len());
        check(&lab);
        lab.finish();
    }
}

/// A scan that takes a whole leaf out unlists its own page, too, whatever it came for.
#[test]
fn a_scan_that_takes_a_leaf_out_unlists_all_its_pages() {
    for protect in [false, true] {
        let lab = Runs::new(1, 1);
        lab.fill(0, Prot::WRITE);
        assert!(lab.promote(0));
        let found = lab.without_memory(|| {
            if protect {
                lab.scan_write_protect(0, 7)
            } else {
                lab.scan_remove(0, 7)
            }
        });
        assert!(found.pte().is_some());
        assert_eq!(lab.pmap.resident(&lab.vm), 0);
        check(&lab);
        lab.finish();
    }
}

/// Its table is about to be freed, and nothing would unlist it.
#[test]
fn an_entry_that_is_filled_while_its_pmap_is_forgotten_is_not_listed() {
    let lab = Runs::new(1, 1);
    let (page, room) = (lab.vm.pages.get(lab.frame(0, 3)), lab.ticket());
    let held = lab.vm.rmap.enter(&room, page, Runs::va(1, 0));
    let held = held.unwrap_or_else(|why| panic!("{why:?}"));
    lab.vm.rmap.forget_pmap(&lab.vm, &lab.pmap);
    held.done();
    drop(room);
    assert_eq!(lab.vm.rmap.leftovers(), (0, 0, 0));
    lab.finish();
}

/// Number of pages of private memory.
fn private_pages(vm: &Vm<Sim>) -> u64 {
    vm.epoch.drain();
    vm.drain_limbo();
    let mut pages = 0;
    let count = &mut |_, page: &vm::Page| pages += u64::from(page.state() == State::Anon);
    vm.alloc.check_and_visit(count).expect("consistent lists");
    pages
}

/// Nothing is swept, because the spaces that have private memory attached are not known. What no mapping reaches stays
/// as long as any part of the object is mapped.
#[test]
fn what_no_mapping_reaches_goes_with_the_last_attachment() {
    const PAGE: u64 = 4096;
    const AT: u64 = 0x7000_0000;
    let vm = Arc::new(Sim::new(1024, 2, 1).into_vm());
    let free = vm.alloc.free_pages();
    let parent = Program::new(&vm);
    let args = MapArgs::anon(4 * PAGE, MapProt::all()).at(AT);
    parent.space.map(&vm, &args).unwrap();
    parent.run(|p| (0..4).for_each(|n| p.write(AT + n * PAGE, n).unwrap()));
    let child = parent.fork().unwrap();
    // The copy hides its original from the parent.
    parent.run(|p| p.write(AT, 7).unwrap());
    for p in [&parent, &child] {
        p.space.unmap(&vm, AT + PAGE, 3 * PAGE).unwrap();
    }
    assert!((0..2).all(|cpu| !vm.is_queued(cpu)), "nothing to tend");
    (0..2).for_each(|_| vm.tend());
    assert_eq!(private_pages(&vm), 4 + 1);
    drop(child);
    (0..2).for_each(|_| vm.tend());
    assert_eq!(private_pages(&vm), 4 + 1);
    parent.run(|p| assert_eq!(p.read(AT), Ok(7)));
    parent.space.unmap(&vm, AT, PAGE).unwrap();
    assert_eq!(private_pages(&vm), 0);
    drop(parent);
    check_frames(&vm, free);
}
