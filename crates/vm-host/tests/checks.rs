//! The purpose of single checks: another operation is placed at a certain step, or before the operation.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vm::object::ObjectRef;
use vm::space::{
    Advice, COPY_DEPTH, HARD_DEPTH, MapArgs, RemapArgs, RemapTarget, Source, Space, VmError,
};
use vm::{EntryFlags, FaultError, MapProt, Rights};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
const ELSEWHERE: u64 = 0x7000_0000_0000;

struct World {
    lab: Lab,
    space: Arc<Space>,
    file: ObjectRef,
}

impl World {
    fn new(frames: usize) -> World {
        let lab = Lab::new(frames, 2);
        lab.vm.set_fault_around(PAGE);
        let space = Space::new(&lab.vm).unwrap();
        let file = ObjectRef::new_file(&lab.vm, None).unwrap();
        lab.run(&space);
        World { lab, space, file }
    }

    fn map(&self, addr: u64, pages: u64, flags: EntryFlags, source: Source<'_>) {
        let mut args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(addr);
        args.flags = flags;
        args.source = source;
        assert_eq!(self.space.map(&self.lab.vm, &args), Ok(addr));
    }

    fn anon(&self, pages: u64) {
        self.map(AT, pages, EntryFlags::empty(), Source::Anon);
    }

    fn read(&self, va: u64) -> Result<u64, FaultError> {
        let load = |word: &std::sync::atomic::AtomicU64| word.load(SeqCst);
        self.lab.touch(&self.space, 0, va, Access::Read, load)
    }

    fn write(&self, va: u64, value: u64) {
        let store = |word: &std::sync::atomic::AtomicU64| word.store(value, SeqCst);
        let done = self.lab.touch(&self.space, 0, va, Access::Write, store);
        assert_eq!(done, Ok(()));
    }

    fn mapped(&self, va: u64) -> Option<vm::Pte> {
        self.space.pmap().lookup(&self.lab.vm, &ksync::pin(), va)
    }

    fn remap(&self, pages: u64) {
        let args = RemapArgs {
            old: AT,
            old_len: pages * PAGE,
            new_len: pages * PAGE,
            target: RemapTarget::Fixed(ELSEWHERE),
            keep_old: false,
        };
        assert_eq!(self.space.remap(&self.lab.vm, &args), Ok(ELSEWHERE));
    }

    fn end(self, others: &[Arc<Space>]) {
        self.lab.stop(&self.space);
        self.space.clear(&self.lab.vm);
        others.iter().for_each(|space| {
            space.clear(&self.lab.vm);
        });
        self.file.release(&self.lab.vm);
        self.lab.finish();
    }
}

/// A moved mapping that shares its front layer with a child stays read-only.
#[test]
fn what_a_move_brings_along_is_not_writable_where_a_child_sees_it() {
    let world = World::new(256);
    world.anon(2);
    world.write(AT, 1);
    let child = world.space.fork(&world.lab.vm).unwrap();
    // The page-table entry exists, read-only.
    assert_eq!(world.read(AT), Ok(1));
    world.remap(2);
    let moved = world.mapped(ELSEWHERE).expect("it comes along");
    assert!(!moved.is_writable());
    world.write(ELSEWHERE, 2);
    let mut bytes = [0; 8];
    assert_eq!(child.read_at(&world.lab.vm, AT, &mut bytes), Ok(8));
    assert_eq!(u64::from_le_bytes(bytes), 1);
    world.end(&[child]);
}

/// If the page in front cannot be mapped at the new address, no older page is mapped instead.
#[test]
fn a_move_brings_no_page_along_that_is_shadowed() {
    let world = World::new(256);
    world.anon(1);
    world.write(AT, 1);
    let child = world.space.fork(&world.lab.vm).unwrap();
    world.write(AT, 2);
    let copy = world.mapped(AT).expect("it was written").pfn();
    let busy = world.lab.vm.pages.get(copy).try_hard_busy();
    world.remap(1);
    assert_eq!(world.mapped(ELSEWHERE), None);
    drop(busy);
    assert_eq!(world.read(ELSEWHERE), Ok(2));
    world.end(&[child]);
}

