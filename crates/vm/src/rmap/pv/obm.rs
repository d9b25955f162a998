//! The reverse map `pv-obm`: a list of entries for each page, under a mutex of one byte, as in FreeBSD's OBM patch.
//!
//! Guarantee: while no operation holds a page's list, exactly the live entries of the page, in pmaps that were not
//! forgotten, are in it. A scan sees all of them: it holds the list from before the first to after the last.
//!
//! Order of locks: a table, then a list, which is tried, so that nothing sleeps under a spin lock; or a list, and then
//! tables, in a scan. A thread that waits for a list holds no table and no other list; and a thread that holds a list
//! waits for tables alone, whose holders never wait for a list. So there is no cycle of waits.
//! `doc/vm-reverse-maps.md` has the time lines.

use core::cell::Cell;

use ksync::{ByteMutexGuard, ByteRun, lock_class};
use rust_alloc::sync::Arc;

use super::super::{Hold, ReverseMap, Visit, Visitor};
use super::chunk::{Frames, Place, Reserved};
use super::chunks::PmapChunks;
use super::list::PageEntries;
use super::reclaim::Reclaimer;
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

/// Parts that a ticket has: what is reserved of one word of a chunk each.
const PARTS: usize = 3;

/// See the module.
pub struct PvObm {
    pub(super) frames: Frames,
    pub(super) reclaimer: Reclaimer,
    pages: PageArray,
}

/// An operation on a pmap holds nothing.
pub struct Operation;

/// Entries that are reserved.
pub struct Ticket<'p> {
    pub(super) map: &'p PvObm,
    pub(super) pmap: &'p Arc<Pmap>,
    pub(super) parts: [Cell<Reserved>; PARTS],
}

