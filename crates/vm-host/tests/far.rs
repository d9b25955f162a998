//! Mappings of many TiB, and parts of mappings that are moved far: a 32-bit index stands for one address, and that
//! address is announced.
#![cfg(not(any(loom, shuttle)))]

use vm::map::MAX_ENTRIES;
use vm::space::{MapArgs, RemapTarget, Source, VmError};
use vm::{EntryFlags, FaultError, MapProt};
use vm_host::program::Alone;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;
/// Distance of two addresses whose pages have the same index in 32 bits.
const TURN: u64 = PAGE << 32;
const USER_END: u64 = 1 << 47;
/// The largest file.
const MAX_SIZE: u64 = (u32::MAX as u64) * PAGE;
const AT: u64 = 0x4000_0000;

fn locked(program: &Alone) -> u64 {
    program.space.usage(&program.lab.vm).locked
}

/// The page at offset `from` of a mapping of a file is moved to `to`; a hole punch and a truncation find it there.
fn moved_page_is_found(from: u64, to: u64) {
    let program = Alone::new(4096);
    let vm = &program.lab.vm;
    let file = program.file(AT, 64 * MIB);
    let old = (AT + from, PAGE);
    program.store(old.0, 77);
    let moved = program.remap(old, PAGE, RemapTarget::Fixed(to), false);
    assert_eq!(moved, Ok(to));
    assert_eq!(program.read(to), Ok(77));
    file.punch(vm, from, PAGE);
    assert_eq!(program.read(to), Ok(0), "the page of the hole was freed");
    program.store(to, 78);
    // Everything that the file's mappings cover beyond the new end, including the part that was not moved.
    file.truncate(vm, 0);
    assert_eq!(program.read(to), Err(FaultError::Bus));
    program.finish(Some(file));
}

#[test]
fn a_page_that_moves_below_its_offset_is_found_there() {
    moved_page_is_found(64 * MIB - PAGE, 16 * PAGE);
}

#[test]
fn a_page_that_moves_to_the_top_is_found_there() {
    moved_page_is_found(0, USER_END - 2 * PAGE);
}

/// Stores at the start, loads at a distance of 2^32 pages above, unmaps there, loads at the start.
fn pages_are_apart(program: &Alone, at: u64) {
    program.store(at, 7);
    assert_eq!(program.read(at + TURN), Ok(0));
    program.store(at + TURN, 8);
    assert_eq!(program.read(at), Ok(7));
    let vm = &program.lab.vm;
    assert_eq!(program.space.unmap(vm, at + TURN, PAGE), Ok(()));
    assert_eq!(program.read(at), Ok(7));
}

#[test]
fn pages_of_a_long_mapping_are_apart() {
    let program = Alone::new(4096);
    program.anon(TIB, 20 * TIB, EntryFlags::empty());
    pages_are_apart(&program, TIB);
    program.finish(None);
}

#[test]
fn pages_of_a_mapping_that_has_grown_long_are_apart() {
    let program = Alone::new(4096);
    program.anon(TIB, PAGE, EntryFlags::empty());
    let stay = RemapTarget::Stay;
    assert_eq!(
        program.remap((TIB, PAGE), 20 * TIB, stay, false),
        Ok(TIB),
        "grows in place"
    );
    pages_are_apart(&program, TIB);
    let (old, to) = ((TIB, PAGE), RemapTarget::Fixed(40 * TIB));
    assert_eq!(program.remap(old, 20 * TIB, to, false), Ok(40 * TIB));
    pages_are_apart(&program, 40 * TIB);
    program.finish(None);
}

#[test]
fn neighbours_join_no_further_than_indexes_reach() {
    let program = Alone::new(4096);
    for n in 0..20 {
        program.anon(TIB + n * TIB, TIB, EntryFlags::empty());
    }
    pages_are_apart(&program, TIB);
    program.finish(None);
}

#[test]
fn pages_of_a_stack_that_has_grown_long_are_apart() {
    let program = Alone::new(4096);
    let top = 60 * TIB;
    program.lab.vm.machine.set_stack_limit(u64::MAX);
    program.anon(top - PAGE, PAGE, EntryFlags::GROWSDOWN);
    // First without an object, then with one.
    for first in [top - TURN - PAGE, top - 2 * TURN - 3 * PAGE] {
        program.store(first, 7);
        assert_eq!(program.read(first + TURN), Ok(0));
        program.store(first + TURN, 8);
        assert_eq!(program.read(first), Ok(7));
    }
    program.finish(None);
}

