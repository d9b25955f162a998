//! The store-load protocols of `doc/vm.md`, in every interleaving and every order that the memory model allows.
//!
//! The words that both sides meet at are the real ones (busy state and identity of a page, the set of CPUs that run a
//! pmap); a page-table entry is one atomic word.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm --release --test loom`
#![cfg(loom)]

use ksync::atomic::{AtomicU64, Ordering::*, fence};
use loom::{sync::Arc, thread};
use vm::Page;
use vm::tlb::ActiveSet;

const OBJECT: usize = 0x1000;
const INDEX: u32 = 7;
const EMPTY: u64 = 0;
const CLAIMED: u64 = 1;
const LEAF: u64 = 2;

struct World {
    page: Page,
    pte: AtomicU64,
}

/// A page of an object that nobody holds.
fn world() -> Arc<World> {
    let page = Page::absent();
    assert!(page.is_hard_busy() || page.try_hard_busy());
    page.set_identity(OBJECT, INDEX);
    let _nobody_waits = page.hard_unbusy();
    Arc::new(World {
        page,
        pte: AtomicU64::new(EMPTY),
    })
}

impl World {
    /// A fault that found the page without a lock.
    fn fault(&self) {
        self.pte.store(CLAIMED, Release);
        fence(SeqCst);
        let good = !self.page.is_hard_busy() && self.page.is(OBJECT, INDEX);
        let new = if good { LEAF } else { EMPTY };
        // Fails if a scan took the claim.
        let _entered = self.pte.compare_exchange(CLAIMED, new, AcqRel, Acquire);
    }

    /// A scan, which keeps the page busy.
    fn scan(&self) {
        assert!(self.page.try_hard_busy(), "nobody else holds it");
        fence(SeqCst);
        if self.pte.load(Acquire) != EMPTY {
            self.pte.swap(EMPTY, AcqRel);
        }
    }
}

fn fault_beside(world: &Arc<World>) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || world.fault())
}

#[test]
fn a_claim_and_a_scan_see_each_other() {
    loom::model(|| {
        let world = world();
        let fault = fault_beside(&world);
        world.scan();
        fault.join().unwrap();
        assert_eq!(
            world.pte.load(SeqCst),
            EMPTY,
            "a page that was taken away is mapped"
        );
    });
}

#[test]
fn a_page_that_changed_hands_is_not_entered() {
    loom::model(|| {
        let world = world();
        let fault = fault_beside(&world);
        world.scan();
        world.page.clear_identity();
        world.page.set_identity(OBJECT + 64, INDEX);
        let _nobody_waits = world.page.hard_unbusy();
        // A fault that came before the scan was undone by it; one that came after saw the new identity.
        fault.join().unwrap();
        assert_eq!(world.pte.load(SeqCst), EMPTY, "a stranger's page is mapped");
    });
}

#[test]
fn a_cpu_that_joins_is_flushed_or_sees_the_change() {
    loom::model(|| {
        let active = Arc::new(ActiveSet::default());
        let pte = Arc::new(AtomicU64::new(LEAF));
        let joiner = thread::spawn({
            let (active, pte) = (active.clone(), pte.clone());
            move || {
                active.enter(1);
                pte.load(Relaxed)
            }
        });
        pte.store(EMPTY, Release);
        fence(SeqCst);
        let flushed = active.snapshot().contains(1);
        let cached = joiner.join().unwrap();
        assert!(
            flushed || cached == EMPTY,
            "a CPU keeps what nobody tells it to forget"
        );
    });
}

/// A slot and a size, each written before the other is read.
#[test]
fn an_insertion_or_the_truncation_sees_the_other() {
    loom::model(|| {
        let slot = Arc::new(AtomicU64::new(0));
        let size = Arc::new(AtomicU64::new(1));
        let inserter = thread::spawn({
            let (slot, size) = (slot.clone(), size.clone());
            move || {
                slot.store(1, Release);
                fence(SeqCst);
                if size.load(Acquire) == 0 {
                    slot.store(0, Release);
                }
            }
        });
        size.store(0, Release);
        fence(SeqCst);
        let swept = slot.load(Acquire) != 0;
        inserter.join().unwrap();
        assert!(
            swept || slot.load(SeqCst) == 0,
            "a page lies beyond the end"
        );
    });
}
