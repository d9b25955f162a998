//! Faults where superpages are wanted: which memory gets leaves of 2 MiB, from which touches, and what it costs others.
#![cfg(not(any(loom, shuttle)))]

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

use vm::page::State;
use vm::space::{Advice, MapArgs};
use vm::stats::VmTotals;
use vm::{EntryFlags, FaultError, MapProt, Pfn, Superpages, Tuning};
use vm_host::program::Program;
use vm_host::{Lab, Random};

const PAGE: u64 = 4096;
/// Pages of a block.
const BLOCK: u64 = 512;
/// The address of the first block.
const AT: u64 = 0x4000_0000;
const RW: MapProt = MapProt::READ.union(MapProt::WRITE);
/// Blocks are filled page by page; `leaf_fills.rs` is about those filled at once.
const BY_PAGE: Tuning = Tuning {
    fill_leaves: false,
    ..Tuning::DEFAULT
};

/// Runs `act` as a program on a machine with so many frames, and checks at the end that all have come back.
fn with_program(frames: usize, which: Superpages, act: impl FnOnce(&Lab, &Program)) -> VmTotals {
    let lab = Lab::with_superpages(frames, 2, BY_PAGE);
    lab.vm.set_superpages(which);
    lab.play_all();
    let program = Program::new(&lab.vm);
    program.run(|program| act(&lab, program));
    drop(program);
    let counts = lab.vm.counts();
    lab.finish();
    assert_eq!(counts.leaves(), 0, "every leaf has gone");
    counts
}

fn map(lab: &Lab, program: &Program, pages: Range<u64>, flags: EntryFlags) {
    let len = (pages.end - pages.start) * PAGE;
    let mut args = MapArgs::anon(len, RW).at(AT + pages.start * PAGE);
    args.flags = flags;
    assert_eq!(program.space.map(&lab.vm, &args), Ok(args.addr));
}

fn advise(lab: &Lab, program: &Program, pages: Range<u64>, advice: Advice) {
    let len = (pages.end - pages.start) * PAGE;
    let done = program
        .space
        .advise(&lab.vm, AT + pages.start * PAGE, len, advice);
    assert_eq!(done, Ok(()));
}

/// Writes its number to each page.
fn fill(program: &Program, pages: impl Iterator<Item = u64>) {
    for n in pages {
        assert_eq!(program.write(AT + n * PAGE, n + 1), Ok(()));
    }
}

/// Checks that each page has its number.
fn check(program: &Program, mut pages: Range<u64>) {
    assert!(pages.all(|n| program.read(AT + n * PAGE) == Ok(n + 1)));
}

/// Whether each page lies under a leaf now.
fn leaves(lab: &Lab) -> u64 {
    lab.vm.counts().leaves()
}

fn reserved(lab: &Lab) -> usize {
    lab.vm.alloc.check().expect("consistent lists").reserved
}

#[test]
fn a_block_whose_pages_are_all_touched_gets_a_leaf() {
    let counts = with_program(4096, Superpages::Always, |lab, program| {
        map(lab, program, 0..2 * BLOCK, EntryFlags::empty());
        fill(program, 0..BLOCK - 1);
        assert_eq!((leaves(lab), reserved(lab)), (0, 1));
        fill(program, BLOCK - 1..BLOCK);
        assert_eq!((leaves(lab), reserved(lab)), (1, 0));
        check(program, 0..BLOCK);
        fill(program, BLOCK..2 * BLOCK);
        check(program, 0..2 * BLOCK);
        assert_eq!(leaves(lab), 2);
        // The second table and the first are gone.
        assert_eq!(program.space.pmap().tables(), 3);
    });
    assert_eq!((counts.promotions, counts.demotions), (2, 0));
}

#[test]
fn pages_may_be_touched_in_any_order() {
    for seed in 1..20 {
        with_program(4096, Superpages::Always, |lab, program| {
            map(lab, program, 0..BLOCK, EntryFlags::empty());
            let mut order: Vec<u64> = (0..BLOCK).collect();
            let mut random = Random(seed * 0x9e37_79b9);
            for n in (1..order.len()).rev() {
                order.swap(n, random.below_u64(n as u64 + 1) as usize);
            }
            fill(program, order.into_iter());
            assert_eq!(leaves(lab), 1, "seed {seed}");
            check(program, 0..BLOCK);
        });
    }
}

#[test]
fn pages_that_are_read_first_get_a_leaf_too() {
    with_program(4096, Superpages::Always, |lab, program| {
        map(lab, program, 0..BLOCK, EntryFlags::empty());
        assert!((0..BLOCK).all(|n| program.read(AT + n * PAGE) == Ok(0)));
        assert_eq!(leaves(lab), 1);
        fill(program, 0..BLOCK);
        assert_eq!(leaves(lab), 1, "it was writable");
    });
}

