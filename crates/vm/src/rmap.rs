//! The reverse map: from a page to the page-table entries that map it.
//!
//! Guarantee of a scan: it visits every address at which the page was mapped when the scan began, provided that the
//! caller holds the page hard-busy and has put a full fence after that. It may visit others.
//!
//! There are two implementations of [`ReverseMap`]. [`ByBacking`] is the one in use: one record per mapped extent,
//! nothing per page, no work in a fault. `ByPage` (feature `naive-rmap`) is the obvious one: a list per page under
//! one lock. It exists so that the same tests check both.

use core::ops::ControlFlow;

use ksync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use rust_alloc::sync::Arc;
use smallvec::SmallVec;

use crate::backing::MappedExtent;
use crate::object::Object;
use crate::page::{Flags, HardBusy, Page, Pfn, hub_of};
use crate::pmap::{Pmap, Scan};
use crate::tlb::ScanGather;
use crate::{Machine, Vm};

/// What the visitor of a scan returns for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visit {
    /// The entry stays, or there was none: continue with the next address.
    Keep,
    /// The entry was removed: a record of it may be dropped, too.
    Gone,
    /// End the scan.
    Stop,
}

impl Visit {
    fn flow(self) -> ControlFlow<()> {
        match self {
            Visit::Keep | Visit::Gone => ControlFlow::Continue(()),
            Visit::Stop => ControlFlow::Break(()),
        }
    }
}

/// Visits the addresses where pages may be mapped: called with the page's position among those scanned, the pmap and
/// the address.
pub type Visitor<'v> = dyn FnMut(usize, &Arc<Pmap>, u64) -> Visit + 'v;

/// The interface of a reverse map. Attaching and detaching extents is always done by the hubs, because an attachment
/// also is the reference on the object.
pub trait ReverseMap: Default + Send + Sync + 'static {
    /// Whether [`enter`](ReverseMap::enter) does anything.
    const PER_PAGE: bool;

    /// Page `index` of `object` is about to be mapped at `va`. Called before the entry is filled, with preemption off.
    fn enter(&self, object: &Object, index: u32, pmap: &Arc<Pmap>, va: u64);
    /// The page changes its identity and keeps its entries. The caller holds it hard-busy.
    fn moved(&self, from: (&Object, u32), to: (&Object, u32));
    /// The entries of `start..end` are gone.
    fn remove(&self, pmap: &Arc<Pmap>, start: u64, end: u64);
    /// Calls `visit` for each address at which one of the pages may be mapped, all those of one mapping in a row, until
    /// it returns [`Visit::Stop`]. Locks of the reverse map are held meanwhile. Returns whether all addresses were
    /// visited.
    fn scan(&self, object: &Object, indexes: &[u32], visit: &mut Visitor<'_>) -> bool;
    /// Calls `visit` for each mapping of a file, of its pages or of private copies of them; otherwise as
    /// [`scan`](ReverseMap::scan).
    fn scan_shown(&self, object: &Object, visit: &mut dyn FnMut(&MappedExtent) -> Visit) -> bool {
        hub_of(object)
            .scan(|extent| visit(extent).flow())
            .is_continue()
    }
}

#[cfg(not(feature = "naive-rmap"))]
type Chosen = ByBacking;
#[cfg(feature = "naive-rmap")]
type Chosen = naive::ByPage;

/// The reverse map in use.
#[cfg(not(feature = "faulty-rmap"))]
pub type Map = Chosen;
/// The reverse map in use.
#[cfg(feature = "faulty-rmap")]
pub type Map = faulty::Skipping<Chosen>;

/// Finds entries through the backings that are attached to the object.
#[derive(Default)]
pub struct ByBacking {
    /// If not 0, one in so many backings is left out: see [`ByBacking::set_blind`]. Atomic.
    blind: AtomicU32,
}

impl ByBacking {
    /// Makes scans leave out every `n`-th backing that they should visit; 0 for none. A deliberate fault, by which
    /// tests show that they would notice a real one.
    pub fn set_blind(&self, n: u32) {
        self.blind.store(n, Relaxed);
    }
}

impl ReverseMap for ByBacking {
    const PER_PAGE: bool = false;

    #[inline(always)]
    fn enter(&self, _: &Object, _: u32, _: &Arc<Pmap>, _: u64) {}

