//! Reports of what is resident in a space: how many pages, of which kind, and how many mappings share them.
#![cfg(not(any(loom, shuttle, feature = "listed")))]

use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget, Resident, ResidentKinds, Source, WHOLE};
use vm::{EntryFlags, MapProt, SharedSuperpages, Superpages};
use vm_host::Lab;
use vm_host::program::Program;

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
const TO: u64 = 0x5000_0000;
const BLOCK: u64 = 512;
const RW: MapProt = MapProt::READ.union(MapProt::WRITE);

/// Runs `act` on a machine, and checks at the end that all frames have come back.
fn on(frames: usize, act: impl FnOnce(&Lab)) {
    let lab = Lab::new(frames, 2);
    lab.play_all();
    act(&lab);
    lab.finish();
}

fn map(lab: &Lab, program: &Program, pages: u64, flags: EntryFlags) {
    let mut args = MapArgs::anon(pages * PAGE, RW).at(AT);
    args.flags = flags;
    assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
}

fn map_file(lab: &Lab, program: &Program, file: &ObjectRef, pages: u64, flags: EntryFlags) {
    let mut args = MapArgs::anon(pages * PAGE, RW).at(AT);
    args.flags = flags | EntryFlags::FILE;
    args.source = Source::Object(file, 0);
    assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
}

fn write(program: &Program, pages: impl Iterator<Item = u64>) {
    program.run(|p| pages.for_each(|n| p.write(AT + n * PAGE, n + 1).expect("memory")));
}

fn read(program: &Program, pages: impl Iterator<Item = u64>) {
    program.run(|p| pages.for_each(|n| assert!(p.read(AT + n * PAGE).is_ok())));
}

/// What is resident of `pages` pages.
fn resident(lab: &Lab, program: &Program, pages: u64, flags: EntryFlags) -> Resident {
    let range = (AT, AT + pages * PAGE);
    program
        .space
        .resident_in(&lab.vm, range, flags, &mut || true)
}

/// Pages mapped once and more often, and the share.
fn sharing(found: &Resident) -> (u64, u64, u64) {
    let (clean, dirty) = (found.clean, found.dirty);
    assert_eq!(
        found.pages(),
        clean.private + clean.shared + dirty.private + dirty.shared
    );
    (
        clean.private + dirty.private,
        clean.shared + dirty.shared,
        found.share(),
    )
}

const NONE: EntryFlags = EntryFlags::empty();

#[test]
fn pages_of_one_program_are_its_own() {
    on(512, |lab| {
        let program = Program::new(&lab.vm);
        map(lab, &program, 40, NONE);
        assert_eq!(resident(lab, &program, 40, NONE), Resident::default());
        write(&program, [0, 1, 20].into_iter());
        read(&program, [39].into_iter());
        let found = resident(lab, &program, 40, NONE);
        // A page that was made for a read can be written to as well.
        assert_eq!((found.dirty.private, found.clean.private), (4, 0));
        assert_eq!(sharing(&found), (4, 0, 4 * WHOLE));
        assert_eq!(
            (found.anon, found.anon_share, found.referenced),
            (4, 4 * WHOLE, 4)
        );
        assert_eq!((found.anon_large, found.other_large), (0, 0));
        // Only the pages of the range count.
        assert_eq!(resident(lab, &program, 20, NONE).pages(), 2);
        let kinds = program.space.resident_kinds(&lab.vm);
        assert_eq!(kinds, ResidentKinds { anon: 4, shared: 0 });
    });
}

#[test]
fn a_report_ends_when_its_reader_does() {
    on(512, |lab| {
        let program = Program::new(&lab.vm);
        map(lab, &program, 64, NONE);
        write(&program, 0..64);
        let mut left = 2;
        let found = program
            .space
            .resident_in(&lab.vm, (AT, AT + 64 * PAGE), NONE, &mut || {
                left -= 1;
                left >= 0
            });
        assert_eq!(found.pages(), 32);
    });
}

