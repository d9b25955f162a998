//! The allocator's side of [reservations](super::reservation): runs come from the buddy system, frames go back there.
//!
//! Frames that are not taken count as free, and are above the users' marks: a run is reserved only from what users may
//! take, and no request goes below a users' mark while there is a reservation to break. So a user that takes one needs no
//! comparison with a mark.

use ksync::CpuPin;
use rust_alloc::boxed::Box;

use super::magazine::{BURST, Magazine};
use super::reservation::{
    Blocks, Broken, Ended, Place, Placed, RUN_FRAMES, RUN_ORDER, Reservations, Returned,
};
use super::{NoMemory, PageAllocator, Rights};
use crate::page::{Flags, Page, Pfn, State};
use crate::stats::Tally;

impl PageAllocator {
    /// Makes reservations possible. At boot; allocates 40 to 48 bytes from the global heap for each 2 MiB.
    pub fn allow_reservations(&mut self) {
        let domains = self.domains.len();
        for cpu in self.cpus.iter_mut() {
            cpu.untaken = (0..domains).map(|_| Tally::new()).collect();
        }
        self.reservations = Some(Box::new(Reservations::new(self.pages, domains)));
    }

    /// Takes one page for a place of an object: from the reservation of its block; or, if `reserve`, from a new one;
    /// otherwise any, as [`alloc`](PageAllocator::alloc). The result is freed as any other page.
    ///
    /// `blocks` are those of the object. `still` says whether the index is still within its size. It is called when a new
    /// reservation is visible to others, after a full fence.
    ///
    /// # Errors
    /// As `alloc` for users.
    pub fn alloc_at(
        &self,
        pin: &CpuPin,
        (place, blocks): (Place, &Blocks),
        reserve: bool,
        still: impl FnOnce() -> bool,
    ) -> Result<Placed, NoMemory> {
        if let Some(placed) = self.take_placed(pin, place)? {
            return Ok(placed);
        }
        if reserve && let Some(placed) = self.reserve(pin, (place, blocks), still) {
            return Ok(placed);
        }
        let pfn = self.alloc(pin, Rights::User)?;
        Ok(Placed { pfn, whole: false })
    }

    /// The first frame of the run that is reserved for a place's block: a hint.
    pub fn reserved_run(&self, place: Place) -> Option<Pfn> {
        self.reservations.as_ref()?.first_of(place)
    }

    /// Takes the frame of a place from the reservation of its block; `None` if there is no reservation, or the frame is
    /// taken. Takes the run's lock and no other, but for the last frame of the run.
    ///
    /// # Errors
    /// The injector fails the request; the frame is free again.
    pub fn take_placed(&self, pin: &CpuPin, place: Place) -> Result<Option<Placed>, NoMemory> {
        let Some(reservations) = &self.reservations else {
            return Ok(None);
        };
        let cpu = self.cpus.get(pin);
        let Some(placed) = reservations.take(place) else {
            return Ok(None);
        };
        cpu.untaken[self.pages.get(placed.pfn).domain()].add(1_u64.wrapping_neg());
        if self.injected(cpu, Rights::User) {
            self.free(pin, placed.pfn);
            return Err(NoMemory);
        }
        Ok(Some(placed))
    }

    /// Reserves a run of the nearest domain that has memory for a place's block and takes the place's frame, as
    /// [`alloc_at`](PageAllocator::alloc_at); if the block has got a run meanwhile, the frame of that. `None` if the domain
    /// has no free run to spare for users, the index is beyond the end, the frame is taken, or the injector fails the
    /// request.
    pub fn reserve(
        &self,
        pin: &CpuPin,
        (place, blocks): (Place, &Blocks),
        still: impl FnOnce() -> bool,
    ) -> Option<Placed> {
        let reservations = self.reservations.as_ref()?;
        let cpu = self.cpus.get(pin);
        if self.injected(cpu, Rights::User) {
            return None;
        }
        let (domain, first) = self.spare_run(cpu)?;
        blocks.include(place);
        let placed = match reservations.reserve(first, place) {
            Ok(placed) => placed,
            Err(other) => {
                self.domains[domain].put_run(self.pages, first, RUN_ORDER);
                let other = other?;
                cpu.untaken[self.pages.get(other.pfn).domain()].add(1_u64.wrapping_neg());
                return Some(other);
            }
        };
        cpu.count_taken(domain, RUN_FRAMES as usize);
        cpu.untaken[domain].add(u64::from(RUN_FRAMES) - 1);
        // Pairs with the fence of `end_reservations`.
        ksync::atomic::fence(ksync::atomic::Ordering::SeqCst);
        if !still() {
            self.free(pin, placed.pfn);
            if let Some(ended) = reservations.end_at(place) {
                self.pass_on(cpu, ended);
            }
            return None;
        }
        Some(placed)
    }

