//! Translation caches: which CPUs may hold translations, and what must go.
//!
//! *Guarantee.* When [`Gather::finish`] returns, no CPU holds a translation or a paging-structure entry that was
//! recorded, and only then is memory behind it handed on. One call sends at most one round of interrupts, and none
//! if no other CPU runs the pmap.
//!
//! *Mechanism.* Whoever changes a page-table entry in a way that a stale copy would violate (removal, fewer rights,
//! another frame) first [records](Gather::record) the address, then changes the entry. At the end the set of CPUs
//! that run the pmap *now* is read, after a full fence. A CPU that joins the set later has loaded its root after
//! that, without cached translations, or with those that [`asid`](crate::asid) lets it keep:
//!
//! ```text
//!   change entry                         activate: set own bit in the set
//!   full fence                                     full fence
//!   read the set  -- sees the bit,                 load root, walk
//!                    or ...              ... the walk sees the changed entry
//! ```
//!
//! *Pending invalidations.* Between the change and the flush others find the entry gone, or restricted, although stale
//! translations live on. So the first record lists the operation's range in the pmap, before the entry changes, and the
//! flush takes it out. Whoever reads an entry in a listed range flushes itself; nobody waits for anybody: see
//! `doc/vm-pmap.md`.

use core::ops::Range;

use rust_alloc::sync::Arc;
use smallvec::SmallVec;

use ksync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::asid::Target;
use crate::limbo::FrameList;
use crate::page::{PAGE_SIZE, Pfn};
use crate::pmap::{Listed, Loss, Pmap};
use crate::{Machine, Vm};

/// Most CPUs that the sets hold.
pub const MAX_CPUS: usize = 256;
const WORDS: usize = MAX_CPUS / 64;

/// A set of CPUs, by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// No CPU.
    pub const EMPTY: CpuSet = CpuSet([0; WORDS]);

    /// The set of one CPU.
    pub const fn one(cpu: usize) -> CpuSet {
        let mut words = [0; WORDS];
        words[cpu / 64] = 1 << (cpu % 64);
        CpuSet(words)
    }

    /// Whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 != 0
    }

    /// Adds `cpu`.
    pub fn insert(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Takes `cpu` out.
    pub fn remove(&mut self, cpu: usize) {
        self.0[cpu / 64] &= !(1 << (cpu % 64));
    }

    /// Adds all of `other`.
    pub fn union(&mut self, other: &CpuSet) {
        for (word, more) in self.0.iter_mut().zip(other.0) {
            *word |= more;
        }
    }

    /// Number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let words = self.0;
        (0..WORDS).flat_map(move |n| {
            let mut rest = words[n];
            core::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(n * 64 + bit)
            })
        })
    }
}

/// The CPUs that run a pmap now. Each CPU sets and clears its own bit; anyone reads.
#[derive(Default)]
pub struct ActiveSet([AtomicU64; WORDS]);

impl ActiveSet {
    /// Enters `cpu`; a full fence follows, so that what the caller loads next is not older than the entry.
    pub fn enter(&self, cpu: usize) {
        // Relaxed: the fence orders.
        self.0[cpu / 64].fetch_or(1 << (cpu % 64), Relaxed);
        ksync::fence_after_rmw();
    }

    /// Removes `cpu`, which has loaded another root before.
    pub fn leave(&self, cpu: usize) {
        // Release: who does not find the CPU any more finds its accesses to be over, and may use the frames for something else.
        self.0[cpu / 64].fetch_and(!(1 << (cpu % 64)), Release);
    }

    /// Whether `cpu` is in the set.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / 64].load(Relaxed) >> (cpu % 64) & 1 != 0
    }

    /// The members. The caller has put a full fence between its changes and this.
    pub fn snapshot(&self) -> CpuSet {
        CpuSet(core::array::from_fn(|n| self.0[n].load(Acquire)))
    }
}

/// Separate runs of pages that a gather remembers; beyond them it asks for a full flush.
const RUNS: usize = 6;
/// Pages beyond which a full flush is cheaper than one instruction each.
const MAX_PAGES: u16 = 32;

