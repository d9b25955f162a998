//! All chunks of a memory domain in one list under one lock, as in FreeBSD: oldest first, but that the reclaimer of entries
//! moves each chunk that it looks at to the end.
//!
//! A chunk that is in a list leads to a pmap that has an owner: the operation that forgets the pmap has a reference, and takes the
//! chunks out before it lets go.

use ksync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use ksync::{Padded, Spin, SpinGuard, lock_class};
use rust_alloc::boxed::Box;
use rust_alloc::sync::Arc;

use super::chunk::Frames;
use crate::page::{PageArray, Pfn};
use crate::pmap::Pmap;

lock_class!(
    /// The chunks of pv entries of one memory domain.
    pub PvLruLock, "pv chunk LRU", rank = 107
);

/// Most chunks that are taken out in one hold of the lock.
const BATCH: usize = 64;

/// A list for each domain.
pub(super) struct Lru {
    domains: Box<[Padded<Spin<Ends, PvLruLock>>]>,
    /// How many chunks have ever been on the way between the allocator and a list, and how many of them have arrived. Atomic: `begun`
    /// grows before the first step, and `ended` after the last. A step is made under a lock. A look that finds a chunk gone has held that
    /// lock afterwards, and so sees that it had begun; a look that knows of an end sees what was done before it.
    begun: AtomicUsize,
    ended: AtomicUsize,
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
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        }
    }

    /// A chunk is about to be made, or to leave its list. A reclaimer that does not find it knows of it until
    /// [`end`](Lru::end).
    pub(super) fn begin(&self) {
        self.begun.fetch_add(1, Relaxed);
    }

    /// It was made, and is in its list, or its frame is free.
    pub(super) fn end(&self) {
        self.ended.fetch_add(1, Release);
    }

    /// There was no frame for it.
    pub(super) fn cancel(&self) {
        self.begun.fetch_sub(1, Relaxed);
    }

    /// How many have arrived.
    pub(super) fn ended(&self) -> usize {
        self.ended.load(Acquire)
    }

    /// Whether none has been on its way since so many [had arrived](Lru::ended).
    pub(super) fn is_quiet_since(&self, ended: usize) -> bool {
        self.begun.load(Relaxed) == ended
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

    /// Number of lists.
    pub(super) fn domains(&self) -> usize {
        self.domains.len()
    }

    /// Number of chunks of a domain.
    pub(super) fn len(&self, domain: usize) -> usize {
        self.domains[domain].lock().len
    }

    /// The first chunk of a domain, which becomes the last, and its pmap.
    pub(super) fn rotate(&self, frames: &Frames, domain: usize) -> Option<(Pfn, Arc<Pmap>)> {
        let mut ends = self.domains[domain].lock();
        let chunk = ends.first?;
        ends.remove(frames, chunk);
        ends.push_last(frames, chunk);
        // A reference of its own, while the chunk is in the list.
        Some((chunk, Arc::clone(&frames.chunk(chunk).pmap())))
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
