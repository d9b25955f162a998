//! The pmap's protocols against each other, on threads that play CPUs.
//!
//! Workers load and store through simulated translation caches and serve their own faults. Other threads unmap, protect
//! and fork, scan single pages like a page daemon, and drop tables at random. Each of them checks the guarantee of its
//! protocol at the moment when it must hold: no CPU reaches what was removed. At the end every count is exact, every
//! frame is free, and no store is missing from the data written out.

use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::sync::{Arc, Mutex};

use vm::page::{Flags, HardBusy, PAGE_SIZE};
use vm::pmap::Revoke;
use vm::pmap::{EnterError, Scan};
use vm::{Gather, Pfn, Pmap, Prot, Pte, Rights, Vm};
use vm_host::mmu::{run, stop};
use vm_host::ticket;
use vm_host::{Access, Random, Sim};

const PAGE: u64 = PAGE_SIZE as u64;
const PLACES: usize = 24;
const WORKERS: usize = 3;
/// Workers, unmapper, forker, scanner, dropper.
const CPUS: usize = WORKERS + 4;
/// Rounds that unmapper, forker, scanner and dropper run in total.
const ROUNDS: usize = 6000;

const MAPPED: u32 = 1;
const WRITABLE: u32 = 2;
const GENERATION: u32 = 4;

/// One page of a program: an address, its frame, and its state in the map.
struct Place {
    va: u64,
    pfn: Pfn,
    state: AtomicU32,
    /// The last contents written out, and whether there are any.
    copy: AtomicU64,
}

struct World {
    vm: Vm<Sim>,
    pmap: Arc<Pmap>,
    places: Vec<Place>,
    /// Held by operations that change states.
    map: Mutex<()>,
    done: AtomicBool,
    rounds: AtomicUsize,
    scans: AtomicUsize,
    claims_lost: AtomicUsize,
}

impl World {
    fn new() -> World {
        let vm = Sim::new(4096, CPUS, 1).into_vm();
        // Two adjacent level-1 tables, one under another directory, one under another root entry.
        let bases = [0, 512 * PAGE, 1 << 31, 1 << 40];
        let places = (0..PLACES)
            .map(|n| Place {
                va: bases[n % 4] + (n / 4) as u64 * 9 * PAGE,
                pfn: user_page(&vm, n),
                state: AtomicU32::new(MAPPED | WRITABLE),
                copy: AtomicU64::new(0),
            })
            .collect();
        World {
            vm,
            pmap: Arc::new(Pmap::new()),
            places,
            map: Mutex::new(()),
            done: AtomicBool::new(false),
            rounds: AtomicUsize::new(0),
            scans: AtomicUsize::new(0),
            claims_lost: AtomicUsize::new(0),
        }
    }

    /// The periodic work of a CPU.
    fn tick(&self) {
        self.vm.epoch.quiescent(&mut ksync::pin());
        self.vm.poll_limbo(&ksync::pin());
    }

    fn mark(&self, pfn: Pfn, pte: Pte) {
        if pte.is_dirty() {
            self.vm.pages.get(pfn).set_flag(Flags::DIRTY);
        }
    }

    fn worker(&self, cpu: usize, random: &mut Random) {
        run(&self.vm, &ksync::pin(), &self.pmap);
        let mut round = 0;
        while !self.done.load(Relaxed) {
            round += 1;
            let place = &self.places[random.below(PLACES)];
            let access = if random.below(2) == 0 {
                Access::Read
            } else {
                Access::Write
            };
            let mut tries = 0;
            loop {
                let act = |word: &AtomicU64| {
                    if access == Access::Write {
                        word.fetch_add(1, SeqCst);
                    }
                };
                if self.vm.machine.access(cpu, place.va, access, act).is_ok() {
                    break;
                }
                tries += 1;
                if tries > 20 || !self.fault(place, access, random) {
                    break;
                }
            }
            if round % 8 == 0 {
                self.tick();
            }
            if round % 64 == 0 {
                stop(&self.vm, &ksync::pin(), &self.pmap);
                run(&self.vm, &ksync::pin(), &self.pmap);
            }
        }
        stop(&self.vm, &ksync::pin(), &self.pmap);
    }

