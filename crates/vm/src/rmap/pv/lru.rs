//! All chunks of a memory domain in one list under one lock, as in FreeBSD: oldest first, because only a chunk that is made
//! enters it. A reclaimer of entries, which is not there yet, would begin with the first.

use ksync::{Padded, Spin, SpinGuard, lock_class};
use rust_alloc::boxed::Box;

use super::chunk::Frames;
use crate::page::{PageArray, Pfn};

lock_class!(
    /// The chunks of pv entries of one memory domain.
    pub PvLruLock, "pv chunk LRU", rank = 107
);

/// Most chunks that are taken out in one hold of the lock.
const BATCH: usize = 64;

/// A list for each domain.
pub(super) struct Lru {
    domains: Box<[Padded<Spin<Ends, PvLruLock>>]>,
}

/// The chunks are linked through themselves.
#[derive(Default)]
struct Ends {
    first: Option<Pfn>,
    last: Option<Pfn>,
    len: usize,
}

impl Ends {
    fn push_last(&mut self, frames: &Frames, chunk: Pfn) {
        frames.chunk(chunk).set_neighbours(self.last, None);
        match self.last {
            Some(last) => {
                let before = frames.chunk(last).neighbours().0;
                frames.chunk(last).set_neighbours(before, Some(chunk));
            }
            None => self.first = Some(chunk),
        }
        self.last = Some(chunk);
        self.len += 1;
    }

    fn remove(&mut self, frames: &Frames, chunk: Pfn) {
        let (before, behind) = frames.chunk(chunk).neighbours();
        match before {
            Some(before) => {
                let other = frames.chunk(before).neighbours().0;
                frames.chunk(before).set_neighbours(other, behind);
            }
            None => self.first = behind,
        }
        match behind {
            Some(behind) => {
                let other = frames.chunk(behind).neighbours().1;
                frames.chunk(behind).set_neighbours(before, other);
            }
            None => self.last = before,
        }
        self.len -= 1;
    }
}

impl Lru {
    pub(super) fn new(domains: usize) -> Lru {
        Lru {
            domains: (0..domains).map(|_| Padded::default()).collect(),
        }
    }

    fn of(&self, pages: &PageArray, chunk: Pfn) -> &Spin<Ends, PvLruLock> {
        &self.domains[pages.get(chunk).domain()]
    }

    /// A chunk was made.
    pub(super) fn push(&self, frames: &Frames, pages: &PageArray, chunk: Pfn) {
        self.of(pages, chunk).lock().push_last(frames, chunk);
    }

    /// A chunk is about to be freed.
    pub(super) fn remove(&self, frames: &Frames, pages: &PageArray, chunk: Pfn) {
        self.of(pages, chunk).lock().remove(frames, chunk);
    }

    /// These chunks are about to be freed: as `remove`, but the lock is kept from one to the next.
    pub(super) fn remove_all(
        &self,
        frames: &Frames,
        pages: &PageArray,
        chunks: impl Iterator<Item = Pfn>,
    ) {
        let mut held: Option<(usize, SpinGuard<'_, Ends, PvLruLock>)> = None;
        for (n, chunk) in chunks.enumerate() {
            let domain = pages.get(chunk).domain();
            let mut ends = match held.take() {
                Some((held, ends)) if held == domain && n % BATCH != 0 => ends,
                other => {
                    drop(other);
                    self.domains[domain].lock()
                }
            };
            ends.remove(frames, chunk);
            held = Some((domain, ends));
        }
    }

    /// Number of chunks, counted along the links, which are checked.
    pub(super) fn count(&self, frames: &Frames) -> usize {
        let count = |ends: &Padded<Spin<Ends, PvLruLock>>| {
            let ends = ends.lock();
            let (mut before, mut next, mut count) = (None, ends.first, 0);
            while let Some(chunk) = next {
                let neighbours = frames.chunk(chunk).neighbours();
                assert!(neighbours.0 == before, "{chunk:?} is not behind {before:?}");
                (before, next, count) = (next, neighbours.1, count + 1);
            }
            assert!(before == ends.last && count == ends.len);
            count
        };
        self.domains.iter().map(count).sum()
    }
}
