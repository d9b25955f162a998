//! Reserved runs beside the end of their object, and beside what breaks them.
//!
//! As `loom.rs`; runs have four frames.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm-host --release --test loom_reservations`
#![cfg(loom)]

use loom::sync::atomic::{AtomicBool, Ordering::Relaxed};
use loom::thread;
use std::sync::{Arc, Mutex};
use vm::alloc::{Blocks, Place};
use vm::{PageAllocator, Pfn};
use vm_host::Arena;

/// The smallest machine in which users may take a few runs.
const FRAMES: usize = 96;

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

    fn free(&self) {
        let pfn = self.held.lock().unwrap().pop();
        self.alloc.free(&ksync::pin(), pfn.expect("a page"));
    }

    fn end_object(&self) {
        self.ended.store(true, Relaxed);
        self.alloc.end_reservations(AT.object, 0, &self.blocks);
    }

    fn check(&self) {
        for cpu in 0..2 {
            ksync::host::set_cpu(cpu);
            self.alloc.drain(&ksync::pin());
        }
        let census = self.alloc.check().expect("consistent records");
        assert_eq!(census.allocated, self.held.lock().unwrap().len());
    }
}

type Act = fn(&World);

/// Explores two operations at once; each is the first thread once.
fn at_once(prepare: Act, acts: [Act; 2], check: Act) {
    for acts in [acts, [acts[1], acts[0]]] {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.max_branches = 200_000;
        builder.check(move || {
            let arena = Arena::new(FRAMES, 2, 1);
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
            let other = world.clone();
            let other = thread::spawn(move || {
                ksync::host::set_cpu(1);
                acts[1](&other);
            });
            acts[0](&world);
            other.join().unwrap();
            check(&world);
            world.check();
        });
    }
}

#[test]
fn a_reservation_beside_the_end_of_its_object_is_ended() {
    at_once(
        |_| (),
        [|world| world.take(1), World::end_object],
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