    #[inline(always)]
    fn moved(&self, _: (&Object, u32), _: (&Object, u32)) {}

    #[inline(always)]
    fn remove(&self, _: &Arc<Pmap>, _: u64, _: u64) {}

    fn scan_shown(&self, object: &Object, visit: &mut dyn FnMut(&MappedExtent) -> Visit) -> bool {
        let mut blind = self.blindness();
        hub_of(object)
            .scan(|extent| {
                if blind() {
                    return ControlFlow::Continue(());
                }
                visit(extent).flow()
            })
            .is_continue()
    }

    fn scan(&self, object: &Object, indexes: &[u32], visit: &mut Visitor<'_>) -> bool {
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
}

impl ByBacking {
    /// A function that says for each extent whether it is to be left out.
    fn blindness(&self) -> impl FnMut() -> bool {
        let (blind, mut count) = (self.blind.load(Relaxed), 0_u32);
        move || {
            count = count.wrapping_add(1);
            blind != 0 && count.is_multiple_of(blind)
        }
    }
}

/// Removes every entry of the page; no translation is usable on return. The caller holds the page hard-busy. Returns
/// how many entries and claims were removed.
pub fn remove_all<M: Machine>(vm: &Vm<M>, object: &Object, index: u32, pfn: Pfn) -> usize {
    let page = vm.pages.get(pfn);
    debug_assert!(page.index() == index);
    remove_each(vm, object, core::iter::once(page)).removed
}

/// Result of a removal of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Removal {
    /// Entries and claims removed.
    pub(crate) removed: usize,
    /// Addresses looked at.
    pub(crate) visits: usize,
}

/// As [`remove_all`], for a few pages, all of which the caller holds hard-busy, with one flush.
pub(crate) fn remove_pages<M: Machine>(
    vm: &Vm<M>,
    object: &Object,
    pages: &[HardBusy<'_>],
) -> Removal {
    remove_each(vm, object, pages.iter().map(HardBusy::page))
}

fn remove_each<'a, M: Machine>(
    vm: &Vm<M>,
    object: &Object,
    pages: impl Iterator<Item = &'a Page>,
) -> Removal {
    let mut done = Removal::default();
    let scanned = scan_mapped(vm, object, pages, |gather, (page, pfn), pmap, va| {
        let found = pmap.gather_remove(vm, &ksync::pin(), va, pfn, gather);
        note(page, found);
        done.visits += 1;
        if found == Scan::Absent {
            return Visit::Keep;
        }
        done.removed += 1;
        Visit::Gone
    });
    // Only the flags of pages that the scan looked for: a page without MAPPED at its beginning may have been mapped
    // since.
    for page in scanned {
        // What was mapped may have been written to.
        page.clear_flag(Flags::MAPPED | Flags::MULTI | Flags::WRITEABLE | Flags::UNWRITTEN);
    }
    done
}

/// Visits every address at which the pages, which the caller holds hard-busy, may be mapped, and flushes once, when no
/// lock is held. If there is no room to record another pmap, it flushes and begins again: `visit` then finds the first
/// addresses already changed, and the scan gets further. Returns the pages that were scanned for: those with MAPPED.
fn scan_mapped<'a, M: Machine>(
    vm: &Vm<M>,
    object: &Object,
    pages: impl Iterator<Item = &'a Page>,
    mut visit: impl FnMut(&mut ScanGather, (&Page, Pfn), &Arc<Pmap>, u64) -> Visit,
) -> SmallVec<[&'a Page; 32]> {
    fence(SeqCst);
    let mut mapped: SmallVec<[&Page; 32]> = SmallVec::new();
    mapped.extend(pages.filter(|page| {
        debug_assert!(page.is_hard_busy());
        page.has(Flags::MAPPED)
    }));
    let indexes: SmallVec<[u32; 32]> = mapped.iter().map(|page| page.index()).collect();
    if mapped.is_empty() {
        return mapped;
    }
    let mut many = mapped.iter().any(|page| page.has(Flags::MULTI));
    loop {
        let mut gather = ScanGather::new();
        if many {
            gather.make_room(mappings(object, mapped.len()));
        }
        let all = vm.rmap.scan(object, &indexes, &mut |n, pmap, va| {
            if !gather.has_room() {
                return Visit::Stop;
            }
            visit(&mut gather, (mapped[n], vm.pages.pfn(mapped[n])), pmap, va)
        });
        gather.finish(vm);
        if all {
            return mapped;
        }
        many = true;
    }
}

