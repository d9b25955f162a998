//! What one CPU stores, and what other CPUs may still read, word by word.
//!
//! Several CPUs share a page, and each has a word in it. The value that a CPU reads in another's word is checked
//! against the values that were stored before the read, and those that were discarded.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle_words`; see `shuttle.rs`.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use shuttle::thread;
use vm::space::{Advice, Source};
use vm::{FaultError, Gather};
use vm_host::Access;
use vm_host::schedules::{AT, PAGE, World, explore, join, program, spawn, stop_everywhere};

/// One word of the first page for each CPU, and the last value that each has stored there, recorded after the store.
struct Words {
    world: Arc<World>,
    stored: [AtomicU64; 4],
    /// Whether contents may be discarded.
    discards: bool,
}

/// Values of other CPUs' words that a CPU has found discarded.
type Lost = [u64; 4];

impl Words {
    fn va(cpu: usize) -> u64 {
        AT + 64 * cpu as u64
    }

    /// A CPU stores to its word and reads the others'.
    fn play(&self, cpu: usize, with: &[usize]) {
        let mut lost = Lost::default();
        for n in 1..=2 {
            let store = |word: &AtomicU64| word.store(n, SeqCst);
            let space = &self.world.space;
            let done = self
                .world
                .lab
                .touch(space, cpu, Words::va(cpu), Access::Write, store);
            assert_eq!(done, Ok(()));
            self.stored[cpu].store(n, SeqCst);
            with.iter()
                .for_each(|&other| self.look(cpu, other, &mut lost));
        }
        with.iter()
            .for_each(|&other| self.look(cpu, other, &mut lost));
    }

    /// A CPU reads all words and stores to its own, whenever it can without a fault: other CPUs must see stores that it
    /// can make.
    fn be_eager(&self, cpu: usize) {
        let mut n = 1;
        for _ in 0..64 {
            let store = |word: &AtomicU64| word.store(n, SeqCst);
            let machine = &self.world.lab.vm.machine;
            if machine
                .access(cpu, Words::va(cpu), Access::Write, store)
                .is_ok()
            {
                self.stored[cpu].store(n, SeqCst);
                n += 1;
            }
            thread::yield_now();
        }
    }

    /// A read returns a value stored before it or since; or nothing if that was discarded, and then never the value
    /// again.
    fn look(&self, cpu: usize, other: usize, lost: &mut Lost) {
        let before = self.stored[other].load(SeqCst);
        let load = |word: &AtomicU64| word.load(SeqCst);
        let space = &self.world.space;
        let seen = self
            .world
            .lab
            .touch(space, cpu, Words::va(other), Access::Read, load);
        let seen = seen.expect("memory");
        let after = self.stored[other].load(SeqCst) + 1;
        let fresh = (before..=after).contains(&seen);
        let gone = self.discards && seen == 0;
        assert!(
            (fresh || gone) && (seen == 0 || seen > lost[other]),
            "CPU {cpu} reads {seen} where CPU {other} has stored {before}, after it was {lost:?}"
        );
        if gone {
            lost[other] = lost[other].max(before);
        }
    }
}

/// CPU 1 stores to a page; CPU 2 reads, through its cached translation, what CPU 1 and CPU 3 store; CPU 3 stores
/// through the entry that it finds. Meanwhile another CPU runs `other`.
fn stores_are_seen(world: &Arc<World>, discards: bool, other: fn(&World)) {
    let words = Arc::new(Words {
        world: world.clone(),
        stored: Default::default(),
        discards,
    });
    let players: [fn(&Words); 3] = [
        |words| words.play(1, &[2, 3]),
        |words| words.play(2, &[1, 3]),
        |words| words.be_eager(3),
    ];
    let mut cpu = 0;
    let players = players.map(|play| {
        cpu += 1;
        let words = words.clone();
        program(world, cpu, move |world| {
            world.lab.vm.machine.speculate(cpu, AT);
            play(&words);
        })
    });
    let other = spawn(world, 4, other);
    join(players.into_iter().chain([other]));
}

#[test]
fn a_store_beside_a_fork_is_seen_by_all() {
    explore(|world| {
        world.map(false, Source::Anon);
        world.touched(vm::Access::Write);
        let first = world.space.fork(&world.lab.vm).unwrap();
        stores_are_seen(world, false, |world| {
            let child = world.space.fork(&world.lab.vm).unwrap();
            let words = || [1, 2].map(|cpu| world.word_at(&child, Words::va(cpu)));
            let before = words();
            thread::yield_now();
            assert_eq!(words(), before, "a child saw a later store");
            child.clear(&world.lab.vm);
        });
        assert_eq!(world.word_at(&first, Words::va(1)), 0);
        first.clear(&world.lab.vm);
    });
}

#[test]
fn a_store_beside_scans_is_seen_by_all() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(false, Source::Object(&world.file, 0));
        world.touched(vm::Access::Read);
        stores_are_seen(world, false, |world| {
            world.scan(&world.file);
            let mut gather = Gather::new();
            let pmap = world.space.pmap();
            pmap.remove_range(&world.lab.vm, AT, AT + PAGE, &mut gather);
            gather.finish(&world.lab.vm);
        });
    });
}

