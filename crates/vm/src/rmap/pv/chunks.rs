//! The chunks of a pmap, and room in them.
//!
//! The chunks with free entries come first, and the others in the order in which they were filled, but for those whose entries were freed since the list was last put in order:
//! an operation that takes entries out, perhaps another process's scan, only counts them. When a quarter of all entries was
//! freed since, the list is put in order, and chunks without used entries are freed: by the end of a removal, or when no
//! room is found. So an entry is found in a constant number of steps on average.
//!
//! A reclaimer takes a chunk away, out of the list, so that nothing of it is reserved while the reclaimer empties it.
//! The operation that forgets the pmap waits until it is brought back, or is the reclaimer's: a chunk that is away is not freed, and
//! its entries lead to a pmap as long as there are any.

use core::ops::ControlFlow;

use ksync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use ksync::{Spin, lock_class};
use rust_alloc::sync::Arc;

use super::chunk::{Chunk, ENTRIES, Frames, Place, Reserved};
use super::pmaps;
use crate::alloc::NoMemory;
use crate::page::Pfn;
use crate::pmap::Pmap;
use crate::{Machine, Vm};

lock_class!(
    /// The list of a pmap's chunks of pv entries.
    pub PvChunksLock, "pv chunks", rank = 106
);

/// What a pmap has of the reverse map.
#[derive(Default)]
pub struct PmapChunks {
    list: Spin<List, PvChunksLock>,
    /// Entries that were freed since the list was put in order. Atomic, approximate.
    freed: AtomicUsize,
    /// Whether the pmap was forgotten: no entry is listed any more. Set under the lock of the list, and never reset.
    forgotten: AtomicBool,
    /// Whether a reclaimer, of which there is one at a time, has taken a chunk away. Guarded by the lock of the list.
    away: AtomicBool,
    link: pmaps::Link,
}

/// The chunks, linked through themselves.
#[derive(Default)]
struct List {
    first: Option<Pfn>,
    last: Option<Pfn>,
    len: usize,
}

impl List {
    fn push_first(&mut self, frames: &Frames, chunk: Pfn) {
        frames.chunk(chunk).set_next(self.first);
        self.first = Some(chunk);
        self.last.get_or_insert(chunk);
        self.len += 1;
    }

    fn push_last(&mut self, frames: &Frames, chunk: Pfn) {
        frames.chunk(chunk).set_next(None);
        match self.last {
            Some(last) => frames.chunk(last).set_next(Some(chunk)),
            None => self.first = Some(chunk),
        }
        self.last = Some(chunk);
        self.len += 1;
    }

    fn pop(&mut self, frames: &Frames) -> Option<Pfn> {
        let chunk = self.first?;
        self.first = frames.chunk(chunk).next();
        if self.first.is_none() {
            self.last = None;
        }
        self.len -= 1;
        Some(chunk)
    }

    #[cfg(feature = "pv-stock")]
    fn iter(&self, frames: &Frames) -> impl Iterator<Item = Pfn> {
        core::iter::successors(self.first, |chunk| frames.chunk(*chunk).next())
    }

    /// Takes a chunk out. Returns whether it was in the list. The one that was filled least recently is among the first.
    #[cfg(feature = "pv-stock")]
    fn remove(&mut self, frames: &Frames, chunk: Pfn) -> bool {
        if self.first == Some(chunk) {
            return self.pop(frames).is_some();
        }
        let next = |of: Pfn| frames.chunk(of).next();
        let Some(before) = self.iter(frames).find(|&at| next(at) == Some(chunk)) else {
            return false;
        };
        frames.chunk(before).set_next(next(chunk));
        if self.last == Some(chunk) {
            self.last = Some(before);
        }
        self.len -= 1;
        true
    }

    /// Adds a chunk that is to be filled next. The one that was filled until now goes behind those that were filled before.
    fn push_filling(&mut self, frames: &Frames, chunk: Pfn) {
        if let Some(first) = self.first
            && frames.chunk(first).free() == 0
        {
            self.pop(frames);
            self.push_last(frames, first);
        }
        self.push_first(frames, chunk);
    }

