//! Reserved runs, while CPUs take the same and neighbouring frames, give them back, break them, and run out of memory.
//!
//! Runs have four frames here. `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_reservations`
#![cfg(shuttle)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use shuttle::thread::{self, JoinHandle};
use vm::alloc::{Blocks, MAX_ORDER, Place, Placed, RUN_FRAMES, RUN_ORDER};
use vm::{PageAllocator, Pfn, Rights};
use vm_host::{Arena, one_stop, random_schedules};

const OBJECT: usize = 0x1000;
const RUN: u32 = RUN_FRAMES;
/// A place of another object.
const OTHER: Place = Place {
    object: 0x2000,
    index: 0,
};

/// Blocks of the other object that a test tries.
const BLOCKS: u32 = 64;
/// The present one.
static BLOCK: AtomicU32 = AtomicU32::new(0);

/// An allocator of few frames, which users may all take but for the reserve, and an object.
struct World {
    alloc: PageAllocator,
    blocks: Blocks,
    /// Those of another object, which lives on.
    others: Blocks,
    /// Whether the object has ended.
    ended: AtomicBool,
    /// Frames in use.
    held: Mutex<Vec<Pfn>>,
    /// Number of frames that nobody frees before the end.
    withheld: usize,
    total: usize,
    _arena: Arena,
}

impl World {
    /// With so many free frames that users may take.
    fn new(spare: usize) -> World {
        let total = 96;
        let arena = Arena::new(total, 5, 1);
        let mut alloc = arena.allocator();
        alloc.allow_reservations();
        let mut world = World {
            alloc,
            blocks: Blocks::default(),
            others: Blocks::default(),
            ended: AtomicBool::new(false),
            held: Mutex::default(),
            withheld: 0,
            total,
            _arena: arena,
        };
        let mut left = world.alloc.spare_pages() - spare;
        while left > 0 {
            let order = left.ilog2().min(u32::from(MAX_ORDER)) as u8;
            let run = (0..=order).rev().find_map(|order| {
                let run = world.alloc.alloc_order(&ksync::pin(), order, Rights::User);
                Some((run.ok()?, order))
            });
            let (run, order) = run.expect("spare frames");
            left -= 1 << order;
            let frames = (0..1 << order).map(|n| run.add(n));
            world.held.lock().unwrap().extend(frames);
        }
        world.alloc.drain(&ksync::pin());
        world.withheld = world.held.lock().unwrap().len();
        world
    }

    fn hold(&self, pfn: Pfn) {
        let mut held = self.held.lock().unwrap();
        assert!(!held.contains(&pfn), "{pfn:?} was handed out twice");
        held.push(pfn);
    }

    fn free(&self, pfn: Pfn) {
        let mut held = self.held.lock().unwrap();
        let at = held.iter().position(|&other| other == pfn);
        held.swap_remove(at.expect("it is in use"));
        drop(held);
        self.alloc.free(&ksync::pin(), pfn);
    }

    /// Takes a frame for a place as a fault does.
    fn take(&self, index: u32) -> Option<Placed> {
        let object = OBJECT;
        let at = (Place { object, index }, &self.blocks);
        let still = || !self.ended.load(SeqCst);
        let placed = self.alloc.alloc_at(&ksync::pin(), at, true, still).ok()?;
        self.hold(placed.pfn);
        Some(placed)
    }

    /// As `take`; the result depends on the other operations.
    fn fault(&self, index: u32) {
        let _either = self.take(index);
    }

    /// Takes a whole run for a block, as a fault that fills a leaf; gives it back if the block has one, or the object ends.
    fn fill(&self, index: u32) {
        let object = OBJECT;
        let Ok(run) = self.alloc.alloc_run(&ksync::pin()) else {
            return;
        };
        let frames = || (0..RUN_FRAMES).map(|n| run.add(n));
        let at = (Place { object, index }, &self.blocks);
        if !self.alloc.fill_run(run, at, |_| ()) {
            return self.alloc.free_order(&ksync::pin(), run, RUN_ORDER);
        }
        frames().for_each(|pfn| self.hold(pfn));
        if self.ended.load(SeqCst) {
            frames().for_each(|pfn| self.free(pfn));
        }
    }

    /// Gives the run of the first block, all of which was taken first, back at once, as the end of an object.
    fn free_whole(&self) {
        let place = Place {
            object: OBJECT,
            index: 0,
        };
        let mut held = self.held.lock().unwrap();
        let first = held[self.withheld];
        held.retain(|pfn| pfn.0 >> RUN_ORDER != first.0 >> RUN_ORDER);
        drop(held);
        self.alloc.free_run(&ksync::pin(), first, place);
    }

    fn alloc(&self) -> Option<Pfn> {
        let pfn = self.alloc.alloc(&ksync::pin(), Rights::User).ok()?;
        self.hold(pfn);
        Some(pfn)
    }

