//! A reverse map with a deliberate fault, which shows that the tests would notice one.

use ksync::Walked;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};
use rust_alloc::sync::Arc;

use super::{ReverseMap, Visit};
use crate::alloc::NoMemory;
use crate::backing::MappedExtent;
use crate::object::Object;
use crate::page::{Page, PageArray, Pfn};
use crate::pmap::Pmap;
use crate::{Machine, Vm};

/// One extent in so many is left out.
const EVERY: u64 = 7;

/// Leaves out each [`EVERY`]-th extent that `R` would visit.
pub struct Skipping<R> {
    right: R,
    visits: AtomicU64,
}

impl<R: ReverseMap> ReverseMap for Skipping<R> {
    const PER_PAGE: bool = R::PER_PAGE;
    const FINDS_EXTENTS: bool = R::FINDS_EXTENTS;

    type PmapState = R::PmapState;
    type Guard<'p> = R::Guard<'p>;
    type Ticket<'p> = R::Ticket<'p>;
    type Hold<'h> = R::Hold<'h>;
    type Blocked = R::Blocked;

    fn new<M: Machine>(machine: &M, pages: PageArray, frame: Pfn) -> Skipping<R> {
        Skipping {
            right: R::new(machine, pages, frame),
            visits: AtomicU64::new(0),
        }
    }

    fn begin<'p>(&'p self, pmap: &'p Pmap) -> R::Guard<'p> {
        self.right.begin(pmap)
    }

    fn tidy<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        self.right.tidy(vm, pmap);
    }

    fn prepare<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        guard: R::Guard<'p>,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<(R::Guard<'p>, R::Ticket<'p>), NoMemory> {
        self.right.prepare(vm, guard, pmap, entries)
    }

    fn top_up<M: Machine>(&self, vm: &Vm<M>, ticket: &R::Ticket<'_>, entries: usize) {
        self.right.top_up(vm, ticket, entries);
    }

    fn enter<'h>(
        &'h self,
        ticket: &'h R::Ticket<'_>,
        page: &'h Page,
        va: u64,
    ) -> Result<R::Hold<'h>, R::Blocked> {
        self.right.enter(ticket, page, va)
    }

    fn hold<'h>(&'h self, page: &'h Page) -> Result<R::Hold<'h>, R::Blocked> {
        self.right.hold(page)
    }

    fn leave<'h>(
        &'h self,
        page: &'h Page,
        pmap: &'h Pmap,
        va: u64,
    ) -> Result<R::Hold<'h>, R::Blocked> {
        self.right.leave(page, pmap, va)
    }

    fn leave_run<'h>(
        &'h self,
        pages: &'h PageArray,
        first: Pfn,
        pmap: &'h Pmap,
        va: u64,
        but: Option<Pfn>,
    ) -> Result<R::Hold<'h>, R::Blocked> {
        self.right.leave_run(pages, first, pmap, va, but)
    }

    fn wait(&self, blocked: R::Blocked) {
        self.right.wait(blocked);
    }

    fn forget_pmap<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        self.right.forget_pmap(vm, pmap);
    }

    fn scan(
        &self,
        object: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        self.right.scan(object, pages, &mut |n, pmap, va| {
            if self.visits.fetch_add(1, Relaxed) % EVERY == EVERY - 1 {
                return Visit::Keep;
            }
            visit(n, pmap, va)
        })
    }

    fn places(&self, object: &Object, pages: &[&Page]) -> usize {
        self.right.places(object, pages)
    }

    // It must not repair what a scan has left out.
    fn walk_shown(&self, _: &Object, _: usize, _: &mut impl FnMut(Walked<'_, MappedExtent>)) {}
}
