//! The reverse map `pv-stock`: a list of entries for each page, and locks for lists that are hashed by the frame's 2 MiB, as
//! in FreeBSD before its OBM patch. It is here to be measured, with what it costs.
//!
//! Guarantee: as for `pv-obm`.
//!
//! A *bucket* is the lock of all lists of some aligned runs of 512 frames. Each change of a list, and each scan, is made while it is held
//! exclusively. An operation on a pmap holds the pmap's lock from its begin to its end.
//!
//! Order of locks: a pmap, then a bucket, then tables. Under a table's lock a bucket is only tried, and a scan, which has the
//! bucket first, only tries the pmap of each entry. If it is locked the scan lets the bucket go, locks both in order, and
//! begins again if the generation of the page's list says that the list has changed. So a thread that waits for a pmap holds no
//! bucket and no table, and one that waits for a bucket no table and no other bucket: there is no cycle of waits.

use core::ops::Deref;

use ksync::{Mutex, MutexGuard, Padded, RwLock, WriteGuard, lock_class};
use rust_alloc::boxed::Box;
use rust_alloc::sync::Arc;

use super::super::{Hold, ReverseMap, Visit};
use super::chunks::PmapChunks;
use super::list::PageEntries;
use super::lists::{Change, InTheWay, Lists, Ticket, chunks_of};
use super::reclaim::Turn;
use crate::alloc::NoMemory;
use crate::object::Object;
use crate::page::{Page, PageArray, Pfn};
use crate::pmap::Pmap;
use crate::pmap::table::ENTRIES as RUN;
use crate::{Machine, Vm};

lock_class!(
    /// A pmap, for an operation on its entries. Above busy pages: nothing waits for one while it holds this, because a scan
    /// holds its page busy when it waits for this.
    pub PmapLock, "pmap", rank = 72
);
lock_class!(
    /// The lists of pages that hash to it.
    pub PvBucketLock, "pv list bucket", rank = 92
);

/// Number of buckets. Under a model checker few, because each schedule makes them.
const BUCKETS: usize = if cfg!(any(loom, shuttle)) { 2 } else { 256 };

/// Looks at a lock that is held before its waiter sleeps. Most holders are pinned, and done soon.
const LOOKS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 200 };

type Bucket = RwLock<(), PvBucketLock>;
type InBucket<'h> = WriteGuard<'h, (), PvBucketLock>;

/// See the module.
pub struct PvStock {
    lists: Lists,
    buckets: Box<[Padded<Bucket>]>,
    pub(super) turn: Turn,
}

impl Deref for PvStock {
    type Target = Lists;

    fn deref(&self) -> &Lists {
        &self.lists
    }
}

/// What a pmap has of this reverse map.
#[derive(Default)]
pub struct LockedChunks {
    lock: Mutex<(), PmapLock>,
    chunks: PmapChunks,
}

impl Deref for LockedChunks {
    type Target = PmapChunks;

    fn deref(&self) -> &PmapChunks {
        &self.chunks
    }
}

/// What an operation on a pmap holds.
pub type Operation<'p> = MutexGuard<'p, (), PmapLock>;

impl LockedChunks {
    /// Whether an operation holds the pmap's lock. For tests.
    pub fn is_locked(&self) -> bool {
        self.lock.is_locked()
    }

    /// Waits for the pmap's lock.
    #[inline]
    pub(super) fn lock(&self) -> Operation<'_> {
        wait_a_moment(|| self.lock.is_locked());
        self.lock.lock()
    }
}

/// Waits a short time for what is locked.
#[inline]
fn wait_a_moment(is_locked: impl Fn() -> bool) {
    for _ in 0..LOOKS {
        if !is_locked() {
            return;
        }
        ksync::relax();
    }
}

/// The list of one page, held, or the lists of a run.
pub struct Holding<'h> {
    map: &'h PvStock,
    what: What<'h>,
    /// The bucket, if a scan does not hold it.
    _bucket: Option<InBucket<'h>>,
}

enum What<'h> {
    Page(&'h Page, Change<'h>),
    Run(Run<'h>),
}

/// The lists of 512 pages in a row, but for that of a scan.
struct Run<'h> {
    pages: &'h PageArray,
    first: Pfn,
    pmap: &'h Pmap,
    va: u64,
    but: Option<Pfn>,
}