#[test]
fn after_a_fork_pages_are_shared_while_both_map_them() {
    on(1024, |lab| {
        let program = Program::new(&lab.vm);
        map(lab, &program, 8, NONE);
        write(&program, 0..8);
        let child = program.fork().expect("memory");
        // Nothing is mapped in the child yet.
        assert_eq!(
            sharing(&resident(lab, &program, 8, NONE)),
            (8, 0, 8 * WHOLE)
        );
        assert_eq!(resident(lab, &child, 8, NONE).pages(), 0);
        read(&child, 2..5);
        assert_eq!(
            sharing(&resident(lab, &program, 8, NONE)),
            (5, 3, 5 * WHOLE + 3 * WHOLE / 2)
        );
        assert_eq!(
            sharing(&resident(lab, &child, 8, NONE)),
            (0, 3, 3 * WHOLE / 2)
        );
        let third = child.fork().expect("memory");
        read(&third, 4..5);
        assert_eq!(
            sharing(&resident(lab, &program, 8, NONE)),
            (5, 3, 5 * WHOLE + WHOLE + WHOLE / 3)
        );
        // A copy is the writer's own, and leaves the page to the others.
        write(&third, 4..5);
        assert_eq!(sharing(&resident(lab, &third, 8, NONE)), (1, 0, WHOLE));
        assert_eq!(
            sharing(&resident(lab, &child, 8, NONE)),
            (0, 3, 3 * WHOLE / 2)
        );
        drop(third);
        drop(child);
        let found = resident(lab, &program, 8, NONE);
        assert_eq!(sharing(&found), (8, 0, 8 * WHOLE));
        assert_eq!(found.anon, 8);
    });
}

#[test]
fn memory_that_is_mapped_twice_is_shared() {
    on(512, |lab| {
        let program = Program::new(&lab.vm);
        map(lab, &program, 4, EntryFlags::SHARED);
        write(&program, 0..4);
        let found = resident(lab, &program, 4, EntryFlags::SHARED);
        assert_eq!((sharing(&found), found.anon), ((4, 0, 4 * WHOLE), 0));
        let again = RemapArgs {
            old: AT,
            old_len: 0,
            new_len: 4 * PAGE,
            target: RemapTarget::Fixed(TO),
            keep_old: false,
        };
        assert_eq!(program.space.remap(&lab.vm, &again), Ok(TO));
        program.run(|p| assert!((0..2).all(|n| p.read(TO + n * PAGE) == Ok(n + 1))));
        assert_eq!(
            sharing(&resident(lab, &program, 4, EntryFlags::SHARED)),
            (0, 4, 2 * WHOLE)
        );
        assert_eq!(
            program.space.resident_kinds(&lab.vm),
            ResidentKinds { anon: 0, shared: 8 }
        );
    });
}

#[test]
fn parts_of_a_mapping_count_once() {
    on(1024, |lab| {
        let program = Program::new(&lab.vm);
        map(lab, &program, 40, NONE);
        write(&program, 0..40);
        // More entries than a fork remembers layers of, all of one layer, with others in between.
        for n in (1..40).step_by(2) {
            let done = program
                .space
                .protect(&lab.vm, AT + n * PAGE, PAGE, MapProt::READ);
            assert_eq!(done, Ok(()));
        }
        let child = program.fork().expect("memory");
        read(&child, 0..40);
        for n in 0..40 {
            let range = (AT + n * PAGE, AT + (n + 1) * PAGE);
            let found = child.space.resident_in(&lab.vm, range, NONE, &mut || true);
            assert_eq!(sharing(&found), (0, 1, WHOLE / 2), "{n}");
        }
    });
}

#[test]
fn private_copies_of_a_file_are_anonymous_and_its_pages_are_not() {
    on(1024, |lab| {
        let file = ObjectRef::new_file(&lab.vm, None).expect("memory");
        file.truncate(&lab.vm, 8 * PAGE);
        let programs = [Program::new(&lab.vm), Program::new(&lab.vm)];
        for program in &programs {
            map_file(lab, program, &file, 8, NONE);
            read(program, 0..8);
        }
        let [first, second] = &programs;
        let found = resident(lab, first, 8, NONE);
        assert_eq!((sharing(&found), found.anon), ((0, 8, 4 * WHOLE), 0));
        write(first, 0..3);
        let found = resident(lab, first, 8, NONE);
        assert_eq!(sharing(&found), (3, 5, 3 * WHOLE + 5 * WHOLE / 2));
        assert_eq!(
            (found.anon, found.anon_share, found.dirty.private),
            (3, 3 * WHOLE, 3)
        );
        assert_eq!(
            first.space.resident_kinds(&lab.vm),
            ResidentKinds { anon: 3, shared: 5 }
        );
        assert_eq!(
            sharing(&resident(lab, second, 8, NONE)),
            (3, 5, 3 * WHOLE + 5 * WHOLE / 2)
        );
        drop(programs);
        file.release(&lab.vm);
    });
}

