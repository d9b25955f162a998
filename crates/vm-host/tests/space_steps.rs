//! Steps that operations on a space must take, observed by their results or counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vm::object::ObjectRef;
use vm::space::{COPY_DEPTH, MapArgs, Source, Space};
use vm::{EntryFlags, MapProt, Tuning};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;

fn map(lab: &Lab, space: &Space, pages: u64, shared: bool, source: Source<'_>) {
    let mut args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(AT);
    args.source = source;
    if shared {
        args.flags = EntryFlags::SHARED;
    }
    assert_eq!(space.map(&lab.vm, &args), Ok(AT));
}

fn write(lab: &Lab, space: &Space, page: u64) {
    let touched = lab.touch(space, 0, AT + page * PAGE, Access::Write, |_| ());
    assert_eq!(touched, Ok(()));
}

fn end(lab: &Lab, spaces: &[&Arc<Space>]) {
    lab.stop(spaces[0]);
    spaces.iter().for_each(|space| {
        space.clear(&lab.vm);
    });
    lab.finish();
}

/// A truncation removes a few dozen pages at a time, with one flush for each step.
#[test]
fn no_page_of_a_long_file_is_reached_after_truncation() {
    const PAGES: u64 = 100;
    let lab = Lab::new(512, 1);
    let space = Space::new(&lab.vm).unwrap();
    let file = ObjectRef::new_file(&lab.vm, None).unwrap();
    file.allocate(&lab.vm, 0, PAGES * PAGE, true).unwrap();
    map(&lab, &space, PAGES, true, Source::Object(&file, 0));
    lab.run(&space);
    (0..PAGES).for_each(|page| write(&lab, &space, page));
    file.truncate(&lab.vm, 0);
    for page in 0..PAGES {
        let reached = lab
            .vm
            .machine
            .access(0, AT + page * PAGE, Access::Read, |_| ());
        assert!(reached.is_err(), "page {page} is still reached");
    }
    file.release(&lab.vm);
    end(&lab, &[&space]);
}

/// After a fork the next write fault gives the parent a new front layer, once: later faults find it.
#[test]
fn one_fork_costs_one_layer() {
    let lab = Lab::new(256, 1);
    let space = Space::new(&lab.vm).unwrap();
    map(&lab, &space, 8, false, Source::Anon);
    lab.run(&space);
    write(&lab, &space, 0);
    let child = space.fork(&lab.vm).unwrap();
    let before = lab.vm.counts();
    write(&lab, &space, 0);
    let once = lab.vm.counts();
    assert_eq!(once.shadows, before.shadows + 1);
    (1..8).for_each(|page| write(&lab, &space, page));
    let after = lab.vm.counts();
    assert_eq!(after.shadows, once.shadows);
    assert_eq!(
        after.restarts, once.restarts,
        "a fault found its layer shared again"
    );
    end(&lab, &[&space, &child]);
}

/// Memory that was never accessed has no layer that a fork could share.
#[test]
fn a_fork_of_untouched_memory_costs_no_layer() {
    let lab = Lab::new(256, 1);
    let space = Space::new(&lab.vm).unwrap();
    map(&lab, &space, 8, false, Source::Anon);
    lab.run(&space);
    let child = space.fork(&lab.vm).unwrap();
    let before = lab.vm.counts();
    write(&lab, &space, 0);
    let once = lab.vm.counts();
    (1..8).for_each(|page| write(&lab, &space, page));
    let after = lab.vm.counts();
    assert_eq!(
        (before.shadows, after.restarts),
        (after.shadows, once.restarts)
    );
    end(&lab, &[&space, &child]);
}