/// A write beyond the end that copies nothing leaves a page there, which does not belong to the file.
#[test]
fn a_page_that_a_write_left_beyond_the_end_is_not_mapped() {
    let world = World::new(256);
    world.file.truncate(&world.lab.vm, PAGE);
    let source = Source::Object(&world.file, 0);
    world.map(AT, 2, EntryFlags::SHARED, source);
    let written = world.file.write(&world.lab.vm, PAGE, 8, &mut |_| 0);
    assert_eq!(written, Ok(0));
    assert!(
        world.file.lookup(&ksync::pin(), 1).is_some(),
        "the write left a page"
    );
    assert_eq!(world.read(AT + PAGE), Err(FaultError::Bus));
    let mut bytes = [0; 8];
    let outside = world.space.read_at(&world.lab.vm, AT + PAGE, &mut bytes);
    assert_eq!(outside, Err(FaultError::Bus));
    world.end(&[]);
}

/// Indexes are counted from the top of a stack, and there are 2^32 of them.
#[test]
fn a_stack_that_grows_beyond_its_indexes_shows_no_page_twice() {
    let world = World::new(256);
    let top = ELSEWHERE;
    world.map(top, 1, EntryFlags::GROWSDOWN, Source::Anon);
    world.lab.vm.machine.set_stack_limit(u64::MAX);
    world.write(top, 1);
    let far = top - (PAGE << 32);
    assert_eq!(world.read(far), Ok(0));
    world.write(far, 2);
    assert_eq!(world.read(top), Ok(1));
    world.end(&[]);
}

/// Part of a stack was unmapped while a child shared it. The child has ended, but the pages of that part still exist
/// for a while.
#[test]
fn a_stack_that_grows_again_shows_no_page_of_what_was_unmapped() {
    let world = World::new(256);
    world.map(AT, 4, EntryFlags::GROWSDOWN, Source::Anon);
    world.lab.vm.machine.set_stack_limit(64 * PAGE);
    for page in 0..4 {
        world.write(AT + page * PAGE, page + 1);
    }
    let child = world.space.fork(&world.lab.vm).unwrap();
    world.space.unmap(&world.lab.vm, AT, 2 * PAGE).unwrap();
    child.clear(&world.lab.vm);
    assert_eq!(world.read(AT + PAGE), Ok(0));
    assert_eq!(world.read(AT + 3 * PAGE), Ok(4));
    world.end(&[]);
}

/// A private copy beyond the end of its file is never visible, by whatever access.
#[test]
fn a_private_copy_beyond_the_end_is_not_there() {
    let world = World::new(256);
    world.file.truncate(&world.lab.vm, 2 * PAGE);
    let source = Source::Object(&world.file, 0);
    world.map(AT, 2, EntryFlags::empty(), source);
    world.write(AT, 1);
    world.write(AT + PAGE, 2);
    world.file.truncate(&world.lab.vm, PAGE);
    let mut pages = Vec::new();
    let told = world
        .space
        .resident(&world.lab.vm, AT, 2 * PAGE, &mut pages);
    assert_eq!((told, &*pages), (Ok(()), &[1, 0][..]));
    let read = |va| {
        let mut bytes = [0; 8];
        let read = world.space.read_at(&world.lab.vm, va, &mut bytes);
        read.map(|_| u64::from_le_bytes(bytes))
    };
    assert_eq!((read(AT), read(AT + PAGE)), (Ok(1), Err(FaultError::Bus)));
    world.end(&[]);
}

/// Accesses from outside the space obey its protection.
#[test]
fn outsiders_do_what_the_program_may() {
    let world = World::new(256);
    world.anon(1);
    world.write(AT, 1);
    let vm = &world.lab.vm;
    let protect = |prot| world.space.protect(vm, AT, PAGE, prot).unwrap();
    protect(MapProt::READ);
    let written = world.space.write_at(vm, AT, &[2; 8]);
    assert_eq!(written, Err(FaultError::Denied));
    let mut bytes = [0; 8];
    assert_eq!(world.space.read_at(vm, AT, &mut bytes), Ok(8));
    assert_eq!(u64::from_le_bytes(bytes), 1);
    protect(MapProt::empty());
    let read = world.space.read_at(vm, AT, &mut bytes);
    assert_eq!(read, Err(FaultError::Denied));
    world.end(&[]);
}

