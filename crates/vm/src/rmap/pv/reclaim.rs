//! Reclaiming entries: when no memory is to be had for a chunk, or there are as many as may be, the entries of one are
//! emptied by unmapping their pages. The next accesses fault them in again.
//!
//! Guarantee: an operation that makes room for entries gets one as long as some chunk can be emptied. Entries of wired pages
//! and of leaves of 2 MiB stay.
//!
//! Mechanism: which chunk, and what is locked meanwhile, is each design's own (`obm_reclaim`, `stock_reclaim`). The chunk is
//! taken away from its pmap, and its entries are taken out of the page tables as a removal does. If none of them is
//! used then, the chunk goes to the pmap that needs one, together with the reservation, without passing through the allocator: nobody
//! else gets the memory, and two pmaps that reclaim from each other get an entry each. Of the caller's own chunk one entry is enough.
//!
//! One reclaimer is at work at a time. The others find room, or reclaim after it; if they did not wait, two of them could
//! each hold the chunk that the other one looks for, and both give up.
//!
//! Some things are in the way for a moment only: an entry that a ticket has, a pmap that ends, a chunk that has gone since it was
//! found. The reclaimer leaves them out, and begins again a little later if that may be why it found nothing. An operation that has a
//! ticket, or holds a list, or ends a pmap, never waits for the reclaimer longer than for one chunk.
//!
//! As each removal, it takes the entry out of the page's list before the flush, of which there is one for a chunk.

use ksync::{Mutex, lock_class};

use super::super::{Blocked, Scan, note};
use super::chunk::{ENTRIES, Reserved};
use super::lists::{Lists, Ticket};
use crate::alloc::NoMemory;
use crate::page::Pfn;
use crate::pmap::Pmap;
use crate::tlb::Gather;
use crate::{Machine, Vm};

lock_class!(
    /// Nothing but the turn: one operation at a time reclaims pv entries. Nothing that waits for it holds a pmap's lock.
    pub PvReclaimLock, "pv reclaim", rank = 71
);

/// How often a reclaimer begins again: for seconds, where it finds nothing because of what is in the way for a moment.
pub(super) const PATIENCE: usize = 4000;

/// Why nothing was reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fruitless {
    /// Something is in the way.
    ForNow,
    /// All that is left must stay.
    AtAll,
}

/// The turn, with the number of the list with which the next reclaimer begins.
pub(super) type Turn = Mutex<usize, PvReclaimLock>;

impl Ticket<'_> {
    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(|part| part.get().len()).sum()
    }

    /// Adds what was reserved, in place of a part that has none.
    pub(super) fn add(&self, reserved: Reserved) {
        let free = self.parts.iter().find(|part| part.get().len() == 0);
        debug_assert!(free.is_some(), "nothing was missing");
        if let Some(part) = free {
            part.set(reserved);
        }
    }
}

impl Lists {
    /// Limits the number of chunks, 0 for any number. To be called before the first entry.
    pub fn limit_chunks(&self, chunks: usize) {
        self.frames.set_limit(chunks);
    }

    /// After a look for room, and a pass over all chunks, that began at a [moment](super::chunk::Frames::moment), and found
    /// nothing: a pause, if the next may find something.
    ///
    /// # Errors
    /// It will not.
    pub(super) fn pause(&self, why: Fruitless, moment: usize) -> Result<(), NoMemory> {
        if why == Fruitless::AtAll && self.frames.is_quiet_since(moment) {
            return Err(NoMemory);
        }
        ksync::doze();
        Ok(())
    }

    /// Unmaps the pages that the entries of a chunk list, which was taken away. Where the list of a page is held, `again` says
    /// whether to try again, perhaps after a wait; if not, the page stays. Returns whether what is left of the chunk will stay.
    pub(super) fn empty<M: Machine>(
        &self,
        vm: &Vm<M>,
        pmap: &Pmap,
        chunk: Pfn,
        again: impl Fn(Blocked) -> bool,
    ) -> Fruitless {
        let (frames, mut gather) = (&self.frames, Gather::new());
        let (before, mut stay) = (frames.chunk(chunk).free(), 0);
        for (_, entry) in frames.chunk(chunk).used(chunk) {
            // Others are reserved. One that becomes listed meanwhile may be read in part: then a page is unmapped at an address
            // that is not this entry's, which costs a fault.
            while entry.page().is_some() {
                let on_page = |pfn, pte| note(vm.pages.get(pfn), Scan::Found(pte));
                match pmap.try_drop_page(vm, entry.va_at_a_glance(), &mut gather, on_page) {
                    Err(blocked) if again(blocked) => continue,
                    dropped => stay += usize::from(dropped == Ok(true)),
                }
                break;
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
