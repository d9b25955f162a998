//! The contents of a file: read, write, truncate, punch.
//!
//! Guarantee: each byte that a read returns was in the file at some moment of the call. After a truncation no mapping has
//! page-table entries for what was cut off, and if the file grows, the new range reads as zeroes;
//! but private mappings show their copies again.
//!
//! Readers copy under a pin and write to no shared cache line: frames that leave a file are freed after a grace period. Writers
//! hold the page soft-busy, so that it stays in the file while they copy.

use ksync::atomic::Ordering::Relaxed;
use smallvec::SmallVec;

use super::{Held, Insert, Kind, Object, STEP, rest_of_page};
use crate::alloc::NoMemory;
use crate::limbo::FrameList;
use crate::page::{
    Flags, HardBusy, PAGE_SHIFT, PAGE_SIZE, Pfn, SoftBusy, Wanted, with_frame, with_frame_mut,
};
use crate::rmap;
use crate::{Machine, Vm};

/// Ticks within which stores through mappings count as one, a few milliseconds, so that CPUs that store at the same
/// time rarely write the shared line.
const STORES_TICKS: u64 = 8_000_000;

/// The contents of a hole.
static ZEROES: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Approximate number of addresses that one removal visits: if many mappings have a file, it removes fewer pages at
/// once. Bounds the time with preemption off, except for a single page that is mapped at more addresses, because all
/// members of a shard are visited in one hold of its lock.
const VISITS: usize = 2048;

/// Largest file: 2^32 pages less one.
pub const MAX_SIZE: u64 = (u32::MAX as u64) << PAGE_SHIFT;

/// A page held for writing.
struct ForWrite {
    pfn: Pfn,
    busy: SoftBusy<'static>,
    /// Whether it was made for this write.
    fresh: bool,
}

impl Object {
    /// Reads from `offset` on: calls `copy` with one piece after another until it takes less than it is given, or the
    /// file ends. Returns the number of bytes taken.
    ///
    /// `copy` runs with preemption off and must not sleep. If its copy to user memory faults, it returns a short count;
    /// the caller then touches that memory and continues from there. An anonymous object ends at its size.
    pub fn read<M: Machine>(
        &self,
        vm: &Vm<M>,
        offset: u64,
        copy: &mut dyn FnMut(&[u8]) -> usize,
    ) -> u64 {
        let mut at = offset;
        loop {
            let size = self.size();
            if at >= size {
                break;
            }
            let len = rest_of_page(at).min(usize::try_from(size - at).unwrap_or(usize::MAX));
            let start = at as usize & (PAGE_SIZE - 1);
            let pin = ksync::pin();
            let taken = match self.lookup(&pin, (at >> PAGE_SHIFT) as u32) {
                // The frame is not freed before the pin is dropped, even if the page is truncated away meanwhile.
                Some(pfn) => with_frame(&vm.machine, pfn, start, len, &mut *copy),
                None => {
                    // The size again, because a truncation sets it before it removes pages: a page that was cut off since
                    // is no hole.
                    let left = usize::try_from(self.size().saturating_sub(at));
                    match len.min(left.unwrap_or(usize::MAX)) {
                        0 => break,
                        hole => copy(&ZEROES[..hole]),
                    }
                }
            };
            drop(pin);
            at += taken as u64;
            if taken < len {
                break;
            }
        }
        at - offset
    }

