//! Leaves of 2 MiB that one fault fills: which faults do, what they undo, and what runs beside them.
//!
//! Not where entries are listed by page: there leaves come by promotion alone.
#![cfg(not(any(loom, shuttle, feature = "listed")))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, Source};
use vm::stats::VmTotals;
use vm::{EntryFlags, FaultError, MapProt, Prot, Pte, Superpages, Tuning};
use vm_host::heap::{self, Heap};
use vm_host::program::Program;
use vm_host::runs::{PAGES, Runs, stopped};
use vm_host::{Lab, heap::refuse_none};

#[global_allocator]
static HEAP: Heap = Heap;

const PAGE: u64 = 4096;
/// Pages of a block.
const BLOCK: u64 = 512;
/// The address of the first block.
const AT: u64 = 0x4000_0000;
const RW: MapProt = MapProt::READ.union(MapProt::WRITE);

/// Runs `act` as a program with two blocks of private memory, and checks at the end that all frames have come back.
fn with_program(frames: usize, act: impl FnOnce(&Lab, &Program)) -> VmTotals {
    let lab = Lab::with_superpages(frames, 2, Tuning::DEFAULT);
    lab.play_all();
    let program = Program::new(&lab.vm);
    let args = MapArgs::anon(2 * BLOCK * PAGE, RW).at(AT);
    assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
    program.run(|program| act(&lab, program));
    drop(program);
    let counts = lab.vm.counts();
    lab.finish();
    assert_eq!(counts.leaves(), 0, "every leaf has gone");
    counts
}

fn write(program: &Program, n: u64) {
    assert_eq!(program.write(AT + n * PAGE, n + 1), Ok(()));
}

fn read(program: &Program, n: u64) -> u64 {
    program.read(AT + n * PAGE).expect("it is mapped")
}

/// Maps shared memory of so many pages at [`AT`], by a mapping of perhaps more.
fn map_shared(lab: &Lab, program: &Program, has: u64, maps: u64) {
    let object = ObjectRef::new_shared(&lab.vm, has * PAGE).expect("memory");
    let args = MapArgs {
        flags: EntryFlags::SHARED,
        source: Source::Object(&object, 0),
        ..MapArgs::anon(maps * PAGE, RW).at(AT)
    };
    assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
    object.release(&lab.vm);
}

/// The number of leaves now, and of resident pages.
fn state(lab: &Lab, program: &Program) -> (u64, usize) {
    let resident = program.space.pmap().resident(&lab.vm);
    (lab.vm.counts().leaves(), resident)
}

#[test]
fn one_write_fills_a_block_with_zeroes() {
    let counts = with_program(4096, |lab, program| {
        write(program, 7);
        assert_eq!(state(lab, program), (1, PAGES));
        assert!((0..BLOCK).all(|n| read(program, n) == if n == 7 { 8 } else { 0 }));
        // Three directories: the table has gone.
        assert_eq!(program.space.pmap().tables(), 3);
        (0..BLOCK).for_each(|n| write(program, n));
        write(program, 2 * BLOCK - 1);
        assert_eq!(state(lab, program), (2, 2 * PAGES));
        assert!((0..BLOCK).all(|n| read(program, n) == n + 1));
    });
    assert_eq!(counts.zero_fill, 2);
    assert_eq!((counts.leaves_filled, counts.leaves_removed), (2, 2));
    assert_eq!((counts.promotions, counts.demotions), (0, 0));
}

#[test]
fn what_was_filled_is_divided_and_given_back_as_anything_else() {
    with_program(4096, |lab, program| {
        (0..2 * BLOCK).for_each(|n| write(program, n));
        assert_eq!(state(lab, program), (2, 2 * PAGES));
        let unmapped = program.space.unmap(&lab.vm, AT + 9 * PAGE, PAGE);
        assert_eq!((unmapped, lab.vm.counts().leaves()), (Ok(()), 1));
        let give = || {
            let (space, at) = (&program.space, AT + BLOCK * PAGE);
            let done = space.advise(&lab.vm, at, BLOCK * PAGE, Advice::DontNeed);
            assert_eq!(done, Ok(()));
            assert_eq!(state(lab, program), (0, PAGES - 1));
        };
        give();
        // The block still has its run.
        write(program, BLOCK + 4);
        assert_eq!(state(lab, program), (0, PAGES));
        give();
        // The block is empty again, and as soon as its frames are free it has no run.
        lab.vm.epoch.offline(1);
        lab.vm.epoch.drain();
        lab.vm.drain_limbo();
        lab.vm.epoch.online(1);
        write(program, BLOCK + 4);
        assert_eq!(state(lab, program), (1, 2 * PAGES - 1));
        assert_eq!(read(program, BLOCK + 5), 0);
    });
}

