//! Faults against what takes pages away, under a scheduler that switches at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p vm-host --release --test shuttle`; `PANTALA_SCHEDULES` says how many
//! schedules each test tries. A failure prints the schedule to replay.
#![cfg(shuttle)]

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use shuttle::thread::{self, JoinHandle};
use vm::object::ObjectRef;
use vm::space::{MapArgs, MapFlags, RemapArgs, RemapTarget, Source, Space};
use vm::{EntryFlags, FaultError, MapProt};
use vm_host::{Access, Lab};

const PAGE: u64 = 4096;
const AT: u64 = 0x4000_0000;
/// Where mappings are moved to.
const TO: u64 = 0x5000_0000;
const FRAMES: usize = 192;

struct World {
    lab: Lab,
    space: Arc<Space>,
    file: ObjectRef,
}

/// Tries random schedules, then ones with few switches at odd places.
fn explore(body: fn(&Arc<World>)) {
    let asked = std::env::var("PANTALA_SCHEDULES").ok();
    let schedules = asked.and_then(|n| n.parse().ok()).unwrap_or(60);
    let run = move || {
        let lab = Lab::new(FRAMES, 4);
        lab.vm.set_fault_around(PAGE);
        let space = Space::new(&lab.vm).unwrap();
        let file = ObjectRef::new_file(&lab.vm, None).unwrap();
        let world = Arc::new(World { lab, space, file });
        body(&world);
        let World { lab, space, file } = Arc::into_inner(world).expect("all threads have ended");
        space.clear(&lab.vm);
        file.release(&lab.vm);
        lab.finish();
    };
    shuttle::check_random(run, schedules);
    shuttle::check_pct(run, schedules, 3);
}

impl World {
    fn map(&self, shared: bool, source: Source<'_>) {
        let mut args = MapArgs::anon(2 * PAGE, MapProt::READ | MapProt::WRITE);
        args.addr = AT;
        args.place = MapFlags {
            fixed: true,
            ..MapFlags::default()
        };
        args.source = source;
        args.flags = if shared {
            EntryFlags::SHARED
        } else {
            EntryFlags::EMPTY
        };
        assert_eq!(self.space.map(&self.lab.vm, &args), Ok(AT));
    }

    fn add(&self, cpu: usize) -> Result<u64, FaultError> {
        self.lab.touch(&self.space, cpu, AT, Access::Write, |word| {
            word.fetch_add(1, SeqCst) + 1
        })
    }

    fn unreachable(&self, cpu: usize, access: Access) {
        self.unreachable_at(AT, cpu, access);
    }

    fn unreachable_at(&self, va: u64, cpu: usize, access: Access) {
        let reached = self.lab.vm.machine.access(cpu, va, access, |_| ());
        assert!(
            reached.is_err(),
            "CPU {cpu} still reaches the page at {va:#x} for {access:?}"
        );
    }

    /// Moves the first page.
    fn carry(&self, old: u64, new: u64) {
        let args = RemapArgs {
            old,
            old_len: PAGE,
            new_len: PAGE,
            target: RemapTarget::Fixed(new),
            keep_old: false,
        };
        assert_eq!(self.space.remap(&self.lab.vm, &args), Ok(new));
    }

    fn word(&self, space: &Space) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(space.read_at(&self.lab.vm, AT, &mut bytes), Ok(8));
        u64::from_le_bytes(bytes)
    }

    fn scan(&self, object: &ObjectRef) {
        if let Some(pfn) = object.lookup(0) {
            self.lab.vm.chaos_scan(pfn);
        }
    }
}

/// A program on `cpu`, which runs the space meanwhile.
fn program(
    world: &Arc<World>,
    cpu: usize,
    body: impl Fn(&World) + Send + 'static,
) -> JoinHandle<()> {
    spawn(world, cpu, move |world| {
        world.lab.run(&world.space);
        body(world);
        world.lab.stop(&world.space);
    })
}

fn spawn(world: &Arc<World>, cpu: usize, body: impl Fn(&World) + Send + 'static) -> JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || world.lab.join(cpu, || body(&world)))
}

fn join(all: impl IntoIterator<Item = JoinHandle<()>>) {
    all.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn nothing_is_reached_after_munmap() {
    explore(|world| {
        world.map(false, Source::Anon);
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                let done = world.add(1).map(drop);
                assert!(
                    matches!(done, Ok(()) | Err(FaultError::NotMapped)),
                    "{done:?}"
                );
            }
        });
        let unmapper = spawn(world, 2, |world| {
            assert_eq!(world.space.unmap(&world.lab.vm, AT, 2 * PAGE), Ok(()));
            world.unreachable(1, Access::Read);
        });
        join([worker, unmapper]);
    });
}

