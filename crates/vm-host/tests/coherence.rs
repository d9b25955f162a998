//! A store by one CPU of a program is visible to all its CPUs.
//!
//! The simulated cores fail a test in which two of them, running one space, have different frames cached for an
//! address. These tests try to cause that: they stop an operation between its change of the page tables and its flush,
//! and let other CPUs act there. They also count flushes, including those that must not happen.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use vm::object::ObjectRef;
use vm::page::Flags;
use vm::pmap::Revoke;
use vm::space::{Advice, COPY_DEPTH, Chaos, MapArgs, Source, Space};
use vm::{EntryFlags, Gather, MapProt, Tuning, rmap};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
/// Another range, under other tables.
const FAR: u64 = 0x7000_0000_0000;
/// CPUs that run the space; another one acts from outside.
const CPUS: usize = 4;

/// An action of a CPU during a flush.
type Act = fn(&World);

struct World {
    lab: Lab,
    space: Arc<Space>,
    file: ObjectRef,
    /// Actions of other CPUs that the test's flushes have started.
    others: Mutex<Vec<JoinHandle<()>>>,
    flushes: AtomicUsize,
}

fn world(frames: usize) -> Arc<World> {
    let lab = Lab::new(frames, CPUS);
    lab.vm.set_fault_around(PAGE);
    let space = Space::new(&lab.vm).unwrap();
    let file = ObjectRef::new_file(&lab.vm, None).unwrap();
    World::of(lab, space, file)
}

fn map_into(lab: &Lab, space: &Space, at: (u64, u64), shared: bool, source: Source<'_>) {
    let mut args = MapArgs::anon(at.1 * PAGE, MapProt::READ | MapProt::WRITE).at(at.0);
    args.source = source;
    if shared {
        args.flags = EntryFlags::SHARED;
    }
    assert_eq!(space.map(&lab.vm, &args), Ok(at.0));
}

impl World {
    fn of(lab: Lab, space: Arc<Space>, file: ObjectRef) -> Arc<World> {
        Arc::new(World {
            lab,
            space,
            file,
            others: Mutex::default(),
            flushes: AtomicUsize::new(0),
        })
    }

    fn map(&self, addr: u64, pages: u64, shared: bool, source: Source<'_>) {
        map_into(&self.lab, &self.space, (addr, pages), shared, source);
    }

    /// A file of `pages` pages with a 1 in each, mapped.
    fn map_file(&self, pages: u64, shared: bool) {
        (0..pages).for_each(|page| self.write_file(page, 1));
        self.map(AT, pages, shared, Source::Object(&self.file, 0));
    }

    fn write_file(&self, page: u64, value: u64) {
        let mut fill = |piece: &mut [u8]| {
            piece.copy_from_slice(&value.to_le_bytes());
            piece.len()
        };
        let written = self.file.write(&self.lab.vm, page * PAGE, 8, &mut fill);
        assert_eq!(written, Ok(8));
    }

    /// Makes all CPUs run the space; this thread plays CPU 0.
    fn run(&self) {
        self.lab.play_all();
        for cpu in (0..CPUS).rev() {
            ksync::host::set_cpu(cpu);
            self.lab.run(&self.space);
        }
    }

    fn read(&self, cpu: usize, va: u64) -> u64 {
        let word = |word: &std::sync::atomic::AtomicU64| word.load(SeqCst);
        let read = self.lab.touch(&self.space, cpu, va, Access::Read, word);
        read.expect("memory")
    }

    fn write(&self, cpu: usize, va: u64, value: u64) {
        let word = |word: &std::sync::atomic::AtomicU64| word.store(value, SeqCst);
        let written = self.lab.touch(&self.space, cpu, va, Access::Write, word);
        written.expect("memory");
    }

    /// Loads and stores without serving a fault.
    fn tries(&self, cpu: usize, va: u64) {
        let _read = self.lab.vm.machine.read(cpu, va);
        let _written = self.lab.vm.machine.write(cpu, va, 1000 + cpu as u64);
    }

