//! Lists of entries, where the reverse map has them: what enters, leaves, scans and forgets, each stopped once at each of its
//! steps while the others run; and in random orders.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --features pv-obm --test shuttle_lists`, or `pv-stock`
#![cfg(all(shuttle, any(feature = "pv-obm", feature = "pv-stock")))]

use std::sync::Arc;

use shuttle::thread::{self, JoinHandle};
use vm::page::Flags;
use vm::space::{Source, Space};
use vm::{Access, FaultError, Pfn};
use vm_host::listed;
use vm_host::schedules::{AT, PAGE, World, explore, join, spawn, stop_everywhere};

/// One thread of a model.
type Part = Box<dyn Fn(&World) + Send>;

/// Spawns the parts, each on a CPU of its own, the one of number `first` before the others.
fn play(world: &Arc<World>, first: usize, mut parts: Vec<Part>) {
    parts.rotate_left(first);
    let cpus = 1..;
    let threads: Vec<JoinHandle<()>> = cpus
        .zip(parts)
        .map(|(cpu, part)| spawn(world, cpu, move |world| part(world)))
        .collect();
    join(threads);
}

/// Tries a model of three parts with each of them stopped, and in random orders.
macro_rules! model {
    ($name:ident, $body:ident) => {
        #[test]
        fn $name() {
            let tried = [
                stop_everywhere($body::<0>),
                stop_everywhere($body::<1>),
                stop_everywhere($body::<2>),
            ];
            println!("{tried:?} schedules");
            explore($body::<0>);
        }
    };
}

fn check(world: &World, others: &[&Arc<Space>]) {
    let spaces = std::iter::once(&world.space).chain(others.iter().copied());
    listed::check(&world.lab.vm, spaces.map(|space| &**space.pmap()));
}

/// A page of the file, mapped shared by the world's space and another, which both have it in their tables.
fn shared_by_two(world: &World) -> (Arc<Space>, Pfn) {
    world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
    world.map(true, Source::Object(&world.file, 0));
    world.touched(Access::Write);
    let other = world.space.fork(&world.lab.vm).unwrap();
    read(world, &other);
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    (other, pfn)
}

fn read(world: &World, space: &Space) {
    assert_eq!(space.fault(&world.lab.vm, AT, Access::Read), Ok(()));
}

fn places(world: &World, pfn: Pfn) -> usize {
    world.lab.vm.rmap.entries(world.lab.vm.pages.get(pfn))
}

/// A process ends while the page that it maps is scanned, and another maps it anew.
fn exit_beside_scan<const FIRST: usize>(world: &Arc<World>) {
    let (other, pfn) = shared_by_two(world);
    let parts: Vec<Part> = vec![
        Box::new(move |world| {
            other.clear(&world.lab.vm);
        }),
        Box::new(|world| world.scan(&world.file)),
        Box::new(|world| world.touched(Access::Write)),
    ];
    play(world, FIRST, parts);
    check(world, &[]);
    assert!(places(world, pfn) <= 1);
}
model!(
    a_process_that_ends_leaves_no_entry_to_a_scan,
    exit_beside_scan
);

/// A process ends while the file that it maps shrinks, and the frame gets another use.
fn exit_beside_truncation<const FIRST: usize>(world: &Arc<World>) {
    let (other, _) = shared_by_two(world);
    let parts: Vec<Part> = vec![
        Box::new(move |world| {
            other.clear(&world.lab.vm);
        }),
        Box::new(|world| world.file.truncate(&world.lab.vm, 0)),
        Box::new(|world| {
            world.space.drop_tables(&world.lab.vm);
        }),
    ];
    play(world, FIRST, parts);
    check(world, &[]);
}
model!(
    a_process_that_ends_leaves_no_entry_to_a_free_frame,
    exit_beside_truncation
);

/// Another process's kernel thread faults in a space that ends: what it enters late is listed no more.
fn exit_beside_fault<const FIRST: usize>(world: &Arc<World>) {
    let (other, pfn) = shared_by_two(world);
    let theirs = other.clone();
    let parts: Vec<Part> = vec![
        Box::new(move |world| {
            other.clear(&world.lab.vm);
        }),
        Box::new(move |world| {
            let done = theirs.fault(&world.lab.vm, AT + PAGE, Access::Write);
            assert!(
                matches!(done, Ok(()) | Err(FaultError::NotMapped | FaultError::Bus)),
                "{done:?}"
            );
        }),
        Box::new(|world| world.scan(&world.file)),
    ];
    play(world, FIRST, parts);
    check(world, &[]);
    assert!(places(world, pfn) <= 1);
}
model!(
    a_fault_beside_the_end_of_its_space_lists_nothing,
    exit_beside_fault
);

