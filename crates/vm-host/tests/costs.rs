//! What a space costs, by which the memory killer chooses its victims, is what its end frees: also what its program has never
//! touched, and what is not mapped any more.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;

use vm::space::{Advice, MapArgs, Space};
use vm::{Access, EntryFlags, MapProt};
use vm_host::Lab;
use vm_host::heap::{Heap, live};

#[global_allocator]
static HEAP: Heap = Heap;

const PAGE: u64 = 4096;
const AT: u64 = 1 << 40;

fn map(lab: &Lab, space: &Space, at: u64, pages: u64, shared: bool) {
    let mut args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(at);
    if shared {
        args.flags = EntryFlags::SHARED;
    }
    assert_eq!(space.map(&lab.vm, &args), Ok(at));
}

fn store(lab: &Lab, space: &Space, at: u64) {
    assert_eq!(space.fault(&lab.vm, at, Access::Write), Ok(()));
}

/// Frees everything whose grace period is over.
fn settle(lab: &Lab) {
    (0..50).for_each(|_| lab.tick());
}

/// Runs `body` with a lab and a space that runs in it.
fn with_space(body: impl FnOnce(&Lab, &Space)) {
    let lab = Lab::new(4000, 1);
    let space: Arc<Space> = Space::new(&lab.vm).unwrap();
    lab.run(&space);
    body(&lab, &space);
    lab.stop(&space);
    space.clear(&lab.vm);
    lab.finish();
}

/// Makes mappings of a page each, which nothing is left in, and compares what they cost with the growth of the heap.
fn costs_what_the_heap_has(lab: &Lab, space: &Space, shared: bool, touched: bool) {
    const MAPPINGS: u64 = 2000;
    settle(lab);
    let before = live();
    for n in 0..MAPPINGS {
        let at = AT + 2 * n * PAGE;
        map(lab, space, at, 1, shared);
        if touched {
            store(lab, space, at);
            let advised = space.advise(&lab.vm, at, PAGE, Advice::DontNeed);
            assert_eq!(advised, Ok(()));
            lab.tick();
        }
    }
    settle(lab);
    let bytes = live() - before;
    let counted = space.cost().tables - space.usage(&lab.vm).tables;
    let counted = (counted * PAGE) as isize;
    let about = bytes * 3 / 5..bytes * 3 / 2;
    assert!(about.contains(&counted), "{counted} of {bytes}");
    space
        .unmap(&lab.vm, AT, 2 * MAPPINGS * PAGE)
        .expect("a range of user memory");
    settle(lab);
}

#[test]
fn a_map_costs_what_the_heap_has_for_it() {
    with_space(|lab, space| {
        costs_what_the_heap_has(lab, space, true, false);
        costs_what_the_heap_has(lab, space, false, true);
    });
}

/// Shared memory keeps its pages where they are not mapped any more, and the end of its last mapping frees them all.
#[test]
fn shared_memory_costs_as_much_when_most_of_it_is_unmapped() {
    with_space(|lab, space| {
        map(lab, space, AT, 64, true);
        (0..64).for_each(|n| store(lab, space, AT + n * PAGE));
        let pages = || {
            let cost = space.cost();
            cost.own + cost.shared
        };
        let unmap = |first: u64, pages: u64| {
            let unmapped = space.unmap(&lab.vm, AT + first * PAGE, pages * PAGE);
            assert_eq!(unmapped, Ok(()));
        };
        assert_eq!(space.cost().own, 64);
        unmap(1, 62);
        assert_eq!(pages(), 64, "two mappings of one object");
        unmap(0, 1);
        assert_eq!(space.cost().own, 64);
        unmap(63, 1);
        assert_eq!(pages(), 0);
    });
}
