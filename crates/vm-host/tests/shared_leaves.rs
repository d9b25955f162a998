//! Leaves of 2 MiB of files and of shared memory: which mappings get them, how all spaces share them, and how they go.
//!
//! That one write fills a leaf is not so where entries are listed by page: there leaves come by promotion alone.
#![cfg(not(any(loom, shuttle)))]

use vm::object::{ObjectRef, Quota};
use vm::space::{Advice, MapArgs, Source};
use vm::stats::VmTotals;
use vm::{EntryFlags, FaultError, MapProt, SharedSuperpages, Superpages, Tuning};
use vm_host::Lab;
use vm_host::program::Program;
#[cfg(not(feature = "listed"))]
use vm_host::runs::stopped;

const PAGE: u64 = 4096;
/// Pages of a block.
const BLOCK: u64 = 512;
/// The address of the first block.
const AT: u64 = 0x4000_0000;
const RW: MapProt = MapProt::READ.union(MapProt::WRITE);
/// Blocks are filled page by page.
const BY_PAGE: Tuning = Tuning {
    fill_leaves: false,
    ..Tuning::DEFAULT
};
/// Whether one fault fills a leaf.
const FILLS: bool = cfg!(not(feature = "listed"));

/// A machine with a file of two blocks.
struct World {
    lab: Lab,
    file: ObjectRef,
    quota: &'static Quota,
}

impl World {
    fn new(tuning: Tuning, limit: u64) -> World {
        let world = World::of(Lab::with_superpages(8192, 2, tuning), limit);
        world.lab.play_all();
        world
    }

    /// On a machine whose CPUs threads play.
    fn of(lab: Lab, limit: u64) -> World {
        let quota: &'static Quota = Box::leak(Box::new(Quota::new(lab.cpus(), limit)));
        let file = ObjectRef::new_file(&lab.vm, Some(quota)).expect("memory");
        file.truncate(&lab.vm, 2 * BLOCK * PAGE);
        World { lab, file, quota }
    }

    /// A program that maps the file, from a page of it on, at [`AT`].
    fn program(&self, from: u64, flags: EntryFlags) -> Program {
        let program = Program::new(&self.lab.vm);
        self.map(&program, from, flags);
        program
    }

    fn map(&self, program: &Program, from: u64, flags: EntryFlags) {
        let args = MapArgs {
            flags,
            source: Source::Object(&self.file, from * PAGE),
            ..MapArgs::anon((2 * BLOCK - from) * PAGE, RW).at(AT)
        };
        assert_eq!(program.space.map(&self.lab.vm, &args), Ok(AT));
    }

    fn advise(&self, program: &Program, advice: Advice) {
        let (vm, len) = (&self.lab.vm, 2 * BLOCK * PAGE);
        assert_eq!(program.space.advise(vm, AT, len, advice), Ok(()));
    }

    /// Number of leaves now, all of them of shared memory; after a look whether these are all.
    fn leaves(&self) -> u64 {
        let counts = self.lab.vm.counts();
        assert_eq!(counts.leaves(), counts.shared_leaves());
        counts.leaves()
    }

    /// The first byte of a page, as read(2) returns it.
    fn read(&self, n: u64) -> u8 {
        let mut byte = None;
        self.file.read(&self.lab.vm, n * PAGE, &mut |piece| {
            byte = Some(piece[0]);
            0
        });
        byte.expect("within the size")
    }

    /// Writes a byte to each page, as write(2).
    fn write(&self, mut pages: std::ops::Range<u64>) {
        let all = pages.all(|n| {
            let copy = &mut |piece: &mut [u8]| {
                piece[0] = n as u8;
                1
            };
            self.file.write(&self.lab.vm, n * PAGE, 1, copy) == Ok(1)
        });
        assert!(all, "memory");
    }

    /// Ends the file, and checks that all frames have come back.
    fn finish(self) -> VmTotals {
        self.file.release(&self.lab.vm);
        assert_eq!(self.quota.used(), 0);
        let counts = self.lab.vm.counts();
        assert_eq!((counts.leaves(), counts.shared_leaves()), (0, 0));
        self.lab.finish();
        counts
    }
}

fn store(program: &Program, mut pages: impl Iterator<Item = u64>) {
    assert!(pages.all(|n| program.write(AT + n * PAGE, n & 0xff) == Ok(())));
}

fn check(program: &Program, mut pages: impl Iterator<Item = u64>) {
    assert!(pages.all(|n| program.read(AT + n * PAGE) == Ok(n & 0xff)));
}