#[test]
fn memory_gets_leaves_as_the_setting_and_the_advice_say() {
    use Superpages::{Advised, Always, Never};
    let (wanted, refused) = (Some(Advice::HugePage), Some(Advice::NoHugePage));
    for (which, advice, expected) in [
        (Never, None, 0),
        (Never, wanted, 0),
        (Advised, None, 0),
        (Advised, wanted, 1),
        (Advised, refused, 0),
        (Always, None, 1),
        (Always, wanted, 1),
        (Always, refused, 0),
    ] {
        let counts = with_program(4096, which, |lab, program| {
            map(lab, program, 0..BLOCK, EntryFlags::empty());
            if let Some(advice) = advice {
                advise(lab, program, 0..BLOCK, advice);
            }
            fill(program, 0..1);
            let spared = if expected == 0 { 0 } else { BLOCK as usize - 1 };
            assert_eq!(reserved(lab), spared, "{which:?} {advice:?}");
            fill(program, 1..BLOCK);
            check(program, 0..BLOCK);
        });
        assert_eq!(counts.promotions, expected, "{which:?} {advice:?}");
    }
}

#[test]
fn the_later_advice_holds() {
    with_program(4096, Superpages::Advised, |lab, program| {
        map(lab, program, 0..2 * BLOCK, EntryFlags::empty());
        advise(lab, program, 0..2 * BLOCK, Advice::HugePage);
        advise(lab, program, 0..BLOCK, Advice::NoHugePage);
        fill(program, 0..2 * BLOCK);
        assert_eq!(leaves(lab), 1);
    });
}

#[test]
fn a_mapping_that_begins_anywhere_gets_leaves_for_its_whole_blocks() {
    with_program(4096, Superpages::Always, |lab, program| {
        map(lab, program, 37..3 * BLOCK - 5, EntryFlags::empty());
        fill(program, 37..3 * BLOCK - 5);
        assert_eq!(leaves(lab), 1);
        check(program, 37..3 * BLOCK - 5);
    });
}

#[test]
fn nothing_is_reserved_for_a_block_that_an_entry_maps_in_part() {
    with_program(4096, Superpages::Always, |lab, program| {
        for pages in [
            0..BLOCK - 1,
            BLOCK + 1..2 * BLOCK,
            3 * BLOCK - 8..4 * BLOCK - 8,
        ] {
            map(lab, program, pages.clone(), EntryFlags::empty());
            fill(program, pages);
        }
        assert_eq!((leaves(lab), reserved(lab)), (0, 0));
    });
}

#[test]
fn shared_memory_that_lies_in_order_gets_a_leaf_and_no_other_does() {
    for (first, expected) in [(0, 1), (8, 0)] {
        with_program(4096, Superpages::Always, |lab, program| {
            map(
                lab,
                program,
                first..first + 2 * BLOCK - 8,
                EntryFlags::SHARED,
            );
            fill(program, first..first + 2 * BLOCK - 8);
            assert_eq!(leaves(lab), expected);
            check(program, first..first + 2 * BLOCK - 8);
        });
    }
}

#[test]
fn a_stack_gets_no_leaf() {
    with_program(4096, Superpages::Always, |lab, program| {
        map(lab, program, 0..2 * BLOCK, EntryFlags::GROWSDOWN);
        fill(program, 0..2 * BLOCK);
        assert_eq!((leaves(lab), reserved(lab)), (0, 0));
    });
}

#[test]
fn a_child_that_writes_everything_gets_a_leaf_of_its_own() {
    let counts = with_program(8192, Superpages::Always, |lab, program| {
        map(lab, program, 0..BLOCK, EntryFlags::empty());
        fill(program, 0..BLOCK);
        let child = program.fork().expect("memory");
        program.unload();
        child.run(|child| {
            check(child, 0..BLOCK);
            for n in 0..BLOCK {
                assert_eq!(child.write(AT + n * PAGE, 1000 + n), Ok(()));
            }
            assert_eq!(lab.vm.counts().promotions, 2);
            assert!((0..BLOCK).all(|n| child.read(AT + n * PAGE) == Ok(1000 + n)));
        });
        program.load();
        check(program, 0..BLOCK);
        drop(child);
    });
    assert_eq!(counts.cow_copy, BLOCK);
}

#[test]
fn a_part_that_is_given_back_and_touched_again_makes_the_block_whole_again() {
    let counts = with_program(4096, Superpages::Always, |lab, program| {
        map(lab, program, 0..BLOCK, EntryFlags::empty());
        fill(program, 0..BLOCK);
        advise(lab, program, 100..200, Advice::DontNeed);
        assert_eq!(leaves(lab), 0);
        // The frames go back to their run after a grace period.
        for cpu in (0..8).map(|n| n % 2) {
            ksync::host::set_cpu(cpu);
            lab.tick();
        }
        ksync::host::set_cpu(0);
        assert!((100..200).all(|n| program.read(AT + n * PAGE) == Ok(0)));
        fill(program, 100..200);
        check(program, 0..BLOCK);
    });
    assert!(counts.demotions == 1 && counts.promotions >= 1);
}

