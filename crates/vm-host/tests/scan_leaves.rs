//! Scans of a page that leaves of 2 MiB map, one in each of many spaces: where the reverse map finds them by the hub, whose
//! locks are spin locks, none is divided under one.
#![cfg(not(any(loom, shuttle, feature = "listed", feature = "faulty-rmap")))]

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vm::object::ObjectRef;
use vm::page::State;
use vm::space::{MapArgs, Source, Space};
use vm::stats::VmTotals;
use vm::{EntryFlags, MapProt, Pfn, Tuning};
use vm_host::program::Program;
use vm_host::{Lab, arena};

const PAGE: u64 = 4096;
const BLOCK: u64 = 512;
const AT: u64 = 0x4000_0000;
const ELSEWHERE: u64 = 1 << 40;

/// Programs that share a block of a file, each by a leaf.
struct World {
    lab: Arc<Lab>,
    file: Arc<ObjectRef>,
    programs: Vec<Program>,
}

fn map(lab: &Lab, space: &Space, file: &ObjectRef, at: u64) {
    let mut args = MapArgs::anon(BLOCK * PAGE, MapProt::READ | MapProt::WRITE).at(at);
    args.flags = EntryFlags::SHARED;
    args.source = Source::Object(file, 0);
    assert_eq!(space.map(&lab.vm, &args), Ok(at));
}

impl World {
    fn new(programs: u64) -> World {
        let lab = Arc::new(Lab::with_superpages(4096, 2, Tuning::DEFAULT));
        let file = Arc::new(ObjectRef::new_file(&lab.vm, None).expect("memory"));
        file.truncate(&lab.vm, BLOCK * PAGE);
        let program = |n| {
            let program = Program::new(&lab.vm);
            map(&lab, &program.space, &file, AT);
            program.run(|program| {
                // The first store fills the block; the others' leaves are made of tables, once these are full.
                let at = |page| AT + page * PAGE;
                assert!((0..BLOCK).all(|page| match n {
                    0 => program.write(at(page), page).is_ok(),
                    _ => program.read(at(page)) == Ok(page),
                }));
            });
            program
        };
        let programs: Vec<_> = (0..programs).map(program).collect();
        assert_eq!(lab.vm.counts().leaves(), programs.len() as u64);
        World {
            lab,
            file,
            programs,
        }
    }

    /// Punches a page out; returns the looks at tables, and the counts of the VM afterwards.
    fn punch(&self, page: u64) -> (usize, VmTotals) {
        let looks = Arc::new(AtomicUsize::new(0));
        let count = looks.clone();
        self.lab.vm.machine.on_table(Some(Box::new(move |_| {
            count.fetch_add(1, SeqCst);
        })));
        self.file.punch(&self.lab.vm, page * PAGE, PAGE);
        self.lab.vm.machine.on_table(None);
        (looks.load(SeqCst), self.lab.vm.counts())
    }

    /// Checks what each program reads, and that all memory comes back.
    fn end(self, hole: u64) {
        for program in &self.programs {
            program.run(|program| {
                for n in 0..self.programs.len() as u64 {
                    let wanted = if n == hole { 0 } else { n };
                    assert_eq!(program.read(AT + n * PAGE), Ok(wanted), "page {n}");
                }
            });
        }
        drop(self.programs);
        let file = Arc::into_inner(self.file).expect("the only reference");
        file.release(&self.lab.vm);
        self.lab.finish();
    }
}

/// Each leaf is divided once, and the passes over all of them are few.
#[test]
fn what_a_scan_takes_is_in_proportion_to_the_leaves() {
    let taken = |programs| {
        let world = World::new(programs);
        let (looks, counts) = world.punch(3);
        assert_eq!((counts.demotions, counts.leaves_removed), (programs, 0));
        world.end(3);
        looks
    };
    let (few, many) = (taken(20), taken(80));
    assert!(many < 5 * few, "{few}, {many} looks");
}

/// Where there is no memory for tables the leaves are removed.
#[test]
fn without_memory_for_tables_all_leaves_go() {
    for programs in [1, 3, 30, 100] {
        let world = World::new(programs);
        world.lab.vm.alloc.set_injector(1, 0);
        let (_, counts) = world.punch(3);
        world.lab.vm.alloc.set_injector(0, 0);
        assert_eq!((counts.demotions, counts.leaves_removed), (0, programs));
        world.end(3);
    }
}

/// A program that makes its leaf again as often as a scan divides it does not hold the scan up for ever.
#[test]
fn a_leaf_that_always_comes_back_is_divided_in_the_end() {
    let world = World::new(2);
    let [pmap, other] = [0, 1].map(|n| world.programs[n].space.pmap().clone());
    let [root, other] = [&pmap, &other].map(|pmap| pmap.root().expect("a root"));
    let (lab, made) = (world.lab.clone(), Arc::new(AtomicUsize::new(0)));
    let (count, armed) = (made.clone(), AtomicBool::new(false));
    world.lab.vm.machine.on_table(Some(Box::new(move |table| {
        // A walk begins at the root, with no table locked. One promotion for each pass over both programs.
        armed.fetch_or(table == other, SeqCst);
        if table == root && count.load(SeqCst) < 1000 && armed.swap(false, SeqCst) {
            let promoted = pmap.promote_as(&lab.vm, &ksync::pin(), AT, true);
            count.fetch_add(usize::from(promoted), SeqCst);
        }
    })));
    let demotions = world.lab.vm.counts().demotions;
    world.file.punch(&world.lab.vm, 3 * PAGE, PAGE);
    world.lab.vm.machine.on_table(None);
    let demotions = world.lab.vm.counts().demotions - demotions;
    let made = made.load(SeqCst);
    assert!((10..100).contains(&made), "{made} leaves");
    assert!((10..100).contains(&demotions), "{demotions} divisions");
    world.end(3);
}

/// While leaves are divided others may map the file: no lock of its mappings is held.
#[test]
fn others_map_the_file_while_leaves_are_divided() {
    let world = World::new(12);
    let other = Space::new(&world.lab.vm).unwrap();
    let is_table = |n: &usize| world.lab.vm.pages.get(Pfn(*n as u32)).state() == State::Table;
    let frames = arena::FIRST.index()..world.lab.vm.pages.len();
    let tables: HashSet<usize> = frames.filter(is_table).collect();
    let (tables, probes) = (Mutex::new(tables), Arc::new(AtomicUsize::new(0)));
    let (scans, made) = (std::thread::current().id(), probes.clone());
    let (lab, file, space) = (world.lab.clone(), world.file.clone(), other.clone());
    world.lab.vm.machine.on_table(Some(Box::new(move |table| {
        if std::thread::current().id() != scans {
            return;
        }
        // Only a division makes tables.
        if !tables.lock().unwrap().insert(table.index()) {
            return;
        }
        let at = ELSEWHERE + made.fetch_add(1, SeqCst) as u64 * BLOCK * PAGE;
        let (lab, file, space) = (lab.clone(), file.clone(), space.clone());
        let (done, waits) = channel();
        std::thread::spawn(move || {
            lab.join(1, || map(&lab, &space, &file, at));
            drop((lab, file, space));
            done.send(()).unwrap();
        });
        let mapped = waits.recv_timeout(Duration::from_secs(20));
        assert!(mapped.is_ok(), "the lock of the file's mappings is held");
    })));
    world.file.punch(&world.lab.vm, 3 * PAGE, PAGE);
    world.lab.vm.machine.on_table(None);
    assert_eq!(probes.load(SeqCst), 12, "divisions");
    other.clear(&world.lab.vm);
    drop(other);
    world.end(3);
}