/// One write fills a block of a file; another program, which reads it, gets a leaf of the same frames; and a truncation takes
/// both away.
#[test]
fn programs_share_a_block_of_a_file_by_a_leaf_each() {
    let world = World::new(Tuning::DEFAULT, 4096);
    let [one, two] = [(); 2].map(|()| world.program(0, EntryFlags::SHARED));
    // Stores within some milliseconds of the last one, or of the machine's start, count as one with it.
    std::thread::sleep(std::time::Duration::from_millis(9));
    one.run(|one| {
        store(one, 7..8);
        assert!(world.file.take_stored().is_some());
        if FILLS {
            assert_eq!((world.file.resident(), world.quota.used()), (512, 512));
            assert_eq!(world.leaves(), 1);
            assert_eq!(world.lab.vm.counts().zero_fill, 1);
        }
        store(one, 0..BLOCK);
        assert_eq!(world.leaves(), 1);
    });
    assert!((0..BLOCK).all(|n| world.read(n) == n as u8));
    two.run(|two| check(two, 0..BLOCK));
    assert_eq!(world.leaves(), 2, "the last page that was read asks");
    // What one writes the other sees: the leaf of the reader is divided by its own write.
    two.run(|two| assert_eq!(two.write(AT + 9 * PAGE, 99), Ok(())));
    one.run(|one| assert_eq!(one.read(AT + 9 * PAGE), Ok(99)));
    assert_eq!(world.leaves(), 1);
    world.file.truncate(&world.lab.vm, 100 * PAGE);
    assert_eq!((world.leaves(), world.quota.used()), (0, 100));
    for program in [&one, &two] {
        program.run(|program| {
            check(program, 0..9);
            let beyond = program.read(AT + 100 * PAGE);
            assert_eq!(beyond, Err(FaultError::Bus));
        });
    }
    drop((one, two));
    world.finish();
}

/// A page that is punched out of a leaf reads as zeroes, and the others stay.
#[test]
fn a_hole_divides_the_leaf() {
    let world = World::new(Tuning::DEFAULT, 4096);
    let program = world.program(0, EntryFlags::SHARED);
    program.run(|program| {
        store(program, 0..BLOCK);
        assert_eq!(world.leaves(), 1);
        world.file.punch(&world.lab.vm, 33 * PAGE, PAGE);
        assert_eq!((world.leaves(), world.quota.used()), (0, BLOCK - 1));
        assert_eq!(program.read(AT + 33 * PAGE), Ok(0));
        check(program, (0..BLOCK).filter(|&n| n != 33));
    });
    drop(program);
    world.finish();
}

/// The file is cut, punched or read while a fault fills a block of it, at each look at a table: what was cut off is not mapped, and
/// each page of the file is charged once.
#[cfg(not(feature = "listed"))]
#[test]
fn operations_on_the_file_beside_a_fill_at_each_look_at_a_table() {
    type Act = fn(&World);
    let acts: [(&str, Act, Option<FaultError>); 3] = [
        (
            "truncation",
            |world| world.file.truncate(&world.lab.vm, 8 * PAGE),
            Some(FaultError::Bus),
        ),
        (
            "punching",
            |world| world.file.punch(&world.lab.vm, 0, 2 * BLOCK * PAGE),
            None,
        ),
        (
            "reading",
            |world| assert!((0..BLOCK).all(|n| world.read(n) == 0)),
            None,
        ),
    ];
    for (name, act, fails) in acts {
        for look in 1.. {
            let world = World::of(Lab::with_superpages(4096, 3, Tuning::DEFAULT), 4096);
            let program = world.program(0, EntryFlags::SHARED);
            program.load();
            let (lab, space) = (&world.lab, &program.space);
            let fill = || {
                lab.join(1, || {
                    let _served_or_not = space.fault(&lab.vm, AT + 8 * PAGE, vm::Access::Write);
                });
            };
            let patience = std::time::Duration::from_millis(4);
            let reached = stopped(&lab.vm.machine, (look, None), patience, fill, || {
                lab.join(2, || act(&world));
            });
            assert_eq!(world.quota.used(), world.file.resident());
            for n in [8, 9, 500] {
                let stored = program.write(AT + n * PAGE, 1);
                let expected = fails.filter(|_| reached);
                assert_eq!(stored.err(), expected, "{name}, look {look}, page {n}");
            }
            program.unload();
            drop(program);
            world.finish();
            if !reached {
                assert!(look > 3, "{name}: {look} looks");
                break;
            }
        }
    }
}