    /// Takes a run of the nearest domain that has memory, to be [filled](PageAllocator::fill_run) or given back with
    /// [`free_order`](PageAllocator::free_order). Breaks no reservation and opens no reserve for it.
    ///
    /// # Errors
    /// The domain has no free run to spare for users, or the injector fails the request.
    pub fn alloc_run(&self, pin: &CpuPin) -> Result<Pfn, NoMemory> {
        let cpu = self.cpus.get(pin);
        if self.reservations.is_none() || self.injected(cpu, Rights::User) {
            return Err(NoMemory);
        }
        let (domain, run) = self.spare_run(cpu).ok_or(NoMemory)?;
        cpu.count_taken(domain, RUN_FRAMES as usize);
        Ok(run)
    }

    /// Takes a run of the nearest domain that has memory, if users may take it; also returns the domain.
    fn spare_run(&self, cpu: &Magazine) -> Option<(usize, Pfn)> {
        let mut nearest = self.nearest[cpu.domain].iter().map(|&d| usize::from(d));
        let domain = nearest.find(|&domain| self.domains[domain].size() != 0)?;
        let run = self.domains[domain].take_run(self.pages, RUN_ORDER, Rights::User, cpu.home)?;
        Some((domain, run))
    }

    /// Makes a run from [`alloc_run`](PageAllocator::alloc_run) that of a place's block. The caller owns its frames, each of
    /// which is freed as any other page, then. `each` is called for their pages, in order. False if the block has a run: nothing
    /// has changed.
    ///
    /// A full fence follows, which pairs with that of [`end_reservations`](PageAllocator::end_reservations): a caller that
    /// still finds the index within the object's size leaves no reservation behind.
    #[inline(always)]
    pub fn fill_run(
        &self,
        run: Pfn,
        (place, blocks): (Place, &Blocks),
        each: impl FnMut(&Page),
    ) -> bool {
        let Some(reservations) = &self.reservations else {
            return false;
        };
        blocks.include(place);
        let done = reservations.take_whole(run, place, each);
        ksync::atomic::fence(ksync::atomic::Ordering::SeqCst);
        done
    }

    /// Frees all frames of a run, which were the pages of a place's block and are in the state of a free frame: at once, if the
    /// run still is that of the block.
    pub fn free_run(&self, pin: &CpuPin, run: Pfn, place: Place) {
        let reservations = self.reservations.as_ref();
        if reservations.is_some_and(|reservations| reservations.give_back_whole(run, place)) {
            let domain = self.pages.get(run).domain();
            return self.domains[domain].put_run(self.pages, run, RUN_ORDER);
        }
        self.free_neighbours(pin, run, RUN_FRAMES);
    }

    /// Frees `count` frames from `first` on, as [`free_bulk`](PageAllocator::free_bulk).
    pub fn free_neighbours(&self, pin: &CpuPin, first: Pfn, count: u32) {
        let mut burst = [Pfn::NONE; BURST];
        for at in (0..count).step_by(BURST) {
            let burst = &mut burst[..BURST.min((count - at) as usize)];
            for (pfn, n) in burst.iter_mut().zip(at..) {
                *pfn = first.add(n);
            }
            self.free_bulk(pin, burst);
        }
    }

    /// Ends the reservations of an object for blocks that begin at `from` or beyond; the pages stay. The caller has
    /// changed the object's size, as `still` of [`reserve`](PageAllocator::reserve) sees it. Preemptible.
    pub fn end_reservations(&self, object: usize, from: u32, blocks: &Blocks) {
        let Some(reservations) = &self.reservations else {
            return;
        };
        ksync::atomic::fence(ksync::atomic::Ordering::SeqCst);
        let Some((low, high)) = blocks.range() else {
            return;
        };
        let low = low.max(from.div_ceil(RUN_FRAMES));
        let end = |ended: Option<Ended>, pin: &CpuPin| {
            if let Some(ended) = ended {
                self.pass_on(self.cpus.get(pin), ended);
            }
        };
        // Blocks of the object, or runs of the machine, whichever are fewer.
        if low <= high && high - low < reservations.len() {
            for index in (low..=high).map(|block| block << RUN_ORDER) {
                let pin = ksync::pin();
                end(reservations.end_at(Place { object, index }), &pin);
            }
        } else if low <= high {
            for run in 0..reservations.len() {
                let pin = ksync::pin();
                end(reservations.end_of(run, object, low), &pin);
            }
        }
    }