    /// Serves a fault; false if the access is not allowed.
    fn fault(&self, place: &Place, access: Access, random: &mut Random) -> bool {
        let pin = ksync::pin();
        let state = place.state.load(SeqCst);
        let write = access == Access::Write;
        if state & MAPPED == 0 || (write && state & WRITABLE == 0) {
            return false;
        }
        let leaf = Pte::user(place.pfn, Prot { write, exec: false });
        let page = self.vm.pages.get(place.pfn);
        let room = ticket(&self.vm, &self.pmap);
        let check = || place.state.load(SeqCst) == state;
        let done = match random.below(3) {
            0 if let Some(_busy) = page.try_soft_busy() => self
                .pmap
                .enter(&self.vm, &pin, &room, place.va, leaf, check)
                .map(drop),
            1 if !write => {
                let around = |_: usize| Some(place.pfn);
                let good = |_: usize, _: Pfn| !page.is_hard_busy();
                self.pmap
                    .enter_around(
                        &self.vm,
                        &pin,
                        &room,
                        place.va,
                        1,
                        Prot::READ,
                        check,
                        around,
                        good,
                    )
                    .map(drop)
            }
            _ => {
                let good = || !page.is_hard_busy();
                self.pmap
                    .enter_resident(&self.vm, &pin, &room, place.va, leaf, check, good)
                    .map(drop)
            }
        };
        if done == Err(EnterError::Retry) {
            self.claims_lost.fetch_add(1, Relaxed);
        }
        // All table pages may be in a grace period: try again later.
        assert!(!matches!(done, Err(EnterError::Occupied(_))), "{done:?}");
        drop(pin);
        true
    }

    fn change(&self, place: &Place, clear: u32, set: u32) {
        let old = place.state.load(SeqCst);
        place
            .state
            .store(((old & !clear) | set).wrapping_add(GENERATION), SeqCst);
    }

    fn assert_unreachable(&self, place: &Place, access: Access, why: &str) {
        for cpu in 0..WORKERS {
            let reached = self.vm.machine.access(cpu, place.va, access, |_| ());
            assert!(
                reached.is_err(),
                "CPU {cpu} reaches {:#x} for {access:?} after {why}",
                place.va
            );
        }
    }

    /// Unmaps or protects one page or those of a whole table.
    fn unmapper(&self, random: &mut Random) {
        let _map = self.map.lock().unwrap();
        let first = random.below(PLACES);
        let (start, end) = match random.below(3) {
            0 => (0, vm::pmap::USER_END),
            1 => (
                self.places[first].va & !(512 * PAGE - 1),
                (self.places[first].va | (512 * PAGE - 1)) + 1,
            ),
            _ => (self.places[first].va, self.places[first].va + PAGE),
        };
        let inside = || {
            self.places
                .iter()
                .filter(|place| (start..end).contains(&place.va))
        };
        let mut gather = Gather::new();
        match random.below(3) {
            0 => {
                inside().for_each(|place| self.change(place, WRITABLE, 0));
                let revoke = Revoke {
                    write: true,
                    exec: false,
                };
                self.pmap
                    .protect_range(&self.vm, start, end, revoke, &mut gather);
                gather.finish(&self.vm);
                inside()
                    .for_each(|place| self.assert_unreachable(place, Access::Write, "mprotect"));
            }
            _ => {
                inside().for_each(|place| self.change(place, MAPPED, 0));
                self.pmap
                    .harvest_range(&self.vm, start, end, &mut gather, |pfn, pte| {
                        self.mark(pfn, pte)
                    });
                gather.finish(&self.vm);
                inside().for_each(|place| self.assert_unreachable(place, Access::Read, "munmap"));
            }
        }
        inside().for_each(|place| self.change(place, 0, MAPPED | WRITABLE));
    }

    fn forker(&self) {
        let _map = self.map.lock().unwrap();
        self.places
            .iter()
            .for_each(|place| self.change(place, WRITABLE, 0));
        let mut gather = Gather::new();
        self.pmap
            .write_protect_high(&self.vm, &ksync::pin(), &mut gather);
        gather.finish(&self.vm);
        self.places
            .iter()
            .for_each(|place| self.assert_unreachable(place, Access::Write, "fork"));
        self.places
            .iter()
            .for_each(|place| self.change(place, 0, WRITABLE));
    }

