//! Frames that wait for a grace period.
//!
//! A frame that readers may still reach by its number (an unlinked page-table page, a page removed from an object) goes
//! onto the limbo list of its CPU, stamped with the epoch, and to the allocator once every CPU has passed a quiescent
//! state: three steps of the epoch later, see [`Epoch`](ksync::Epoch). Frames are linked through their `Page`s, so that
//! no memory is needed and nothing is written into the frame itself, which readers may still read.
//!
//! A frame in limbo is free memory that cannot be allocated yet; [`Limbo::frames`] counts them exactly.

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};
use ksync::{CpuPin, PerCpu, Spin, lock_class};

use crate::page::{PageArray, Pfn};
use crate::{Machine, Vm};

lock_class!(
    /// One CPU's limbo list; contended only while it is drained.
    pub LimboLock, "frames in limbo", rank = 118
);

/// Steps of the epoch after which a stamped frame may be used again.
const GRACE: u64 = 3;
/// Stamps that can be in their grace period at once, rounded up to a power of two.
const BAGS: usize = 4;
/// Frames freed in one batch: bounds the time with preemption off.
const STEP: usize = 32;
/// Times that [`Vm::let_retired_go`] sleeps at most.
const DOZES: usize = 64;

/// Batches that a call frees at most, beyond as many as it adds.
const LOOK: usize = 2;

/// A list of frames that needs no memory of its own. The list owns its frames, and they are on no other list.
#[derive(Debug)]
pub struct FrameList {
    head: Pfn,
    tail: Pfn,
    len: usize,
}

impl Default for FrameList {
    fn default() -> FrameList {
        FrameList::EMPTY
    }
}

impl FrameList {
    /// No frames.
    pub const EMPTY: FrameList = FrameList {
        head: Pfn::NONE,
        tail: Pfn::NONE,
        len: 0,
    };

    /// Adds a frame.
    pub fn push(&mut self, pages: PageArray, pfn: Pfn) {
        pages.get(pfn).set_next(self.head);
        if self.head.is_none() {
            self.tail = pfn;
        }
        self.head = pfn;
        self.len += 1;
    }

    /// Takes a frame out.
    pub fn pop(&mut self, pages: PageArray) -> Option<Pfn> {
        let pfn = self.head;
        if pfn.is_none() {
            return None;
        }
        self.head = pages.get(pfn).next();
        self.len -= 1;
        Some(pfn)
    }

    /// Moves all of `other` here.
    pub fn append(&mut self, pages: PageArray, other: FrameList) {
        if other.is_empty() {
            return;
        }
        pages.get(other.tail).set_next(self.head);
        if self.head.is_none() {
            self.tail = other.tail;
        }
        self.head = other.head;
        self.len += other.len;
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    fn take(&mut self) -> FrameList {
        core::mem::replace(self, FrameList::EMPTY)
    }
}

/// One CPU's limbo list, as one bag per stamp.
struct Bags {
    bags: [(u64, FrameList); BAGS],
    /// Frames whose grace period is over.
    ripe: FrameList,
}

impl Bags {
    /// The bag for `stamp`. Its former contents are `BAGS` steps older, so that their grace period is over.
    fn bag(&mut self, pages: PageArray, stamp: u64) -> &mut FrameList {
        let (held, list) = &mut self.bags[stamp as usize % BAGS];
        if *held < stamp {
            self.ripe.append(pages, list.take());
            *held = stamp;
        }
        list
    }

    fn ripen(&mut self, pages: PageArray, now: u64) {
        for (stamp, list) in &mut self.bags {
            if *stamp + GRACE <= now {
                self.ripe.append(pages, list.take());
            }
        }
    }
}

struct Cpu {
    bags: Spin<Bags, LimboLock>,
    /// Number of frames in `bags`. Changed under the lock, read by any CPU.
    frames: AtomicUsize,
    /// Number of frames at which a call looks for ripe ones. Written by its CPU.
    look_at: AtomicUsize,
}

/// The limbo lists of all CPUs.
pub struct Limbo {
    cpus: PerCpu<Cpu>,
}

impl Limbo {
    /// An empty limbo.
    pub fn new(ncpus: usize) -> Limbo {
        Limbo {
            cpus: PerCpu::new(ncpus, |_| Cpu {
                bags: Spin::new(Bags {
                    bags: [const { (0, FrameList::EMPTY) }; BAGS],
                    ripe: FrameList::EMPTY,
                }),
                frames: AtomicUsize::new(0),
                look_at: AtomicUsize::new(STEP),
            }),
        }
    }

