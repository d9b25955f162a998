//! The purpose of single locks: two concurrent operations on the real VM, one of which needs the lock to exclude the
//! other.
//!
//! As `loom.rs`. Locks of page tables guard no data that loom knows of, so these tests look for the consequences.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_locks`
#![cfg(loom)]

use vm::space::Source;
use vm::{Access, Gather, Prot, Pte, Rights};
use vm_host::explore::{AT, Act, PAGE, World, at_once, explore};
use vm_host::ticket;

/// Bytes under eight level-1 tables, whose entries in the table above share a group.
const GROUP: u64 = 8 * 512 * PAGE;

fn nothing(_: &World) {}

#[test]
fn a_file_made_longer_by_two_is_as_long_as_the_longer_says() {
    let allocate: Act = |world| world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
    let truncate: Act = |world| world.file.truncate(&world.lab.vm, 2 * PAGE);
    let check: Act = |world| assert_eq!(world.file.size(), 2 * PAGE);
    at_once(2, nothing, truncate, allocate, check);
}

/// A table is not unlinked while a fault that has locked it fills it.
#[test]
fn a_fault_beside_a_scan_that_empties_its_table_stays() {
    let read: Act = |world| {
        world.shared();
        world.fault(Access::Read);
    };
    let scan: Act = |world| {
        let pfn = world.file.lookup(&ksync::pin(), 0).unwrap();
        world.lab.vm.chaos_scan(pfn);
    };
    let neighbour: Act = |world| world.fault_at(AT + PAGE, Access::Read);
    let check: Act = |world| assert_eq!(world.resident(), 1);
    explore(1, None, read, scan, neighbour, check);
}

/// The list of queued spaces is looked at beside a change of it.
#[test]
#[cfg(not(feature = "listed"))]
fn a_look_at_the_queued_spaces_waits_for_its_change() {
    let prepare: Act = |world| {
        world.anon();
        world.fault_at(AT, Access::Write);
        world.fork();
    };
    // The child may reach the page, so a sweep is left to decide.
    let unmap: Act = |world| world.space.unmap(&world.lab.vm, AT, PAGE).unwrap();
    let look: Act = |world| {
        let _either = (0..2).any(|cpu| world.lab.vm.is_queued(cpu));
    };
    let check: Act = |world| {
        assert!((0..2).any(|cpu| world.lab.vm.is_queued(cpu)));
    };
    at_once(1, prepare, unmap, look, check);
}

fn protect_high(world: &World) {
    let mut gather = Gather::new();
    let pmap = world.space.pmap();
    pmap.write_protect_high(&world.lab.vm, &ksync::pin(), &mut gather);
    gather.finish(&world.lab.vm);
}

/// Pushing write protection down and removing it from the level above is one step: a fork in between would lose its own
/// protection.
#[test]
fn protection_that_comes_while_another_is_pushed_down_is_not_forgotten() {
    let prepare: Act = |world| {
        world.shared();
        world.fault_at(AT, Access::Write);
        world.fault_at(AT + PAGE, Access::Write);
        protect_high(world);
    };
    fn write(world: &World, page: u32) {
        let (vm, pin) = (&world.lab.vm, ksync::pin());
        let leaf = Pte::user(world.file.lookup(&ksync::pin(), page).unwrap(), Prot::WRITE);
        let va = AT + u64::from(page) * PAGE;
        let check = || true;
        let done = world.space.pmap().enter_resident(
            vm,
            &pin,
            &ticket(vm, world.space.pmap()),
            va,
            leaf,
            check,
            check,
        );
        assert!(done.is_ok());
    }
    // As in a fork, after which no earlier operation may make the neighbour writable.
    let write_and_protect: Act = |world| {
        write(world, 1);
        protect_high(world);
    };
    let check: Act = |world| {
        let pin = ksync::pin();
        let own = world.space.pmap().lookup(&world.lab.vm, &pin, AT + PAGE);
        assert!(own.is_some_and(|pte| !pte.is_writable()));
    };
    explore(
        1,
        None,
        prepare,
        |world| write(world, 0),
        write_and_protect,
        check,
    );
}

