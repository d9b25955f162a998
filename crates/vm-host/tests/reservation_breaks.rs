//! What a request for frames side by side takes from programs that chose which frames of their runs are free.
#![cfg(not(any(loom, shuttle)))]

use ksync::host::set_cpu;
use ksync::pin;
use vm::alloc::{Blocks, Place, RUN_FRAMES};
use vm::{PageAllocator, Pfn, Rights};
use vm_host::Arena;

const RUNS: u32 = 64;
/// Runs of which no frame stays in use.
const WHOLE: u32 = 40;
/// One frame in so many stays in use.
const APART: u32 = 8;
/// Reservations that one request may break.
const MOST: usize = 16;

/// Takes all memory and gives it back but for a frame in eight of some runs.
fn fragment(alloc: &PageAllocator) -> Vec<Pfn> {
    let all: Vec<Pfn> = std::iter::from_fn(|| alloc.alloc(&pin(), Rights::Reserve).ok()).collect();
    // The first run is not whole: the machine has the first frames.
    let whole = RUN_FRAMES..WHOLE * RUN_FRAMES;
    let stays = |pfn: &Pfn| !whole.contains(&pfn.0) && pfn.0.is_multiple_of(APART);
    let (stay, go): (Vec<_>, Vec<_>) = all.into_iter().partition(stays);
    go.into_iter().for_each(|pfn| alloc.free(&pin(), pfn));
    alloc.drain(&pin());
    stay
}

/// A user's object has a page in each eight of all runs that are left. No break of a reservation gives eight frames side by
/// side, so a request for them gives up, and before it has broken all of them with preemption off.
#[test]
fn a_request_for_a_run_breaks_few_reservations() {
    set_cpu(0);
    let arena = Arena::new((RUNS * RUN_FRAMES) as usize, 1, 1);
    let mut alloc = arena.allocator();
    alloc.allow_reservations();
    let (blocks, object) = (Blocks::default(), 0x1000);
    let mut taken = fragment(&alloc);
    for index in (0..WHOLE * RUN_FRAMES).step_by(APART as usize) {
        let at = (Place { object, index }, &blocks);
        let placed = match index % RUN_FRAMES {
            0 => alloc.reserve(&pin(), at, || true),
            _ => alloc.take_placed(&pin(), at.0).expect("no injector"),
        };
        taken.extend(placed.map(|placed| placed.pfn));
    }
    let free = || alloc.check().expect("consistent records").reserved;
    let given = (RUN_FRAMES - RUN_FRAMES / APART) as usize;
    assert!(free() > 2 * MOST * given, "{} frames are reserved", free());
    let before = free();
    let run = alloc.alloc_order(&pin(), 3, Rights::Kernel);
    let broken = (before - free()) / given;
    assert!(
        broken <= MOST,
        "{broken} reservations are broken for {run:?}"
    );
    taken.into_iter().for_each(|pfn| alloc.free(&pin(), pfn));
    if let Ok(run) = run {
        alloc.free_order(&pin(), run, 3);
    }
    alloc.end_reservations(object, 0, &blocks);
    assert_eq!(free(), 0);
}
