//! A pmap and aligned runs of 512 frames, for tests of leaves of 2 MiB.

use std::sync::Arc;
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::AtomicUsize;
#[cfg(not(any(loom, shuttle)))]
use std::time::{Duration, Instant};

use ksync::atomic::Ordering::SeqCst;
use vm::page::PAGE_SIZE;
use vm::pmap::table::slot;
use vm::pmap::{AROUND, Entered, Scan};
use vm::rmap::Ticket;
use vm::{Gather, Machine, Pfn, Pmap, Prot, Pte, Rights, Vm};

use crate::mmu::{self, LARGE};
use crate::{PageFault, Sim, listed, ticket};

/// Bytes of a page.
pub const PAGE: u64 = PAGE_SIZE as u64;
/// Pages of a run.
pub const PAGES: usize = 512;
/// Where the first run is mapped; the others follow.
pub const BASE: u64 = 3 * LARGE;

/// See the module.
pub struct Runs {
    /// The VM.
    pub vm: Vm<Sim>,
    /// The pmap.
    pub pmap: Arc<Pmap>,
    runs: Vec<Pfn>,
    free: usize,
}

impl Runs {
    /// A machine with so many CPUs and runs.
    pub fn new(cpus: usize, runs: usize) -> Runs {
        let vm = Sim::new((runs + 1) * PAGES + 256, cpus, 1).into_vm();
        let free = vm.alloc.free_pages();
        let run = |_| {
            let run = vm.alloc.alloc_order(&ksync::pin(), 9, Rights::User);
            run.expect("an aligned run")
        };
        Runs {
            runs: (0..runs).map(run).collect(),
            pmap: Arc::new(Pmap::new()),
            vm,
            free,
        }
    }

    /// A machine with a leaf for the first run at [`BASE`], and an entry of 4 KiB for a page of the second run at 0, so that
    /// the root stays.
    pub fn promoted(cpus: usize, prot: Prot) -> Runs {
        let lab = Runs::new(cpus, 2);
        lab.enter(0, Pte::user(lab.frame(1, 0), Prot::READ));
        lab.fill(0, prot);
        assert!(lab.promote(0));
        lab
    }

    /// Frame `n` of a run.
    pub fn frame(&self, run: usize, n: usize) -> Pfn {
        self.runs[run].add(n as u32)
    }

    /// The address of page `n` of the run that is mapped at place `run`.
    pub fn va(run: usize, n: usize) -> u64 {
        BASE + run as u64 * LARGE + n as u64 * PAGE
    }

    /// A program's load from page `n` of the first run.
    ///
    /// # Errors
    /// The page fault.
    pub fn read(&self, cpu: usize, n: usize) -> Result<u64, PageFault> {
        self.vm.machine.read(cpu, Runs::va(0, n))
    }

    /// A program's store to page `n` of the first run.
    ///
    /// # Errors
    /// The page fault.
    pub fn write(&self, cpu: usize, n: usize, word: u64) -> Result<(), PageFault> {
        self.vm.machine.write(cpu, Runs::va(0, n), word)
    }

    /// Enters an entry of 4 KiB.
    pub fn enter(&self, va: u64, leaf: Pte) {
        let done = self
            .pmap
            .enter(&self.vm, &ksync::pin(), &self.ticket(), va, leaf, || true);
        assert!(done.is_ok(), "{done:?}");
    }