/// A space that was cleared gets no new mappings.
#[test]
fn nothing_is_mapped_into_a_space_that_was_cleared() {
    let world = World::new(256);
    world.anon(1);
    world.write(AT, 1);
    let vm = &world.lab.vm;
    let other = Space::new(vm).unwrap();
    other.clear(vm);
    let args = MapArgs::anon(PAGE, MapProt::READ);
    assert_eq!(other.map(vm, &args), Err(VmError::Invalid));
    assert_eq!(other.map_all(vm, &[args]), Err(VmError::Invalid));
    world.end(&[]);
}

/// Discarding pages that a child shares discards them for one of the two only.
#[test]
fn what_one_discards_stays_for_its_child() {
    for is_file in [false, true] {
        let world = World::new(256);
        world.file.truncate(&world.lab.vm, PAGE);
        if is_file {
            let source = Source::Object(&world.file, 0);
            world.map(AT, 1, EntryFlags::empty(), source);
        } else {
            world.anon(1);
        }
        world.write(AT, 1);
        let child = world.space.fork(&world.lab.vm).unwrap();
        let vm = &world.lab.vm;
        world.space.advise(vm, AT, PAGE, Advice::DontNeed).unwrap();
        assert_eq!(world.read(AT), Ok(0));
        let mut bytes = [0; 8];
        assert_eq!(child.read_at(vm, AT, &mut bytes), Ok(8));
        assert_eq!(u64::from_le_bytes(bytes), 1);
        world.end(&[child]);
    }
}

/// If there is no page for folding a chain, forks fail before it gets too long.
#[test]
fn without_memory_to_fold_forks_fail_in_the_end() {
    let world = World::new(512);
    world.anon(64);
    let mut children = Vec::new();
    let mut hoard = Vec::new();
    let mut refused = 0;
    (0..4).for_each(|page| world.write(AT + page * PAGE, 1));
    for n in 0..24 {
        // A layer that nothing shadows, with more pages than the one before.
        (0..2).for_each(|k| world.write(AT + (4 + 2 * n + k) * PAGE, 1));
        let alloc = &world.lab.vm.alloc;
        hoard.extend(std::iter::from_fn(|| {
            alloc.alloc(&ksync::pin(), Rights::User).ok()
        }));
        match world.space.fork(&world.lab.vm) {
            Ok(child) => children.push(child),
            Err(why) => {
                assert_eq!(why, VmError::NoMemory);
                refused += 1;
            }
        }
        let depth = world.space.entry_at(AT).unwrap().depth;
        assert!(depth <= HARD_DEPTH, "{depth} layers");
        hoard
            .drain(..)
            .for_each(|pfn| alloc.free(&ksync::pin(), pfn));
    }
    assert!(refused > 0, "folding needs no memory");
    world.end(&children);
}

/// Whether a layer is visible to one space only was found out in one state of the entry; in another state a relative
/// may share it.
#[test]
fn a_layer_that_was_ours_alone_is_asked_for_again_after_a_fork() {
    let world = World::new(1024);
    world.anon(16);
    let (vm, at) = (&world.lab.vm, |page: u64| AT + page * PAGE);
    world.write(at(0), 1);
    world.write(at(1), 1);
    let first = world.space.fork(vm).unwrap();
    world.write(at(2), 1);
    first.clear(vm);
    // Moves the page from the older layer, which only this space can see.
    let before = vm.counts().cow_move;
    world.write(at(0), 2);
    assert_eq!(vm.counts().cow_move, before + 1);
    // The child overwrites all pages of the front layer, and so drops that layer.
    let child = world.space.fork(vm).unwrap();
    let mut relatives = Vec::new();
    for pages in [&[0, 2][..], &[5], &[6], &[7]] {
        for &page in pages {
            let written = child.write_at(vm, at(page), &[3; 8]);
            assert_eq!(written, Ok(8));
        }
        relatives.push(child.fork(vm).unwrap());
    }
    let depth = || child.entry_at(AT).unwrap().depth;
    let before = depth();
    child.maintain(vm);
    assert_eq!(depth(), before - 1, "the front layer is shadowed");
    relatives.drain(..).for_each(|space| {
        space.clear(vm);
    });
    // So only the parent can see it again, but not the older layer.
    world.write(at(2), 4);
    world.write(at(1), 4);
    let mut bytes = [0; 8];
    assert_eq!(child.read_at(vm, at(1), &mut bytes), Ok(8));
    assert_eq!(u64::from_le_bytes(bytes), 1);
    world.end(&[child]);
}

