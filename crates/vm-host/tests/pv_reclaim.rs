//! Running out of pv entries: what is unmapped then, what stays, and which pmap gets the room.
#![cfg(all(any(feature = "pv-obm", feature = "pv-stock"), not(any(loom, shuttle))))]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread;

use vm::object::ObjectRef;
use vm::page::Flags;
use vm::pmap::Entered;
use vm::rmap::{Hold, ReverseMap};
use vm::space::{MapArgs, Source};
use vm::{EntryFlags, MapProt, NoMemory, Pmap, Prot, Pte, Vm};
use vm_host::few_entries::{CHUNK, Tables, enter};
use vm_host::program::Program;
use vm_host::runs::{PAGE, PAGES, Runs};
use vm_host::{Lab, Random, Sim};

/// Where programs have their memory.
const AT: u64 = 0x4000_0000;
const FILE: u64 = 0x5000_0000;

/// Waits until the other thread reclaims, and then for as long as it needs to get as far as it can.
#[cfg(feature = "pv-stock")]
fn wait_for_reclaimer(tables: &Tables) {
    while !tables.lab.vm.rmap.is_reclaiming() || tables.pmap(1).listed().is_locked() {
        thread::yield_now();
    }
    thread::sleep(std::time::Duration::from_millis(30));
}

/// Does something on a CPU of its own.
#[cfg(feature = "pv-stock")]
fn on_cpu_1<'s, R: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    tables: &'s Tables,
    act: impl FnOnce() -> R + Send + 's,
) -> thread::ScopedJoinHandle<'s, R> {
    scope.spawn(move || {
        ksync::host::set_cpu(1);
        tables.lab.vm.epoch.online(1);
        let done = act();
        tables.lab.vm.epoch.offline(1);
        done
    })
}

#[test]
fn a_pmap_reclaims_from_itself() {
    let tables = Tables::new(1, 0);
    tables.map_all(0, 0..CHUNK);
    assert_eq!(tables.counts(), (0, 0));
    tables.map_all(0, CHUNK..CHUNK + 1);
    assert_eq!(tables.counts(), (1, CHUNK as u64));
    assert_eq!(tables.mapped(0), [CHUNK]);
    tables.map_all(0, CHUNK + 1..2 * CHUNK + 1);
    assert_eq!(tables.counts(), (2, 2 * CHUNK as u64));
    assert_eq!(tables.chunks(), [1]);
    tables.finish();
}

#[test]
fn the_chunk_that_was_filled_least_recently_goes() {
    let tables = Tables::new(3, 0);
    tables.map_all(0, 0..3 * CHUNK);
    tables.map_all(0, 504..505);
    assert_eq!(tables.mapped(0), (CHUNK..505).collect::<Vec<_>>());
    tables.map_all(0, 0..CHUNK - 1);
    // The second of the four that were filled.
    tables.map_all(0, CHUNK - 1..CHUNK);
    let left = (0..CHUNK).chain(2 * CHUNK..505);
    assert_eq!(tables.mapped(0), left.collect::<Vec<_>>());
    assert_eq!(tables.counts(), (2, 2 * CHUNK as u64));
    tables.finish();
}

/// The one from which was reclaimed comes last: the pmap, or with `pv-stock` the chunk, which the last of these steps tells apart.
#[test]
fn pmaps_take_turns() {
    let tables = Tables::new(2, 3);
    tables.map_all(0, 0..5);
    tables.map_all(1, 0..7);
    for (asks, chunks, removed) in [
        (2, [0, 1, 1, 0], 5),
        (3, [0, 0, 1, 1], 7),
        (0, [1, 0, 0, 1], 1),
        if cfg!(feature = "pv-stock") {
            (1, [1, 1, 0, 0], 1)
        } else {
            (1, [0, 1, 0, 1], 1)
        },
    ] {
        let (_, before) = tables.counts();
        tables.map_all(asks, 9..10);
        assert_eq!(tables.chunks(), chunks, "pmap {asks} asked");
        assert_eq!(tables.counts().1 - before, removed, "pmap {asks} asked");
        tables.check();
    }
    tables.finish();
}

/// Without a limit, when there is no frame for a chunk; and room that others do not get in between.
#[test]
fn without_memory_entries_of_others_are_reclaimed() {
    let tables = Tables::new(0, 1);
    tables.map_all(0, 0..3);
    // So that tables are there.
    tables.map_all(1, 511..512);
    for n in 0..CHUNK - 1 {
        assert_eq!(tables.map(1, n), Ok(()));
    }
    tables.lab.without_memory(|| {
        assert_eq!(tables.map(1, CHUNK), Ok(()));
        assert_eq!(tables.mapped(0), []);
        assert_eq!(tables.chunks(), [0, 2]);
    });
    assert_eq!(tables.counts(), (1, 3));
    tables.finish();
}