/// An operation that takes translations away changes the generation, so that a returning CPU recognises translations
/// that it cached under the pmap's address-space identifier as stale.
#[test]
fn what_takes_translations_away_changes_the_generation() {
    type Act = fn(&Lab, &Space, &ObjectRef);
    let acts: [(&str, Act); 6] = [
        ("munmap", |lab, space, _| {
            space.unmap(&lab.vm, AT, PAGE).unwrap();
        }),
        ("mprotect", |lab, space, _| {
            space.protect(&lab.vm, AT, PAGE, MapProt::READ).unwrap();
        }),
        ("a scan", |lab, _, file| {
            let pfn = file.lookup(&ksync::pin(), 0).unwrap();
            lab.vm.chaos_scan(pfn);
        }),
        ("truncation", |lab, _, file| file.truncate(&lab.vm, 0)),
        ("dropped tables", |lab, space, _| {
            space.drop_tables(&lab.vm);
        }),
        ("exit", |lab, space, _| {
            space.clear(&lab.vm);
        }),
    ];
    for (name, act) in acts {
        let lab = Lab::new(256, 1);
        let space = Space::new(&lab.vm).unwrap();
        let file = ObjectRef::new_file(&lab.vm, None).unwrap();
        file.allocate(&lab.vm, 0, 2 * PAGE, true).unwrap();
        map(&lab, &space, 2, true, Source::Object(&file, 0));
        lab.run(&space);
        write(&lab, &space, 0);
        lab.stop(&space);
        let before = space.pmap().root_info(&lab.vm).generation;
        act(&lab, &space, &file);
        let after = space.pmap().root_info(&lab.vm).generation;
        assert_ne!(before, after, "{name}");
        space.clear(&lab.vm);
        file.release(&lab.vm);
        lab.finish();
    }
}

/// Number of pages in the first layer of [`forked_often`].
const TOUCHED: u64 = 300;
/// A page in that range that it does not have.
const HOLE: u64 = 2;

/// A machine on which a fork brings at most one layer up.
fn one_at_a_time(frames: usize, cpus: usize) -> Lab {
    let tuning = Tuning {
        fork_depth: COPY_DEPTH,
        ..Tuning::DEFAULT
    };
    Lab::tuned(frames, cpus, tuning)
}

/// A space forked so often that the next fork folds its chain, and its children. The fold drops the second oldest
/// layer, of which the second child is the only other user.
fn forked_often(lab: &Lab) -> (Arc<Space>, Vec<Arc<Space>>) {
    lab.vm.set_fault_around(PAGE);
    let space = Space::new(&lab.vm).unwrap();
    map(lab, &space, TOUCHED + 32, false, Source::Anon);
    lab.run(&space);
    (0..TOUCHED)
        .filter(|&page| page != HOLE)
        .for_each(|page| write(lab, &space, page));
    let fork = |n: u64| {
        let child = space.fork(&lab.vm).unwrap();
        // Nothing is shadowed. The first of these layers has one page, the others two, so that it stays among the
        // smallest.
        (0..=n.min(1)).for_each(|k| write(lab, &space, TOUCHED + 2 * n + k));
        child
    };
    let children = (0..COPY_DEPTH as u64).map(fork).collect();
    assert_eq!(lab.vm.counts().collapses, 0);
    (space, children)
}

fn fold(lab: &Lab, space: &Space) {
    let before = lab.vm.counts().collapses;
    space.fork(&lab.vm).unwrap().clear(&lab.vm);
    assert_eq!(lab.vm.counts().collapses, before + 1);
}

fn reads(lab: &Lab, space: &Space, page: u64) {
    let read = lab.touch(space, 0, AT + page * PAGE, Access::Read, |_| ());
    assert_eq!(read, Ok(()));
}

/// The pages of dropped layers belong to other spaces alone, and may be freed with them.
#[test]
fn no_page_of_a_folded_layer_is_reached() {
    let lab = one_at_a_time(2048, 1);
    let (space, children) = forked_often(&lab);
    reads(&lab, &space, TOUCHED);
    fold(&lab, &space);
    for child in children {
        child.clear(&lab.vm);
    }
    reads(&lab, &space, TOUCHED);
    end(&lab, &[&space]);
}

