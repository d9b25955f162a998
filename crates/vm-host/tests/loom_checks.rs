//! The purpose of single checks of a fault: another operation comes between its lookup without a lock and its entry.
//!
//! As `loom.rs`. The contents of a space after both operations are compared with those before, and with the result of a
//! new fault.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_checks`
#![cfg(loom)]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use vm::object::{Cache, Frames, ObjectRef};
use vm::space::{Advice, MapArgs, Source};
use vm::{Access, FaultError, MapProt};
use vm_host::arena::DEVICE;
use vm_host::explore::{AT, Act, PAGE, World, at_once, explore};

/// The word at `va`, read from the space's layers.
fn word(world: &World, va: u64) -> u64 {
    let mut bytes = [0; 8];
    let read = world.space.read_at(&world.lab.vm, va, &mut bytes);
    assert_eq!(read, Ok(8));
    u64::from_le_bytes(bytes)
}

fn write_file(world: &World, value: u64) {
    let mut fill = |piece: &mut [u8]| {
        piece.copy_from_slice(&value.to_le_bytes());
        piece.len()
    };
    let written = world.file.write(&world.lab.vm, 0, 8, &mut fill);
    assert_eq!(written, Ok(8));
}

/// The page that is mapped first is the one that a fault in an empty table would enter.
fn shows_what_a_fault_brings(world: &World) {
    let vm = &world.lab.vm;
    let Some(seen) = world.entry(&world.space) else {
        return;
    };
    world.space.drop_tables(vm);
    assert_eq!(world.space.fault(vm, AT, Access::Read), Ok(()));
    let brought = world.entry(&world.space).expect("a fault enters a page");
    assert_eq!(seen.pfn(), brought.pfn(), "an older page is mapped");
}

fn write(world: &World) {
    world.fault(Access::Write);
}

fn read(world: &World) {
    world.fault(Access::Read);
}

/// Scans for the page that the space has there now, whichever it is.
fn scan(world: &World) {
    if let Some(pte) = world.entry(&world.space) {
        world.lab.vm.chaos_scan(pte.pfn());
    }
}

/// A page that a child shares, in no page table.
fn shared_with_a_child(world: &World) {
    world.anon();
    world.fault(Access::Write);
    world.fork();
    world.space.drop_tables(&world.lab.vm);
}

/// A reader has found the front layer empty; a writer inserts a copy there, whose page-table entry a scan removes
/// again.
#[test]
fn an_old_page_is_not_entered_once_there_is_a_copy() {
    let write_and_scan: Act = |world| {
        write(world);
        scan(world);
    };
    explore(
        1,
        None,
        shared_with_a_child,
        read,
        write_and_scan,
        shows_what_a_fault_brings,
    );
    // The same with a front layer already there, so that the writer does not change the entry.
    let in_front: Act = |world| {
        shared_with_a_child(world);
        world.fault_at(AT + PAGE, Access::Write);
    };
    explore(
        1,
        None,
        in_front,
        read,
        write_and_scan,
        shows_what_a_fault_brings,
    );
    // The same if the old page is one of a file, entered by fault-around.
    let around: Act = |world| {
        world.fill_file();
        world.map_at(AT, false, Source::Object(&world.file, 0));
        world.lab.vm.set_fault_around(2 * PAGE);
        // Makes the front layer.
        world.fault_at(AT + PAGE, Access::Write);
        let neighbour = AT + PAGE;
        world
            .space
            .advise(&world.lab.vm, neighbour, PAGE, Advice::DontNeed)
            .unwrap();
    };
    let read_neighbour: Act = |world| world.fault_at(AT + PAGE, Access::Read);
    explore(
        1,
        None,
        around,
        read_neighbour,
        write_and_scan,
        shows_what_a_fault_brings,
    );
}

/// A private write finds a hole of a file, which is filled before it is copied. Data written to the file meanwhile may
/// or may not be copied, but no mapping shows a page that is not in the file.
#[test]
fn a_private_write_to_a_hole_beside_a_write_to_the_file_shows_one_of_its_pages() {
    let hole: Act = |world| {
        world.file.truncate(&world.lab.vm, 2 * PAGE);
        world.map_at(AT, false, Source::Object(&world.file, 0));
        // The front layer exists.
        world.fault_at(AT + PAGE, Access::Write);
    };
    let give: Act = |world| write_file(world, 7);
    let check: Act = |world| {
        assert!([0, 7].contains(&word(world, AT)));
        let mut bytes = [0; 8];
        let len = world.file.read(&world.lab.vm, 0, &mut |piece| {
            bytes.copy_from_slice(&piece[..8]);
            8
        });
        assert_eq!((len, u64::from_le_bytes(bytes)), (8, 7), "the file");
        shows_what_a_fault_brings(world);
    };
    at_once(1, hole, write, give, check);
}

