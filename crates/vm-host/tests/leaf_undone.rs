//! Leaves of 2 MiB that one fault was about to fill when something else came first: what it has taken is free again, and the fault
//! is served, soon.
#![cfg(not(any(loom, shuttle, feature = "listed")))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vm::alloc::Pressure;
use vm::object::{Cache, Frames, ObjectRef};
use vm::page::Flags;
use vm::space::{Advice, Chaos, MapArgs, Source};
use vm::{Access, EntryFlags, FaultError, MapProt, Pfn, Rights, Tuning};
use vm_host::Lab;
use vm_host::program::Program;

const PAGE: u64 = 4096;
/// Pages of a block.
const BLOCK: u64 = 512;
/// The address of the first block.
const AT: u64 = 0x4000_0000;
const RW: MapProt = MapProt::READ.union(MapProt::WRITE);
/// Blocks of the program's memory.
const BLOCKS: u64 = 3;

/// A machine of three CPUs, and a program that has read a page of its last block, which keeps the object and the directories.
fn begin(frames: usize) -> (Lab, Program) {
    let lab = Lab::with_superpages(frames, 3, Tuning::DEFAULT);
    let program = Program::new(&lab.vm);
    let args = MapArgs::anon(BLOCKS * BLOCK * PAGE, RW).at(AT);
    assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
    program.load();
    let kept = AT + ((BLOCKS - 1) * BLOCK + 7) * PAGE;
    assert_eq!(program.read(kept), Ok(0));
    settle(&lab);
    (lab, program)
}

fn end(lab: Lab, program: Program) {
    program.unload();
    drop(program);
    lab.finish();
}

/// Does all deferred work, so that what is free is counted.
fn settle(lab: &Lab) {
    lab.vm.epoch.drain();
    lab.vm.drain_limbo();
    lab.vm.epoch.drain();
}

/// What CPU 1 looks at when CPU 2 acts.
#[derive(Clone, Copy)]
enum When {
    /// The bytes of a page.
    Page,
    /// A table.
    Table,
}

/// CPU 1 writes to page 8. Each time that it looks at something and `wanted` holds, CPU 2 does `act` first. Returns the answer to
/// the write, and how often that was.
fn write_beside(
    lab: &Lab,
    program: &Program,
    when: When,
    wanted: impl Fn() -> bool + Send + Sync + 'static,
    act: impl Fn() + Send + Sync,
) -> (Result<(), FaultError>, usize) {
    const OVER: usize = usize::MAX;
    let asked = Arc::<[AtomicUsize; 2]>::default();
    let inner = asked.clone();
    let hook = Box::new(move |_: Pfn| {
        if ksync::pin().cpu() == 1 && wanted() {
            let turn = inner[0].fetch_add(1, SeqCst) + 1;
            while inner[1].load(SeqCst) < turn {
                std::thread::yield_now();
            }
        }
    });
    match when {
        When::Page => lab.vm.machine.on_frame(Some(hook)),
        When::Table => lab.vm.machine.on_table(Some(hook)),
    }
    let (asked, act) = (&asked, &act);
    let answer = std::thread::scope(|scope| {
        scope.spawn(move || {
            lab.join(2, || {
                let mut turn = 0;
                while turn != OVER {
                    if turn > asked[1].load(SeqCst) {
                        act();
                        asked[1].store(turn, SeqCst);
                    }
                    std::thread::yield_now();
                    turn = asked[0].load(SeqCst);
                }
            });
        });
        let fault = move || {
            let write = || program.space.fault(&lab.vm, AT + 8 * PAGE, Access::Write);
            let answer = lab.join(1, write);
            asked[0].store(OVER, SeqCst);
            answer
        };
        scope.spawn(fault).join().expect("the fault returns")
    });
    lab.vm.machine.on_frame(None);
    lab.vm.machine.on_table(None);
    (answer, asked[1].load(SeqCst))
}

/// Whether it is asked for the `n`-th time.
fn once_at(n: usize) -> impl Fn() -> bool {
    let times = AtomicUsize::new(0);
    move || times.fetch_add(1, SeqCst) + 1 == n
}