/// Beyond a number of attachments what is said is an estimate, and takes no longer.
#[test]
fn pages_of_many_mappings_have_small_shares() {
    on(8192, |lab| {
        let program = Program::new(&lab.vm);
        map(lab, &program, 4, NONE);
        write(&program, 0..4);
        let children: Vec<_> = (0..99).map(|_| program.fork().expect("memory")).collect();
        let found = resident(lab, &program, 4, NONE);
        // Others may map what the report has not looked at.
        assert_eq!(
            (found.dirty.private, found.dirty.shared),
            (4, 0),
            "a made page has one mapping"
        );
        children.iter().for_each(|child| read(child, 0..2));
        let found = resident(lab, &program, 4, NONE);
        assert_eq!((found.dirty.private, found.dirty.shared), (2, 2));
        let share = found.share() - 2 * WHOLE;
        assert!(
            (2 * WHOLE / 101..=2 * WHOLE / 98).contains(&share),
            "{share}"
        );
        drop(children);
        assert_eq!(
            sharing(&resident(lab, &program, 4, NONE)),
            (4, 0, 4 * WHOLE)
        );
    });
}

#[test]
fn leaves_count_as_such() {
    let lab = Lab::with_superpages(8192, 2, vm::Tuning::DEFAULT);
    lab.play_all();
    let program = Program::new(&lab.vm);
    map(&lab, &program, BLOCK + 8, NONE);
    write(&program, 0..BLOCK + 8);
    let found = resident(&lab, &program, BLOCK + 8, NONE);
    assert_eq!(sharing(&found), (BLOCK + 8, 0, (BLOCK + 8) * WHOLE));
    assert_eq!(
        (found.anon, found.anon_large, found.other_large),
        (BLOCK + 8, BLOCK, 0)
    );
    let kinds = program.space.resident_kinds(&lab.vm);
    assert_eq!(
        kinds,
        ResidentKinds {
            anon: BLOCK + 8,
            shared: 0
        }
    );

    let done = program.space.advise(&lab.vm, AT, PAGE, Advice::DontNeed);
    assert_eq!(done, Ok(()));
    let found = resident(&lab, &program, BLOCK + 8, NONE);
    assert_eq!((found.pages(), found.anon_large), (BLOCK + 7, 0));
    drop(program);
    lab.finish();
}

/// A leaf that is divided while its pages are counted is counted whole, or not at all.
#[test]
fn a_leaf_counts_whole() {
    for step in [0, 1, 20] {
        let lab = Lab::with_superpages(8192, 2, vm::Tuning::DEFAULT);
        lab.play_all();
        let program = Program::new(&lab.vm);
        map(&lab, &program, BLOCK, NONE);
        write(&program, 0..BLOCK);
        let mut steps = 0;
        let mut divide = || {
            if steps == step {
                let last = AT + (BLOCK - 1) * PAGE;
                let done = program.space.advise(&lab.vm, last, PAGE, Advice::DontNeed);
                assert_eq!(done, Ok(()));
            }
            steps += 1;
            true
        };
        let range = (AT, AT + BLOCK * PAGE);
        let found = program.space.resident_in(&lab.vm, range, NONE, &mut divide);
        let whole = if step == 0 { 0 } else { BLOCK };
        assert_eq!((found.pages(), found.anon_large), (BLOCK - 1, whole));
        drop(program);
        lab.finish();
    }
}

#[test]
fn entries_say_whether_they_may_have_leaves() {
    let lab = Lab::with_superpages(8192, 2, vm::Tuning::DEFAULT);
    lab.play_all();
    let program = Program::new(&lab.vm);
    map(&lab, &program, BLOCK + 8, NONE);
    let entry = program.space.entry_at(AT).expect("mapped");
    let may = |change: &dyn Fn(&mut vm::map::EntryArgs)| {
        let mut entry = entry.clone();
        change(&mut entry.args);
        program.space.may_get_superpages(&lab.vm, &entry)
    };
    assert!(may(&|_| {}));
    // Eight pages behind the block are not enough for another one.
    assert!(!may(&|args| args.start += PAGE));
    assert!(!may(&|args| args.end = args.start + (BLOCK - 1) * PAGE));
    assert!(!may(&|args| args.prot |= MapProt::EXEC));
    for flag in [
        EntryFlags::FILE,
        EntryFlags::DEVICE,
        EntryFlags::GROWSDOWN,
        EntryFlags::NOHUGEPAGE,
    ] {
        assert!(!may(&|args| args.flags |= flag), "{flag:?}");
    }
    let shared = EntryFlags::SHARED | EntryFlags::FILE;
    for (setting, alone, asked) in [
        (SharedSuperpages::Never, false, false),
        (SharedSuperpages::Advised, false, true),
        (SharedSuperpages::WithinSize, true, true),
        (SharedSuperpages::Always, true, true),
    ] {
        lab.vm.set_shmem_superpages(setting);
        assert_eq!(may(&|args| args.flags |= shared), alone);
        let hint = shared | EntryFlags::HUGEPAGE;
        assert_eq!(may(&|args| args.flags |= hint), asked);
    }
    lab.vm.set_superpages(Superpages::Advised);
    assert!(!may(&|_| {}));
    assert!(may(&|args| args.flags |= EntryFlags::HUGEPAGE));
    program.space.forbid_superpages(true);
    assert!(!may(&|args| args.flags |= EntryFlags::HUGEPAGE));
    drop(program);
    lab.finish();
}

