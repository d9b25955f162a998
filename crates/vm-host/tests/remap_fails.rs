//! mremap that cannot be done leaves the program's mappings as they were.
#![cfg(not(any(loom, shuttle)))]

use std::alloc::Layout;
use std::mem::size_of;
use std::ops::Deref;

use vm::backing::Place;
use vm::map::MAX_ENTRIES;
use vm::object::ObjectRef;
use vm::space::{MapArgs, RemapArgs, RemapTarget, Source};
use vm::{EntryFlags, MapProt, VmError};
use vm_host::Lab;
use vm_host::heap::{Heap, know, refuse_none, refuse_once};
use vm_host::program::Program;

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
const OTHERS: u64 = 0x10_0000_0000;
const TO: u64 = 0x7000_0000_0000;
const ALL: MapProt = MapProt::ALL;

#[global_allocator]
static HEAP: Heap = Heap;

/// What an object has for each layer that it is: a member of its hub, with six words before the place.
fn member() -> Layout {
    let size = 6 * size_of::<usize>() + size_of::<Place>();
    Layout::from_size_align(size, align_of::<usize>()).unwrap()
}

/// A program on one CPU, alone in its laboratory.
struct Alone {
    lab: Lab,
    program: Program,
}

impl Deref for Alone {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl Alone {
    fn new(frames: usize) -> Alone {
        let lab = Lab::new(frames, 1);
        let program = Program::new(&lab.vm);
        program.load();
        Alone { lab, program }
    }

    fn store(&self, at: u64, value: u64) {
        assert_eq!(self.write(at, value), Ok(()));
    }

    fn remap(&self, old: u64, pages: u64, new_pages: u64, keep_old: bool) -> Result<u64, VmError> {
        let args = RemapArgs {
            old,
            old_len: pages * PAGE,
            new_len: new_pages * PAGE,
            target: RemapTarget::Fixed(TO),
            keep_old,
        };
        self.space.remap(&self.lab.vm, &args)
    }

    fn entries(&self) -> usize {
        self.space.usage(&self.lab.vm).entries as usize
    }

    fn end(self) {
        self.unload();
        drop(self.program);
        self.lab.finish();
    }
}

/// A page out of the middle of a mapping, where there may be one mapping more: a move would make two. So would one from the
/// end that leaves its old range mapped.
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
    let before = program.entries();
    assert_eq!(before, MAX_ENTRIES - 1);
    for (page, keep_old) in [(1, false), (1, true), (0, true)] {
        let moved = program.remap(AT + page * PAGE, 1, 1, keep_old);
        assert_eq!(moved, Err(VmError::NoMemory));
        assert!(
            !program.space.is_used(TO, PAGE),
            "something is mapped there"
        );
        assert_eq!(program.entries(), before);
        let seen: Vec<_> = (0..3).map(|n| program.read(AT + n * PAGE)).collect();
        assert_eq!(seen, [Ok(7), Ok(8), Ok(9)]);
    }
    // One that makes no more can be had.
    assert_eq!(program.remap(AT, 3, 3, false), Ok(TO));
    assert_eq!(program.read(TO + PAGE), Ok(8));
    assert_eq!(program.entries(), before);
    program.end();
}

/// A mapping of a file moves and grows; there is memory for some of its layers, but not for all.
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
        let moved = program.remap(AT, 1, 2, keep_old);
        let refused = refuse_none();
        assert_eq!(moved.is_err(), refused, "{moved:?}");
        if refused {
            assert_eq!(moved, Err(VmError::NoMemory));
            assert!(!program.space.is_used(TO, 2 * PAGE), "something is mapped");
            assert_eq!(program.entries(), 1);
        }
        let place = if refused { AT } else { TO };
        assert_eq!(program.read(place), Ok(7));
        program.store(place, 8);
        assert_eq!(program.read(place), Ok(8));
        assert_eq!(program.read(AT + PAGE), Ok(0));
        file.release(&program.lab.vm);
        program.end();
        refused
    };
    for keep_old in [false, true] {
        let times = |flags| (1..).take_while(|&n| tried(flags, keep_old, n)).count();
        // The file for the part that moves, and for what it grows by; a private mapping has its copies, too.
        assert_eq!(times(EntryFlags::SHARED), 2);
        assert_eq!(times(EntryFlags::EMPTY), 3);
    }
}
