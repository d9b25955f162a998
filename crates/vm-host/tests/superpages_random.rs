//! Random operations on two places of 2 MiB against what programs may reach and what they have stored.
//!
//! One thread plays three CPUs. The reference has, for each page, its rights, and the word that was last written out; it knows
//! nothing of tables and leaves. After each operation no CPU may reach what was taken away, and a page whose word differs from
//! the one written out must be marked dirty.
#![cfg(not(any(loom, shuttle)))]

use std::ops::Range;

use vm::page::{Flags, read_frame};
use vm::pmap::{EnterError, Scan};
use vm::{Pfn, Prot, Pte};
use vm_host::Random;
use vm_host::mmu::LARGE;
use vm_host::runs::{BASE, PAGES, Runs};
use vm_host::try_ticket;

const CPUS: usize = 3;
const PLACES: usize = 2;
/// Pages that are looked at after each operation, besides those that it names.
const SAMPLE: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Right {
    None,
    Read,
    Write,
}

struct World {
    lab: Runs,
    random: Random,
    rights: Vec<[Right; PAGES]>,
    /// The word of each page that is known outside of memory.
    written_out: Vec<[u64; PAGES]>,
    promoted: usize,
    divided: usize,
}

impl World {
    fn new(seed: u64) -> World {
        let lab = Runs::new(CPUS, PLACES);
        (0..CPUS).for_each(|cpu| lab.run_on(cpu));
        World {
            lab,
            random: Random(seed * 0x9e37_79b9 + 1),
            rights: vec![[Right::Write; PAGES]; PLACES],
            written_out: vec![[0; PAGES]; PLACES],
            promoted: 0,
            divided: 0,
        }
    }

