//! The heap fails the n-th allocation of an operation, for each n: nothing is lost, and no page stays busy.
#![cfg(not(any(loom, shuttle)))]

use std::alloc::Layout;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use vm::object::ObjectRef;
use vm::page::State;
use vm::space::{Advice, MapArgs, Source, Space};
use vm::{EntryFlags, FaultError, MapProt, Pfn};
use vm_host::heap::{
    Heap, asked_under_locks, know, learn, refuse_each, refuse_none, refuse_once, spare,
};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;

#[global_allocator]
static HEAP: Heap = Heap;

struct World {
    lab: Lab,
    file: ObjectRef,
    space: Arc<Space>,
    relatives: Vec<Arc<Space>>,
}

fn args(at: u64, pages: u64, source: Source<'_>) -> MapArgs<'_> {
    let mut args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(at);
    args.source = source;
    args
}

impl World {
    fn new() -> World {
        let lab = Lab::new(1024, 1);
        let file = learn(|| ObjectRef::new_file(&lab.vm, None).unwrap());
        // A leaf, and a node above leaves.
        learn(|| file.allocate(&lab.vm, 9 * PAGE, PAGE, true).unwrap());
        learn(|| file.allocate(&lab.vm, 100 * PAGE, PAGE, true).unwrap());
        file.truncate(&lab.vm, 0);
        file.truncate(&lab.vm, 400 * PAGE);
        let space = Space::new(&lab.vm).unwrap();
        space
            .map(&lab.vm, &args(AT, 1000, Source::Anon))
            .expect("memory");
        lab.run(&space);
        World {
            lab,
            file,
            space,
            relatives: Vec::new(),
        }
    }

    fn write(&self, page: u64, value: u64) {
        let store = |word: &AtomicU64| word.store(value, Relaxed);
        let va = AT + page * PAGE;
        let done = self.lab.touch(&self.space, 0, va, Access::Write, store);
        assert_eq!(done, Ok(()));
    }

    fn read(&self, page: u64) -> u64 {
        let va = AT + page * PAGE;
        let load = |word: &AtomicU64| word.load(Relaxed);
        let seen = self.lab.touch(&self.space, 0, va, Access::Read, load);
        seen.expect("it is mapped")
    }

    fn fork(&mut self) {
        let child = self.space.fork(&self.lab.vm).expect("memory");
        self.relatives.push(child);
    }

    /// Six layers, each with a page of its own; the oldest has several, far apart.
    fn layers(&mut self) {
        for page in [5, 70, 140, 300] {
            self.write(page, page);
        }
        for n in 1..6 {
            self.fork();
            self.write(70 * n + 1, n);
        }
    }

    fn bury(&mut self) {
        for relative in self.relatives.drain(..) {
            relative.clear(&self.lab.vm);
        }
    }

    fn holds_all(&self) {
        for page in [5, 70, 140, 300] {
            assert_eq!(self.read(page), page);
        }
        (1..6).for_each(|n| assert_eq!(self.read(70 * n + 1), n));
    }

    /// Checks that no page of an object is busy while no operation runs.
    fn is_idle(&self) {
        for n in 0..self.lab.vm.pages.len() as u32 {
            let page = self.lab.vm.pages.get(Pfn(n));
            if matches!(page.state(), State::Anon | State::File) && page.object() != 0 {
                let busy = (page.is_hard_busy(), page.soft_count());
                assert_eq!(busy, (false, 0), "page {} of an object", page.index());
            }
        }
    }

    fn end(mut self) {
        self.lab.stop(&self.space);
        self.bury();
        self.space.clear(&self.lab.vm);
        self.file.release(&self.lab.vm);
        self.lab.finish();
    }
}

/// Runs `act` after `prepare` once for each allocation that it makes, which is failed, and then once without a failure.
/// After a failure `act` is repeated. Returns the number of failures.
fn at_every_point(
    prepare: impl Fn(&mut World),
    act: impl Fn(&World) -> bool,
    check: impl Fn(&World),
) -> u32 {
    for n in 1.. {
        let mut world = World::new();
        prepare(&mut world);
        refuse_once(n);
        let served = act(&world);
        let refused = refuse_none();
        world.is_idle();
        assert!(served || refused, "it fails by itself");
        assert!(served || act(&world), "it fails for ever");
        world.is_idle();
        check(&world);
        world.end();
        if !refused {
            return n - 1;
        }
    }
    unreachable!("an operation asks for ever more")
}

/// There is no node for a page that is being moved from one layer to another.
#[test]
fn folding_leaves_no_page_busy() {
    let alone = |world: &mut World| {
        world.layers();
        world.bury();
    };
    let fold = |world: &World| {
        while world.space.maintain(&world.lab.vm) {}
        world.space.entry_at(AT).unwrap().depth < 6
    };
    let refused = at_every_point(alone, fold, World::holds_all);
    assert!(refused >= 1, "refused {refused} times");
}

#[test]
fn forks_that_fold_leave_no_page_busy() {
    let deep = |world: &mut World| {
        world.layers();
        for n in 6..13 {
            world.fork();
            world.write(70 * n + 1, n);
        }
    };
    let fork = |world: &World| {
        let vm = &world.lab.vm;
        let child = spare(|| drop(Space::new(vm)), || world.space.fork(vm));
        child.map(|child| child.clear(vm)).is_ok()
    };
    let refused = at_every_point(deep, fork, World::holds_all);
    assert!(refused >= 1, "refused {refused} times");
}

#[test]
fn faults_leave_no_page_busy() {
    let fault = |page: u64| {
        move |world: &World| {
            let at = AT + page * PAGE;
            world
                .space
                .fault(&world.lab.vm, at, vm::Access::Write)
                .is_ok()
        }
    };
    // A new page, a copy, and a page that is moved to the front; the first write after a fork makes an object.
    let refused = [
        at_every_point(World::layers, fault(200), World::holds_all),
        at_every_point(World::layers, fault(300), World::holds_all),
        at_every_point(
            |world| {
                world.layers();
                world.bury();
            },
            fault(300),
            World::holds_all,
        ),
        at_every_point(
            |world| {
                world.layers();
                world.fork();
            },
            fault(300),
            World::holds_all,
        ),
    ];
    assert!(refused.iter().all(|&n| n > 0), "refused {refused:?} times");
}

#[test]
fn files_and_their_mappings_leave_no_page_busy() {
    const TO: u64 = AT + (1 << 30);
    let map = |world: &mut World, flags| {
        let mut args = args(TO, 400, Source::Object(&world.file, 0));
        args.flags = flags;
        world.space.map(&world.lab.vm, &args).expect("memory");
    };
    let fault = |world: &World| {
        let at = TO + 300 * PAGE;
        world
            .space
            .fault(&world.lab.vm, at, vm::Access::Write)
            .is_ok()
    };
    let shared = at_every_point(|w| map(w, EntryFlags::SHARED), fault, |_| ());
    let private = at_every_point(|w| map(w, EntryFlags::empty()), fault, |_| ());
    let write = |world: &World| {
        let mut zeroes = |bytes: &mut [u8]| bytes.len();
        let done = world
            .file
            .write(&world.lab.vm, 200 * PAGE, 3 * PAGE, &mut zeroes);
        done == Ok(3 * PAGE)
    };
    let written = at_every_point(|_| (), write, |_| ());
    let populate = |world: &World| {
        let advice = Advice::PopulateWrite;
        let range = (AT + 60 * PAGE, 10 * PAGE);
        world
            .space
            .advise(&world.lab.vm, range.0, range.1, advice)
            .is_ok()
    };
    let populated = at_every_point(|_| (), populate, |_| ());
    let refused = [shared, private, written, populated];
    assert!(refused.iter().all(|&n| n > 0), "refused {refused:?} times");
}

/// Spaces that have a page of a file in their tables, writable: more than a scan can record without memory.
fn mapped_by_many(world: &mut World) -> Vec<Arc<Space>> {
    let mut args = args(AT, 4, Source::Object(&world.file, 0));
    args.flags = EntryFlags::SHARED;
    let mapper = |_| {
        let space = Space::new(&world.lab.vm).expect("memory");
        space.map(&world.lab.vm, &args).expect("memory");
        space
    };
    let spaces: Vec<_> = (0..40).map(mapper).collect();
    write_all(world, &spaces);
    spaces
}

fn write_all(world: &World, spaces: &[Arc<Space>]) {
    for space in spaces {
        let done = space.fault(&world.lab.vm, AT, vm::Access::Write);
        assert_eq!(done, Ok(()));
    }
}

fn write_protect(world: &World) {
    let vm = &world.lab.vm;
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    let busy = vm.pages.get(pfn).try_hard_busy().expect("nobody holds it");
    vm::rmap::write_protect_all(vm, &world.file, 0, pfn);
    drop(busy);
}

fn writable(world: &World, spaces: &[Arc<Space>]) -> usize {
    let entry = |space: &Arc<Space>| space.pmap().lookup(&world.lab.vm, &ksync::pin(), AT);
    let entries = spaces.iter().filter_map(entry);
    entries.filter(|entry| entry.is_writable()).count()
}

/// A scan reserves memory to record what it must flush, before it takes the locks of a reverse map; if there is none it
/// does part of the work at a time.
#[test]
fn scans_of_many_mappers_end_without_memory() {
    if cfg!(feature = "naive-rmap") {
        // The naive map's lists allocate under their lock, and cannot fail.
        return;
    }
    let mut world = World::new();
    let spaces = mapped_by_many(&mut world);
    asked_under_locks();
    learn(|| write_protect(&world));
    assert_eq!(asked_under_locks(), 0, "memory was asked for under a lock");
    assert_eq!(writable(&world, &spaces), 0);
    write_all(&world, &spaces);
    assert_eq!(writable(&world, &spaces), spaces.len());
    let (each, left) = (1, std::cell::Cell::new(1));
    refuse_each(each, &left, || write_protect(&world));
    assert_eq!(writable(&world, &spaces), 0);
    write_all(&world, &spaces);
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    let removed = refuse_each(each, &left, || world.lab.vm.chaos_scan(pfn));
    assert_eq!(removed, vm::space::Chaos::Removed(spaces.len()));
    for space in spaces {
        space.clear(&world.lab.vm);
    }
    world.end();
}

/// There is no node for the page's index in the front layer, and none is to be had.
#[test]
fn a_move_to_the_front_without_memory_fails() {
    let mut world = World::new();
    world.layers();
    world.bury();
    let at = AT + 300 * PAGE;
    let fault = || world.space.fault(&world.lab.vm, at, vm::Access::Write);
    assert_eq!(
        refuse_each(1, &Cell::new(1), fault),
        Err(FaultError::NoMemory)
    );
    world.is_idle();
    world.holds_all();
    assert_eq!(fault(), Ok(()));
    world.holds_all();
    world.end();
}

/// Two spaces share an object: a sweep of it needs no large block, which may not be had while memory is short.
#[test]
fn a_sweep_for_few_spaces_needs_no_large_block() {
    // Nothing is swept there.
    if cfg!(feature = "listed") {
        return;
    }
    let mut world = World::new();
    for page in 5..15 {
        world.write(page, page);
    }
    world.fork();
    let vm = &world.lab.vm;
    let private = || {
        (0..3).for_each(|_| vm.tend());
        vm.epoch.drain();
        vm.drain_limbo();
        let mut pages = 0;
        vm.alloc
            .check_and_visit(&mut |_, page| pages += u64::from(page.state() == State::Anon))
            .expect("consistent lists");
        pages
    };
    world.space.unmap(vm, AT + 5 * PAGE, 10 * PAGE).unwrap();
    let child = world.relatives.pop().unwrap();
    let second = child.fork(vm).unwrap();
    child.clear(vm);
    second.unmap(vm, AT + 5 * PAGE, 5 * PAGE).unwrap();
    // As large as a list of the most attachments that a sweep looks at.
    know(Layout::from_size_align(512 * 24, 8).unwrap());
    assert_eq!(refuse_each(1, &Cell::new(1), private), 5);
    second.clear(vm);
    world.end();
}