/// The first pages of a run go, and the others stay.
#[test]
fn a_part_of_a_run_goes_alone() {
    with_program(4096, |lab, program| {
        (0..BLOCK).for_each(|n| write(program, n));
        let unmapped = program.space.unmap(&lab.vm, AT, 100 * PAGE);
        assert_eq!((unmapped, state(lab, program)), (Ok(()), (0, PAGES - 100)));
        assert!((100..BLOCK).all(|n| read(program, n) == n + 1));
        let census = lab.vm.alloc.check().expect("consistent records");
        assert!(census.allocated >= PAGES - 100);
    });
}

#[test]
fn a_read_and_a_block_with_a_page_fill_one_page() {
    with_program(4096, |lab, program| {
        assert_eq!(read(program, 3), 0);
        assert_eq!(state(lab, program), (0, 1));
        // A block with a page is filled page by page, and promoted at last.
        write(program, 80);
        assert_eq!(state(lab, program), (0, 2));
        (0..BLOCK).for_each(|n| write(program, n));
        assert_eq!(state(lab, program), (1, PAGES));
        assert_eq!(lab.vm.counts().promotions, 1);
    });
}

#[test]
fn a_child_gets_its_pages_one_by_one() {
    with_program(8192, |lab, program| {
        write(program, 3);
        let child = program.fork().expect("memory");
        program.unload();
        child.run(|child| {
            write(child, 4);
            assert_eq!((read(child, 3), read(child, 4)), (4, 5));
        });
        program.load();
        // Nobody else has a page of the second block, but the child might get one.
        write(program, BLOCK);
        assert_eq!((read(program, 4), read(program, BLOCK)), (0, BLOCK + 1));
        assert_eq!(lab.vm.counts().leaves_filled, 1);
        drop(child);
    });
}

/// What each case maps, whether pages are executable, and how many frames there are.
#[test]
fn only_what_may_be_a_leaf_is_filled() {
    let exec = |lab: &Lab, program: &Program| {
        let args = MapArgs::anon(2 * BLOCK * PAGE, MapProt::all()).at(AT);
        assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
    };
    let part = |lab: &Lab, program: &Program| {
        let unmapped = program.space.unmap(&lab.vm, AT, PAGE);
        assert_eq!(unmapped, Ok(()));
    };
    let short = |lab: &Lab, program: &Program| {
        map_shared(lab, program, 300, 2 * BLOCK);
    };
    let unasked = |lab: &Lab, _: &Program| lab.vm.set_superpages(Superpages::Advised);
    type Case<'a> = (&'a str, usize, &'a dyn Fn(&Lab, &Program));
    let cases: [Case<'_>; 5] = [
        ("code", 4096, &exec),
        ("a part of a block", 4096, &part),
        ("an object that ends inside", 4096, &short),
        ("a mapping without advice", 4096, &unasked),
        ("a machine without a run", 400, &|_, _| ()),
    ];
    for (name, frames, prepare) in cases {
        let counts = with_program(frames, |lab, program| {
            prepare(lab, program);
            write(program, 8);
            assert_eq!(state(lab, program), (0, 1), "{name}");
        });
        assert_eq!(counts.leaves_filled, 0, "{name}");
    }
}

#[test]
fn shared_memory_is_filled_for_all() {
    with_program(4096, |lab, program| {
        map_shared(lab, program, BLOCK, BLOCK);
        write(program, 8);
        assert_eq!(state(lab, program), (1, PAGES));
        let child = program.fork().expect("memory");
        program.unload();
        child.run(|child| {
            assert_eq!(read(child, 8), 9);
            write(child, 9);
        });
        program.load();
        assert_eq!(read(program, 9), 10);
        drop(child);
    });
}

/// Any frame, and any node of the index, may be refused: the fault is served by a page, or fails for lack of memory.
#[test]
fn a_fill_without_memory_leaves_nothing_behind() {
    for n in 1..20 {
        with_program(4096, |lab, program| {
            lab.vm.alloc.set_injector(n, 1);
            let _served_or_not = program.write(AT + 20 * PAGE, 1);
            lab.vm.alloc.set_injector(0, 1);
            assert_eq!(program.write(AT + 20 * PAGE, 2), Ok(()));
            assert_eq!((read(program, 19), read(program, 20)), (0, 2));
        });
    }
    let mut fails = 0;
    for n in 1..20 {
        with_program(4096, |lab, program| {
            let file = ObjectRef::new_file(&lab.vm, None).expect("memory");
            // Makes a node of an index.
            heap::learn(|| {
                file.allocate(&lab.vm, 9 * PAGE, PAGE, false)
                    .expect("memory")
            });
            file.truncate(&lab.vm, 0);
            file.release(&lab.vm);
            heap::refuse_once(n);
            let served = program.write(AT + 20 * PAGE, 1);
            fails += u32::from(refuse_none());
            assert!(matches!(served, Ok(()) | Err(FaultError::NoMemory)));
            assert_eq!(program.write(AT + 20 * PAGE, 2), Ok(()));
            assert_eq!((read(program, 19), read(program, 20)), (0, 2));
        });
    }
    assert!(fails > 4, "{fails}");
}