    fn word(&self, run: usize, n: usize) -> u64 {
        let mut bytes = [0; 8];
        read_frame(&self.lab.vm.machine, self.lab.frame(run, n), 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn page(&self, run: usize, n: usize) -> &vm::Page {
        self.lab.vm.pages.get(self.lab.frame(run, n))
    }

    fn mark(&self, pfn: Pfn, pte: Pte) {
        if pte.is_dirty() {
            self.lab.vm.pages.get(pfn).set_flag(Flags::DIRTY);
        }
    }

    /// Serves a fault, unless there is no memory.
    fn fault(&mut self, run: usize, n: usize, write: bool) {
        let pfn = self.lab.frame(run, n);
        let leaf = Pte::user(pfn, Prot { write, exec: false });
        let leaf = if write { leaf.dirtied() } else { leaf };
        let (vm, pmap) = (&self.lab.vm, &self.lab.pmap);
        let way = self.random.below(3);
        let Ok(room) = try_ticket(vm, pmap) else {
            return;
        };
        let (pin, va) = (ksync::pin(), Runs::va(run, n));
        let done = match way {
            0 => pmap.enter_resident(vm, &pin, &room, va, leaf, || true, || true),
            1 => pmap.enter_over(vm, &pin, &room, va, leaf, || true),
            _ => match pmap.enter_new(vm, &pin, &room, va, leaf, || true) {
                Err(EnterError::Occupied(_) | EnterError::FlushDue) => {
                    pmap.enter(vm, &pin, &room, va, leaf, || true)
                }
                done => done,
            },
        };
        assert!(
            matches!(done, Ok(_) | Err(EnterError::NoTable(_))),
            "{done:?}"
        );
    }

    /// A load or store of a program. It is served as often as it may need: for an old translation, and for each size.
    fn access(&mut self, cpu: usize, run: usize, n: usize, write: bool) {
        let va = Runs::va(run, n);
        let value = self.random.below_u64(1 << 40);
        for _ in 0..8 {
            let done = if write {
                self.lab.vm.machine.write(cpu, va, value)
            } else {
                self.lab.vm.machine.read(cpu, va).map(|word| {
                    assert_eq!(word, self.word(run, n));
                })
            };
            let right = self.rights[run][n];
            let may = right == Right::Write || (!write && right == Right::Read);
            assert!(may || done.is_err(), "CPU {cpu} reaches page {n}");
            if done.is_ok() || !may {
                return;
            }
            self.fault(run, n, write);
        }
        panic!("CPU {cpu} faults at page {n} for ever");
    }

    /// Makes all pages of a place present with the same rights, as a program that touches them in turn.
    fn touch_all(&mut self, run: usize) {
        let write = self.rights[run].iter().all(|&right| right == Right::Write);
        for n in 0..PAGES {
            if self.rights[run][n] != Right::None {
                self.fault(run, n, write);
            }
        }
    }

    fn range(&mut self) -> Range<usize> {
        if self.random.one_in(2) {
            return 0..PAGES;
        }
        let start = self.random.below(PAGES);
        let len = 1 + self.random.scaled(1..9) as usize;
        start..PAGES.min(start + len)
    }

    fn limit(&mut self, run: usize, pages: Range<usize>, to: Right) {
        for right in &mut self.rights[run][pages] {
            if *right == Right::Write || to == Right::None {
                *right = to;
            }
        }
    }

    fn scan(&mut self, run: usize, n: usize, remove: bool) {
        let found = if remove {
            self.lab.scan_remove(run, n)
        } else {
            self.lab.scan_write_protect(run, n)
        };
        assert_ne!(found, Scan::Unclaimed);
        if let Some(pte) = found.pte() {
            assert_eq!(pte.pfn(), self.lab.frame(run, n));
            self.mark(pte.pfn(), pte);
        }
        let va = Runs::va(run, n);
        for cpu in 0..CPUS {
            let machine = &self.lab.vm.machine;
            let reached = if remove {
                machine.read(cpu, va).is_ok()
            } else {
                machine.write(cpu, va, 1).is_ok()
            };
            assert!(!reached, "CPU {cpu} reaches page {n} after its scan");
        }
        // Written out, if it is dirty.
        if self.page(run, n).clear_flag(Flags::DIRTY) {
            self.written_out[run][n] = self.word(run, n);
        }
    }

    fn remove(&mut self, run: usize, pages: Range<usize>) {
        self.limit(run, pages.clone(), Right::None);
        let (start, end) = (Runs::va(run, pages.start), Runs::va(run, pages.end));
        self.lab.gathered(|gather| {
            let on_page = |pfn, pte| self.mark(pfn, pte);
            self.lab
                .pmap
                .harvest_range(&self.lab.vm, start, end, gather, on_page);
        });
    }

    fn drop_tables(&mut self, run: usize, pages: Range<usize>) {
        let all = self.random.one_in(4);
        let on_page = |pfn, pte| self.mark(pfn, pte);
        if all {
            self.lab.pmap.drop_tables(&self.lab.vm, on_page);
            return;
        }
        let (start, end) = (Runs::va(run, pages.start), Runs::va(run, pages.end));
        self.lab.gathered(|gather| {
            self.lab
                .pmap
                .drop_range(&self.lab.vm, start, end, gather, on_page);
        });
    }

    /// One operation, perhaps one for which there is no memory.
    fn step(&mut self) {
        let run = self.random.below(PLACES);
        let (pages, n) = (self.range(), self.random.below(PAGES));
        let cpu = self.random.below(CPUS);
        let was_large = self.lab.is_large(run);
        match self.random.below(16) {
            0 => self.remove(run, pages.clone()),
            1 => {
                self.limit(run, pages.clone(), Right::Read);
                self.lab.protect(run, pages.clone());
            }
            2..4 => self.rights[run] = [Right::Write; PAGES],
            4 => self.scan(run, n, true),
            5 => self.scan(run, n, false),
            6 => {
                self.lab.fork();
                let stored = self.lab.vm.machine.write(cpu, Runs::va(run, n), 1);
                assert!(stored.is_err());
            }
            7 => self.drop_tables(run, pages.clone()),
            8 => {
                let _referenced = self.lab.referenced(run, n);
            }
            9 => {
                if self.lab.promote(run) {
                    self.promoted += 1;
                }
            }
            10 => {
                self.touch_all(run);
                if self.lab.promote(run) {
                    self.promoted += 1;
                }
            }
            11 => {
                let va = Runs::va(run, n);
                let _done = self.lab.pmap.demote(&self.lab.vm, &ksync::pin(), va);
            }
            _ => {
                let write = self.random.one_in(2);
                let able = self.random.one_in(2);
                if able {
                    self.access(cpu, run, n, write);
                } else {
                    self.lab.vm.machine.speculate(cpu, Runs::va(run, n));
                }
            }
        }
        if was_large && !self.lab.is_large(run) {
            self.divided += 1;
        }
        self.check(run, [n, pages.start, pages.end - 1]);
    }

    fn check(&mut self, run: usize, named: [usize; 3]) {
        let more: Vec<usize> = (0..SAMPLE).map(|_| self.random.below(PAGES)).collect();
        for n in named.into_iter().chain(more) {
            let va = Runs::va(run, n);
            for cpu in 0..CPUS {
                let read = self.lab.vm.machine.read(cpu, va);
                let right = self.rights[run][n];
                if let Ok(word) = read {
                    assert_ne!(right, Right::None, "CPU {cpu} reads page {n}");
                    assert_eq!(word, self.word(run, n));
                }
            }
            let pte = self.lab.lookup(run, n);
            assert!(pte.is_none_or(|pte| pte.pfn() == self.lab.frame(run, n)));
            let dirty = pte.is_some_and(Pte::is_dirty) || self.page(run, n).has(Flags::DIRTY);
            let same = self.word(run, n) == self.written_out[run][n];
            assert!(dirty || same, "a store to page {n} is forgotten");
        }
    }

    fn finish(self) {
        let all = (0..PLACES).flat_map(|run| (0..PAGES).map(move |n| (run, n)));
        let mapped = all.filter(|&(run, n)| self.lab.lookup(run, n).is_some());
        let mapped = mapped.count();
        assert_eq!(self.lab.pmap.resident(&self.lab.vm), mapped);
        let end = BASE + PLACES as u64 * LARGE;
        self.lab
            .gathered(|gather| self.lab.pmap.remove_range(&self.lab.vm, BASE, end, gather));
        for (cpu, n) in (0..PAGES).map(|n| (n % CPUS, n)) {
            assert!(self.lab.vm.machine.read(cpu, Runs::va(0, n)).is_err());
        }
        (0..CPUS).for_each(|cpu| self.lab.stop_on(cpu));
        self.lab.finish();
    }
}

#[test]
fn nothing_taken_away_is_reached_and_no_store_is_forgotten() {
    let cases = std::env::var("PANTALA_CASES").ok();
    let cases = cases.and_then(|n| n.parse().ok()).unwrap_or(12);
    let (mut promoted, mut divided) = (0, 0);
    for seed in 1..=cases {
        let mut world = World::new(seed);
        for _ in 0..300 {
            let scarce = world.random.one_in(6);
            world.lab.vm.alloc.set_injector(u32::from(scarce) * 2, 1);
            world.step();
            world.lab.vm.alloc.set_injector(0, 0);
        }
        promoted += world.promoted;
        divided += world.divided;
        world.finish();
    }
    assert!(promoted > 0 && divided > 0);
    println!("{promoted} leaves made, {divided} divided or removed");
}
