//! One program on many CPUs: workers count in their own words, while the program forks and changes its map, and pages
//! and page tables are removed.
//!
//! A lost count, a child that sees a later store of its parent, a page with old contents, or a missing frame at the end
//! each show a hole in a protocol of `doc/vm.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use vm::object::ObjectRef;
use vm::space::{Advice, MapArgs, RemapArgs, RemapTarget, Source};
use vm::{EntryFlags, FaultError, MapProt, Pfn, Vm};
use vm_host::program::{Program, check_frames};
use vm_host::{Random, Sim};

const PAGE: u64 = 4096;
const PRIVATE: u64 = 0x10_0000_0000;
const SHARED: u64 = 0x20_0000_0000;
const FILE: u64 = 0x30_0000_0000;
const SCRATCH: u64 = 0x40_0000_0000;
const PAGES: u64 = 48;
const WORKERS: usize = 3;
/// Workers, forker, mapper, scanner, truncater.
const CPUS: usize = WORKERS + 4;
const FRAMES: usize = 1 << 15;
const ROUNDS: usize = 4000;

struct World {
    vm: Arc<Vm<Sim>>,
    program: Program,
    file: ObjectRef,
    done: AtomicBool,
    rounds: AtomicUsize,
}

/// Ends the test for all threads when one thread ends, or fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn fixed(at: u64, pages: u64, flags: EntryFlags) -> MapArgs<'static> {
    MapArgs {
        flags,
        ..MapArgs::anon(pages * PAGE, MapProt::all()).at(at)
    }
}

impl World {
    fn new() -> World {
        let vm = Arc::new(Sim::new(FRAMES, CPUS, 1).into_vm());
        vm_host::obstruct(&vm);
        let program = Program::new(&vm);
        let file = ObjectRef::new_file(&vm, None).unwrap();
        file.truncate(&vm, PAGES * PAGE);
        program
            .space
            .map(&vm, &fixed(PRIVATE, PAGES, EntryFlags::empty()))
            .unwrap();
        program
            .space
            .map(&vm, &fixed(SHARED, PAGES, EntryFlags::SHARED))
            .unwrap();
        let source = Source::Object(&file, 0);
        program
            .space
            .map(
                &vm,
                &MapArgs {
                    source,
                    ..fixed(FILE, PAGES, EntryFlags::SHARED)
                },
            )
            .unwrap();
        World {
            vm,
            program,
            file,
            done: AtomicBool::new(false),
            rounds: AtomicUsize::new(0),
        }
    }

    fn tick(&self) {
        self.vm.epoch.quiescent(&mut ksync::pin());
        self.vm.epoch.reclaim(&ksync::pin());
        self.vm.poll_limbo(&ksync::pin());
        // A thread that the host does not run delays every grace period: give it time.
        let mut patience = 0;
        while self.vm.alloc.free_pages() < FRAMES / 2 && patience < 5000 && !self.done.load(Relaxed)
        {
            self.vm.epoch.quiescent(&mut ksync::pin());
            self.vm.epoch.reclaim(&ksync::pin());
            self.vm.poll_limbo(&ksync::pin());
            std::thread::yield_now();
            patience += 1;
        }
    }

    /// Whether to start another round of a role that determines the length of the test.
    fn another_round(&self) -> bool {
        self.tick();
        let more = self.rounds.fetch_add(1, Relaxed) < ROUNDS;
        if !more {
            self.done.store(true, Relaxed);
        }
        more
    }