    /// Takes the first chunk after the one that was filled last, or that one if there is no other.
    #[cfg(feature = "pv-obm")]
    fn pop_oldest(&mut self, frames: &Frames) -> Option<Pfn> {
        let first = self.pop(frames)?;
        let Some(oldest) = self.pop(frames) else {
            return Some(first);
        };
        self.push_first(frames, first);
        Some(oldest)
    }

    /// Reserves entries in one of the first two chunks. If it is the second, which is the first from then on, the other becomes
    /// the last.
    fn reserve(&mut self, frames: &Frames, entries: usize) -> Option<Reserved> {
        let first = self.first?;
        if let Some(found) = frames.chunk(first).reserve(first, entries) {
            return Some(found);
        }
        let second = frames.chunk(first).next()?;
        let found = frames.chunk(second).reserve(second, entries)?;
        self.pop(frames);
        self.push_last(frames, first);
        Some(found)
    }

    /// Puts chunks with free entries first, and calls `gone` with those that have no others.
    fn put_in_order(&mut self, frames: &Frames, mut gone: impl FnMut(Pfn)) {
        let mut old = core::mem::take(self);
        while let Some(chunk) = old.pop(frames) {
            match frames.chunk(chunk).free() {
                ENTRIES => gone(chunk),
                0 => self.push_last(frames, chunk),
                _ => self.push_first(frames, chunk),
            }
        }
    }
}

impl AsRef<PmapChunks> for PmapChunks {
    fn as_ref(&self) -> &PmapChunks {
        self
    }
}

impl PmapChunks {
    /// Whether the pmap was forgotten.
    pub(super) fn is_forgotten(&self) -> bool {
        self.forgotten.load(Relaxed)
    }

    /// Notes that an entry of the pmap is about to be given back.
    pub(super) fn note_freed(&self) {
        // Not exact where two CPUs free entries of one pmap.
        self.freed.store(self.freed.load(Relaxed) + 1, Relaxed);
    }

    /// Reserves up to `entries` entries, at least one; none if the pmap was forgotten. Neither sleeps nor reclaims.
    ///
    /// # Errors
    /// No memory for a chunk.
    pub(super) fn reserve<M: Machine>(
        &self,
        vm: &Vm<M>,
        frames: &Frames,
        pmap: &Arc<Pmap>,
        entries: usize,
    ) -> Result<Reserved, NoMemory> {
        let mut list = self.list.lock();
        if self.is_forgotten() {
            return Ok(Reserved::NONE);
        }
        if let Some(found) = list.reserve(frames, entries) {
            return Ok(found);
        }
        if self.is_out_of_order(list.len) {
            self.put_in_order(vm, frames, &mut list);
            if let Some(found) = list.reserve(frames, entries) {
                return Ok(found);
            }
        }
        self.be_found(frames, pmap);
        frames.begin_move();
        let Ok(frame) = frames.alloc(vm) else {
            frames.cancel_move();
            return Err(NoMemory);
        };
        self.add(vm, frames, pmap, &mut list, frame);
        frames.end_move();
        list.reserve(frames, entries).ok_or(NoMemory)
    }

    /// Makes a frame that the caller owns the chunk of the pmap that is filled next. The list is the pmap's.
    fn add<M: Machine>(
        &self,
        vm: &Vm<M>,
        frames: &Frames,
        pmap: &Arc<Pmap>,
        list: &mut List,
        frame: Pfn,
    ) {
        frames.make(&vm.machine, frame, pmap);
        #[cfg(feature = "pv-stock")]
        frames.lru.push(frames, &vm.pages, frame);
        list.push_filling(frames, frame);
    }

    /// Lets reclaimers find the pmap, which is about to get a chunk. The list is locked.
    fn be_found(&self, frames: &Frames, pmap: &Arc<Pmap>) {
        // The other design finds chunks.
        if cfg!(feature = "pv-obm") && !self.link.is_listed() {
            frames.pmaps.enter(&ksync::pin(), pmap);
        }
    }