    /// Removes one page from all programs, or writes it out.
    fn scanner(&self, random: &mut Random) {
        let place = &self.places[random.below(PLACES)];
        let page = self.vm.pages.get(place.pfn);
        let Some(_busy) = page.try_hard_busy() else {
            return;
        };
        std::sync::atomic::fence(SeqCst);
        let remove = random.below(2) == 0;
        let found = {
            let pin = ksync::pin();
            if remove {
                self.pmap.scan_remove(&self.vm, &pin, place.va, place.pfn)
            } else {
                self.pmap
                    .scan_write_protect(&self.vm, &pin, place.va, place.pfn)
            }
        };
        if found != Scan::Absent {
            self.scans.fetch_add(1, Relaxed);
        }
        let access = if remove { Access::Read } else { Access::Write };
        self.assert_unreachable(place, access, "a scan");
        let dirty = found.pte().is_some_and(Pte::is_dirty);
        if page.clear_flag(Flags::DIRTY) || dirty {
            place.copy.store(self.contents(place), SeqCst);
        }
    }

    fn dropper(&self, random: &mut Random) {
        let place = &self.places[random.below(PLACES)];
        match random.below(4) {
            0 => self
                .pmap
                .drop_tables(&self.vm, |pfn, pte| self.mark(pfn, pte)),
            1 => {
                let start = place.va & !(512 * PAGE - 1);
                let mut gather = Gather::new();
                let mark = |pfn, pte| self.mark(pfn, pte);
                self.pmap
                    .drop_range(&self.vm, start, start + 512 * PAGE, &mut gather, mark);
                gather.finish(&self.vm);
            }
            _ => self.vm.machine.speculate(random.below(WORKERS), place.va),
        }
    }

    fn contents(&self, place: &Place) -> u64 {
        let mut bytes = [0; 8];
        vm::page::read_frame(&self.vm.machine, place.pfn, 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn play(&self, seed: u64) {
        std::thread::scope(|scope| {
            for cpu in 0..CPUS {
                scope.spawn(move || {
                    ksync::host::set_cpu(cpu);
                    self.vm.epoch.online(cpu);
                    let mut random =
                        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 77 * cpu as u64 + 1);
                    if cpu < WORKERS {
                        self.worker(cpu, &mut random);
                    }
                    while !self.done.load(SeqCst) {
                        match cpu - WORKERS.min(cpu) {
                            0 => self.unmapper(&mut random),
                            1 => self.forker(),
                            2 => self.scanner(&mut random),
                            _ => self.dropper(&mut random),
                        }
                        self.tick();
                        if self.rounds.fetch_add(1, Relaxed) > ROUNDS {
                            self.done.store(true, SeqCst);
                        }
                    }
                    self.vm.epoch.offline(cpu);
                });
            }
        });
        self.vm.epoch.online(0);
    }

    fn check(&self) {
        let pin = ksync::pin();
        let mut present = 0;
        for place in &self.places {
            let pte = self.pmap.lookup(&self.vm, &pin, place.va);
            present += usize::from(pte.is_some());
            let dirty =
                pte.is_some_and(Pte::is_dirty) || self.vm.pages.get(place.pfn).has(Flags::DIRTY);
            if !dirty {
                assert_eq!(
                    place.copy.load(SeqCst),
                    self.contents(place),
                    "a store was lost at {:#x}",
                    place.va
                );
            }
        }
        assert_eq!(self.pmap.resident(&self.vm), present);
    }
}

/// A page of a program, not busy.
fn user_page(vm: &Vm<Sim>, n: usize) -> Pfn {
    let pfn = vm.alloc.alloc(&ksync::pin(), Rights::User).unwrap();
    vm::page::zero_frame(&vm.machine, pfn);
    let page = vm.pages.get(pfn);
    page.set_identity(0x1000, n as u32);
    drop(HardBusy::of_fresh(page));
    pfn
}

#[test]
fn nothing_taken_away_is_reached_and_nothing_is_lost() {
    let (mut scans, mut lost) = (0, 0);
    for seed in 1..=4 {
        let world = World::new();
        let tables_and_pages = world.vm.alloc.free_pages();
        world.play(seed);
        world.check();
        world.pmap.release(&world.vm);
        assert_eq!(world.pmap.tables(), 0);
        world.vm.drain_limbo();
        assert_eq!(world.vm.alloc.free_pages(), tables_and_pages);
        scans += world.scans.load(Relaxed);
        lost += world.claims_lost.load(Relaxed);
    }
    assert!(scans > 0, "no scan ever found anything");
    println!("{scans} entries scanned, {lost} faults made to retry");
}
