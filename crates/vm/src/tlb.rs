//! Translation caches: which CPUs may hold translations, and what must be flushed.
//!
//! *Guarantee.* When [`Gather::finish`] returns, no CPU holds a translation or a paging-structure entry that was
//! recorded; only after that are frames passed on. One call sends at most one round of interrupts, and none if no other
//! CPU runs the pmap.
//!
//! *Mechanism.* An operation that changes a page-table entry in a way that a stale copy would violate (removal, fewer
//! rights, another frame) first records the address, then changes the entry. At the end it reads the
//! set of CPUs that run the pmap *now*, after a full fence. A CPU that joins the set later loads its root after that,
//! without cached translations, or with those that [`asid`](crate::asid) lets it keep:
//! ```text
//!   change entry                         activate: set own bit in the set
//!   full fence                                     full fence
//!   read the set  -- sees the bit,                 load root, walk
//!                    or ...              ... the walk sees the changed entry
//! ```
//!
//! *Pending flushes.* Between the change and the flush, other operations find the entry gone, or restricted, although
//! stale translations exist. So the first record lists the operation's range in the pmap, before the entry changes, and
//! the flush unlists it. An operation that reads an entry in a listed range makes a flush of its own; no operation
//! waits for another. See `doc/vm-pmap.md`.

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
use crate::pmap::{Listed, Loss, Pmap, Pte};
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

/// The CPUs that run a pmap now. Each CPU sets and clears its own bit; any CPU reads.
#[derive(Default)]
pub struct ActiveSet([AtomicU64; WORDS]);

impl ActiveSet {
    /// Adds `cpu`; a full fence follows, so that the caller's next loads are not older than the addition.
    pub fn enter(&self, cpu: usize) {
        // Relaxed: the fence orders.
        self.0[cpu / 64].fetch_or(1 << (cpu % 64), Relaxed);
        ksync::fence_after_rmw();
    }

    /// Removes `cpu`, which has loaded another root before.
    pub fn leave(&self, cpu: usize) {
        // Release: a CPU that finds this one removed knows that its accesses are over, and may reuse the frames.
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

/// Separate runs of pages that a gather records; with more it asks for a full flush.
const RUNS: usize = 6;
/// Pages beyond which a full flush is cheaper than one instruction each.
const MAX_PAGES: u16 = 32;

/// Collects the translations to flush, and the frames to free after that.
///
/// One gather serves one operation in one pmap, such as a munmap of any length. It must be [finished](Gather::finish);
/// dropping it with work left in it is a bug that debug builds report.
#[must_use = "a gather must be finished"]
pub struct Gather<'p> {
    /// The pmap that is changed, and whose active set is read by the flush.
    pmap: Option<&'p Pmap>,
    /// The range that the operation looks at, and what it takes away from entries that it finds.
    range: Range<u64>,
    loss: Loss,
    /// The operation's listing in that pmap, once it takes something away.
    listed: Option<Listed>,
    /// Runs of pages: address of the first, number of pages in the low 12 bits.
    runs: [u64; RUNS],
    nruns: u16,
    npages: u16,
    full: bool,
    /// What CPUs compare with the translations that they keep. `None`: each flushes all of the pmap that it runs.
    target: Option<Target>,
    /// Frames that must not be reused before the flush and a grace period are over.
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

    /// Begins an operation that looks at `range` of `pmap` and takes away `loss` from entries that it finds. A second call
    /// adds to what was recorded since the first, or replaces it if nothing was.
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

    /// Records that the entry of `va` in `pmap` is about to lose rights or its frame. Call *before* the change; `va` is
    /// in the operation's range.
    #[inline]
    pub(crate) fn record(&mut self, pmap: &Pmap, va: u64) {
        self.begin(pmap);
        self.add(va);
    }

    /// Records that all of `pmap` is about to lose rights or frames. Call before the change.
    pub(crate) fn record_all(&mut self, pmap: &Pmap) {
        self.begin(pmap);
        self.full = true;
    }

    /// To be called after the entries of `range` were read: if another operation has taken translations there away and
    /// not yet flushed, an entry that this one found empty or restricted may still be cached, so a full flush is
    /// recorded.
    pub(crate) fn flush_pending(&mut self, pmap: &'p Pmap, range: &Range<u64>) {
        if pmap.is_pending(self.listed.as_ref(), range, Loss::Rights) {
            self.pmap = Some(pmap);
            self.full = true;
        }
    }

    /// Frees a frame after the flush and a grace period. The caller owns it, and no list holds it.
    pub fn free_later<M: Machine>(&mut self, vm: &Vm<M>, pfn: Pfn) {
        self.frames.push(vm.pages, pfn);
    }

    /// As [`free_later`](Gather::free_later), for a list.
    pub(crate) fn free_list_later<M: Machine>(&mut self, vm: &Vm<M>, list: FrameList) {
        self.frames.append(vm.pages, list);
    }

    /// Whether nothing was recorded and no frame waits to be freed.
    pub fn is_empty(&self) -> bool {
        self.nothing_to_flush() && self.frames.is_empty()
    }

    /// Whether everything must be flushed, not only [`runs`](Gather::runs). A CPU then loads the root that the pmap it
    /// runs has *now*.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// The argument for [`Asids::duty`](crate::asid::Asids::duty).
    pub fn target(&self) -> Option<Target> {
        self.target
    }

    /// The address ranges to invalidate, unless [`is_full`](Gather::is_full). Invalidating an address of another pmap
    /// than the one the CPU runs is unnecessary, but harmless.
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

    /// Invalidates everything recorded on every CPU that runs the pmap, waits for them, and frees the collected frames
    /// after a grace period.
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
            "a gather changes one pmap, which `over` has named"
        );
        if self.listed.is_none() {
            self.listed = Some(pmap.raise_pending(&self.range, self.loss));
        }
    }

    /// Adds a page to the runs; if they are too many, or have too many pages, everything is to be flushed.
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
    /// Called after entries were changed: raises the generation, then returns it and the CPUs that run the pmap now,
    /// which may hold stale translations. Other CPUs recognise theirs as stale by the new generation.
    fn leave_behind(&self) -> (u64, CpuSet) {
        let generation = self.bump_generation();
        ksync::fence_after_rmw();
        (generation, self.active().snapshot())
    }
}