#[test]
fn where_nothing_is_listed_nothing_is_reclaimed() {
    let tables = Tables::new(1, 1);
    tables.map_all(0, 0..1);
    tables.lab.remove(0, 0..1);
    // An empty chunk is room.
    tables.map_all(1, 0..1);
    assert_eq!((tables.chunks(), tables.counts()), (vec![0, 1], (1, 0)));
    tables.lab.without_memory(|| {
        let none = Tables::new(1, 0);
        assert_eq!(none.lab.without_memory(|| none.map(0, 0)), Err(NoMemory));
        none.finish();
    });
    tables.finish();
}

/// A and D of the entries go to the pages, and no CPU keeps a translation.
#[test]
fn a_page_that_was_written_is_dirty() {
    let tables = Tables::new(1, 1);
    let lab = &tables.lab;
    lab.run_on(1);
    for n in 0..3 {
        let leaf = Pte::user(lab.frame(0, n), Prot::WRITE).untouched();
        assert_eq!(tables.enter(0, n, leaf), Ok(()));
    }
    lab.play(1, || {
        assert_eq!(lab.write(1, 0, 77), Ok(()));
        assert_eq!(lab.read(1, 1), Ok(0));
    });
    let marks = |n| {
        let page = tables.page(n);
        (page.has(Flags::DIRTY), page.has(Flags::REFERENCED))
    };
    assert_eq!([0, 1, 2].map(marks), [(false, false); 3]);
    tables.map_all(1, 9..10);
    assert_eq!(
        [0, 1, 2].map(marks),
        [(true, true), (false, true), (false, false)]
    );
    lab.play(1, || {
        assert!(lab.read(1, 0).is_err() && lab.write(1, 1, 5).is_err());
    });
    tables.map_all(0, 0..1);
    lab.play(1, || assert_eq!(lab.read(1, 0), Ok(77)));
    lab.stop_on(1);
    tables.finish();
}

/// One flush for a chunk, of the CPUs that run the pmap.
#[test]
fn a_chunk_costs_one_flush() {
    let tables = Tables::new(1, 1);
    tables.lab.run_on(1);
    tables.map_all(0, 0..CHUNK);
    let sent = || {
        let all = tables.lab.vm.pmaps.all_counts();
        all.map(|counts| counts.sent.get()).sum::<u64>()
    };
    let before = sent();
    tables.map_all(1, 0..1);
    assert_eq!(sent() - before, 1);
    tables.lab.stop_on(1);
    tables.finish();
}

#[test]
fn wired_entries_stay() {
    let tables = Tables::new(1, 1);
    let wired = |n| Pte::user(tables.lab.frame(0, n), Prot::READ).wired();
    for n in 0..10 {
        assert_eq!(tables.enter(0, n, wired(n)), Ok(()));
    }
    tables.map_all(0, 10..CHUNK);
    assert_eq!(tables.map(1, 0), Err(NoMemory), "the chunk is not empty");
    assert_eq!(tables.mapped(0), (0..10).collect::<Vec<_>>());
    assert_eq!(tables.counts(), (0, CHUNK as u64 - 10));
    // The pmap's own needs only one entry.
    for n in 10..CHUNK {
        assert_eq!(tables.enter(0, n, wired(n)), Ok(()));
    }
    assert_eq!(tables.map(0, CHUNK), Err(NoMemory));
    tables.lab.remove(0, 5..6);
    assert_eq!(tables.map(0, CHUNK), Ok(()));
    let left = (0..=CHUNK).filter(|&n| n != 5).collect::<Vec<_>>();
    assert_eq!(tables.mapped(0), left);
    tables.finish();
}