    /// Takes two frames, which must be there.
    fn alloc_pair(&self) {
        let pair = self.alloc.alloc_order(&ksync::pin(), 1, Rights::User);
        let pair = pair.expect("a run has two frames side by side");
        [pair, pair.add(1)]
            .into_iter()
            .for_each(|pfn| self.hold(pfn));
    }

    fn break_oldest(&self) {
        self.alloc.break_oldest(&ksync::pin());
    }

    fn end_object(&self) {
        self.ended.store(true, SeqCst);
        self.alloc.end_reservations(OBJECT, 0, &self.blocks);
    }

    fn run_of(&self, index: u32) -> Option<Pfn> {
        let object = OBJECT;
        self.alloc.reserved_run(Place { object, index })
    }

    /// Every frame is where it must be; then all are freed, and the reservations are gone.
    fn end(&self) {
        let drain = || {
            (0..5).for_each(|cpu| {
                ksync::host::set_cpu(cpu);
                self.alloc.drain(&ksync::pin());
            });
        };
        drain();
        let census = self.alloc.check().expect("consistent records");
        let mut held = self.held.lock().unwrap();
        assert_eq!(census.allocated, held.len());
        assert_eq!(self.alloc.free_pages(), self.total - held.len());
        self.alloc.free_bulk(&ksync::pin(), &held);
        held.clear();
        drain();
        let census = self.alloc.check().expect("consistent records");
        assert_eq!((census.listed, census.reserved), (self.total, 0));
    }
}

type Act = fn(&World);

fn spawn(world: &Arc<World>, cpu: usize, act: Act) -> JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || {
        ksync::host::set_cpu(cpu);
        act(&world);
    })
}

/// Runs `prepare`, then the operations at once, then `check`.
fn run<const N: usize>(spare: usize, prepare: Act, acts: [Act; N], check: Act) {
    let world = Arc::new(World::new(spare));
    prepare(&world);
    let threads = acts.into_iter().zip(1..);
    let threads = threads.map(|(act, cpu)| spawn(&world, cpu, act));
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    ksync::host::set_cpu(0);
    check(&world);
    world.end();
}

/// Random schedules; then each in which one of the operations is stopped once.
fn explore<const N: usize>(spare: usize, prepare: Act, acts: [Act; N], check: Act) {
    let schedules = random_schedules::asked(300);
    random_schedules::explore(move || run(spare, prepare, acts, check), schedules);
    for first in 0..N {
        let mut turned = acts;
        turned.rotate_left(first);
        one_stop::everywhere(1, move || run(spare, prepare, turned, check));
    }
}

fn nothing(_: &World) {}

#[test]
fn two_take_the_same_and_neighbours_while_a_third_breaks() {
    explore(
        32,
        |world| world.fault(0),
        [
            |world| [1, 2].into_iter().for_each(|n| world.fault(n)),
            |world| [1, 3].into_iter().for_each(|n| world.fault(n)),
            World::break_oldest,
        ],
        nothing,
    );
}

#[test]
fn two_reserve_for_one_block_and_get_one_run() {
    explore(
        32,
        nothing,
        [|world| world.fault(5), |world| world.fault(6)],
        |world| {
            let run = world.run_of(4).expect("nobody breaks it");
            let held = world.held.lock().unwrap();
            assert!(held.contains(&run.add(1)));
            // The second frame is of the same run, or came from elsewhere when the chain changed at that moment.
            drop(held);
        },
    );
}

#[test]
fn frames_come_back_while_others_are_taken_and_the_run_is_broken() {
    explore(
        32,
        |world| (0..RUN - 1).for_each(|n| world.fault(n)),
        [
            |world| {
                let placed = world.take(RUN - 1).expect("memory");
                world.free(placed.pfn);
            },
            |world| {
                let held = world.held.lock().unwrap().clone();
                let mine = held[held.len() - 2..].to_vec();
                mine.into_iter().for_each(|pfn| world.free(pfn));
            },
            World::break_oldest,
        ],
        nothing,
    );
}

#[test]
fn the_last_page_goes_while_another_comes_and_the_object_ends() {
    explore(
        32,
        |world| world.fault(0),
        [
            |world| {
                let last = *world.held.lock().unwrap().last().unwrap();
                world.free(last);
            },
            |world| world.fault(1),
            World::end_object,
        ],
        |world| assert_eq!(world.run_of(0), None, "the object has ended"),
    );
}

#[test]
fn a_reservation_beside_the_end_of_its_object_is_ended() {
    explore(
        32,
        nothing,
        [|world| world.fault(9), World::end_object],
        |world| assert_eq!(world.run_of(9), None, "the object has ended"),
    );
}

#[test]
fn a_run_that_is_filled_beside_the_end_of_its_object_is_ended() {
    explore(
        32,
        nothing,
        [|world| world.fill(8), World::end_object],
        |world| assert_eq!(world.run_of(8), None, "the object has ended"),
    );
}

