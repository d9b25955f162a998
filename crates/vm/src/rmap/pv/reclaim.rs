//! Reclaiming entries: when no memory is to be had for a chunk, or there are as many as may be, the entries of one are
//! emptied by unmapping their pages. The next accesses fault them in again.
//!
//! Guarantee: an operation that makes room for entries gets one as long as some chunk can be emptied. Entries of wired pages
//! and of leaves of 2 MiB stay.
//!
//! Mechanism: as in FreeBSD's OBM series there is no list of all chunks. The pmaps with chunks are in lists, one for each CPU;
//! the reclaimer goes on with the next list where it ended, and moves the pmap at the head of a list to the end. Of that
//! pmap it takes a chunk away, the one that was filled least recently, and takes its entries out of the page tables as a
//! removal does, except that it gives up where a removal waits. A chunk of which no entry is used then goes to the pmap
//! that needs one, together with the reservation, without passing through the allocator: nobody else gets the memory, and two pmaps
//! that reclaim from each other get an entry each. Of the caller's own chunk one entry is enough.
//!
//! One reclaimer is at work at a time. The others find room, or reclaim after it; if they did not wait, two of them could
//! each hold the chunk that the other one looks for, and both give up. While the reclaimer has a chunk it waits for no lock
//! but spin locks: so an operation that forgets the pmap can wait for it.
//!
//! Some things are in the way for a moment only: an entry that a ticket has, a page whose list is held, a pmap that ends. The
//! reclaimer leaves them out, and begins again a little later if that may be why it found nothing. An operation that has a
//! ticket, or holds a list, or ends a pmap, never waits for the reclaimer longer than for one chunk.
//!
//! As each removal, it takes the entry out of the page's list before the flush, of which there is one for a chunk.

use ksync::{Mutex, lock_class};
use rust_alloc::sync::Arc;

use super::super::{Scan, note};
use super::chunk::{ENTRIES, Reserved};
use super::lists::Ticket;
use super::obm::PvObm;
use crate::alloc::NoMemory;
use crate::page::Pfn;
use crate::pmap::Pmap;
use crate::tlb::Gather;
use crate::{Machine, Vm};

lock_class!(
    /// Nothing but the turn: one operation at a time reclaims pv entries. It waits for spin locks alone.
    pub PvReclaimLock, "pv reclaim", rank = 76
);

/// How often a reclaimer that found nothing, because of what is in the way for a moment, begins again: for seconds.
const PATIENCE: usize = 4000;

/// Why nothing was reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fruitless {
    /// Something is in the way.
    ForNow,
    /// All that is left must stay.
    AtAll,
}

/// The list of pmaps with which the next reclaimer begins.
pub(super) type Reclaimer = Mutex<usize, PvReclaimLock>;

impl Ticket<'_> {
    /// Number of entries.
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.get().len()).sum()
    }

    /// Adds what was reserved, in place of a part that has none.
    fn add(&self, reserved: Reserved) {
        let free = self.parts.iter().find(|part| part.get().len() == 0);
        debug_assert!(free.is_some(), "nothing was missing");
        if let Some(part) = free {
            part.set(reserved);
        }
    }
}

impl PvObm {
    /// Limits the number of chunks, 0 for any number. To be called before the first entry.
    pub fn limit_chunks(&self, chunks: usize) {
        self.frames.set_limit(chunks);
    }

    /// Fills a ticket for which there was no memory. Sleeping context, not pinned.
    ///
    /// # Errors
    /// Nothing can be reclaimed.
    #[cold]
    #[inline(never)]
    pub(super) fn reclaim_for<M: Machine>(
        &self,
        vm: &Vm<M>,
        ticket: &Ticket<'_>,
        entries: usize,
    ) -> Result<(), NoMemory> {
        ticket.clear();
        let mut next = self.reclaimer.lock();
        // Free entries may be behind chunks that have none.
        ticket.pmap.listed().tidy_all(vm, &self.frames);
        let mut patience = PATIENCE;
        loop {
            let before = self.frames.changes();
            let missing = entries.saturating_sub(ticket.len());
            if ticket.fill(vm, missing).is_ok() {
                return Ok(());
            }
            let missing = entries.saturating_sub(ticket.len());
            match self.reclaim(vm, &mut next, ticket.pmap, missing) {
                Ok(reserved) => ticket.add(reserved),
                // A chunk that has come or gone may have been missed.
                Err(why)
                    if patience > 0
                        && (why == Fruitless::ForNow || self.frames.changes() != before) =>
                {
                    patience -= 1;
                    ksync::doze();
                }
                Err(_) => return Err(NoMemory),
            }
        }
    }

