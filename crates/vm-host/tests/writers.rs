//! A file knows whether a mapping may write to it: such a file is not executed.

use std::sync::Arc;

use vm::object::ObjectRef;
use vm::space::{MapArgs, RemapArgs, RemapTarget, Source, Space};
use vm::{EntryFlags, MapProt, Vm, VmError};
use vm_host::Sim;
use vm_host::program::check_frames;

const PAGE: u64 = 4096;
const AT: u64 = 0x7000_0000;
const SHARED: EntryFlags = EntryFlags::SHARED;

fn of(file: &ObjectRef, at: u64, most: MapProt, flags: EntryFlags) -> MapArgs<'_> {
    MapArgs {
        maxprot: most,
        flags,
        source: Source::Object(file, 0),
        ..MapArgs::anon(4 * PAGE, MapProt::READ).at(at)
    }
}

/// Runs `check` with a machine, a file, and a space.
fn with(check: impl FnOnce(&Arc<Vm<Sim>>, &ObjectRef, &Space)) {
    let vm = Arc::new(Sim::new(256, 2, 1).into_vm());
    let free = vm.alloc.free_pages();
    let file = ObjectRef::new_file(&vm, None).unwrap();
    file.truncate(&vm, 8 * PAGE);
    let space = Space::new(&vm).unwrap();
    check(&vm, &file, &space);
    space.clear(&vm);
    drop(space);
    assert!(!file.has_writers(), "no mapping is left");
    file.release(&vm);
    check_frames(&vm, free);
}

#[test]
fn a_mapping_counts_if_mprotect_can_make_it_writable() {
    with(|vm, file, space| {
        for (most, flags, counts) in [
            (MapProt::all(), SHARED, true),
            (MapProt::READ, SHARED, false),
            (MapProt::all(), EntryFlags::empty(), false),
        ] {
            space.map(vm, &of(file, AT, most, flags)).unwrap();
            assert_eq!(file.has_writers(), counts);
            space.unmap(vm, AT, 4 * PAGE).unwrap();
            assert!(!file.has_writers());
        }
    });
}

#[test]
fn its_last_part_counts_wherever_it_was_moved() {
    with(|vm, file, space| {
        space
            .map(vm, &of(file, AT, MapProt::all(), SHARED))
            .unwrap();
        space.unmap(vm, AT, PAGE).unwrap();
        space.unmap(vm, AT + 3 * PAGE, PAGE).unwrap();
        let args = RemapArgs {
            old: AT + PAGE,
            old_len: PAGE,
            new_len: 3 * PAGE,
            target: RemapTarget::MayMove,
            keep_old: false,
        };
        let moved = space.remap(vm, &args).unwrap();
        space.unmap(vm, AT + 2 * PAGE, PAGE).unwrap();
        assert!(file.has_writers(), "what was moved");
        space.unmap(vm, moved, 3 * PAGE).unwrap();
        assert!(!file.has_writers());
    });
}

#[test]
fn a_copy_counts_for_itself() {
    with(|vm, file, space| {
        space
            .map(vm, &of(file, AT, MapProt::all(), SHARED))
            .unwrap();
        let child = space.fork(vm).unwrap();
        space.unmap(vm, AT, 4 * PAGE).unwrap();
        assert!(file.has_writers(), "the child's");
        child.clear(vm);
        assert!(!file.has_writers());
    });
}

#[test]
fn a_mapping_that_fails_does_not_count() {
    with(|vm, file, space| {
        let over = of(file, AT, MapProt::all(), SHARED);
        let both = [of(file, AT, MapProt::all(), SHARED), over];
        assert_eq!(space.map_all(vm, &both), Err(VmError::Exists));
        assert!(!file.has_writers());
    });
}
