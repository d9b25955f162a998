//! One memory domain: a buddy system behind a lock, and its marks.

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};

use ksync::Spin;

use super::buddy::{Buddy, COLOURS};
use super::magazine::{BURST, Gate, Magazine};
use super::marks::{Marks, Rights};
use super::{FreeRange, MAX_ORDER};
use crate::page::{Flags, PageArray, Pfn, State};

/// Order of a run that fills one burst.
const BURST_ORDER: u8 = BURST.ilog2() as u8;
/// Pages of a refill that may come from below the users' mark.
const EMERGENCY: usize = 4;

ksync::lock_class!(pub DomainLock, "memory domain", rank = 130);

/// Memory of one domain. Aligned so that two domains share no line, prefetched pairs included.
#[repr(align(128))]
pub(super) struct Domain {
    buddy: Spin<Buddy, DomainLock>,
    /// Copy of the buddy's count, written under the lock, read by anyone.
    free: AtomicUsize,
    /// Const.
    marks: Marks,
    /// Frames given so far. Atomic; grows at boot only.
    size: AtomicUsize,
}

impl Domain {
    pub(super) fn new(size: usize, total: usize) -> Domain {
        Domain {
            buddy: Spin::new(Buddy::new()),
            free: AtomicUsize::new(0),
            marks: Marks::new(size, total),
            size: AtomicUsize::new(size),
        }
    }

    pub(super) fn add_range(&self, pages: PageArray, range: FreeRange) {
        for n in range.start.0..range.end.0 {
            pages.get(Pfn(n)).init_flags(State::Allocated, Flags::EMPTY);
        }
        self.with(|buddy| buddy.add_range(pages, range.start, range.end));
    }

    pub(super) fn free(&self) -> usize {
        self.free.load(Relaxed)
    }

    pub(super) fn size(&self) -> usize {
        self.size.load(Relaxed)
    }

    /// Counts a frame that boot gives late.
    pub(super) fn grow(&self) {
        self.size.fetch_add(1, Relaxed);
    }

    pub(super) fn mark(&self, rights: Rights) -> usize {
        self.marks.of(rights)
    }

    /// Fills the empty magazine of the calling CPU with up to a burst of pages; returns how many. The first few may
    /// come from the reserve that `rights` open, the others only from above the users' mark.
    pub(super) fn refill(&self, pages: PageArray, cpu: &Magazine, rights: Rights) -> usize {
        if self.free() <= self.mark(rights) {
            return 0;
        }
        self.with(|buddy| {
            let relaxed = buddy.free().saturating_sub(self.mark(Rights::User));
            let emergency = buddy
                .free()
                .saturating_sub(self.mark(rights))
                .min(EMERGENCY);
            let wanted = relaxed.max(emergency).min(BURST);
            if wanted > relaxed {
                cpu.gate.set(Gate::LOW);
            }
            take_burst(buddy, pages, cpu, wanted)
        })
    }

    /// Takes a run, if that leaves the mark of `rights` intact.
    pub(super) fn take_run(&self, pages: PageArray, order: u8, rights: Rights) -> Option<Pfn> {
        debug_assert!(order <= MAX_ORDER);
        let needed = self.mark(rights) + (1 << order);
        if self.free() < needed {
            return None;
        }
        self.with(|buddy| {
            if buddy.free() < needed {
                None
            } else {
                buddy.take(pages, order)
            }
        })
    }

    pub(super) fn put_run(&self, pages: PageArray, pfn: Pfn, order: u8) {
        self.with(|buddy| buddy.put(pages, pfn, order));
    }

    /// Puts single pages back, all of this domain and at most a burst, to bound the time the lock is held.
    pub(super) fn put_pages(&self, pages: PageArray, pfns: &[Pfn]) {
        debug_assert!(pfns.len() <= BURST);
        self.with(|buddy| {
            buddy.put_pages(pages, pfns);
        });
    }

    pub(super) fn for_each_run(&self, pages: PageArray, visit: impl FnMut(Pfn, u8)) {
        self.buddy.lock().for_each_run(pages, visit);
    }

    /// Runs `f` under the lock and publishes the count.
    fn with<R>(&self, f: impl FnOnce(&mut Buddy) -> R) -> R {
        let mut buddy = self.buddy.lock();
        let result = f(&mut buddy);
        self.free.store(buddy.free(), Relaxed);
        result
    }
}

/// Moves `wanted` pages to the magazine: listed single pages in the order of their colours first, so that fragments
/// are used up and a burst spreads over the cache; then whole runs, whose frames have all colours by nature.
fn take_burst(buddy: &mut Buddy, pages: PageArray, cpu: &Magazine, wanted: usize) -> usize {
    let mut taken = 0;
    let mut colour = cpu.colour.load(Relaxed);
    while taken < wanted {
        if let Some(pfn) = buddy.take_single(pages, colour) {
            colour = (pfn.0 + 1) % COLOURS;
            taken += usize::from(cpu.push(pfn));
            continue;
        }
        let order = ((wanted - taken).ilog2() as u8).min(BURST_ORDER);
        // A run of that order, or the largest below it.
        let Some((pfn, order)) = (0..=order)
            .rev()
            .find_map(|order| Some((buddy.take(pages, order)?, order)))
        else {
            break;
        };
        // Pushed downwards, so that the frames are handed out upwards: neighbours stay neighbours.
        for n in (0..1 << order).rev() {
            taken += usize::from(cpu.push(pfn.add(n)));
        }
    }
    cpu.colour.store(colour, Relaxed);
    taken
}
