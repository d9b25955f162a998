//! The pages of a run that leave their object at once, stopped at each step, while others use the same frames.
//!
//! Runs have four frames here. `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_runs`
#![cfg(shuttle)]

use vm::alloc::RUN_FRAMES;
use vm::page::HardBusy;
use vm::space::Source;
use vm::{Page, Pfn, Rights};
use vm_host::schedules::{AT, PAGE, World, join, spawn, stop_everywhere_in_runs};

/// Pages of a run.
const RUN: u64 = RUN_FRAMES as u64;

/// Maps a block, of which the program has written the first pages, in the frames of a run. Returns the first frame.
fn written(world: &World, written: u64) -> Pfn {
    world.map_pages(RUN, false, Source::Anon);
    (0..written).for_each(|n| world.set_word_at(&world.space, AT + n * PAGE, n + 1));
    let frame = |n: u64| {
        let pte = world
            .space
            .pmap()
            .lookup(&world.lab.vm, &ksync::pin(), AT + n * PAGE);
        pte.expect("it is mapped").pfn()
    };
    let first = frame(0);
    assert!(first.0.is_multiple_of(RUN_FRAMES));
    assert!((0..written).all(|n| frame(n) == first.add(n as u32)));
    first
}

/// The run was broken, and its last frame is a page of another object: no user of that page has to wait for the others.
#[test]
fn what_goes_with_a_run_holds_no_page_of_another_object() {
    stop_everywhere_in_runs(|world| {
        let first = written(world, RUN - 1);
        let (alloc, last) = (&world.lab.vm.alloc, first.add(RUN_FRAMES - 1));
        assert!(alloc.break_oldest(&ksync::pin()));
        let mut hoard = Vec::new();
        while hoard.last() != Some(&last) {
            let pfn = alloc.alloc(&ksync::pin(), Rights::User);
            hoard.push(pfn.expect("the frame is free"));
        }
        hoard.pop();
        alloc.free_bulk(&ksync::pin(), &hoard);
        fn page(world: &World, pfn: Pfn) -> &Page {
            world.lab.vm.pages.get(pfn)
        }
        let other = page(world, last);
        other.set_identity(world.file.identity(), 0);
        drop(HardBusy::of_fresh(other));
        let unmapper = spawn(world, 1, |world| {
            let done = world.space.unmap(&world.lab.vm, AT, RUN * PAGE);
            assert_eq!(done, Ok(()));
        });
        let user = spawn(world, 2, move |world| {
            let busy = page(world, last).try_soft_busy();
            assert!(busy.is_some(), "a page of another object is held");
        });
        join([unmapper, user]);
        let busy = page(world, last).try_hard_busy();
        busy.expect("nobody holds it").into_free();
        world.lab.vm.alloc.free(&ksync::pin(), last);
    });
}
