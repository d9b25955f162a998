//! Of the spaces that share private memory one is named to look for pages that none reaches, and there is always one that
//! will.
//!
//! Not with a reverse map that does not find extents: nothing is swept there.
#![cfg(not(feature = "listed"))]

mod family;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use family::{AT, Lab, PAGE, write};
use vm::object::{Attachment, ObjectRef};
use vm::space::{Advice, MapArgs, Source, Space};
use vm::{EntryFlags, MapProt, Vm, VmError};
use vm_host::Sim;
use vm_host::heap::{Heap, blocks, know, left, refuse_none, refuse_once, with_each};
use vm_host::program::Program;

const PAGES: u64 = 40;
/// Pages that the test leaves to the spaces that still have them.
const LEFT: u64 = 10;

#[global_allocator]
static HEAP: Heap = Heap;

/// Unmaps all but the first [`LEFT`] pages.
fn shrink(lab: &Lab, program: &Program) {
    lab.unmap(program, LEFT..PAGES);
}

/// Children end before the next sweep, in each order: the first end names one of those that remain, and if that one ends,
/// too, it names another.
#[test]
fn a_sweeper_that_ends_names_another() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let lab = Lab::new();
        let p = lab.program_of(PAGES);
        let mut children = [(); 3].map(|()| Some(p.fork().unwrap()));
        shrink(&lab, &p);
        assert_eq!(lab.pages(), PAGES, "the children have them");
        for n in order {
            children[n] = None;
        }
        assert_eq!(lab.pages(), LEFT, "{order:?}");
    }
}

/// Two attachments of one space, for parts of a mapping that were moved apart: the first that ends does not speak for
/// the other.
#[test]
fn a_sweeper_may_have_another_attachment() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let (first, second) = (p.fork().unwrap(), p.fork().unwrap());
    shrink(&lab, &p);
    lab.pages();
    drop(first);
    let (low, high) = (AT + PAGE, AT + LEFT * PAGE);
    second.space.unmap(&lab.vm, low, high - low).unwrap();
    assert_eq!(lab.pages(), PAGES);
    second.space.unmap(&lab.vm, AT, PAGE).unwrap();
    drop(second);
    assert_eq!(lab.pages(), LEFT);
}

/// So many share the memory that no sweep looks at it. The one that was named then is named no more, and when enough have
/// ended another is.
#[test]
fn a_sweep_that_is_too_much_names_nobody() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let mut children: Vec<Program> = (0..20).map(|_| p.fork().unwrap()).collect();
    shrink(&lab, &p);
    children.iter().for_each(|child| shrink(&lab, child));
    lab.pages();
    // Names one that stays.
    drop(children.swap_remove(10));
    assert_eq!(lab.pages(), PAGES, "too many");
    (0..5).for_each(|_| drop(children.swap_remove(8)));
    assert_eq!(lab.pages(), LEFT);
}

/// What ends while a fork is at work.
static ENDS: Mutex<Option<Program>> = Mutex::new(None);

/// Ends it, on another thread, when the fork has attached what it had to attach before the block that fails.
fn end_beside() {
    static SEEN: AtomicU32 = AtomicU32::new(0);
    // The first time it is the block of the attachment itself that is asked for.
    if left() == 1 && SEEN.fetch_add(1, Relaxed) == 1 {
        let ends = ENDS.lock().unwrap().take();
        std::thread::spawn(move || drop(ends)).join().unwrap();
    }
}

/// A fork that fails is the last that has attached the memory when a child ends. It looks for nothing.
#[test]
fn a_space_that_is_never_born_is_no_sweeper() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let first = p.fork().unwrap();
    write(&p, 0..LEFT, 0);
    let second = p.fork().unwrap();
    write(&p, 0..LEFT, 0);
    assert_eq!(
        lab.pages(),
        PAGES + 2 * LEFT,
        "the second child reaches the first copies"
    );
    *ENDS.lock().unwrap() = Some(second);
    know(Attachment::BLOCK);
    // Those of the two layers in front are had.
    refuse_once(3);
    let fork = with_each(end_beside, || p.fork().map(drop));
    assert!(refuse_none(), "a block of an attachment");
    assert_eq!(fork, Err(VmError::NoMemory));
    assert!(ENDS.lock().unwrap().is_none());
    assert_eq!(lab.pages(), PAGES + LEFT);
    drop(first);
    assert_eq!(lab.pages(), PAGES);
}

/// The parent of a child that is not yet born unmaps what it has: nobody else is left to look for what the child was not
/// given.
#[test]
fn a_space_that_is_about_to_be_born_looks_once_it_is() {
    let lab = Lab::new();
    let p = lab.program_of(PAGES);
    let (at, len) = (AT + LEFT * PAGE, (PAGES - LEFT) * PAGE);
    p.space.advise(&lab.vm, at, len, Advice::DontFork).unwrap();
    let all = blocks(|| drop(p.fork().unwrap())) as u32;
    *UNMAPS.lock().unwrap() = Some((lab.vm.clone(), p.space.clone()));
    REQUESTS.store(all, Relaxed);
    let child = with_each(unmap_beside, || p.fork().unwrap());
    assert!(UNMAPS.lock().unwrap().is_none());
    assert_eq!(lab.pages(), LEFT);
    drop(child);
    assert_eq!(lab.pages(), 0);
}

type Parent = (Arc<Vm<Sim>>, Arc<Space>);

/// The space whose program unmaps all, and requests of the fork until it does.
static UNMAPS: Mutex<Option<Parent>> = Mutex::new(None);
static REQUESTS: AtomicU32 = AtomicU32::new(0);

/// Unmaps it, on another thread, at the last block that the fork asks for: the parent's map is not locked any more.
fn unmap_beside() {
    if REQUESTS.fetch_sub(1, Relaxed) == 1 {
        let (vm, space) = UNMAPS.lock().unwrap().take().unwrap();
        let unmap = move || space.unmap(&vm, AT, PAGES * PAGE);
        std::thread::spawn(unmap).join().unwrap().unwrap();
    }
}

/// Memory that outlives all that have it attached: the last that ended is not its sweeper any more.
#[test]
fn a_space_that_finds_nobody_is_no_sweeper_any_more() {
    let lab = Lab::new();
    let memory = ObjectRef::new_anon(&lab.vm).unwrap();
    let mapped = |pages: u64| {
        let program = Program::new(&lab.vm);
        let mut args = MapArgs::anon(pages * PAGE, MapProt::all()).at(AT);
        (args.source, args.flags) = (Source::Object(&memory, 0), EntryFlags::SHARED);
        program.space.map(&lab.vm, &args).unwrap();
        program
    };
    let (x, y) = (mapped(PAGES), mapped(PAGES));
    write(&x, 0..PAGES, 0);
    shrink(&lab, &y);
    assert_eq!(lab.pages(), PAGES);
    // The first names the second, which names nobody.
    drop(y);
    drop(x);
    assert_eq!(lab.pages(), PAGES, "the memory is used otherwise");
    let (few, all) = (mapped(LEFT), mapped(PAGES));
    drop(all);
    assert_eq!(lab.pages(), LEFT);
    drop(few);
    memory.release(&lab.vm);
}
