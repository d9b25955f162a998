//! From object and block to the run that is reserved for it: a hashed table.
//!
//! Lookups take no lock. Records are never freed, so a lookup that is led astray by a record which has changed its chain
//! finds nothing, and at worst its caller asks under the chain's lock.

use rust_alloc::boxed::Box;

use ksync::atomic::{AtomicU32, Ordering::Relaxed};
use ksync::{Spin, SpinGuard};

use super::place::Place;
use super::run::{NO_RUN, Run};

ksync::lock_class!(pub ChainLock, "reserved runs of a hash", rank = 125);

/// Records that a lookup reads. A chain has one on average; the bound is for a lookup that is led astray again and again.
const STEPS: usize = 16;

/// One chain.
struct Bucket {
    lock: Spin<(), ChainLock>,
    /// Changed under the lock; a hint without it.
    first: AtomicU32,
}

/// See the module.
pub(super) struct Chains {
    /// A power of two, at least as many as there are runs.
    buckets: Box<[Bucket]>,
}

/// A chain, locked.
pub(super) struct Chain<'a> {
    first: &'a AtomicU32,
    _lock: SpinGuard<'a, (), ChainLock>,
}

impl Chains {
    pub(super) fn new(runs: usize) -> Chains {
        let bucket = |_| Bucket {
            lock: Spin::new(()),
            first: AtomicU32::new(NO_RUN),
        };
        Chains {
            buckets: (0..runs.next_power_of_two()).map(bucket).collect(),
        }
    }

    fn bucket(&self, place: Place) -> &Bucket {
        // The golden ratio spreads adjacent numbers; its high half depends on all bits of them.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let key = (place.object as u64).wrapping_mul(SPREAD) ^ u64::from(place.block());
        let hash = key.wrapping_mul(SPREAD) >> 32;
        &self.buckets[hash as usize & (self.buckets.len() - 1)]
    }

    /// The run that seems to be reserved for a place's block.
    pub(super) fn look(&self, runs: &[Run], place: Place) -> Option<u32> {
        links(runs, &self.bucket(place).first)
            .take(STEPS)
            .find(|&run| runs[run as usize].is_for(place))
    }

    /// Locks the chain of a place's block.
    pub(super) fn lock(&self, place: Place) -> Chain<'_> {
        let bucket = self.bucket(place);
        let lock = bucket.lock.lock();
        Chain {
            first: &bucket.first,
            _lock: lock,
        }
    }

    /// Number of runs in all chains; none is changed meanwhile.
    pub(super) fn len(&self, runs: &[Run]) -> usize {
        let chain = |bucket: &Bucket| links(runs, &bucket.first).take(runs.len() + 1).count();
        self.buckets.iter().map(chain).sum()
    }
}

impl Chain<'_> {
    /// The run that is reserved for a place's block. It may end at any moment.
    pub(super) fn find(&self, runs: &[Run], place: Place) -> Option<u32> {
        links(runs, self.first).find(|&run| runs[run as usize].is_for(place))
    }

    pub(super) fn add(&self, runs: &[Run], run: u32) {
        let next = self.first.load(Relaxed);
        runs[run as usize].chain.store(next, Relaxed);
        self.first.store(run, Relaxed);
    }

    pub(super) fn remove(&self, runs: &[Run], run: u32) {
        let next = runs[run as usize].chain.load(Relaxed);
        let mut link = self.first;
        loop {
            match link.load(Relaxed) {
                at if at == run => return link.store(next, Relaxed),
                NO_RUN => return debug_assert!(false, "run {run} is in another chain"),
                at => link = &runs[at as usize].chain,
            }
        }
    }
}

/// The runs from a link on.
fn links<'a>(runs: &'a [Run], first: &'a AtomicU32) -> impl Iterator<Item = u32> + 'a {
    let follow = |link: &AtomicU32| Some(link.load(Relaxed)).filter(|&run| run != NO_RUN);
    core::iter::successors(follow(first), move |&run| follow(&runs[run as usize].chain))
}
