//! Consistency check of the reservations.

use ksync::atomic::Ordering::Relaxed;

use super::Reservations;
use super::place::{Place, RUN_FRAMES};
use super::run::NO_RUN;
use crate::page::Pfn;

impl Reservations {
    /// Calls `free` with each frame that belongs to a reservation and is not taken. Each run must be in the chain and in
    /// the queue in which it must be, and in no other; no CPU may use the allocator meanwhile. `queued` has a place for
    /// each run, and none is true; it is the caller's, because the check allocates nothing.
    ///
    /// # Errors
    /// The first frame of the first run whose records contradict each other; [`Pfn::NONE`] if those of no run in particular
    /// do.
    pub(in crate::alloc) fn check(
        &self,
        queued: &mut [bool],
        free: &mut dyn FnMut(Pfn),
    ) -> Result<(), Pfn> {
        self.find_queued(queued)?;
        let mut owned = 0;
        for (n, run) in (0..).zip(&*self.runs) {
            let (owner, taken) = (run.owner(), *run.taken.lock());
            let gives = owner.is_some() && taken != RUN_FRAMES;
            if queued[n as usize] != gives {
                return Err(Self::first_frame(n));
            }
            let Some(owner) = owner else { continue };
            owned += 1;
            if taken != self.count_taken(n) || taken == 0 || !self.is_chained(n, owner) {
                return Err(Self::first_frame(n));
            }
            let frames = (0..RUN_FRAMES).map(|at| Self::first_frame(n).add(at));
            frames
                .filter(|&pfn| !self.pages.get(pfn).is_taken())
                .for_each(&mut *free);
        }
        if self.chains.len(&self.runs) == owned {
            Ok(())
        } else {
            Err(Pfn::NONE)
        }
    }

    fn count_taken(&self, run: u32) -> u32 {
        let first = Self::first_frame(run);
        let taken = |n: &u32| self.pages.get(first.add(*n)).is_taken();
        (0..RUN_FRAMES).filter(taken).count() as u32
    }

    fn is_chained(&self, run: u32, owner: Place) -> bool {
        self.chains.look(&self.runs, owner) == Some(run)
            || self.chains.lock(owner).find(&self.runs, owner) == Some(run)
    }

    /// Notes each run that is in its domain's queue.
    fn find_queued(&self, queued: &mut [bool]) -> Result<(), Pfn> {
        for queue in &self.queues {
            let (mut wrong, mut last) = (None, NO_RUN);
            let newest = queue.for_each(&self.runs, |run, before| {
                let is_good = core::ptr::eq(self.queue_of(run), queue)
                    && !queued[run as usize]
                    && self.run(run).older.load(Relaxed) == before;
                if !is_good {
                    wrong = wrong.or(Some(run));
                }
                queued[run as usize] = true;
                last = run;
            });
            let wrong = wrong.or((newest != last).then_some(last.min(newest)));
            if let Some(run) = wrong {
                return Err(Self::first_frame(run));
            }
        }
        Ok(())
    }
}
