//! The pmap on simulated CPUs: each operation alone, with exact counts and no lost frame.

use std::sync::Arc;

use ksync::atomic::{Ordering::SeqCst, fence};
use vm::page::PAGE_SIZE;
use vm::pmap::Revoke;
use vm::pmap::{EnterError, Entered, Scan};
use vm::rmap::Ticket;
use vm::{Gather, Machine, Pfn, Pmap, Prot, Pte, Rights, Vm};
use vm_host::mmu::{KERNEL_MARK, run, stop};
use vm_host::{PageFault, Sim, ticket};

const PAGE: u64 = PAGE_SIZE as u64;
const SPAN: u64 = 512 * PAGE;
const ABSENT: PageFault = PageFault { present: false };
const FORBIDDEN: PageFault = PageFault { present: true };

struct Lab {
    vm: Vm<Sim>,
    pmap: Arc<Pmap>,
    free: usize,
}

impl Lab {
    fn new() -> Lab {
        let vm = Sim::new(256, 4, 1).into_vm();
        let free = vm.alloc.free_pages();
        Lab {
            vm,
            pmap: Arc::new(Pmap::new()),
            free,
        }
    }

    fn ticket(&self) -> Ticket<'_> {
        ticket(&self.vm, &self.pmap)
    }

    fn page(&self) -> Pfn {
        self.vm.alloc.alloc(&ksync::pin(), Rights::User).unwrap()
    }

    fn give(&self, pfn: Pfn) {
        self.vm.alloc.free(&ksync::pin(), pfn);
    }

    fn enter(&self, va: u64, pte: Pte) -> Result<Entered, EnterError> {
        self.pmap
            .enter(&self.vm, &ksync::pin(), &self.ticket(), va, pte, || true)
    }

    fn resident(
        &self,
        va: u64,
        leaf: Pte,
        check: impl FnMut() -> bool,
        good: impl FnMut() -> bool,
    ) -> Result<Entered, EnterError> {
        let (pin, room) = (ksync::pin(), self.ticket());
        self.pmap
            .enter_resident(&self.vm, &pin, &room, va, leaf, check, good)
    }

    fn map(&self, va: u64, prot: Prot) -> Pfn {
        let pfn = self.page();
        assert_eq!(self.enter(va, Pte::user(pfn, prot)), Ok(Entered::New));
        pfn
    }

    fn lookup(&self, va: u64) -> Option<Pte> {
        self.pmap.lookup(&self.vm, &ksync::pin(), va)
    }

    fn remove(&self, start: u64, end: u64) {
        let mut gather = Gather::new();
        self.pmap.remove_range(&self.vm, start, end, &mut gather);
        gather.finish(&self.vm);
    }

    fn fork(&self) {
        let mut gather = Gather::new();
        self.pmap
            .write_protect_high(&self.vm, &ksync::pin(), &mut gather);
        gather.finish(&self.vm);
    }

    /// Plays CPU `cpu` for a while.
    fn on<R: Send>(&self, cpu: usize, act: impl FnOnce() -> R + Send) -> R {
        std::thread::scope(|scope| {
            let play = || {
                ksync::host::set_cpu(cpu);
                self.vm.epoch.online(cpu);
                let result = act();
                if cpu != 0 {
                    self.vm.epoch.offline(cpu);
                }
                result
            };
            scope.spawn(play).join().unwrap()
        })
    }

    /// Whether a store succeeds, at the latest after a fault that has flushed older rights of the CPU.
    fn writes(&self, cpu: usize, va: u64) -> bool {
        self.vm
            .machine
            .write(cpu, va, va)
            .or_else(|_| self.vm.machine.write(cpu, va, va))
            .is_ok()
    }

    fn run_on(&self, cpu: usize) {
        self.on(cpu, || run(&self.vm, &ksync::pin(), &self.pmap));
    }

    fn stop_on(&self, cpu: usize) {
        self.on(cpu, || stop(&self.vm, &ksync::pin(), &self.pmap));
    }

    /// Ends the pmap and checks that all frames except `held` are free.
    fn end(self, held: &[Pfn]) {
        self.pmap.release(&self.vm);
        assert_eq!(self.pmap.tables(), 0);
        held.iter().for_each(|&pfn| self.give(pfn));
        self.vm.drain_limbo();
        assert_eq!(self.vm.alloc.free_pages(), self.free);
    }
}

