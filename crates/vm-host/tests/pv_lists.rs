//! The lists of pages with entries, and the chunks that their entries come from.
#![cfg(any(feature = "pv-obm", feature = "pv-stock"))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use vm::pmap::{EnterError, Entered};
use vm::rmap::{Hold, ReverseMap};
use vm::{Gather, Pfn, Pmap, Prot, Pte};
use vm_host::listed;
use vm_host::runs::{PAGE, PAGES, Runs};

/// Entries of a chunk.
const CHUNK: usize = 168;

fn check<'p>(lab: &'p Runs, others: &[&'p Arc<Pmap>]) {
    let all = std::iter::once(&lab.pmap).chain(others.iter().copied());
    listed::check(&lab.vm, all.map(|pmap| &**pmap));
}

/// Enters a frame at page `n` of the second run's place in a pmap.
fn enter(lab: &Runs, pmap: &Arc<Pmap>, n: usize, pfn: Pfn) -> Result<Entered, EnterError> {
    let room = vm_host::ticket(&lab.vm, pmap);
    let leaf = Pte::user(pfn, Prot::READ);
    pmap.enter(&lab.vm, &ksync::pin(), &room, Runs::va(1, n), leaf, || true)
}

fn remove(lab: &Runs, pmap: &Pmap, n: usize) {
    let (mut gather, va) = (Gather::new(), Runs::va(1, n));
    pmap.remove_range(&lab.vm, va, va + PAGE, &mut gather);
    gather.finish(&lab.vm);
}

fn entries(lab: &Runs, n: usize) -> usize {
    lab.vm.rmap.entries(lab.vm.pages.get(lab.frame(0, n)))
}

fn chunks(lab: &Runs, pmap: &Pmap) -> usize {
    lab.vm.rmap.chunks(pmap)
}

/// First, middle and last of a list leave it, and the others stay.
#[test]
fn an_entry_leaves_a_list_from_any_place() {
    for gone in 0..3 {
        let lab = Runs::new(1, 1);
        let others = [(); 2].map(|()| Arc::new(Pmap::new()));
        let pmaps = [&lab.pmap, &others[0], &others[1]];
        for pmap in pmaps {
            assert_eq!(enter(&lab, pmap, 0, lab.frame(0, 3)), Ok(Entered::New));
        }
        assert_eq!(entries(&lab, 3), 3);
        remove(&lab, pmaps[gone], 0);
        assert_eq!(entries(&lab, 3), 2);
        check(&lab, &pmaps[1..]);
        // At the other end of the list now.
        assert_eq!(
            enter(&lab, pmaps[gone], 0, lab.frame(0, 3)),
            Ok(Entered::New)
        );
        check(&lab, &pmaps[1..]);
        for pmap in &others {
            pmap.release(&lab.vm);
            check(&lab, &pmaps[1..]);
        }
        assert_eq!(entries(&lab, 3), 1);
        lab.finish();
    }
}

/// One page at several addresses of one pmap.
#[test]
fn an_entry_is_known_by_its_address() {
    let lab = Runs::new(1, 1);
    for n in 0..5 {
        assert_eq!(enter(&lab, &lab.pmap, n, lab.frame(0, 3)), Ok(Entered::New));
    }
    for n in [2, 0, 4] {
        remove(&lab, &lab.pmap, n);
        check(&lab, &[]);
    }
    assert_eq!(entries(&lab, 3), 2);
    lab.finish();
}

