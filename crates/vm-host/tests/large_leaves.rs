//! The laboratory's CPUs with leaves of 2 MiB, which these tests write into the tables by hand: what they cache, set and drop.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use vm::pmap::table::slot;
use vm::{Gather, Machine, Pfn, Pmap, Prot, Pte, Rights, Vm};
use vm_host::mmu::{LARGE, run, stop};
use vm_host::ticket;
use vm_host::{PageFault, Sim};

const BASE: u64 = 3 * LARGE;
const PAGE: u64 = 4096;

/// A pmap with a run of 512 frames, of which the first is mapped at [`BASE`] by an entry of 4 KiB. CPU 0 runs it.
struct Lab {
    vm: Vm<Sim>,
    pmap: Arc<Pmap>,
    first: Pfn,
}

impl Lab {
    fn new() -> Lab {
        let vm = Sim::new(2048, 2, 1).into_vm();
        let mut own: Vec<u32> = (0..1900)
            .map_while(|_| vm.alloc.alloc(&ksync::pin(), Rights::User).ok())
            .map(|pfn| pfn.0)
            .collect();
        own.sort_unstable();
        let is_run = |&first: &u32| {
            first.is_multiple_of(512) && (first..first + 512).all(|n| own.binary_search(&n).is_ok())
        };
        let first = own.iter().copied().find(is_run).expect("a run of frames");
        for n in own.iter().filter(|n| !(first..first + 512).contains(*n)) {
            vm.alloc.free(&ksync::pin(), Pfn(*n));
        }
        let lab = Lab {
            vm,
            pmap: Arc::new(Pmap::new()),
            first: Pfn(first),
        };
        lab.enter(0, Prot::WRITE);
        run(&lab.vm, &ksync::pin(), &lab.pmap);
        lab
    }

    /// Maps page `n` by an entry of 4 KiB.
    fn enter(&self, n: u64, prot: Prot) {
        let leaf = Pte::user(Pfn(self.first.0 + n as u32), prot);
        let va = BASE + n * PAGE;
        let entered = self.pmap.enter(
            &self.vm,
            &ksync::pin(),
            &ticket(&self.vm, &self.pmap),
            va,
            leaf,
            || true,
        );
        assert!(entered.is_ok());
    }

    /// The directory entry of [`BASE`].
    fn directory(&self) -> &ksync::atomic::AtomicU64 {
        let mut table = self.pmap.root().expect("a root");
        for level in [4, 3] {
            let word = &self.vm.machine.table_words(table)[slot(BASE, level)];
            table = Pte(word.load(SeqCst)).pfn();
        }
        &self.vm.machine.table_words(table)[slot(BASE, 2)]
    }

    /// Runs `act` while the directory entry is a leaf for the run with these bits besides P, U and PS; returns what the entry has
    /// become.
    fn with_large(&self, bits: u64, act: impl FnOnce()) -> Pte {
        let large = self.first.address() | Pte::P | Pte::U | Pte::PS | bits;
        let table = self.directory().swap(large, SeqCst);
        act();
        Pte(self.directory().swap(table, SeqCst))
    }

    /// Removes the entry of 4 KiB of page `n`, and flushes that address.
    fn remove(&self, n: u64) {
        let (va, mut gather) = (BASE + n * PAGE, Gather::new());
        self.pmap.remove_range(&self.vm, va, va + PAGE, &mut gather);
        gather.finish(&self.vm);
    }

    /// The first walk takes the way to the old table, which the CPU has cached, finds nothing there, and drops the way.
    fn leave_old_table(&self) {
        assert_eq!(self.read(511), Err(PageFault { present: false }));
    }

    fn has_cached(&self, n: u64) -> bool {
        self.vm.machine.has_cached(0, BASE + n * PAGE)
    }

    fn read(&self, n: u64) -> Result<u64, PageFault> {
        self.vm.machine.read(0, BASE + n * PAGE)
    }

    fn write(&self, n: u64, value: u64) -> Result<(), PageFault> {
        self.vm.machine.write(0, BASE + n * PAGE, value)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        stop(&self.vm, &ksync::pin(), &self.pmap);
        self.pmap.release(&self.vm);
    }
}

#[test]
fn a_large_leaf_leads_to_each_page_of_its_run() {
    let lab = Lab::new();
    lab.with_large(Pte::W, || {
        for n in [0, 1, 255, 511] {
            assert_eq!(lab.write(n, 1000 + n), Ok(()));
        }
    });
    // The removal of page 0 drops the large translation.
    lab.remove(0);
    for n in [1, 255, 511] {
        lab.enter(n, Prot::READ);
        assert_eq!(lab.read(n), Ok(1000 + n));
    }
}

