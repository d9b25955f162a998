//! A failed mremap leaves the program's mappings unchanged.
#![cfg(not(any(loom, shuttle)))]

use std::alloc::Layout;
use std::mem::size_of;

use vm::backing::MappedExtent;
use vm::map::MAX_ENTRIES;
use vm::object::ObjectRef;
use vm::space::{MapArgs, RemapTarget, Source};
use vm::{EntryFlags, MapProt, VmError};
use vm_host::heap::{Heap, know, refuse_none, refuse_once};
use vm_host::program::Alone;

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
const OTHERS: u64 = 0x10_0000_0000;
const TO: u64 = 0x7000_0000_0000;
const ALL: MapProt = MapProt::all();

#[global_allocator]
static HEAP: Heap = Heap;

/// The layout of an object's part of a layer: a member of its hub, with six words before the extent.
fn member() -> Layout {
    let size = 6 * size_of::<usize>() + size_of::<MappedExtent>();
    Layout::from_size_align(size, align_of::<usize>()).unwrap()
}

/// mremap to [`TO`].
fn remap(
    program: &Alone,
    old: u64,
    pages: u64,
    new_pages: u64,
    keep_old: bool,
) -> Result<u64, VmError> {
    let target = RemapTarget::Fixed(TO);
    program.remap((old, pages * PAGE), new_pages * PAGE, target, keep_old)
}

fn entries(program: &Alone) -> usize {
    program.space.usage(&program.lab.vm).entries as usize
}

/// One page from the middle of a mapping, when one more mapping is allowed: a move would make two more. So would a move
/// of the last page that keeps the old range mapped.
#[test]
fn a_move_that_makes_too_many_mappings_changes_nothing() {
    let program = Alone::new(8192);
    let map = |at, pages, prot| {
        let args = MapArgs::anon(pages * PAGE, prot).at(at);
        assert_eq!(program.space.map(&program.lab.vm, &args), Ok(at));
    };
    map(AT, 3, ALL);
    (0..3).for_each(|n| program.store(AT + n * PAGE, n + 7));
    let prots = [ALL, MapProt::READ].into_iter().cycle();
    for (n, prot) in (0..).zip(prots).take(MAX_ENTRIES - 2) {
        map(OTHERS + n * PAGE, 1, prot);
    }
    let before = entries(&program);
    assert_eq!(before, MAX_ENTRIES - 1);
    for (page, keep_old) in [(1, false), (1, true), (0, true)] {
        let moved = remap(&program, AT + page * PAGE, 1, 1, keep_old);
        assert_eq!(moved, Err(VmError::NoMemory));
        assert!(
            !program.space.is_used(TO, PAGE),
            "something is mapped there"
        );
        assert_eq!(entries(&program), before);
        let seen: Vec<_> = (0..3).map(|n| program.read(AT + n * PAGE)).collect();
        assert_eq!(seen, [Ok(7), Ok(8), Ok(9)]);
    }
    // A move that adds one mapping succeeds.
    assert_eq!(remap(&program, AT, 3, 3, false), Ok(TO));
    assert_eq!(program.read(TO + PAGE), Ok(8));
    assert_eq!(entries(&program), before);
    program.finish(None);
}

/// A mapping of a file is moved and grows; there is memory for some of its layers, but not for all.
#[test]
fn a_move_without_memory_changes_nothing() {
    know(member());
    let tried = |flags: EntryFlags, keep_old: bool, n: u32| {
        let program = Alone::new(512);
        let file = ObjectRef::new_file(&program.lab.vm, None).unwrap();
        file.allocate(&program.lab.vm, 0, 4 * PAGE, true).unwrap();
        let mut args = MapArgs::anon(2 * PAGE, ALL).at(AT);
        args.source = Source::Object(&file, 0);
        args.flags = flags;
        assert_eq!(program.space.map(&program.lab.vm, &args), Ok(AT));
        program.store(AT, 7);
        refuse_once(n);
        let moved = remap(&program, AT, 1, 2, keep_old);
        let refused = refuse_none();
        assert_eq!(moved.is_err(), refused, "{moved:?}");
        if refused {
            assert_eq!(moved, Err(VmError::NoMemory));
            assert!(!program.space.is_used(TO, 2 * PAGE), "something is mapped");
            assert_eq!(entries(&program), 1);
        }
        let place = if refused { AT } else { TO };
        assert_eq!(program.read(place), Ok(7));
        program.store(place, 8);
        assert_eq!(program.read(place), Ok(8));
        assert_eq!(program.read(AT + PAGE), Ok(0));
        file.release(&program.lab.vm);
        program.finish(None);
        refused
    };
    for keep_old in [false, true] {
        let times = |flags| (1..).take_while(|&n| tried(flags, keep_old, n)).count();
        // The file for the moved part, and for the growth; a private mapping has its copies, too.
        assert_eq!(times(EntryFlags::SHARED), 2);
        assert_eq!(times(EntryFlags::empty()), 3);
    }
}
