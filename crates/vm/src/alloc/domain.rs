//! One memory domain: several buddy systems, each behind a lock, with common marks.
//!
//! A domain has a part for each of its CPUs: blocks of the highest order are assigned to the parts in turn, and a
//! block's frames never change their part. A CPU takes from its own part while that has plenty, so that frames and
//! their cached lines return to the CPU that used them last; then from any part that has plenty. Only if none has
//! plenty does it compare the sum of all parts with the marks; CPUs that do so take turns.
//!
//! A part has plenty if it alone holds more than the users' mark of the whole domain after a burst. Taking from it then
//! respects the marks, whatever other CPUs do at that moment.

use rust_alloc::boxed::Box;

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};

use ksync::Spin;

use super::buddy::{Buddy, COLOURS};
use super::magazine::{BURST, Gate, Magazine};
use super::marks::{Marks, Rights};
use crate::page::{Flags, MAX_ORDER, PageArray, Pfn, State};

/// Order of a run that fills one burst.
const BURST_ORDER: u8 = BURST.ilog2() as u8;
/// Pages of a refill that may come from below the users' mark.
const EMERGENCY: usize = 4;

/// Frames that the platform gives to the allocator at boot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeRange {
    /// First frame.
    pub start: Pfn,
    /// One beyond the last frame.
    pub end: Pfn,
    /// Memory domain of all of them.
    pub domain: u8,
}

ksync::lock_class!(pub DomainLock, "memory domain", rank = 130);
ksync::lock_class!(pub ScarceLock, "scarce memory", rank = 129);

/// Most parts of a domain; with more CPUs, several share one.
const MAX_PARTS: usize = 64;

/// The part that one CPU takes from first. Aligned so that two parts share no line, prefetched pairs included.
#[repr(align(128))]
struct Part {
    buddy: Spin<Buddy, DomainLock>,
    /// Copy of the buddy's count, written under the lock, read by any CPU.
    free: AtomicUsize,
}

impl Part {
    fn new() -> Part {
        Part {
            buddy: Spin::new(Buddy::new()),
            free: AtomicUsize::new(0),
        }
    }

    fn free(&self) -> usize {
        self.free.load(Relaxed)
    }

    /// Runs `f` under the lock and publishes the count.
    fn with<R>(&self, f: impl FnOnce(&mut Buddy) -> R) -> R {
        let mut buddy = self.buddy.lock();
        let result = f(&mut buddy);
        self.free.store(buddy.free(), Relaxed);
        result
    }
}

/// Memory of one domain. Aligned so that two domains share no line, prefetched pairs included.
#[repr(align(128))]
pub(super) struct Domain {
    /// Const; each on lines of its own.
    parts: Box<[Part]>,
    /// Held while pages are taken according to the sum of all parts.
    scarce: Spin<(), ScarceLock>,
    /// Const.
    marks: Marks,
    /// Number of frames. Atomic; grows at boot only.
    size: AtomicUsize,
}

impl Domain {
    /// Without memory yet, of which it will have `size` frames, the machine `total`; next to it are `cpus` CPUs.
    pub(super) fn new(size: usize, total: usize, cpus: usize) -> Domain {
        let parts = cpus.clamp(1, MAX_PARTS);
        Domain {
            parts: (0..parts).map(|_| Part::new()).collect(),
            scarce: Spin::new(()),
            marks: Marks::new(size, total),
            size: AtomicUsize::new(size),
        }
    }

    pub(super) fn add_range(&self, pages: PageArray, range: FreeRange) {
        for n in range.start.0..range.end.0 {
            pages
                .get(Pfn(n))
                .init_flags(State::Allocated, Flags::empty());
        }
        let mut at = range.start;
        while at < range.end {
            let end = at.block_end().min(range.end);
            self.part_of(at)
                .with(|buddy| buddy.add_range(pages, at, end));
            at = end;
        }
    }

    /// Free frames; reads a line of each part.
    pub(super) fn free(&self) -> usize {
        self.parts.iter().map(Part::free).sum()
    }

    /// Free frames of each part, that of the CPU number `home` of a domain first.
    pub(super) fn free_by_part(&self, home: usize) -> impl Iterator<Item = usize> {
        self.parts_from(home).map(Part::free)
    }

    /// Free frames of the part of the CPU number `home` of a domain.
    #[inline]
    pub(super) fn free_in_part_of(&self, home: usize) -> usize {
        self.parts[home % self.parts.len()].free()
    }

