//! Nodes of an object's index are unlinked while pages are inserted and removed.
//!
//! As `loom.rs`.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_nodes`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vm::Access;
use vm::space::Source;
use vm_host::explore::{AT, Act, PAGE, World, at_once, in_turn, three_at_once};

loom::lazy_static! {
    /// Whether a flush has reached the cores.
    static ref FLUSHED: AtomicBool = AtomicBool::new(false);
}

fn allocate(world: &World, index: u64) {
    let done = world.file.allocate(&world.lab.vm, index * PAGE, PAGE, true);
    assert_eq!(done, Ok(()));
}

fn punch(world: &World, index: u64) {
    world.file.punch(&world.lab.vm, index * PAGE, PAGE);
}

fn has(world: &World, index: u32) -> bool {
    world.file.lookup(&ksync::pin(), index).is_some()
}

/// In one leaf.
#[test]
fn a_page_that_comes_while_its_node_goes_is_there() {
    let check: Act = |world| {
        assert!(has(world, 6) && !has(world, 5));
        assert_eq!((world.file.resident(), world.file.nodes()), (1, 1));
    };
    at_once(
        2,
        |world| allocate(world, 5),
        |world| punch(world, 5),
        |world| allocate(world, 6),
        check,
    );
}

/// In two leaves of a node.
#[test]
fn a_node_that_comes_while_the_one_above_goes_is_there() {
    let check: Act = |world| {
        assert!(has(world, 134) && !has(world, 70));
        assert_eq!((world.file.resident(), world.file.nodes()), (1, 2));
    };
    at_once(
        2,
        |world| allocate(world, 70),
        |world| punch(world, 70),
        |world| allocate(world, 134),
        check,
    );
}

#[test]
fn the_last_of_two_pages_takes_its_node_along() {
    let both: Act = |world| [5, 6].into_iter().for_each(|index| allocate(world, index));
    let check: Act = |world| assert_eq!((world.file.resident(), world.file.nodes()), (0, 0));
    at_once(
        2,
        both,
        |world| punch(world, 5),
        |world| punch(world, 6),
        check,
    );
}

#[test]
fn the_last_of_two_nodes_takes_the_one_above_along() {
    let both: Act = |world| {
        [70, 134]
            .into_iter()
            .for_each(|index| allocate(world, index))
    };
    let check: Act = |world| assert_eq!((world.file.resident(), world.file.nodes()), (0, 0));
    at_once(
        2,
        both,
        |world| punch(world, 70),
        |world| punch(world, 134),
        check,
    );
}

/// Two operations empty a node and one inserts, in every order: if one of them leaves the node open, another closes it.
#[test]
fn a_node_that_two_leave_and_one_comes_to_is_as_full_as_it_is() {
    let both: Act = |world| [5, 6].into_iter().for_each(|index| allocate(world, index));
    let acts: [Act; 3] = [
        |world| punch(world, 6),
        |world| punch(world, 5),
        |world| {
            allocate(world, 7);
            punch(world, 7);
        },
    ];
    let check: Act = |world| assert_eq!((world.file.resident(), world.file.nodes()), (0, 0));
    three_at_once(1, both, acts, check);
}

/// An operation that inserts another page sees that the old page's translations are gone, even if a third operation has
/// unlinked the node meanwhile.
#[test]
fn a_slot_of_a_new_node_is_empty_when_the_translations_of_its_page_are_gone() {
    let prepare: Act = |world| {
        [5, 6].into_iter().for_each(|index| allocate(world, index));
        world.map_at(AT, true, Source::Object(&world.file, 5 * PAGE));
        world.fault(Access::Write);
        world.lab.run(&world.space);
        let sign = || FLUSHED.store(true, Relaxed);
        world
            .lab
            .vm
            .machine
            .on_flush(Some(std::sync::Arc::new(sign)));
    };
    let acts: [Act; 3] = [
        |world| punch(world, 5),
        |world| {
            world.lab.vm.machine.on_flush(None);
            punch(world, 6);
        },
        |world| {
            allocate(world, 5);
            assert!(FLUSHED.load(Relaxed), "a core may still use what has gone");
        },
    ];
    in_turn(prepare, acts, |world| world.lab.stop(&world.space));
}