#[test]
fn nothing_is_written_after_mprotect() {
    explore(|world| {
        world.map(true, Source::Anon);
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                let done = world.add(1).map(drop);
                assert!(matches!(done, Ok(()) | Err(FaultError::Denied)), "{done:?}");
            }
        });
        let protector = spawn(world, 2, |world| {
            assert_eq!(
                world.space.protect(&world.lab.vm, AT, PAGE, MapProt::READ),
                Ok(())
            );
            world.unreachable(1, Access::Write);
            let before = world.word(&world.space);
            assert_eq!(world.word(&world.space), before);
        });
        join([worker, protector]);
    });
}

#[test]
fn nothing_is_reached_after_truncation() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                let done = world.add(1).map(drop);
                assert!(matches!(done, Ok(()) | Err(FaultError::Bus)), "{done:?}");
            }
        });
        let truncater = spawn(world, 2, |world| {
            world.file.truncate(&world.lab.vm, 0);
            world.unreachable(1, Access::Read);
            assert_eq!(world.file.resident(), 0);
        });
        join([worker, truncater]);
    });
}

#[test]
fn scans_lose_no_store() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let adders = [1, 2].map(|cpu| {
            program(world, cpu, move |world| {
                for _ in 0..2 {
                    world.add(cpu).unwrap();
                }
            })
        });
        let scanner = spawn(world, 3, |world| {
            for _ in 0..2 {
                world.scan(&world.file);
            }
            world.space.drop_tables(&world.lab.vm);
        });
        join(adders.into_iter().chain([scanner]));
        assert_eq!(world.word(&world.space), 4);
        world.scan(&world.file);
        assert_eq!(
            world.space.pmap().resident(&world.lab.vm),
            0,
            "a scan missed a mapping"
        );
    });
}

#[test]
fn a_child_keeps_what_it_saw() {
    explore(|world| {
        world.map(false, Source::Anon);
        let worker = program(world, 1, |world| {
            for _ in 0..3 {
                world.add(1).unwrap();
            }
        });
        let forker = spawn(world, 2, |world| {
            let child = world.space.fork(&world.lab.vm).unwrap();
            let first = world.word(&child);
            assert!(first <= 3);
            thread::yield_now();
            assert_eq!(world.word(&child), first, "a child saw a later store");
            assert_eq!(
                child.write_at(&world.lab.vm, AT, &77_u64.to_le_bytes()),
                Ok(8)
            );
            assert_eq!(world.word(&child), 77);
            child.clear(&world.lab.vm);
        });
        join([worker, forker]);
        assert_eq!(world.word(&world.space), 3);
    });
}

#[test]
fn moves_lose_no_store() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let adder = program(world, 1, |world| {
            for n in 1..=3 {
                // It is at one of the two places; which, may change between two looks.
                let mut tries = [AT, TO].into_iter().cycle();
                let counted = tries.find_map(|at| {
                    let add = |word: &std::sync::atomic::AtomicU64| word.fetch_add(1, SeqCst) + 1;
                    match world.lab.touch(&world.space, 1, at, Access::Write, add) {
                        Err(FaultError::NotMapped) => None,
                        done => Some(done),
                    }
                });
                assert_eq!(counted, Some(Ok(n)));
            }
        });
        let mover = spawn(world, 2, |world| {
            world.carry(AT, TO);
            world.unreachable_at(AT, 1, Access::Read);
            world.carry(TO, AT);
            world.unreachable_at(TO, 1, Access::Read);
        });
        let scanner = spawn(world, 3, |world| world.scan(&world.file));
        join([adder, mover, scanner]);
        assert_eq!(world.word(&world.space), 3);
        world.scan(&world.file);
        assert_eq!(
            world.space.pmap().resident(&world.lab.vm),
            0,
            "a scan missed a mapping"
        );
    });
}

#[test]
fn nothing_is_reached_after_a_move_and_truncation() {
    explore(|world| {
        world.file.allocate(&world.lab.vm, 0, PAGE, true).unwrap();
        world.map(true, Source::Object(&world.file, 0));
        let mover = program(world, 1, |world| {
            let _either = world.add(1);
            world.carry(AT, TO);
        });
        let truncater = spawn(world, 2, |world| {
            world.file.truncate(&world.lab.vm, 0);
            world.unreachable_at(AT, 1, Access::Read);
            world.unreachable_at(TO, 1, Access::Read);
            assert_eq!(world.file.resident(), 0);
        });
        join([mover, truncater]);
        assert_eq!(world.space.pmap().resident(&world.lab.vm), 0);
    });
}