/// A page leaves its file while it is copied, and the space has seen the hole when the copy is entered.
#[test]
fn a_copy_of_a_page_that_has_gone_comes_over_no_hole_that_was_seen() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let full: Act = |world| {
        SEEN.store(7, SeqCst);
        write_file(world, 7);
        world.file.truncate(&world.lab.vm, 2 * PAGE);
        world.map_at(AT, false, Source::Object(&world.file, 0));
        world.fault_at(AT + PAGE, Access::Write);
    };
    let punch_and_see: Act = |world| {
        world.file.punch(&world.lab.vm, 0, PAGE);
        SEEN.store(word(world, AT), SeqCst);
    };
    let check: Act = |world| {
        if SEEN.load(SeqCst) == 0 {
            assert_eq!(word(world, AT), 0);
        }
        shows_what_a_fault_brings(world);
    };
    explore(1, None, full, write, punch_and_see, check);
}

#[test]
fn a_fault_on_a_device_beside_munmap_leaves_nothing() {
    let device: Act = |world| {
        let frames = Frames {
            index: 0,
            first: DEVICE,
            count: 2,
            cache: Cache::Uncached,
        };
        let device = ObjectRef::new_device(&world.lab.vm, frames).unwrap();
        world.map_at(AT, true, Source::Object(&device, 0));
        device.release(&world.lab.vm);
    };
    let check: Act = |world| assert_eq!(world.resident(), 0);
    at_once(1, device, World::unmap, write, check);
}

#[test]
fn what_comes_along_with_a_neighbour_beside_munmap_is_nothing() {
    let around: Act = |world| {
        world.shared();
        // Nothing is known of the other page of the window.
        world.lab.vm.set_fault_around(2 * PAGE);
    };
    let check: Act = |world| assert_eq!(world.resident(), 0);
    at_once(1, around, World::unmap, read, check);
}

/// A page is taken back, and its frame reused elsewhere, while a fault relies on having found it.
#[test]
fn a_page_that_was_taken_back_shows_nowhere_but_at_its_new_place() {
    let one_for_two: Act = |world| {
        write(world);
        world.fault_at(AT + PAGE, Access::Read);
    };
    let protect_and_read: Act = |world| {
        world.protect();
        read(world);
    };
    let check: Act = |world| {
        let pmap = world.space.pmap();
        let entry = |va| pmap.lookup(&world.lab.vm, &ksync::pin(), va);
        if let (Some(one), Some(two)) = (entry(AT), entry(AT + PAGE)) {
            assert_ne!(one.pfn(), two.pfn(), "two places show one page");
        }
        shows_what_a_fault_brings(world);
    };
    explore(2, None, World::anon, one_for_two, protect_and_read, check);
}

/// The same for a read from outside the space.
#[test]
fn a_page_that_was_taken_back_is_read_nowhere_but_at_its_new_place() {
    let one_for_two: Act = |world| {
        write(world);
        let set = world.space.write_at(&world.lab.vm, AT + PAGE, &[7; 8]);
        assert_eq!(set, Ok(8));
    };
    let protect_and_read: Act = |world| {
        world.protect();
        assert_eq!(word(world, AT), 0);
    };
    let nothing: Act = |_| ();
    explore(2, None, World::anon, one_for_two, protect_and_read, nothing);
}

/// The same if the page was taken back because there was no memory for tables: the map entry is unchanged.
#[test]
fn a_page_that_found_no_tables_is_read_nowhere_but_at_its_new_place() {
    let one_for_two: Act = |world| {
        let vm = &world.lab.vm;
        // The second frame that it allocates.
        vm.alloc.set_injector(2, 0);
        let failed = world.space.fault(vm, AT, Access::Write);
        vm.alloc.set_injector(0, 0);
        assert!(matches!(failed, Ok(()) | Err(FaultError::NoMemory)));
        let set = world.space.write_at(vm, AT + PAGE, &[7; 8]);
        assert_eq!(set, Ok(8));
    };
    let read: Act = |world| {
        let mut bytes = [0; 8];
        if world.space.read_at(&world.lab.vm, AT, &mut bytes) == Ok(8) {
            assert_eq!(bytes, [0; 8], "what is elsewhere was read");
        }
    };
    explore(2, None, World::anon, one_for_two, read, |_| ());
}

/// Six layers with a page each, which only this space can see.
fn long_chain(world: &World) {
    let mut args = MapArgs::anon(8 * PAGE, MapProt::READ | MapProt::WRITE);
    args.addr = AT;
    args.place.fixed = true;
    assert_eq!(world.space.map(&world.lab.vm, &args), Ok(AT));
    for page in 0..6 {
        world.fault_at(AT + page * PAGE, Access::Write);
        if page == 0 {
            let set = world.space.write_at(&world.lab.vm, AT, &[7; 8]);
            assert_eq!(set, Ok(8));
        }
        world.fork();
    }
    world.fault_at(AT + 6 * PAGE, Access::Write);
    let children = world.children.lock().unwrap().split_off(0);
    for child in children {
        child.clear(&world.lab.vm);
    }
    let set = world.space.write_at(&world.lab.vm, AT + 7 * PAGE, &[7; 8]);
    assert_eq!(set, Ok(8));
}

