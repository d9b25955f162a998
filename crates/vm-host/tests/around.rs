//! Pages that fault-around, or a move, maps without a fault of their own: which ones, with which rights, and how they
//! are unmapped.

use std::sync::Arc;

use vm::object::ObjectRef;
use vm::space::{Chaos, MapArgs, RemapArgs, RemapTarget, Source};
use vm::{EntryFlags, FaultError, MapProt, Pfn, Vm};
use vm_host::Sim;
use vm_host::program::{Program, check_frames};

const PAGE: u64 = 4096;
const AT: u64 = 0x7000_0000;
/// The destination of moves: ranges longer than seven pages are under two tables.
const TO: u64 = 0x5000_0000 - 7 * PAGE;

struct Lab {
    vm: Arc<Vm<Sim>>,
    free: usize,
}

impl Lab {
    fn new() -> Lab {
        let vm = Arc::new(Sim::new(2048, 2, 1).into_vm());
        let free = vm.alloc.free_pages();
        Lab { vm, free }
    }

    /// A program that has `pages` pages of anonymous memory, each holding its own number.
    fn program(&self, pages: u64, flags: EntryFlags) -> Program {
        self.program_of(Source::Anon, pages, flags)
    }

    /// The same, with pages of `source`.
    fn program_of(&self, source: Source<'_>, pages: u64, flags: EntryFlags) -> Program {
        let p = Program::new(&self.vm);
        let args = MapArgs {
            flags,
            source,
            ..MapArgs::anon(pages * PAGE, MapProt::all()).at(AT)
        };
        p.space.map(&self.vm, &args).unwrap();
        p.run(|p| (0..pages).for_each(|n| p.write(AT + n * PAGE, n).unwrap()));
        p
    }

    /// Faults on resident pages, and pages mapped by fault-around.
    fn resident(&self) -> (u64, u64) {
        let counts = self.vm.counts();
        (counts.resident, counts.around)
    }
}

impl Lab {
    /// Faults of all kinds.
    fn faults(&self) -> u64 {
        let counts = self.vm.counts();
        counts.resident + counts.upgraded + counts.zero_fill + counts.cow_copy + counts.cow_move
    }

    /// Removes every page from all tables; returns the number of entries.
    fn scan_all(&self) -> usize {
        let removed = |frame| match self.vm.chaos_scan(Pfn(frame)) {
            Chaos::Removed(entries) => entries,
            Chaos::Skipped | Chaos::NoObject => 0,
        };
        (0..4096).map(removed).sum()
    }

    /// Moves the first `pages` pages.
    fn carry(&self, p: &Program, pages: u64, keep_old: bool) {
        let args = RemapArgs {
            old: AT,
            old_len: pages * PAGE,
            new_len: pages * PAGE,
            target: RemapTarget::Fixed(TO),
            keep_old,
        };
        assert_eq!(p.space.remap(&self.vm, &args), Ok(TO));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            check_frames(&self.vm, self.free);
        }
    }
}

fn reads_all(p: &Program, pages: u64, plus: u64) {
    reads_at(p, AT, pages, plus);
}

fn reads_at(p: &Program, at: u64, pages: u64, plus: u64) {
    (0..pages).for_each(|n| assert_eq!(p.read(at + n * PAGE), Ok(n + plus)));
}

#[test]
fn neighbours_in_shared_memory_come_along_writable() {
    let lab = Lab::new();
    let p = lab.program(40, EntryFlags::SHARED);
    let child = p.fork().unwrap();
    child.run(|c| {
        reads_all(c, 40, 0);
        assert_eq!(lab.resident(), (3, 37));
        // Two whole windows were left, and a third that the end of the mapping clips.
        (0..40).for_each(|n| c.write(AT + n * PAGE, n + 100).unwrap());
        let counts = lab.vm.counts();
        assert_eq!((counts.resident, counts.upgraded), (3, 0));
    });
    p.run(|p| reads_all(p, 40, 100));
}

#[test]
fn the_limit_holds_for_shared_memory() {
    let lab = Lab::new();
    let p = lab.program(40, EntryFlags::SHARED);
    for (bytes, faults) in [(PAGE, 40), (4 * PAGE, 10)] {
        lab.vm.set_fault_around(bytes);
        let before = lab.resident();
        p.fork().unwrap().run(|c| reads_all(c, 40, 0));
        let now = lab.resident();
        assert_eq!((now.0 - before.0, now.1 - before.1), (faults, 40 - faults));
    }
}

#[test]
fn a_protection_holds_for_what_comes_along() {
    let lab = Lab::new();
    let p = lab.program(16, EntryFlags::SHARED);
    let child = p.fork().unwrap();
    let protect = |prot| child.space.protect(&lab.vm, AT, 16 * PAGE, prot).unwrap();
    protect(MapProt::READ);
    child.run(|c| {
        reads_all(c, 16, 0);
        let at = AT + 3 * PAGE;
        assert_eq!(c.write(at, 7), Err(FaultError::Denied));
        protect(MapProt::all());
        assert_eq!(c.write(at, 3), Ok(()));
    });
}