/// The search for an entry looks at few where its page has few, and where its pmap has, however many the other one has.
#[test]
fn a_search_takes_the_shorter_list() {
    let lab = Runs::new(1, 1);
    let other = Arc::new(Pmap::new());
    let (shared, own) = (lab.frame(0, 3), lab.frame(0, 4));
    let steps = |pmap: &Pmap, n: usize, frame: Pfn| {
        let page = lab.vm.pages.get(frame);
        lab.vm.rmap.steps_to(page, pmap, Runs::va(1, n))
    };
    for n in [0, 1] {
        assert_eq!(enter(&lab, &lab.pmap, n, shared), Ok(Entered::New));
    }
    for n in 0..PAGES - 1 {
        assert_eq!(enter(&lab, &other, n, shared), Ok(Entered::New));
    }
    assert_eq!(enter(&lab, &other, PAGES - 1, own), Ok(Entered::New));
    // Behind 511 entries of the other pmap in the page's list.
    for n in [0, 1] {
        let steps = steps(&lab.pmap, n, shared).expect("an entry");
        assert!((64..70).contains(&steps), "{steps} steps");
    }
    // Among 512 entries of its pmap.
    assert_eq!(steps(&other, PAGES - 1, own), Some(1));
    // Both are long.
    let all = (0..PAGES - 1).map(|n| steps(&other, n, shared).expect("an entry"));
    assert!(all.max() <= Some(2 * PAGES), "each list is searched once");
    assert_eq!(steps(&lab.pmap, 5, shared), None);
    for n in [1, 0] {
        remove(&lab, &lab.pmap, n);
        check(&lab, &[&other]);
    }
    for n in 0..PAGES {
        remove(&lab, &other, n);
    }
    check(&lab, &[&other]);
    assert_eq!((entries(&lab, 3), entries(&lab, 4)), (0, 0));
    other.release(&lab.vm);
    lab.finish();
}

/// An entry that is reserved still has the address of its last use: the search among those of its pmap passes it by.
#[test]
fn a_search_finds_the_entry_of_its_page_alone() {
    let lab = Runs::new(1, 1);
    let other = Arc::new(Pmap::new());
    let (shared, own) = (lab.frame(0, 3), lab.frame(0, 4));
    assert_eq!(enter(&lab, &lab.pmap, 0, own), Ok(Entered::New));
    remove(&lab, &lab.pmap, 0);
    let reserved = lab.ticket();
    assert_eq!(enter(&lab, &lab.pmap, 0, shared), Ok(Entered::New));
    // More than are looked at in the page's list alone.
    for n in 0..PAGES {
        assert_eq!(enter(&lab, &other, n, shared), Ok(Entered::New));
    }
    remove(&lab, &lab.pmap, 0);
    assert_eq!(entries(&lab, 3), PAGES);
    drop(reserved);
    check(&lab, &[&other]);
    other.release(&lab.vm);
    check(&lab, &[&other]);
    lab.finish();
}

/// Entries come from chunks that are full one after the other, and chunks that are empty go when room is looked for.
#[test]
fn chunks_come_and_go_with_entries() {
    let lab = Runs::new(1, 2);
    lab.fill(0, Prot::READ);
    assert_eq!(chunks(&lab, &lab.pmap), PAGES.div_ceil(CHUNK));
    check(&lab, &[]);
    // Keeps the table.
    assert_eq!(
        enter(&lab, &lab.pmap, 511, lab.frame(0, 511)),
        Ok(Entered::New)
    );
    lab.remove(0, 0..PAGES);
    // The one with the last entry.
    assert_eq!(chunks(&lab, &lab.pmap), 1);
    check(&lab, &[]);
    for n in 0..2 * CHUNK {
        let pfn = lab.frame(0, n);
        assert_eq!(enter(&lab, &lab.pmap, n, pfn), Ok(Entered::New));
        remove(&lab, &lab.pmap, n);
        assert_eq!(chunks(&lab, &lab.pmap), 1, "what was freed is used again");
    }
    check(&lab, &[]);
    lab.finish();
}

/// A quarter of the entries was freed, here and there: no chunk is made.
#[test]
fn room_is_found_in_the_middle_of_many_chunks() {
    let lab = Runs::new(1, 2);
    lab.fill(0, Prot::READ);
    lab.fill(1, Prot::READ);
    let before = chunks(&lab, &lab.pmap);
    for n in (0..PAGES).step_by(2) {
        lab.remove(0, n..n + 1);
    }
    for n in (0..PAGES).step_by(2) {
        let (pin, room) = (ksync::pin(), lab.ticket());
        let leaf = Pte::user(lab.frame(0, n), Prot::READ);
        let entered = (lab.pmap).enter(&lab.vm, &pin, &room, Runs::va(0, n), leaf, || true);
        assert_eq!(entered, Ok(Entered::New));
    }
    assert_eq!(chunks(&lab, &lab.pmap), before);
    check(&lab, &[]);
    lab.finish();
}