/// Pages that folding has looked at are not looked at again by a child.
#[test]
fn a_child_goes_on_where_its_parent_was_folding() {
    const BIG: u64 = 600;
    let world = World::new(4096);
    world.anon(BIG + 16);
    let (vm, at) = (&world.lab.vm, |page: u64| AT + page * PAGE);
    let mut relatives = Vec::new();
    let mut layer = |pages: std::ops::Range<u64>| {
        pages.for_each(|page| world.write(at(page), 1));
        relatives.push(world.space.fork(vm).unwrap());
    };
    layer(0..BIG);
    // Together they shadow the oldest layer.
    layer(0..BIG / 2);
    layer(BIG / 2..BIG);
    (0..4).for_each(|n| layer(BIG + n..BIG + n + 1));
    world.write(at(BIG + 5), 1);
    let before = vm.counts().collapses;
    for _ in 0..2 {
        assert!(world.space.maintain(vm), "two steps are not enough");
    }
    let child = world.space.fork(vm).unwrap();
    assert_eq!(vm.counts().collapses, before);
    child.maintain(vm);
    assert_eq!(vm.counts().collapses, before + 1);
    relatives.push(child);
    world.end(&relatives);
}

/// Runs `act` when a fault on CPU 1 is about to read a page table for the `n`-th time. False if the fault ends before.
fn at_look(world: &World, n: usize, va: u64, access: vm::Access, act: impl FnOnce()) -> bool {
    const SEEN: usize = 1;
    const DONE: usize = 2;
    const OVER: usize = 3;
    let (step, looks) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let theirs = step.clone();
    world.lab.vm.machine.on_table(Some(Box::new(move |_| {
        if ksync::pin().cpu() == 1 && looks.fetch_add(1, SeqCst) == n {
            theirs.store(SEEN, SeqCst);
            while theirs.load(SeqCst) != DONE {
                std::thread::yield_now();
            }
        }
    })));
    let reached = std::thread::scope(|scope| {
        let fault = scope.spawn(|| {
            let done = world
                .lab
                .join(1, || world.space.fault(&world.lab.vm, va, access));
            // The fault does not wait for that read any more.
            let _beside = step.compare_exchange(0, OVER, SeqCst, SeqCst);
            done
        });
        while step.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        let reached = step.load(SeqCst) == SEEN;
        if reached {
            act();
            step.store(DONE, SeqCst);
        }
        let _either = fault.join().expect("a fault ends");
        reached
    });
    world.lab.vm.machine.on_table(None);
    reached
}

/// A space whose tables map an older page than a fault finds, because folding in a relative has brought a copy up.
fn displaced(world: &World) -> Vec<Arc<Space>> {
    world.anon(32);
    (0..3).for_each(|page| world.write(AT + page * PAGE, 1 + page));
    let fork = |n: u64| {
        let child = world.space.fork(&world.lab.vm).unwrap();
        (0..=n.min(1)).for_each(|k| world.write(AT + (3 + 2 * n + k) * PAGE, 1));
        child
    };
    (0..COPY_DEPTH as u64).map(fork).collect()
}

