//! One program on many CPUs, in memory where one fault fills 2 MiB: workers count in their own words, while the program forks,
//! changes its map, gives memory back, and pages and tables are removed.
#![cfg(not(any(loom, shuttle, feature = "listed")))]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget, Source};
use vm::{EntryFlags, FaultError, MapProt, Pfn, Tuning, Vm};
use vm_host::program::Program;
use vm_host::{Lab, Random, Sim};

const PAGE: u64 = 4096;
/// Pages of a block.
const BLOCK: u64 = 512;
const BYTES: u64 = BLOCK * PAGE;
const RW: MapProt = MapProt::READ.union(MapProt::WRITE);
const PRIVATE: u64 = 0x10_0000_0000;
const SHARED: u64 = 0x20_0000_0000;
const SCRATCH: u64 = 0x40_0000_0000;
/// Blocks of the workers' memory, of each kind.
const BLOCKS: u64 = 2;
/// Blocks behind the workers', of the same entry, that one role gives back again and again.
const GIVEN: u64 = 2;
const WORKERS: usize = 2;
/// Workers, forker, mapper, scanner, one that gives back.
const CPUS: usize = WORKERS + 4;
const FRAMES: usize = 24 << 10;
const ROUNDS: usize = 500;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

struct World {
    lab: Lab,
    program: Program,
    done: AtomicBool,
    rounds: AtomicUsize,
    failing: bool,
    forks: bool,
}

/// Ends the test for all threads when one thread ends, or fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn fixed(at: u64, pages: u64) -> MapArgs<'static> {
    MapArgs::anon(pages * PAGE, RW).at(at)
}

impl World {
    fn new(failing: bool, forks: bool, tuning: Tuning) -> World {
        let lab = Lab::with_superpages(FRAMES, CPUS, tuning);
        let program = Program::new(&lab.vm);
        let done = program
            .space
            .map(&lab.vm, &fixed(PRIVATE, (BLOCKS + GIVEN) * BLOCK));
        assert_eq!(done, Ok(PRIVATE));
        let object = ObjectRef::new_shared(&lab.vm, BLOCKS * BYTES).expect("memory");
        let args = MapArgs {
            flags: EntryFlags::SHARED,
            source: Source::Object(&object, 0),
            ..fixed(SHARED, BLOCKS * BLOCK)
        };
        assert_eq!(program.space.map(&lab.vm, &args), Ok(SHARED));
        object.release(&lab.vm);
        World {
            lab,
            program,
            done: AtomicBool::new(false),
            rounds: AtomicUsize::new(0),
            failing,
            forks,
        }
    }

    fn vm(&self) -> &Arc<Vm<Sim>> {
        &self.lab.vm
    }

    fn tick(&self) {
        self.lab.tick();
        // A thread that the host does not run delays every grace period: give it time.
        let mut patience = 0;
        while self.vm().alloc.free_pages() < FRAMES / 2
            && patience < 5000
            && !self.done.load(Relaxed)
        {
            self.lab.tick();
            std::thread::yield_now();
            patience += 1;
        }
    }

    fn another_round(&self) -> bool {
        self.tick();
        let more = self.rounds.fetch_add(1, Relaxed) < ROUNDS && !self.done.load(Relaxed);
        if !more {
            self.done.store(true, Relaxed);
        }
        more
    }

    /// Tries again where an allocation was made to fail.
    fn had<R>(&self, mut act: impl FnMut() -> Result<R, FaultError>) -> Result<R, FaultError> {
        loop {
            match act() {
                Err(FaultError::NoMemory) if self.failing || self.done.load(Relaxed) => {
                    self.lab.tick();
                    std::thread::yield_now();
                }
                result => return result,
            }
        }
    }

    fn worker(&self, n: u64, random: &mut Random) {
        let p = &self.program;
        p.load();
        let pages = BLOCKS * BLOCK;
        let mut counts = vec![0; 2 * pages as usize];
        let mut round = 0;
        while !self.done.load(Relaxed) {
            let at = random.below_u64(2 * pages);
            let base = if at < pages { PRIVATE } else { SHARED };
            let va = base + (at % pages) * PAGE + n * 8;
            let count = &mut counts[at as usize];
            if random.below_u64(3) == 0 {
                let read = self.had(|| p.read(va));
                assert_eq!(read, Ok(*count), "worker {n} at {va:#x}");
            } else {
                let before = self.had(|| p.update(va, |word| word.fetch_add(1, Relaxed)));
                assert_eq!(before, Ok(*count), "worker {n} at {va:#x}");
                *count += 1;
            }
            round += 1;
            if round % 16 == 0 {
                self.tick();
            }
            if round % 256 == 0 {
                p.unload();
                p.load();
            }
        }
        p.unload();
    }