    /// Writes `len` bytes at `offset`: calls `copy` to fill one piece after another until it fills less than it is
    /// given, or `MAX_SIZE` is reached. Returns the number of bytes written; the file grows to hold them.
    ///
    /// `copy` runs without a lock held and may sleep or fault, but the page is soft-busy: removals of it wait. The caller
    /// serialises writes beyond the end with each other and with truncation, by the file's own lock. A page that was made and
    /// into which nothing was copied stays, until [`forget_blank`](Self::forget_blank).
    ///
    /// # Errors
    /// `NoMemory` if nothing was written because memory, or the file system's quota, was exhausted; a short count if
    /// something was written before.
    pub fn write<M: Machine>(
        &self,
        vm: &Vm<M>,
        offset: u64,
        len: u64,
        copy: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<u64, NoMemory> {
        let end = offset.saturating_add(len).min(MAX_SIZE);
        let mut at = offset;
        while at < end {
            let piece = rest_of_page(at).min((end - at) as usize);
            let index = (at >> PAGE_SHIFT) as u32;
            let ForWrite { pfn, busy, fresh } = match self.page_for_write(vm, index, Flags::empty())
            {
                Ok(held) => held,
                Err(NoMemory) if at > offset => break,
                Err(NoMemory) => return Err(NoMemory),
            };
            let filled = with_frame_mut(
                &vm.machine,
                pfn,
                at as usize & (PAGE_SIZE - 1),
                piece,
                &mut *copy,
            );
            if filled == 0 && fresh {
                self.unwritten.store(1, Relaxed);
                vm.pages.get(pfn).set_flag(Flags::UNWRITTEN | Flags::BLANK);
            } else if filled > 0 && self.may_be_unwritten() {
                vm.pages
                    .get(pfn)
                    .clear_flag(Flags::UNWRITTEN | Flags::BLANK);
            }
            drop(busy);
            at += filled as u64;
            if filled < piece {
                break;
            }
        }
        if at > self.size() && at > offset {
            let _lock = self.lock.lock();
            if at > self.size() {
                self.set_limit(at);
            }
        }
        Ok(at - offset)
    }

    /// Records the time at which a page of the file is made writable in a shared mapping.
    #[inline(always)]
    pub(crate) fn note_store<M: Machine>(&self, vm: &Vm<M>) {
        let now = vm.machine.ticks() | 1;
        if now.wrapping_sub(self.stored.load(Relaxed)) > STORES_TICKS {
            self.stored.store(now, Relaxed);
        }
    }

    /// The time of the last store through a mapping, in ticks of the machine's clock, if there was one since the last
    /// call. As in Linux it is the time of the fault that made a page writable, not of each store.
    pub fn take_stored(&self) -> Option<u64> {
        // A plain load first: this is called often, and stores are rare.
        let stored = self.stored.load(Relaxed) != 0;
        stored
            .then(|| self.stored.swap(0, Relaxed))
            .filter(|&at| at != 0)
    }

    /// Removes the page at `offset` if a [`write`](Self::write) has made it and copied nothing into it, and no mapping may
    /// have shown it. Sleeping context.
    #[cold]
    pub fn forget_blank<M: Machine>(&self, vm: &Vm<M>, offset: u64) {
        self.remove_unseen(
            vm,
            (offset >> PAGE_SHIFT) as u32,
            Flags::UNWRITTEN | Flags::BLANK,
        );
    }

    /// Removes the pages of `offset..end`, from the beginning of the first one on, that [`allocate`](Self::allocate) has
    /// made and that nothing was written to or mapped since; the page that `end` divides stays. Preemptible; may sleep.
    #[cold]
    pub fn forget_unwritten<M: Machine>(&self, vm: &Vm<M>, offset: u64, end: u64) {
        let (mut at, behind) = (offset >> PAGE_SHIFT, end >> PAGE_SHIFT);
        while at < behind
            && let Some((index, _)) = self.next_resident(at as u32, (behind - 1) as u32)
        {
            self.remove_unseen(vm, index, Flags::UNWRITTEN);
            at = u64::from(index) + 1;
        }
    }

    /// Removes the page at `index` if it has the flags `made` and no mapping may have shown it.
    fn remove_unseen<M: Machine>(&self, vm: &Vm<M>, index: u32, made: Flags) {
        let Some((pfn, busy)) = self.busy_page(vm, index) else {
            return;
        };
        // A later mapping finds the page busy; an earlier one has set MAPPED.
        ksync::fence_after_rmw();
        let flags = busy.page().flags();
        if flags.contains(made) && !flags.contains(Flags::MAPPED) {
            self.take_back(vm, &ksync::pin(), index, (pfn, busy));
        }
    }

    /// Returns the page at `index`, soft-busy; may sleep until it is not hard-busy. If there is none, makes a page of zeroes,
    /// with `flags` in addition to VALID, even beyond the end of the file.
    fn page_for_write<M: Machine>(
        &self,
        vm: &Vm<M>,
        index: u32,
        flags: Flags,
    ) -> Result<ForWrite, NoMemory> {
        loop {
            let pin = ksync::pin();
            let Some(pfn) = self.lookup(&pin, index) else {
                let fresh = self.zero_page_at(vm, &pin, index)?;
                let place = (index, self.slot(&pin, index));
                if let Insert::Done(busy) =
                    self.insert_fresh(vm, &pin, place, (fresh, flags), true)?
                {
                    return Ok(ForWrite {
                        pfn: fresh,
                        busy: busy.downgrade(),
                        fresh: true,
                    });
                }
                // Another thread has just put a page there.
                continue;
            };
            let page = vm.pages.get(pfn);
            let held = page.try_soft_busy();
            if let Some(busy) = held
                && page.is(self.identity(), index)
            {
                return Ok(ForWrite {
                    pfn,
                    busy,
                    fresh: false,
                });
            }
            let wait = self.want(index, pfn, page, Wanted::Soft);
            drop(pin);
            if wait {
                page.wait();
            }
        }
    }

    /// Makes pages for `offset..offset + len`, and extends the file to that length if `grow`. New pages count as a hole
    /// until data is written to them or they are allocated again, as in Linux.
    ///
    /// # Errors
    /// No memory, or the file system is full: the offset of the first page that is missing; pages made so far stay, and the
    /// size is as before.
    pub fn allocate<M: Machine>(
        &self,
        vm: &Vm<M>,
        offset: u64,
        len: u64,
        grow: bool,
    ) -> Result<(), u64> {
        let end = offset.saturating_add(len).min(MAX_SIZE);
        for index in offset >> PAGE_SHIFT..end.div_ceil(PAGE_SIZE as u64) {
            // Set before the page is inserted, so that every CPU that finds the page finds it set.
            if !self.may_be_unwritten() {
                self.unwritten.store(1, Relaxed);
            }
            let held = self
                .page_for_write(vm, index as u32, Flags::UNWRITTEN)
                .map_err(|NoMemory| index << PAGE_SHIFT)?;
            if !held.fresh {
                let page = vm.pages.get(held.pfn);
                page.clear_flag(Flags::UNWRITTEN | Flags::BLANK);
            }
            drop(held.busy);
        }
        let _lock = self.lock.lock();
        if grow && end > self.size() {
            self.set_limit(end);
        }
        Ok(())
    }

    /// Sets the size, at most `MAX_SIZE`, under the object's lock. Sleeping context: waits for pages that are held busy.
    /// Pages beyond the new size are unmapped everywhere and freed, unless the file grows; accesses there fail with `Bus`,
    /// even if a private mapping has a copy. If the file
    /// grows, pages that were allocated beyond its end stay, as in Linux: they are zeroes.
    pub fn truncate<M: Machine>(&self, vm: &Vm<M>, size: u64) {
        debug_assert!(self.kind == Kind::File);
        let size = size.min(MAX_SIZE);
        let _lock = self.lock.lock();
        let old = self.set_limit(size);
        if size > old {
            return;
        }
        let first = size.div_ceil(PAGE_SIZE as u64);
        if let Ok(first) = u32::try_from(first) {
            self.remove_mapped(vm, first, u32::MAX);
            self.end_reservations(vm, first);
            // Page-table entries of private copies are removed too, and faults do not enter them again: see
            // `Space::fault`.
            let behind = old.div_ceil(PAGE_SIZE as u64).min(u64::from(u32::MAX)) as u32;
            rmap::remove_copies(vm, self, first, behind);
        }
        if size < old {
            self.zero_part(
                vm,
                size,
                PAGE_SIZE as u64 - 1 - (size + PAGE_SIZE as u64 - 1) % PAGE_SIZE as u64,
            );
        }
    }

    /// Makes `offset..offset + len` read as zeroes and frees the whole pages in it. The size stays.
    ///
    /// Takes no lock: a page is removed, or partly zeroed, while it is held hard-busy, for which this may sleep.
    pub fn punch<M: Machine>(&self, vm: &Vm<M>, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(MAX_SIZE);
        if offset >= end {
            return;
        }
        let (first, behind) = (offset.div_ceil(PAGE_SIZE as u64), end >> PAGE_SHIFT);
        if first < behind {
            self.remove_mapped(vm, first as u32, (behind - 1) as u32);
        }
        if offset >> PAGE_SHIFT == end >> PAGE_SHIFT {
            self.zero_part(vm, offset, end - offset);
        } else {
            self.zero_part(vm, offset, (first << PAGE_SHIFT) - offset);
            self.zero_part(vm, behind << PAGE_SHIFT, end - (behind << PAGE_SHIFT));
        }
    }

    /// Zeroes `len` bytes at `offset`, all in one page, if the page is resident.
    fn zero_part<M: Machine>(&self, vm: &Vm<M>, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        if let Some((pfn, _busy)) = self.busy_page(vm, (offset >> PAGE_SHIFT) as u32) {
            let start = offset as usize & (PAGE_SIZE - 1);
            with_frame_mut(&vm.machine, pfn, start, len as usize, |bytes| bytes.fill(0));
        }
    }

    /// Unmaps the pages of `first..=last` everywhere, removes them, and frees them after a grace period.
    fn remove_mapped<M: Machine>(&self, vm: &Vm<M>, first: u32, last: u32) {
        let (mut at, mut step) = (Some(first), 1);
        while let Some(from) = at {
            let mut gone = FrameList::EMPTY;
            at = self.take_mapped(vm, from, last, &mut step, &mut gone);
            if !gone.is_empty() {
                vm.retire_frames(gone);
            }
        }
    }

    /// Unmaps and removes up to `step` pages, with one flush; returns the index to continue at, and updates `step`.
    ///
    /// A page leaves its slot after its translations are gone: no other page is mapped at an address before that.
    fn take_mapped<M: Machine>(
        &self,
        vm: &Vm<M>,
        from: u32,
        last: u32,
        step: &mut usize,
        gone: &mut FrameList,
    ) -> Option<u32> {
        let mut pages: SmallVec<[HardBusy<'static>; STEP]> = SmallVec::new();
        let mut at = Some(from);
        while let Some(next) = at
            && pages.len() < *step
        {
            let Some((index, _)) = self.next_resident(next, last) else {
                at = None;
                break;
            };
            at = Some(index);
            // A holder of a page may wait for another page, so this does not wait while it holds some itself.
            let page = if pages.is_empty() {
                self.busy_page(vm, index)
            } else {
                match self.try_busy_page(vm, index) {
                    Err(Held(_)) => break,
                    Ok(page) => page,
                }
            };
            pages.extend(page.map(|(_, busy)| busy));
            at = index.checked_add(1).filter(|&next| next <= last);
        }
        if pages.is_empty() {
            return at;
        }
        let removal = rmap::remove_pages(vm, self, &pages);
        *step = (VISITS * pages.len() / removal.visits.max(1)).clamp(1, STEP);
        for busy in pages {
            let (index, pfn) = (busy.page().index(), vm.pages.pfn(busy.page()));
            self.remove_held(vm, &ksync::pin(), index, (pfn, busy));
            gone.push(vm.pages, pfn);
        }
        at
    }
}