    /// At the first flush from now on, between the change and the flush, `cpu` runs its `act`; at the second one the
    /// next of `acts`, and so on. An act that waits for the flushing CPU continues concurrently.
    fn at_flush(self: &Arc<World>, acts: &[(usize, Act)]) {
        let (weak, acts) = (Arc::downgrade(self), acts.to_vec());
        self.flushes.store(0, SeqCst);
        let hook = move || {
            let Some(world) = weak.upgrade() else { return };
            let n = world.flushes.fetch_add(1, SeqCst);
            let Some(&(cpu, act)) = acts.get(n) else {
                return;
            };
            let theirs = world.clone();
            let (begins, begun) = mpsc::channel();
            let thread = std::thread::spawn(move || {
                ksync::host::set_cpu(cpu);
                begins.send(()).expect("the other end waits");
                act(&theirs);
            });
            // However busy the host is.
            begun.recv().expect("it begins");
            let mut patience = 100;
            while patience > 0 && !thread.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
                patience -= 1;
            }
            world.others.lock().expect("nobody failed").push(thread);
        };
        self.lab.vm.machine.on_flush(Some(Arc::new(hook)));
    }

    /// Waits for the acts that the flushes started. There were at least `flushes`.
    fn others_end(&self, flushes: usize) {
        self.lab.vm.machine.on_flush(None);
        let others = std::mem::take(&mut *self.others.lock().expect("nobody failed"));
        assert!(!others.is_empty(), "nothing happened beside a flush");
        others
            .into_iter()
            .for_each(|thread| thread.join().expect("coherence"));
        assert!(self.flushes.load(SeqCst) >= flushes);
    }

    /// Checks that all CPUs read the same, then ends the world.
    fn end(self: Arc<World>, pages: u64, children: Vec<Arc<Space>>) {
        for va in (0..pages).map(|page| AT + page * PAGE) {
            let all: Vec<u64> = (0..CPUS).map(|cpu| self.read(cpu, va)).collect();
            assert!(all.iter().all(|&word| word == all[0]), "{all:?}");
        }
        let World {
            lab, space, file, ..
        } = Arc::into_inner(self).expect("all threads have ended");
        for cpu in (0..CPUS).rev() {
            ksync::host::set_cpu(cpu);
            lab.stop(&space);
        }
        for child in children {
            child.clear(&lab.vm);
        }
        space.clear(&lab.vm);
        file.release(&lab.vm);
        lab.finish();
    }

    /// Number of interrupts during `act`.
    fn interrupts(&self, act: impl FnOnce(&World)) -> usize {
        let before = self.lab.vm.machine.interrupts();
        act(self);
        self.lab.vm.machine.interrupts() - before
    }

    /// Number of flushes, with or without interrupts, and of addresses visited by scans, during `act`.
    fn rounds_and_visits(&self, act: impl FnOnce(&World)) -> (u64, u64) {
        let count = || {
            let counts = self.lab.vm.pmaps.all_counts();
            counts.fold((0, 0), |(rounds, visits), c| {
                let more = c.sent.get() + c.avoided.get();
                (rounds + more, visits + c.scan_visits.get())
            })
        };
        let before = count();
        act(self);
        let after = count();
        (after.0 - before.0, after.1 - before.1)
    }
}

/// A page of private memory that a child shares, and whose translation CPU 1 has cached.
fn forked(world: &World) -> Arc<Space> {
    world.map(AT, 2, false, Source::Anon);
    world.run();
    world.write(0, AT, 1);
    let child = world.space.fork(&world.lab.vm).unwrap();
    assert_eq!(world.read(1, AT), 1);
    child
}

#[test]
fn nobody_writes_a_copy_while_another_reads_the_original() {
    let world = world(256);
    let child = forked(&world);
    world.at_flush(&[(2, |world| world.tries(2, AT))]);
    world.write(0, AT, 2);
    world.others_end(1);
    assert_eq!(world.read(1, AT), 2);
    let mut word = [0; 8];
    assert_eq!(child.read_at(&world.lab.vm, AT, &mut word), Ok(8));
    assert_eq!(u64::from_le_bytes(word), 1);
    world.end(2, vec![child]);
}