/// Collects what must be invalidated, and what may be freed once that is done.
///
/// One gather serves one operation in one pmap: a munmap of any length, say. It must be [finished](Gather::finish); dropping it with work in it is a bug that debug builds report.
#[must_use = "a gather must be finished"]
pub struct Gather<'p> {
    /// The pmap being changed, whose active set is read at the end, or at the next change of pmap.
    pmap: Option<&'p Pmap>,
    /// What the operation looks at, and what it takes away where it finds something.
    range: Range<u64>,
    loss: Loss,
    /// The operation in that pmap's list, once it takes something away.
    listed: Option<Listed>,
    /// Runs of pages: address of the first, number of pages in the low 12 bits.
    runs: [u64; RUNS],
    nruns: u16,
    npages: u16,
    full: bool,
    /// What the CPUs compare that keep translations of what they do not run. None: each forgets all of what it runs.
    target: Option<Target>,
    /// Frames that nothing may use before the flush and a grace period are over.
    frames: FrameList,
}

impl<'p> Gather<'p> {
    /// An empty gather.
    pub const fn new() -> Gather<'p> {
        Gather {
            pmap: None,
            range: 0..0,
            loss: Loss::Rights,
            listed: None,
            runs: [0; RUNS],
            nruns: 0,
            npages: 0,
            full: false,
            target: None,
            frames: FrameList::EMPTY,
        }
    }

    /// Begins an operation that looks at `range` of `pmap` and takes so much away where it finds something.
    pub(crate) fn over(&mut self, pmap: &'p Pmap, range: Range<u64>, loss: Loss) {
        debug_assert!(
            self.pmap.is_none_or(|now| core::ptr::eq(now, pmap)),
            "a gather changes one pmap"
        );
        match &self.listed {
            Some(listed) => pmap.widen_pending(listed, &range, loss),
            None => (self.range, self.loss) = (range, loss),
        }
        self.pmap = Some(pmap);
    }

    /// Notes that the entry of `va` in `pmap` is about to lose rights or its frame. Call *before* the change, in the operation's
    /// range.
    #[inline]
    pub(crate) fn record(&mut self, pmap: &Pmap, va: u64) {
        self.begin(pmap);
        self.add(va);
    }

    /// Notes that all of `pmap` is about to lose rights. Call before the change.
    pub(crate) fn record_all(&mut self, pmap: &Pmap) {
        self.begin(pmap);
        self.full = true;
    }

    /// To be called after the entries of `range` were read: if somebody else has taken translations there away
    /// and not flushed yet, what this operation found empty or restricted may still be in use, so all must go.
    pub(crate) fn flush_pending(&mut self, pmap: &'p Pmap, range: &Range<u64>) {
        if pmap.is_pending(self.listed.as_ref(), range, Loss::Rights) {
            self.pmap = Some(pmap);
            self.full = true;
        }
    }

    /// Keeps a frame from being used until the flush and a grace period are over; it then goes to the allocator.
    /// The caller owns it, and no list holds it.
    pub fn free_later<M: Machine>(&mut self, vm: &Vm<M>, pfn: Pfn) {
        self.frames.push(vm.pages, pfn);
    }

    /// As [`free_later`](Gather::free_later), for a list.
    pub(crate) fn free_list_later<M: Machine>(&mut self, vm: &Vm<M>, list: FrameList) {
        self.frames.append(vm.pages, list);
    }

    /// Whether nothing was recorded and nothing waits to be freed.
    pub fn is_empty(&self) -> bool {
        self.nothing_to_flush() && self.frames.is_empty()
    }

    /// Whether everything must go, not only [`runs`](Gather::runs). The CPU then loads the root that the pmap it runs
    /// has *now*.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// What [`Asids::duty`](crate::asid::Asids::duty) is to be asked.
    pub fn target(&self) -> Option<Target> {
        self.target
    }

    /// The address ranges to invalidate, unless [`is_full`](Gather::is_full). An address that belongs to another
    /// pmap than the one the CPU runs is invalidated in vain, never wrongly.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> {
        let all: &[u64] = if self.full {
            &[]
        } else {
            &self.runs[..usize::from(self.nruns)]
        };
        all.iter().map(|run| {
            let first = run & !(PAGE_SIZE as u64 - 1);
            first..first + (run & (PAGE_SIZE as u64 - 1)) * PAGE_SIZE as u64
        })
    }

    /// Invalidates on every CPU that runs what was recorded, waits for them, and hands on what waited for it.
    ///
    /// The caller holds no lock that an interrupt handler takes, and interrupts are on.
    pub fn finish<M: Machine>(mut self, vm: &Vm<M>) {
        if !self.nothing_to_flush() {
            self.flush(vm);
        }
        let frames = core::mem::replace(&mut self.frames, FrameList::EMPTY);
        if !frames.is_empty() {
            vm.retire_frames(frames);
        }
    }

    fn flush<M: Machine>(&mut self, vm: &Vm<M>) {
        let mut cpus = CpuSet::EMPTY;
        if let Some(pmap) = self.pmap {
            let generation;
            (generation, cpus) = pmap.leave_behind();
            self.target = Some(pmap.target(generation));
        }
        send(vm, &cpus, self);
        if let (Some(pmap), Some(listed)) = (self.pmap, self.listed.take()) {
            pmap.lower_pending(listed);
        }
        self.reset();
    }

    fn reset(&mut self) {
        self.nruns = 0;
        self.npages = 0;
        self.full = false;
        self.target = None;
    }

    fn nothing_to_flush(&self) -> bool {
        self.nruns == 0 && !self.full
    }

    fn begin(&mut self, pmap: &Pmap) {
        debug_assert!(
            self.pmap.is_some_and(|now| core::ptr::eq(now, pmap)),
            "a gather changes one pmap, and was told which"
        );
        if self.listed.is_none() {
            self.listed = Some(pmap.raise_pending(&self.range, self.loss));
        }
    }

    fn add(&mut self, va: u64) {
        debug_assert!(va.is_multiple_of(PAGE_SIZE as u64));
        if self.full {
            return;
        }
        self.npages += 1;
        if let Some(last) = self.runs[..usize::from(self.nruns)].last_mut()
            && (*last & !(PAGE_SIZE as u64 - 1))
                + (*last & (PAGE_SIZE as u64 - 1)) * PAGE_SIZE as u64
                == va
        {
            *last += 1;
        } else if let Some(next) = self.runs.get_mut(usize::from(self.nruns)) {
            *next = va | 1;
            self.nruns += 1;
        } else {
            self.full = true;
        }
        self.full |= self.npages > MAX_PAGES;
    }
}

