//! Reservations: aligned runs of frames that are kept for one aligned block of an object's indexes.
//!
//! Guarantees: each frame of an owned run is either *taken*, and then with its taker as any frame, or it is free, and is
//! handed out for its own place only. A run has one owner at a time, and a block of an object one run. A run has an
//! owner as long as one of its frames at least is taken; when its reservation ends, frames that are not taken go to the
//! buddy system and the others stay where they are.
//!
//! Mechanism: a [`Run`] of 32 bytes for each aligned run of frames, in an array by frame number; which frames are taken
//! is a mark in their page records, which a fault that takes a frame writes anyway. [`Chains`] lead from object and block to
//! the run, and are read without a lock; each domain has a [`Queue`] of the runs with frames to give, oldest first.
//!
//! | guarded by | what |
//! |---|---|
//! | the run's lock | owner (object, block), number of taken frames, marks of its frames |
//! | the lock of the owner's chain | the chain's links |
//! | the lock of the domain's queue | the queue's links and ends, the number of ends under way |
//!
//! The locks are taken in this order: chain, run, queue, memory domain. A run is in its queue exactly if it has an owner
//! and a frame to give, whenever its lock is free. The operation that takes the owner away removes the record from its chain in
//! the same hold of the chain's lock; or, where it takes the last frame back, later: before it passes the frames on nobody
//! else can own all frames of the run.

mod blocks;
mod chains;
mod check;
mod place;
mod queue;
mod run;

use ksync::atomic::{AtomicBool, Ordering::Relaxed};
use rust_alloc::boxed::Box;

use self::chains::Chains;
use self::queue::Queue;
use self::run::Run;
use crate::page::{Page, PageArray, Pfn};

pub use self::blocks::Blocks;
pub use self::place::{Place, RUN_FRAMES, RUN_ORDER};

/// A frame for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The frame: hard-busy, no identity, state `Allocated`, contents undefined.
    pub pfn: Pfn,
    /// It was the last one of a run: all frames of the block's run are taken.
    pub whole: bool,
}

/// The frames of a run that are not taken, one bit each.
#[derive(Clone, Copy)]
struct Frames([u64; (RUN_FRAMES as usize).div_ceil(64)]);

impl Frames {
    const NONE: Frames = Frames([0; (RUN_FRAMES as usize).div_ceil(64)]);

    fn add(&mut self, n: u32) {
        self.0[n as usize / 64] |= 1 << (n % 64);
    }

    fn has(&self, n: u32) -> bool {
        self.0[n as usize / 64] & 1 << (n % 64) != 0
    }
}

/// A reservation that has ended; its frames are the caller's, to be passed to the buddy system.
#[must_use = "the frames would be lost"]
pub(super) struct Ended {
    /// The first frame of the run.
    pub(super) first: Pfn,
    frames: Frames,
    /// Number of frames that were not taken.
    pub(super) len: usize,
}

impl Ended {
    /// The frames that were not taken, in ascending order.
    pub(super) fn frames(&self) -> impl Iterator<Item = Pfn> {
        (0..RUN_FRAMES)
            .filter(|&n| self.frames.has(n))
            .map(|n| self.first.add(n))
    }
}

/// What came of breaking a reservation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Broken {
    /// One was broken.
    One,
    /// Another CPU is breaking or ending one, or has just done so.
    UnderWay,
    /// There is none.
    Nothing,
}

/// What became of frames that were given back.
pub(super) enum Returned {
    /// Their run has them again.
    Kept,
    /// As `Kept`, and they were the last that were taken: the reservation has ended.
    Ended(Ended),
    /// Their run has no owner: they are single frames.
    Single,
}

/// See the module.
pub(super) struct Reservations {
    pages: PageArray,
    /// By frame number.
    runs: Box<[Run]>,
    chains: Chains,
    /// By domain.
    queues: Box<[Queue]>,
    /// Whether a frame was ever marked. Atomic; set once, before the first mark.
    marked: AtomicBool,
}

impl Reservations {
    /// Without any. Allocates 40 to 48 bytes for each run of `pages`.
    pub(super) fn new(pages: PageArray, domains: usize) -> Reservations {
        let runs = pages.len().div_ceil(RUN_FRAMES as usize);
        Reservations {
            pages,
            runs: (0..runs).map(|_| Run::new()).collect(),
            chains: Chains::new(runs),
            queues: (0..domains).map(|_| Queue::new()).collect(),
            marked: AtomicBool::new(false),
        }
    }