#[test]
fn without_memory_for_a_chunk_there_is_no_ticket() {
    let lab = Runs::new(1, 1);
    lab.without_memory(|| {
        let guard = lab.vm.rmap.begin(&lab.pmap);
        assert!(lab.vm.rmap.prepare(&lab.vm, guard, &lab.pmap, 1).is_err());
    });
    lab.finish();
}

/// Forgetting a pmap waits for what an attempt has reserved, and takes out what it enters meanwhile.
#[test]
fn a_ticket_outlives_no_forgotten_pmap() {
    for enters in [false, true] {
        let lab = Runs::new(2, 1);
        let pmap = Arc::new(Pmap::new());
        let (page, forgotten) = (lab.vm.pages.get(lab.frame(0, 3)), AtomicBool::new(false));
        thread::scope(|scope| {
            let room = vm_host::ticket(&lab.vm, &pmap);
            scope.spawn(|| {
                ksync::host::set_cpu(1);
                lab.vm.epoch.online(1);
                lab.vm.rmap.forget_pmap(&lab.vm, &pmap);
                forgotten.store(true, SeqCst);
                lab.vm.epoch.offline(1);
            });
            thread::sleep(Duration::from_millis(20));
            assert!(!forgotten.load(SeqCst), "a ticket is out");
            if enters {
                let held = lab.vm.rmap.enter(&room, page, Runs::va(1, 0));
                held.unwrap_or_else(|why| panic!("{why:?}")).done();
            }
            drop(room);
        });
        assert!(forgotten.load(SeqCst));
        assert!(page_is_unlisted(&lab));
        let room = vm_host::ticket(&lab.vm, &pmap);
        let refused = lab.vm.rmap.enter(&room, page, Runs::va(1, 0)).is_err();
        assert!(refused, "nothing is entered any more");
        drop(room);
        check(&lab, &[&pmap]);
        lab.finish();
    }
}

/// The chunks of a pmap that is being forgotten are walked without a lock: a removal that comes late leaves them alone. Not on
/// `pv-stock`, whose removals wait for the pmap's lock.
#[cfg(not(feature = "pv-stock"))]
#[test]
fn a_late_removal_frees_no_chunk_of_a_forgotten_pmap() {
    let lab = Runs::new(2, 1);
    lab.fill(0, Prot::READ);
    let before = chunks(&lab, &lab.pmap);
    thread::scope(|scope| {
        let room = lab.ticket();
        let forgets = scope.spawn(|| {
            ksync::host::set_cpu(1);
            lab.vm.epoch.online(1);
            lab.vm.rmap.forget_pmap(&lab.vm, &lab.pmap);
            lab.vm.epoch.offline(1);
        });
        while entries(&lab, PAGES - 1) != 0 {
            thread::sleep(Duration::from_millis(1));
        }
        lab.remove(0, 0..PAGES);
        assert_eq!(chunks(&lab, &lab.pmap), before);
        assert!(!forgets.is_finished(), "a ticket is out");
        drop(room);
    });
    assert_eq!(chunks(&lab, &lab.pmap), 0);
    lab.finish();
}

/// A removal that comes after that may find the frames in another use, whose words are no list.
#[test]
fn a_late_removal_reads_no_list() {
    let lab = Runs::new(1, 1);
    lab.fill(0, Prot::READ);
    lab.vm.rmap.forget_pmap(&lab.vm, &lab.pmap);
    let word = lab.vm.pages.get(lab.frame(0, 3)).slab_word(0);
    word.store(u32::MAX, SeqCst);
    lab.remove(0, 0..PAGES);
    assert_eq!(word.swap(0, SeqCst), u32::MAX);
    assert_eq!(lab.pmap.resident(&lab.vm), 0);
    lab.finish();
}