/// The settings, with advice and without, for the last block of a file that ends in it, and for the first.
#[test]
fn shared_memory_gets_leaves_as_its_own_setting_says() {
    use SharedSuperpages::{Advised, Always, Deny, Force, Never, WithinSize};
    let (wanted, refused) = (Some(Advice::HugePage), Some(Advice::NoHugePage));
    for (which, advice, first, last) in [
        (Never, wanted, 0, 0),
        (Deny, wanted, 0, 0),
        (Advised, None, 0, 0),
        (Advised, refused, 0, 0),
        (Advised, wanted, 1, 1),
        (WithinSize, None, 1, 0),
        (WithinSize, refused, 0, 0),
        (WithinSize, wanted, 1, 1),
        (Always, None, 1, 1),
        (Always, refused, 0, 0),
        (Force, None, 1, 1),
    ] {
        let world = World::new(BY_PAGE, 4096);
        let size = (2 * BLOCK - 1) * PAGE + 1;
        world.file.truncate(&world.lab.vm, size - PAGE);
        world.lab.vm.set_superpages(Superpages::Never);
        world.lab.vm.set_shmem_superpages(which);
        let program = world.program(0, EntryFlags::SHARED);
        advice.inspect(|&advice| world.advise(&program, advice));
        program.run(|program| {
            store(program, 0..BLOCK);
            assert_eq!(world.leaves(), first, "{which:?} {advice:?}");
            store(program, BLOCK..2 * BLOCK - 1);
            // The page is there for the leaf as soon as the file is long enough.
            world.file.truncate(&world.lab.vm, size);
            store(program, 2 * BLOCK - 1..2 * BLOCK);
            let both = first + last.max(u64::from(which == WithinSize && first == 1));
            assert!(world.leaves() <= both && world.leaves() >= first + last);
            check(program, 0..2 * BLOCK);
        });
        drop(program);
        world.finish();
    }
}

/// A file that is not long enough for a leaf has no run reserved, for a store as for a write(2), and a longer one has.
#[test]
fn nothing_is_reserved_for_a_block_beyond_the_end() {
    for (size, runs) in [(BLOCK - 1, 0), (BLOCK, 1)] {
        for by_store in [true, false] {
            let world = World::new(BY_PAGE, 4096);
            world.file.truncate(&world.lab.vm, size * PAGE);
            world
                .lab
                .vm
                .set_shmem_superpages(SharedSuperpages::WithinSize);
            let program = world.program(0, EntryFlags::SHARED);
            if by_store {
                program.run(|program| store(program, 0..1));
            } else {
                world.write(0..1);
            }
            let reserved = world
                .lab
                .vm
                .alloc
                .check()
                .expect("consistent lists")
                .reserved;
            assert_eq!(reserved != 0, runs != 0, "{size} pages, {by_store}");
            drop(program);
            world.finish();
        }
    }
}

/// Only a mapping whose addresses agree with the file's blocks, and that is shared, gets leaves.
#[test]
fn what_is_not_in_order_or_private_gets_no_leaf_of_the_file() {
    for (from, flags, expected) in [
        (0, EntryFlags::SHARED, 1),
        (8, EntryFlags::SHARED, 0),
        (0, EntryFlags::empty(), 0),
    ] {
        let world = World::new(Tuning::DEFAULT, 4096);
        world.lab.vm.set_superpages(Superpages::Never);
        let program = world.program(from, flags);
        program.run(|program| {
            store(program, 0..BLOCK);
            check(program, 0..BLOCK);
            assert_eq!(world.leaves(), expected);
        });
        drop(program);
        world.finish();
    }
}

/// A private mapping that is only read has the file's pages one by one, whatever is wanted for shared and for private memory.
#[test]
fn what_reads_a_file_privately_gets_no_leaf_of_it() {
    let world = World::new(Tuning::DEFAULT, 4096);
    world.lab.vm.set_superpages(Superpages::Always);
    world.lab.vm.set_shmem_superpages(SharedSuperpages::Never);
    world.write(0..BLOCK);
    let program = Program::new(&world.lab.vm);
    let args = MapArgs {
        source: Source::Object(&world.file, 0),
        ..MapArgs::anon(2 * BLOCK * PAGE, MapProt::READ).at(AT)
    };
    assert_eq!(program.space.map(&world.lab.vm, &args), Ok(AT));
    program.run(|program| {
        for _ in 0..2 {
            check(program, 0..BLOCK);
        }
        assert_eq!(world.leaves(), 0);
        // Its holes neither.
        assert!((BLOCK..2 * BLOCK).all(|n| program.read(AT + n * PAGE) == Ok(0)));
        assert_eq!(world.leaves(), 0);
    });
    drop(program);
    world.finish();
}