/// Two entries leave one list, and a third comes.
fn removals_beside_fault<const FIRST: usize>(world: &Arc<World>) {
    let (other, pfn) = shared_by_two(world);
    let third = world.space.fork(&world.lab.vm).unwrap();
    let (theirs, thirds) = (other.clone(), third.clone());
    let parts: Vec<Part> = vec![
        Box::new(move |world| {
            assert_eq!(theirs.unmap(&world.lab.vm, AT, PAGE), Ok(()));
        }),
        Box::new(|world| {
            world.space.drop_tables(&world.lab.vm);
        }),
        Box::new(move |world| read(world, &thirds)),
    ];
    play(world, FIRST, parts);
    check(world, &[&other, &third]);
    assert_eq!(places(world, pfn), 1);
    other.clear(&world.lab.vm);
    third.clear(&world.lab.vm);
}
model!(
    entries_leave_a_list_beside_one_that_comes,
    removals_beside_fault
);

/// Two pages come into one pmap's chunks while a scan frees an entry there.
fn two_faults_beside_scan<const FIRST: usize>(world: &Arc<World>) {
    let (other, _) = shared_by_two(world);
    world
        .file
        .allocate(&world.lab.vm, PAGE, PAGE, true)
        .unwrap();
    let (one, two) = (other.clone(), other.clone());
    let parts: Vec<Part> = vec![
        Box::new(move |world| {
            assert_eq!(two.fault(&world.lab.vm, AT + PAGE, Access::Write), Ok(()));
        }),
        Box::new(|world| world.scan(&world.file)),
        Box::new(move |world| read(world, &one)),
    ];
    play(world, FIRST, parts);
    check(world, &[&other]);
    other.clear(&world.lab.vm);
}
model!(
    entries_come_from_chunks_beside_those_that_go_back,
    two_faults_beside_scan
);

/// The page is made read-only and looked at for use while it is written through both spaces.
fn readers_of_a_list<const FIRST: usize>(world: &Arc<World>) {
    let (other, pfn) = shared_by_two(world);
    // The writer has rights to gain.
    protect(world, pfn);
    let theirs = other.clone();
    let parts: Vec<Part> = vec![
        Box::new(move |world| {
            let Some(busy) = world.lab.vm.pages.get(pfn).try_hard_busy() else {
                return;
            };
            protect(world, pfn);
            for _ in 0..3 {
                assert!(!writable(world, &world.space) && !writable(world, &theirs));
                thread::yield_now();
            }
            drop(busy);
        }),
        Box::new(|world| world.touched(Access::Write)),
        Box::new(move |world| {
            let (vm, page) = (&world.lab.vm, world.lab.vm.pages.get(pfn));
            let Some(busy) = page.try_soft_busy() else {
                return;
            };
            let seen = vm::rmap::referenced(vm, &world.file, 0, pfn, 10);
            assert!(seen <= 3);
            drop(busy);
        }),
    ];
    play(world, FIRST, parts);
    check(world, &[&other]);
    let marked = world.lab.vm.pages.get(pfn).has(Flags::WRITEABLE);
    for space in [&world.space, &other] {
        assert!(
            marked || !writable(world, space),
            "a scan would not find it"
        );
    }
    other.clear(&world.lab.vm);
}
model!(
    rights_are_withdrawn_beside_writers_and_readers,
    readers_of_a_list
);

/// Makes the page read-only everywhere. It is busy, or nothing else runs.
fn protect(world: &World, pfn: Pfn) {
    let page = world.lab.vm.pages.get(pfn);
    let busy = page.try_hard_busy();
    vm::rmap::write_protect_all(&world.lab.vm, &world.file, 0, pfn);
    drop(busy);
}

fn writable(world: &World, space: &Space) -> bool {
    let entry = space.pmap().lookup(&world.lab.vm, &ksync::pin(), AT);
    entry.is_some_and(|entry| entry.is_writable())
}