/// Upper bound on the number of pmaps that a scan for so many pages records, one after the other.
fn mappings(object: &Object, pages: usize) -> usize {
    let mut places = 0;
    let _: ControlFlow<()> = hub_of(object).scan(|_| {
        places += 1;
        ControlFlow::Continue(())
    });
    // Lists per page visit the same pmap again for each page.
    places * if Map::PER_PAGE { pages } else { 1 }
}

/// One more than the highest index of a file that any mapping covers.
pub(crate) fn mapped_end(object: &Object) -> u32 {
    let mut end = 0;
    let _: ControlFlow<()> = hub_of(object).scan(|extent| {
        end = end.max(extent.index_end());
        ControlFlow::Continue(())
    });
    end
}

/// Pages of each mapping that one step of [`remove_copies`] looks at.
const COPIES: u32 = 64;

/// Removes all entries at addresses where mappings cover the pages `first..behind` of a file: private copies, which the
/// scans of the file's pages do not find. Flushed on return. A page was marked dirty when it was mapped writable.
///
/// A step is one pass over the mappings and one flush. Ranges in which no mapping has entries cost no step.
pub(crate) fn remove_copies<M: Machine>(vm: &Vm<M>, object: &Object, first: u32, behind: u32) {
    let mut at = first;
    while at < behind {
        let end = at.saturating_add(COPIES).min(behind);
        let (mut gather, mut next) = (ScanGather::new(), behind);
        gather.make_room(mappings(object, 1));
        let all = vm.rmap.scan_shown(object, &mut |extent| {
            if !gather.has_room() {
                return Visit::Stop;
            }
            let pmap = extent.pmap();
            pmap.gather_remove_range(vm, extent.addresses(at, end), &mut gather);
            let rest = extent.addresses(end, behind);
            let found = pmap.mapped_from(vm, &ksync::pin(), rest.start, rest.end);
            if let Some(run) = found {
                next = next.min(extent.index(run.va));
            }
            Visit::Gone
        });
        gather.finish(vm);
        at = if all { next } else { at };
    }
}

/// Makes every entry of the page read-only and marks the page dirty if an entry was. Conditions as for [`remove_all`].
pub fn write_protect_all<M: Machine>(vm: &Vm<M>, object: &Object, index: u32, pfn: Pfn) {
    let page = vm.pages.get(pfn);
    debug_assert!(page.index() == index);
    scan_mapped(
        vm,
        object,
        core::iter::once(page),
        |gather, (page, pfn), pmap, va| {
            note(
                page,
                pmap.gather_write_protect(vm, &ksync::pin(), va, pfn, gather),
            );
            Visit::Keep
        },
    );
    page.clear_flag(Flags::WRITEABLE);
}

/// Counts, up to `limit`, the signs that the page was used, and clears those that it counts: its REFERENCED flag, and the entries
/// with the accessed bit. Conditions as for [`remove_all`]. The TLBs are not flushed, and a CPU that has the entry cached does
/// not set the bit again: the answer is an estimate.
pub fn referenced<M: Machine>(
    vm: &Vm<M>,
    object: &Object,
    index: u32,
    pfn: Pfn,
    limit: usize,
) -> usize {
    let page = vm.pages.get(pfn);
    let mut count = usize::from(page.clear_flag(Flags::REFERENCED));
    if page.has(Flags::MAPPED) && count < limit {
        let _all = vm.rmap.scan(object, &[index], &mut |_, pmap, va| {
            let pin = ksync::pin();
            count += usize::from(pmap.scan_test_clear_accessed(vm, &pin, va, pfn));
            if count < limit {
                Visit::Keep
            } else {
                Visit::Stop
            }
        });
    }
    count
}

/// Marks the page with A and D of an entry.
fn note(page: &Page, found: Scan) {
    if let Some(pte) = found.pte() {
        if pte.is_dirty() {
            page.set_flag(Flags::DIRTY);
        }
        if pte.is_accessed() {
            page.set_flag(Flags::REFERENCED);
        }
    }
}

/// The flags for a page that was found, so that it may be mapped elsewhere, and that is about to be mapped. Set all at
/// once, so that mappings that share the page write its cache line once.
#[inline(always)]
pub(crate) fn marks(write: bool) -> Flags {
    let mapped = Flags::MAPPED | Flags::MULTI;
    if write {
        mapped | Flags::WRITEABLE | Flags::DIRTY
    } else {
        mapped
    }
}

