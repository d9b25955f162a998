//! Reserved runs of frames, on simulated CPUs.
#![cfg(not(any(loom, shuttle)))]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ksync::host::set_cpu;
use ksync::pin;
use vm::alloc::{Blocks, Census, FreeRange, Place, Placed, Pressure, RUN_FRAMES, RUN_ORDER};
use vm::object::ObjectRef;
use vm::{NoMemory, PageAllocator, Pfn, Rights};
use vm_host::{Arena, Random, Sim};

const RUN: u32 = RUN_FRAMES;

/// A machine in which runs can be reserved, and one object.
struct World {
    frames: PageAllocator,
    blocks: Blocks,
    _arena: Arena,
}

impl World {
    fn new(frames: usize, cpus: usize, domains: usize) -> World {
        let arena = Arena::new(frames, cpus, domains);
        let mut frames = arena.allocator();
        frames.allow_reservations();
        World {
            frames,
            blocks: Blocks::default(),
            _arena: arena,
        }
    }

    fn take(&self, index: u32) -> Placed {
        let at = (place(index), &self.blocks);
        let placed = self.frames.alloc_at(&pin(), at, true, || true);
        placed.expect("memory")
    }

    fn take_each(&self, indexes: impl IntoIterator<Item = u32>) -> Vec<Pfn> {
        indexes.into_iter().map(|n| self.take(n).pfn).collect()
    }

    fn free(&self, pfn: Pfn) {
        self.frames.free(&pin(), pfn);
    }

    fn is_reserved(&self, index: u32) -> bool {
        self.frames.reserved_run(place(index)).is_some()
    }

    /// What the check finds: frames in runs that are free, reserved and not taken, allocated.
    fn census(&self) -> (usize, usize) {
        self.frames.drain(&pin());
        let census = self.frames.check().expect("consistent records");
        let free = census.listed + census.in_magazines + census.reserved;
        assert_eq!(self.frames.free_pages(), free);
        (census.reserved, census.allocated)
    }

    fn take_all(&self, rights: Rights) -> Vec<Pfn> {
        std::iter::from_fn(|| self.frames.alloc(&pin(), rights).ok()).collect()
    }
}

const OBJECT: usize = 0x1000;

fn place(index: u32) -> Place {
    let object = OBJECT;
    Place { object, index }
}

#[test]
fn pages_of_a_block_get_the_frames_at_their_places() {
    let world = World::new(4096, 1, 1);
    let first = world.take(3 * RUN + 7).pfn;
    assert_eq!(first.0 % RUN, 7, "congruent with its index");
    for index in [0, 8, RUN - 1] {
        let Placed { pfn, whole } = world.take(3 * RUN + index);
        assert_eq!((pfn.0, whole), (first.0 - 7 + index, false));
    }
    // Another block, another run; a place that is taken, a frame from anywhere.
    assert_ne!(world.take(2 * RUN).pfn.0 / RUN, first.0 / RUN);
    assert_ne!(world.take(3 * RUN + 7).pfn.0 / RUN, first.0 / RUN);
    assert_eq!(world.census(), (2 * RUN as usize - 5, 6));
}

#[test]
fn the_last_frame_makes_a_run_whole() {
    let world = World::new(4096, 1, 1);
    let wholes: Vec<u32> = (0..RUN).rev().filter(|&n| world.take(n).whole).collect();
    assert_eq!(wholes, [0]);
    assert!(world.is_reserved(0));
    assert!(!world.frames.break_oldest(&pin()), "it has nothing to give");
    assert_eq!(world.census(), (0, RUN as usize));
    // It has again when a page leaves; the place is the frame's.
    let run = world.frames.reserved_run(place(0)).unwrap();
    world.free(run.add(9));
    assert_eq!(world.census(), (1, RUN as usize - 1));
    assert_eq!(
        world.take(9),
        Placed {
            pfn: run.add(9),
            whole: true
        }
    );
    world.free(run.add(9));
    assert!(world.frames.break_oldest(&pin()));
    assert_eq!(world.census(), (0, RUN as usize - 1));
    assert!(!world.is_reserved(0));
}