#[test]
fn an_empty_pmap_has_no_tables_and_runs_on_the_empty_root() {
    let lab = Lab::new();
    lab.run_on(1);
    assert_eq!(lab.vm.machine.read(1, 0x1000), Err(ABSENT));
    assert_eq!(lab.pmap.tables(), 0);
    assert_eq!(lab.lookup(0x1000), None);
    lab.stop_on(1);
    lab.end(&[]);
}

#[test]
fn the_first_enter_gives_running_cpus_the_new_root() {
    let lab = Lab::new();
    lab.run_on(0);
    lab.run_on(2);
    let pfn = lab.map(0x1000, Prot::WRITE);
    assert_eq!(lab.pmap.tables(), 4);
    assert_eq!(lab.vm.machine.write(0, 0x1008, 7), Ok(()));
    assert_eq!(lab.vm.machine.read(2, 0x1008), Ok(7));
    assert_eq!(
        lab.vm.machine.read(3, 0x1008),
        Err(ABSENT),
        "CPU 3 runs nothing"
    );
    let root = lab.pmap.root().unwrap();
    assert_eq!(
        lab.vm.machine.table_words(root)[511].load(SeqCst),
        KERNEL_MARK
    );
    lab.stop_on(0);
    lab.stop_on(2);
    lab.end(&[pfn]);
}

#[test]
fn entries_allow_what_they_say() {
    let lab = Lab::new();
    lab.run_on(0);
    let read = lab.map(0x1000, Prot::READ);
    let exec = lab.map(0x2000, Prot::EXEC);
    assert_eq!(lab.vm.machine.write(0, 0x1000, 1), Err(FORBIDDEN));
    assert_eq!(lab.vm.machine.fetch(0, 0x1000), Err(FORBIDDEN));
    assert_eq!(lab.vm.machine.fetch(0, 0x2000), Ok(()));
    assert_eq!(
        lab.enter(0x1000, Pte::user(read, Prot::READ)),
        Ok(Entered::Same)
    );
    assert_eq!(
        lab.enter(0x1000, Pte::user(read, Prot::WRITE)),
        Ok(Entered::Upgraded)
    );
    assert_eq!(lab.vm.machine.write(0, 0x1000, 1), Ok(()));
    assert_eq!(
        lab.enter(0x1000, Pte::user(read, Prot::READ)),
        Ok(Entered::Same),
        "rights only grow"
    );
    assert!(
        matches!(lab.enter(0x1000, Pte::user(exec, Prot::READ)), Err(EnterError::Occupied(pte)) if pte.pfn() == read)
    );
    lab.stop_on(0);
    lab.end(&[read, exec]);
}

#[test]
fn a_failed_check_changes_nothing() {
    let lab = Lab::new();
    let pfn = lab.page();
    let pin = ksync::pin();
    let leaf = Pte::user(pfn, Prot::READ);
    let done = lab
        .pmap
        .enter(&lab.vm, &pin, &lab.ticket(), 0x5000, leaf, || false);
    assert_eq!(done, Err(EnterError::Stale));
    let done = lab.resident(0x5000, leaf, || false, || true);
    assert_eq!(done, Err(EnterError::Stale));
    let done = lab.resident(0x5000, leaf, || true, || false);
    assert_eq!(done, Err(EnterError::Retry));
    drop(pin);
    assert_eq!(lab.lookup(0x5000), None);
    assert_eq!(lab.pmap.resident(&lab.vm), 0);
    lab.end(&[pfn]);
}