/// Frames that are reserved are there for whom they are not reserved.
#[test]
fn reserved_frames_serve_others_before_memory_is_out() {
    with_program(8192, Superpages::Always, |lab, program| {
        let blocks = lab.vm.alloc.spare_pages() as u64 / BLOCK - 1;
        map(lab, program, 0..blocks * BLOCK, EntryFlags::empty());
        fill(program, (0..blocks).map(|block| block * BLOCK));
        let kept = reserved(lab);
        assert!(kept > 1000, "{kept}");
        let others = blocks * BLOCK..blocks * BLOCK + 10_000;
        map(lab, program, others.clone(), EntryFlags::empty());
        advise(lab, program, others.clone(), Advice::NoHugePage);
        let written = |n: &u64| program.write(AT + n * PAGE, n + 1);
        let refused = others.clone().find_map(|n| Some((n, written(&n).err()?)));
        let (end, why) = refused.expect("more pages than frames");
        assert_eq!((why, reserved(lab)), (FaultError::NoMemory, 0));
        check(program, others.start..end);
        // All but the few frames that users may not take, and tables.
        assert!(lab.vm.alloc.spare_pages() < 64);
    });
}

#[test]
fn a_space_that_forbids_superpages_gets_none_and_its_copy_neither() {
    for (forbids, expected) in [(true, 0), (false, 3)] {
        let counts = with_program(8192, Superpages::Always, |lab, program| {
            program.space.forbid_superpages(true);
            program.space.forbid_superpages(forbids);
            map(lab, program, 0..BLOCK, EntryFlags::HUGEPAGE);
            fill(program, 0..1);
            assert_eq!(reserved(lab), if forbids { 0 } else { BLOCK as usize - 1 });
            fill(program, 1..BLOCK);
            let child = program.fork().expect("memory");
            assert_eq!(child.space.forbids_superpages(), forbids);
            program.unload();
            child.run(|child| {
                map(lab, child, BLOCK..2 * BLOCK, EntryFlags::HUGEPAGE);
                fill(child, 0..2 * BLOCK);
                check(child, 0..2 * BLOCK);
            });
            program.load();
            check(program, 0..BLOCK);
        });
        assert_eq!(counts.promotions, expected, "{forbids}");
    }
}

/// Threads that touch one block at the same time; the last frame's taker may find that others have not entered theirs.
#[test]
fn threads_fill_a_block_together() {
    for _ in 0..20 {
        let lab = Lab::with_superpages(8192, 4, BY_PAGE);
        let program = Arc::new(Program::new(&lab.vm));
        map(&lab, &program, 0..4 * BLOCK, EntryFlags::empty());
        thread::scope(|scope| {
            for cpu in 0..4 {
                let (lab, program) = (&lab, &program);
                scope.spawn(move || {
                    lab.join(cpu, || {
                        program.run(|program| {
                            fill(program, (0..4 * BLOCK).filter(|n| n % 4 == cpu as u64));
                        });
                    });
                });
            }
        });
        lab.join(0, || program.run(|program| check(program, 0..4 * BLOCK)));
        println!("{} leaves", lab.vm.counts().promotions);
        drop(program);
        lab.finish();
    }
}

/// With `madvise`, which is the kernel's default, a touch of memory that does not ask clears one page and takes one frame, though
/// runs are free; where the memory asks, the same touch clears a run, if leaves are filled at once.
#[test]
fn by_default_a_touch_clears_one_page() {
    let run = if cfg!(feature = "listed") { 1 } else { BLOCK };
    for (asks, cleared) in [(false, 1), (true, run)] {
        let lab = Lab::with_superpages(4096, 2, Tuning::DEFAULT);
        lab.vm.set_superpages(Superpages::Advised);
        lab.play_all();
        let program = Program::new(&lab.vm);
        program.run(|program| {
            map(&lab, program, 0..4 * BLOCK, EntryFlags::empty());
            if asks {
                advise(&lab, program, 0..2 * BLOCK, Advice::HugePage);
            }
            let touched = Arc::<Mutex<Vec<Pfn>>>::default();
            let theirs = touched.clone();
            lab.vm.machine.on_frame(Some(Box::new(move |pfn| {
                theirs.lock().expect("nobody failed").push(pfn);
            })));
            let free = lab.vm.alloc.free_pages();
            assert_eq!(program.write(AT + 7 * PAGE, 1), Ok(()));
            lab.vm.machine.on_frame(None);
            let entry = program
                .space
                .pmap()
                .lookup(&lab.vm, &ksync::pin(), AT + 7 * PAGE);
            let first = entry.expect("it is mapped").pfn();
            // Not those of tables.
            let mut pages = touched.lock().expect("nobody failed").clone();
            pages.retain(|&pfn| lab.vm.pages.get(pfn).state() == State::Anon);
            pages.sort_by_key(|pfn| pfn.0);
            pages.dedup();
            assert_eq!(pages.len() as u64, cleared);
            assert!(pages.contains(&first));
            // Four tables, too, and a chunk of entries where these are listed.
            let taken = (free - lab.vm.alloc.free_pages()) as u64;
            assert!((cleared..cleared + 6).contains(&taken), "{taken} frames");
        });
        drop(program);
        lab.finish();
    }
}
