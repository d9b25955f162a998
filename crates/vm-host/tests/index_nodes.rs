//! The index of an object uses memory in proportion to its present pages, not to its former ones.
#![cfg(not(any(loom, shuttle)))]

use std::alloc::Layout;
use std::sync::Arc;

use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, Source, Space};
use vm::{Access, EntryFlags, MapProt, Tuning};
use vm_host::Lab;
use vm_host::heap::{Heap, know, live, refuse_none, refuse_once};

#[global_allocator]
static HEAP: Heap = Heap;

const PAGE: u64 = 4096;
/// Bytes covered by the slots of one node.
const REACH: u64 = 64 * PAGE;
const NODE: isize = 256;
const AT: u64 = 1 << 40;
/// Number of nodes that each test makes.
const NODES: u64 = 2000;
/// Bytes that may remain of them: the epoch's reserve.
const REST: isize = 16 * 1024;

struct World {
    lab: Lab,
    space: Arc<Space>,
    file: ObjectRef,
}

impl World {
    fn new() -> World {
        World::of(Lab::new(NODES as usize + 1000, 1))
    }

    fn of(lab: Lab) -> World {
        let space = Space::new(&lab.vm).unwrap();
        let file = ObjectRef::new_file(&lab.vm, None).unwrap();
        lab.run(&space);
        World { lab, space, file }
    }

    fn map(&self, shared: bool, source: Source<'_>) {
        let mut args = MapArgs::anon(NODES * REACH, MapProt::READ | MapProt::WRITE).at(AT);
        args.source = source;
        if shared {
            args.flags = EntryFlags::SHARED;
        }
        assert_eq!(self.space.map(&self.lab.vm, &args), Ok(AT));
    }

    fn store(&self, at: u64) {
        assert_eq!(self.space.fault(&self.lab.vm, at, Access::Write), Ok(()));
    }

    /// Frees everything whose grace period is over.
    fn settle(&self) {
        (0..50).for_each(|_| self.lab.tick());
    }

    /// Runs `act` on one page of each node, one after the other: no node must remain.
    fn one_by_one(&self, act: impl Fn(u64)) {
        act(0);
        self.settle();
        let before = live();
        for n in 1..NODES {
            act(n * REACH + (n * 7 % 64) * PAGE);
            if n % 32 == 0 {
                self.lab.tick();
            }
        }
        self.settle();
        let more = live() - before;
        assert!(more < REST, "{NODES} nodes leave {more} bytes");
    }

    /// Runs `act`, which removes a page of each node at once: no node must remain.
    fn at_once(&self, act: impl FnOnce()) {
        self.many_at_once(NODES, act);
    }

    /// As `at_once`, with fewer nodes.
    fn many_at_once(&self, nodes: u64, act: impl FnOnce()) {
        self.settle();
        let before = live();
        act();
        self.settle();
        let less = before - live();
        let least = nodes as isize * NODE - REST;
        assert!(less >= least, "{less} bytes less, and not {least}");
    }

    fn end(self) {
        self.lab.stop(&self.space);
        self.space.clear(&self.lab.vm);
        self.file.release(&self.lab.vm);
        self.lab.finish();
    }
}

fn fill(piece: &mut [u8]) -> usize {
    piece.len()
}

#[test]
fn punching_holes() {
    let world = World::new();
    let vm = &world.lab.vm;
    world.one_by_one(|at| {
        assert_eq!(world.file.write(vm, at, 1, &mut fill), Ok(1));
        world.file.punch(vm, at, PAGE);
    });
    world.end();
}

#[test]
fn truncation() {
    let world = World::new();
    let vm = &world.lab.vm;
    let write = |at| assert_eq!(world.file.write(vm, at, 1, &mut fill), Ok(1));
    (0..NODES).for_each(|n| write(n * REACH));
    world.at_once(|| world.file.truncate(vm, 0));
    world.end();
}

/// A write that makes a page and copies nothing into it.
#[test]
fn writes_of_nothing() {
    let world = World::new();
    let vm = &world.lab.vm;
    world.one_by_one(|at| {
        assert_eq!(world.file.write(vm, at, 1, &mut |_| 0), Ok(0));
        world.file.forget_blank(vm, at);
    });
    world.end();
}