/// When the copy is entered, the original is in no table any more, but still in a CPU's cache.
#[test]
fn nobody_writes_a_copy_where_an_entry_has_just_gone() {
    let world = world(256);
    let child = forked(&world);
    // During the flush of the removal CPU 2 copies, and during the flush of the copy CPU 3 reads.
    world.at_flush(&[
        (2, |world| world.write(2, AT, 2)),
        (3, |world| world.tries(3, AT)),
    ]);
    let mut gather = Gather::new();
    let pmap = world.space.pmap();
    pmap.remove_range(&world.lab.vm, AT, AT + PAGE, &mut gather);
    gather.finish(&world.lab.vm);
    world.others_end(2);
    assert_eq!(world.read(1, AT), 2);
    world.end(2, vec![child]);
}

fn discard(world: &World) {
    let done = world
        .space
        .advise(&world.lab.vm, AT, PAGE, Advice::DontNeed);
    assert_eq!(done, Ok(()));
}

#[test]
fn nobody_writes_a_page_of_zeroes_while_another_reads_what_was_discarded() {
    let world = world(256);
    world.map(AT, 2, false, Source::Anon);
    world.run();
    world.write(0, AT, 1);
    assert_eq!(world.read(1, AT), 1);
    world.at_flush(&[(2, |world| {
        world.write(2, AT, 2);
        assert_eq!(world.read(1, AT), 2);
    })]);
    discard(&world);
    world.others_end(2);
    world.end(2, Vec::new());
}

/// A fault after a discard, and one during it, enters the page below the discarded copy.
#[test]
fn nobody_reads_a_file_while_another_reads_the_copy_that_was_discarded() {
    for around in [PAGE, 4 * PAGE] {
        let world = world(256);
        world.lab.vm.set_fault_around(around);
        world.map_file(4, false);
        world.run();
        world.write(0, AT, 2);
        assert_eq!(world.read(1, AT), 2);
        let act: Act = if around == PAGE {
            |world| assert_eq!(world.read(2, AT), 1)
        } else {
            |world| {
                assert_eq!(world.read(2, AT + 2 * PAGE), 1);
                world.tries(2, AT);
            }
        };
        world.at_flush(&[(2, act)]);
        discard(&world);
        world.others_end(1);
        assert_eq!(world.read(1, AT), 1);
        world.end(4, Vec::new());
    }
}

#[test]
fn nobody_writes_a_page_of_zeroes_while_another_reads_what_was_in_the_hole() {
    let acts: [Act; 2] = [
        |world| world.write(2, AT, 2),
        |world| {
            world.write_file(0, 2);
            assert_eq!(
                world.read(1, AT),
                2,
                "a file's reader sees what was written"
            );
        },
    ];
    for act in acts {
        let world = world(256);
        world.map_file(2, true);
        world.run();
        assert_eq!(world.read(1, AT), 1);
        world.at_flush(&[(2, act)]);
        world.file.punch(&world.lab.vm, 0, PAGE);
        world.others_end(1);
        world.end(2, Vec::new());
    }
}

/// A scan finds its page at two addresses of a space; during its flush one or the other is unmapped.
#[test]
fn nobody_reaches_what_a_scan_took_out_where_it_is_unmapped() {
    const SECOND: u64 = AT + 8 * PAGE;
    fn unmap(world: &World, va: u64) {
        assert_eq!(world.space.unmap(&world.lab.vm, va, PAGE), Ok(()));
        let reached = world.lab.vm.machine.read(1, va);
        assert!(reached.is_err(), "what was unmapped is still reached");
    }
    let acts: [Act; 2] = [|world| unmap(world, AT), |world| unmap(world, SECOND)];
    for act in acts {
        let world = world(256);
        world.map_file(1, true);
        world.map(SECOND, 1, true, Source::Object(&world.file, 0));
        world.run();
        assert_eq!((world.read(1, AT), world.read(1, SECOND)), (1, 1));
        world.at_flush(&[(2, act)]);
        let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
        assert_eq!(world.lab.vm.chaos_scan(pfn), Chaos::Removed(2));
        // One that comes too late, on a busy host, finds nothing to flush.
        world.others_end(1);
        world.end(0, Vec::new());
    }
}

/// Number of pages in the first layer of [`half_folded`]: so many that it is not folded away.
const TOUCHED: u64 = 300;
/// A page of the second one.
const BROUGHT: u64 = AT + TOUCHED * PAGE;

