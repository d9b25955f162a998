//! Frames that wait for a grace period.
//!
//! A frame that readers may still know by its number (a page-table page that was unlinked, a page taken out of an
//! object) goes to its CPU's limbo, stamped with the epoch, and to the allocator when every CPU has passed a
//! quiescent moment: three steps of the epoch later, see [`Epoch`](ksync::Epoch). Frames are linked through their
//! pages, so this needs no memory; nothing is written into the frame itself, which readers may be looking at.
//!
//! A frame in limbo is free memory that cannot be handed out yet; [`Limbo::frames`] counts them exactly.

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};
use ksync::{CpuPin, PerCpu, Spin, lock_class};

use crate::page::{PageArray, Pfn};
use crate::{Machine, Vm};

lock_class!(
    /// One CPU's limbo; contended only while it is drained.
    pub LimboLock, "frames in limbo", rank = 118
);

/// Steps of the epoch after which a stamped frame may be used again.
const GRACE: u64 = 3;
/// Stamps that can be unripe at once, rounded up to a power of two.
const BAGS: usize = 4;
/// Frames freed in one go, which bounds the time with preemption off.
const STEP: usize = 32;
/// Naps that [`Vm::let_retired_go`] takes at most.
const DOZES: usize = 64;

/// Such goes that a retire makes at most, beyond what it brings itself.
const LOOK: usize = 2;

/// A list of frames without memory of its own: each frame's owner is the list's, and it is on no other list.
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

/// One CPU's frames, by stamp.
struct Bags {
    bags: [(u64, FrameList); BAGS],
    /// Past their grace period.
    ripe: FrameList,
}

impl Bags {
    /// The bag for `stamp`. What it held before is `BAGS` steps old, and ripe.
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
    /// Frames in `bags`. Changed under the lock, read by anyone.
    frames: AtomicUsize,
    /// Number of frames at which a retire looks for ripe ones. Written by its CPU.
    look_at: AtomicUsize,
}

/// The limbo of all CPUs.
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

    /// Frames that wait, over all CPUs.
    pub fn frames(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.frames.load(Relaxed)).sum()
    }
}

impl<M: Machine> Vm<M> {
    /// Frees frames after a grace period. They are unreachable for new readers, hard-busy, without identity; no
    /// translation for them is cached. Where much is freed, the caller may be preempted between its parts.
    pub fn retire_frames(&self, list: FrameList) {
        let more = list.len();
        {
            let pin = ksync::pin();
            let cpu = self.limbo.cpus.get(&pin);
            let mut bags = cpu.bags.lock();
            // Stamped after they became unreachable, on the CPU that made them so, or after it was synchronised with.
            let stamp = self.epoch.current();
            bags.bag(self.pages, stamp).append(self.pages, list);
            let frames = cpu.frames.fetch_add(more, Relaxed) + more;
            drop(bags);
            if frames < cpu.look_at.load(Relaxed) {
                return;
            }
        }
        // Processes may come and go faster than the clock ticks, so who adds also frees: every so many frames a look,
        // which may free more than came since the last one.
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

    /// Frees some of this CPU's frames whose time has come. For the clock tick, the idle loop, and where memory is
    /// short. Returns whether any are left.
    #[inline]
    pub fn poll_limbo(&self, pin: &CpuPin) -> bool {
        self.limbo.cpus.get(pin).frames.load(Relaxed) != 0 && {
            self.free_ripe(pin, pin.cpu());
            self.limbo.cpus.get(pin).frames.load(Relaxed) != 0
        }
    }

    /// For who retires many objects in one call, and holds none of them: where memory is short, lets what was retired so far go. For
    /// sleeping context; does not insist where another CPU is in a long section.
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

    /// Frees all frames that were retired before the call. Sleeping context.
    pub fn drain_limbo(&self) {
        while self.limbo.frames() != 0 {
            self.epoch.synchronize();
            for cpu in 0..self.machine.ncpus() {
                while self.free_ripe(&ksync::pin(), cpu) == STEP {}
            }
        }
    }

    /// Frees up to [`STEP`] of a CPU's ripe frames; returns how many.
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