#[cfg(feature = "naive-rmap")]
mod naive {
    //! A list of (object, index) → addresses under one lock.

    use ksync::{Spin, lock_class};
    use rust_alloc::collections::BTreeMap;
    use rust_alloc::vec::Vec;

    use super::{Arc, Object, Pmap, ReverseMap, Visit, Visitor};

    lock_class!(
        /// The one lock of the naive reverse map.
        pub NaiveLock, "naive reverse map", rank = 88
    );

    type Places = Vec<(Arc<Pmap>, u64)>;

    /// Keeps a list for each page. Records outlive their entries until the range is unmapped.
    #[derive(Default)]
    pub struct ByPage(Lists);

    struct Lists(Spin<BTreeMap<(usize, u32), Places>, NaiveLock>);

    impl Default for Lists {
        fn default() -> Lists {
            Lists(Spin::new(BTreeMap::new()))
        }
    }

    impl ReverseMap for ByPage {
        const PER_PAGE: bool = true;

        fn enter(&self, object: &Object, index: u32, pmap: &Arc<Pmap>, va: u64) {
            let mut lists = self.0.0.lock();
            let places = lists.entry((object.identity(), index)).or_default();
            if !places
                .iter()
                .any(|(p, at)| Arc::ptr_eq(p, pmap) && *at == va)
            {
                places.push((pmap.clone(), va));
            }
        }

        fn moved(&self, from: (&Object, u32), to: (&Object, u32)) {
            let mut lists = self.0.0.lock();
            if let Some(places) = lists.remove(&(from.0.identity(), from.1)) {
                lists
                    .entry((to.0.identity(), to.1))
                    .or_default()
                    .extend(places);
            }
        }

        fn remove(&self, pmap: &Arc<Pmap>, start: u64, end: u64) {
            self.0.0.lock().retain(|_, places| {
                places.retain(|(p, at)| !Arc::ptr_eq(p, pmap) || *at < start || *at >= end);
                !places.is_empty()
            });
        }

        // Records outlive their entries, so nothing is done if an entry was removed.
        fn scan(&self, object: &Object, indexes: &[u32], visit: &mut Visitor<'_>) -> bool {
            let places = |index| {
                let lists = self.0.0.lock();
                lists.get(&(object.identity(), index)).cloned()
            };
            indexes.iter().enumerate().all(|(n, &index)| {
                let places = places(index).unwrap_or_default();
                places
                    .iter()
                    .all(|(pmap, va)| visit(n, pmap, *va) != Visit::Stop)
            })
        }
    }
}

#[cfg(feature = "faulty-rmap")]
mod faulty {
    //! A reverse map with a deliberate fault, which shows that the tests would notice one.

    use ksync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::{Arc, MappedExtent, Object, Pmap, ReverseMap, Visit, Visitor};

    /// One extent in so many is left out.
    const EVERY: u64 = 7;

    /// Leaves out each [`EVERY`]-th extent that `R` would visit.
    #[derive(Default)]
    pub struct Skipping<R> {
        right: R,
        visits: AtomicU64,
    }

    impl<R: ReverseMap> ReverseMap for Skipping<R> {
        const PER_PAGE: bool = R::PER_PAGE;

        fn enter(&self, object: &Object, index: u32, pmap: &Arc<Pmap>, va: u64) {
            self.right.enter(object, index, pmap, va);
        }

        fn moved(&self, from: (&Object, u32), to: (&Object, u32)) {
            self.right.moved(from, to);
        }

        fn remove(&self, pmap: &Arc<Pmap>, start: u64, end: u64) {
            self.right.remove(pmap, start, end);
        }

        fn scan(&self, object: &Object, indexes: &[u32], visit: &mut Visitor<'_>) -> bool {
            self.right.scan(object, indexes, &mut |n, pmap, va| {
                if self.visits.fetch_add(1, Relaxed) % EVERY == EVERY - 1 {
                    return Visit::Keep;
                }
                visit(n, pmap, va)
            })
        }

        // It must not repair what a scan has left out.
        fn scan_shown(&self, _: &Object, _: &mut dyn FnMut(&MappedExtent) -> Visit) -> bool {
            true
        }
    }
}