    /// Whether a frame was ever marked. A caller that frees a marked frame finds that it was.
    #[inline]
    pub(super) fn has_marked(&self) -> bool {
        self.marked.load(Relaxed)
    }

    fn first_frame(run: u32) -> Pfn {
        Pfn(run << RUN_ORDER)
    }

    /// The run in which a frame lies.
    pub(super) const fn run_of(pfn: Pfn) -> u32 {
        pfn.0 >> RUN_ORDER
    }

    fn run(&self, run: u32) -> &Run {
        &self.runs[run as usize]
    }

    /// The queue of a run's domain.
    fn queue_of(&self, run: u32) -> &Queue {
        &self.queues[self.pages.get(Self::first_frame(run)).domain()]
    }

    /// Takes the frame for a place from the reservation of its block. `None` if there is none, or the frame is taken;
    /// also if the chain changes at this moment.
    pub(super) fn take(&self, place: Place) -> Option<Placed> {
        self.take_from(self.chains.look(&self.runs, place)?, place)
    }

    /// As `take`, from this run, which may not be the block's any more: then `None`.
    fn take_from(&self, run: u32, place: Place) -> Option<Placed> {
        let record = self.run(run);
        let mut taken = record.taken.lock();
        if !record.is_for(place) {
            return None;
        }
        let pfn = Self::first_frame(run).add(place.offset());
        let page = self.pages.get(pfn);
        if page.is_taken() {
            return None;
        }
        page.set_taken(true);
        *taken += 1;
        let whole = *taken == RUN_FRAMES;
        if whole {
            self.queue_of(run).remove(&self.runs, run);
        }
        Some(Placed { pfn, whole })
    }

    /// Makes the run that begins with `first`, whose frames are all the caller's, the reservation of a place's block,
    /// and takes the frame of the place.
    ///
    /// # Errors
    /// The block has a reservation, and the caller keeps its frames. The frame of that reservation, unless it is taken.
    pub(super) fn reserve(&self, first: Pfn, place: Place) -> Result<Placed, Option<Placed>> {
        let pfn = first.add(place.offset());
        let reserved = self.own(first, place, |run| {
            self.pages.get(pfn).set_taken(true);
            self.queue_of(run).add(&self.runs, run);
            1
        });
        match reserved {
            Ok(()) => Ok(Placed { pfn, whole: false }),
            Err(other) => Err(self.take_from(other, place)),
        }
    }

    /// Makes the run that begins with `first`, whose frames are all the caller's, that of a place's block, with all of its frames
    /// taken by the caller, and calls `each` for their pages, in order. False if the block has one; the caller keeps its
    /// frames.
    #[inline(always)]
    pub(super) fn take_whole(&self, first: Pfn, place: Place, mut each: impl FnMut(&Page)) -> bool {
        let pages = self.pages.run(first, RUN_FRAMES);
        // In no queue: it has no frame to give.
        let done = self.own(first, place, |_| {
            let domain = pages[0].domain();
            for page in pages {
                page.set_taken_in(domain, true);
                each(page);
            }
            RUN_FRAMES
        });
        done.is_ok()
    }

    /// Makes the run that begins with `first` that of a place's block. `take` marks the frames that are taken, and returns how
    /// many.
    ///
    /// # Errors
    /// The run that the block has; nothing has changed.
    #[inline(always)]
    fn own(&self, first: Pfn, place: Place, take: impl FnOnce(u32) -> u32) -> Result<(), u32> {
        let run = Self::run_of(first);
        let chain = self.chains.lock(place);
        if let Some(other) = chain.find(&self.runs, place) {
            return Err(other);
        }
        let record = self.run(run);
        let mut taken = record.taken.lock();
        record.own(place);
        if !self.has_marked() {
            self.marked.store(true, Relaxed);
        }
        *taken = take(run);
        chain.add(&self.runs, run);
        Ok(())
    }

    /// Ends the reservation of the run that begins with `first` if it is for the block of `place`. All frames are the caller's,
    /// and single frames then. Else nothing changes, and false.
    pub(super) fn give_back_whole(&self, first: Pfn, place: Place) -> bool {
        let run = Self::run_of(first);
        let record = self.run(run);
        let taken = record.taken.lock();
        if !record.is_for(place) {
            return false;
        }
        // None is left to give: a run gets an owner when all of its frames are free, and these were taken since.
        debug_assert_eq!(*taken, RUN_FRAMES, "frames of {first:?} are not taken");
        let pages = self.pages.run(first, RUN_FRAMES);
        let domain = pages[0].domain();
        for page in pages {
            page.set_taken_in(domain, false);
        }
        // It is in no queue, and none of its frames counted as free.
        record.disown();
        drop(taken);
        self.chains.lock(place).remove(&self.runs, run);
        true
    }

