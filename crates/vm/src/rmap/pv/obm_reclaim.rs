//! Reclaiming entries in `pv-obm`.
//!
//! As in FreeBSD's OBM series there is no list of all chunks. The pmaps with chunks are in lists, one for each CPU;
//! the reclaimer goes on with the next list where it ended, and moves the pmap at the head of a list to the end. Of that
//! pmap it takes a chunk away, the one that was filled least recently, and empties it.
//!
//! While the reclaimer has a chunk it waits for no lock but spin locks: a page whose list is held is left out, for now. So an
//! operation that forgets the pmap can wait for the reclaimer.

use rust_alloc::sync::Arc;

use super::chunk::Reserved;
use super::lists::Ticket;
use super::obm::PvObm;
use super::reclaim::{Fruitless, PATIENCE};
use crate::alloc::NoMemory;
use crate::pmap::Pmap;
use crate::{Machine, Vm};

impl PvObm {
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
        let mut next = self.turn.lock();
        // Free entries may be behind chunks that have none.
        ticket.pmap.listed().tidy_all(vm, &self.frames);
        for _ in 0..PATIENCE {
            let moment = self.frames.moment();
            let missing = entries.saturating_sub(ticket.len());
            if ticket.fill(vm, missing).is_ok() {
                return Ok(());
            }
            let missing = entries.saturating_sub(ticket.len());
            match self.reclaim(vm, &mut next, ticket.pmap, missing) {
                Ok(reserved) => ticket.add(reserved),
                Err(why) => self.pause(why, moment)?,
            }
        }
        Err(NoMemory)
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
            if self.empty(vm, victim, chunk, |_| false) == Fruitless::ForNow {
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
}