/// A file system that has no room for a leaf has room for a page; where it has none for that, the fault fails.
#[test]
fn a_full_file_system_gives_single_pages() {
    let world = World::new(Tuning::DEFAULT, BLOCK - 1);
    let program = world.program(0, EntryFlags::SHARED);
    program.run(|program| {
        store(program, 0..BLOCK - 1);
        assert_eq!(world.leaves(), 0);
        assert_eq!(world.quota.used(), BLOCK - 1);
        assert_eq!(program.write(AT, 0), Ok(()));
        let full = program.write(AT + (BLOCK - 1) * PAGE, 1);
        assert_eq!(full, Err(FaultError::Bus));
    });
    drop(program);
    world.finish();
}

/// What write(2) puts into a file has its frames in order where the setting asks for it without advice, so a mapping that reads it
/// gets a leaf.
#[test]
fn a_file_that_was_written_is_mapped_by_leaves() {
    use SharedSuperpages::{Advised, Always, WithinSize};
    for (which, expected) in [(Always, 1), (WithinSize, 1), (Advised, 0)] {
        let world = World::new(Tuning::DEFAULT, 4096);
        world.lab.vm.set_shmem_superpages(which);
        world.write(0..BLOCK);
        let program = world.program(0, EntryFlags::SHARED);
        world.advise(&program, Advice::HugePage);
        program.run(|program| check(program, 0..BLOCK));
        assert_eq!(world.leaves(), expected, "{which:?}");
        drop(program);
        world.finish();
    }
}

/// A change of rights of a part divides a leaf; one that makes them alike again, or the writes that follow, make it whole.
#[test]
fn a_leaf_comes_back_when_its_rights_agree_again() {
    let world = World::new(Tuning::DEFAULT, 4096);
    let shared = world.program(0, EntryFlags::SHARED);
    let private = Program::new(&world.lab.vm);
    let args = MapArgs::anon(2 * BLOCK * PAGE, RW).at(AT);
    assert_eq!(private.space.map(&world.lab.vm, &args), Ok(AT));
    for program in [&shared, &private] {
        program.run(|program| {
            let leaves = || world.lab.vm.counts().leaves();
            let protect = |pages: std::ops::Range<u64>, prot| {
                let (at, len) = (AT + pages.start * PAGE, (pages.end - pages.start) * PAGE);
                assert_eq!(program.space.protect(&world.lab.vm, at, len, prot), Ok(()));
            };
            let before = leaves();
            store(program, 0..BLOCK);
            assert_eq!(leaves(), before + 1);
            protect(100..200, MapProt::READ);
            assert_eq!(leaves(), before, "divided");
            protect(0..100, MapProt::READ);
            assert_eq!(leaves(), before, "they do not agree yet");
            protect(200..BLOCK, MapProt::READ);
            assert_eq!(leaves(), before + 1, "they agree");
            check(program, 0..BLOCK);
            protect(0..BLOCK, RW);
            store(program, (0..BLOCK).rev());
            assert_eq!(leaves(), before + 1, "the last write asks");
            check(program, 0..BLOCK);
        });
    }
    drop((shared, private));
    world.finish();
}

/// After a fork and the end of the child, the writes of the parent make its entries writable one by one, or bring the pages to the
/// front, and the last asks. In vain if a page was copied meanwhile, for its frame is of another run.
#[test]
fn a_parent_gets_its_leaf_back() {
    for (meanwhile, expected) in [(0..0, 1), (5..6, 0)] {
        let world = World::new(Tuning::DEFAULT, 4096);
        let parent = Program::new(&world.lab.vm);
        let args = MapArgs::anon(BLOCK * PAGE, RW).at(AT);
        assert_eq!(parent.space.map(&world.lab.vm, &args), Ok(AT));
        let counts = || world.lab.vm.counts();
        parent.run(|parent| {
            store(parent, 0..BLOCK);
            let before = counts();
            let child = parent.fork().expect("memory");
            store(parent, meanwhile);
            drop(child);
            store(parent, 0..BLOCK);
            check(parent, 0..BLOCK);
            assert_eq!(counts().promotions - before.promotions, expected);
        });
        drop(parent);
        world.finish();
    }
}
