//! Private copies of a file's pages beside a truncation: when it has returned, none beyond the end is mapped.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_cut_off`
#![cfg(shuttle)]

use std::sync::Arc;

use vm::space::Source;
use vm::{Access, FaultError, Gather, Prot, Pte};
use vm_host::schedules::{AT, PAGE, TO, World, join, spawn, stop_everywhere};
use vm_host::ticket;

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

/// What runs beside a truncation, and which of the two is stopped.
#[derive(Clone, Copy)]
enum Stopped {
    Other,
    Truncation,
}

/// Truncates the file beside `other`, while a third CPU takes away the tables.
fn truncated(world: &Arc<World>, stopped: Stopped, other: impl Fn(&World) + Send + 'static) {
    let truncate = |world: &World| world.file.truncate(&world.lab.vm, 0);
    let threads = match stopped {
        Stopped::Other => [spawn(world, 1, other), spawn(world, 2, truncate)],
        Stopped::Truncation => [spawn(world, 2, truncate), spawn(world, 1, other)],
    };
    let tables = spawn(world, 3, |world| {
        world.space.drop_tables(&world.lab.vm);
    });
    join(threads);
    join([tables]);
}

fn faults(world: &Arc<World>, stopped: Stopped, access: Access) {
    truncated(world, stopped, move |world| {
        let _either = world.space.fault(&world.lab.vm, AT, access);
    });
    is_cut_off(world, AT);
}

fn read_a_copy(world: &Arc<World>, stopped: Stopped) {
    with_copy(world);
    faults(world, stopped, Access::Read);
}

#[test]
fn a_fault_maps_no_copy_beyond_the_end() {
    stop_everywhere(|world| read_a_copy(world, Stopped::Other));
    stop_everywhere(|world| read_a_copy(world, Stopped::Truncation));
}

/// The copy's entry was taken out, and the flush is due: the fault makes it, and asks once more.
fn read_a_copy_after_a_flush(world: &Arc<World>, stopped: Stopped) {
    with_copy(world);
    world.touched(Access::Read);
    let (vm, mut gather) = (&world.lab.vm, Gather::new());
    let pmap = world.space.pmap();
    pmap.remove_range(vm, AT, AT + PAGE, &mut gather);
    faults(world, stopped, Access::Read);
    gather.finish(vm);
}

#[test]
fn a_fault_that_flushes_maps_no_copy_beyond_the_end() {
    stop_everywhere(|world| read_a_copy_after_a_flush(world, Stopped::Other));
    stop_everywhere(|world| read_a_copy_after_a_flush(world, Stopped::Truncation));
}

/// The tables map the file's page where the space has a copy, as after a fold: the fault puts the copy into its place.
fn displace_by_a_copy(world: &Arc<World>, stopped: Stopped) {
    with_copy(world);
    let (vm, pmap) = (&world.lab.vm, world.space.pmap());
    let older = world.file.lookup(&ksync::pin(), 0).expect("a page");
    let leaf = Pte::user(older, Prot::READ);
    let entered = pmap.enter(vm, &ksync::pin(), &ticket(vm, pmap), AT, leaf, || true);
    entered.expect("nothing is in the way");
    faults(world, stopped, Access::Read);
}

#[test]
fn no_copy_beyond_the_end_displaces_an_older_page() {
    stop_everywhere(|world| displace_by_a_copy(world, Stopped::Other));
    stop_everywhere(|world| displace_by_a_copy(world, Stopped::Truncation));
}

/// Of two layers with private pages, a write copies from the older one, while a child shares it.
fn copy_a_copy(world: &Arc<World>, stopped: Stopped) {
    with_copy(world);
    let child = world.space.fork(&world.lab.vm).unwrap();
    world.set_word_at(&world.space, AT + PAGE, 8);
    faults(world, stopped, Access::Write);
    child.clear(&world.lab.vm);
}

#[test]
fn a_write_copies_no_copy_beyond_the_end() {
    stop_everywhere(|world| copy_a_copy(world, Stopped::Other));
    stop_everywhere(|world| copy_a_copy(world, Stopped::Truncation));
}

/// Nobody shares it: the page comes to the front.
fn take_over_a_copy(world: &Arc<World>, stopped: Stopped) {
    with_copy(world);
    let child = world.space.fork(&world.lab.vm).unwrap();
    world.set_word_at(&world.space, AT + PAGE, 8);
    child.clear(&world.lab.vm);
    faults(world, stopped, Access::Write);
}

#[test]
fn a_write_takes_over_no_copy_beyond_the_end() {
    stop_everywhere(|world| take_over_a_copy(world, Stopped::Other));
    stop_everywhere(|world| take_over_a_copy(world, Stopped::Truncation));
}

/// A move enters the pages that the old tables map at the new addresses.
fn move_a_copy(world: &Arc<World>, stopped: Stopped) {
    with_copy(world);
    world.touched(Access::Read);
    truncated(world, stopped, |world| world.carry(AT, TO));
    is_cut_off(world, TO);
}

#[test]
fn a_move_maps_no_copy_beyond_the_end() {
    stop_everywhere(|world| move_a_copy(world, Stopped::Other));
    stop_everywhere(|world| move_a_copy(world, Stopped::Truncation));
}

/// A write that fails takes away the page that it has put beyond the end. A read fault, which maps the neighbours that it finds,
/// finds it there before that.
#[test]
fn no_neighbour_beyond_the_end_is_mapped() {
    stop_everywhere(|world| {
        let vm = &world.lab.vm;
        vm.set_fault_around(4 * PAGE);
        world.file.truncate(vm, 2 * PAGE);
        world.map(true, Source::Object(&world.file, 0));
        world.touched(Access::Write);
        world.space.drop_tables(vm);
        let fault = spawn(world, 1, |world| {
            let _either = world.space.fault(&world.lab.vm, AT, Access::Read);
        });
        let writer = spawn(world, 2, |world| {
            let vm = &world.lab.vm;
            world.file.truncate(vm, PAGE);
            assert_eq!(world.file.write(vm, PAGE, PAGE, &mut |_| 0), Ok(0));
        });
        join([fault, writer]);
        world.file.forget_blank(vm, PAGE);
        is_cut_off(world, AT + PAGE);
    });
}