    /// Gives back taken frames of one run, which are in the state of a frame that is not taken.
    pub(super) fn give_back(&self, pfns: &[Pfn]) -> Returned {
        let run = Self::run_of(pfns[0]);
        let record = self.run(run);
        let mut taken = record.taken.lock();
        for &pfn in pfns {
            debug_assert!(self.pages.get(pfn).is_taken(), "{pfn:?} given back twice");
            self.pages.get(pfn).set_taken(false);
        }
        let Some(place) = record.owner() else {
            return Returned::Single;
        };
        if *taken == RUN_FRAMES {
            self.queue_of(run).add(&self.runs, run);
        }
        *taken -= pfns.len() as u32;
        if *taken != 0 {
            return Returned::Kept;
        }
        let ended = self.disown(run, 0);
        drop(taken);
        self.chains.lock(place).remove(&self.runs, run);
        Returned::Ended(ended)
    }

    /// Takes the owner away. The run's lock is held, and the caller removes the run from its chain.
    fn disown(&self, run: u32, taken: u32) -> Ended {
        let (first, mut frames) = (Self::first_frame(run), Frames::NONE);
        // Now: as soon as the lock is free, frames that come back are no longer the run's. Nothing is read of a run
        // without pages.
        (0..RUN_FRAMES)
            .filter(|&n| taken == 0 || !self.pages.get(first.add(n)).is_taken())
            .for_each(|n| frames.add(n));
        // In this order: a CPU that looks for the owner of the oldest, without the run's lock, does not find one without
        // again and again.
        if taken != RUN_FRAMES {
            self.queue_of(run).begin_end(&self.runs, run);
        }
        self.run(run).disown();
        let len = (RUN_FRAMES - taken) as usize;
        Ended { first, frames, len }
    }

    /// Ends a run's reservation if it is for the block of `place`.
    fn end(&self, run: u32, place: Place) -> Option<Ended> {
        // In one hold of the chain's lock: the caller may get no frame of the run, and others then free all of them, and reserve
        // the run again, as soon as it has no owner.
        let chain = self.chains.lock(place);
        let record = self.run(run);
        let taken = record.taken.lock();
        if !record.is_for(place) {
            return None;
        }
        let ended = self.disown(run, *taken);
        chain.remove(&self.runs, run);
        Some(ended)
    }

    /// Ends the reservation of a place's block.
    pub(super) fn end_at(&self, place: Place) -> Option<Ended> {
        let run = self.chains.lock(place).find(&self.runs, place)?;
        self.end(run, place)
    }

    /// Ends a run's reservation if it is for an object's block of `from` or beyond.
    pub(super) fn end_of(&self, run: u32, object: usize, from: u32) -> Option<Ended> {
        let owner = self.run(run).owner()?;
        let is_meant = owner.object == object && owner.block() >= from;
        is_meant.then(|| self.end(run, owner)).flatten()
    }

    /// The first frame of the run that is reserved for a place's block: a hint.
    pub(super) fn first_of(&self, place: Place) -> Option<Pfn> {
        let run = self.chains.lock(place).find(&self.runs, place)?;
        Some(Self::first_frame(run))
    }

    /// Number of runs.
    pub(super) fn len(&self) -> u32 {
        self.runs.len() as u32
    }

    /// Ends the oldest reservation of a domain that has a frame to give. `Err` if there is none; it says whether another CPU is
    /// about to pass on frames of one.
    pub(super) fn end_oldest(&self, domain: usize) -> Result<Option<Ended>, bool> {
        let run = self.queues[domain].oldest()?;
        // Nothing if it has ended since, or all its frames were taken: then it is in the queue no more.
        let owner = self.run(run).owner();
        Ok(owner.and_then(|owner| self.end(run, owner)))
    }

    /// The frames of a reservation that has ended are with the buddy system.
    pub(super) fn passed_on(&self, ended: &Ended) {
        if ended.len != 0 {
            self.queue_of(Self::run_of(ended.first)).complete_end();
        }
    }

    /// Whether a reservation has frames to give: a hint.
    pub(super) fn may_give(&self) -> bool {
        self.queues.iter().any(Queue::may_give)
    }
}