#[test]
fn copy_on_write_replaces_and_flushes_every_cpu() {
    let lab = Lab::new();
    lab.run_on(0);
    lab.run_on(1);
    let (old, new) = (lab.map(0x3000, Prot::READ), lab.page());
    let word = lab.vm.machine.read(1, 0x3000).unwrap();
    let leaf = Pte::user(new, Prot::WRITE);
    let done = lab
        .pmap
        .enter_over(&lab.vm, &ksync::pin(), &lab.ticket(), 0x3000, leaf, || true);
    assert!(matches!(done, Ok(Entered::Replaced(pte)) if pte.pfn() == old && pte.is_accessed()));
    lab.vm.machine.write(0, 0x3000, word + 1).unwrap();
    assert_eq!(lab.vm.machine.read(1, 0x3000), Ok(word + 1));
    assert_eq!(lab.pmap.resident(&lab.vm), 1);
    lab.stop_on(0);
    lab.stop_on(1);
    lab.end(&[old, new]);
}

#[test]
fn removal_is_seen_by_all_and_prunes_empty_tables() {
    let lab = Lab::new();
    lab.run_on(0);
    lab.run_on(1);
    let far = 1 << 40;
    let pages: Vec<Pfn> = (0..4)
        .map(|n| lab.map(n * SPAN, Prot::WRITE))
        .chain([lab.map(far, Prot::READ)])
        .collect();
    assert_eq!(lab.pmap.tables(), 1 + 3 + 2 + 4);
    for cpu in [0, 1] {
        (0..4).for_each(|n| lab.vm.machine.write(cpu, n * SPAN, n).unwrap());
    }
    lab.remove(SPAN, 3 * SPAN);
    assert_eq!(lab.pmap.resident(&lab.vm), 3);
    assert_eq!(lab.pmap.tables(), 8);
    for cpu in [0, 1] {
        assert_eq!(lab.vm.machine.read(cpu, 0), Ok(0));
        assert_eq!(lab.vm.machine.read(cpu, SPAN), Err(ABSENT));
        assert_eq!(lab.vm.machine.read(cpu, 2 * SPAN), Err(ABSENT));
        assert_eq!(lab.vm.machine.read(cpu, 3 * SPAN), Ok(3));
    }
    lab.remove(0, far);
    assert_eq!(lab.pmap.tables(), 4, "the path to the far page is left");
    lab.remove(0, far + PAGE);
    assert_eq!(lab.pmap.tables(), 1, "only the root is left");
    assert_eq!(lab.pmap.resident(&lab.vm), 0);
    lab.stop_on(0);
    lab.stop_on(1);
    lab.end(&pages);
}

#[test]
fn a_pruned_table_is_not_used_through_cached_upper_levels() {
    let lab = Lab::new();
    lab.run_on(1);
    let old = lab.map(7 * PAGE, Prot::WRITE);
    lab.vm.machine.read(1, 7 * PAGE).unwrap();
    lab.remove(7 * PAGE, 8 * PAGE);
    lab.vm.drain_limbo();
    let new = lab.map(8 * PAGE, Prot::WRITE);
    assert_eq!(lab.vm.machine.read(1, 7 * PAGE), Err(ABSENT));
    assert!(lab.vm.machine.read(1, 8 * PAGE).is_ok());
    lab.stop_on(1);
    lab.end(&[old, new]);
}

#[test]
fn harvest_passes_dirty_and_accessed_once() {
    let lab = Lab::new();
    lab.run_on(0);
    let clean = lab.page();
    lab.enter(0, Pte::user(clean, Prot::WRITE).untouched())
        .unwrap();
    let dirty = lab.map(PAGE, Prot::WRITE);
    let device = lab.page();
    lab.enter(2 * PAGE, Pte::unmanaged(device, Prot::WRITE))
        .unwrap();
    lab.vm.machine.write(0, PAGE, 1).unwrap();
    lab.vm.machine.write(0, 2 * PAGE, 1).unwrap();
    let mut seen = Vec::new();
    let mut gather = Gather::new();
    lab.pmap
        .harvest_range(&lab.vm, 0, SPAN, &mut gather, |pfn, pte| {
            seen.push((pfn, pte.is_dirty()))
        });
    gather.finish(&lab.vm);
    assert_eq!(seen, [(dirty, true)]);
    assert_eq!(lab.pmap.resident(&lab.vm), 0);
    lab.stop_on(0);
    lab.end(&[clean, dirty, device]);
}