/// A page comes into the block while it is filled: from then on the block is filled page by page, and the page stays.
#[test]
fn a_page_that_comes_first_stays() {
    use std::cell::{Cell, RefCell};
    type Other = (Arc<vm::Vm<vm_host::Sim>>, Arc<vm::Space>);
    thread_local! {
        static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) };
        static LEFT: Cell<u32> = const { Cell::new(0) };
    }
    /// Reads page 500, at one of the requests.
    fn reads() {
        LEFT.set(LEFT.get().wrapping_sub(1));
        if LEFT.get() == 0 {
            let other = OTHER.with_borrow(Clone::clone).expect("a space");
            let served = other.1.fault(&other.0, AT + 500 * PAGE, vm::Access::Read);
            assert_eq!(served, Ok(()));
        }
    }
    let mut undone = 0;
    for n in 1..16 {
        let counts = with_program(4096, |lab, program| {
            // Makes the object.
            write(program, BLOCK);
            OTHER.set(Some((lab.vm.clone(), program.space.clone())));
            LEFT.set(n);
            heap::with_each(reads, || write(program, 8));
            OTHER.set(None);
            assert_eq!((read(program, 8), read(program, 500)), (9, 0));
            (0..BLOCK).for_each(|n| write(program, n));
            assert!((0..BLOCK).all(|n| read(program, n) == n + 1));
        });
        undone += u32::from(counts.leaves_filled == 1);
    }
    assert!(undone > 2, "{undone}");
}