    /// What no worker stores to reads as it was stored by this role, or as zero once it was given back.
    fn giver(&self, random: &mut Random) {
        let p = &self.program;
        p.load();
        let base = PRIVATE + BLOCKS * BYTES;
        while self.another_round() {
            let (first, len) = match random.below_u64(3) {
                0 => (0, GIVEN * BLOCK),
                1 => (random.below_u64(GIVEN) * BLOCK, BLOCK),
                _ => (random.below_u64(GIVEN * BLOCK - 8), 8),
            };
            let pages = [first, first + len / 2, first + len - 1];
            for n in pages {
                let stored = self.had(|| p.write(base + n * PAGE, n + 1));
                assert_eq!(stored, Ok(()));
            }
            let given =
                p.space
                    .advise(self.vm(), base + first * PAGE, len * PAGE, Advice::DontNeed);
            if given.is_ok() {
                for n in pages {
                    let read = self.had(|| p.read(base + n * PAGE));
                    assert_eq!(read, Ok(0), "page {n} was given back");
                }
            } else {
                assert!(self.failing);
            }
        }
        p.unload();
    }

    fn forker(&self, random: &mut Random) {
        let mut line: Vec<Program> = Vec::new();
        while self.another_round() {
            let parent = if line.is_empty() || random.below_u64(3) == 0 {
                &self.program
            } else {
                &line[line.len() - 1]
            };
            let Ok(child) = parent.fork() else {
                assert!(self.failing);
                continue;
            };
            child.run(|c| {
                let words: Vec<u64> = (0..24)
                    .map(|n| {
                        PRIVATE + random.below_u64(BLOCKS * BLOCK) * PAGE + n % WORKERS as u64 * 8
                    })
                    .collect();
                let read = |va: &u64| self.had(|| c.read(*va)).expect("it is mapped");
                let first: Vec<u64> = words.iter().map(read).collect();
                for va in &words[..6] {
                    let stored = self.had(|| c.write((va & !0xfff) + 64, va & !0xfff));
                    assert_eq!(stored, Ok(()));
                }
                let second: Vec<u64> = words.iter().map(read).collect();
                assert_eq!(first, second, "a child saw its parent's store");
                for va in &words[..6] {
                    assert_eq!(read(&((va & !0xfff) + 64)), va & !0xfff);
                }
            });
            line.push(child);
            if line.len() > 3 {
                line.remove(random.below_u64(3) as usize);
            }
        }
    }

    /// Stores to what another role gives back: a word has what was stored last, or is zero from then on.
    fn contender(&self, random: &mut Random) {
        let p = &self.program;
        p.load();
        let pages = GIVEN * BLOCK;
        let mut words = vec![0; pages as usize];
        let mut value = 0;
        while !self.done.load(Relaxed) {
            self.tick();
            for _ in 0..8 {
                let at = random.below_u64(pages);
                let word = &mut words[at as usize];
                let va = PRIVATE + BLOCKS * BYTES + at * PAGE + 72;
                let read = self.had(|| p.read(va)).expect("it is mapped");
                assert!(read == 0 || read == *word, "{read} at {va:#x}");
                *word = read;
                if random.below_u64(2) == 0 {
                    value += 1;
                    let stored = self.had(|| p.write(va, value));
                    assert_eq!(stored, Ok(()));
                    *word = value;
                }
            }
        }
        p.unload();
    }

    fn mapper(&self, random: &mut Random) {
        let p = &self.program;
        p.load();
        while self.another_round() {
            let at = SCRATCH + random.below_u64(2) * BYTES + random.below_u64(2) * PAGE;
            let pages = BLOCK + random.below_u64(2) * 300;
            let looked = [0, pages / 2, pages - 1];
            if p.space.map(self.vm(), &fixed(at, pages)).is_err() {
                assert!(self.failing);
                continue;
            }
            for n in looked {
                if random.below_u64(2) == 0 {
                    let read = self.had(|| p.read(at + n * PAGE));
                    assert_eq!(read, Ok(0), "fresh memory is not zero");
                }
                let stored = self.had(|| p.write(at + n * PAGE, n + 1));
                assert_eq!(stored, Ok(()));
            }
            for n in 0..pages {
                if random.below_u64(32) == 0 && !looked.contains(&n) {
                    let read = self.had(|| p.read(at + n * PAGE));
                    assert_eq!(read, Ok(0), "fresh memory is not zero");
                }
            }
            self.change(at, pages, random);
        }
        p.unload();
    }