#[test]
fn protection_takes_rights_from_every_cpu() {
    let lab = Lab::new();
    lab.run_on(0);
    lab.run_on(1);
    let pages: Vec<Pfn> = (0..40).map(|n| lab.map(n * PAGE, Prot::ALL)).collect();
    (0..40).for_each(|n| lab.vm.machine.write(1, n * PAGE, n).unwrap());
    let before = lab.vm.machine.interrupts();
    let mut gather = Gather::new();
    lab.pmap.protect_range(
        &lab.vm,
        PAGE,
        39 * PAGE,
        Revoke {
            write: true,
            exec: false,
        },
        &mut gather,
    );
    gather.finish(&lab.vm);
    assert_eq!(
        lab.vm.machine.interrupts(),
        before + 2,
        "one round to two cores"
    );
    for n in 0..40 {
        let inside = (1..39).contains(&n);
        assert_eq!(lab.vm.machine.write(1, n * PAGE, 0).is_err(), inside);
        assert!(lab.vm.machine.fetch(1, n * PAGE).is_ok());
        assert!(lab.lookup(n * PAGE).unwrap().is_dirty(), "D is not lost");
    }
    let mut gather = Gather::new();
    lab.pmap.protect_range(
        &lab.vm,
        0,
        PAGE,
        Revoke {
            write: true,
            exec: true,
        },
        &mut gather,
    );
    gather.finish(&lab.vm);
    assert_eq!(lab.vm.machine.fetch(0, 0), Err(FORBIDDEN));
    lab.stop_on(0);
    lab.stop_on(1);
    lab.end(&pages);
}

#[test]
fn write_protection_high_holds_until_pushed_down_on_one_path() {
    let lab = Lab::new();
    lab.run_on(0);
    lab.run_on(1);
    let places = [0, PAGE, SPAN, 600 * SPAN, 1 << 41];
    let pages: Vec<Pfn> = places.iter().map(|&va| lab.map(va, Prot::WRITE)).collect();
    places
        .iter()
        .for_each(|&va| lab.vm.machine.write(1, va, va).unwrap());
    lab.fork();
    for &va in &places {
        assert_eq!(lab.vm.machine.write(1, va, 1), Err(FORBIDDEN));
        assert_eq!(lab.vm.machine.read(1, va), Ok(va));
        assert!(!lab.lookup(va).unwrap().is_writable());
    }
    // A write to a page of the same table makes only that page writable.
    assert_eq!(
        lab.enter(PAGE, Pte::user(pages[1], Prot::WRITE)),
        Ok(Entered::Upgraded)
    );
    for &va in &places {
        assert_eq!(lab.writes(1, va), va == PAGE);
    }
    // And again, after a second fork, elsewhere.
    lab.fork();
    assert_eq!(
        lab.enter(600 * SPAN, Pte::user(pages[3], Prot::WRITE)),
        Ok(Entered::Upgraded)
    );
    for &va in &places {
        assert_eq!(lab.writes(0, va), va == 600 * SPAN);
    }
    lab.stop_on(0);
    lab.stop_on(1);
    lab.end(&pages);
}

#[test]
fn a_scan_acts_on_its_own_frame_alone() {
    let lab = Lab::new();
    lab.run_on(1);
    let (one, two) = (lab.map(0, Prot::WRITE), lab.map(PAGE, Prot::WRITE));
    lab.vm.machine.write(1, 0, 5).unwrap();
    lab.vm.machine.write(1, PAGE, 6).unwrap();
    fence(SeqCst);
    let pin = ksync::pin();
    assert_eq!(lab.pmap.scan_remove(&lab.vm, &pin, PAGE, one), Scan::Absent);
    assert_eq!(
        lab.pmap.scan_remove(&lab.vm, &pin, 9 * SPAN, one),
        Scan::Absent
    );
    let found = lab.pmap.scan_write_protect(&lab.vm, &pin, 0, one);
    assert!(found.pte().unwrap().is_dirty());
    assert_eq!(lab.vm.machine.write(1, 0, 7), Err(FORBIDDEN));
    assert!(!lab.lookup(0).unwrap().is_dirty());
    assert!(lab.pmap.scan_test_clear_accessed(&lab.vm, &pin, 0, one));
    assert!(!lab.pmap.scan_test_clear_accessed(&lab.vm, &pin, 0, one));
    assert!(!lab.pmap.scan_test_clear_accessed(&lab.vm, &pin, PAGE, one));
    assert!(lab.pmap.scan_remove(&lab.vm, &pin, 0, one).pte().is_some());
    assert!(
        lab.pmap
            .scan_remove(&lab.vm, &pin, PAGE, two)
            .pte()
            .is_some()
    );
    drop(pin);
    assert_eq!(lab.vm.machine.read(1, 0), Err(ABSENT));
    assert_eq!(lab.vm.machine.read(1, PAGE), Err(ABSENT));
    assert_eq!(lab.pmap.resident(&lab.vm), 0);
    assert_eq!(lab.pmap.tables(), 1, "the scan unlinked what it emptied");
    lab.stop_on(1);
    lab.end(&[one, two]);
}

