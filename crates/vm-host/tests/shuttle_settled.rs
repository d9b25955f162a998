//! Insertions that are taken back, and copies beside them: only a settled page is copied without a look at its record.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_settled`
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use shuttle::thread::yield_now;
use vm::Access;
use vm::space::{Source, Space};
use vm_host::schedules::{AT, PAGE, World, join, spawn, stop_everywhere, stop_everywhere_in_runs};

/// Turns that the child gets: enough for a fork and a fault, if it need not wait.
const TURNS: usize = 60;

fn set(world: &World, page: u64, word: u64) {
    world.set_word_at(&world.space, AT + page * PAGE, word);
}

/// Two layers, the lower one of more pages than one step of folding brings up: so it stays, and the entry keeps its state.
fn foldable(world: &World) {
    world.map_pages(12, false, Source::Anon);
    make_foldable(world);
}

/// Puts two such layers over those that there are.
fn make_foldable(world: &World) {
    let (vm, space) = (&world.lab.vm, &world.space);
    (0..8).for_each(|page| set(world, page, 7));
    let first = space.fork(vm).unwrap();
    (8..11).for_each(|page| set(world, page, 8));
    let second = space.fork(vm).unwrap();
    set(world, 11, 9);
    first.clear(vm);
    second.clear(vm);
    space.drop_tables(vm);
}

fn shows_its_pages(world: &World) {
    (0..8).for_each(|page| assert_eq!(world.word_at(&world.space, AT + page * PAGE), 7));
}

/// A step of folding brings some pages of a layer up, while a fault is between the two layers and has found its page in
/// neither.
fn a_fault_beside_folding(world: &Arc<World>) {
    foldable(world);
    faults_beside_folding(world);
}

fn faults_beside_folding(world: &Arc<World>) {
    let fault = spawn(world, 1, |world| {
        let _either = world.space.fault(&world.lab.vm, AT, Access::Write);
    });
    let folder = spawn(world, 2, |world| {
        world.space.maintain(&world.lab.vm);
    });
    join([fault, folder]);
    shows_its_pages(world);
}

#[test]
fn no_page_of_zeroes_hides_one_that_folding_brings_up() {
    stop_everywhere(a_fault_beside_folding);
}

/// The same where the page of zeroes is one of a reserved run.
#[test]
fn no_page_of_zeroes_of_a_run_hides_one_that_folding_brings_up() {
    stop_everywhere_in_runs(a_fault_beside_folding);
}

/// A fault looks for its page in one layer after the other while folding moves the page, sees it in neither, and inserts a page of
/// zeroes, which it is going to take back. A child that is forked meanwhile, and writes there, must not get those zeroes.
#[test]
fn a_page_of_zeroes_that_is_taken_back_is_not_copied() {
    stop_everywhere(|world| {
        let vm = &world.lab.vm;
        foldable(world);
        let folded = Arc::new(AtomicBool::new(false));
        let inserted = Arc::new(AtomicBool::new(false));
        let (after, now) = (folded.clone(), inserted.clone());
        // The fault is about to enter what it has inserted: the child gets its turn.
        vm.machine.on_table(Some(Box::new(move |_| {
            if ksync::pin().cpu() == 1 && after.load(SeqCst) && !now.swap(true, SeqCst) {
                (0..TURNS).for_each(|_| yield_now());
            }
        })));
        let ended = inserted.clone();
        let fault = spawn(world, 1, move |world| {
            let _either = world.space.fault(&world.lab.vm, AT, Access::Read);
            ended.store(true, SeqCst);
        });
        let other = spawn(world, 2, move |world| {
            let vm = &world.lab.vm;
            world.space.maintain(vm);
            folded.store(true, SeqCst);
            while !inserted.load(SeqCst) {
                yield_now();
            }
            let child: Arc<Space> = world.space.fork(vm).unwrap();
            assert_eq!(child.fault(vm, AT, Access::Write), Ok(()));
            assert_eq!(world.word_at(&child, AT), 7, "zeroes were copied");
            child.clear(vm);
        });
        join([fault, other]);
        vm.machine.on_table(None);
        shows_its_pages(world);
    });
}

/// A page that a fault made, so that it is settled, leaves its file while another fault copies it, and the space has seen the hole when
/// the copy is entered.
#[test]
fn a_copy_of_a_settled_page_that_has_gone_comes_over_no_hole() {
    stop_everywhere(|world| {
        let vm = &world.lab.vm;
        world.file.truncate(vm, 2 * PAGE);
        world.map(true, Source::Object(&world.file, 0));
        set(world, 0, 7);
        assert_eq!(world.space.unmap(vm, AT, 2 * PAGE), Ok(()));
        world.map(false, Source::Object(&world.file, 0));
        // The front layer exists.
        set(world, 1, 8);
        let fault = spawn(world, 1, |world| {
            let _either = world.space.fault(&world.lab.vm, AT, Access::Write);
        });
        let seen = Arc::new(AtomicU64::new(0));
        let theirs = seen.clone();
        let puncher = spawn(world, 2, move |world| {
            world.file.punch(&world.lab.vm, 0, PAGE);
            theirs.store(world.word(&world.space), SeqCst);
        });
        join([fault, puncher]);
        if seen.load(SeqCst) == 0 {
            assert_eq!(world.word(&world.space), 0, "what was punched is back");
        }
    });
}

/// Folding moves a page from one layer to another while a write looks at the first and then at the second: it sees the page in neither,
/// and an older one below. That is neither copied nor taken over.
#[test]
fn no_older_page_comes_to_the_front_beside_folding() {
    stop_everywhere(|world| {
        world.map_pages(13, false, Source::Anon);
        (0..13).for_each(|page| set(world, page, 5));
        let keep = world.space.fork(&world.lab.vm).unwrap();
        make_foldable(world);
        faults_beside_folding(world);
        keep.clear(&world.lab.vm);
    });
}
