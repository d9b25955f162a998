//! Lists of entries, the chunks that they lie in, and their reclaim, with the orderings that hardware may choose.
//!
//! As `loom.rs`. loom checks that each access to a list, to an entry and to a chunk's pmap is in an order that locks and free bits
//! establish; at the end exactly the entries of the page tables are listed. A chunk has 16 entries, and a byte counts two readers.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --features pv-obm --test loom_pv`, or `pv-stock`
#![cfg(all(loom, any(feature = "pv-obm", feature = "pv-stock")))]

use std::sync::Arc;

use vm::space::{MapArgs, Source, Space};
use vm::{Access, EntryFlags, MapProt, Page};
use vm_host::explore::{AT, Act, PAGE, World, at_once, three_at_once};
use vm_host::listed;

/// The page of the world's file.
fn page(world: &World) -> &'static Page {
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    world.lab.vm.pages.get(pfn)
}

/// The space that was made with so many before it.
fn child(world: &World, n: usize) -> Arc<Space> {
    world.children.lock().unwrap()[n].clone()
}

/// Makes a space with the file's two pages at the same place, of which it has mapped the first.
fn add_child(world: &World) {
    let space = Space::new(&world.lab.vm).unwrap();
    let args = MapArgs {
        source: Source::Object(&world.file, 0),
        flags: EntryFlags::SHARED,
        ..MapArgs::anon(2 * PAGE, MapProt::READ | MapProt::WRITE)
    };
    assert_eq!(space.map(&world.lab.vm, &args.at(AT)), Ok(AT));
    touch(world, &space, AT);
    world.children.lock().unwrap().push(space);
}

/// A fault that must be served.
fn touch(world: &World, space: &Space, va: u64) {
    assert_eq!(space.fault(&world.lab.vm, va, Access::Write), Ok(()));
}

/// Two pages of a file, of which one or two spaces have mapped the first.
fn mapped_by_one(world: &World) {
    world.shared();
    touch(world, &world.space, AT);
}

fn mapped_by_another(world: &World) {
    world.shared();
    add_child(world);
}

fn scan(world: &World) {
    let found = world.file.lookup(&ksync::pin(), 0);
    if let Some(pfn) = found {
        world.lab.vm.chaos_scan(pfn);
    }
}

fn fault(world: &World) {
    touch(world, &world.space, AT);
}

/// What is mapped is listed, and nothing else.
fn check(world: &World) {
    let children = world.children.lock().unwrap().clone();
    let all = children.iter().chain([&world.space]);
    listed::check(&world.lab.vm, all.map(|space| &**space.pmap()));
}

/// One entry comes, one goes, and a scan takes what it finds, in every order: no thread waits for another in a ring.
#[test]
fn an_entry_that_comes_beside_one_that_goes_and_a_scan() {
    let unmap: Act = |world| {
        let done = child(world, 0).unmap(&world.lab.vm, AT, PAGE);
        assert_eq!(done, Ok(()));
    };
    three_at_once(1, mapped_by_another, [fault, scan, unmap], check);
    three_at_once(1, mapped_by_another, [scan, unmap, fault], check);
    at_once(2, mapped_by_another, scan, unmap, check);
    at_once(2, mapped_by_another, fault, unmap, check);
}

/// A scan gives an entry back that a fault of its pmap takes at once for another list.
#[test]
fn an_entry_goes_from_list_to_list() {
    let next: Act = |world| touch(world, &world.space, AT + PAGE);
    at_once(2, mapped_by_one, scan, next, check);
}

/// A pmap's last entry goes back, its chunk is freed, and another pmap makes a chunk of the frame.
#[test]
fn a_chunk_goes_from_pmap_to_pmap() {
    let prepare: Act = |world| {
        mapped_by_another(world);
        world.lab.vm.rmap.limit_chunks(2);
    };
    let end: Act = |world| {
        child(world, 0).clear(&world.lab.vm);
    };
    at_once(2, prepare, end, fault, check);
    three_at_once(1, prepare, [end, scan, fault], check);
}

/// Looks for use share the list of a page, two at a time, beside a fault that maps it.
#[test]
fn more_looks_at_a_page_than_are_counted() {
    let look: Act = |world| {
        let pfn = world.lab.vm.pages.pfn(page(world));
        let _signs = world.lab.vm.look_for_use(pfn);
    };
    three_at_once(1, mapped_by_another, [look, look, look], check);
    at_once(1, mapped_by_another, look, fault, check);
}

/// There may be one chunk, and the second space has it.
fn one_chunk(world: &World) {
    world.lab.vm.rmap.limit_chunks(1);
    mapped_by_another(world);
}

/// The fault gets the chunk, from the space or because that ends; it never fails. In `pv-obm` the reclaimer looks at a space that
/// ends as often as that takes, which loom would follow for ever: `shuttle_pv.rs` has that.
#[test]
#[cfg(feature = "pv-stock")]
fn a_fault_that_reclaims_beside_the_end_of_the_space_with_the_chunk() {
    let end: Act = |world| {
        child(world, 0).clear(&world.lab.vm);
    };
    at_once(1, one_chunk, fault, end, check);
}

/// The space with the chunk needs a second entry of it.
#[test]
fn two_that_want_the_last_chunk_have_it_in_turn() {
    let theirs: Act = |world| touch(world, &child(world, 0), AT + PAGE);
    at_once(1, one_chunk, fault, theirs, check);
}

/// The page that the reclaimer is about to unmap is unmapped, scanned, or gone with its frame.
#[test]
fn a_reclaimer_beside_what_takes_its_entry_out() {
    let others: [Act; 3] = [
        scan,
        |world| world.file.punch(&world.lab.vm, 0, PAGE),
        |world| {
            let done = child(world, 0).unmap(&world.lab.vm, AT, 2 * PAGE);
            assert_eq!(done, Ok(()));
        },
    ];
    for other in others {
        at_once(1, one_chunk, fault, other, check);
    }
}