/// A parent's folding has brought a copy of a page up into the front layer of a child, whose tables still map the
/// original. All other spaces have ended, so only the child can see the layer. CPU 1 has the original cached.
fn half_folded() -> Arc<World> {
    let one_at_a_time = Tuning {
        fork_depth: COPY_DEPTH,
        ..Tuning::DEFAULT
    };
    let lab = Lab::tuned(4096, CPUS, one_at_a_time);
    lab.vm.set_fault_around(PAGE);
    let file = ObjectRef::new_file(&lab.vm, None).unwrap();
    let parent = Space::new(&lab.vm).unwrap();
    let write = |page| {
        let done = parent.fault(&lab.vm, AT + page * PAGE, vm::Access::Write);
        assert_eq!(done, Ok(()));
    };
    map_into(&lab, &parent, (AT, TOUCHED + 32), false, Source::Anon);
    (0..TOUCHED).for_each(write);
    let fork = |n: u64| {
        let child = parent.fork(&lab.vm).unwrap();
        (0..=n.min(1)).for_each(|k| write(TOUCHED + 2 * n + k));
        child
    };
    let mut others: Vec<_> = (0..COPY_DEPTH as u64).map(fork).collect();
    let space = others.remove(2);
    let mapped = || space.pmap().lookup(&lab.vm, &ksync::pin(), BROUGHT);
    let read = space.fault(&lab.vm, BROUGHT, vm::Access::Read);
    assert_eq!(read, Ok(()));
    let before = mapped();
    others.push(parent.fork(&lab.vm).unwrap());
    assert_eq!(lab.vm.counts().collapses, 1);
    assert_eq!(mapped(), before, "folding has changed another's tables");
    for other in others.iter().chain([&parent]) {
        other.clear(&lab.vm);
    }
    let world = World::of(lab, space, file);
    world.run();
    assert_eq!(world.read(1, BROUGHT), 0);
    world
}

#[test]
fn nobody_writes_what_folding_brought_while_another_reads_the_original() {
    let world = half_folded();
    world.at_flush(&[(2, |world| world.tries(2, BROUGHT))]);
    world.write(0, BROUGHT, 2);
    world.others_end(1);
    assert_eq!(world.read(1, BROUGHT), 2);
    world.end(1, Vec::new());
}

/// A CPU reads a page in a layer below the one into which a relative brings it up. The CPU's space then folds and drops
/// that layer.
#[test]
fn nobody_reads_a_layer_that_has_gone() {
    let lab = Lab::tuned(1024, CPUS, Tuning::SMALL);
    lab.vm.set_fault_around(PAGE);
    let file = ObjectRef::new_file(&lab.vm, None).unwrap();
    let space = Space::new(&lab.vm).unwrap();
    map_into(&lab, &space, (AT, 12), false, Source::Anon);
    let write = |space: &Space, page| {
        let done = space.fault(&lab.vm, AT + page * PAGE, vm::Access::Write);
        assert_eq!(done, Ok(()));
    };
    // The cheapest choice is to bring the page of the third layer up into the fourth.
    let layers = [9..10, 10..11, 0..1, 1..9];
    let fork = |pages: Range<u64>| {
        pages.for_each(|page| write(&space, page));
        space.fork(&lab.vm).unwrap()
    };
    let mut relatives: Vec<_> = layers.into_iter().map(fork).collect();
    write(&space, 11);
    write(&relatives[3], 11);
    let world = World::of(lab, space, file);
    world.run();
    assert_eq!(world.read(1, AT), 0);
    let vm = &world.lab.vm;
    assert_eq!((vm.counts().collapses, vm.counts().fold_copy), (0, 0));
    relatives.push(relatives[3].fork(vm).unwrap());
    assert!(vm.counts().fold_copy > 0, "nothing was brought up");
    let before = vm.counts().collapses;
    world.space.maintain(vm);
    assert!(vm.counts().collapses > before, "no layer has gone");
    let reached = vm.machine.read(1, AT);
    assert!(reached.is_err(), "a page of a layer that has gone is read");
    world.end(1, relatives);
}

#[test]
fn the_kernel_writes_to_what_the_program_reads() {
    let world = half_folded();
    // Another page is written first: then the layer belongs to the program alone, and the store causes no fault.
    world.write(0, BROUGHT + 20 * PAGE, 1);
    let done = world
        .space
        .write_at(&world.lab.vm, BROUGHT, &2_u64.to_le_bytes());
    assert_eq!(done, Ok(8));
    assert_eq!(world.read(1, BROUGHT), 2);
    world.end(1, Vec::new());
}