/// An operation that runs while the fill looks at a table, and whether its access to the block fails then.
type Beside = (&'static str, fn(&Lab, &Program), Option<FaultError>);

const BESIDE: [Beside; 4] = [
    (
        "munmap",
        |lab, program| {
            let done = program.space.unmap(&lab.vm, AT, BLOCK * PAGE);
            assert_eq!(done, Ok(()));
        },
        Some(FaultError::NotMapped),
    ),
    (
        "mprotect",
        |lab, program| {
            let read = MapProt::READ;
            let done = program.space.protect(&lab.vm, AT, BLOCK * PAGE, read);
            assert_eq!(done, Ok(()));
        },
        Some(FaultError::Denied),
    ),
    (
        "another fault",
        |lab, program| {
            let done = program
                .space
                .fault(&lab.vm, AT + 9 * PAGE, vm::Access::Write);
            assert_eq!(done, Ok(()));
        },
        None,
    ),
    (
        "dropping",
        |lab, program| {
            program.space.drop_tables(&lab.vm);
        },
        None,
    ),
];

#[test]
fn operations_beside_a_fill_at_each_look_at_a_table() {
    for (name, act, fails) in BESIDE {
        for look in 1.. {
            let lab = Lab::with_superpages(4096, 3, Tuning::DEFAULT);
            let program = Program::new(&lab.vm);
            map_shared(&lab, &program, BLOCK, BLOCK);
            program.load();
            let fill = || {
                lab.join(1, || {
                    let _served_or_not =
                        program
                            .space
                            .fault(&lab.vm, AT + 8 * PAGE, vm::Access::Write);
                });
            };
            let patience = Duration::from_millis(4);
            let machine = &lab.vm.machine;
            let reached = stopped(machine, (look, None), patience, fill, || {
                lab.join(2, || act(&lab, &program));
            });
            if reached {
                for n in [8, 9, 500] {
                    let stored = program.write(AT + n * PAGE, 1);
                    assert_eq!(stored.err(), fails, "{name}, look {look}, page {n}");
                }
            }
            program.unload();
            drop(program);
            lab.finish();
            if !reached {
                assert!(look > 3, "{name}: {look} looks");
                break;
            }
        }
    }
}

/// A machine with a run to fill, where other memory keeps the root.
fn empty_place() -> Runs {
    let lab = Runs::new(3, 2);
    lab.enter(0, Pte::user(lab.frame(1, 0), Prot::READ));
    lab.run_on(0);
    lab
}

fn end(lab: Runs) {
    lab.stop_on(0);
    lab.finish();
}

fn reads(lab: &Runs, n: usize) -> bool {
    lab.read(0, n).is_ok()
}

#[test]
fn a_leaf_comes_where_nothing_is_alone() {
    let lab = empty_place();
    assert!(!lab.enter_large(0, Prot::WRITE, || false));
    assert!(!reads(&lab, 7));
    lab.enter(Runs::va(0, 3), Pte::user(lab.frame(1, 3), Prot::READ));
    assert!(!lab.enter_large(0, Prot::WRITE, || true));
    lab.remove(0, 0..PAGES);
    assert!(lab.enter_large(0, Prot::WRITE, || true));
    assert!(lab.is_large(0) && reads(&lab, 7));
    assert!(!lab.enter_large(0, Prot::WRITE, || true));
    end(lab);
}

/// A CPU that has cached the way to the empty table gets the leaf without a fault.
#[test]
fn no_way_leads_to_the_table_that_made_place() {
    let lab = empty_place();
    assert!(!lab.enter_large(0, Prot::WRITE, || false));
    lab.vm.machine.speculate(0, Runs::va(0, 7));
    assert!(lab.enter_large(0, Prot::WRITE, || true));
    assert!(reads(&lab, 7));
    end(lab);
}

/// As long as a CPU may use the frame that was there before.
#[test]
fn no_leaf_comes_before_a_flush_that_is_due() {
    let lab = Arc::new(empty_place());
    lab.enter(Runs::va(0, 3), Pte::user(lab.frame(1, 3), Prot::READ));
    assert!(reads(&lab, 3));
    let (inner, ran) = (lab.clone(), Arc::<AtomicBool>::default());
    let has_run = ran.clone();
    lab.vm.machine.on_flush(Some(Arc::new(move || {
        if !has_run.swap(true, SeqCst) {
            assert!(!inner.enter_large(0, Prot::WRITE, || true));
        }
    })));
    lab.remove(0, 3..4);
    assert!(ran.load(SeqCst));
    lab.vm.machine.on_flush(None);
    assert!(lab.enter_large(0, Prot::WRITE, || true));
    end(Arc::into_inner(lab).expect("the hook is gone"));
}

/// An operation has changed the map's entry, then takes the pages away: none is reached afterwards, wherever either stands.
#[test]
fn a_removal_at_each_look_at_a_table() {
    for (fill_first, table) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut looks = 0;
        for look in 1.. {
            let lab = empty_place();
            if table {
                // Leaves an empty table behind.
                let (va, leaf) = (Runs::va(0, 3), Pte::user(lab.frame(0, 3), Prot::READ));
                let refused =
                    lab.pmap
                        .enter(&lab.vm, &ksync::pin(), &lab.ticket(), va, leaf, || false);
                assert!(refused.is_err());
            }
            let changed = AtomicBool::new(false);
            let fill = || {
                lab.enter_large(0, Prot::WRITE, || !changed.load(SeqCst));
            };
            let remove = || {
                lab.vm.machine.speculate(0, Runs::va(0, 7));
                changed.store(true, SeqCst);
                std::sync::atomic::fence(SeqCst);
                lab.remove(0, 0..PAGES);
                assert!(!reads(&lab, 7));
            };
            let patience = Duration::from_millis(4);
            let reached = if fill_first {
                lab.stopped((look, None), patience, fill, remove)
            } else {
                lab.stopped((look, None), patience, remove, fill)
            };
            // At a look too many only one of them has run.
            let gone = (0..PAGES).all(|n| !reads(&lab, n));
            end(lab);
            if !reached {
                break;
            }
            assert!(gone, "look {look}");
            looks = look;
        }
        assert!(looks > 2, "{looks}");
    }
}

/// The fill has asked whether the entry is as it was, and holds the lock of the table at which the removal waits.
#[test]
fn a_removal_that_waits_at_the_empty_table_removes_the_leaf() {
    let lab = empty_place();
    let (va, leaf) = (Runs::va(0, 3), Pte::user(lab.frame(0, 3), Prot::READ));
    let refused = lab
        .pmap
        .enter(&lab.vm, &ksync::pin(), &lab.ticket(), va, leaf, || false);
    assert!(refused.is_err());
    let table = lab.directory_entry(0).pfn();
    let (asked, waits) = (AtomicBool::new(false), Arc::<AtomicUsize>::default());
    let seen = waits.clone();
    lab.vm.machine.on_table(Some(Box::new(move |pfn| {
        if pfn == table && ksync::pin().cpu() == 2 {
            seen.fetch_add(1, SeqCst);
        }
    })));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lab.play(1, || {
                let check = || {
                    asked.store(true, SeqCst);
                    while waits.load(SeqCst) == 0 {
                        std::thread::yield_now();
                    }
                    // Until it waits for the lock.
                    std::thread::sleep(Duration::from_millis(5));
                    true
                };
                assert!(lab.enter_large(0, Prot::WRITE, check));
            });
        });
        scope.spawn(|| {
            lab.play(2, || {
                while !asked.load(SeqCst) {
                    std::thread::yield_now();
                }
                lab.remove(0, 0..PAGES);
                assert!(!reads(&lab, 7));
            });
        });
    });
    lab.vm.machine.on_table(None);
    assert!(!lab.is_large(0) && (0..PAGES).all(|n| !reads(&lab, n)));
    end(lab);
}
