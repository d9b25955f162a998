//! The chunks of a pmap, and room in them.
//!
//! The chunks with free entries come first, but for those whose entries were freed since the list was last put in order:
//! an operation that takes entries out, perhaps another process's scan, only counts them. When a quarter of all entries was
//! freed since, the list is put in order, and chunks without used entries are freed: by the end of a removal, or when no
//! room is found. So an entry is found in a constant number of steps on average.

use ksync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use ksync::{Spin, lock_class};
use rust_alloc::sync::Arc;

use super::chunk::{Chunk, ENTRIES, Frames, Place, Reserved};
use crate::alloc::{NoMemory, Rights};
use crate::page::{Flags, Pfn, State};
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

    /// Reserves entries in one of the first two chunks, of which a full one becomes the last.
    fn reserve(&mut self, frames: &Frames, entries: usize) -> Option<Reserved> {
        for _ in 0..2 {
            let first = self.first?;
            let found = frames.chunk(first).reserve(first, entries);
            if found.is_some() || self.len == 1 {
                return found;
            }
            self.pop(frames);
            self.push_last(frames, first);
        }
        None
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
        let frame = vm.alloc.alloc(&ksync::pin(), Rights::Table)?;
        vm.pages
            .get(frame)
            .init_flags(State::Kernel, Flags::empty());
        frames.make(&vm.machine, frame, pmap);
        list.push_first(frames, frame);
        list.reserve(frames, entries).ok_or(NoMemory)
    }

    /// Whether so many entries of `chunks` chunks were freed that it is time to look which are empty.
    fn is_out_of_order(&self, chunks: usize) -> bool {
        let freed = self.freed.load(Relaxed);
        freed >= ENTRIES && freed >= chunks * ENTRIES / 4
    }

    fn put_in_order<M: Machine>(&self, vm: &Vm<M>, frames: &Frames, list: &mut List) {
        self.freed.store(0, Relaxed);
        let pin = ksync::pin();
        list.put_in_order(frames, |chunk| vm.alloc.free(&pin, chunk));
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

    /// From now on no entry is reserved.
    pub(super) fn forget(&self) {
        let _list = self.list.lock();
        self.forgotten.store(true, Relaxed);
    }

    /// Calls `visit` for each entry that is reserved or listed. The list is locked meanwhile, unless the pmap was forgotten:
    /// then it does not change.
    pub(super) fn for_each_used(&self, frames: &Frames, mut visit: impl FnMut(&Chunk, Place)) {
        let list = self.list.lock();
        let first = list.first;
        let _list = (!self.is_forgotten()).then_some(list);
        let mut at = first;
        while let Some(frame) = at {
            let chunk = frames.chunk(frame);
            chunk.used(frame).for_each(|(place, _)| visit(chunk, place));
            at = chunk.next();
        }
    }

    /// Frees all chunks of a pmap that was forgotten, and of which no entry is used.
    pub(super) fn free_all<M: Machine>(&self, vm: &Vm<M>, frames: &Frames) {
        debug_assert!(self.is_forgotten());
        let mut list = core::mem::take(&mut *self.list.lock());
        while let Some(chunk) = list.pop(frames) {
            debug_assert!(frames.chunk(chunk).free() == ENTRIES);
            vm.alloc.free(&ksync::pin(), chunk);
        }
    }

    /// Number of chunks.
    pub(super) fn len(&self) -> usize {
        self.list.lock().len
    }
}

impl Drop for PmapChunks {
    fn drop(&mut self) {
        debug_assert!(self.len() == 0, "a pmap was dropped with pv entries");
    }
}