#[test]
fn more_rights_for_the_same_frame_cost_no_flush() {
    let world = world(256);
    world.map_file(2, true);
    world.run();
    (0..CPUS).for_each(|cpu| assert_eq!(world.read(cpu, AT), 1));
    let cost = world.interrupts(|world| world.write(0, AT, 2));
    assert_eq!(cost, 0);
    world.end(2, Vec::new());
}

/// While a flush is due for one range, faults in other ranges cause none.
#[test]
fn a_flush_that_is_due_elsewhere_costs_nothing() {
    type Lose = for<'p> fn(&'p World, &mut Gather<'p>);
    let elsewhere: [Lose; 3] = [
        |world, gather| {
            let pmap = world.space.pmap();
            pmap.remove_range(&world.lab.vm, FAR, FAR + 4 * PAGE, gather);
        },
        // An operation that withdraws rights leaves the frame at each address.
        |world, gather| {
            let pmap = world.space.pmap();
            pmap.write_protect_high(&world.lab.vm, &ksync::pin(), gather);
        },
        |world, gather| {
            let revoke = Revoke {
                write: true,
                exec: false,
            };
            let (pmap, end) = (world.space.pmap(), FAR + 4 * PAGE);
            pmap.protect_range(&world.lab.vm, AT, end, revoke, gather);
        },
    ];
    for lose in elsewhere {
        let world = world(512);
        world.map(AT, 64, false, Source::Anon);
        world.map(FAR, 4, false, Source::Anon);
        world.run();
        (0..32).for_each(|page| world.write(0, AT + page * PAGE, 1));
        (0..4).for_each(|page| world.write(0, FAR + page * PAGE, 1));
        let child = world.space.fork(&world.lab.vm).unwrap();
        let (mut fork, mut gather) = (Some(child), Gather::new());
        // The front layer exists: the faults below see two layers, and nothing to flush.
        world.write(0, AT + 63 * PAGE, 1);
        world
            .space
            .pmap()
            .remove_range(&world.lab.vm, AT, AT + 32 * PAGE, &mut gather);
        gather.finish(&world.lab.vm);
        let mut gather = Gather::new();
        lose(&world, &mut gather);
        assert!(!gather.is_empty());
        let cost = world.interrupts(|world| {
            (0..16).for_each(|page| world.write(0, AT + page * PAGE, 2));
            (16..32).for_each(|page| assert_eq!(world.read(0, AT + page * PAGE), 1));
            (32..48).for_each(|page| world.write(0, AT + page * PAGE, 2));
        });
        assert_eq!(cost, 0, "faults interrupt CPUs for what is due elsewhere");
        gather.finish(&world.lab.vm);
        world.end(1, fork.take().into_iter().collect());
    }
}

/// Nor does it cause flushes by operations that unmap or protect another range.
#[test]
fn a_removal_beside_one_that_is_due_flushes_its_own_alone() {
    let world = world(256);
    world.map(AT, 4, false, Source::Anon);
    world.map(FAR, 4, false, Source::Anon);
    world.run();
    world.write(0, FAR, 1);
    let mut gather = Gather::new();
    let pmap = world.space.pmap();
    pmap.remove_range(&world.lab.vm, FAR, FAR + PAGE, &mut gather);
    let unmap = |world: &World, at| world.space.unmap(&world.lab.vm, at, PAGE).unwrap();
    assert_eq!(world.interrupts(|world| unmap(world, AT + PAGE)), 0);
    assert_eq!(world.interrupts(|world| unmap(world, FAR)), CPUS);
    gather.finish(&world.lab.vm);
    world.end(1, Vec::new());
}

const MAPPERS: usize = 40;
/// Addresses that a scan visits for a page that [`MAPPERS`] spaces have mapped, and the space of the test's CPUs has
/// not: extents cover what may be mapped, a list of pages what was mapped.
const PLACES: u64 = MAPPERS as u64 + !cfg!(feature = "listed") as u64;

