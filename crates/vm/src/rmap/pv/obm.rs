//! The reverse map `pv-obm`: a list of entries for each page, under a mutex of one byte, as in FreeBSD's OBM patch.
//!
//! Guarantee: while no operation holds a page's list, exactly the live entries of the page, in pmaps that were not
//! forgotten, are in it. A scan sees all of them: it holds the list from before the first to after the last.
//!
//! Order of locks: a table, then a list, which is tried, so that nothing sleeps under a spin lock; or a list, and then
//! tables, in a scan. A thread that waits for a list holds no table and no other list; and a thread that holds a list
//! waits for tables alone, whose holders never wait for a list. So there is no cycle of waits.
//! `doc/vm-reverse-maps.md` has the time lines.

use core::ops::Deref;

use ksync::{ByteMutexGuard, ByteRun, lock_class};
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
    /// The list of a page's entries. A scan holds it while it locks tables; elsewhere it is tried under a table's lock.
    pub PvListLock, "pv list", rank = 92
);

/// See the module.
pub struct PvObm {
    pub(super) lists: Lists,
    pub(super) turn: Turn,
}

impl Deref for PvObm {
    type Target = Lists;

    fn deref(&self) -> &Lists {
        &self.lists
    }
}

/// An operation on a pmap holds nothing.
pub struct Operation;

/// The list of one page, held, or the lists of a run.
pub struct Holding<'h> {
    map: &'h PvObm,
    what: Held<'h>,
}

enum Held<'h> {
    Page(&'h Page, ByteMutexGuard<'h, PvListLock>, Change<'h>),
    Run(Run<'h>),
}

impl Hold for Holding<'_> {
    #[inline]
    fn done(self) {
        match self.what {
            Held::Page(page, _guard, change) => self.map.settle(page, change),
            Held::Run(run) => {
                for (page, va) in run.iter() {
                    self.map.unlist(page, run.pmap, va);
                }
            }
        }
    }

    #[inline]
    fn undo(self) {
        if let Held::Page(_, _guard, change) = self.what {
            self.map.undo(change);
        }
    }
}

/// The lists of 512 pages in a row, but for one of them that a scan holds. They are released when this is dropped.
struct Run<'h> {
    pages: &'h PageArray,
    first: Pfn,
    pmap: &'h Pmap,
    va: u64,
    but: Option<Pfn>,
    /// Pages whose lists are held, from the first on.
    held: usize,
    bytes: ByteRun<PvListLock>,
}

impl<'h> Run<'h> {
    /// The pages whose lists are held, with their addresses.
    fn iter(&self) -> impl Iterator<Item = (&'h Page, u64)> + use<'h> {
        let (pages, first, va, but) = (self.pages, self.first, self.va, self.but);
        (0..self.held as u32)
            .map(move |n| (first.add(n), va + (u64::from(n) << 12)))
            .filter(move |(pfn, _)| Some(*pfn) != but)
            .map(move |(pfn, va)| (pages.get(pfn), va))
    }

    /// Tries the lists in ascending order.
    fn try_all(&mut self) -> Result<(), InTheWay> {
        while self.held < RUN {
            let pfn = self.first.add(self.held as u32);
            let ours = Some(pfn) == self.but;
            if !ours && !self.bytes.try_lock(self.pages.get(pfn).list_lock()) {
                return Err(InTheWay(pfn));
            }
            self.held += 1;
        }
        Ok(())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        for (page, _) in self.iter() {
            self.bytes.unlock(page.list_lock());
        }
    }
}

impl PvObm {
    #[inline]
    fn try_hold<'h>(&'h self, page: &'h Page, change: Change<'h>) -> Result<Holding<'h>, InTheWay> {
        Ok(Holding {
            map: self,
            what: Held::Page(page, self.try_lock(page)?, change),
        })
    }

    #[inline]
    fn try_lock<'h>(&self, page: &'h Page) -> Result<ByteMutexGuard<'h, PvListLock>, InTheWay> {
        let guard = page.list_lock().try_lock();
        guard.ok_or_else(|| InTheWay(self.pages.pfn(page)))
    }

    /// Visits the entries of page `n`, whose list is held, and unlists those that are gone. Returns whether all were visited.
    fn visit_all(
        &self,
        (n, page): (usize, &Page),
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        let list = PageEntries::of(&self.frames, page);
        list.iter().all(|place| {
            let chunk = self.frames.chunk(place.chunk);
            let pmap = chunk.pmap();
            let visited = visit(n, &pmap, chunk.entry(place).va());
            if visited == Visit::Gone {
                self.remove(list, &pmap, place);
            }
            visited != Visit::Stop
        })
    }
}

