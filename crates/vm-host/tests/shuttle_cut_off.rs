//! Private copies of a file's pages beside a truncation: when it has returned, none beyond the end is mapped.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_cut_off`
#![cfg(shuttle)]

use std::sync::Arc;

use shuttle::thread::JoinHandle;
use vm::space::Source;
use vm::{Access, FaultError};
use vm_host::schedules::{AT, PAGE, TO, World, join, spawn, stop_everywhere};

/// Maps a file that has a page, of which the space has a private copy that no table maps.
fn with_copy(world: &World) {
    let vm = &world.lab.vm;
    world.file.truncate(vm, 2 * PAGE);
    world.map(false, Source::Object(&world.file, 0));
    world.set_word_at(&world.space, AT, 7);
    world.space.drop_tables(vm);
}

/// Nothing is mapped at an address, and a program gets a signal there.
fn is_cut_off(world: &World, va: u64) {
    let (vm, space) = (&world.lab.vm, &world.space);
    let mapped = space.pmap().lookup(vm, &ksync::pin(), va);
    assert_eq!(mapped, None, "{va:#x} is mapped beyond the end");
    assert_eq!(space.fault(vm, va, Access::Read), Err(FaultError::Bus));
}

/// Truncates the file beside `other`.
fn truncated(world: &Arc<World>, other: JoinHandle<()>) {
    let truncation = spawn(world, 2, |world| world.file.truncate(&world.lab.vm, 0));
    join([other, truncation]);
}

fn faults(world: &Arc<World>, access: Access) {
    let fault = spawn(world, 1, move |world| {
        let _either = world.space.fault(&world.lab.vm, AT, access);
    });
    truncated(world, fault);
    is_cut_off(world, AT);
}

#[test]
fn a_fault_maps_no_copy_beyond_the_end() {
    stop_everywhere(|world| {
        with_copy(world);
        faults(world, Access::Read);
    });
}

/// Of two layers with private pages, a write copies from the older one, while a child shares it.
#[test]
fn a_write_copies_no_copy_beyond_the_end() {
    stop_everywhere(|world| {
        with_copy(world);
        let child = world.space.fork(&world.lab.vm).unwrap();
        world.set_word_at(&world.space, AT + PAGE, 8);
        faults(world, Access::Write);
        child.clear(&world.lab.vm);
    });
}

/// Nobody shares it: the page comes to the front.
#[test]
fn a_write_takes_over_no_copy_beyond_the_end() {
    stop_everywhere(|world| {
        with_copy(world);
        let child = world.space.fork(&world.lab.vm).unwrap();
        world.set_word_at(&world.space, AT + PAGE, 8);
        child.clear(&world.lab.vm);
        faults(world, Access::Write);
    });
}

/// A move enters the pages that the old tables map at the new addresses.
#[test]
fn a_move_maps_no_copy_beyond_the_end() {
    stop_everywhere(|world| {
        with_copy(world);
        world.touched(Access::Read);
        let mover = spawn(world, 1, |world| world.carry(AT, TO));
        truncated(world, mover);
        is_cut_off(world, TO);
    });
}