impl Default for Gather<'_> {
    fn default() -> Self {
        Gather::new()
    }
}

impl Drop for Gather<'_> {
    fn drop(&mut self) {
        debug_assert!(self.is_empty(), "a gather was dropped with work in it");
    }
}

impl Pmap {
    /// After its entries were changed: those CPUs that run the pmap now and may hold translations of what was there. Others find by the
    /// new generation, which comes first, that theirs are old.
    fn leave_behind(&self) -> (u64, CpuSet) {
        let generation = self.bump_generation();
        ksync::fence_after_rmw();
        (generation, self.active().snapshot())
    }
}

/// Invalidates a page of `pmap`, of which others may have taken translations away. The caller holds no lock.
pub(crate) fn flush_page<M: Machine>(vm: &Vm<M>, pmap: &Pmap, va: u64) {
    let mut gather = Gather::new();
    gather.pmap = Some(pmap);
    gather.add(va);
    gather.finish(vm);
}

/// Collects what a scan changes in many pmaps: one flush for all of them.
///
/// It must be [finished](ScanGather::finish) before the scan's pages are let go, and with no lock held.
#[must_use = "a gather must be finished"]
pub(crate) struct ScanGather {
    /// The pmaps that the scan changed, and its place in their lists.
    changed: SmallVec<[(Arc<Pmap>, Listed); 4]>,
    /// Pmaps in which others have a flush due, which this one does as well.
    joined: usize,
    /// CPUs that ran those.
    cpus: CpuSet,
    /// What the last of those was asked to forget.
    target: Option<Target>,
    /// Addresses and frames. It belongs to no pmap.
    what: Gather<'static>,
}