/// Invalidates a page of `pmap`, whose translations another operation may have taken away. The caller holds no lock.
pub(crate) fn flush_page<M: Machine>(vm: &Vm<M>, pmap: &Pmap, va: u64) {
    let mut gather = Gather::new();
    gather.pmap = Some(pmap);
    gather.add(va);
    gather.finish(vm);
}

/// Collects what a scan changes in many pmaps: one flush for all of them.
///
/// It must be [finished](ScanGather::finish) before the scan releases its pages, and with no lock held.
#[must_use = "a gather must be finished"]
pub(crate) struct ScanGather {
    /// The pmaps that the scan changed, with its listing in each.
    changed: SmallVec<[(Arc<Pmap>, Listed); 4]>,
    /// Number of pmaps in which another operation's flush is due, which this gather makes as well.
    joined: usize,
    /// CPUs that run those pmaps.
    cpus: CpuSet,
    /// The flush target of the last of those pmaps.
    target: Option<Target>,
    /// Addresses and frames. Belongs to no single pmap.
    what: Gather<'static>,
    /// Leaves of 2 MiB that are to be divided when the scan holds no lock, and whether there are to be any.
    leaves: SmallVec<[Undivided; 4]>,
    puts_off: bool,
}

/// A leaf of 2 MiB that a scan has met, and the entry of `va` that it stands for.
pub(crate) struct Undivided {
    pub(crate) pmap: Arc<Pmap>,
    pub(crate) va: u64,
    pub(crate) pte: Pte,
}

/// Most places for pmaps, or for leaves: one MiB, or two. A scan of more passes over them again.
const MOST: usize = 1 << 16;

