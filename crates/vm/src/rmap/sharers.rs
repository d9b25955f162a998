//! How many mappings a page has, for reports.

use core::ops::ControlFlow;

use ksync::CpuPin;
use rust_alloc::sync::Arc;
use smallvec::SmallVec;

use super::{Map, ReverseMap};
use crate::backing::Relation;
use crate::object::Object;
use crate::page::{Pfn, hub_of};
use crate::pmap::AROUND;
use crate::{Machine, Vm};

/// Extents whose page-table entries are looked at.
const LOOKED_AT: usize = 64;
/// Extents that are counted.
const COUNTED: usize = 512;

/// Extents of one pmap that lead to the same addresses, and the pages that were looked for there.
struct Seen {
    pmap: usize,
    relation: Relation,
    /// A bit for each.
    pages: u16,
}

/// The number of page-table entries that map each of some pages of an object, by index and frame: at least 1, and at least 2
/// where not all could be looked at. A hint: no page is held.
///
/// Exact for up to 64 attached extents. Beyond, the share of the first 64 that map the page is taken for that of all, of
/// which no more than 512 are counted: so the time has a limit, and so has the time that a shard is locked. Where the
/// reverse map does not find extents, each page counts as mapped twice.
pub(crate) fn sharers<M: Machine>(
    vm: &Vm<M>,
    pin: &CpuPin,
    object: &Object,
    pages: &[(u32, Pfn)],
) -> [u64; AROUND] {
    debug_assert!(pages.len() <= AROUND);
    if !Map::FINDS_EXTENTS {
        return [2; AROUND];
    }
    let mut found = [0_u64; AROUND];
    // Extents that were looked at. Chains of one map may contain several layers that lead to the same entries.
    let mut seen: SmallVec<[Seen; LOOKED_AT]> = SmallVec::new();
    let mut extents = 0;
    let _: ControlFlow<()> = hub_of(object).scan(|extent| {
        extents += 1;
        if extents > COUNTED {
            return ControlFlow::Break(());
        }
        if seen.len() == LOOKED_AT {
            return ControlFlow::Continue(());
        }
        let (pmap, relation) = (Arc::as_ptr(extent.pmap()).addr(), extent.relation());
        let is_same = |seen: &&mut Seen| seen.pmap == pmap && seen.relation == relation;
        let place = match seen.iter_mut().find(is_same) {
            Some(place) => place,
            None => {
                seen.push(Seen {
                    pmap,
                    relation,
                    pages: 0,
                });
                let Some(place) = seen.last_mut() else {
                    return ControlFlow::Continue(());
                };
                place
            }
        };
        for (n, &(index, pfn)) in pages.iter().enumerate() {
            let Some(va) = extent.address(index).filter(|_| place.pages & 1 << n == 0) else {
                continue;
            };
            place.pages |= 1 << n;
            let entry = extent.pmap().lookup(vm, pin, va);
            found[n] += u64::from(entry.is_some_and(|pte| pte.pfn() == pfn));
        }
        ControlFlow::Continue(())
    });
    let complete = extents <= LOOKED_AT;
    let all = extents.min(COUNTED) as u64;
    found.map(|found| match complete {
        true => found.max(1),
        false => (found * all / LOOKED_AT as u64).max(2),
    })
}