/// Folding looks at a layer from which a fault is moving a page to the front.
#[test]
fn a_page_that_is_moved_beside_folding_stays() {
    let fold: Act = |world| {
        world.space.maintain(&world.lab.vm);
    };
    let check: Act = |world| {
        shows_what_a_fault_brings(world);
        assert_eq!(word(world, AT), u64::from_le_bytes([7; 8]));
    };
    explore(1, Some(400), long_chain, fold, write, check);
}

/// A page that a fault moves to the front is in one of the two layers at every moment.
#[test]
fn a_page_on_the_move_is_seen_throughout() {
    let own: Act = |world| {
        world.anon();
        let set = world.space.write_at(&world.lab.vm, AT, &[7; 8]);
        assert_eq!(set, Ok(8));
        world.fork();
        world.fault_at(AT + PAGE, Access::Write);
        let children = world.children.lock().unwrap().split_off(0);
        for child in children {
            child.clear(&world.lab.vm);
        }
    };
    let see: Act = |world| assert_eq!(word(world, AT), u64::from_le_bytes([7; 8]));
    explore(1, None, own, write, see, see);
}

/// A CPU that begins to run a space whose tables are being dropped runs on the remaining root.
#[test]
fn a_cpu_that_joins_learns_that_the_tables_went() {
    let run: Act = |world| world.lab.run(&world.space);
    let drop_tables: Act = |world| {
        world.space.drop_tables(&world.lab.vm);
    };
    let check: Act = |world| {
        let root = world.space.pmap().root();
        let root = root.unwrap_or(world.lab.vm.pmaps.empty_root());
        assert_eq!(world.lab.vm.machine.loaded_root(1), Some(root));
        ksync::host::set_cpu(1);
        world.lab.stop(&world.space);
        ksync::host::set_cpu(0);
    };
    let mapped: Act = |world| {
        world.shared();
        read(world);
    };
    explore(2, None, mapped, drop_tables, run, check);
}

/// The first two writes after a fork: one makes the new layer, and the other finds the layer if it finds the state that
/// goes with it.
#[test]
fn two_first_writes_after_a_fork_write_to_no_shared_page() {
    let check: Act = |world| {
        let children = world.children.lock().unwrap();
        let seen = children[0].fault(&world.lab.vm, AT, Access::Read);
        assert_eq!(seen, Ok(()));
        let (own, seen) = (world.entry(&world.space), world.entry(&children[0]));
        assert_ne!(own.map(|pte| pte.pfn()), seen.map(|pte| pte.pfn()));
    };
    explore(2, None, shared_with_a_child, write, write, check);
}

/// A reader that finds a file grown finds the data written there.
#[test]
fn a_file_that_grows_reads_as_it_was_written() {
    let nothing: Act = |_| ();
    let write: Act = |world| write_file(world, 7);
    let read: Act = |world| {
        let mut bytes = Vec::new();
        let len = world.file.read(&world.lab.vm, 0, &mut |piece| {
            bytes.extend_from_slice(piece);
            piece.len()
        });
        assert!(len == 0 || bytes == 7_u64.to_le_bytes());
    };
    at_once(1, nothing, write, read, nothing);
}

/// A sweep looks at a page in an old layer while a fault is moving it to the front, where it hides its old place.
#[test]
fn a_page_that_is_moved_beside_a_sweep_stays() {
    let unswept: Act = |world| {
        world.anon();
        let both = |access| [AT, AT + PAGE].map(|va| world.fault_at(va, access));
        both(Access::Write);
        world.fork();
        // Makes a copy, whose original is visible to the child alone.
        world.fault_at(AT + PAGE, Access::Write);
        let children = world.children.lock().unwrap().split_off(0);
        for child in children {
            child.clear(&world.lab.vm);
        }
        // It is time to ask whether only this space can see the layer.
        let set = world.space.write_at(&world.lab.vm, AT + PAGE, &[7; 8]);
        assert_eq!(set, Ok(8));
    };
    let tend: Act = |world| world.lab.vm.tend();
    let check: Act = |world| {
        shows_what_a_fault_brings(world);
        assert_eq!(word(world, AT + PAGE), u64::from_le_bytes([7; 8]));
        assert_eq!(word(world, AT), 0);
    };
    at_once(1, unswept, write, tend, check);
}

/// A page that was allocated is taken back while a fault maps it.
#[test]
fn no_page_that_is_being_mapped_is_forgotten() {
    let prepare: Act = |world| {
        world.shared();
        world.file.punch(&world.lab.vm, 0, PAGE);
        assert_eq!(world.file.allocate(&world.lab.vm, 0, PAGE, true), Ok(()));
    };
    let forget: Act = |world| world.file.forget_unwritten(&world.lab.vm, 0, PAGE);
    at_once(2, prepare, forget, write, shows_what_a_fault_brings);
}
