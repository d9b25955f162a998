//! The store-load protocols of `doc/vm.md`, in every interleaving and every order that the memory model allows.
//!
//! The words that both sides access are the real ones (busy state and identity of a page, the set of CPUs that run a
//! pmap); a page-table entry is one atomic word.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p vm --release --test loom`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "a model watches a raw cell, to see races that a page's busy state must prevent"
)]

use ksync::atomic::{AtomicU64, Ordering::*, fence};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use vm::Page;
use vm::page::{Flags, HardBusy, Wanted};
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

/// A page of an object, not held busy.
fn world() -> Arc<World> {
    let page = Page::absent();
    let busy = page.try_hard_busy().expect("nobody holds it");
    page.set_identity(OBJECT, INDEX);
    drop(busy);
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
    fn scan(&self) -> HardBusy<'_> {
        let busy = self.page.try_hard_busy().expect("nobody else holds it");
        fence(SeqCst);
        if self.pte.load(Acquire) != EMPTY {
            self.pte.swap(EMPTY, AcqRel);
        }
        busy
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
        let _busy = world.scan();
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
        let busy = world.scan();
        world.page.clear_identity();
        world.page.set_identity(OBJECT + 64, INDEX);
        drop(busy);
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

/// The accesses of a CPU that ran a pmap are over for a CPU that finds it removed from the set and reuses the frame.
#[test]
fn a_cpu_that_has_left_is_done_with_what_it_reached() {
    loom::model(|| {
        let active = Arc::new(ActiveSet::default());
        let frame = Arc::new(Guarded(Page::absent(), UnsafeCell::new(0)));
        active.enter(1);
        let runner = thread::spawn({
            let (active, frame) = (active.clone(), frame.clone());
            move || {
                frame.read();
                active.leave(1);
            }
        });
        fence(SeqCst);
        if !active.snapshot().contains(1) {
            frame.write();
        }
        runner.join().unwrap();
    });
}

/// Waits like an operation that found the page in the slot `pte`, until it gets a soft busy or the page is gone.
fn wait_for(world: &World) {
    while world.pte.load(Acquire) == LEAF && world.page.try_soft_busy().is_none() {
        let still = || world.pte.load(Acquire) == LEAF;
        if world.page.want(Wanted::Soft, still) {
            world.page.wait();
        }
    }
}

/// A page in a slot, held by this thread, and two threads that wait for it. loom fails if all threads sleep.
fn waited_for(end: fn(&World, HardBusy<'_>)) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let world = world();
        let busy = world.page.try_hard_busy().expect("nobody holds it");
        world.pte.store(LEAF, Release);
        let waiters = [1, 2].map(|cpu| {
            let world = world.clone();
            thread::spawn(move || {
                ksync::host::set_cpu(cpu);
                wait_for(&world);
            })
        });
        end(&world, busy);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn the_end_of_a_busy_state_wakes_all_that_wait() {
    waited_for(|_, busy| drop(busy));
}

#[test]
fn a_page_that_goes_to_the_allocator_wakes_all_that_wait() {
    waited_for(|world, busy| {
        assert_eq!(world.pte.swap(EMPTY, AcqRel), LEAF);
        busy.into_free();
    });
}

/// The page was taken again, for the next holder, before a waiter slept.
#[test]
fn a_busy_state_that_follows_at_once_wakes_all_that_wait() {
    waited_for(|world, busy| {
        drop(busy);
        let again = world.page.try_hard_busy();
        world.pte.swap(EMPTY, AcqRel);
        again.into_iter().for_each(HardBusy::into_free);
    });
}

/// A soft holder, a thread that waits until nobody holds the page, and one that wants a soft busy and may have to wait behind it.
#[test]
fn the_last_soft_holder_wakes_the_thread_that_waits_for_hard_busy_and_those_behind_it() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let world = world();
        let busy = world.page.try_soft_busy().expect("nobody holds it");
        world.pte.store(LEAF, Release);
        let remover = thread::spawn({
            let world = world.clone();
            move || {
                ksync::host::set_cpu(1);
                loop {
                    if let Some(busy) = world.page.try_hard_busy() {
                        world.pte.swap(EMPTY, AcqRel);
                        return busy.into_free();
                    }
                    if world.page.want(Wanted::Free, || true) {
                        world.page.wait();
                    }
                }
            }
        });
        let reader = thread::spawn({
            let world = world.clone();
            move || {
                ksync::host::set_cpu(2);
                wait_for(&world);
            }
        });
        drop(busy);
        reader.join().unwrap();
        // The soft busy that the reader may have taken ended with `wait_for`.
        remover.join().unwrap();
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

/// A page of an object that is mapped nowhere, and two addresses where faults may map it.
struct Places {
    page: Page,
    ptes: [AtomicU64; 2],
}

impl Places {
    fn fault(&self, n: usize) {
        self.ptes[n].store(CLAIMED, Release);
        fence(SeqCst);
        let holds = || !self.page.is_hard_busy() && self.page.is(OBJECT, INDEX);
        let good = self.page.mark_held(Flags::MAPPED, holds);
        let new = if good { LEAF } else { EMPTY };
        let _entered = self.ptes[n].compare_exchange(CLAIMED, new, AcqRel, Acquire);
    }

    /// A scan for all entries; it looks for none if the flags say that there are none.
    fn scan(&self) -> HardBusy<'_> {
        let busy = self.page.try_hard_busy().expect("nobody else holds it");
        fence(SeqCst);
        if self.page.has(Flags::MAPPED) {
            for pte in &self.ptes {
                pte.swap(EMPTY, AcqRel);
            }
            self.page.clear_flag(Flags::MAPPED);
        }
        busy
    }

    /// Two faults beside a scan, which then does `end`.
    fn explore(end: fn(HardBusy<'_>), check: fn(&Places)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let page = Page::absent();
            let busy = page.try_hard_busy().expect("nobody holds it");
            page.set_identity(OBJECT, INDEX);
            drop(busy);
            let ptes = [AtomicU64::new(EMPTY), AtomicU64::new(EMPTY)];
            let places = Arc::new(Places { page, ptes });
            let faults = [0, 1].map(|n| {
                let places = places.clone();
                thread::spawn(move || places.fault(n))
            });
            end(places.scan());
            faults.into_iter().for_each(|fault| fault.join().unwrap());
            check(&places);
        });
    }
}

/// A fault that finds the flags already set by another fault may rely on them as much as the one that set them.
#[test]
fn two_faults_leave_no_entry_that_a_scan_misses() {
    Places::explore(
        |busy| busy.into_free(),
        |places| {
            for pte in &places.ptes {
                assert_eq!(pte.load(SeqCst), EMPTY, "a page that has gone is mapped");
            }
        },
    );
    Places::explore(
        |busy| drop(busy),
        |places| {
            let mapped = places.ptes.iter().any(|pte| pte.load(SeqCst) != EMPTY);
            assert!(
                !mapped || places.page.has(Flags::MAPPED),
                "no scan looks for the entry"
            );
        },
    );
}

/// A page, and something that its busy state guards.
struct Guarded(Page, UnsafeCell<u32>);

// SAFETY: the cell is accessed in an order that the page's busy state makes; loom checks it.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn read(&self) {
        // SAFETY: under a soft busy or more.
        self.1.with(|n| unsafe { *n });
    }

    fn write(&self) {
        // SAFETY: under hard busy.
        self.1.with_mut(|n| unsafe { *n += 1 });
    }
}

#[test]
fn who_has_a_page_busy_sees_what_was_done_under_hard_busy_and_undoes_no_soft_one() {
    let acts: [fn(&Guarded); 4] = [
        |guarded| {
            if let Some(_busy) = guarded.0.try_hard_busy() {
                guarded.write();
            }
        },
        |guarded| {
            if let Some(_busy) = guarded.0.try_soft_busy() {
                guarded.read();
            }
        },
        |guarded| {
            if let Some(busy) = guarded.0.try_hard_busy() {
                guarded.write();
                let _soft = busy.downgrade();
                guarded.read();
            }
        },
        |guarded| {
            if let Some(soft) = guarded.0.try_soft_busy() {
                guarded.read();
                if let Ok(_hard) = soft.try_upgrade() {
                    guarded.write();
                }
            }
        },
    ];
    for one in acts {
        for other in acts {
            loom::model(move || {
                let guarded = Arc::new(Guarded(Page::absent(), UnsafeCell::new(0)));
                let thread = thread::spawn({
                    let guarded = guarded.clone();
                    move || one(&guarded)
                });
                other(&guarded);
                thread.join().unwrap();
            });
        }
    }
}
