//! What operations on a space must do step by step, seen by what they leave behind or count.

use std::sync::Arc;

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