impl ScanGather {
    /// An empty one.
    pub(crate) fn new() -> ScanGather {
        ScanGather {
            changed: SmallVec::new(),
            joined: 0,
            cpus: CpuSet::EMPTY,
            target: None,
            what: Gather::new(),
        }
    }

    /// Makes room for so many pmaps, if there is memory: before the scan takes a lock.
    pub(crate) fn make_room(&mut self, pmaps: usize) {
        // Without it there is room for a few.
        let _more = self.changed.try_reserve_exact(pmaps);
    }

    /// Whether a change in one more pmap can be noted. In an empty one it can.
    pub(crate) fn has_room(&self) -> bool {
        self.changed.len() < self.changed.capacity()
    }

    /// Notes that the entry of `va` is about to lose rights or its frame. Call *before* the change, where there
    /// [is room](ScanGather::has_room).
    pub(crate) fn record(&mut self, pmap: &Arc<Pmap>, va: u64, loss: Loss) {
        let page = va..va + PAGE_SIZE as u64;
        match self.changed.last() {
            Some((last, listed)) if Arc::ptr_eq(last, pmap) => {
                pmap.widen_pending(listed, &page, loss);
            }
            _ => self
                .changed
                .push((pmap.clone(), pmap.raise_pending(&page, loss))),
        }
        self.what.add(va);
    }

    /// To be called after the entries of `range` were found absent: if somebody else has taken translations there away and not
    /// flushed yet, they must go before the scan's pages do.
    pub(crate) fn flush_pending(&mut self, pmap: &Arc<Pmap>, range: &Range<u64>) {
        let own = self
            .changed
            .last()
            .filter(|(last, _)| Arc::ptr_eq(last, pmap));
        if pmap.is_pending(own.map(|(_, listed)| listed), range, Loss::Rights) {
            let (generation, cpus) = pmap.leave_behind();
            self.cpus.union(&cpus);
            self.joined += 1;
            self.target = Some(pmap.target(generation));
            if range.end - range.start == PAGE_SIZE as u64 {
                self.what.add(range.start);
            } else {
                self.what.full = true;
            }
        }
    }

    /// As [`Gather::free_later`], for a list.
    pub(crate) fn free_list_later<M: Machine>(&mut self, vm: &Vm<M>, list: FrameList) {
        self.what.free_list_later(vm, list);
    }

    /// Invalidates on every CPU that runs what was recorded, waits for them, and hands on what waited for it.
    pub(crate) fn finish<M: Machine>(mut self, vm: &Vm<M>) {
        if !self.what.nothing_to_flush() {
            self.flush(vm);
        }
        self.what.finish(vm);
    }

    fn flush<M: Machine>(&mut self, vm: &Vm<M>) {
        for (pmap, _) in &self.changed {
            let (generation, cpus) = pmap.leave_behind();
            self.cpus.union(&cpus);
            self.target = Some(pmap.target(generation));
        }
        // A request names one pmap. One for several names none: each CPU forgets all of what it runs.
        let one = self.changed.len() + self.joined == 1;
        self.what.target = self.target.filter(|_| one);
        send(vm, &self.cpus, &self.what);
        for (pmap, listed) in self.changed.drain(..) {
            pmap.lower_pending(listed);
        }
        self.what.reset();
    }
}

/// Makes `cpus` load the root that their pmap has now.
pub(crate) fn reload<M: Machine>(vm: &Vm<M>, cpus: &CpuSet) {
    let mut gather = Gather::new();
    gather.full = true;
    send(vm, cpus, &gather);
    gather.full = false;
}

/// Runs an invalidation on `cpus` and counts it.
fn send<M: Machine>(vm: &Vm<M>, cpus: &CpuSet, what: &Gather) {
    let pin = ksync::pin();
    let mut others = *cpus;
    others.remove(pin.cpu());
    let counts = vm.pmaps.counts(&pin);
    if others.is_empty() {
        counts.avoided.add(1);
    } else {
        counts.sent.add(1);
        counts.targets.add(others.len() as u64);
    }
    if !cpus.is_empty() {
        vm.machine.flush(cpus, what);
    }
}
