//! Private mappings of a device, whose frames are copied while another CPU reads them: `vm/src/fault/device.rs`.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_device`
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use vm::MapProt;
use vm::object::{Cache, Frames, ObjectRef};
use vm::space::Source;
use vm_host::Access;
use vm_host::arena::DEVICE;
use vm_host::schedules::{AT, PAGE, World, join, program, reader_beside_writer, stop_after};

/// Maps two registers' frames, private.
fn map(world: &World) {
    let vm = &world.lab.vm;
    let frames = Frames {
        index: 0,
        first: DEVICE,
        count: 2,
        cache: Cache::Uncached,
    };
    let device = ObjectRef::new_device(vm, frames).expect("memory");
    world.map(false, Source::Object(&device, 0));
    let done = world.space.protect(vm, AT, 2 * PAGE, MapProt::all());
    assert_eq!(done, Ok(()));
    device.release(vm);
}

fn read(world: &World, cpu: usize) -> u64 {
    let load = |word: &AtomicU64| word.load(SeqCst);
    let seen = world.lab.touch(&world.space, cpu, AT, Access::Read, load);
    seen.expect("it is mapped")
}

/// Whichever of a reader and a writer is stopped, the reader enters no frame of the device over the copy.
fn copy_beside_a_read(world: &Arc<World>, reader_first: bool) {
    map(world);
    // The mapping has its layer for copies already, so that a copy does not change the entry.
    let first = program(world, 1, |world| {
        let store = |word: &AtomicU64| word.store(5, SeqCst);
        let written = world
            .lab
            .touch(&world.space, 1, AT + PAGE, Access::Write, store);
        assert_eq!(written, Ok(()));
    });
    join([first]);
    let reads = |world: &World| {
        let before = read(world, 1);
        let after = read(world, 1);
        assert!(before <= after, "{after} after {before}");
    };
    let writes = |world: &World| {
        assert_eq!(world.add(2), Ok(1));
        assert_eq!(read(world, 2), 1);
        assert_eq!(world.add(2), Ok(2));
    };
    reader_beside_writer(world, reader_first, reads, writes);
    assert_eq!(world.word(&world.space), 2);
    let after = program(world, 1, |world| assert_eq!(read(world, 1), 2));
    join([after]);
}

#[test]
fn a_stopped_reader_hides_no_copy() {
    stop_after(1, |world| copy_beside_a_read(world, true));
}

#[test]
fn a_stopped_writer_loses_no_copy() {
    stop_after(1, |world| copy_beside_a_read(world, false));
}
