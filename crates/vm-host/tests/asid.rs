//! Translations that outlive a switch: kept as long as they are valid, and no longer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use vm::asid::ASIDS;
use vm::space::{Chaos, MapArgs};
use vm::{FaultError, MapProt, Space};
use vm_host::Lab;

const PAGE: u64 = 4096;
const AT: u64 = 0x7000_0000;
const PAGES: u64 = 4;

/// A lab of two CPUs, with a space that both have run; CPU 1 then stopped running it, CPU 0 runs it.
struct Away {
    lab: Lab,
    space: Arc<Space>,
    other: Arc<Space>,
}

fn on<R>(cpu: usize, f: impl FnOnce() -> R) -> R {
    ksync::host::set_cpu(cpu);
    let result = f();
    ksync::host::set_cpu(0);
    result
}

impl Away {
    fn new() -> Away {
        let lab = Lab::new(1024, 2);
        lab.play_all();
        let space = Space::new(&lab.vm).unwrap();
        let other = Space::new(&lab.vm).unwrap();
        let args = MapArgs::anon(PAGES * PAGE, MapProt::READ | MapProt::WRITE).at(AT);
        space.map(&lab.vm, &args).unwrap();
        lab.run(&space);
        let away = Away { lab, space, other };
        on(1, || {
            away.lab.run(&away.space);
            for page in 0..PAGES {
                away.write(1, AT + page * PAGE).unwrap();
            }
            away.leave();
        });
        away
    }

    fn write(&self, cpu: usize, va: u64) -> Result<(), FaultError> {
        let store = |word: &std::sync::atomic::AtomicU64| {
            word.store(1, std::sync::atomic::Ordering::SeqCst);
        };
        self.lab
            .touch(&self.space, cpu, va, vm_host::Access::Write, store)
    }

    /// CPU 1 runs another space.
    fn leave(&self) {
        self.lab.stop(&self.space);
        self.lab.run(&self.other);
    }

    /// CPU 1 runs the space again.
    fn return_to(&self) {
        on(1, || {
            self.lab.stop(&self.other);
            self.lab.run(&self.space);
        });
    }

    fn stores(&self, page: u64) -> bool {
        let va = AT + page * PAGE;
        on(1, || self.lab.vm.machine.write(1, va, 2).is_ok())
    }

    fn finish(self) {
        on(1, || self.lab.stop(&self.space));
        self.lab.stop(&self.space);
        self.space.clear(&self.lab.vm);
        self.other.clear(&self.lab.vm);
        let Away { lab, space, other } = self;
        drop((space, other));
        lab.finish();
    }
}

#[test]
fn what_nobody_took_is_kept() {
    let away = Away::new();
    away.return_to();
    assert!(on(1, || away.lab.vm.machine.has_cached(1, AT)));
    assert!(away.stores(0));
    away.finish();
}

#[test]
fn a_change_meanwhile_interrupts_nobody_and_ends_all() {
    let away = Away::new();
    let (vm, space) = (&away.lab.vm, &away.space);
    away.write(0, AT).unwrap();
    let before = vm.machine.interrupts();
    space.unmap(vm, AT, PAGE).unwrap();
    assert_eq!(vm.machine.interrupts(), before + 1, "CPU 0 alone was told");
    away.return_to();
    for page in 0..PAGES {
        assert!(!on(1, || vm.machine.has_cached(1, AT + page * PAGE)));
    }
    assert!(!away.stores(0));
    assert!(away.stores(1), "what is still mapped is walked to");
    away.finish();
}

#[test]
fn protection_forks_and_dropped_tables_count_as_changes() {
    type Change = fn(&Away);
    let changes: [Change; 3] = [
        |a| a.space.protect(&a.lab.vm, AT, PAGE, MapProt::READ).unwrap(),
        |a| {
            let child = a.space.fork(&a.lab.vm).unwrap();
            child.clear(&a.lab.vm);
        },
        |a| {
            let _tables = a.space.drop_tables(&a.lab.vm);
        },
    ];
    for change in changes {
        let away = Away::new();
        change(&away);
        away.return_to();
        assert!(!away.stores(0), "a store through what was restricted");
        away.finish();
    }
}