/// A fault that finds an older page mapped, concurrent with munmap, leaves no entry.
#[test]
#[cfg_attr(
    feature = "pv-stock",
    ignore = "the fault has the pmap's lock, and munmap waits for it"
)]
fn a_fault_that_displaces_a_page_beside_munmap_leaves_nothing() {
    for n in 0.. {
        let mut world = World::new(2048);
        let mut spaces = displaced(&world);
        let at = AT + 3 * PAGE;
        // The child has the older page mapped when folding brings up a copy.
        let child = spaces.remove(5);
        child.fault(&world.lab.vm, at, vm::Access::Read).unwrap();
        let parent = world.space.clone();
        let relative = parent.fork(&world.lab.vm).unwrap();
        world.lab.stop(&parent);
        spaces.extend([relative, parent]);
        world.space = child;
        world.lab.run(&world.space);
        let before = world.mapped(at);
        assert!(before.is_some());
        let reached = at_look(&world, n, at, vm::Access::Read, || {
            world.space.unmap(&world.lab.vm, at, PAGE).unwrap();
        });
        if reached {
            assert_eq!(world.mapped(at), None, "at look {n}");
        } else {
            assert_ne!(world.mapped(at), before, "nothing was displaced");
        }
        world.end(&spaces);
        if !reached {
            assert!(n > 4, "a fault looks at tables");
            return;
        }
    }
}

/// An operation that has found a page relies on its identity until the frame is reused: when a sweep frees the page,
/// its frame must wait.
#[test]
#[cfg(not(feature = "listed"))]
fn the_frame_of_a_page_that_a_sweep_frees_waits_for_sections() {
    let world = World::new(256);
    let vm = &world.lab.vm;
    world.anon(2);
    world.write(AT, 1);
    let child = world.space.fork(vm).unwrap();
    world.write(AT, 2);
    child.clear(vm);
    vm.drain_limbo();
    assert_eq!(vm.limbo.frames(), 0);
    // This CPU is in a read section from now on.
    vm.epoch.online(1);
    vm.tend();
    vm.tend();
    assert_eq!(vm.limbo.frames(), 1, "the original of what was written");
    vm.epoch.offline(1);
    assert_eq!(world.read(AT), Ok(2));
    world.end(&[]);
}

/// An operation that has found a page of a file under a pin relies on its identity until the frame is reused. That
/// includes a page that a write made and then left empty, and that is removed again.
#[test]
fn the_frame_of_a_page_that_is_taken_back_waits_for_sections() {
    let world = World::new(256);
    let vm = &world.lab.vm;
    assert_eq!(world.file.write(vm, 0, 8, &mut |_| 0), Ok(0));
    assert_eq!(world.file.resident(), 1);
    vm.drain_limbo();
    assert_eq!(vm.limbo.frames(), 0);
    // This CPU is in a read section from now on.
    vm.epoch.online(1);
    world.file.forget_blank(vm, 0);
    assert_eq!(world.file.resident(), 0);
    assert_eq!(vm.limbo.frames(), 1, "a frame that a reader may look at");
    vm.epoch.offline(1);
    world.end(&[]);
}

/// An allocation that fails takes back the pages that it made, but none that holds data or that a mapping may have shown.
#[test]
fn what_was_allocated_and_not_used_is_forgotten() {
    let world = World::new(256);
    let (vm, file) = (&world.lab.vm, &world.file);
    assert_eq!(file.allocate(vm, 0, 6 * PAGE, true), Ok(()));
    let mut fill = |bytes: &mut [u8]| {
        bytes.fill(7);
        bytes.len()
    };
    assert_eq!(file.write(vm, PAGE, 8, &mut fill), Ok(8));
    world.map(AT, 6, EntryFlags::SHARED, Source::Object(file, 0));
    assert_eq!(world.read(AT + 2 * PAGE), Ok(0));
    assert_eq!(file.allocate(vm, 3 * PAGE, PAGE, false), Ok(()));
    file.forget_unwritten(vm, 100, 5 * PAGE + 100);
    let left = |&index: &u32| file.lookup(&ksync::pin(), index).is_some();
    let left: Vec<u32> = (0..6).filter(left).collect();
    assert_eq!(left, [1, 2, 3, 5]);
    world.end(&[]);
}

/// The offset of the first page for which there is no memory.
#[test]
fn an_allocation_says_how_far_it_came() {
    let world = World::new(256);
    let (vm, file) = (&world.lab.vm, &world.file);
    let stopped = file
        .allocate(vm, 2 * PAGE + 5, 512 * PAGE, true)
        .unwrap_err();
    assert_eq!(stopped, (2 + file.resident()) * PAGE);
    assert_eq!(file.size(), 0);
    file.forget_unwritten(vm, 2 * PAGE + 5, stopped);
    assert_eq!(file.resident(), 0);
    world.end(&[]);
}