impl Run<'_> {
    fn unlist_all(&self, lists: &Lists) {
        for n in 0..RUN as u32 {
            let pfn = self.first.add(n);
            if Some(pfn) != self.but {
                let va = self.va + (u64::from(n) << 12);
                lists.unlist(self.pages.get(pfn), self.pmap, va);
            }
        }
    }
}

impl Hold for Holding<'_> {
    #[inline]
    fn done(self) {
        match self.what {
            What::Page(page, change) => self.map.settle(page, change),
            What::Run(run) => run.unlist_all(self.map),
        }
    }

    #[inline]
    fn undo(self) {
        if let What::Page(_, change) = self.what {
            self.map.undo(change);
        }
    }
}

impl PvStock {
    #[inline]
    fn bucket_of(pfn: Pfn) -> usize {
        pfn.index() / RUN % BUCKETS
    }

    /// Waits for a bucket.
    fn lock(&self, bucket: usize) -> InBucket<'_> {
        let bucket = &self.buckets[bucket];
        wait_a_moment(|| bucket.is_write_locked());
        bucket.write()
    }

    /// Tries the bucket of a page.
    #[inline]
    fn try_bucket(&self, pfn: Pfn) -> Result<InBucket<'_>, InTheWay> {
        let bucket = &self.buckets[Self::bucket_of(pfn)];
        bucket.try_write().ok_or(InTheWay(pfn))
    }

    #[inline]
    fn try_hold<'h>(&'h self, page: &'h Page, change: Change<'h>) -> Result<Holding<'h>, InTheWay> {
        let bucket = self.try_bucket(self.pages.pfn(page))?;
        Ok(Holding {
            map: self,
            what: What::Page(page, change),
            _bucket: Some(bucket),
        })
    }

    /// Whether an operation holds the list of a page, or another one of the same bucket. For tests.
    pub fn is_list_locked(&self, pfn: Pfn) -> bool {
        self.buckets[Self::bucket_of(pfn)].is_write_locked()
    }

    /// Whether an operation reclaims entries. For tests.
    pub fn is_reclaiming(&self) -> bool {
        self.turn.is_locked()
    }

    /// Number of the chunks of all pmaps, by the domains' lists. For tests.
    pub fn all_chunks(&self) -> usize {
        self.frames.lru.count(&self.frames)
    }

    /// Locks the pmap of an entry of `page`, whose list is held. Where that needs a wait, the list is not held meanwhile;
    /// `None` if it has changed then, and nothing is held.
    fn lock_pmap<'s, 'p>(
        &'s self,
        page: &Page,
        bucket: InBucket<'s>,
        pmap: &'p Arc<Pmap>,
    ) -> Option<(InBucket<'s>, Operation<'p>)> {
        if let Some(operation) = pmap.listed().lock.try_lock() {
            return Some((bucket, operation));
        }
        let before = page.list().generation();
        // Without its entry in a list that is held, the pmap may end.
        let _alive = Arc::clone(pmap);
        drop(bucket);
        let operation = pmap.listed().lock();
        let bucket = self.lock(Self::bucket_of(self.pages.pfn(page)));
        // Else the bucket, then the pmap's lock, and the pmap at last.
        (page.list().generation() == before).then_some((bucket, operation))
    }

    /// Scans one page. `None` if its list has changed while it was not held: then the scan begins again.
    fn try_scan(
        &self,
        page: &Page,
        mut visit: impl FnMut(&Arc<Pmap>, u64) -> Visit,
    ) -> Option<bool> {
        let list = PageEntries::of(&self.frames, page);
        let mut bucket = self.lock(Self::bucket_of(self.pages.pfn(page)));
        for place in list.iter() {
            let chunk = self.frames.chunk(place.chunk);
            let pmap = chunk.pmap();
            let (held, operation) = self.lock_pmap(page, bucket, &pmap)?;
            bucket = held;
            let visited = visit(&pmap, chunk.entry(place).va());
            if visited == Visit::Gone {
                self.remove(list, &pmap, place);
            }
            drop(operation);
            if visited == Visit::Stop {
                return Some(false);
            }
        }
        Some(true)
    }
}

impl ReverseMap for PvStock {
    const PER_PAGE: bool = true;
    const FINDS_EXTENTS: bool = false;

    type PmapState = LockedChunks;
    type Guard<'p> = Operation<'p>;
    type Ticket<'p> = Ticket<'p>;
    type Hold<'h> = Holding<'h>;
    type Blocked = InTheWay;