#[test]
fn a_run_without_pages_is_free() {
    let world = World::new(4096, 1, 1);
    let pages = world.take_each((0..40).map(|n| n * 2));
    world.frames.free_bulk(&pin(), &pages[1..]);
    assert_eq!(world.census(), (RUN as usize - 1, 1));
    world.free(pages[0]);
    assert!(!world.is_reserved(0));
    assert_eq!(world.census(), (0, 0));
    assert_eq!(world.frames.check().map(|census| census.listed), Ok(4096));
}

#[test]
fn what_is_reserved_counts_as_free() {
    let world = World::new(8192, 1, 1);
    let spare = world.frames.spare_pages();
    world.take_each((0..8).map(|block| block * RUN));
    assert_eq!(world.frames.free_pages(), 8192 - 8);
    assert_eq!(world.frames.domain_pages(0), (8192 - 8, 8192));
    assert_eq!(world.frames.spare_pages(), spare - 8);
    assert_eq!(world.census(), (8 * (RUN as usize - 1), 8));
    // Users have all but three runs' worth, most of it reserved: that is plenty.
    let mark = 64 + 8192 / 200;
    let taken: Vec<Pfn> = (0..8192 - 8 * RUN as usize - mark)
        .map(|_| world.frames.alloc(&pin(), Rights::User).unwrap())
        .collect();
    assert_eq!(world.frames.pressure(), Pressure::None);
    assert!((0..8).all(|block| world.is_reserved(block * RUN)));
    world.frames.free_bulk(&pin(), &taken);
}

#[test]
fn the_oldest_are_broken_when_memory_runs_out() {
    let world = World::new(8192, 1, 1);
    let places = [5, 1, 9, 2].map(|block| block * RUN);
    world.take_each(places);
    // A run that is whole for a while is as new as its first frame that comes back.
    let rest = world.take_each((1..RUN).map(|n| places[0] + n));
    world.free(rest[0]);
    let order = [1, 2, 3, 0];
    let mut broken = 0;
    let mut held = Vec::new();
    while let Ok(pfn) = world.frames.alloc(&pin(), Rights::User) {
        held.push(pfn);
        while broken < 4 && !world.is_reserved(places[order[broken]]) {
            broken += 1;
        }
        let left = order[broken..].iter();
        assert!(left.clone().all(|&n| world.is_reserved(places[n])));
    }
    assert_eq!(broken, 4);
    let mark = 64 + 8192 / 200;
    assert_eq!(world.frames.free_pages(), mark, "down to the users' mark");
    assert_eq!(world.census().0, 0);
}

#[test]
fn memory_that_is_mostly_reserved_is_memory() {
    for (rights, kept) in [(Rights::User, 64 + 8192 / 200), (Rights::Reserve, 0)] {
        let world = World::new(8192, 4, 2);
        for cpu in [0, 3] {
            set_cpu(cpu);
            let mut block = 100 * cpu as u32;
            while world.take(block * RUN).pfn.0.is_multiple_of(RUN)
                && world.is_reserved(block * RUN)
            {
                block += 1;
            }
        }
        let (reserved, allocated) = world.census();
        assert!(reserved > 6 * 1024, "of 8192: {reserved}");
        set_cpu(1);
        let taken = world.take_all(rights).len();
        let in_magazines = world.frames.cpu_stats(0).cached + world.frames.cpu_stats(3).cached;
        assert_eq!(taken + allocated + kept, 8192 - in_magazines as usize);
        set_cpu(0);
        assert_eq!(world.census().0, 0);
    }
}

#[test]
fn no_request_touches_a_reserve_while_a_reservation_can_be_broken() {
    for rights in [Rights::Kernel, Rights::Table, Rights::Reserve] {
        for order in [0, 3, RUN_ORDER - 1] {
            let world = World::new(8192, 1, 1);
            world.take_each((0..4).map(|block| block * RUN));
            let mark = 64 + 8192 / 200;
            let mut frames = 0;
            while world.frames.alloc_order(&pin(), order, rights).is_ok() {
                frames += 1 << order;
                let untaken = world.census().0;
                let listed = world.frames.free_pages() - untaken;
                assert!(untaken == 0 || listed >= mark, "{listed} beside {untaken}");
            }
            assert_eq!(world.census(), (0, frames + 4));
        }
    }
}