    /// Makes a frame that the caller owns a chunk of the pmap, and reserves up to `entries` entries of it. If the pmap was
    /// forgotten, frees the frame, and reserves nothing.
    pub(super) fn adopt<M: Machine>(
        &self,
        vm: &Vm<M>,
        frames: &Frames,
        pmap: &Arc<Pmap>,
        frame: Pfn,
        entries: usize,
    ) -> Reserved {
        let mut list = self.list.lock();
        if self.is_forgotten() {
            frames.free(vm, frame);
            return Reserved::NONE;
        }
        self.be_found(frames, pmap);
        self.add(vm, frames, pmap, &mut list, frame);
        list.reserve(frames, entries).unwrap_or(Reserved::NONE)
    }

    /// Takes a chunk away from a pmap that was not forgotten: the one that was filled least recently; or the one that is
    /// being filled, if that is said, or it is alone. No other chunk of the pmap is away.
    #[cfg(feature = "pv-obm")]
    pub(super) fn take_away(&self, frames: &Frames, being_filled: bool) -> Option<Pfn> {
        let mut list = self.list.lock();
        if self.is_forgotten() {
            return None;
        }
        let chunk = if being_filled {
            list.pop(frames)
        } else {
            list.pop_oldest(frames)
        };
        debug_assert!(!self.away.load(Relaxed), "two chunks are away");
        self.away.store(chunk.is_some(), Relaxed);
        chunk
    }

    /// Takes this chunk away, if it is one of the pmap, which is locked. Returns whether it is. No other chunk of the pmap is away.
    #[cfg(feature = "pv-stock")]
    pub(super) fn take_this_away(&self, frames: &Frames, chunk: Pfn) -> bool {
        let mut list = self.list.lock();
        let ours = list.remove(frames, chunk);
        debug_assert!(
            !ours || !self.is_forgotten(),
            "a pmap is forgotten under its lock"
        );
        debug_assert!(!self.away.load(Relaxed), "two chunks are away");
        self.away.store(ours, Relaxed);
        ours
    }

    /// Brings a chunk back that was taken away, behind the others. If none of its entries is
    /// used it is the caller's, and this returns true.
    pub(super) fn bring_back(&self, frames: &Frames, chunk: Pfn) -> bool {
        let mut list = self.list.lock();
        self.away.store(false, Relaxed);
        let empty = frames.chunk(chunk).free() == ENTRIES;
        if !empty {
            list.push_last(frames, chunk);
        }
        empty
    }

    /// Brings a chunk back that was taken away, before the others, and reserves up to `entries` entries of it, if any is free
    /// and the pmap was not forgotten.
    pub(super) fn bring_back_for(
        &self,
        frames: &Frames,
        chunk: Pfn,
        entries: usize,
    ) -> Option<Reserved> {
        let mut list = self.list.lock();
        self.away.store(false, Relaxed);
        let wanted = if self.is_forgotten() { 0 } else { entries };
        let found = frames.chunk(chunk).reserve(chunk, wanted);
        match found {
            Some(_) => list.push_filling(frames, chunk),
            None => list.push_last(frames, chunk),
        }
        found
    }

    /// Whether so many entries of `chunks` chunks were freed that it is time to look which are empty.
    fn is_out_of_order(&self, chunks: usize) -> bool {
        let freed = self.freed.load(Relaxed);
        freed >= ENTRIES && freed >= chunks * ENTRIES / 4
    }

    fn put_in_order<M: Machine>(&self, vm: &Vm<M>, frames: &Frames, list: &mut List) {
        self.freed.store(0, Relaxed);
        list.put_in_order(frames, |chunk| {
            frames.begin_move();
            #[cfg(feature = "pv-stock")]
            frames.lru.remove(frames, &vm.pages, chunk);
            frames.free(vm, chunk);
            frames.end_move();
        });
    }