    fn new<M: Machine>(machine: &M, pages: PageArray, frame: Pfn) -> PvStock {
        PvStock {
            lists: Lists::new(machine, pages, frame),
            buckets: (0..BUCKETS).map(|_| Padded::default()).collect(),
            turn: Turn::default(),
        }
    }

    #[inline]
    fn begin<'p>(&'p self, pmap: &'p Pmap) -> Operation<'p> {
        pmap.listed().lock()
    }

    #[inline]
    fn tidy<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        self.lists.tidy(vm, pmap);
    }

    fn prepare<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        operation: Operation<'p>,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<(Operation<'p>, Ticket<'p>), NoMemory> {
        let ticket = self.ticket(pmap);
        match ticket.fill(vm, entries) {
            Ok(()) => Ok((operation, ticket)),
            Err(NoMemory) => {
                let operation = self.reclaim_for(vm, operation, &ticket, entries)?;
                Ok((operation, ticket))
            }
        }
    }

    fn top_up<M: Machine>(&self, vm: &Vm<M>, ticket: &Ticket<'_>, entries: usize) {
        // Without memory there is less room.
        let _less = ticket.fill(vm, entries);
    }

    #[inline]
    fn enter<'h>(
        &'h self,
        ticket: &'h Ticket<'_>,
        page: &'h Page,
        va: u64,
    ) -> Result<Holding<'h>, InTheWay> {
        let bucket = self.try_bucket(self.pages.pfn(page))?;
        let place = ticket.take().ok_or(InTheWay::NOTHING)?;
        Ok(Holding {
            map: self,
            what: What::Page(page, Change::Enter(ticket.pmap, place, va)),
            _bucket: Some(bucket),
        })
    }

    #[inline]
    fn hold<'h>(&'h self, page: &'h Page) -> Result<Holding<'h>, InTheWay> {
        self.try_hold(page, Change::Grow)
    }

    #[inline]
    fn leave<'h>(
        &'h self,
        page: &'h Page,
        pmap: &'h Pmap,
        va: u64,
    ) -> Result<Holding<'h>, InTheWay> {
        self.try_hold(page, Change::Leave(pmap, va))
    }

    fn leave_run<'h>(
        &'h self,
        pages: &'h PageArray,
        first: Pfn,
        pmap: &'h Pmap,
        va: u64,
        but: Option<Pfn>,
    ) -> Result<Holding<'h>, InTheWay> {
        debug_assert!(
            first.index().is_multiple_of(RUN),
            "the run has more than one bucket"
        );
        let ours = but.is_some_and(|pfn| Self::bucket_of(pfn) == Self::bucket_of(first));
        let bucket = if ours {
            None
        } else {
            Some(self.try_bucket(first)?)
        };
        let run = Run {
            pages,
            first,
            pmap,
            va,
            but,
        };
        Ok(Holding {
            map: self,
            what: What::Run(run),
            _bucket: bucket,
        })
    }

    fn wait(&self, blocked: InTheWay) {
        if blocked != InTheWay::NOTHING {
            let bucket = &self.buckets[Self::bucket_of(blocked.0)];
            wait_a_moment(|| bucket.is_write_locked());
            bucket.wait();
        }
    }

    fn forget_pmap<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        let operation = self.begin(pmap);
        let chunks = chunks_of(pmap);
        chunks.forget();
        loop {
            // Neighbours often lie in one run of frames.
            let mut held: Option<(usize, InBucket<'_>)> = None;
            let reserved = self.forget_listed(pmap, |pfn, place| {
                let wanted = Self::bucket_of(pfn);
                if held.as_ref().is_none_or(|(bucket, _)| *bucket != wanted) {
                    drop(held.take());
                    held = Some((wanted, self.lock(wanted)));
                }
                self.forget_entry(pfn, pmap, place);
            });
            drop(held);
            if !reserved {
                break;
            }
            ksync::doze();
        }
        chunks.free_all(vm, &self.frames, pmap);
        drop(operation);
    }

    fn scan(
        &self,
        _: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        pages.iter().enumerate().all(|(n, page)| {
            let mut visit = |pmap: &Arc<Pmap>, va| visit(n, pmap, va);
            loop {
                if let Some(all) = self.try_scan(page, &mut visit) {
                    return all;
                }
            }
        })
    }

    fn is_unlisted(&self, page: &Page) -> bool {
        page.list().is_empty()
    }

    fn places(&self, _: &Object, pages: &[&Page]) -> usize {
        pages.iter().map(|page| self.entries(page)).sum()
    }
}
