//! The reclaimer of pv entries beside what it takes them from, in random schedules and in all with one stop.
#![cfg(all(shuttle, any(feature = "pv-obm", feature = "pv-stock")))]

use std::sync::Arc;

use shuttle::thread::JoinHandle;
use vm::space::{MapArgs, Source, Space};
use vm::{EntryFlags, MapProt};
use vm_host::listed;
use vm_host::schedules::{AT, PAGE, World, explore, join, program, spawn, stop_everywhere};

const RW: MapProt = MapProt::READ.union(MapProt::WRITE);
/// Entries of a chunk, in these models.
const CHUNK: u64 = 16;

/// A space that has memory mapped at [`AT`] and no entry yet.
fn untouched(world: &World, args: MapArgs<'_>) -> Arc<Space> {
    let space = Space::new(&world.lab.vm).expect("memory");
    assert_eq!(space.map(&world.lab.vm, &args.at(AT)), Ok(AT));
    space
}

/// Two pages of the world's file.
fn of_file(world: &World) -> MapArgs<'_> {
    MapArgs {
        source: Source::Object(&world.file, 0),
        flags: EntryFlags::SHARED,
        ..MapArgs::anon(2 * PAGE, RW)
    }
}

/// A second space with the world's file at the same place, whose first page it has mapped.
fn other(world: &World) -> Arc<Space> {
    let space = untouched(world, of_file(world));
    touch(world, &space);
    space
}

/// Maps the page at [`AT`], and may have to reclaim for that.
fn touch(world: &World, space: &Space) {
    touch_page(world, space, 0);
}

/// As `touch`, a page behind it.
fn touch_page(world: &World, space: &Space, n: u64) {
    let served = space.fault(&world.lab.vm, AT + n * PAGE, vm::Access::Write);
    assert_eq!(served, Ok(()));
}

/// A thread on a CPU that touches a page of a space.
fn toucher(world: &Arc<World>, cpu: usize, space: &Arc<Space>, n: u64) -> JoinHandle<()> {
    let space = space.clone();
    spawn(world, cpu, move |world| touch_page(world, &space, n))
}

/// A page of the file, mapped by the world's space, which may have one of so many chunks.
fn with_chunks(world: &World, chunks: usize) {
    world.lab.vm.rmap.limit_chunks(chunks);
    world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
    world.map(true, Source::Object(&world.file, 0));
    touch(world, &world.space);
}

fn check(world: &World, others: &[Arc<Space>]) {
    let all = others.iter().chain([&world.space]);
    listed::check(&world.lab.vm, all.map(|space| &**space.pmap()));
    for space in others {
        clear(world, space);
    }
}

/// The space ends.
fn clear(world: &World, space: &Space) {
    let _resident = space.clear(&world.lab.vm);
}

/// A program stores through entries that another space's faults take away.
fn reclaim_beside_faults(world: &Arc<World>) {
    with_chunks(world, 1);
    let taker = other(world);
    touch(world, &world.space);
    let theirs = taker.clone();
    let faults = spawn(world, 2, move |world| touch(world, &theirs));
    let adder = program(world, 1, |world| {
        for n in 1..=2 {
            assert_eq!(world.add(1), Ok(n));
        }
    });
    join([adder, faults]);
    assert_eq!(world.word(&world.space), 2);
    check(world, &[taker]);
}

#[test]
fn no_store_is_lost_beside_a_reclaimer() {
    explore(reclaim_beside_faults);
    assert!(stop_everywhere(reclaim_beside_faults) > 100);
}

/// The pmap from which is reclaimed ends.
fn reclaim_beside_exit(world: &Arc<World>) {
    with_chunks(world, 2);
    let ends = other(world);
    let exit = spawn(world, 1, move |world| clear(world, &ends));
    let takers = [2, 3].map(|cpu| {
        spawn(world, cpu, move |world| {
            // From the one that ends, from the world's, or from the other taker.
            let space = other(world);
            clear(world, &space);
        })
    });
    join([exit].into_iter().chain(takers));
    check(world, &[]);
}

#[test]
fn a_pmap_ends_beside_reclaimers() {
    explore(reclaim_beside_exit);
    assert!(stop_everywhere(reclaim_beside_exit) > 100);
}

/// The pmap from which is reclaimed ends, while it has a fault of its own.
fn reclaim_beside_fault_beside_exit(world: &Arc<World>) {
    with_chunks(world, 1);
    let (taker, victim) = (other(world), other(world));
    let theirs = taker.clone();
    let faults = spawn(world, 1, move |world| touch(world, &theirs));
    let last = victim.clone();
    let fault = spawn(world, 2, move |world| {
        // Perhaps after its end.
        let _served = last.fault(&world.lab.vm, AT, vm::Access::Read);
    });
    let exit = spawn(world, 3, move |world| clear(world, &victim));
    join([faults, fault, exit]);
    check(world, &[taker]);
}

#[test]
fn a_pmap_ends_while_it_faults_beside_a_reclaimer() {
    explore(reclaim_beside_fault_beside_exit);
    assert!(stop_everywhere(reclaim_beside_fault_beside_exit) > 100);
}

/// A scan of the page removes it beside the reclaimer: a store through an entry that one of the two takes out is in the page.
fn reclaim_beside_scan(world: &Arc<World>) {
    with_chunks(world, 1);
    let taker = other(world);
    touch(world, &world.space);
    let theirs = taker.clone();
    let faults = spawn(world, 1, move |world| touch(world, &theirs));
    let scan = spawn(world, 2, |world| world.scan(&world.file));
    let adder = program(world, 3, |world| {
        assert_eq!(world.add(3), Ok(1));
    });
    join([faults, scan, adder]);
    assert_eq!(world.word(&world.space), 1);
    check(world, &[taker]);
}

#[test]
fn no_store_is_lost_beside_a_reclaimer_and_a_scan() {
    explore(reclaim_beside_scan);
    assert!(stop_everywhere(reclaim_beside_scan) > 100);
}

/// Two threads of a space need an entry each, while another space ends. So the first may reclaim while the second finds memory.
fn room_for_two_beside_exit(world: &Arc<World>, space: Arc<Space>, pages: [u64; 2]) {
    let ends = other(world);
    let first = toucher(world, 1, &space, pages[0]);
    let exit = spawn(world, 3, move |world| clear(world, &ends));
    join([first, exit, toucher(world, 2, &space, pages[1])]);
    check(world, &[space]);
}

/// The space has no entry yet.
fn first_entries_beside_exit(world: &Arc<World>) {
    with_chunks(world, 2);
    let new = untouched(world, MapArgs::anon(2 * PAGE, RW));
    room_for_two_beside_exit(world, new, [0, 1]);
}

#[test]
fn a_new_space_gets_room_beside_an_end() {
    explore(first_entries_beside_exit);
    assert!(stop_everywhere(first_entries_beside_exit) > 100);
}

/// The space's only chunk is full, and the first that the reclaimer looks at.
fn full_beside_exit(world: &Arc<World>) {
    world.lab.vm.rmap.limit_chunks(2);
    world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
    let full = untouched(world, MapArgs::anon((CHUNK + 2) * PAGE, RW));
    (0..CHUNK).for_each(|n| touch_page(world, &full, n));
    room_for_two_beside_exit(world, full, [CHUNK, CHUNK + 1]);
}

#[test]
fn a_full_space_gets_room_beside_an_end() {
    explore(full_beside_exit);
    assert!(stop_everywhere(full_beside_exit) > 100);
}