/// An unmapping finds a table that is linked while protection is pushed down through the table above.
#[test]
fn a_table_made_while_protection_is_pushed_down_is_not_forgotten() {
    const PRUNED: u64 = AT + GROUP;
    const NEW: u64 = AT + 2 * GROUP;
    let prepare: Act = |world| {
        world.shared();
        for at in [PRUNED, NEW] {
            world.map_at(at, true, Source::Object(&world.file, 0));
        }
        world.fault_at(AT, Access::Write);
        world.fault_at(PRUNED, Access::Write);
        protect_high(world);
        // Leaves a group without tables, whose bit the push-down clears.
        world.space.unmap(&world.lab.vm, PRUNED, 2 * PAGE).unwrap();
    };
    let push_down: Act = |world| world.fault_at(AT, Access::Write);
    let make: Act = |world| world.fault_at(NEW, Access::Read);
    let check: Act = |world| {
        // The whole range at once: the walk to a single table uses no groups.
        let len = NEW + 2 * PAGE - AT;
        world.space.unmap(&world.lab.vm, AT, len).unwrap();
        let left = world.space.pmap().lookup(&world.lab.vm, &ksync::pin(), NEW);
        assert_eq!(left, None);
    };
    explore(1, None, prepare, push_down, make, check);
}

/// A page that a fault moves to the front is not moved into a layer that was dropped.
#[test]
fn a_fault_that_moves_a_page_beside_munmap_leaves_nothing() {
    let prepare: Act = |world| {
        world.anon();
        world.fault_at(AT, Access::Write);
        world.fork();
        world.fault_at(AT + PAGE, Access::Write);
        let children = world.children.lock().unwrap().split_off(0);
        children.iter().for_each(|child| {
            child.clear(&world.lab.vm);
        });
    };
    let check: Act = |world| assert_eq!(world.resident(), 0);
    let write: Act = |world| world.fault_at(AT, Access::Write);
    at_once(1, prepare, World::unmap, write, check);
}

/// Only one CPU cuts slabs of its depots, but other CPUs return objects to them, and drain them.
#[test]
fn slabs_are_changed_in_turn() {
    let start: Act = |world| {
        world.heap();
    };
    let take: Act = |world| world.give(world.take(4));
    let drain: Act = |world| {
        let vm = &world.lab.vm;
        world.heap().drain(&vm.machine, &vm.alloc, &ksync::pin());
    };
    explore(1, Some(20), start, take, drain, nothing);
    explore(1, Some(20), start, drain, take, nothing);
    // CPU 1 has objects that CPU 0 has cut.
    let given: Act = |world| {
        let objects = world.take(3);
        ksync::host::set_cpu(1);
        world.give(objects);
        ksync::host::set_cpu(0);
    };
    explore(1, Some(20), given, take, drain, nothing);
}

/// Without memory a CPU uses objects that others have cut.
#[test]
fn slabs_of_others_are_changed_in_turn() {
    let hoard: Act = |world| {
        ksync::host::set_cpu(1);
        world.give(world.take(1));
        ksync::host::set_cpu(0);
        world.hoard(Rights::Kernel);
    };
    let take: Act = |world| world.give(world.take(1));
    // More than CPU 1 has ready.
    let take_more: Act = |world| world.give(world.take(5));
    explore(1, Some(20), hoard, take, take_more, nothing);
    explore(1, Some(20), hoard, take_more, take, nothing);
}

/// A run of two pages, and otherwise only the users' reserve.
fn a_last_run(world: &World) {
    world.hoard(Rights::User);
    world.spare(1);
    assert_eq!(world.lab.vm.alloc.spare_pages(), 2);
}

#[test]
fn two_who_take_the_last_pages_leave_the_reserve() {
    let take: Act = |world| {
        let (alloc, pin) = (&world.lab.vm.alloc, ksync::pin());
        if let Ok(pfn) = alloc.alloc(&pin, Rights::User) {
            // It stays in the magazine.
            alloc.free(&pin, pfn);
        }
    };
    let check: Act = |world| {
        let alloc = &world.lab.vm.alloc;
        let listed = alloc.domain_pages(0).0 + alloc.domain_pages(1).0;
        assert!(alloc.free_pages() - listed <= 2);
    };
    at_once(1, a_last_run, take, take, check);
}

#[test]
fn two_who_take_the_last_run_leave_the_reserve() {
    let take: Act = |world| {
        let taken = world
            .lab
            .vm
            .alloc
            .alloc_order(&ksync::pin(), 1, Rights::User);
        let mut runs = world.runs.lock().unwrap();
        runs.extend(taken.map(|run| (run, 1)));
    };
    let check: Act = |world| assert!(world.runs.lock().unwrap().len() <= 1);
    at_once(1, a_last_run, take, take, check);
}