/// Beside chunks that cannot be emptied, those that can are found, and what was freed in passing is used.
#[test]
fn every_chunk_of_a_pmap_is_tried() {
    let tables = Tables::new(3, 1);
    let wired = |n| Pte::user(tables.lab.frame(0, n), Prot::READ).wired();
    // One wired entry in each of the two that are filled first.
    for n in 0..2 * CHUNK {
        let leaf = wired(n);
        let leaf = if n % CHUNK == 7 {
            leaf
        } else {
            leaf.without(Pte::WIRED)
        };
        assert_eq!(tables.enter(0, n, leaf), Ok(()));
    }
    tables.map_all(0, 2 * CHUNK..2 * CHUNK + 9);
    assert_eq!(tables.map(1, 0), Ok(()));
    assert_eq!(tables.chunks(), [2, 1]);
    assert_eq!(tables.mapped(0), [7, CHUNK + 7]);
    let before = tables.counts();
    for n in (0..2 * CHUNK).filter(|n| n % CHUNK != 7) {
        assert_eq!(tables.map(0, n), Ok(()));
    }
    assert_eq!(tables.counts(), before, "there was room");
    tables.finish();
}

#[test]
fn leaves_of_2_mib_stay() {
    let tables = Tables::new(4, 1);
    tables.map_all(0, 0..PAGES);
    assert!(tables.lab.promote(0));
    assert_eq!(tables.map(1, 0), Err(NoMemory));
    assert!(tables.lab.is_large(0));
    tables.lab.demote(0);
    assert_eq!(tables.map(1, 0), Ok(()));
    assert_eq!(tables.chunks(), [3, 1]);
    tables.finish();
}

/// The page stays mapped, and nobody waits for its list.
#[cfg(feature = "pv-obm")]
#[test]
fn a_page_whose_list_is_held_is_left_out() {
    let tables = Tables::new(1, 1);
    tables.map_all(0, 0..5);
    let (held, asked) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            ksync::host::set_cpu(1);
            let list = tables.lab.vm.rmap.hold(tables.page(3));
            let list = list.unwrap_or_else(|why| panic!("{why:?}"));
            held.wait();
            asked.wait();
            list.undo();
        });
        held.wait();
        assert_eq!(tables.map(1, 3), Err(NoMemory));
        assert_eq!(tables.mapped(0), [3]);
        asked.wait();
    });
    assert_eq!(tables.map(1, 3), Ok(()));
    assert_eq!(tables.mapped(0), []);
    tables.finish();
}

/// A removal waits for a list with its pmap locked, and so does this.
#[cfg(feature = "pv-stock")]
#[test]
fn a_list_that_is_held_is_waited_for() {
    let tables = Tables::new(1, 1);
    tables.map_all(0, 0..5);
    let held = tables.lab.vm.rmap.hold(tables.page(3));
    let held = held.unwrap_or_else(|why| panic!("{why:?}"));
    thread::scope(|scope| {
        let asks = on_cpu_1(scope, &tables, || tables.map(1, 3));
        wait_for_reclaimer(&tables);
        assert!(!asks.is_finished(), "the list was held");
        assert!(tables.pmap(0).listed().is_locked());
        assert!(!tables.pmap(1).listed().is_locked());
        held.undo();
        assert_eq!(asks.join().expect("no panic"), Ok(()));
    });
    assert_eq!(tables.mapped(0), []);
    assert_eq!(tables.counts(), (1, 5));
    tables.finish();
}

/// The pmap that has the chunk is waited for, without the lock of the one that needs it: its operation may need entries, too.
#[cfg(feature = "pv-stock")]
#[test]
fn a_pmap_that_is_locked_is_waited_for() {
    let tables = Tables::new(1, 1);
    tables.map_all(0, 0..5);
    let operation = tables.lab.vm.rmap.begin(tables.pmap(0));
    thread::scope(|scope| {
        let asks = on_cpu_1(scope, &tables, || tables.map(1, 3));
        wait_for_reclaimer(&tables);
        assert!(!asks.is_finished(), "the pmap was locked");
        assert_eq!(tables.mapped(0), [0, 1, 2, 3, 4]);
        assert!(!tables.pmap(1).listed().is_locked());
        // This needs a chunk, and waits for the turn.
        let prepared = tables
            .lab
            .vm
            .rmap
            .prepare(&tables.lab.vm, operation, tables.pmap(0), 1);
        let (operation, room) = prepared.unwrap_or_else(|why| panic!("{why:?}"));
        drop(room);
        tables.lab.vm.rmap.end(operation);
        assert_eq!(asks.join().expect("no panic"), Ok(()));
    });
    tables.finish();
}