/// A file that many spaces map, each with the pages in its tables.
fn mapped_by_many(world: &World, pages: u64, shared: bool, access: Access) -> Vec<Arc<Space>> {
    world.map_file(pages, shared);
    world.run();
    let mapper = |_| {
        let space = Space::new(&world.lab.vm).unwrap();
        let source = Source::Object(&world.file, 0);
        map_into(&world.lab, &space, (AT, pages), shared, source);
        space
    };
    let spaces: Vec<_> = (0..MAPPERS).map(mapper).collect();
    for (space, page) in spaces.iter().flat_map(|s| (0..pages).map(move |n| (s, n))) {
        let done = space.fault(&world.lab.vm, AT + page * PAGE, vm_host::lab::kind(access));
        assert_eq!(done, Ok(()));
    }
    spaces
}

fn end_all(world: Arc<World>, spaces: Vec<Arc<Space>>) {
    for space in &spaces {
        assert_eq!(space.pmap().resident(&world.lab.vm), 0, "a scan missed one");
    }
    world.end(0, spaces);
}

#[test]
fn a_page_of_many_mappers_goes_with_one_flush() {
    let world = world(1024);
    let spaces = mapped_by_many(&world, 1, true, Access::Write);
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    let (rounds, visits) = world.rounds_and_visits(|world| {
        assert_eq!(
            world.lab.vm.chaos_scan(pfn),
            vm::space::Chaos::Removed(MAPPERS)
        );
    });
    assert_eq!((rounds, visits), (1, PLACES));
    end_all(world, spaces);
}

/// A request for CPUs that run different spaces names none of them.
#[test]
fn a_page_goes_from_every_space_that_runs() {
    let world = world(512);
    let spaces = mapped_by_many(&world, 1, true, Access::Write);
    let other = &spaces[0];
    ksync::host::set_cpu(2);
    world.lab.stop(&world.space);
    world.lab.run(other);
    ksync::host::set_cpu(0);
    assert_eq!(world.read(1, AT), 1);
    assert_eq!(world.lab.vm.machine.read(2, AT), Ok(1));
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    world.lab.vm.chaos_scan(pfn);
    for cpu in [1, 2] {
        let reached = world.lab.vm.machine.read(cpu, AT);
        assert!(reached.is_err(), "CPU {cpu} still reaches the page");
    }
    ksync::host::set_cpu(2);
    world.lab.stop(other);
    world.lab.run(&world.space);
    ksync::host::set_cpu(0);
    end_all(world, spaces);
}

/// A writer holds a page of a file and faults on another page of it, which a hole punch is about to remove.
#[test]
fn a_hole_waits_for_no_page_while_it_holds_others() {
    let world = world(512);
    world.map_file(8, true);
    world.run();
    let theirs = world.clone();
    let (holds, punched) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (tell, hear) = (holds.clone(), punched.clone());
    let writer = std::thread::spawn(move || {
        ksync::host::set_cpu(2);
        let mut fill = |piece: &mut [u8]| {
            tell.store(1, SeqCst);
            // The first page is removed alone, then several at once.
            while theirs.file.lookup(&ksync::pin(), 0).is_some() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(hear.load(SeqCst), 0, "the page was not held");
            theirs.write(2, AT + 3 * PAGE, 5);
            piece.len()
        };
        let written = theirs.file.write(&theirs.lab.vm, 4 * PAGE, 8, &mut fill);
        assert_eq!(written, Ok(8));
    });
    while holds.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    world.file.punch(&world.lab.vm, 0, 8 * PAGE);
    punched.store(1, SeqCst);
    writer.join().expect("both have ended");
    world.end(8, Vec::new());
}

/// A writer holds a page of the file while it faults on the very map in which the hole is punched.
#[test]
fn a_hole_by_its_mapping_leaves_the_map_to_a_writer() {
    let world = world(512);
    world.map_file(2, true);
    world.map(FAR, 1, false, Source::Anon);
    world.run();
    let (holds, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (theirs, tell, done) = (world.clone(), holds.clone(), ended.clone());
    let writer = std::thread::spawn(move || {
        ksync::host::set_cpu(2);
        let mut fill = |piece: &mut [u8]| {
            tell.store(1, SeqCst);
            // The hole punch waits for this page by now.
            std::thread::sleep(Duration::from_millis(50));
            theirs
                .space
                .fault(&theirs.lab.vm, FAR, vm::Access::Write)
                .expect("mapped");
            piece.len()
        };
        let written = theirs.file.write(&theirs.lab.vm, 0, 8, &mut fill);
        assert_eq!(written, Ok(8));
        done.fetch_add(1, SeqCst);
    });
    let (mine, hears, done) = (world.clone(), holds, ended.clone());
    let puncher = std::thread::spawn(move || {
        ksync::host::set_cpu(1);
        while hears.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        let punched = mine
            .space
            .advise(&mine.lab.vm, AT, 2 * PAGE, Advice::Remove);
        assert_eq!(punched, Ok(()));
        done.fetch_add(1, SeqCst);
    });
    let both = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        ended.load(SeqCst) == 2
    });
    assert!(both, "the writer and the hole wait for each other");
    for thread in [writer, puncher] {
        thread.join().expect("both have ended");
    }
    world.end(2, Vec::new());
}