    /// All parts, that of the CPU number `home` of a domain first.
    fn parts_from(&self, home: usize) -> impl Iterator<Item = &Part> {
        let (others, first) = self.parts.split_at(home % self.parts.len());
        first.iter().chain(others)
    }

    /// The part that a frame belongs to.
    fn part_of(&self, pfn: Pfn) -> &Part {
        &self.parts[pfn.block() as usize % self.parts.len()]
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
        self.take_plenty(cpu.home, BURST, |buddy| {
            Some(take_burst(buddy, pages, cpu, BURST))
        })
        .unwrap_or_else(|| self.refill_scarce(pages, cpu, rights))
    }

    /// Calls `take` with a part that has plenty even without `count` frames, the part of `home` if possible; `None` if
    /// it succeeds in no part.
    fn take_plenty<R>(
        &self,
        home: usize,
        count: usize,
        mut take: impl FnMut(&mut Buddy) -> Option<R>,
    ) -> Option<R> {
        let plenty = self.mark(Rights::User) + count;
        let mut parts = self.parts_from(home).filter(|part| part.free() > plenty);
        parts.find_map(|part| {
            part.with(|buddy| {
                // Once more, for others may have been faster.
                (buddy.free() > plenty).then(|| take(buddy)).flatten()
            })
        })
    }

    /// [`refill`](Domain::refill) by what all parts hold together.
    fn refill_scarce(&self, pages: PageArray, cpu: &Magazine, rights: Rights) -> usize {
        if self.free() <= self.mark(rights) {
            return 0;
        }
        let _turn = self.scarce.lock();
        let free = self.free();
        let relaxed = free.saturating_sub(self.mark(Rights::User));
        let emergency = free.saturating_sub(self.mark(rights)).min(EMERGENCY);
        let wanted = relaxed.max(emergency).min(BURST);
        if wanted > relaxed {
            cpu.gate.set(Gate::LOW);
        }
        self.parts_from(cpu.home).fold(0, |taken, part| {
            if taken == wanted || part.free() == 0 {
                return taken;
            }
            taken + part.with(|buddy| take_burst(buddy, pages, cpu, wanted - taken))
        })
    }

    /// Takes a run, if that leaves the mark of `rights` intact; of the part of `home` if it can be.
    pub(super) fn take_run(
        &self,
        pages: PageArray,
        order: u8,
        rights: Rights,
        home: usize,
    ) -> Option<Pfn> {
        debug_assert!(order <= MAX_ORDER);
        let plenty = self.take_plenty(home, 1 << order, |buddy| buddy.take(pages, order));
        if plenty.is_some() {
            return plenty;
        }
        let needed = self.mark(rights) + (1 << order);
        if self.free() < needed {
            return None;
        }
        let _turn = self.scarce.lock();
        if self.free() < needed {
            return None;
        }
        self.parts_from(home)
            .filter(|part| part.free() >= 1 << order)
            .find_map(|part| part.with(|buddy| buddy.take(pages, order)))
    }

    pub(super) fn put_run(&self, pages: PageArray, pfn: Pfn, order: u8) {
        self.part_of(pfn).with(|buddy| buddy.put(pages, pfn, order));
    }

    /// Puts single pages back, all of this domain and at most a burst, to bound the time the lock is held.
    pub(super) fn put_pages(&self, pages: PageArray, pfns: &[Pfn]) {
        debug_assert!(pfns.len() <= BURST);
        let same_part = |a: &Pfn, b: &Pfn| core::ptr::eq(self.part_of(*a), self.part_of(*b));
        for run in pfns.chunk_by(same_part) {
            self.part_of(run[0])
                .with(|buddy| buddy.put_pages(pages, run));
        }
    }

    pub(super) fn for_each_run(&self, pages: PageArray, mut visit: impl FnMut(Pfn, u8)) {
        for part in &self.parts {
            part.buddy.lock().for_each_run(pages, &mut visit);
        }
    }
}

/// Moves up to `wanted` pages of a part to the magazine, which has room for them; returns how many: fewer only if the
/// part runs out. The caller holds the part's lock.
///
/// Listed single pages come first, in the order of their colours, so that fragments are used up and a burst spreads
/// over the cache; then whole runs, whose frames have all colours by nature.
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