#[test]
fn a_scan_reaches_those_who_are_away() {
    let away = Away::new();
    let removed = |n| match away.lab.vm.chaos_scan(away.lab.frame(n)) {
        Chaos::Removed(entries) => entries,
        _ => 0,
    };
    let all: usize = (0..1024).map(removed).sum();
    assert!(all >= PAGES as usize, "nothing was scanned");
    away.return_to();
    for page in 0..PAGES {
        on(1, || away.write(1, AT + page * PAGE)).unwrap();
    }
    away.finish();
}

#[test]
fn without_the_comparison_stale_stores_go_through() {
    let away = Away::new();
    away.lab.vm.machine.be_credulous();
    away.space
        .protect(&away.lab.vm, AT, PAGE, MapProt::READ)
        .unwrap();
    away.return_to();
    assert!(away.stores(0), "the machine must not forget by itself");
    away.finish();
    // If a table that was freed meanwhile were read, the machine would notice.
    let away = Away::new();
    away.lab.vm.machine.be_credulous();
    away.space.unmap(&away.lab.vm, AT, PAGES * PAGE).unwrap();
    for _ in 0..8 {
        away.lab.tick();
        on(1, || away.lab.tick());
    }
    away.return_to();
    let stale = catch_unwind(AssertUnwindSafe(|| away.stores(0)));
    assert!(stale.is_err(), "nobody noticed a store to a freed frame");
    std::mem::forget(away);
}

#[test]
fn more_spaces_than_identifiers() {
    let lab = Lab::new(2048, 1);
    lab.play_all();
    let spaces: Vec<_> = (0..ASIDS + 3)
        .map(|_| Space::new(&lab.vm).unwrap())
        .collect();
    for space in &spaces {
        let args = MapArgs::anon(PAGE, MapProt::all()).at(AT);
        space.map(&lab.vm, &args).unwrap();
    }
    for round in 0..4 {
        for (n, space) in spaces.iter().enumerate() {
            lab.run(space);
            let word = |word: &std::sync::atomic::AtomicU64| {
                word.swap(n as u64 + 100, std::sync::atomic::Ordering::SeqCst)
            };
            let old = lab.touch(space, 0, AT, vm_host::Access::Write, word);
            let expected = if round == 0 { 0 } else { n as u64 + 100 };
            assert_eq!(old, Ok(expected), "space {n} sees another's page");
            lab.stop(space);
        }
    }
    for space in &spaces {
        space.clear(&lab.vm);
    }
    drop(spaces);
    lab.finish();
}

/// CPUs that switch between spaces all the time while other CPUs change these.
#[test]
fn switches_race_with_changes() {
    let lab = Lab::new(4096, 3);
    let spaces: Vec<_> = (0..3).map(|_| Space::new(&lab.vm).unwrap()).collect();
    for space in &spaces {
        let args = MapArgs::anon(PAGES * PAGE, MapProt::all()).at(AT);
        space.map(&lab.vm, &args).unwrap();
    }
    std::thread::scope(|scope| {
        for cpu in 0..3 {
            let (lab, spaces) = (&lab, &spaces);
            scope.spawn(move || {
                lab.join(cpu, || {
                    for n in 0..600_usize {
                        let space = &spaces[(n * 7 + cpu) % 3];
                        lab.run(space);
                        let va = AT + (n as u64 % PAGES) * PAGE;
                        let add = |word: &std::sync::atomic::AtomicU64| {
                            word.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
                        };
                        lab.touch(space, cpu, va, vm_host::Access::Write, add)
                            .unwrap();
                        lab.stop(space);
                        match n % 16 {
                            3 => {
                                let _tables = space.drop_tables(&lab.vm);
                            }
                            7 => {
                                let _removed = lab.vm.chaos_scan(lab.frame(n * 13 + cpu));
                            }
                            11 => {
                                let child = space.fork(&lab.vm).unwrap();
                                child.clear(&lab.vm);
                            }
                            _ => {}
                        }
                        lab.tick();
                    }
                });
            });
        }
    });
    // No store was lost to a stale translation.
    ksync::host::set_cpu(0);
    lab.vm.epoch.online(0);
    let mut sum = 0;
    for space in &spaces {
        for page in 0..PAGES {
            let mut word = [0; 8];
            space.read_at(&lab.vm, AT + page * PAGE, &mut word).unwrap();
            sum += u64::from_le_bytes(word);
        }
        space.clear(&lab.vm);
    }
    assert_eq!(sum, 3 * 600);
    drop(spaces);
    lab.finish();
}