#[test]
fn write_protection_of_a_page_of_many_mappers_takes_one_flush() {
    let world = world(1024);
    let spaces = mapped_by_many(&world, 1, true, Access::Write);
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    let (rounds, _) = world.rounds_and_visits(|world| {
        let busy = world.lab.vm.pages.get(pfn).try_hard_busy().expect("idle");
        rmap::write_protect_all(&world.lab.vm, &world.file, 0, pfn);
        drop(busy);
    });
    assert_eq!(rounds, 1);
    let pin = ksync::pin();
    for space in &spaces {
        let entry = space
            .pmap()
            .lookup(&world.lab.vm, &pin, AT)
            .expect("mapped");
        assert!(!entry.is_writable() && !entry.is_dirty());
    }
    drop(pin);
    world.file.truncate(&world.lab.vm, 0);
    end_all(world, spaces);
}

/// Pages are removed in slices. Absent pages cost nothing, and neither do mappers without entries.
#[test]
fn truncation_flushes_once_a_slice() {
    let world = world(4096);
    let spaces = mapped_by_many(&world, 64, true, Access::Read);
    let (rounds, visits) = world.rounds_and_visits(|world| world.file.truncate(&world.lab.vm, 0));
    assert_eq!(visits, PLACES * 64, "each place is looked at once");
    assert!(rounds <= 4, "{rounds} rounds for 64 pages");
    // Absent pages, with as many mappers.
    world.file.truncate(&world.lab.vm, 1 << 30);
    world.write_file(0, 1);
    let (rounds, visits) =
        world.rounds_and_visits(|world| world.file.truncate(&world.lab.vm, PAGE));
    assert_eq!((rounds, visits), (0, 0));
    end_all(world, spaces);
}

#[test]
fn private_copies_behind_the_end_go_with_few_flushes() {
    let world = world(8192);
    let spaces = mapped_by_many(&world, 100, false, Access::Write);
    world.write(0, AT + 99 * PAGE, 1);
    assert_eq!(world.read(1, AT + 99 * PAGE), 1);
    let (rounds, _) = world.rounds_and_visits(|world| world.file.truncate(&world.lab.vm, 0));
    assert!(rounds <= 6, "{rounds} rounds for 100 pages");
    let reached = world.lab.vm.machine.read(1, AT + 99 * PAGE);
    assert!(reached.is_err(), "a copy behind the end is still reached");
    end_all(world, spaces);
}

#[test]
fn a_count_of_references_stops_at_its_limit() {
    let world = world(1024);
    let spaces = mapped_by_many(&world, 1, true, Access::Read);
    let vm = &world.lab.vm;
    let pfn = world.file.lookup(&ksync::pin(), 0).expect("a page");
    let busy = vm.pages.get(pfn).try_hard_busy().expect("idle");
    let _referenced = vm.pages.get(pfn).clear_flag(Flags::REFERENCED);
    let (_, visits) = world.rounds_and_visits(|_| {
        assert_eq!(rmap::referenced(vm, &world.file, 0, pfn, 3), 3);
    });
    // The space of the test's own CPUs does not have the page in its tables, and may be visited first.
    assert!((3..=4).contains(&visits), "{visits} visits for three");
    assert_eq!(
        rmap::referenced(vm, &world.file, 0, pfn, MAPPERS),
        MAPPERS - 3
    );
    assert_eq!(rmap::referenced(vm, &world.file, 0, pfn, MAPPERS), 0);
    drop(busy);
    world.file.truncate(vm, 0);
    end_all(world, spaces);
}