#[test]
fn a_scan_flushes_what_a_removal_has_not_yet() {
    let lab = Lab::new();
    lab.run_on(1);
    let pfn = lab.map(0, Prot::WRITE);
    lab.vm.machine.write(1, 0, 1).unwrap();
    let mut removal = Gather::new();
    lab.pmap.remove_range(&lab.vm, 0, PAGE, &mut removal);
    assert_eq!(lab.vm.machine.read(1, 0), Ok(1), "not flushed yet");
    assert_eq!(
        lab.pmap.scan_remove(&lab.vm, &ksync::pin(), 0, pfn),
        Scan::Absent
    );
    assert_eq!(lab.vm.machine.read(1, 0), Err(ABSENT));
    removal.finish(&lab.vm);
    let sent = lab.vm.machine.interrupts();
    let _absent = lab.pmap.scan_remove(&lab.vm, &ksync::pin(), 0, pfn);
    assert_eq!(
        lab.vm.machine.interrupts(),
        sent,
        "nothing is pending any more"
    );
    lab.stop_on(1);
    lab.end(&[pfn]);
}

/// Where entries are listed there are no claims.
#[test]
#[cfg(not(feature = "listed"))]
fn a_scan_takes_a_claim_and_the_fault_retries() {
    let lab = Lab::new();
    let pfn = lab.page();
    let pin = ksync::pin();
    let leaf = Pte::user(pfn, Prot::READ);
    let identity = || {
        assert_eq!(lab.pmap.scan_remove(&lab.vm, &pin, 0, pfn), Scan::Unclaimed);
        true
    };
    let done = lab.resident(0, leaf, || true, identity);
    assert_eq!(done, Err(EnterError::Retry));
    assert_eq!(lab.pmap.resident(&lab.vm), 0);
    // The same for added rights: removed by a scan, or refused by the page.
    assert_eq!(lab.resident(0, leaf, || true, || true), Ok(Entered::New));
    let identity = || {
        let found = lab.pmap.scan_write_protect(&lab.vm, &pin, 0, pfn);
        found.pte().is_some()
    };
    let leaf = Pte::user(pfn, Prot::WRITE);
    let refused = lab.resident(0, leaf, || true, || false);
    assert_eq!(refused, Err(EnterError::Retry));
    assert!(!lab.lookup(0).unwrap().is_writable());
    let done = lab.resident(0, leaf, || true, identity);
    assert_eq!(done, Err(EnterError::Retry));
    assert!(!lab.lookup(0).unwrap().is_writable());
    let done = lab.resident(0, leaf, || true, || true);
    assert_eq!(done, Ok(Entered::Upgraded));
    assert!(lab.lookup(0).unwrap().is_writable());
    drop(pin);
    lab.end(&[pfn]);
}

#[test]
fn fault_around_skips_what_is_taken_and_what_is_gone() {
    let lab = Lab::new();
    let there = lab.map(2 * PAGE, Prot::READ);
    let pages: Vec<Pfn> = (0..6).map(|_| lab.page()).collect();
    let page = |n: usize| (n != 3).then(|| pages[n]);
    let pin = ksync::pin();
    let entered = lab.pmap.enter_around(
        &lab.vm,
        &pin,
        &lab.ticket(),
        0,
        6,
        Prot::READ,
        || true,
        page,
        |n, _| n != 4,
    );
    assert_eq!(entered, Ok(3));
    let found: Vec<Option<Pfn>> = (0..6).map(|n| lab.lookup(n * PAGE).map(Pte::pfn)).collect();
    let expected = [
        Some(pages[0]),
        Some(pages[1]),
        Some(there),
        None,
        None,
        Some(pages[5]),
    ];
    assert_eq!(found, expected);
    assert_eq!(lab.pmap.resident(&lab.vm), 4);
    drop(pin);
    let held: Vec<Pfn> = pages.into_iter().chain([there]).collect();
    lab.end(&held);
}