#[test]
fn accesses_mark_a_large_leaf() {
    let lab = Lab::new();
    let marks = |entry: Pte| (entry.is_accessed(), entry.is_dirty());
    assert_eq!(marks(lab.with_large(Pte::W, || ())), (false, false));
    let read = lab.with_large(Pte::W, || assert!(lab.read(9).is_ok()));
    assert_eq!(marks(read), (true, false));
    let written = lab.with_large(Pte::W, || assert!(lab.write(9, 1).is_ok()));
    assert_eq!(marks(written), (true, true));
}

#[test]
fn a_large_leaf_without_rights_forbids_stores() {
    let lab = Lab::new();
    lab.with_large(Pte::NX, || {
        assert_eq!(lab.write(3, 1), Err(PageFault { present: true }));
        assert!(lab.read(3).is_ok());
        let fetched = lab.vm.machine.fetch(0, BASE + 3 * PAGE);
        assert_eq!(fetched, Err(PageFault { present: true }));
    });
}

/// One address drops the large translation and its own small one. The 511 other small ones stay.
#[test]
fn an_invalidation_leaves_small_translations_elsewhere() {
    let lab = Lab::new();
    lab.enter(1, Prot::WRITE);
    assert!(lab.read(0).is_ok() && lab.read(1).is_ok());
    lab.with_large(Pte::W, || {
        lab.leave_old_table();
        assert!(lab.read(2).is_ok());
    });
    assert!([0, 1, 2, 400].iter().all(|&n| lab.has_cached(n)));
    lab.remove(0);
    let left: Vec<u64> = [0, 1, 2, 400]
        .into_iter()
        .filter(|&n| lab.has_cached(n))
        .collect();
    assert_eq!(left, [1]);
}

/// A processor may use either of two translations for one address.
#[test]
fn of_two_sizes_either_is_used() {
    let lab = Lab::new();
    lab.enter(1, Prot::READ);
    assert!(lab.read(1).is_ok());
    lab.with_large(Pte::W, || {
        lab.leave_old_table();
        assert_eq!(lab.write(2, 5), Ok(()));
        let stores = [lab.write(1, 7), lab.write(1, 8)];
        assert!(stores.contains(&Ok(())), "by the large one");
        assert!(
            stores.contains(&Err(PageFault { present: true })),
            "by the small one"
        );
    });
}

/// An old large translation outlives its entry until it is flushed.
#[test]
fn a_large_translation_stays_until_it_is_dropped() {
    let lab = Lab::new();
    lab.with_large(Pte::W, || assert_eq!(lab.write(7, 7), Ok(())));
    assert_eq!(lab.read(7), Ok(7), "the table has no entry for the page");
    lab.remove(0);
    assert_eq!(lab.read(7), Err(PageFault { present: false }));
}

/// A walk has read a leaf, and a table takes its place before the walk marks it accessed: the core walks again, as the locked update
/// of real ones would find the entry changed.
#[test]
fn a_walk_that_finds_its_leaf_divided_walks_again() {
    let lab = Lab::new();
    lab.enter(1, Prot::WRITE);
    assert_eq!(lab.write(1, 77), Ok(()));
    // It is mapped, but neither it nor the way to it is cached any more.
    lab.remove(1);
    lab.enter(1, Prot::WRITE);
    let large = lab.first.address() | Pte::P | Pte::U | Pte::PS;
    let table = lab.directory().swap(large, SeqCst);
    let turn = Arc::new(AtomicU32::new(0));
    let walks = turn.clone();
    let wait_for = |turn: &AtomicU32, n: u32| {
        while turn.load(SeqCst) != n {
            std::thread::yield_now();
        }
    };
    lab.vm.machine.on_mark(Some(Box::new(move |_| {
        let first = walks.compare_exchange(0, 1, SeqCst, SeqCst).is_ok();
        if first {
            wait_for(&walks, 2);
        }
    })));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for(&turn, 1);
            lab.directory().swap(table, SeqCst);
            turn.store(2, SeqCst);
        });
        assert_eq!(lab.read(1), Ok(77));
    });
    lab.vm.machine.on_mark(None);
    assert_eq!(lab.directory().load(SeqCst), table);
}