/// Folding brings pages up into layers that relatives share, while their tables map the older pages.
#[test]
fn a_fault_finds_the_page_that_a_relative_brought_up() {
    let lab = one_at_a_time(2048, 1);
    let (space, children) = forked_often(&lab);
    let (child, at) = (&children[5], AT + TOUCHED * PAGE);
    let mapped = || {
        child
            .fault(&lab.vm, at, vm::Access::Read)
            .expect("it is mapped");
        let entry = child.pmap().lookup(&lab.vm, &ksync::pin(), at);
        entry.expect("a fault enters a page").pfn()
    };
    let before = mapped();
    fold(&lab, &space);
    assert_ne!(before, mapped(), "the layer that was there goes unused");
    for child in children {
        child.clear(&lab.vm);
    }
    end(&lab, &[&space]);
}

/// Runs `act` when a fault on CPU 1 is about to read a page table.
fn beside_fault(lab: &Lab, space: &Space, va: u64, access: vm::Access, act: impl FnOnce()) {
    const SEEN: usize = 1;
    const DONE: usize = 2;
    let step = Arc::new(AtomicUsize::new(0));
    let theirs = step.clone();
    lab.vm.machine.on_table(Some(Box::new(move |_| {
        if ksync::pin().cpu() == 1 && theirs.compare_exchange(0, SEEN, SeqCst, SeqCst).is_ok() {
            while theirs.load(SeqCst) != DONE {
                std::thread::yield_now();
            }
        }
    })));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fault = || space.fault(&lab.vm, va, access);
            assert_eq!(lab.join(1, fault), Ok(()));
        });
        while step.load(SeqCst) != SEEN {
            std::thread::yield_now();
        }
        act();
        step.store(DONE, SeqCst);
    });
    lab.vm.machine.on_table(None);
}

/// A fault has inserted a copy in front, and takes it back because its entry has changed.
#[test]
fn a_page_on_its_way_to_the_front_shadows_nothing() {
    let lab = Lab::new(512, 2);
    let space = Space::new(&lab.vm).unwrap();
    map(&lab, &space, 16, false, Source::Anon);
    lab.run(&space);
    let value = |word: &std::sync::atomic::AtomicU64| word.swap(7, SeqCst);
    let swap = |access| lab.touch(&space, 0, AT, access, value);
    assert_eq!(swap(Access::Write), Ok(0));
    let fork = |n| {
        let child = space.fork(&lab.vm).unwrap();
        write(&lab, &space, n);
        child
    };
    let mut spaces: Vec<Arc<Space>> = (1..6).map(fork).collect();
    beside_fault(&lab, &space, AT, vm::Access::Write, || {
        // Other layers are folded where possible; the layer of this page cannot be.
        space.maintain(&lab.vm);
    });
    assert_eq!(swap(Access::Write), Ok(7));
    spaces.insert(0, space);
    end(&lab, &spaces.iter().collect::<Vec<_>>());
}

/// A fault has found a page in a layer, and enters it after the layer was folded away.
#[test]
#[cfg_attr(
    feature = "pv-stock",
    ignore = "the fault has the pmap's lock, and folding waits for it"
)]
fn a_fault_that_saw_a_layer_before_it_was_folded_starts_again() {
    let lab = one_at_a_time(2048, 2);
    let (space, children) = forked_often(&lab);
    // A child that reads an absent page inserts a page of zeroes into the layer that it shares.
    let hole = AT + HOLE * PAGE;
    children[1]
        .fault(&lab.vm, hole, vm::Access::Read)
        .expect("memory");
    beside_fault(&lab, &space, hole, vm::Access::Read, || fold(&lab, &space));
    for child in children {
        child.clear(&lab.vm);
    }
    reads(&lab, &space, HOLE);
    end(&lab, &[&space]);
}