    /// Room for the entries of one call.
    pub fn ticket(&self) -> Ticket<'_> {
        ticket(&self.vm, &self.pmap)
    }

    /// Enters page `n` of run 0 at its place, as a fault does that finds it resident.
    ///
    /// # Panics
    /// If it cannot be entered.
    pub fn fault(&self, n: usize, prot: Prot) -> Entered {
        let (pin, leaf) = (ksync::pin(), Pte::user(self.frame(0, n), prot));
        let (room, va) = (self.ticket(), Runs::va(0, n));
        let done = self
            .pmap
            .enter_resident(&self.vm, &pin, &room, va, leaf, || true, || true);
        done.expect("memory")
    }

    /// Maps a run at its place by entries of 4 KiB without A and D.
    pub fn fill(&self, run: usize, prot: Prot) {
        for n in (0..PAGES).step_by(AROUND) {
            let entered = self.pmap.enter_around(
                &self.vm,
                &ksync::pin(),
                &self.ticket(),
                Runs::va(run, n),
                AROUND,
                prot,
                || true,
                |more| Some(self.frame(run, n + more)),
                |_, _| true,
            );
            assert_eq!(entered, Ok(AROUND));
        }
    }

    /// Promotes what is at the place of a run.
    pub fn promote(&self, run: usize) -> bool {
        let va = Runs::va(run, 77);
        self.pmap.promote(&self.vm, &ksync::pin(), va)
    }

    /// Divides the leaf at the place of a run.
    pub fn demote(&self, run: usize) {
        let va = Runs::va(run, 5);
        let divided = self.pmap.demote(&self.vm, &ksync::pin(), va);
        assert!(divided.is_ok());
    }

    /// The entry of level 2 for the place of a run, empty if there is no directory.
    pub fn directory_entry(&self, run: usize) -> Pte {
        let va = Runs::va(run, 0);
        let Some(mut table) = self.pmap.root() else {
            return Pte::EMPTY;
        };
        for level in [4, 3] {
            let pte = Pte(self.vm.machine.table_words(table)[slot(va, level)].load(SeqCst));
            if pte.is_empty() {
                return pte;
            }
            table = pte.pfn();
        }
        Pte(self.vm.machine.table_words(table)[slot(va, 2)].load(SeqCst))
    }

    /// Whether a leaf of 2 MiB is at the place of a run.
    pub fn is_large(&self, run: usize) -> bool {
        self.directory_entry(run).is_large()
    }

    /// The entry of page `n` at the place of a run.
    pub fn lookup(&self, run: usize, n: usize) -> Option<Pte> {
        self.pmap.lookup(&self.vm, &ksync::pin(), Runs::va(run, n))
    }

    /// Performs an operation and its flush.
    pub fn gathered<'p>(&'p self, act: impl FnOnce(&mut Gather<'p>)) {
        let mut gather = Gather::new();
        act(&mut gather);
        gather.finish(&self.vm);
    }

    /// Removes pages at the place of a run.
    pub fn remove(&self, run: usize, pages: std::ops::Range<usize>) {
        let (start, end) = (Runs::va(run, pages.start), Runs::va(run, pages.end));
        self.gathered(|gather| self.pmap.remove_range(&self.vm, start, end, gather));
    }

    /// Withdraws write access to pages at the place of a run.
    pub fn protect(&self, run: usize, pages: std::ops::Range<usize>) {
        let revoke = vm::pmap::Revoke {
            write: true,
            exec: false,
        };
        let (start, end) = (Runs::va(run, pages.start), Runs::va(run, pages.end));
        self.gathered(|gather| {
            self.pmap
                .protect_range(&self.vm, start, end, revoke, gather)
        });
    }

    /// Makes everything read-only, as a fork does.
    pub fn fork(&self) {
        self.gathered(|gather| {
            self.pmap
                .write_protect_high(&self.vm, &ksync::pin(), gather)
        });
    }

    /// Removes page `n` of a run by a scan.
    pub fn scan_remove(&self, run: usize, n: usize) -> Scan {
        let (va, pfn) = (Runs::va(run, n), self.frame(run, n));
        self.pmap.scan_remove(&self.vm, &ksync::pin(), va, pfn)
    }

    /// Write-protects page `n` of a run by a scan.
    pub fn scan_write_protect(&self, run: usize, n: usize) -> Scan {
        let (va, pfn) = (Runs::va(run, n), self.frame(run, n));
        self.pmap
            .scan_write_protect(&self.vm, &ksync::pin(), va, pfn)
    }

    /// Tests and clears A of page `n` of a run.
    pub fn referenced(&self, run: usize, n: usize) -> bool {
        let (va, pfn) = (Runs::va(run, n), self.frame(run, n));
        self.pmap
            .scan_test_clear_accessed(&self.vm, &ksync::pin(), va, pfn)
    }

    /// Makes all allocations of frames fail while `act` runs.
    pub fn without_memory<R>(&self, act: impl FnOnce() -> R) -> R {
        self.vm.alloc.set_injector(1, 0);
        let done = act();
        self.vm.alloc.set_injector(0, 0);
        done
    }

    /// Makes a CPU that this thread plays run the pmap.
    pub fn run_on(&self, cpu: usize) {
        self.play(cpu, || mmu::run(&self.vm, &ksync::pin(), &self.pmap));
    }

    /// Makes a CPU stop running the pmap.
    pub fn stop_on(&self, cpu: usize) {
        self.play(cpu, || mmu::stop(&self.vm, &ksync::pin(), &self.pmap));
    }

    /// Plays a CPU in this thread while `act` runs, then the one from before.
    pub fn play<R>(&self, cpu: usize, act: impl FnOnce() -> R) -> R {
        let before = ksync::pin().cpu();
        ksync::host::set_cpu(cpu);
        self.vm.epoch.online(cpu);
        let done = act();
        if cpu != before {
            self.vm.epoch.offline(cpu);
        }
        ksync::host::set_cpu(before);
        done
    }

    /// Enters a leaf at the place of a run if `check` holds.
    pub fn enter_large(&self, run: usize, prot: Prot, check: impl FnOnce() -> bool) -> bool {
        let leaf = Pte::user(self.frame(run, 0), prot).with(Pte::PS | Pte::D);
        let va = Runs::va(run, 0);
        self.pmap
            .enter_large(&self.vm, &ksync::pin(), va, leaf, check)
    }

    /// As [`stopped`], where CPUs 1 and 2 perform `theirs` and `ours`.
    #[cfg(not(any(loom, shuttle)))]
    pub fn stopped(
        &self,
        place: (usize, Option<Pfn>),
        patience: Duration,
        theirs: impl FnOnce() + Send,
        ours: impl FnOnce() + Send,
    ) -> bool {
        let theirs = || self.play(1, theirs);
        stopped(&self.vm.machine, place, patience, theirs, || {
            self.play(2, ours);
        })
    }

    /// Ends the pmap and checks that no frame is lost.
    pub fn finish(self) {
        listed::check(&self.vm, std::iter::once(&*self.pmap));
        self.pmap.release(&self.vm);
        assert_eq!(self.pmap.tables(), 0);
        for &run in &self.runs {
            self.vm.alloc.free_order(&ksync::pin(), run, 9);
        }
        self.vm.drain_limbo();
        assert_eq!(self.vm.alloc.free_pages(), self.free);
    }
}