#[test]
fn a_mapping_whose_pages_lie_elsewhere_in_their_blocks_gets_no_leaves() {
    let lab = Lab::with_superpages(8192, 2, vm::Tuning::DEFAULT);
    lab.play_all();
    lab.vm.set_shmem_superpages(SharedSuperpages::Always);
    let file = ObjectRef::new_file(&lab.vm, None).expect("memory");
    file.truncate(&lab.vm, 4 * BLOCK * PAGE);
    for (from, may) in [(0, true), (1, false), (BLOCK, true), (BLOCK + 511, false)] {
        let program = Program::new(&lab.vm);
        let mut args = MapArgs::anon(2 * BLOCK * PAGE, RW).at(AT);
        args.flags = EntryFlags::SHARED | EntryFlags::FILE;
        args.source = Source::Object(&file, from * PAGE);
        assert_eq!(program.space.map(&lab.vm, &args), Ok(AT));
        let entry = program.space.entry_at(AT).expect("mapped");
        assert_eq!(program.space.may_get_superpages(&lab.vm, &entry), may);
        // That is what faults do.
        program.run(|p| (0..2 * BLOCK).for_each(|n| p.write(AT + n * PAGE, n).expect("memory")));
        let found = resident(&lab, &program, 2 * BLOCK, NONE);
        assert_eq!(found.other_large != 0, may, "from page {from}");
        file.punch(&lab.vm, 0, 4 * BLOCK * PAGE);
    }
    drop(file);
    lab.finish();
}

/// A look at the pages goes over entries, holes and kinds, in steps that end where an entry does, and says of each page what smaps counts.
#[test]
fn each_mapped_page_is_shown_once() {
    on(1024, |lab| {
        let program = Program::new(&lab.vm);
        let file = ObjectRef::new_shared(&lab.vm, 20 * PAGE).expect("memory");
        map(lab, &program, 40, NONE);
        let mut args = MapArgs::anon(20 * PAGE, RW).at(AT + 40 * PAGE);
        args.flags = EntryFlags::SHARED;
        args.source = Source::Object(&file, 0);
        assert_eq!(program.space.map(&lab.vm, &args), Ok(AT + 40 * PAGE));
        let touched = [0, 1, 17, 39, 40, 41, 59];
        write(&program, touched.into_iter());
        let shown = |program: &Program| {
            let (mut at, mut all) = (AT - PAGE, Vec::new());
            let end = AT + 70 * PAGE;
            while at < end {
                let next = program
                    .space
                    .look_at_pages(&lab.vm, (at, end), &mut |page| {
                        assert!(page.va >= at && page.pfn != vm::Pfn::NONE);
                        all.push(((page.va - AT) / PAGE, page.shared, page.sole));
                    });
                assert!(next > at);
                assert!(all.last().is_none_or(|last| AT + last.0 * PAGE < next));
                at = next;
            }
            all
        };
        let wanted = touched.map(|n| (n, n >= 40, true));
        assert_eq!(shown(&program), wanted);
        let child = program.fork().expect("memory");
        // A fault maps the pages around it, too, of those that are there; here there are none.
        read(&child, [0, 59].into_iter());
        assert_eq!(shown(&child), [(0, false, false), (59, true, false)]);
        write(&child, [0].into_iter());
        assert_eq!(shown(&child), [(0, false, true), (59, true, false)]);
        drop((child, program));
        file.release(&lab.vm);
    });
}