#[test]
fn a_low_memory_report_breaks_a_reservation_first() {
    let world = World::new(8192, 1, 1);
    // Two reservations of one frame each, so that memory is low although nothing was refused.
    world.take_each((0..2 * RUN).filter(|n| n % RUN != 3));
    let mark = 64 + 8192 / 200;
    while world.frames.free_pages() > 2 * mark {
        world.frames.alloc(&pin(), Rights::User).unwrap();
    }
    assert_eq!(world.frames.pressure(), Pressure::Low);
    assert!(!world.is_reserved(0) && world.is_reserved(RUN));
    assert_eq!(world.frames.pressure(), Pressure::Low);
    assert!(!world.is_reserved(RUN));
    assert_eq!(world.census().0, 0);
}

#[test]
fn pages_stay_when_their_run_is_broken_and_go_one_by_one() {
    let world = World::new(4096, 1, 1);
    let pages = [1, 2, 3, 70].map(|n| world.take(n).pfn);
    assert!(world.frames.break_oldest(&pin()));
    assert_eq!(world.census(), (0, 4));
    pages.iter().for_each(|&pfn| world.free(pfn));
    assert_eq!(world.census(), (0, 0));
    assert!(!world.frames.break_oldest(&pin()));
    // The run can be reserved again.
    assert_eq!(world.take_all(Rights::Reserve).len(), 4096);
}

/// A run with all frames taken, given back at once: as that of its block; after another page of the run was given back and taken
/// again; as that of another block, to which the pages were moved; and after the end of its reservation.
#[test]
fn a_run_goes_back_at_once_whoever_owns_it() {
    let world = World::new(4096, 1, 1);
    let run_of = |frames: &[Pfn]| {
        assert!(
            frames
                .iter()
                .zip(0..)
                .all(|(&pfn, n)| pfn == frames[0].add(n))
        );
        frames[0]
    };
    let free = |run, at| {
        world.frames.free_run(&pin(), run, place(at));
        assert_eq!(
            (world.is_reserved(0), world.is_reserved(RUN)),
            (false, false)
        );
        assert_eq!(world.census(), (0, 0));
    };
    for owner in [0, RUN] {
        let frames = world.take_each(0..RUN);
        world.free(frames[7]);
        assert_eq!(world.take(7).pfn, frames[7]);
        free(run_of(&frames), owner);
    }
    let frames = world.take_each(0..RUN);
    world.frames.end_reservations(OBJECT, 0, &world.blocks);
    free(run_of(&frames), 0);
    let frames = world.take_each(0..RUN);
    world.frames.end_reservations(OBJECT, 0, &world.blocks);
    let other = world.take(1).pfn;
    world.frames.free_run(&pin(), run_of(&frames), place(0));
    assert_eq!(
        world.census(),
        (RUN as usize - 1, 1),
        "the block has a new run"
    );
    world.free(other);
    // All of it is there for the next, in runs.
    let all = world.take_each(0..4 * RUN);
    assert!(
        all.chunks(RUN as usize)
            .all(|run| run_of(run).0.is_multiple_of(RUN))
    );
}

#[test]
fn the_end_of_an_object_ends_its_reservations() {
    let world = World::new(8192, 1, 1);
    let held: Vec<Pfn> = [0, 1, 7, 1 << 22]
        .map(|block| world.take(block * RUN).pfn)
        .into();
    world.frames.end_reservations(OBJECT + 1, 0, &world.blocks);
    world
        .frames
        .end_reservations(OBJECT, RUN + 1, &world.blocks);
    let reserved = [0, 1, 7, 1 << 22].map(|block| world.is_reserved(block * RUN));
    assert_eq!(reserved, [true, true, false, false], "beyond the new size");
    world.frames.end_reservations(OBJECT, 0, &world.blocks);
    assert_eq!(world.census(), (0, 4));
    // A new object at the address of the old one.
    assert_ne!(world.take(1).pfn.0 / RUN, held[0].0 / RUN);
    assert_eq!(world.census(), (RUN as usize - 1, 5));
}

