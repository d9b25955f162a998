//! The reverse map by backings: nothing is kept for an entry. A scan computes the addresses from the extents that are
//! attached to the object.

use core::convert::Infallible;
use core::ops::ControlFlow;

use ksync::Walked;
use ksync::atomic::{AtomicU32, Ordering::Relaxed};
use rust_alloc::sync::Arc;
use smallvec::SmallVec;

use super::{Hold, ReverseMap, Visit};
use crate::alloc::NoMemory;
use crate::backing::MappedExtent;
use crate::object::Object;
use crate::page::{Page, PageArray, Pfn, hub_of};
use crate::pmap::Pmap;
use crate::{Machine, Vm};

/// Finds entries through the backings that are attached to the object.
pub struct ByBacking {
    /// If not 0, one in so many backings is left out: see [`ByBacking::set_blind`]. Atomic.
    blind: AtomicU32,
}

/// What this reverse map keeps for pmaps, operations and entries.
#[derive(Default)]
pub struct Nothing;

// What faults carry for lists costs nothing here.
const _: () = assert!(size_of::<Nothing>() == 0 && !core::mem::needs_drop::<Nothing>());

impl Hold for Nothing {
    #[inline(always)]
    fn done(self) {}

    #[inline(always)]
    fn undo(self) {}
}

impl ByBacking {
    /// Makes scans leave out every `n`-th backing that they should visit; 0 for none. A deliberate fault, by which
    /// tests show that they would notice a real one.
    pub fn set_blind(&self, n: u32) {
        self.blind.store(n, Relaxed);
    }

    /// A function that says for each extent whether it is to be left out.
    fn blindness(&self) -> impl FnMut() -> bool {
        let (blind, mut count) = (self.blind.load(Relaxed), 0_u32);
        move || {
            count = count.wrapping_add(1);
            blind != 0 && count.is_multiple_of(blind)
        }
    }
}

impl ReverseMap for ByBacking {
    const PER_PAGE: bool = false;
    const FINDS_EXTENTS: bool = true;

    type PmapState = Nothing;
    type Guard<'p> = Nothing;
    type Ticket<'p> = Nothing;
    type Hold<'h> = Nothing;
    type Blocked = Infallible;

    fn new<M: Machine>(_: &M, _: PageArray, _: Pfn) -> ByBacking {
        ByBacking {
            blind: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    fn begin<'p>(&'p self, _: &'p Pmap) -> Nothing {
        Nothing
    }

    #[inline(always)]
    fn tidy<M: Machine>(&self, _: &Vm<M>, _: &Pmap) {}

    #[inline(always)]
    fn prepare<'p, M: Machine>(
        &'p self,
        _: &Vm<M>,
        _: Nothing,
        _: &'p Arc<Pmap>,
        _: usize,
    ) -> Result<(Nothing, Nothing), NoMemory> {
        Ok((Nothing, Nothing))
    }

    #[inline(always)]
    fn top_up<M: Machine>(&self, _: &Vm<M>, _: &Nothing, _: usize) {}

    #[inline(always)]
    fn enter(&self, _: &Nothing, _: &Page, _: u64) -> Result<Nothing, Infallible> {
        Ok(Nothing)
    }

    #[inline(always)]
    fn hold(&self, _: &Page) -> Result<Nothing, Infallible> {
        Ok(Nothing)
    }

    #[inline(always)]
    fn leave(&self, _: &Page, _: &Pmap, _: u64) -> Result<Nothing, Infallible> {
        Ok(Nothing)
    }

    #[inline(always)]
    fn leave_run(
        &self,
        _: &PageArray,
        _: Pfn,
        _: &Pmap,
        _: u64,
        _: Option<Pfn>,
    ) -> Result<Nothing, Infallible> {
        Ok(Nothing)
    }

    #[inline(always)]
    fn wait(&self, blocked: Infallible) {
        match blocked {}
    }

    #[inline(always)]
    fn forget_pmap<M: Machine>(&self, _: &Vm<M>, _: &Pmap) {}

    fn scan(
        &self,
        object: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        let indexes: SmallVec<[u32; 32]> = pages.iter().map(|page| page.index()).collect();
        let mut blind = self.blindness();
        hub_of(object)
            .scan(|extent| {
                for (n, &index) in indexes.iter().enumerate() {
                    if let Some(va) = extent.address(index)
                        && !blind()
                    {
                        visit(n, extent.pmap(), va).flow()?;
                    }
                }
                ControlFlow::Continue(())
            })
            .is_continue()
    }

    fn places(&self, object: &Object, _: &[&Page]) -> usize {
        super::mappings(object)
    }

    fn walk_shown(
        &self,
        object: &Object,
        most: usize,
        step: &mut impl FnMut(Walked<'_, MappedExtent>),
    ) {
        let mut blind = self.blindness();
        hub_of(object).walk(most, |walked| {
            if matches!(walked, Walked::Released) || !blind() {
                step(walked);
            }
        });
    }
}
