//! The runs of a domain that have an owner and a frame to give, in the order of their reservation.

use ksync::Spin;
use ksync::atomic::{AtomicU32, Ordering::Relaxed};

use super::run::{NO_RUN, Run};

ksync::lock_class!(pub QueueLock, "reservations of a domain", rank = 127);

/// Aligned so that two domains share no line, prefetched pairs included.
#[repr(align(128))]
pub(super) struct Queue {
    ends: Spin<Ends, QueueLock>,
    /// Copy of the oldest, written under the lock, read by any CPU.
    oldest: AtomicU32,
}

struct Ends {
    oldest: u32,
    newest: u32,
    /// Reservations that have left the queue and whose frames are not with the buddy system yet.
    ending: u32,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            ends: Spin::new(Ends {
                oldest: NO_RUN,
                newest: NO_RUN,
                ending: 0,
            }),
            oldest: AtomicU32::new(NO_RUN),
        }
    }

    /// Runs `f` under the lock and publishes the oldest.
    fn with<R>(&self, f: impl FnOnce(&mut Ends) -> R) -> R {
        let mut ends = self.ends.lock();
        let result = f(&mut ends);
        self.oldest.store(ends.oldest, Relaxed);
        result
    }

    /// Adds a run as the newest.
    pub(super) fn add(&self, runs: &[Run], run: u32) {
        self.with(|ends| ends.add(runs, run));
    }

    /// Removes a run that has no frame to give any more.
    pub(super) fn remove(&self, runs: &[Run], run: u32) {
        self.with(|ends| ends.remove(runs, run));
    }

    /// Removes a run whose reservation ends; [`complete_end`](Queue::complete_end) follows.
    pub(super) fn begin_end(&self, runs: &[Run], run: u32) {
        self.with(|ends| {
            ends.remove(runs, run);
            ends.ending += 1;
        });
    }

    /// The frames of a run whose reservation has ended are with the buddy system.
    pub(super) fn complete_end(&self) {
        self.with(|ends| ends.ending -= 1);
    }

    /// The oldest. `Err` if there is none; it says whether the frames of one that has left are on their way.
    pub(super) fn oldest(&self) -> Result<u32, bool> {
        self.with(|ends| match ends.oldest {
            NO_RUN => Err(ends.ending != 0),
            run => Ok(run),
        })
    }

    /// Whether there is a run, or was a moment ago.
    pub(super) fn may_give(&self) -> bool {
        self.oldest.load(Relaxed) != NO_RUN
    }

    /// Calls `visit` with each run, the oldest first, and the run before it. Returns the newest.
    pub(super) fn for_each(&self, runs: &[Run], mut visit: impl FnMut(u32, u32)) -> u32 {
        let ends = self.ends.lock();
        let (mut at, mut before) = (ends.oldest, NO_RUN);
        for _ in 0..=runs.len() {
            if at == NO_RUN {
                break;
            }
            visit(at, before);
            (before, at) = (at, runs[at as usize].newer.load(Relaxed));
        }
        ends.newest
    }
}

impl Ends {
    fn add(&mut self, runs: &[Run], run: u32) {
        let record = &runs[run as usize];
        record.older.store(self.newest, Relaxed);
        record.newer.store(NO_RUN, Relaxed);
        match runs.get(self.newest as usize) {
            Some(newest) => newest.newer.store(run, Relaxed),
            None => self.oldest = run,
        }
        self.newest = run;
    }

    fn remove(&mut self, runs: &[Run], run: u32) {
        let record = &runs[run as usize];
        let (older, newer) = (record.older.load(Relaxed), record.newer.load(Relaxed));
        match runs.get(older as usize) {
            Some(older) => older.newer.store(newer, Relaxed),
            None => self.oldest = newer,
        }
        match runs.get(newer as usize) {
            Some(newer) => newer.older.store(older, Relaxed),
            None => self.newest = older,
        }
    }
}