    /// Number of frames in their grace period, over all CPUs.
    pub fn frames(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.frames.load(Relaxed)).sum()
    }
}

impl<M: Machine> Vm<M> {
    /// Frees frames after a grace period. New readers cannot reach them; they are hard-busy, without identity, and no
    /// translation for them is cached. If there are many, the caller may be preempted between batches.
    pub fn retire_frames(&self, list: FrameList) {
        let more = list.len();
        {
            let pin = ksync::pin();
            let cpu = self.limbo.cpus.get(&pin);
            let mut bags = cpu.bags.lock();
            // The stamp is taken after the frames became unreachable, on the CPU that made them so, or after it was
            // synchronised with.
            let stamp = self.epoch.current();
            bags.bag(self.pages, stamp).append(self.pages, list);
            let frames = cpu.frames.fetch_add(more, Relaxed) + more;
            drop(bags);
            if frames < cpu.look_at.load(Relaxed) {
                return;
            }
        }
        // Processes may start and end faster than the clock ticks, so an operation that adds frames also frees some:
        // every [`STEP`] frames it looks for ripe ones, and may free more than were added since.
        for _ in 0..=LOOK + more / STEP {
            let pin = ksync::pin();
            if self.free_ripe(&pin, pin.cpu()) < STEP {
                break;
            }
        }
        let pin = ksync::pin();
        let cpu = self.limbo.cpus.get(&pin);
        cpu.look_at.store(cpu.frames.load(Relaxed) + STEP, Relaxed);
    }

    /// Frees one frame after a grace period; conditions as for [`retire_frames`](Vm::retire_frames).
    pub fn retire_frame(&self, pfn: Pfn) {
        let mut list = FrameList::EMPTY;
        list.push(self.pages, pfn);
        self.retire_frames(list);
    }

    /// Frees some of this CPU's frames whose grace period is over. Called by the clock tick, the idle loop, and where
    /// memory is short. Returns whether any are left.
    #[inline]
    pub fn poll_limbo(&self, pin: &CpuPin) -> bool {
        self.limbo.cpus.get(pin).frames.load(Relaxed) != 0 && {
            self.free_ripe(pin, pin.cpu());
            self.limbo.cpus.get(pin).frames.load(Relaxed) != 0
        }
    }

    /// For operations that retire many objects in one call and hold none of them: if memory is short, frees what was
    /// retired so far. Sleeping context. Gives up if another CPU stays in a long read section.
    #[cold]
    #[inline(never)]
    pub(crate) fn let_retired_go(&self) {
        if !self.alloc.low_memory() {
            return;
        }
        let goal = self.epoch.current() + GRACE;
        for _ in 0..DOZES {
            self.epoch.quiescent(&mut ksync::pin());
            self.epoch.advance();
            if self.epoch.current() >= goal {
                break;
            }
            ksync::doze();
        }
        let mut more = self.epoch.reclaim(&ksync::pin());
        while more {
            more = self.epoch.reclaim_more(&ksync::pin());
        }
    }

    /// Frees frames until none is in limbo, also those that are retired meanwhile. Sleeping context.
    pub fn drain_limbo(&self) {
        while self.limbo.frames() != 0 {
            self.epoch.synchronize();
            for cpu in 0..self.machine.ncpus() {
                while self.free_ripe(&ksync::pin(), cpu) == STEP {}
            }
        }
    }

    /// Steps the epoch if it can, and frees up to [`STEP`] frames of a CPU whose grace period is over; returns how many.
    #[inline(never)]
    fn free_ripe(&self, pin: &CpuPin, cpu: usize) -> usize {
        self.epoch.advance();
        let now = self.epoch.current();
        let cpu = self.limbo.cpus.of(cpu);
        let mut freed = [Pfn::NONE; STEP];
        let mut count = 0;
        {
            let mut bags = cpu.bags.lock();
            bags.ripen(self.pages, now);
            while count < STEP
                && let Some(pfn) = bags.ripe.pop(self.pages)
            {
                freed[count] = pfn;
                count += 1;
            }
            cpu.frames.fetch_sub(count, Relaxed);
        }
        self.alloc.free_bulk(pin, &freed[..count]);
        count
    }
}