#[test]
fn what_is_reserved_beyond_the_end_is_given_up() {
    let world = World::new(4096, 1, 1);
    let at = (place(5), &world.blocks);
    let asked = Cell::new(0);
    let ended = || {
        asked.set(asked.get() + 1);
        assert!(world.is_reserved(0), "others can see it");
        false
    };
    assert_eq!(world.frames.reserve(&pin(), at, ended), None);
    assert_eq!(asked.get(), 1);
    assert!(!world.is_reserved(0));
    assert_eq!(world.census(), (0, 0));
    // Another CPU has taken a frame meanwhile, and keeps it.
    let mut other = None;
    let ended = || {
        other = world.frames.take_placed(&pin(), place(6)).unwrap();
        false
    };
    assert_eq!(world.frames.reserve(&pin(), at, ended), None);
    assert!(!world.is_reserved(0));
    assert_eq!(world.census(), (0, 1));
    world.free(other.expect("it was there").pfn);
    assert_eq!(world.census(), (0, 0));
}

#[test]
fn a_second_run_for_a_block_goes_back() {
    let world = World::new(4096, 1, 1);
    let first = world.take(5).pfn;
    let at = |index| (place(index), &world.blocks);
    let second = world.frames.reserve(&pin(), at(6), || true);
    let whole = false;
    assert_eq!(
        second,
        Some(Placed {
            pfn: first.add(1),
            whole
        })
    );
    assert_eq!(world.frames.reserve(&pin(), at(6), || true), None);
    assert_eq!(world.census(), (RUN as usize - 2, 2));
}

#[test]
fn a_run_comes_from_the_nearest_domain_or_not_at_all() {
    let world = World::new(8192, 4, 2);
    let domain = |pfn: Pfn| world.frames.pages().get(pfn).domain();
    for cpu in 0..4 {
        set_cpu(cpu);
        let pfn = world.take(cpu as u32 * RUN).pfn;
        assert_eq!(domain(pfn), cpu / 2);
    }
    // Other CPUs take from it, and give back to it, wherever it is.
    let pfn = world.take(1).pfn;
    assert_eq!((pfn.0 % RUN, domain(pfn)), (1, 0));
    world.free(pfn);
    assert_eq!(world.take(1).pfn, pfn);
    let free = |domain| world.frames.domain_pages(domain).0;
    assert_eq!((free(0), free(1)), (4096 - 3, 4096 - 2));
    // The near domain has no run left, the far one has.
    set_cpu(0);
    let mut block = 10;
    while domain(world.take(block * RUN).pfn) == 0 && world.is_reserved(block * RUN) {
        block += 1;
    }
    assert!(!world.is_reserved(block * RUN));
    set_cpu(3);
    assert_eq!(domain(world.take(block * RUN).pfn), 1);
    assert!(world.is_reserved(block * RUN));
    set_cpu(0);
}

#[test]
fn a_cpu_without_memory_of_its_own_reserves_nearby() {
    let arena = Arena::new(8192, 2, 2);
    let ranges: Vec<FreeRange> = arena.ranges().drain(1..).collect();
    let mut frames = PageAllocator::new(&arena, arena.pages(), &ranges);
    frames.allow_reservations();
    set_cpu(0);
    let blocks = Blocks::default();
    let placed = frames.reserve(&pin(), (place(0), &blocks), || true);
    let domain = placed.map(|placed| frames.pages().get(placed.pfn).domain());
    assert_eq!(domain, Some(1));
}

#[test]
fn the_injector_fails_frames_of_reservations_too() {
    let world = World::new(4096, 1, 1);
    world.take(0);
    world.frames.set_injector(3, 0);
    let take = |n| {
        world
            .frames
            .take_placed(&pin(), place(n))
            .map(|p| p.is_some())
    };
    let results: Vec<_> = (1..10).map(take).collect();
    let fails = |n: &&Result<bool, NoMemory>| n.is_err();
    assert_eq!(results.iter().filter(fails).count(), 3);
    assert!(results.iter().all(|r| *r != Ok(false)));
    world.frames.set_injector(1, 0);
    let at = (place(RUN), &world.blocks);
    assert_eq!(world.frames.reserve(&pin(), at, || true), None);
    world.frames.set_injector(0, 0);
    assert_eq!(world.census(), (RUN as usize - 7, 7));
}

#[test]
fn without_superpages_nothing_is_reserved() {
    let arena = Arena::new(4096, 1, 1);
    let frames = arena.allocator();
    let blocks = Blocks::default();
    assert_eq!(frames.reserve(&pin(), (place(0), &blocks), || true), None);
    let placed = frames.alloc_at(&pin(), (place(0), &blocks), true, || true);
    assert!(!placed.unwrap().whole && !frames.break_oldest(&pin()));
    frames.end_reservations(OBJECT, 0, &blocks);
    assert_eq!(frames.check().map(|census| census.reserved), Ok(0));
}