    /// Breaks the oldest reservation that has a frame to give, in the nearest domain that has any: frames that are not
    /// taken go to the buddy system. False if there is none; after true there may be more memory.
    pub fn break_oldest(&self, pin: &CpuPin) -> bool {
        self.break_for(self.cpus.get(pin))
    }

    /// As [`break_oldest`](PageAllocator::break_oldest).
    pub(super) fn break_for(&self, cpu: &Magazine) -> bool {
        self.break_one(cpu) != Broken::Nothing
    }

    /// As `break_for`; says what came of it.
    pub(super) fn break_one(&self, cpu: &Magazine) -> Broken {
        let Some(reservations) = &self.reservations else {
            return Broken::Nothing;
        };
        for &domain in &self.nearest[cpu.domain] {
            match reservations.end_oldest(usize::from(domain)) {
                Ok(Some(ended)) => {
                    self.pass_on(cpu, ended);
                    return Broken::One;
                }
                Ok(None) => return Broken::UnderWay,
                Err(true) => {
                    // By a CPU that is pinned, so this takes a few thousand instructions.
                    ksync::relax();
                    return Broken::UnderWay;
                }
                Err(false) => {}
            }
        }
        Broken::Nothing
    }

    /// Passes the frames of an ended reservation on to the buddy system.
    #[cold]
    fn pass_on(&self, cpu: &Magazine, ended: Ended) {
        let domain = self.pages.get(ended.first).domain();
        if ended.len == RUN_FRAMES as usize {
            self.domains[domain].put_run(self.pages, ended.first, RUN_ORDER);
        } else {
            let (mut burst, mut len) = ([Pfn::NONE; BURST], 0);
            for pfn in ended.frames() {
                burst[len] = pfn;
                len += 1;
                if len == BURST {
                    self.domains[domain].put_pages(self.pages, &burst);
                    len = 0;
                }
            }
            self.domains[domain].put_pages(self.pages, &burst[..len]);
        }
        cpu.untaken[domain].add((ended.len as u64).wrapping_neg());
        if let Some(reservations) = &self.reservations {
            reservations.passed_on(&ended);
        }
    }

    /// Frees pages of one run that were taken from its reservation: gives them back to it, if it is still owned.
    #[cold]
    #[inline(never)]
    pub(super) fn free_placed(&self, cpu: &Magazine, pfns: &[Pfn]) {
        let Some(reservations) = &self.reservations else {
            return debug_assert!(false, "no frame is marked without reservations");
        };
        for &pfn in pfns {
            self.assert_freeable(pfn);
            let page = self.pages.get(pfn);
            page.init_flags(State::Allocated, Flags::empty());
        }
        let returned = reservations.give_back(pfns);
        if let Returned::Single = returned {
            return pfns.iter().for_each(|&pfn| self.free_to(cpu, pfn));
        }
        let domain = self.pages.get(pfns[0]).domain();
        cpu.untaken[domain].add(pfns.len() as u64);
        if let Returned::Ended(ended) = returned {
            self.pass_on(cpu, ended);
        }
    }

    /// Whether two frames are marked, and of one run, or neither is.
    #[inline]
    pub(super) fn are_placed_alike(&self, a: Pfn, b: Pfn) -> bool {
        if !self.reservations.as_ref().is_some_and(|r| r.has_marked()) {
            // No frame is marked, and none of their records need be read.
            return true;
        }
        let run = |pfn: Pfn| {
            self.pages
                .get(pfn)
                .is_taken()
                .then(|| Reservations::run_of(pfn))
        };
        run(a) == run(b)
    }

    /// Frames of a domain that are reserved and not taken.
    pub(super) fn untaken(&self, domain: usize) -> usize {
        if self.reservations.is_none() {
            return 0;
        }
        let of = |cpu: &Magazine| cpu.untaken[domain].get();
        let sum = self.cpus.iter().map(of).fold(0, u64::wrapping_add);
        // While others take and give, a moment of each count may add up to less than nothing.
        usize::try_from(sum as i64).unwrap_or(0)
    }

    /// Whether there may be a reservation to break before a reserve is touched.
    pub(super) fn may_break(&self) -> bool {
        self.reservations.as_ref().is_some_and(|r| r.may_give())
    }
}