#[test]
fn a_mapping_shows_no_more_of_a_file_than_has_indexes() {
    let program = Alone::new(4096);
    let file = program.file(TIB, PAGE);
    program.store(TIB, 7);
    for (old_len, target) in [
        (PAGE, RemapTarget::Stay),
        (PAGE, RemapTarget::MayMove),
        (0, RemapTarget::MayMove),
    ] {
        let long = program.remap((TIB, old_len), TURN + PAGE, target, false);
        assert_eq!(long, Err(VmError::Invalid), "{old_len} {target:?}");
    }
    assert_eq!(program.read(TIB), Ok(7));
    program.finish(Some(file));
}

#[test]
fn second_mappings_and_growth_count_among_the_entries() {
    let program = Alone::new(4096);
    let at = 1 << 32;
    program.anon(at, PAGE, EntryFlags::SHARED);
    let second = |n: u64| {
        let to = RemapTarget::Fixed(at + 2 * n * PAGE);
        program.remap((at, 0), PAGE, to, false)
    };
    for n in 1..MAX_ENTRIES as u64 {
        assert!(second(n).is_ok(), "{n}");
    }
    assert_eq!(second(MAX_ENTRIES as u64), Err(VmError::NoMemory));
    let grown = program.remap((at, PAGE), 2 * PAGE, RemapTarget::Stay, false);
    assert_eq!(grown, Err(VmError::NoMemory));
    let entries = program.space.usage(&program.lab.vm).entries;
    assert_eq!(entries, MAX_ENTRIES as u64);
    program.finish(None);
}

#[test]
fn what_a_move_leaves_mapped_is_not_locked() {
    let program = Alone::new(4096);
    let vm = &program.lab.vm;
    program.anon(TIB, 4 * PAGE, EntryFlags::empty());
    program
        .space
        .set_locked(vm, TIB, 4 * PAGE, true)
        .expect("it is mapped");
    let old = (TIB, 4 * PAGE);
    let to = program.remap(old, 4 * PAGE, RemapTarget::MayMove, true);
    assert_eq!(locked(&program), 4);
    assert_eq!(program.space.unmap(vm, to.unwrap(), 4 * PAGE), Ok(()));
    assert_eq!(locked(&program), 0);
    program.finish(None);
}

#[test]
fn the_last_page_of_the_largest_file_is_shown() {
    let program = Alone::new(4096);
    let vm = &program.lab.vm;
    let file = program.file(TIB, MAX_SIZE);
    let last = TIB + MAX_SIZE - PAGE;
    program.store(last, 7);
    assert_eq!(program.read(last), Ok(7));
    // A mapping that cannot be made does not first unmap its target.
    let args = MapArgs {
        source: Source::Object(&file, MAX_SIZE),
        flags: EntryFlags::SHARED,
        ..MapArgs::anon(PAGE, MapProt::all()).at(last)
    };
    assert_eq!(program.space.map(vm, &args), Err(VmError::Invalid));
    assert_eq!(program.read(last), Ok(7));
    program.finish(Some(file));
}

#[test]
fn what_needs_no_more_entries_is_done_at_the_limit() {
    let program = Alone::new(4096);
    let vm = &program.lab.vm;
    let at = |n: u64| (1 << 32) + 4 * n * PAGE;
    for n in 0..MAX_ENTRIES as u64 {
        program.anon(at(n), 3 * PAGE, EntryFlags::empty());
    }
    let unmap = |from: u64, to: u64| program.space.unmap(vm, from, to - from);
    assert_eq!(
        unmap(at(0) + PAGE, at(0) + 2 * PAGE),
        Err(VmError::NoMemory)
    );
    assert_eq!(unmap(at(0), at(0) + PAGE), Ok(()));
    assert_eq!(unmap(at(1) + PAGE, at(1) + 3 * PAGE), Ok(()));
    assert_eq!(unmap(at(2) + PAGE, at(5) + PAGE), Ok(()));
    assert_eq!(unmap(at(6) + PAGE, at(6) + 2 * PAGE), Ok(()));
    program.finish(None);
}

#[test]
fn a_stack_costs_what_has_been_touched() {
    let program = Alone::new(4096);
    program.anon(TIB, 64 * PAGE, EntryFlags::GROWSDOWN);
    for n in 0..64 {
        program.store(TIB + n * PAGE, 1);
    }
    assert_eq!(program.space.cost().own, 64);
    program.finish(None);
}