#[test]
fn what_is_unmapped_while_its_pages_are_zeroed_costs_no_memory() {
    for (from, len) in [(0, BLOCK), (9, 1), (0, 1)] {
        let (lab, program) = begin(4096);
        let before = lab.vm.alloc.free_pages();
        let unmap = || {
            let done = program.space.unmap(&lab.vm, AT + from * PAGE, len * PAGE);
            assert_eq!(done, Ok(()));
        };
        let (answer, times) = write_beside(&lab, &program, When::Page, once_at(300), unmap);
        assert_eq!(times, 1);
        settle(&lab);
        let used = before - lab.vm.alloc.free_pages();
        if from + len > 8 && from <= 8 {
            assert_eq!((answer, used), (Err(FaultError::NotMapped), 0));
        } else {
            // The page and its table.
            assert_eq!((answer, used), (Ok(()), 2));
        }
        assert_eq!(lab.vm.counts().leaves_filled, 0);
        end(lab, program);
    }
}

/// Another thread of the program gives back other memory of the same mapping, again and again: whenever a block is about to be
/// filled.
#[test]
fn a_fault_is_served_though_its_mapping_changes_all_the_time() {
    let (lab, program) = begin(4096);
    let (vm, before) = (Arc::downgrade(&lab.vm), lab.vm.alloc.free_pages());
    let has_run = move || {
        let free = vm.upgrade().expect("it lives").alloc.free_pages();
        before - free >= BLOCK as usize
    };
    let tries = AtomicUsize::new(0);
    let give = || {
        let n = tries.fetch_add(1, SeqCst);
        assert!(n < 1000, "the fault begins again for ever");
        let at = AT + BLOCK * PAGE;
        let done = program
            .space
            .advise(&lab.vm, at, BLOCK * PAGE, Advice::DontNeed);
        assert_eq!(done, Ok(()));
    };
    let (answer, _) = write_beside(&lab, &program, When::Table, has_run, give);
    assert_eq!(answer, Ok(()));
    let counts = lab.vm.counts();
    assert_eq!((counts.leaves_filled, counts.restarts), (0, 0));
    assert_eq!(program.read(AT + 8 * PAGE), Ok(0));
    end(lab, program);
}

/// A device takes the place of the memory while the pages for its leaf are zeroed: its registers are mapped, and no page of zeroes hides
/// them.
#[test]
fn no_leaf_of_zeroes_takes_the_place_of_a_device() {
    let (lab, program) = begin(4096);
    let frames = Frames {
        index: 1 << 20,
        first: Pfn(1 << 20),
        count: BLOCK as u32,
        cache: Cache::Uncached,
    };
    let device = ObjectRef::new_device(&lab.vm, frames).expect("memory");
    let args = MapArgs {
        flags: EntryFlags::SHARED,
        source: Source::Object(&device, (1 << 20) * PAGE),
        ..MapArgs::anon(BLOCK * PAGE, RW).at(AT)
    };
    let replace = || assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
    let (answer, times) = write_beside(&lab, &program, When::Page, once_at(300), replace);
    assert_eq!((answer, times), (Ok(()), 1));
    assert_eq!(lab.vm.counts().leaves_filled, 0);
    assert_eq!(device.lookup(&ksync::pin(), (1 << 20) + 8), None);
    device.release(&lab.vm);
    end(lab, program);
}

/// One touched page does not make memory short: a leaf is filled where plenty is left after it.
#[test]
fn a_leaf_leaves_plenty_of_memory() {
    let (mut leaves, mut refused) = (0, 0);
    for held in (0..500).step_by(10) {
        let lab = Lab::with_superpages(1100, 1, Tuning::DEFAULT);
        let program = Program::new(&lab.vm);
        let args = MapArgs::anon(BLOCK * PAGE, RW).at(AT);
        assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
        let page = |_| {
            let pfn = lab.vm.alloc.alloc(&ksync::pin(), Rights::User);
            pfn.expect("there is plenty")
        };
        let pages: Vec<Pfn> = (0..held).map(page).collect();
        let plenty = || lab.vm.alloc.pressure() == Pressure::None;
        assert!(plenty());
        program.run(|program| assert_eq!(program.write(AT + 8 * PAGE, 1), Ok(())));
        assert!(plenty(), "{held} pages held");
        let filled = lab.vm.counts().leaves_filled;
        leaves += filled;
        refused += 1 - filled;
        lab.vm.alloc.free_bulk(&ksync::pin(), &pages);
        drop(program);
        lab.finish();
    }
    assert!(leaves > 5 && refused > 0, "{leaves} {refused}");
}