    fn change(&self, at: u64, pages: u64, random: &mut Random) {
        let (p, vm) = (&self.program, self.vm());
        let part = random.below_u64(2) * 7;
        let (from, len) = (at + part * PAGE, (pages - part) * PAGE);
        let last = at + (pages - 1) * PAGE;
        let done = match random.below_u64(5) {
            0 => p.space.unmap(vm, from, len).inspect(|()| {
                assert_eq!(self.had(|| p.read(last)), Err(FaultError::NotMapped));
                assert_eq!(self.had(|| p.write(from, 1)), Err(FaultError::NotMapped));
            }),
            1 => p.space.protect(vm, from, len, MapProt::READ).inspect(|()| {
                assert_eq!(self.had(|| p.write(last, 1)), Err(FaultError::Denied));
                assert_eq!(self.had(|| p.read(last)), Ok(pages));
            }),
            2 => p
                .space
                .advise(vm, from, len, Advice::DontNeed)
                .inspect(|()| {
                    assert_eq!(self.had(|| p.read(last)), Ok(0));
                }),
            3 => {
                let to = SCRATCH + 64 * BYTES + random.below_u64(2) * 5 * PAGE;
                let args = RemapArgs {
                    old: from,
                    old_len: len,
                    new_len: len,
                    target: RemapTarget::Fixed(to),
                    keep_old: random.below_u64(2) == 0,
                };
                let keep = args.keep_old;
                p.space.remap(vm, &args).map(|_| {
                    assert_eq!(self.had(|| p.read(to + len - PAGE)), Ok(pages));
                    let old = self.had(|| p.read(last));
                    let gone = if keep {
                        Ok(0)
                    } else {
                        Err(FaultError::NotMapped)
                    };
                    assert_eq!(old, gone);
                })
            }
            _ => {
                let _more = p.space.maintain(vm);
                Ok(())
            }
        };
        assert!(done.is_ok() || self.failing, "{done:?}");
    }

    fn scanner(&self, random: &mut Random) {
        let mut period = 0;
        while !self.done.load(Relaxed) {
            for _ in 0..200 {
                let at = Pfn(random.below_u64(FRAMES as u64) as u32);
                let _removed = self.vm().chaos_scan(at);
            }
            if random.below_u64(8) == 0 {
                self.program.space.drop_tables(self.vm());
            }
            if self.failing {
                period = (period + 1) % 7;
                let each = if period == 0 { 0 } else { period + 1 };
                self.vm().alloc.set_injector(each, 1);
            }
            self.tick();
        }
        self.vm().alloc.set_injector(0, 0);
    }
}

fn everything_at_once(failing: bool, forks: bool, tuning: Tuning, seed: u64) {
    let world = World::new(failing, forks, tuning);
    let play = |cpu: usize, role: &dyn Fn(&mut Random)| {
        let _stop = Stop(&world.done);
        ksync::host::set_cpu(cpu);
        world.vm().epoch.online(cpu);
        role(&mut Random(seed ^ (cpu as u64 + 1) << 32));
        world.vm().epoch.offline(cpu);
    };
    world.vm().epoch.offline(0);
    let (play, it) = (&play, &world);
    std::thread::scope(|scope| {
        for n in 0..WORKERS {
            scope.spawn(move || play(n, &|random| it.worker(n as u64, random)));
        }
        scope.spawn(move || {
            play(WORKERS, &|random| {
                if it.forks {
                    it.forker(random)
                } else {
                    it.contender(random)
                }
            });
        });
        scope.spawn(move || play(WORKERS + 1, &|random| it.mapper(random)));
        scope.spawn(move || play(WORKERS + 2, &|random| it.scanner(random)));
        scope.spawn(move || play(WORKERS + 3, &|random| it.giver(random)));
    });
    let World { lab, program, .. } = world;
    ksync::host::set_cpu(0);
    lab.vm.epoch.online(0);
    drop(program);
    lab.finish();
    let counts = lab.vm.counts();
    assert_eq!(counts.leaves(), 0);
}

#[test]
fn a_program_with_leaves_survives_everything_at_once() {
    everything_at_once(false, false, Tuning::DEFAULT, SEED);
}

#[test]
fn it_survives_forks() {
    everything_at_once(false, true, Tuning::DEFAULT, SEED);
}

#[test]
fn it_survives_where_allocations_fail() {
    everything_at_once(true, false, Tuning::SMALL, SEED);
}

#[test]
fn it_survives_forks_where_allocations_fail() {
    everything_at_once(true, true, Tuning::SMALL, SEED);
}