impl Ticket<'_> {
    fn take(&self) -> Option<Place> {
        self.parts.iter().find_map(|part| {
            let mut reserved = part.get();
            let place = reserved.take();
            part.set(reserved);
            place
        })
    }

    /// Reserves up to `entries` more, in parts that have none.
    pub(super) fn fill<M: Machine>(&self, vm: &Vm<M>, entries: usize) -> Result<(), NoMemory> {
        let mut missing = entries;
        for part in &self.parts {
            if missing == 0 {
                break;
            }
            if part.get().len() == 0 {
                let chunks = self.pmap.listed();
                part.set(chunks.reserve(vm, &self.map.frames, self.pmap, missing)?);
                missing -= part.get().len();
            }
        }
        Ok(())
    }

    /// Gives all entries back.
    pub(super) fn clear(&self) {
        for part in &self.parts {
            let reserved = part.replace(Reserved::NONE);
            if reserved.len() != 0 {
                self.map.frames.chunk(reserved.chunk).give_back(reserved);
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What is in the way: the list of the page in this frame, or nothing that lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InTheWay(Pfn);

impl InTheWay {
    const NOTHING: InTheWay = InTheWay(Pfn::NONE);
}

/// What becomes of an entry whose list is held.
#[derive(Clone, Copy)]
enum Change<'h> {
    Enter(&'h Arc<Pmap>, Place, u64),
    Grow,
    Leave(&'h Pmap, u64),
}

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
        if let Held::Page(_, _guard, Change::Enter(pmap, place, _)) = self.what {
            self.map.give_back(pmap, place);
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
    /// Takes an entry out of the list of `page`, which is held, unless its pmap was forgotten: then it is in no list, or about
    /// to leave it, and the frame may have another use.
    fn unlist(&self, page: &Page, pmap: &Pmap, va: u64) {
        if pmap.listed().is_forgotten() {
            return;
        }
        let list = PageEntries::of(&self.frames, page);
        match list.find(pmap, va) {
            Some(place) => self.remove(list, pmap, place),
            // A scan that found the root closed has unlisted it.
            None => debug_assert!(pmap.root().is_none(), "the entry at {va:#x} was not listed"),
        }
    }

    /// Takes an entry of `pmap` out of a list, which is held.
    fn remove(&self, list: PageEntries<'_>, pmap: &Pmap, place: Place) {
        list.remove(place);
        self.give_back(pmap, place);
    }

    fn give_back(&self, pmap: &Pmap, place: Place) {
        pmap.listed().note_freed();
        self.frames.chunk(place.chunk).give_back_one(place);
    }

    /// Makes a change, under the page's list.
    fn settle(&self, page: &Page, change: Change<'_>) {
        match change {
            Change::Enter(_, place, va) => {
                let list = PageEntries::of(&self.frames, page);
                list.push(self.pages.pfn(page), place, va);
            }
            Change::Grow => debug_assert!(false, "an entry that gains rights is listed already"),
            Change::Leave(pmap, va) => self.unlist(page, pmap, va),
        }
    }

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

    /// Calls `visit` with the frame and the address of each entry of a pmap that is listed, and returns how many are
    /// reserved beside these. Exact while nothing is entered or removed. For tests and reports.
    pub fn for_each_listed(&self, pmap: &Pmap, mut visit: impl FnMut(Pfn, u64)) -> usize {
        let mut reserved = 0;
        pmap.listed().for_each_used(&self.frames, |chunk, place| {
            let entry = chunk.entry(place);
            match entry.page() {
                Some(page) => visit(page, entry.va()),
                None => reserved += 1,
            }
        });
        reserved
    }

    /// Number of frames of a pmap that hold entries.
    pub fn chunks(&self, pmap: &Pmap) -> usize {
        pmap.listed().len()
    }

    /// Number of entries of a page.
    pub fn entries(&self, page: &Page) -> usize {
        page.list().count()
    }

    /// Visits the entries of page `n`, whose list is held, and unlists those that are gone. Returns whether all were visited.
    fn visit_all(&self, (n, page): (usize, &Page), visit: &mut Visitor<'_>) -> bool {
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

    /// Unlists a listed entry of a pmap that was forgotten, under the list of the page that it is said to map.
    fn forget_entry(&self, pfn: Pfn, pmap: &Pmap, place: Place) {
        let page = self.pages.get(pfn);
        let _guard = page.list_lock().lock::<PvListLock>();
        // A scan may have taken it out meanwhile; nothing enters it again.
        if self.frames.entry(place).page() == Some(pfn) {
            self.remove(PageEntries::of(&self.frames, page), pmap, place);
        }
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
            frames: Frames::new(machine, frame),
            reclaimer: Reclaimer::default(),
            pages,
        }
    }

    #[inline(always)]
    fn begin<'p>(&'p self, _: &'p Pmap) -> Operation {
        Operation
    }

    #[inline]
    fn tidy<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        pmap.listed().tidy(vm, &self.frames);
    }

    fn prepare<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        _: &Operation,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<Ticket<'p>, NoMemory> {
        let ticket = Ticket {
            map: self,
            pmap,
            parts: [const { Cell::new(Reserved::NONE) }; PARTS],
        };
        if ticket.fill(vm, entries).is_err() {
            self.reclaim_for(vm, &ticket, entries)?;
        }
        Ok(ticket)
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
        let chunks = pmap.listed();
        chunks.forget();
        loop {
            let mut reserved = false;
            chunks.for_each_used(&self.frames, |chunk, place| {
                match chunk.entry(place).page() {
                    Some(pfn) => self.forget_entry(pfn, pmap, place),
                    // An attempt of a fault, which ends soon, has it.
                    None => reserved = true,
                }
            });
            if !reserved {
                break;
            }
            ksync::doze();
        }
        chunks.free_all(vm, &self.frames, pmap);
    }

    fn scan(&self, _: &Object, pages: &[&Page], visit: &mut Visitor<'_>) -> bool {
        pages.iter().enumerate().all(|(n, page)| {
            let _guard = page.list_lock().lock::<PvListLock>();
            self.visit_all((n, page), visit)
        })
    }

    fn scan_shared(&self, _: &Object, pages: &[&Page], visit: &mut Visitor<'_>) -> bool {
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
        pages.iter().map(|page| page.list().count()).sum()
    }
}
