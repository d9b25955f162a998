//! The reverse map: from a page to the page-table entries that map it.
//!
//! Guarantee of a scan: it visits every address at which the page was mapped when the scan began, provided that the
//! caller holds the page hard-busy and has put a full fence after that. It may visit others.
//!
//! Two implementations stand behind [`ReverseMap`]. [`ByBacking`] is the design: one record per mapped extent,
//! nothing per page, nothing done by a fault. [`ByPage`] (feature `naive-rmap`) is the obvious one: a list per page under
//! one lock. It exists so that the same tests judge both.

use core::ops::ControlFlow;

use ksync::atomic::{
    AtomicU32,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use rust_alloc::sync::Arc;

use crate::object::Object;
use crate::page::{Flags, Page, Pfn, hub_of};
use crate::pmap::{Pmap, Scan};
use crate::{Machine, Vm};

/// What a reverse map is told and asked. Attaching and detaching extents is the hubs' part in every design, for it is
/// the reference on the object too.
pub trait ReverseMap: Default + Send + Sync + 'static {
    /// Whether [`enter`](ReverseMap::enter) does anything.
    const PER_PAGE: bool;

    /// Page `index` of `object` is about to be mapped at `va`. Called before the entry is filled, with preemption off.
    fn enter(&self, object: &Object, index: u32, pmap: &Arc<Pmap>, va: u64);
    /// The page changes its identity and keeps its entries. The caller holds it hard-busy.
    fn moved(&self, from: (&Object, u32), to: (&Object, u32));
    /// The entries of `start..end` are gone.
    fn remove(&self, pmap: &Arc<Pmap>, start: u64, end: u64);
    /// Calls `visit` for each address at which the page may be mapped.
    fn scan(&self, object: &Object, index: u32, visit: &mut dyn FnMut(&Pmap, u64));
    /// Calls `visit` for each address at which a mapping shows page `index` of a file, itself or a private copy.
    fn scan_shown(&self, object: &Object, index: u32, visit: &mut dyn FnMut(&Pmap, u64)) {
        let _: ControlFlow<()> = hub_of(object).scan(|place| {
            if let Some(va) = place.address(index) {
                visit(place.pmap(), va);
            }
            ControlFlow::Continue(())
        });
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

/// Finds entries through the backings attached to the object.
#[derive(Default)]
pub struct ByBacking {
    /// Every so many backings one is left out, if not 0: see [`ByBacking::set_blind`]. Atomic.
    blind: AtomicU32,
}

impl ByBacking {
    /// Makes scans leave out every `n`-th backing that they should visit; 0 for none. A fault on purpose, by which tests
    /// show that they would notice a real one.
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

    fn scan_shown(&self, object: &Object, index: u32, visit: &mut dyn FnMut(&Pmap, u64)) {
        self.scan(object, index, visit);
    }

    fn scan(&self, object: &Object, index: u32, visit: &mut dyn FnMut(&Pmap, u64)) {
        let (blind, mut count) = (self.blind.load(Relaxed), 0_u32);
        let _: ControlFlow<()> = hub_of(object).scan(|place| {
            if let Some(va) = place.address(index) {
                count = count.wrapping_add(1);
                if blind == 0 || count % blind != 0 {
                    visit(place.pmap(), va);
                }
            }
            ControlFlow::Continue(())
        });
    }
}

/// Takes every entry of the page out; no translation is usable on return. The caller holds the page hard-busy. Returns
/// how many entries and claims there were.
pub fn remove_all<M: Machine>(vm: &Vm<M>, object: &Object, index: u32, pfn: Pfn) -> usize {
    let page = vm.pages.get(pfn);
    debug_assert!(page.is_hard_busy());
    fence(SeqCst);
    let mut removed = 0;
    if page.has(Flags::MAPPED) {
        vm.rmap.scan(object, index, &mut |pmap, va| {
            let pin = ksync::pin();
            let found = pmap.scan_remove(vm, &pin, va, pfn);
            note(page, found);
            removed += usize::from(found != Scan::Absent);
        });
        page.clear_flag(Flags::MAPPED | Flags::MULTI | Flags::WRITEABLE);
    }
    removed
}

/// The index just behind the highest one of a file that any mapping shows.
pub(crate) fn mapped_end(object: &Object) -> u32 {
    let mut end = 0;
    let _: ControlFlow<()> = hub_of(object).scan(|place| {
        end = end.max(place.index_end());
        ControlFlow::Continue(())
    });
    end
}

/// Takes out whatever is mapped where mappings show page `index` of a file: private copies, which the page's own scan
/// does not know. Flushed on return. A page's dirty mark was set when it was mapped writable.
pub(crate) fn remove_copies<M: Machine>(vm: &Vm<M>, object: &Object, index: u32) {
    vm.rmap.scan_shown(object, index, &mut |pmap, va| {
        pmap.scan_remove_any(vm, &ksync::pin(), va);
    });
}

/// Makes every entry of the page read-only and takes its dirty bits over. Conditions as for [`remove_all`].
pub fn write_protect_all<M: Machine>(vm: &Vm<M>, object: &Object, index: u32, pfn: Pfn) {
    let page = vm.pages.get(pfn);
    debug_assert!(page.is_hard_busy());
    fence(SeqCst);
    if page.has(Flags::MAPPED) {
        vm.rmap.scan(object, index, &mut |pmap, va| {
            let pin = ksync::pin();
            note(page, pmap.scan_write_protect(vm, &pin, va, pfn));
        });
        page.clear_flag(Flags::WRITEABLE);
    }
}

/// Counts, up to `limit`, the entries through which the page was used since the last call. Conditions as for
/// [`remove_all`], but nothing is flushed: the answer is an estimate.
pub fn referenced<M: Machine>(
    vm: &Vm<M>,
    object: &Object,
    index: u32,
    pfn: Pfn,
    limit: usize,
) -> usize {
    let page = vm.pages.get(pfn);
    let mut count = usize::from(page.clear_flag(Flags::REFERENCED));
    if page.has(Flags::MAPPED) {
        vm.rmap.scan(object, index, &mut |pmap, va| {
            if count < limit {
                let pin = ksync::pin();
                count += usize::from(pmap.scan_test_clear_accessed(vm, &pin, va, pfn));
            }
        });
    }
    count
}

/// Hands the marks of an entry on to the page.
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

/// Records that a page that was found, and so may be mapped elsewhere, is about to be mapped. Returns whether that may
/// have changed a flag: the first one to do this sets all, so that those who share the page write its line once.
#[inline(always)]
pub(crate) fn mark(page: &Page, write: bool) -> bool {
    let mut wanted = Flags::MAPPED | Flags::MULTI;
    if write {
        wanted = wanted | Flags::WRITEABLE | Flags::DIRTY;
    }
    let change = !page.flags().contains(wanted);
    if change {
        page.add_flag(wanted);
    }
    change
}

#[cfg(feature = "naive-rmap")]
mod naive {
    //! A list of (object, index) → addresses under one lock.

    use ksync::{Spin, lock_class};
    use rust_alloc::collections::BTreeMap;
    use rust_alloc::vec::Vec;

    use super::{Arc, Object, Pmap, ReverseMap};

    lock_class!(
        /// The one lock of the naive reverse map.
        pub NaiveLock, "naive reverse map", rank = 88
    );

    type Places = Vec<(Arc<Pmap>, u64)>;

    /// Finds entries in a list for each page. Records outlive their entries until the range is unmapped.
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

        fn scan(&self, object: &Object, index: u32, visit: &mut dyn FnMut(&Pmap, u64)) {
            let places = self
                .0
                .0
                .lock()
                .get(&(object.identity(), index))
                .cloned()
                .unwrap_or_default();
            for (pmap, va) in &places {
                visit(pmap, *va);
            }
        }
    }
}

#[cfg(feature = "faulty-rmap")]
mod faulty {
    //! A reverse map with a hole: shows that the tests would notice one.

    use ksync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::{Arc, Object, Pmap, ReverseMap};

    /// One place in so many is left out.
    const EVERY: u64 = 7;

    /// Leaves out each [`EVERY`]-th place that `R` would visit.
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

        fn scan(&self, object: &Object, index: u32, visit: &mut dyn FnMut(&Pmap, u64)) {
            self.right.scan(object, index, &mut |pmap, va| {
                if self.visits.fetch_add(1, Relaxed) % EVERY != EVERY - 1 {
                    visit(pmap, va);
                }
            });
        }

        // Must not repair what a scan has left out.
        fn scan_shown(&self, _: &Object, _: u32, _: &mut dyn FnMut(&Pmap, u64)) {}
    }
}