/// What the fault returns for is what the tables say: the whole block is there, writable and dirty, before any store.
#[test]
fn a_served_fault_has_entered_what_it_says() {
    let (lab, program) = begin(4096);
    assert_eq!(
        program.space.fault(&lab.vm, AT + 8 * PAGE, Access::Write),
        Ok(())
    );
    for n in [0, 8, BLOCK - 1] {
        let pte = program
            .space
            .pmap()
            .lookup(&lab.vm, &ksync::pin(), AT + n * PAGE);
        let pte = pte.expect("the block is mapped");
        assert!(pte.is_writable() && pte.is_dirty(), "page {n}: {pte:?}");
        let page = lab.vm.pages.get(pte.pfn());
        assert!(!page.is_hard_busy());
        let all = Flags::VALID | Flags::MAPPED | Flags::WRITEABLE | Flags::DIRTY;
        assert!(page.flags().contains(all), "page {n}: {:?}", page.flags());
    }
    assert_eq!(lab.vm.counts().leaves_filled, 1);
    end(lab, program);
}

/// Each page of the frames of a program that has ended.
#[test]
fn no_page_of_a_leaf_shows_what_was_there_before() {
    let lab = Lab::with_superpages(1100, 1, Tuning::DEFAULT);
    for round in 1..4 {
        let program = Program::new(&lab.vm);
        let args = MapArgs::anon(BLOCK * PAGE, RW).at(AT);
        assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
        program.run(|program| {
            assert_eq!(program.write(AT, round), Ok(()));
            assert_eq!(lab.vm.counts().leaves_filled, round);
            for n in 0..BLOCK {
                let was = if n == 0 { round } else { 0 };
                assert_eq!(program.read(AT + n * PAGE), Ok(was), "page {n}");
                assert_eq!(program.read(AT + n * PAGE + 4088), Ok(0), "page {n}");
                assert_eq!(program.write(AT + n * PAGE, !round), Ok(()));
                assert_eq!(program.write(AT + n * PAGE + 4088, !round), Ok(()));
            }
        });
        drop(program);
        settle(&lab);
    }
    lab.finish();
}

/// The block, or a page of it, is protected when the pages are in their slots: they leave them again.
#[test]
fn an_undone_fill_leaves_no_page_in_the_object() {
    for (from, answer, most) in [(0, Err(FaultError::Denied), 0), (BLOCK - 1, Ok(()), 2)] {
        let (lab, program) = begin(4096);
        let (vm, before) = (Arc::downgrade(&lab.vm), lab.vm.alloc.free_pages());
        let first = AtomicUsize::new(0);
        // A fill looks at tables when the pages are in their slots.
        let wanted = move || {
            let free = vm.upgrade().expect("it lives").alloc.free_pages();
            before - free >= BLOCK as usize && first.fetch_add(1, SeqCst) == 0
        };
        let protect = || {
            let (at, len) = (AT + from * PAGE, (BLOCK - from) * PAGE);
            let done = program.space.protect(&lab.vm, at, len, MapProt::READ);
            assert_eq!(done, Ok(()));
        };
        let done = write_beside(&lab, &program, When::Table, wanted, protect);
        assert_eq!(done, (answer, 1));
        settle(&lab);
        // Perhaps a table, which the fill has made; and the page.
        let used = before - lab.vm.alloc.free_pages();
        assert!(used <= most + 1, "{used} frames are in use");
        assert_eq!(lab.vm.counts().leaves_filled, 0);
        end(lab, program);
    }
}

/// A scan of one page finds the page wherever it is mapped, and no other page goes with it.
#[test]
fn a_scan_of_a_page_of_a_filled_leaf_unmaps_it() {
    let (lab, program) = begin(4096);
    assert_eq!(program.write(AT + 8 * PAGE, 9), Ok(()));
    let look = |n: u64| {
        let pmap = program.space.pmap();
        pmap.lookup(&lab.vm, &ksync::pin(), AT + n * PAGE)
    };
    for n in [8, 0, BLOCK - 1] {
        let pfn = look(n).expect("it is mapped").pfn();
        assert!(matches!(lab.vm.chaos_scan(pfn), Chaos::Removed(1)));
        assert!(look(n).is_none());
        assert!(lab.vm.machine.read(0, AT + n * PAGE).is_err());
    }
    assert_eq!(program.read(AT + 8 * PAGE), Ok(9));
    assert_eq!(lab.vm.counts().demotions, 1);
    end(lab, program);
}
