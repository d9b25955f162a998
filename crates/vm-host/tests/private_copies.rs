//! Truncation removes the private copies that mappings have of a file's pages, however many mappings there are and wherever
//! they lie.
#![cfg(not(any(loom, shuttle, feature = "faulty-rmap")))]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::Duration;

use vm::object::ObjectRef;
use vm::space::{MapArgs, Source, Space};
use vm::{EntryFlags, FaultError, MapProt};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 1 << 40;

struct World {
    lab: Arc<Lab>,
    spaces: Vec<Arc<Space>>,
    file: Arc<ObjectRef>,
}

/// Maps pages of a file.
fn map(lab: &Lab, space: &Space, file: &ObjectRef, at: u64, page: u64, pages: u64) {
    let mut args = MapArgs::anon(pages * PAGE, MapProt::READ | MapProt::WRITE).at(at);
    args.flags = EntryFlags::empty();
    args.source = Source::Object(file, page * PAGE);
    assert_eq!(space.map(&lab.vm, &args), Ok(at));
}

impl World {
    /// Some spaces, each of which runs on a CPU of its own, and a file of so many pages.
    fn new(frames: usize, spaces: usize, pages: u64) -> World {
        let lab = Arc::new(Lab::new(frames, spaces + 1));
        lab.vm.set_fault_around(PAGE);
        let spaces: Vec<_> = (0..spaces).map(|_| Space::new(&lab.vm).unwrap()).collect();
        let file = ObjectRef::new_file(&lab.vm, None).unwrap();
        file.truncate(&lab.vm, pages * PAGE);
        World {
            lab,
            spaces,
            file: Arc::new(file),
        }
    }

    /// Stores to a page of space `n`, which makes a private copy.
    fn copy(&self, n: usize, va: u64) {
        self.lab.run(&self.spaces[n]);
        let store = |word: &std::sync::atomic::AtomicU64| word.store(7, SeqCst);
        let done = self.lab.touch(&self.spaces[n], 0, va, Access::Write, store);
        assert_eq!(done, Ok(()));
        self.lab.stop(&self.spaces[n]);
    }

    fn read(&self, n: usize, va: u64) -> Result<u64, FaultError> {
        self.lab.run(&self.spaces[n]);
        let load = |word: &std::sync::atomic::AtomicU64| word.load(SeqCst);
        let read = self.lab.touch(&self.spaces[n], 0, va, Access::Read, load);
        self.lab.stop(&self.spaces[n]);
        read
    }

    fn is_mapped(&self, n: usize, va: u64) -> bool {
        let found = self.spaces[n]
            .pmap()
            .lookup(&self.lab.vm, &ksync::pin(), va);
        found.is_some()
    }

    /// Flushes and accesses of tables that a truncation to `pages` makes.
    fn truncate(&self, pages: u64) -> (u64, usize) {
        let flushes = || {
            let all = self.lab.vm.pmaps.all_counts();
            all.map(|counts| counts.sent.get() + counts.avoided.get())
                .sum::<u64>()
        };
        let tables = Arc::new(AtomicUsize::new(0));
        let before = flushes();
        let seen = tables.clone();
        self.lab.vm.machine.on_table(Some(Box::new(move |_| {
            seen.fetch_add(1, SeqCst);
        })));
        self.file.truncate(&self.lab.vm, pages * PAGE);
        self.lab.vm.machine.on_table(None);
        (flushes() - before, tables.load(SeqCst))
    }

    fn end(self) {
        for space in self.spaces {
            space.clear(&self.lab.vm);
        }
        let file = Arc::into_inner(self.file).expect("the only reference");
        file.release(&self.lab.vm);
        self.lab.finish();
    }
}

/// The mappings are of two spaces by turns, and of parts of the file that lie far apart: what it takes is in proportion to
/// their number, where it would be its square if each part cost a pass over all of them.
#[test]
fn what_truncation_takes_is_in_proportion_to_the_mappings() {
    const APART: u64 = 100;
    let taken = |mappings: u64| {
        let world = World::new(9_000, 2, mappings * APART);
        let at = |n| AT + 2 * n * PAGE;
        for n in 0..mappings {
            let space = &world.spaces[n as usize % 2];
            map(&world.lab, space, &world.file, at(n), n * APART, 1);
            world.copy(n as usize % 2, at(n));
        }
        let taken = world.truncate(0);
        for n in 0..mappings {
            assert!(!world.is_mapped(n as usize % 2, at(n)), "copy {n} is left");
        }
        assert_eq!(world.read(0, at(0)), Err(FaultError::Bus));
        world.end();
        taken
    };
    let (few, many) = (taken(500), taken(2000));
    assert!(few.0 <= 4 && many.0 <= 10, "flushes: {few:?}, {many:?}");
    assert!(many.1 < 6 * few.1, "looks at tables: {few:?}, {many:?}");
}

/// A long mapping with copies here and there, and what is left of it and its neighbours.
#[test]
fn what_lies_before_the_new_end_stays() {
    let world = World::new(4000, 1, 3000);
    map(&world.lab, &world.spaces[0], &world.file, AT, 0, 1000);
    map(&world.lab, &world.spaces[0], &world.file, 2 * AT, 500, 2500);
    let copies = [0, 1, 63, 64, 65, 400, 499, 500, 501, 563, 564, 998, 999];
    for n in copies {
        world.copy(0, AT + n * PAGE);
        world.copy(0, 2 * AT + 2 * n * PAGE);
    }
    world.truncate(500);
    for n in copies {
        assert_eq!(world.is_mapped(0, AT + n * PAGE), n < 500, "page {n}");
        assert!(!world.is_mapped(0, 2 * AT + 2 * n * PAGE), "page {n}");
    }
    world.end();
}

/// While the copies are removed others may map and unmap the file: no lock of its mappings is held.
#[test]
fn others_map_the_file_while_copies_are_removed() {
    let world = World::new(2000, 2, 100);
    for n in 0..100 {
        map(
            &world.lab,
            &world.spaces[0],
            &world.file,
            AT + 2 * n * PAGE,
            n,
            1,
        );
        world.copy(0, AT + 2 * n * PAGE);
    }
    // The file has no page, so the truncation looks at tables for private copies alone.
    let looks = AtomicUsize::new(0);
    let truncates = std::thread::current().id();
    let (lab, space, file) = (
        world.lab.clone(),
        world.spaces[1].clone(),
        world.file.clone(),
    );
    world.lab.vm.machine.on_table(Some(Box::new(move |_| {
        if std::thread::current().id() != truncates {
            return;
        }
        let n = looks.fetch_add(1, SeqCst);
        if !n.is_multiple_of(97) {
            return;
        }
        let (lab, space, file) = (lab.clone(), space.clone(), file.clone());
        let (done, waits) = channel();
        std::thread::spawn(move || {
            let at = AT + n as u64 * PAGE;
            lab.join(2, || map(&lab, &space, &file, at, 0, 1));
            drop((lab, space, file));
            done.send(()).unwrap();
        });
        let mapped = waits.recv_timeout(Duration::from_secs(20));
        assert!(mapped.is_ok(), "the lock of the file's mappings is held");
    })));
    world.file.truncate(&world.lab.vm, 0);
    world.lab.vm.machine.on_table(None);
    assert!((0..100).all(|n| !world.is_mapped(0, AT + 2 * n * PAGE)));
    world.end();
}