    /// Reserves up to `entries` entries for a pmap, at least one unless it was forgotten, in a chunk that is emptied for that.
    fn reclaim<M: Machine>(
        &self,
        vm: &Vm<M>,
        next: &mut usize,
        pmap: &Arc<Pmap>,
        entries: usize,
    ) -> Result<Reserved, Fruitless> {
        let (pmaps, mut why) = (&self.frames.pmaps, Fruitless::AtAll);
        for _ in 0..pmaps.lists() {
            let list = *next;
            *next = (list + 1) % pmaps.lists();
            for _ in 0..pmaps.len(list) {
                let Some(victim) = pmaps.rotate(list) else {
                    break;
                };
                match self.reclaim_from(vm, &victim, pmap, entries) {
                    Ok(found) => return Ok(found),
                    Err(Fruitless::ForNow) => why = Fruitless::ForNow,
                    Err(Fruitless::AtAll) => {}
                }
            }
        }
        Err(why)
    }

    /// As `reclaim`, from one pmap.
    fn reclaim_from<M: Machine>(
        &self,
        vm: &Vm<M>,
        victim: &Arc<Pmap>,
        pmap: &Arc<Pmap>,
        entries: usize,
    ) -> Result<Reserved, Fruitless> {
        let (theirs, frames) = (victim.listed(), &self.frames);
        let (all, mut tried) = (theirs.len(), 0);
        let (mut found, mut why) = (None, Fruitless::AtAll);
        if theirs.is_forgotten() {
            return Err(Fruitless::ForNow);
        }
        while found.is_none() && tried < all {
            tried += 1;
            // What was filled last is what is needed first.
            let Some(chunk) = theirs.take_away(frames, tried == all) else {
                why = Fruitless::ForNow;
                break;
            };
            if self.empty(vm, victim, chunk) == Fruitless::ForNow {
                why = Fruitless::ForNow;
            }
            found = if Arc::ptr_eq(victim, pmap) {
                theirs.bring_back_for(frames, chunk, entries)
            } else {
                let ours = theirs.bring_back(frames, chunk);
                ours.then(|| pmap.listed().adopt(vm, frames, pmap, chunk, entries))
            };
        }
        if tried > 1 {
            // Chunks that were not quite emptied are behind full ones.
            theirs.tidy_all(vm, frames);
        }
        if found.is_some() {
            vm.stats.get(&ksync::pin()).pv_chunks_reclaimed.add(1);
        }
        found.ok_or(why)
    }

    /// Unmaps the pages that the entries of a chunk list, which was taken away, as far as nothing is in the way. Returns whether
    /// what is left will stay.
    fn empty<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap, chunk: Pfn) -> Fruitless {
        let (frames, mut gather) = (&self.frames, Gather::new());
        let (before, mut stay) = (frames.chunk(chunk).free(), 0);
        for (_, entry) in frames.chunk(chunk).used(chunk) {
            // Others are reserved. One that becomes listed meanwhile may be read in part: then a page is unmapped at an address
            // that is not this entry's, which costs a fault.
            if entry.page().is_some() {
                let on_page = |pfn, pte| note(vm.pages.get(pfn), Scan::Found(pte));
                stay += usize::from(pmap.try_drop_page(vm, entry.va(), &mut gather, on_page));
            }
        }
        gather.finish(vm);
        let free = frames.chunk(chunk).free();
        let pin = ksync::pin();
        let counts = vm.stats.get(&pin);
        counts.pv_entries_reclaimed.add((free - before) as u64);
        if free + stay < ENTRIES {
            Fruitless::ForNow
        } else {
            Fruitless::AtAll
        }
    }
}