impl ReverseMap for PvObm {
    const PER_PAGE: bool = true;
    const FINDS_EXTENTS: bool = false;

    type PmapState = PmapChunks;
    type Guard<'p> = Operation;
    type Ticket<'p> = Ticket<'p>;
    type Hold<'h> = Holding<'h>;
    type Blocked = InTheWay;

    fn new<M: Machine>(machine: &M, pages: PageArray, frame: Pfn) -> PvObm {
        PvObm {
            lists: Lists::new(machine, pages, frame),
            turn: Turn::default(),
        }
    }

    #[inline(always)]
    fn begin<'p>(&'p self, _: &'p Pmap) -> Operation {
        Operation
    }

    #[inline]
    fn tidy<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        self.lists.tidy(vm, pmap);
    }

    fn prepare<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        operation: Operation,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<(Operation, Ticket<'p>), NoMemory> {
        let ticket = self.ticket(pmap);
        if ticket.fill(vm, entries).is_err() {
            self.reclaim_for(vm, &ticket, entries)?;
        }
        Ok((operation, ticket))
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
        let guard = self.try_lock(page)?;
        let place = ticket.take().ok_or(InTheWay::NOTHING)?;
        Ok(Holding {
            map: self,
            what: Held::Page(page, guard, Change::Enter(ticket.pmap, place, va)),
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
        let mut run = Run {
            pages,
            first,
            pmap,
            va,
            but,
            held: 0,
            bytes: ByteRun::new(),
        };
        run.try_all()?;
        Ok(Holding {
            map: self,
            what: Held::Run(run),
        })
    }

    fn wait(&self, blocked: InTheWay) {
        if blocked != InTheWay::NOTHING {
            self.pages.get(blocked.0).list_lock().wait::<PvListLock>();
        }
    }

    fn forget_pmap<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        let chunks = chunks_of(pmap);
        chunks.forget();
        let forget = |pfn, place| {
            let _guard = self.pages.get(pfn).list_lock().lock::<PvListLock>();
            self.forget_entry(pfn, pmap, place);
        };
        // What is reserved, the attempt of a fault has that enters it or gives it back soon; or it was just unlisted.
        while self.forget_listed(pmap, forget) {
            ksync::doze();
        }
        chunks.free_all(vm, &self.frames, pmap);
    }

    fn scan(
        &self,
        _: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        pages.iter().enumerate().all(|(n, page)| {
            let _guard = page.list_lock().lock::<PvListLock>();
            self.visit_all((n, page), visit)
        })
    }

    fn scan_shared(
        &self,
        _: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        pages.iter().enumerate().all(|(n, page)| {
            let _guard = page.list_lock().read::<PvListLock>();
            self.visit_all((n, page), &mut |n, pmap, va| {
                let visited = visit(n, pmap, va);
                debug_assert!(visited != Visit::Gone, "readers unlist nothing");
                visited
            })
        })
    }

    fn is_unlisted(&self, page: &Page) -> bool {
        page.list().is_empty()
    }

    fn places(&self, _: &Object, pages: &[&Page]) -> usize {
        pages.iter().map(|page| self.entries(page)).sum()
    }
}