/// The operation that forgets a pmap waits, with its lock, for what is reserved; and what reclaims waits for that lock.
#[cfg(feature = "pv-stock")]
#[test]
fn a_ticket_has_nothing_while_its_operation_waits_for_others() {
    let tables = Tables::new(2, 2);
    let vm = &tables.lab.vm;
    tables.map_all(0, 0..5);
    tables.map_all(1, 0..100);
    let operation = vm.rmap.begin(tables.pmap(0));
    thread::scope(|scope| {
        let asks = on_cpu_1(scope, &tables, || tables.map(2, 3));
        wait_for_reclaimer(&tables);
        let many = scope.spawn(|| {
            ksync::host::set_cpu(2);
            vm.epoch.online(2);
            let guard = vm.rmap.begin(tables.pmap(1));
            // More than are free.
            drop(vm.rmap.prepare(vm, guard, tables.pmap(1), 100));
            vm.epoch.offline(2);
        });
        let ends = scope.spawn(|| {
            ksync::host::set_cpu(3);
            vm.epoch.online(3);
            thread::sleep(std::time::Duration::from_millis(30));
            tables.pmap(1).release(vm);
            vm.epoch.offline(3);
        });
        ends.join().expect("no panic");
        assert!(
            !asks.is_finished() && !many.is_finished(),
            "somebody has the turn"
        );
        vm.rmap.end(operation);
        assert_eq!(asks.join().expect("no panic"), Ok(()));
    });
    tables.finish();
}

/// A chunk that was found and has gone when its pmap is locked is not emptied; the next one is.
#[cfg(feature = "pv-stock")]
#[test]
fn a_chunk_that_has_gone_is_left_alone() {
    let tables = Tables::new(2, 1);
    tables.map_all(0, 0..CHUNK + 9);
    let operation = tables.lab.vm.rmap.begin(tables.pmap(0));
    thread::scope(|scope| {
        let asks = on_cpu_1(scope, &tables, || tables.map(1, 3));
        wait_for_reclaimer(&tables);
        assert!(!asks.is_finished(), "the pmap was locked");
        // As an operation does that has the lock: the first chunk goes.
        for n in 0..CHUNK {
            let (va, pfn) = (Runs::va(0, n), tables.lab.frame(0, n));
            let pin = ksync::pin();
            let gone = tables.pmap(0).scan_remove(&tables.lab.vm, &pin, va, pfn);
            assert!(gone.pte().is_some());
        }
        tables.lab.vm.rmap.tidy(&tables.lab.vm, tables.pmap(0));
        assert_eq!(tables.chunks(), [1, 0]);
        tables.lab.vm.rmap.end(operation);
        assert_eq!(asks.join().expect("no panic"), Ok(()));
    });
    assert!(tables.is_mapped(1, 3));
    tables.finish();
}

#[test]
fn entries_of_tickets_stay() {
    let tables = Tables::new(1, 1);
    let room = vm_host::ticket(&tables.lab.vm, tables.pmap(0));
    assert_eq!(tables.map(1, 0), Err(NoMemory));
    let leaf = Pte::user(tables.lab.frame(0, 1), Prot::READ);
    let pmap = tables.pmap(0);
    let done = pmap.enter(
        &tables.lab.vm,
        &ksync::pin(),
        &room,
        Runs::va(0, 1),
        leaf,
        || true,
    );
    assert_eq!(done, Ok(Entered::New));
    drop(room);
    assert_eq!(tables.map(1, 0), Ok(()));
    assert_eq!(tables.mapped(0), []);
    tables.finish();
}

/// The work of a clock tick; and gives the other CPUs the time for theirs if fewer than `least` frames are free.
fn tick(vm: &Vm<Sim>, least: usize) {
    for _ in 0..1_000_000 {
        vm.epoch.quiescent(&mut ksync::pin());
        vm.epoch.reclaim(&ksync::pin());
        vm.poll_limbo(&ksync::pin());
        if vm.alloc.free_pages() >= least {
            return;
        }
        thread::yield_now();
    }
    panic!("frames wait for ever");
}

/// Each of three pmaps takes the chunks of the others, one of which ends all the time.
#[test]
fn a_pmap_is_forgotten_beside_reclaimers() {
    const ROUNDS: usize = 200;
    let tables = Tables::new(1, 1);
    let (vm, done) = (&tables.lab.vm, AtomicUsize::new(0));
    let end = || {
        done.fetch_add(1, SeqCst);
        while done.load(SeqCst) < 2 {
            tick(vm, 0);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            ksync::host::set_cpu(1);
            vm.epoch.online(1);
            for round in 0..ROUNDS {
                let pmap = Arc::new(Pmap::new());
                for n in 0..=round % 9 {
                    let leaf = Pte::user(tables.lab.frame(1, n), Prot::READ);
                    assert_eq!(enter(vm, &pmap, Runs::va(1, n), leaf), Ok(()));
                }
                pmap.release(vm);
                tick(vm, 200);
            }
            end();
            vm.epoch.offline(1);
        });
        for n in 0..ROUNDS {
            // Each takes from the other, or from the one that ends.
            for pmap in [0, 1] {
                if !tables.is_mapped(pmap, n) {
                    assert_eq!(tables.map(pmap, n), Ok(()));
                }
            }
            tick(vm, 200);
        }
        end();
    });
    assert!(tables.counts().0 > ROUNDS as u64, "{:?}", tables.counts());
    tables.finish();
}