/// Not with the naive reverse map, whose lists stay until the memory is unmapped.
#[cfg(not(feature = "listed"))]
#[test]
fn private_memory_that_is_not_needed() {
    let world = World::new();
    world.map(false, Source::Anon);
    world.one_by_one(|at| {
        world.store(AT + at);
        let done = world
            .space
            .advise(&world.lab.vm, AT + at, PAGE, Advice::DontNeed);
        assert_eq!(done, Ok(()));
    });
    world.end();
}

#[test]
fn a_part_of_private_memory_that_is_unmapped() {
    let world = World::new();
    world.map(false, Source::Anon);
    (0..NODES).for_each(|n| world.store(AT + n * REACH));
    let vm = &world.lab.vm;
    world.at_once(|| {
        let (from, len) = (AT + PAGE, (NODES - 1) * REACH);
        assert_eq!(world.space.unmap(vm, from, len), Ok(()));
    });
    world.end();
}

/// Two processes had the part; both have unmapped it.
#[test]
#[cfg(not(feature = "listed"))]
fn private_memory_that_nobody_reaches() {
    let world = World::new();
    world.map(false, Source::Anon);
    (0..NODES).for_each(|n| world.store(AT + n * REACH));
    let vm = &world.lab.vm;
    let child = world.space.fork(vm).unwrap();
    let (from, len) = (AT + PAGE, (NODES - 1) * REACH);
    world.at_once(|| {
        assert_eq!(world.space.unmap(vm, from, len), Ok(()));
        assert_eq!(child.unmap(vm, from, len), Ok(()));
        (0..20).for_each(|_| {
            vm.tend();
        });
    });
    child.clear(vm);
    world.end();
}

/// All pages but one have been moved to the front, and that one keeps the layer.
#[test]
fn private_memory_that_has_moved() {
    let world = World::new();
    let vm = &world.lab.vm;
    world.map(false, Source::Anon);
    let store_behind = |from| (from..NODES).for_each(|n| world.store(AT + n * REACH));
    world.settle();
    let before = live();
    store_behind(0);
    let child = world.space.fork(vm).unwrap();
    // A front layer, to which the other pages are moved afterwards: the child has ended.
    store_behind(NODES - 1);
    child.clear(vm);
    drop(child);
    let moved = vm.counts().cow_move;
    (0..64).for_each(|_| store_behind(1));
    assert!(vm.counts().cow_move - moved > NODES * 9 / 10);
    let rest = (AT + REACH, (NODES - 1) * REACH);
    assert_eq!(
        world.space.advise(vm, rest.0, rest.1, Advice::DontNeed),
        Ok(())
    );
    (0..20).for_each(|_| {
        vm.tend();
    });
    world.settle();
    let more = live() - before;
    assert!(more < REST, "{NODES} nodes leave {more} bytes");
    world.end();
}

/// The nodes of runs, whose pages go in one step, where the object stays.
#[test]
fn runs_of_a_part_that_is_unmapped() {
    const BLOCK: u64 = 512 * PAGE;
    const BLOCKS: u64 = 32;
    let lab = Lab::with_superpages(BLOCKS as usize * 512 + 2000, 1, Tuning::DEFAULT);
    let world = World::of(lab);
    world.map(false, Source::Anon);
    (0..BLOCKS * 512).for_each(|n| world.store(AT + n * PAGE));
    assert_eq!(world.lab.vm.counts().leaves(), BLOCKS);
    let gone = BLOCKS - 1;
    world.many_at_once(gone * BLOCK / REACH, || {
        let done = world.space.unmap(&world.lab.vm, AT, gone * BLOCK);
        assert_eq!(done, Ok(()));
    });
    world.end();
}

/// There is memory for the nodes above a leaf, but not for the leaf.
#[test]
fn leaves_that_were_refused() {
    let world = World::new();
    know(Layout::from_size_align(NODE as usize, 4).unwrap());
    world.one_by_one(|at| {
        refuse_once(1);
        // So far apart that each needs a node above its own.
        let at = (1 << 42) + 64 * at;
        let written = world.file.write(&world.lab.vm, at, 1, &mut fill);
        assert!(written.is_err() && refuse_none());
    });
    assert_eq!(world.file.nodes(), 0);
    world.end();
}
