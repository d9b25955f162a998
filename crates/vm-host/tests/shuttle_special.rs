//! Mappings of the special object, which get their layer while another CPU reads them: `vm/src/space/special.rs`.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_special`
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use vm::MapProt;
use vm::object::ObjectRef;
use vm::space::Source;
use vm_host::Access;
use vm_host::schedules::{
    AT, PAGE, World, explore, join, program, reader_beside_writer, stop_everywhere,
};

/// Maps a special object of two pages whose first word is 7, for writing as well.
fn map(world: &World) {
    let vm = &world.lab.vm;
    let object = ObjectRef::new_file(vm, None).unwrap();
    let copy = &mut |bytes: &mut [u8]| {
        bytes.fill(0);
        bytes[0] = 7;
        bytes.len()
    };
    assert_eq!(object.write(vm, 0, 2 * PAGE, copy).ok(), Some(2 * PAGE));
    assert!(vm.set_special(object).is_ok());
    world.map(false, Source::Special);
    let done = world.space.protect(vm, AT, 2 * PAGE, MapProt::all());
    assert_eq!(done, Ok(()));
}

fn read(world: &World, cpu: usize) -> u64 {
    let load = |word: &AtomicU64| word.load(SeqCst);
    let seen = world.lab.touch(&world.space, cpu, AT, Access::Read, load);
    seen.expect("it is mapped")
}

/// A reader and a writer; whichever is stopped, nobody sees an old word after a new one.
fn first_write_beside_a_read(world: &Arc<World>, reader_first: bool) {
    map(world);
    let reads = |world: &World| {
        let before = read(world, 1);
        let after = read(world, 1);
        assert!(before <= after, "{after} after {before}");
    };
    let writes = |world: &World| {
        assert_eq!(world.add(2), Ok(8));
        assert_eq!(read(world, 2), 8);
        assert_eq!(world.add(2), Ok(9));
    };
    reader_beside_writer(world, reader_first, reads, writes);
    assert_eq!(world.word(&world.space), 9);
    let after = program(world, 1, |world| assert_eq!(read(world, 1), 9));
    join([after]);
}

#[test]
fn a_stopped_reader_shows_nothing_old() {
    stop_everywhere(|world| first_write_beside_a_read(world, true));
}

#[test]
fn a_stopped_writer_hides_nothing_new() {
    stop_everywhere(|world| first_write_beside_a_read(world, false));
}

#[test]
fn readers_and_the_first_write_agree() {
    explore(|world| first_write_beside_a_read(world, true));
}

/// What ends the mapping finds what readers enter.
#[test]
fn nothing_is_reached_after_munmap() {
    stop_everywhere(|world| {
        map(world);
        let reader = program(world, 1, |world| {
            let _either = world.space.fault(&world.lab.vm, AT, vm::Access::Read);
        });
        let unmapper = program(world, 2, |world| {
            assert_eq!(world.space.unmap(&world.lab.vm, AT, 2 * PAGE), Ok(()));
        });
        join([reader, unmapper]);
        unreachable(world);
    });
}

/// A fault that began when reading was allowed enters nothing once it is not.
#[test]
fn nothing_is_reached_after_mprotect() {
    stop_everywhere(|world| {
        map(world);
        let reader = program(world, 1, |world| {
            let _either = world.space.fault(&world.lab.vm, AT, vm::Access::Read);
        });
        let protector = program(world, 2, |world| {
            let vm = &world.lab.vm;
            let done = world.space.protect(vm, AT, 2 * PAGE, MapProt::empty());
            assert_eq!(done, Ok(()));
        });
        join([reader, protector]);
        unreachable(world);
    });
}

/// Checks that a program cannot reach the mapping without a fault.
fn unreachable(world: &Arc<World>) {
    let checker = program(world, 1, |world| {
        for va in [AT, AT + PAGE] {
            world.unreachable_at(va, 1, Access::Read);
        }
    });
    join([checker]);
}

/// The number of layers of the only mapping.
fn layers(world: &World) -> usize {
    let mut depth = 0;
    world.space.for_each_entry(0, &mut |entry| {
        depth = entry.depth;
        true
    });
    depth
}

/// Neither does one for a write then give the mapping a layer.
#[test]
fn no_layer_is_made_for_a_write_that_is_refused() {
    stop_everywhere(|world| {
        map(world);
        let writer = program(world, 1, |world| {
            let _either = world.space.fault(&world.lab.vm, AT, vm::Access::Write);
        });
        let had_some = Arc::new(AtomicBool::new(false));
        let told = had_some.clone();
        let protector = program(world, 2, move |world| {
            let vm = &world.lab.vm;
            let done = world.space.protect(vm, AT, 2 * PAGE, MapProt::READ);
            assert_eq!(done, Ok(()));
            told.store(layers(world) > 0, SeqCst);
        });
        join([writer, protector]);
        assert!(had_some.load(SeqCst) || layers(world) == 0, "a layer");
    });
}