#[test]
fn dropped_tables_spare_wired_entries_and_lose_no_dirty_bit() {
    let lab = Lab::new();
    lab.run_on(1);
    let wired = lab.page();
    lab.enter(5 * SPAN, Pte::user(wired, Prot::WRITE).wired())
        .unwrap();
    let plain = lab.map(0, Prot::WRITE);
    lab.vm.machine.write(1, 0, 1).unwrap();
    let mut dirty = Vec::new();
    lab.pmap.drop_tables(&lab.vm, |pfn, pte| {
        dirty.extend(pte.is_dirty().then_some(pfn))
    });
    assert_eq!(dirty, [plain]);
    assert_eq!(lab.vm.machine.read(1, 0), Err(ABSENT));
    assert!(lab.vm.machine.read(1, 5 * SPAN).is_ok());
    assert_eq!(lab.pmap.tables(), 4);
    lab.remove(0, 6 * SPAN);
    lab.pmap.drop_tables(&lab.vm, |_, _| ());
    assert_eq!(lab.pmap.tables(), 0);
    assert_eq!(lab.vm.machine.read(1, 5 * SPAN), Err(ABSENT));
    assert_eq!(
        lab.vm.machine.loaded_root(1),
        Some(lab.vm.pmaps.empty_root())
    );
    let again = lab.map(0, Prot::WRITE);
    assert!(
        lab.vm.machine.read(1, 0).is_ok(),
        "the running CPU got the new root"
    );
    lab.stop_on(1);
    lab.end(&[wired, plain, again]);
}

#[test]
fn release_interrupts_only_who_still_runs_it() {
    let lab = Lab::new();
    lab.run_on(1);
    let pfn = lab.map(0, Prot::WRITE);
    lab.vm.machine.write(1, 0, 1).unwrap();
    lab.stop_on(1);
    lab.run_on(2);
    let before = lab.vm.machine.interrupts();
    lab.pmap.release(&lab.vm);
    assert_eq!(lab.vm.machine.interrupts(), before + 1);
    assert_eq!(lab.vm.machine.read(2, 0), Err(ABSENT));
    assert_eq!(
        lab.vm.machine.loaded_root(2),
        Some(lab.vm.pmaps.empty_root())
    );
    lab.stop_on(2);
    assert_eq!(
        lab.enter(0, Pte::user(pfn, Prot::READ)),
        Err(EnterError::Stale),
        "released for good"
    );
    lab.end(&[pfn]);

    let lab = Lab::new();
    let pfn = lab.map(0, Prot::WRITE);
    lab.pmap.release(&lab.vm);
    assert_eq!(lab.vm.machine.interrupts(), 0);
    lab.end(&[pfn]);
}

#[test]
fn without_memory_for_tables_nothing_is_entered_or_lost() {
    let lab = Lab::new();
    let pfn = lab.page();
    let mut hoard = Vec::new();
    {
        // Made while there is memory, for it may need some, too.
        let room = lab.ticket();
        let enter = || {
            let leaf = Pte::user(pfn, Prot::READ);
            lab.pmap
                .enter(&lab.vm, &ksync::pin(), &room, 0, leaf, || true)
        };
        while let Ok(page) = lab.vm.alloc.alloc(&ksync::pin(), Rights::Table) {
            hoard.push(page);
        }
        for spare in 0..4 {
            assert!(matches!(enter(), Err(EnterError::NoTable(_))));
            assert_eq!(lab.pmap.tables(), spare);
            lab.give(hoard.pop().unwrap());
        }
        assert_eq!(enter(), Ok(Entered::New));
    }
    hoard.push(pfn);
    lab.end(&hoard);
}