const CPUS: usize = 3;
const WORDS: usize = 200;

/// What all CPUs of a test have.
struct Shared {
    lab: Lab,
    file: ObjectRef,
    /// What each word of the file should have.
    sums: Vec<AtomicU64>,
}

impl Shared {
    fn map(&self, program: &Program) {
        let args = MapArgs::anon(WORDS as u64 * PAGE, MapProt::all());
        let private = args.at(AT);
        assert_eq!(program.space.map(&self.lab.vm, &private), Ok(AT));
        let shared = MapArgs {
            source: Source::Object(&self.file, 0),
            flags: EntryFlags::SHARED,
            ..MapArgs::anon(WORDS as u64 * PAGE, MapProt::all()).at(FILE)
        };
        assert_eq!(program.space.map(&self.lab.vm, &shared), Ok(FILE));
    }

    /// A program that writes its own pages and those of the file, reads them again, forks, and ends.
    fn life(&self, random: &mut Random) {
        let program = Program::new(&self.lab.vm);
        self.map(&program);
        let mut own = [0; WORDS];
        program.run(|program| self.work(program, &mut own, 400, random));
        let child = program.fork().expect("memory");
        let mut childs = own;
        child.run(|child| self.work(child, &mut childs, 150, random));
        drop(child);
        program.run(|program| {
            for (n, word) in own.iter().enumerate() {
                assert_eq!(program.read(AT + n as u64 * PAGE), Ok(*word), "page {n}");
                tick(&self.lab.vm, 1000);
            }
        });
    }

    fn work(&self, program: &Program, own: &mut [u64], steps: usize, random: &mut Random) {
        for _ in 0..steps {
            let n = random.below_u64(WORDS as u64);
            let (at, word) = (n * PAGE, &mut own[n as usize]);
            assert_eq!(program.read(AT + at), Ok(*word));
            *word += 1;
            assert_eq!(program.write(AT + at, *word), Ok(()));
            let add = |word: &AtomicU64| word.fetch_add(1, SeqCst);
            assert!(program.update(FILE + at, add).is_ok());
            self.sums[n as usize].fetch_add(1, SeqCst);
            tick(&self.lab.vm, 1000);
        }
    }
}

/// Programs on three CPUs need many times the entries that there are. No store is lost, whatever is unmapped beside it.
#[test]
fn programs_run_with_few_entries() {
    for chunks in [1, 2, 4] {
        let lab = Lab::new(1 << 13, CPUS);
        lab.vm.rmap.limit_chunks(chunks);
        let file = ObjectRef::new_file(&lab.vm, None).expect("memory");
        file.truncate(&lab.vm, WORDS as u64 * PAGE);
        let sums = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let shared = Shared { lab, file, sums };
        thread::scope(|scope| {
            for cpu in 0..CPUS {
                let shared = &shared;
                scope.spawn(move || {
                    let mut random = Random(cpu as u64 + 1);
                    shared.lab.join(cpu, || {
                        (0..3).for_each(|_| shared.life(&mut random));
                    });
                });
            }
        });
        let Shared { lab, file, sums } = shared;
        let counts = lab.vm.counts();
        assert!(counts.pv_chunks_reclaimed > 5, "{counts:?}");
        lab.join(0, || {
            let reader = Program::new(&lab.vm);
            let args = MapArgs {
                source: Source::Object(&file, 0),
                ..MapArgs::anon(WORDS as u64 * PAGE, MapProt::READ).at(FILE)
            };
            assert_eq!(reader.space.map(&lab.vm, &args), Ok(FILE));
            reader.run(|reader| {
                for (n, sum) in sums.iter().enumerate() {
                    let word = reader.read(FILE + n as u64 * PAGE);
                    assert_eq!(word, Ok(sum.load(SeqCst)), "page {n}");
                }
            });
        });
        file.release(&lab.vm);
        lab.finish();
    }
}