#[test]
fn what_forks_have_in_common_comes_alone() {
    let lab = Lab::new();
    let p = lab.program(16, EntryFlags::empty());
    let child = p.fork().unwrap();
    child.run(|c| {
        reads_all(c, 16, 0);
        assert_eq!(lab.resident(), (16, 0));
        (0..16).for_each(|n| c.write(AT + n * PAGE, n + 50).unwrap());
    });
    p.run(|p| reads_all(p, 16, 0));
}

#[test]
fn a_scan_finds_what_came_along() {
    let lab = Lab::new();
    let p = lab.program(16, EntryFlags::SHARED);
    let child = p.fork().unwrap();
    child.run(|c| reads_all(c, 16, 0));
    assert_eq!(lab.resident(), (1, 15));
    assert_eq!(lab.scan_all(), 32, "two programs map each of 16 pages");
    child.run(|c| reads_all(c, 16, 0));
    p.run(|p| reads_all(p, 16, 0));
}

#[test]
fn moved_memory_faults_no_more() {
    for flags in [EntryFlags::empty(), EntryFlags::SHARED] {
        let lab = Lab::new();
        let p = lab.program(40, flags);
        let before = lab.faults();
        p.run(|p| {
            lab.carry(p, 40, false);
            reads_at(p, TO, 40, 0);
            (0..40).for_each(|n| p.write(TO + n * PAGE, n + 60).unwrap());
            assert_eq!(lab.faults(), before);
            assert_eq!(p.read(AT), Err(FaultError::NotMapped));
            assert_eq!(lab.scan_all(), 40, "each page is mapped once");
            reads_at(p, TO, 40, 60);
        });
    }
}

#[test]
fn what_was_not_mapped_does_not_move() {
    let lab = Lab::new();
    let p = lab.program(40, EntryFlags::empty());
    p.run(|p| {
        p.space.drop_tables(&lab.vm);
        (3..5).for_each(|n| assert_eq!(p.read(AT + n * PAGE), Ok(n)));
        lab.carry(p, 40, false);
        assert_eq!(lab.scan_all(), 2);
        reads_at(p, TO, 40, 0);
    });
}

#[test]
fn moved_layers_stay_apart() {
    let lab = Lab::new();
    let p = lab.program(12, EntryFlags::empty());
    let child = p.fork().unwrap();
    p.run(|p| {
        // Every other page is copied; the others stay shared, and read-only.
        (0..6).for_each(|n| p.write(AT + 2 * n * PAGE, 2 * n + 100).unwrap());
        (0..6).for_each(|n| assert_eq!(p.read(AT + (2 * n + 1) * PAGE), Ok(2 * n + 1)));
        let before = lab.faults();
        lab.carry(p, 12, false);
        for n in 0..12 {
            let own = if n % 2 == 0 { 100 } else { 0 };
            assert_eq!(p.read(TO + n * PAGE), Ok(n + own));
        }
        assert_eq!(lab.faults(), before);
        (0..12).for_each(|n| p.write(TO + n * PAGE, n + 200).unwrap());
        reads_at(p, TO, 12, 200);
    });
    child.run(|c| reads_all(c, 12, 0));
}

#[test]
fn a_range_that_stays_is_empty() {
    let lab = Lab::new();
    let p = lab.program(12, EntryFlags::empty());
    let before = lab.faults();
    p.run(|p| {
        lab.carry(p, 12, true);
        reads_at(p, TO, 12, 0);
        assert_eq!(lab.faults(), before);
        (0..12).for_each(|n| assert_eq!(p.read(AT + n * PAGE), Ok(0)));
        reads_at(p, TO, 12, 0);
    });
}

#[test]
fn moved_files_show_their_end() {
    for flags in [EntryFlags::empty(), EntryFlags::SHARED] {
        let lab = Lab::new();
        let file = ObjectRef::new_file(&lab.vm, None).unwrap();
        file.truncate(&lab.vm, 12 * PAGE);
        let p = lab.program_of(Source::Object(&file, 0), 12, flags);
        let before = lab.faults();
        p.run(|p| {
            lab.carry(p, 12, false);
            reads_at(p, TO, 12, 0);
            assert_eq!(lab.faults(), before);
            file.truncate(&lab.vm, 5 * PAGE);
            reads_at(p, TO, 5, 0);
            (5..12).for_each(|n| assert_eq!(p.read(TO + n * PAGE), Err(FaultError::Bus)));
        });
        drop(p);
        file.release(&lab.vm);
    }
}