#[test]
fn a_store_beside_a_hole_is_seen_by_all() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        world.touched(vm::Access::Read);
        stores_are_seen(world, true, |world| {
            world.file.punch(&world.lab.vm, 0, PAGE);
        });
    });
}

#[test]
fn a_store_beside_a_discard_is_seen_by_all() {
    explore(|world| {
        world.map(false, Source::Anon);
        world.touched(vm::Access::Write);
        stores_are_seen(world, true, |world| {
            let done = world
                .space
                .advise(&world.lab.vm, AT, PAGE, Advice::DontNeed);
            assert_eq!(done, Ok(()));
        });
    });
}

/// One CPU copies on write, stopped after each step in turn; a second one reads what it stored; a third one stores
/// through the entry that exists.
#[test]
fn a_copy_that_is_stopped_anywhere_is_seen_by_all() {
    stop_everywhere(|world| {
        world.map(false, Source::Anon);
        world.touched(vm::Access::Write);
        let child = world.space.fork(&world.lab.vm).unwrap();
        stores_are_seen(world, false, |_| ());
        assert_eq!(world.word_at(&child, Words::va(1)), 0);
        child.clear(&world.lab.vm);
    });
}

/// A word of a file's page for each of two CPUs that store through mappings, while the file is truncated, extended, and
/// read.
struct FileWords {
    /// The last value that each has stored, recorded after the store.
    stored: [AtomicU64; 3],
    /// Of these, the values discarded by a completed truncation.
    gone: [AtomicU64; 3],
}

impl FileWords {
    /// Checks the value `seen` in a CPU's word by a read that began with `gone`.
    fn judge(&self, cpu: usize, gone: u64, seen: u64) {
        let last = self.stored[cpu].load(SeqCst) + 1;
        assert!(
            seen == 0 || gone < seen && seen <= last,
            "word {cpu} is {seen}, where {gone} was thrown away and {last} is the next one"
        );
    }

    /// Stores to the CPU's word and reads all, through the mapping.
    fn play(&self, world: &World, cpu: usize) {
        for _ in 0..3 {
            let n = self.stored[cpu].load(SeqCst) + 1;
            let store = |word: &AtomicU64| word.store(n, SeqCst);
            let va = Words::va(cpu);
            match world.lab.touch(&world.space, cpu, va, Access::Write, store) {
                Ok(()) => self.stored[cpu].store(n, SeqCst),
                Err(why) => assert_eq!(why, FaultError::Bus),
            }
            for other in [1, 2] {
                let gone = self.gone[other].load(SeqCst);
                let load = |word: &AtomicU64| word.load(SeqCst);
                let va = Words::va(other);
                match world.lab.touch(&world.space, cpu, va, Access::Read, load) {
                    Ok(seen) => self.judge(other, gone, seen),
                    Err(why) => assert_eq!(why, FaultError::Bus),
                }
            }
        }
    }

    /// Reads the file as read(2) does.
    fn read(&self, world: &World) {
        for cpu in [1, 2, 1, 2] {
            let gone = self.gone[cpu].load(SeqCst);
            let mut bytes = [0; 8];
            let mut copy = |piece: &[u8]| {
                let len = piece.len().min(8);
                bytes[..len].copy_from_slice(&piece[..len]);
                len
            };
            let offset = Words::va(cpu) - AT;
            world.file.read(&world.lab.vm, offset, &mut copy);
            self.judge(cpu, gone, u64::from_le_bytes(bytes));
        }
    }

    /// Truncates the file and extends it to its former length.
    fn cut(&self, world: &World) {
        for _ in 0..2 {
            let before = [1, 2].map(|cpu| (cpu, self.stored[cpu].load(SeqCst)));
            world.file.truncate(&world.lab.vm, 0);
            for (cpu, stored) in before {
                self.gone[cpu].store(stored, SeqCst);
            }
            world.file.truncate(&world.lab.vm, PAGE);
        }
    }
}

/// The parts of [`reader_truncation_and_faults`], one per CPU.
type Part = fn(&FileWords, &World, usize);

fn reader_truncation_and_faults(world: &Arc<World>, parts: [Part; 4]) {
    world.file.truncate(&world.lab.vm, PAGE);
    world.map(true, Source::Object(&world.file, 0));
    let words = Arc::new(FileWords {
        stored: Default::default(),
        gone: Default::default(),
    });
    // CPUs 1 and 2 run the program.
    let cpus = [1, 2, 3, 4].map(|cpu| {
        let words = words.clone();
        let part = parts[cpu - 1];
        program(world, cpu, move |world| part(&words, world, cpu))
    });
    join(cpus);
}

const STORES: Part = |words, world, cpu| words.play(world, cpu);
const READS: Part = |words, world, _| words.read(world);
const CUTS: Part = |words, world, _| words.cut(world);

#[test]
fn nobody_sees_again_what_a_truncation_threw_away() {
    explore(|world| reader_truncation_and_faults(world, [STORES, STORES, READS, CUTS]));
}

#[test]
fn nobody_sees_what_a_truncation_threw_away_wherever_a_store_is_stopped() {
    stop_everywhere(|world| reader_truncation_and_faults(world, [STORES, STORES, CUTS, READS]));
}