#[test]
fn a_block_gets_one_run_whether_filled_or_reserved() {
    explore(
        32,
        nothing,
        [
            |world| world.fill(8),
            |world| world.fault(9),
            |world| world.fill(8),
        ],
        |world| {
            let run = world.run_of(8).expect("nobody has ended it");
            let held = world.held.lock().unwrap();
            let in_runs = held[world.withheld..].iter();
            let of_run = in_runs.filter(|pfn| pfn.0 / RUN_FRAMES == run.0 / RUN_FRAMES);
            assert!([1, RUN_FRAMES as usize].contains(&of_run.count()));
        },
    );
}

/// The pages of a block go at once, while the object is cut off, another fault asks for the block's run, and a third CPU breaks
/// reservations or takes a frame.
#[test]
fn a_run_that_goes_back_at_once_beside_faults_and_the_end_of_its_object() {
    let fill = |world: &World| (0..RUN_FRAMES).for_each(|n| world.fault(n));
    let others: [[Act; 2]; 3] = [
        [|world| world.fault(1), World::end_object],
        [|world| world.fill(0), World::break_oldest],
        [|world| _ = world.alloc(), |world| world.fault(2)],
    ];
    for [one, two] in others {
        explore(8, fill, [World::free_whole, one, two], nothing);
    }
}

/// The only run changes its owner while the end of the first one looks for it.
#[test]
fn the_end_of_an_object_spares_a_run_that_has_another_owner_now() {
    explore(
        RUN as usize,
        |world| assert!(world.take(0).is_some() && world.run_of(0).is_some()),
        [World::end_object, |world| {
            let mine = *world.held.lock().unwrap().last().unwrap();
            world.free(mine);
            world.alloc.drain(&ksync::pin());
            let at = (OTHER, &world.others);
            // None while the frames are on their way.
            if let Some(placed) = world.alloc.reserve(&ksync::pin(), at, || true) {
                world.hold(placed.pfn);
            }
        }],
        |world| {
            let placed = world.held.lock().unwrap().len() - world.withheld;
            let reserved = world.alloc.reserved_run(OTHER).is_some();
            assert_eq!(placed, usize::from(reserved));
        },
    );
}

/// The end of an object finds a run all of whose frames are taken, and live on. They are freed, and the run is reserved for one of
/// many blocks, some of which have the same chain as the first one or one with others on it.
#[test]
fn a_run_without_frames_to_give_leaves_its_chain_before_it_gets_another_owner() {
    for block in 0..BLOCKS {
        BLOCK.store(block, SeqCst);
        one_stop::everywhere(1, || {
            run(
                RUN as usize,
                |world| (0..RUN).for_each(|n| assert!(world.take(n).is_some())),
                [World::end_object, |world| {
                    let mine: Vec<Pfn> = world.held.lock().unwrap()[world.withheld..].to_vec();
                    mine.into_iter().for_each(|pfn| world.free(pfn));
                    world.alloc.drain(&ksync::pin());
                    let index = BLOCK.load(SeqCst) * RUN;
                    let at = (Place { index, ..OTHER }, &world.others);
                    // None while the frames are still the first block's.
                    if let Some(placed) = world.alloc.reserve(&ksync::pin(), at, || true) {
                        world.hold(placed.pfn);
                    }
                }],
                |_| (),
            );
        });
    }
}

/// Users may take three frames more, all of them reserved. One CPU needs one, while others take, give back and break.
#[test]
fn nobody_fails_while_a_frame_is_not_taken() {
    explore(
        RUN as usize,
        |world| {
            assert!(world.take(0).is_some() && world.run_of(0).is_some());
        },
        [
            |world| assert!(world.alloc().is_some(), "there were two frames at least"),
            |world| {
                let (object, index) = (OBJECT, 1);
                let taken = world
                    .alloc
                    .take_placed(&ksync::pin(), Place { object, index });
                if let Some(placed) = taken.expect("the injector is off") {
                    world.hold(placed.pfn);
                    world.free(placed.pfn);
                }
            },
            World::break_oldest,
        ],
        nothing,
    );
}

/// As above, with two frames side by side.
#[test]
fn no_run_fails_while_a_reservation_is_broken_elsewhere() {
    explore(
        RUN as usize,
        |world| assert!(world.take(0).is_some() && world.run_of(0).is_some()),
        [World::alloc_pair, World::break_oldest],
        nothing,
    );
}

#[test]
fn two_run_out_of_memory_and_break_one_reservation() {
    explore(
        2 * RUN as usize,
        |world| {
            assert!(world.take(0).is_some() && world.run_of(0).is_some());
            assert!(world.take(4).is_some() && world.run_of(4).is_some());
        },
        [World::alloc_pair, World::alloc_pair],
        nothing,
    );
}