/// A list is held: the ticket keeps its entry for the next attempt.
#[test]
fn a_ticket_loses_nothing_to_a_list_that_is_held() {
    let lab = Runs::new(1, 1);
    {
        let page = lab.vm.pages.get(lab.frame(0, 3));
        let guard = lab.vm.rmap.begin(&lab.pmap);
        let room = lab.vm.rmap.prepare(&lab.vm, guard, &lab.pmap, 1);
        let (_guard, room) = room.unwrap_or_else(|why| panic!("{why:?}"));
        let held = lab.vm.rmap.hold(page);
        assert!(lab.vm.rmap.enter(&room, page, Runs::va(1, 0)).is_err());
        held.unwrap_or_else(|why| panic!("{why:?}")).undo();
        assert!(
            lab.vm
                .rmap
                .enter(&room, page, Runs::va(1, 0))
                .is_ok_and(|held| {
                    held.undo();
                    true
                })
        );
    }
    lab.finish();
}

fn page_is_unlisted(lab: &Runs) -> bool {
    entries(lab, 3) == 0
}

/// A removal waits for a scan that holds one of the lists that it needs, and holds none meanwhile.
#[test]
fn a_leaf_goes_when_all_its_lists_are_free() {
    let lab = Runs::new(2, 1);
    lab.fill(0, Prot::WRITE);
    assert!(lab.promote(0));
    let page = lab.vm.pages.get(lab.frame(0, 300));
    let held = lab.vm.rmap.hold(page);
    let held = held.unwrap_or_else(|why| panic!("{why:?}"));
    thread::scope(|scope| {
        let removal = scope.spawn(|| {
            ksync::host::set_cpu(1);
            lab.vm.epoch.online(1);
            lab.remove(0, 0..PAGES);
            lab.vm.epoch.offline(1);
        });
        thread::sleep(Duration::from_millis(20));
        assert!(!removal.is_finished(), "a list was held");
        assert_eq!(lab.pmap.resident(&lab.vm), PAGES);
        for n in [0, 299, 301, 511] {
            if cfg!(feature = "pv-stock") {
                break;
            }
            let page = lab.vm.pages.get(lab.frame(0, n));
            let other = lab.vm.rmap.hold(page);
            other
                .unwrap_or_else(|why| panic!("list {n}: {why:?}"))
                .undo();
        }
        held.undo();
    });
    assert_eq!(lab.pmap.resident(&lab.vm), 0);
    check(&lab, &[]);
    lab.finish();
}

/// A scan that takes a whole leaf out, without memory to divide it, unlists all its pages.
#[test]
fn a_scan_unlists_all_pages_of_a_leaf() {
    for protect in [false, true] {
        let lab = Runs::new(1, 2);
        lab.fill(0, Prot::WRITE);
        lab.fill(1, Prot::WRITE);
        assert!(lab.promote(0));
        let found = lab.without_memory(|| {
            if protect {
                lab.scan_write_protect(0, 7)
            } else {
                lab.scan_remove(0, 7)
            }
        });
        assert!(found.pte().is_some());
        assert_eq!(lab.pmap.resident(&lab.vm), PAGES);
        check(&lab, &[]);
        lab.finish();
    }
}

/// An attempt that finds a list held may ask again, and is told again what to wait for.
#[test]
fn a_ticket_keeps_what_was_not_used() {
    let lab = Runs::new(1, 1);
    let page = lab.vm.pages.get(lab.frame(0, 3));
    let guard = lab.vm.rmap.begin(&lab.pmap);
    let prepared = lab.vm.rmap.prepare(&lab.vm, guard, &lab.pmap, 1);
    let (guard, room) = prepared.unwrap_or_else(|why| panic!("{why:?}"));
    let enter = || lab.vm.rmap.enter(&room, page, Runs::va(1, 0));
    let held = lab.vm.rmap.hold(page);
    let held = held.unwrap_or_else(|why| panic!("{why:?}"));
    let refused = [(); 2].map(|()| enter().err());
    assert!(refused[0].is_some());
    assert_eq!(refused[0], refused[1]);
    held.undo();
    enter().unwrap_or_else(|why| panic!("{why:?}")).undo();
    assert!(enter().is_err(), "there was one");
    drop(room);
    lab.vm.rmap.end(guard);
    check(&lab, &[]);
    lab.finish();
}