    /// Frees chunks of which no entry is used, if many entries were freed.
    #[inline]
    pub(super) fn tidy<M: Machine>(&self, vm: &Vm<M>, frames: &Frames) {
        if self.is_out_of_order(0) {
            let mut list = self.list.lock();
            // The list of a pmap that was forgotten is walked without its lock.
            if self.is_out_of_order(list.len) && !self.is_forgotten() {
                self.put_in_order(vm, frames, &mut list);
            }
        }
    }

    /// Frees all chunks of which no entry is used, and puts those with free entries first.
    pub(super) fn tidy_all<M: Machine>(&self, vm: &Vm<M>, frames: &Frames) {
        let mut list = self.list.lock();
        if !self.is_forgotten() {
            self.put_in_order(vm, frames, &mut list);
        }
    }

    /// From now on no entry is reserved, and no reclaimer has a chunk: sleeps until the one that has brings it back. What is
    /// reserved already may still be entered.
    pub(super) fn forget(&self) {
        let list = self.list.lock();
        self.forgotten.store(true, Relaxed);
        drop(list);
        // The reclaimer waits for nothing that waits for this.
        while self.is_one_away() {
            ksync::doze();
        }
    }

    fn is_one_away(&self) -> bool {
        let _list = self.list.lock();
        self.away.load(Relaxed)
    }

    /// Calls `visit` for each entry that is reserved or listed. The list is locked meanwhile, unless the pmap was forgotten:
    /// then it does not change.
    pub(super) fn for_each_used(&self, frames: &Frames, mut visit: impl FnMut(&Chunk, Place)) {
        let list = self.list.lock();
        let first = list.first;
        let _list = (!self.is_forgotten()).then_some(list);
        let _all: ControlFlow<()> = Self::try_each_of(first, frames, |chunk, place| {
            visit(chunk, place);
            ControlFlow::Continue(())
        });
    }

    /// As [`for_each_used`](PmapChunks::for_each_used), until `visit` breaks; none if the pmap was forgotten, for its chunks may be
    /// freed at any moment then.
    pub(super) fn try_each_living<B>(
        &self,
        frames: &Frames,
        visit: impl FnMut(&Chunk, Place) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let list = self.list.lock();
        if self.is_forgotten() {
            return ControlFlow::Continue(());
        }
        Self::try_each_of(list.first, frames, visit)
    }

    /// The used entries of a chunk and those behind it. They do not change meanwhile.
    fn try_each_of<B>(
        mut at: Option<Pfn>,
        frames: &Frames,
        mut visit: impl FnMut(&Chunk, Place) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        while let Some(frame) = at {
            let chunk = frames.chunk(frame);
            chunk
                .used(frame)
                .try_for_each(|(place, _)| visit(chunk, place))?;
            at = chunk.next();
        }
        ControlFlow::Continue(())
    }

    /// Frees all chunks of `pmap`, whose these are, which was forgotten, and of which no entry is used. It ends: a reclaimer that
    /// finds it until then knows that there will be room soon.
    pub(super) fn free_all<M: Machine>(&self, vm: &Vm<M>, frames: &Frames, pmap: &Pmap) {
        debug_assert!(self.is_forgotten());
        let mut list = core::mem::take(&mut *self.list.lock());
        frames.begin_move();
        #[cfg(feature = "pv-stock")]
        frames.lru.remove_all(frames, &vm.pages, list.iter(frames));
        while let Some(chunk) = list.pop(frames) {
            frames.free(vm, chunk);
        }
        frames.end_move();
        frames.pmaps.leave(pmap);
    }

    /// Number of chunks that are not away.
    pub(super) fn len(&self) -> usize {
        self.list.lock().len
    }

    /// The link in the list of pmaps.
    pub(super) fn link(&self) -> &pmaps::Link {
        &self.link
    }
}

impl Drop for PmapChunks {
    fn drop(&mut self) {
        debug_assert!(self.len() == 0, "a pmap was dropped with pv entries");
        // Also in a release: the list leads to it.
        assert!(!self.link.is_listed(), "a pmap was dropped unforgotten");
    }
}