/// Reserves the end of the range, or a half of it, and so on down to its start, until `reserve` says that it is done.
fn reserve_most(range: Range<usize>, mut reserve: impl FnMut(usize) -> bool) {
    let mut room = range.end;
    while room > range.start && !reserve(room) {
        room /= 2;
    }
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
            leaves: SmallVec::new(),
            puts_off: false,
        }
    }

    /// From now on leaves of 2 MiB are [put off](ScanGather::put_off): room for so many is reserved, or as much of it as there is
    /// memory for.
    pub(crate) fn put_leaves_off(&mut self, leaves: usize) {
        let least = self.leaves.capacity();
        reserve_most(least..leaves.min(MOST), |room| {
            self.leaves.try_reserve_exact(room).is_ok()
        });
        self.puts_off = true;
    }

    /// Notes a leaf of 2 MiB, so that a lock is not held while it is divided. False if leaves are divided where they are found.
    pub(crate) fn put_off(&mut self, pmap: &Arc<Pmap>, va: u64, pte: Pte) -> bool {
        if self.puts_off {
            let pmap = pmap.clone();
            self.leaves.push(Undivided { pmap, va, pte });
        }
        self.puts_off
    }

    /// The leaves that were put off.
    pub(crate) fn take_leaves(&mut self) -> SmallVec<[Undivided; 4]> {
        core::mem::take(&mut self.leaves)
    }

    /// Reserves room for so many pmaps, or as many as there is memory for: before the scan takes a lock. A scan that finds no room for
    /// the next begins again, so that it takes time as the square of those that there was no room for.
    pub(crate) fn make_room(&mut self, pmaps: usize) {
        let least = self.changed.capacity();
        let wanted = pmaps.min(MOST);
        reserve_most(least..wanted, |room| {
            self.changed.try_reserve_exact(room).is_ok()
        });
    }

    /// Whether a change in one more pmap can be recorded, and one more leaf put off. Always true for an empty gather.
    pub(crate) fn has_room(&self) -> bool {
        self.changed.len() < self.changed.capacity() && self.leaves.len() < self.leaves.capacity()
    }

    /// Records that the entry of `va` is about to lose rights or its frame. Call *before* the change, and only if there
    /// [is room](ScanGather::has_room).
    pub(crate) fn record(&mut self, pmap: &Arc<Pmap>, va: u64, loss: Loss) {
        self.record_leaf(pmap, &(va..va + PAGE_SIZE as u64), loss);
    }

    /// As [`record`](ScanGather::record), for the addresses of one leaf of either size, which its first one invalidates.
    pub(crate) fn record_leaf(&mut self, pmap: &Arc<Pmap>, leaf: &Range<u64>, loss: Loss) {
        match self.changed.last() {
            Some((last, listed)) if Arc::ptr_eq(last, pmap) => {
                pmap.widen_pending(listed, leaf, loss);
            }
            _ => self
                .changed
                .push((pmap.clone(), pmap.raise_pending(leaf, loss))),
        }
        self.what.add(leaf.start);
    }

    /// To be called after the entries of `range` were found absent: if another operation has taken translations there
    /// away and not yet flushed, they must be flushed before the scan releases its pages.
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

    /// Invalidates everything recorded on every CPU that runs the pmaps, waits for them, and frees the collected frames
    /// after a grace period.
    pub(crate) fn finish<M: Machine>(mut self, vm: &Vm<M>) {
        self.finish_part(vm);
    }

    /// As [`finish`](ScanGather::finish). It is empty then, with the room that it had.
    pub(crate) fn finish_part<M: Machine>(&mut self, vm: &Vm<M>) {
        if !self.what.nothing_to_flush() {
            self.flush(vm);
        }
        core::mem::take(&mut self.what).finish(vm);
    }

    fn flush<M: Machine>(&mut self, vm: &Vm<M>) {
        for (pmap, _) in &self.changed {
            let (generation, cpus) = pmap.leave_behind();
            self.cpus.union(&cpus);
            self.target = Some(pmap.target(generation));
        }
        // A request names one pmap. A request for several names none, and each CPU flushes all of what it runs.
        let one = self.changed.len() + self.joined == 1;
        self.what.target = self.target.filter(|_| one);
        send(vm, &self.cpus, &self.what);
        for (pmap, listed) in self.changed.drain(..) {
            pmap.lower_pending(listed);
        }
        self.what.reset();
        (self.cpus, self.joined, self.target) = (CpuSet::EMPTY, 0, None);
    }
}

/// Makes `cpus` load the root that their pmap has now.
pub(crate) fn reload<M: Machine>(vm: &Vm<M>, cpus: &CpuSet) {
    let mut gather = Gather::new();
    gather.full = true;
    send(vm, cpus, &gather);
    gather.full = false;
}

/// Sends an invalidation to `cpus` and counts it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A scan of more pmaps than memory has room for gets the most that there is, not the few that are inline.
    #[test]
    fn room_that_is_too_much_is_had_in_part() {
        let mut gather = ScanGather::new();
        gather.make_room(usize::MAX);
        assert!(gather.changed.capacity() >= 1 << 16);
        let mut few = ScanGather::new();
        few.make_room(100);
        assert!((100..1000).contains(&few.changed.capacity()));
        let mut had = 0;
        reserve_most(4..1 << 16, |room| {
            had = room;
            room <= 1000
        });
        assert_eq!(had, 512);
    }
}