    fn worker(&self, n: u64, random: &mut Random) {
        let p = &self.program;
        p.load();
        let mut counts = vec![0; 2 * PAGES as usize];
        let mut round = 0;
        while !self.done.load(Relaxed) {
            let at = random.below_u64(2 * PAGES);
            let base = if at < PAGES { PRIVATE } else { SHARED };
            let va = base + (at % PAGES) * PAGE + n * 8;
            let count = &mut counts[at as usize];
            match random.below_u64(3) {
                0 => assert_eq!(p.read(va), Ok(*count), "worker {n} at {va:#x}"),
                _ => {
                    let before = p.update(va, |word| word.fetch_add(1, Relaxed)).unwrap();
                    assert_eq!(before, *count, "worker {n} at {va:#x}");
                    *count += 1;
                }
            }
            match p.read(FILE + random.below_u64(PAGES) * PAGE) {
                Ok(_) | Err(FaultError::Bus) => {}
                other => panic!("{other:?}"),
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

    fn forker(&self, random: &mut Random) {
        let mut line: Vec<Program> = Vec::new();
        while self.another_round() {
            let parent = if line.is_empty() || random.below_u64(3) == 0 {
                &self.program
            } else {
                &line[line.len() - 1]
            };
            let child = parent.fork().unwrap();
            child.run(|c| {
                let words: Vec<u64> = (0..PAGES)
                    .map(|page| PRIVATE + page * PAGE + random.below_u64(3) * 8)
                    .collect();
                let first: Vec<_> = words.iter().map(|&va| c.read(va).unwrap()).collect();
                let own = PRIVATE + random.below_u64(PAGES) * PAGE + 64;
                c.write(own, 1).unwrap();
                for (va, want) in words.iter().zip(first) {
                    assert_eq!(
                        c.read(*va),
                        Ok(want),
                        "a child saw its parent's store at {va:#x}"
                    );
                }
                assert_eq!(c.read(own), Ok(1));
            });
            line.push(child);
            if line.len() > 8 {
                line.remove(random.below_u64(8) as usize);
            }
        }
        self.done.store(true, Relaxed);
    }

    fn mapper(&self, random: &mut Random) {
        let p = &self.program;
        p.load();
        while self.another_round() {
            let (at, pages) = (
                SCRATCH + random.below_u64(8) * PAGE,
                1 + random.below_u64(6),
            );
            p.space
                .map(&self.vm, &fixed(at, pages, EntryFlags::empty()))
                .unwrap();
            for n in 0..pages {
                assert_eq!(p.read(at + n * PAGE), Ok(0), "fresh memory is not zero");
                p.write(at + n * PAGE, n + 1).unwrap();
            }
            match random.below_u64(5) {
                0 => {
                    p.space.unmap(&self.vm, at, pages * PAGE).unwrap();
                    assert_eq!(p.read(at), Err(FaultError::NotMapped));
                }
                1 => {
                    p.space
                        .protect(&self.vm, at, pages * PAGE, MapProt::READ)
                        .unwrap();
                    assert_eq!(p.write(at, 1), Err(FaultError::Denied));
                    assert_eq!(p.read(at), Ok(1));
                }
                2 => {
                    p.space
                        .advise(&self.vm, at, pages * PAGE, Advice::DontNeed)
                        .unwrap();
                    assert_eq!(p.read(at), Ok(0));
                }
                3 => {
                    let to = SCRATCH + 64 * PAGE;
                    let args = RemapArgs {
                        old: at,
                        old_len: pages * PAGE,
                        new_len: pages * PAGE,
                        target: RemapTarget::Fixed(to),
                        keep_old: false,
                    };
                    p.space.remap(&self.vm, &args).unwrap();
                    assert_eq!(p.read(at), Err(FaultError::NotMapped));
                    (0..pages).for_each(|n| assert_eq!(p.read(to + n * PAGE), Ok(n + 1)));
                }
                _ => drop(p.space.maintain(&self.vm)),
            }
        }
        self.done.store(true, Relaxed);
        p.unload();
    }

    fn scanner(&self, random: &mut Random) {
        let mut removed = 0;
        while !self.done.load(Relaxed) {
            for _ in 0..1000 {
                if let vm::space::Chaos::Removed(n) = self
                    .vm
                    .chaos_scan(Pfn(random.below_u64(FRAMES as u64) as u32))
                {
                    removed += n;
                }
            }
            if random.below_u64(8) == 0 {
                self.program.space.drop_tables(&self.vm);
            }
            self.tick();
        }
        assert!(removed > 0, "the scanner found nothing to remove");
    }

    fn truncater(&self, random: &mut Random) {
        let word = AtomicU64::new(0);
        while !self.done.load(Relaxed) {
            let page = random.below_u64(PAGES);
            match random.below_u64(3) {
                0 => self.file.truncate(&self.vm, page * PAGE),
                1 => self.file.punch(&self.vm, page * PAGE, 3 * PAGE),
                _ => {
                    let n = word.fetch_add(1, Relaxed);
                    let mut copy = |bytes: &mut [u8]| {
                        bytes.copy_from_slice(&n.to_le_bytes());
                        8
                    };
                    assert_eq!(self.file.write(&self.vm, page * PAGE, 8, &mut copy), Ok(8));
                    let mut found = 0;
                    self.file.read(&self.vm, page * PAGE, &mut |bytes| {
                        found = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                        0
                    });
                    assert_eq!(found, n);
                }
            }
            self.tick();
        }
    }
}

#[test]
fn a_program_on_many_cpus_survives_everything_at_once() {
    let world = World::new();
    let free = FRAMES - 1;
    let play = |cpu: usize, role: &dyn Fn(&mut Random)| {
        let _stop = Stop(&world.done);
        ksync::host::set_cpu(cpu);
        world.vm.epoch.online(cpu);
        role(&mut Random(0x9e37_79b9_7f4a_7c15 ^ (cpu as u64 + 1) << 32));
        if cpu != 0 {
            world.vm.epoch.offline(cpu);
        }
    };
    world.vm.epoch.offline(0);
    let (play, world_) = (&play, &world);
    std::thread::scope(|scope| {
        for n in 0..WORKERS {
            scope.spawn(move || play(n, &|random| world_.worker(n as u64, random)));
        }
        scope.spawn(move || play(WORKERS, &|random| world_.forker(random)));
        scope.spawn(move || play(WORKERS + 1, &|random| world_.mapper(random)));
        scope.spawn(move || play(WORKERS + 2, &|random| world_.scanner(random)));
        scope.spawn(move || play(WORKERS + 3, &|random| world_.truncater(random)));
    });
    let World {
        vm, program, file, ..
    } = world;
    println!("{:?}", vm.counts());
    drop(program);
    file.release(&vm);
    check_frames(&vm, free);
}
