//! Reclaiming entries in `pv-stock`: from the chunk at the head of its domain's list, as in FreeBSD.
//!
//! The domain's list leads to a chunk, the chunk to its pmap, and the pmap's lock is waited for. Under it nothing but the removal of
//! a file's private copies changes the pmap's entries, so what is left of a chunk that was emptied is wired, or in leaves of 2 MiB.
//! Between the two locks the chunk may have gone: it is taken away only if it is in its pmap's own list.
//!
//! Order of locks: the turn, then the lock of one pmap, then a bucket. The operation that needs room lets its own pmap go before it
//! waits for the turn, and has it again when it has room. So two operations that reclaim from each other's pmaps do not wait for
//! each other. FreeBSD's keeps it, waits for pmaps of higher addresses, and passes over those of lower ones that are locked.

use rust_alloc::sync::Arc;

use super::chunk::Reserved;
use super::lists::Ticket;
use super::reclaim::{Fruitless, PATIENCE};
use super::stock::{Operation, PvStock};
use crate::alloc::NoMemory;
use crate::page::Pfn;
use crate::pmap::Pmap;
use crate::rmap::ReverseMap;
use crate::{Machine, Vm};

impl PvStock {
    /// Fills a ticket for which there was no memory. Sleeping context, not pinned. The pmap of the ticket is not locked meanwhile, but
    /// again on return.
    ///
    /// # Errors
    /// Nothing can be reclaimed.
    #[cold]
    #[inline(never)]
    pub(super) fn reclaim_for<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        operation: Operation<'p>,
        ticket: &Ticket<'p>,
        entries: usize,
    ) -> Result<Operation<'p>, NoMemory> {
        let pmap = ticket.pmap;
        // The operation that forgets the pmap waits for what is reserved, with the lock that this waits for.
        ticket.clear();
        drop(operation);
        let mut next = self.turn.lock();
        let mut operation = pmap.listed().lock();
        // Free entries may be behind chunks that have none.
        pmap.listed().tidy_all(vm, &self.frames);
        for _ in 0..PATIENCE {
            let moment = self.frames.moment();
            let missing = entries.saturating_sub(ticket.len());
            if ticket.fill(vm, missing).is_ok() {
                return Ok(operation);
            }
            ticket.clear();
            drop(operation);
            operation = match self.reclaim(vm, &mut next, pmap, entries) {
                Ok((operation, reserved)) => {
                    ticket.add(reserved);
                    operation
                }
                Err(why) => {
                    self.pause(why, moment)?;
                    pmap.listed().lock()
                }
            };
        }
        Err(NoMemory)
    }

    /// Reserves up to `entries` entries for a pmap, at least one unless it was forgotten, in a chunk that is emptied for that.
    /// Returns with the pmap locked.
    fn reclaim<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        next: &mut usize,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<(Operation<'p>, Reserved), Fruitless> {
        let (lru, mut why) = (&self.frames.lru, Fruitless::AtAll);
        for _ in 0..lru.domains() {
            let domain = *next;
            *next = (domain + 1) % lru.domains();
            for _ in 0..lru.len(domain) {
                let Some((chunk, victim)) = lru.rotate(&self.frames, domain) else {
                    break;
                };
                let found = if Arc::ptr_eq(&victim, pmap) {
                    self.reclaim_own(vm, pmap, chunk, entries)
                } else {
                    self.reclaim_from(vm, &victim, chunk).map(|()| {
                        let operation = pmap.listed().lock();
                        let chunks = pmap.listed();
                        let reserved = chunks.adopt(vm, &self.frames, pmap, chunk, entries);
                        (operation, reserved)
                    })
                };
                match found {
                    Ok(found) => {
                        vm.stats.get(&ksync::pin()).pv_chunks_reclaimed.add(1);
                        return Ok(found);
                    }
                    Err(Fruitless::ForNow) => why = Fruitless::ForNow,
                    Err(Fruitless::AtAll) => {}
                }
            }
        }
        Err(why)
    }

    /// Empties a chunk of another pmap, and makes it the caller's.
    fn reclaim_from<M: Machine>(
        &self,
        vm: &Vm<M>,
        victim: &Arc<Pmap>,
        chunk: Pfn,
    ) -> Result<(), Fruitless> {
        let (theirs, frames) = (victim.listed(), &self.frames);
        let _operation = theirs.lock();
        let why = self.empty_own(vm, victim, chunk)?;
        if !theirs.bring_back(frames, chunk) {
            return Err(why);
        }
        frames.lru.remove(frames, &vm.pages, chunk);
        Ok(())
    }

    /// Empties a chunk of the caller's pmap, and reserves entries of it.
    fn reclaim_own<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pmap: &'p Arc<Pmap>,
        chunk: Pfn,
        entries: usize,
    ) -> Result<(Operation<'p>, Reserved), Fruitless> {
        let (ours, operation) = (pmap.listed(), pmap.listed().lock());
        let why = self.empty_own(vm, pmap, chunk)?;
        let found = ours.bring_back_for(&self.frames, chunk, entries);
        found.map(|reserved| (operation, reserved)).ok_or(why)
    }

    /// Takes a chunk away from a pmap, which is locked, and empties it. Returns whether what is left of it will stay.
    ///
    /// # Errors
    /// It is not the pmap's any more, perhaps because that has ended. Then there may be memory now.
    fn empty_own<M: Machine>(
        &self,
        vm: &Vm<M>,
        pmap: &Arc<Pmap>,
        chunk: Pfn,
    ) -> Result<Fruitless, Fruitless> {
        if !pmap.listed().take_this_away(&self.frames, chunk) {
            return Err(Fruitless::ForNow);
        }
        Ok(self.empty(vm, pmap, chunk, |blocked| {
            self.wait(blocked);
            true
        }))
    }
}