/// Stops `theirs`, which CPU 1 performs, at its `look`-th look at a table, or at its first look at table `at`, while `ours` is
/// performed on another CPU, as far as it can: to its end, or until it has waited for CPU 1 for so long. Returns whether CPU 1
/// came there; else `ours` is not performed.
#[cfg(not(any(loom, shuttle)))]
pub fn stopped(
    machine: &Sim,
    (look, at): (usize, Option<Pfn>),
    patience: Duration,
    theirs: impl FnOnce() + Send,
    ours: impl FnOnce() + Send,
) -> bool {
    const REACHED: usize = 1;
    const GO: usize = 2;
    let [looks, state] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let (count, gate) = (looks.clone(), state.clone());
    machine.on_table(Some(Box::new(move |pfn| {
        if ksync::pin().cpu() != 1 || at.is_some_and(|at| at != pfn) {
            return;
        }
        if count.fetch_add(1, SeqCst) + 1 == look {
            gate.store(REACHED, SeqCst);
            while gate.load(SeqCst) != GO {
                std::thread::yield_now();
            }
        }
    })));
    let ended = AtomicUsize::new(0);
    let play = |act: &mut dyn FnMut()| {
        act();
        ended.fetch_add(1, SeqCst);
    };
    let (mut theirs, mut ours) = (Some(theirs), Some(ours));
    let mut reached = false;
    std::thread::scope(|scope| {
        scope.spawn(|| play(&mut || theirs.take().expect("once")()));
        while state.load(SeqCst) != REACHED && ended.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        reached = state.load(SeqCst) == REACHED;
        if reached {
            scope.spawn(|| play(&mut || ours.take().expect("once")()));
            let begin = Instant::now();
            while ended.load(SeqCst) == 0 && begin.elapsed() < patience {
                std::thread::yield_now();
            }
            state.store(GO, SeqCst);
        }
    });
    machine.on_table(None);
    reached
}
