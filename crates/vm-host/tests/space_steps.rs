//! What operations on a space must do step by step, seen by what they leave behind or count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vm::object::ObjectRef;
use vm::space::{MapArgs, MapFlags, Source, Space};
use vm::{EntryFlags, MapProt};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;

fn map(lab: &Lab, space: &Space, pages: u64, shared: bool, source: Source<'_>) {
    let mut args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE);
    args.addr = AT;
    args.place = MapFlags {
        fixed: true,
        ..MapFlags::default()
    };
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

/// A truncation goes a few dozen pages at a time, and each of its steps tells the CPUs.
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

/// A fork makes the next write fault give the parent a layer of its own, once: later faults find it.
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

/// What nobody has touched yet has no layer that a fork could share.
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

/// Whatever takes translations away changes the generation, by which a CPU that comes back knows that what it has cached
/// under the pmap's address-space identifier is old.
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
            lab.vm.chaos_scan(file.lookup(0).unwrap());
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

/// Pages that [`forked_often`] touches: more than one step of folding looks at.
const TOUCHED: u64 = 300;
/// One among them that it does not.
const HOLE: u64 = 2;

/// A space forked so often that its chain wants folding, which has begun and is beyond [`HOLE`], and its children.
fn forked_often(lab: &Lab) -> (Arc<Space>, Vec<Arc<Space>>) {
    lab.vm.set_fault_around(PAGE);
    let space = Space::new(&lab.vm).unwrap();
    map(lab, &space, TOUCHED + 8, false, Source::Anon);
    lab.run(&space);
    (0..TOUCHED)
        .filter(|&page| page != HOLE)
        .for_each(|page| write(lab, &space, page));
    let fork = |n| {
        let child = space.fork(&lab.vm).unwrap();
        write(lab, &space, TOUCHED + n);
        child
    };
    let children = (0..6).map(fork).collect();
    assert!(space.maintain(&lab.vm), "one step was enough");
    (space, children)
}

fn fold(lab: &Lab, space: &Space) {
    let before = lab.vm.counts().collapses;
    while space.maintain(&lab.vm) {}
    assert_eq!(lab.vm.counts().collapses, before + 1);
}

fn reads(lab: &Lab, space: &Space, page: u64) {
    let read = lab.touch(space, 0, AT + page * PAGE, Access::Read, |_| ());
    assert_eq!(read, Ok(()));
}

/// The pages of folded layers are others' alone, and may go with them.
#[test]
fn no_page_of_a_folded_layer_is_reached() {
    let lab = Lab::new(2048, 1);
    let (space, children) = forked_often(&lab);
    reads(&lab, &space, 0);
    fold(&lab, &space);
    for child in children {
        child.clear(&lab.vm);
    }
    reads(&lab, &space, 0);
    end(&lab, &[&space]);
}

/// A fault has found a page in a layer, and enters it when the layer has been folded away.
#[test]
fn a_fault_that_saw_a_layer_before_it_was_folded_starts_again() {
    let lab = Lab::new(2048, 2);
    let (space, children) = forked_often(&lab);
    // A child that reads where nothing is puts a page of zeroes into the layer that it shares. Folding is beyond it.
    let hole = AT + HOLE * PAGE;
    children[5]
        .fault(&lab.vm, hole, vm::Access::Read)
        .expect("memory");
    const SEEN: usize = 1;
    const FOLDED: usize = 2;
    let step = Arc::new(AtomicUsize::new(0));
    let theirs = step.clone();
    lab.vm.machine.on_table(Some(Box::new(move |_| {
        if ksync::pin().cpu() == 1 && theirs.compare_exchange(0, SEEN, SeqCst, SeqCst).is_ok() {
            while theirs.load(SeqCst) != FOLDED {
                std::thread::yield_now();
            }
        }
    })));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fault = || space.fault(&lab.vm, hole, vm::Access::Read);
            assert_eq!(lab.join(1, fault), Ok(()));
        });
        while step.load(SeqCst) != SEEN {
            std::thread::yield_now();
        }
        fold(&lab, &space);
        step.store(FOLDED, SeqCst);
    });
    lab.vm.machine.on_table(None);
    for child in children {
        child.clear(&lab.vm);
    }
    reads(&lab, &space, HOLE);
    end(&lab, &[&space]);
}
