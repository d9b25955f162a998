//! Reserved runs beside the end of their object, and beside what breaks them.
//!
//! As `loom.rs`; runs have four frames.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_reservations`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use std::sync::{Arc, Mutex};
use vm::alloc::{Blocks, Place, RUN_FRAMES, RUN_ORDER};
use vm::{PageAllocator, Pfn};
use vm_host::Arena;

/// The smallest machine in which users may take a few runs, and two CPUs fill their magazines.
const FRAMES: usize = 128;
/// The most that a model has.
const CPUS: usize = 3;

const AT: Place = Place {
    object: 0x1000,
    index: 1,
};

struct World {
    alloc: PageAllocator,
    blocks: Blocks,
    /// Whether the object has ended. A plain word: the allocator's fences order it.
    ended: AtomicBool,
    held: Mutex<Vec<Pfn>>,
    _arena: Arena,
}

impl World {
    fn take(&self, index: u32) {
        let at = (Place { index, ..AT }, &self.blocks);
        let still = || !self.ended.load(Relaxed);
        let placed = self.alloc.alloc_at(&ksync::pin(), at, true, still);
        self.held.lock().unwrap().push(placed.expect("memory").pfn);
    }

    /// Takes a whole run for the first block, as a fault that fills a leaf; gives it back if the object has ended.
    fn fill(&self) {
        let (pin, at) = (ksync::pin(), (Place { index: 0, ..AT }, &self.blocks));
        let run = self.alloc.alloc_run(&pin).expect("a free run");
        if !self.alloc.fill_run(run, at, |_| ()) {
            return self.alloc.free_order(&pin, run, RUN_ORDER);
        }
        if self.ended.load(Relaxed) {
            self.alloc.free_neighbours(&pin, run, RUN_FRAMES);
        } else {
            let frames = (0..RUN_FRAMES).map(|n| run.add(n));
            self.held.lock().unwrap().extend(frames);
        }
    }

    fn free(&self) {
        let pfn = self.held.lock().unwrap().pop();
        self.alloc.free(&ksync::pin(), pfn.expect("a page"));
    }

    fn end_object(&self) {
        self.ended.store(true, Relaxed);
        self.alloc.end_reservations(AT.object, 0, &self.blocks);
    }

    fn check(&self) {
        for cpu in 0..CPUS {
            ksync::host::set_cpu(cpu);
            self.alloc.drain(&ksync::pin());
        }
        let census = self.alloc.check().expect("consistent records");
        assert_eq!(census.allocated, self.held.lock().unwrap().len());
    }
}

type Act = fn(&World);

/// Explores operations at once, with at most so many preemptions; each is the first thread once.
fn explore<const N: usize>(preemptions: usize, prepare: Act, acts: [Act; N], check: Act) {
    for first in 0..N {
        let mut turned = acts;
        turned.rotate_left(first);
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.max_branches = 200_000;
        builder.check(move || together(prepare, turned, check));
    }
}

fn together<const N: usize>(prepare: Act, acts: [Act; N], check: Act) {
    let arena = Arena::new(FRAMES, CPUS, 1);
    let mut alloc = arena.allocator();
    alloc.allow_reservations();
    let world = Arc::new(World {
        alloc,
        blocks: Blocks::default(),
        ended: AtomicBool::new(false),
        held: Mutex::default(),
        _arena: arena,
    });
    ksync::host::set_cpu(0);
    prepare(&world);
    let others = (1..N).map(|cpu| {
        let world = world.clone();
        thread::spawn(move || {
            ksync::host::set_cpu(cpu);
            acts[cpu](&world);
        })
    });
    let others: Vec<_> = others.collect();
    acts[0](&world);
    others.into_iter().for_each(|t| t.join().unwrap());
    check(&world);
    world.check();
}

fn at_once(prepare: Act, acts: [Act; 2], check: Act) {
    explore(2, prepare, acts, check);
}

#[test]
fn a_reservation_beside_the_end_of_its_object_is_ended() {
    at_once(
        |_| (),
        [|world| world.take(1), World::end_object],
        |world| assert_eq!(world.alloc.reserved_run(AT), None),
    );
}

/// One CPU notes that the object has a reservation in the block, another one finds that noted already, and a third ends the object.
#[test]
fn two_reservations_of_a_block_beside_the_end_of_its_object() {
    explore(
        1,
        |_| (),
        [
            |world| world.take(1),
            |world| world.take(2),
            World::end_object,
        ],
        |world| assert_eq!(world.alloc.reserved_run(AT), None),
    );
}

/// The object has more blocks, from its lowest to its highest, than the machine has runs: the runs are looked through, each without a
/// lock at first.
#[test]
fn a_reservation_beside_the_end_of_an_object_of_many_blocks_is_ended() {
    const FAR: u32 = 1000 * RUN_FRAMES;
    const NEAR: u32 = 2 * RUN_FRAMES + 1;
    at_once(
        |world| world.take(FAR),
        [|world| world.take(NEAR), World::end_object],
        |world| {
            for index in [FAR, NEAR] {
                let run = world.alloc.reserved_run(Place { index, ..AT });
                assert_eq!(run, None, "of {index}");
            }
        },
    );
}

#[test]
fn a_run_that_is_filled_beside_the_end_of_its_object_is_ended() {
    at_once(
        |_| (),
        [World::fill, World::end_object],
        |world| assert_eq!(world.alloc.reserved_run(AT), None),
    );
}

#[test]
fn a_frame_is_taken_or_broken_off() {
    at_once(
        |world| world.take(1),
        [
            |world| world.take(2),
            |world| {
                world.alloc.break_oldest(&ksync::pin());
            },
        ],
        |_| (),
    );
}

#[test]
fn a_frame_comes_back_or_is_broken_off() {
    at_once(
        |world| [1, 2].into_iter().for_each(|n| world.take(n)),
        [World::free, |world| {
            world.alloc.break_oldest(&ksync::pin());
        }],
        |_| (),
    );
}