/// Each thread is a CPU that takes, frees, breaks, ends objects and runs out of memory.
#[test]
fn a_storm_loses_no_frame() {
    const FRAMES: usize = 8192;
    let world = World::new(FRAMES, 3, 1);
    let used: Vec<AtomicBool> = (0..FRAMES + 1024).map(|_| AtomicBool::new(false)).collect();
    let objects = [(); 3].map(|()| Blocks::default());
    let storm = &|cpu: usize| {
        set_cpu(cpu);
        let (mut random, mut held) = (Random(cpu as u64 + 11), Vec::new());
        let frames = &world.frames;
        let take = |held: &mut Vec<Pfn>, pfn: Pfn| {
            let before = used[pfn.index()].swap(true, SeqCst);
            assert!(!before, "{pfn:?} was handed out twice");
            held.push(pfn);
        };
        for _ in 0..60_000 {
            let object = random.below(3);
            let place = Place {
                object: 64 + object,
                index: random.below(4 * RUN as usize) as u32,
            };
            match random.below(1000) {
                0 => {
                    frames.break_oldest(&pin());
                }
                1 => frames.end_reservations(place.object, place.index, &objects[object]),
                2 => held.drain(..).for_each(|pfn: Pfn| {
                    used[pfn.index()].store(false, SeqCst);
                    frames.free(&pin(), pfn);
                }),
                3..300 => {
                    if let Ok(pfn) = frames.alloc(&pin(), Rights::User) {
                        take(&mut held, pfn);
                    }
                }
                _ => {
                    let at = (place, &objects[object]);
                    if let Ok(placed) = frames.alloc_at(&pin(), at, true, || true) {
                        take(&mut held, placed.pfn);
                    }
                }
            }
        }
        for pfn in &held {
            used[pfn.index()].store(false, SeqCst);
        }
        frames.free_bulk(&pin(), &held);
        frames.drain(&pin());
    };
    std::thread::scope(|scope| {
        (0..3).for_each(|cpu| drop(scope.spawn(move || storm(cpu))));
    });
    assert_eq!(world.census(), (0, 0));
}

/// A machine whose VM may reserve runs.
fn with_objects(test: impl FnOnce(&vm::Vm<Sim>)) {
    let mut vm = Sim::new(4096, 1, 1).into_vm();
    vm.alloc.allow_reservations();
    let before = vm.alloc.check().expect("a consistent start").allocated;
    test(&vm);
    let Census {
        reserved,
        allocated,
        ..
    } = vm.alloc.check().expect("consistent records");
    assert_eq!((reserved, allocated), (0, before));
}

#[test]
fn an_object_that_ends_or_is_cut_keeps_no_run() {
    with_objects(|vm| {
        let anon = ObjectRef::new_anon(vm).unwrap();
        let pfn = anon.placed_frame(vm, &pin(), RUN + 1, true).unwrap().pfn;
        let at = |object: &ObjectRef, index| {
            let object = object.identity();
            vm.alloc.reserved_run(Place { object, index }).is_some()
        };
        assert!(at(&anon, RUN));
        let file = ObjectRef::new_file(vm, None).unwrap();
        file.truncate(vm, 3 * 4096 * u64::from(RUN));
        let pages = [0, 2 * RUN].map(|index| file.placed_frame(vm, &pin(), index, true).unwrap());
        file.truncate(vm, 2 * 4096 * u64::from(RUN));
        assert!(at(&file, 0) && !at(&file, 2 * RUN));
        // Beyond the end there is a frame, but no run.
        let beyond = file.placed_frame(vm, &pin(), 2 * RUN, true).unwrap();
        assert!(!at(&file, 2 * RUN));
        let identity = anon.identity();
        anon.release(vm);
        let object = identity;
        assert_eq!(vm.alloc.reserved_run(Place { object, index: RUN }), None);
        file.release(vm);
        for placed in pages.into_iter().chain([beyond]) {
            vm.alloc.free(&pin(), placed.pfn);
        }
        vm.alloc.free(&pin(), pfn);
        vm.alloc.drain(&pin());
    });
}
