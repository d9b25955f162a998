//! The reverse map: from a page to the page-table entries that map it.
//!
//! Guarantee of a scan: it visits every address at which the page was mapped when the scan began, provided that the
//! caller holds the page hard-busy and has put a full fence after that. It may visit others.
//!
//! There are four implementations of [`ReverseMap`], of which one is built. [`ByBacking`] is the default: one record per mapped
//! extent, nothing per page, no work in a fault. `pv::PvObm` and `pv::PvStock` (features `pv-obm`, `pv-stock`) are FreeBSD's
//! two, with an entry for each mapping. `ByPage` (feature `naive-rmap`) is the obvious one, a list for each page, with which the
//! tests compare. `doc/vm-reverse-maps.md` lists the calls that they need.

mod backings;
mod copies;
#[cfg(feature = "faulty-rmap")]
mod faulty;
mod free_bits;
mod hold;
mod look;
#[cfg(feature = "naive-rmap")]
pub mod naive;
#[cfg(feature = "pv")]
pub mod pv;
mod sharers;

use core::fmt::Debug;
use core::ops::ControlFlow;

use ksync::Walked;
use ksync::atomic::{Ordering::SeqCst, fence};
use rust_alloc::sync::Arc;
use smallvec::SmallVec;

pub use self::backings::ByBacking;
pub(crate) use self::copies::remove_copies;
pub use self::free_bits::{FreeBits, Part};
pub(crate) use self::hold::{Held, hold, leave, leave_if, leave_run, list};
pub(crate) use self::sharers::sharers;
use crate::alloc::NoMemory;
use crate::backing::MappedExtent;
use crate::object::Object;
use crate::page::{Flags, HardBusy, PAGE_SIZE, Page, PageArray, Pfn, hub_of};
use crate::pmap::{Pmap, Pte};
use crate::tlb::ScanGather;
use crate::{Machine, Vm};

/// Result of a scan at one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// The frame is not mapped here.
    Absent,
    /// A fault had claimed the slot for the frame; the fault will start again. Not where entries are listed by page.
    Unclaimed,
    /// This entry mapped the frame. It was changed, or was already as it should be. If the operation removes A or D,
    /// the caller must hand them on.
    Found(Pte),
}

impl Scan {
    /// The entry, if one was found.
    pub fn pte(self) -> Option<Pte> {
        match self {
            Scan::Found(pte) => Some(pte),
            _ => None,
        }
    }
}

/// What the visitor of a scan returns for an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visit {
    /// The entry stays, or there was none: continue with the next address.
    Keep,
    /// The entry was taken out, and is unlisted.
    Gone,
    /// End the scan.
    Stop,
}

/// The frame whose entry a scan is to change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sought {
    /// This one, whose page's list the caller holds for itself alone: it unlists the entry.
    Held(Pfn),
    /// This one, whose page's list the caller holds together with other readers, so that no entry of it may go.
    Shared(Pfn),
    /// Whatever is mapped: it is unlisted here.
    Any,
}

impl Sought {
    /// Whether an entry carries another frame.
    pub(crate) fn excludes(self, pte: Pte) -> bool {
        match self {
            Sought::Held(pfn) | Sought::Shared(pfn) => pte.pfn() != pfn,
            Sought::Any => false,
        }
    }

    /// The frame whose list may be changed without another lock.
    pub(crate) fn held(self) -> Option<Pfn> {
        match self {
            Sought::Held(pfn) => Some(pfn),
            Sought::Shared(_) | Sought::Any => None,
        }
    }
}

/// A page's list, held for one entry that is about to be filled, to gain rights or to be taken out. No scan of the page
/// looks at entries meanwhile.
pub trait Hold {
    /// The entry was filled, and is listed; or was taken out, and is listed no more.
    fn done(self);
    /// The entry is as it was: it was not filled, or a scan has taken it out before.
    fn undo(self);
}

/// The interface of a reverse map. Attaching and detaching extents is always done by the hubs, because an attachment
/// also is the reference on the object.
pub trait ReverseMap: Send + Sync + 'static {
    /// Whether each entry is listed with its page, so that an operation on it holds the list. Else a fault claims the entry
    /// for a page that it does not hold busy, and a removal makes it busy while it marks the page.
    const PER_PAGE: bool;
    /// Whether a scan finds entries through the extents that are attached to the object. Else only hubs of files and of shared memory list
    /// them, for [`walk_shown`](ReverseMap::walk_shown) and for flushes that are due, and others count them; and no unreachable pages are swept, because the spaces
    /// that have private memory attached are not known.
    const FINDS_EXTENTS: bool;

    /// What each pmap has of the reverse map.
    type PmapState: Default + Send + Sync;
    /// What an operation on a pmap holds over several entries.
    type Guard<'p>;
    /// Room for some entries of one pmap. What is left of it is given back when it is dropped.
    type Ticket<'p>;
    /// See [`Hold`].
    type Hold<'h>: Hold;
    /// What is in the way of an operation.
    type Blocked: Copy + Eq + Debug;

    /// The reverse map of a machine. `frame` is any frame that exists.
    fn new<M: Machine>(machine: &M, pages: PageArray, frame: Pfn) -> Self;
    /// Begins an operation on entries of the pmap. Sleeping context, not pinned.
    fn begin<'p>(&'p self, pmap: &'p Pmap) -> Self::Guard<'p>;
    /// Ends it, before its caller sleeps.
    #[inline(always)]
    fn end(&self, guard: Self::Guard<'_>) {
        drop(guard);
    }
    /// After entries of a range were taken out, before the end of the operation: gives memory back that no entry needs any more.
    fn tidy<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap);
    /// Makes room for `entries` entries. Sleeping context, not pinned. What the guard holds may be let go meanwhile, and taken
    /// again. The ticket is to be dropped before the guard.
    ///
    /// # Errors
    /// No memory; the operation is over.
    fn prepare<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        guard: Self::Guard<'p>,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<(Self::Guard<'p>, Self::Ticket<'p>), NoMemory>;
    /// Makes room for up to `entries` more, without waiting.
    fn top_up<M: Machine>(&self, vm: &Vm<M>, ticket: &Self::Ticket<'_>, entries: usize);
    /// Before the entry of `va` is filled with `page`. The table is locked, and the entry is empty. Uses up an entry of the
    /// ticket, which [`Hold::undo`] gives back. Where `page` is not held busy, the caller checks its identity after this, and then
    /// fills, or undoes.
    ///
    /// # Errors
    /// The page's list is held, or the ticket is used up. In some designs, too, the pmap was
    /// [forgotten](ReverseMap::forget_pmap); in the others that call unlists what is entered late.
    fn enter<'h>(
        &'h self,
        ticket: &'h Self::Ticket<'_>,
        page: &'h Page,
        va: u64,
    ) -> Result<Self::Hold<'h>, Self::Blocked>;
    /// Before a live entry of `page` gains rights. The table is locked.
    ///
    /// # Errors
    /// The page's list is held.
    fn hold<'h>(&'h self, page: &'h Page) -> Result<Self::Hold<'h>, Self::Blocked>;
    /// Before the entry of `va`, which was seen to map `page`, is taken out. The table is locked, or the entry is taken out
    /// by compare-and-swap.
    ///
    /// # Errors
    /// The page's list is held.
    fn leave<'h>(
        &'h self,
        page: &'h Page,
        pmap: &'h Pmap,
        va: u64,
    ) -> Result<Self::Hold<'h>, Self::Blocked>;
    /// As `leave`, for the 512 pages from frame `first` on, which a leaf of 2 MiB maps at `va`. The directory is locked. `but` is
    /// the page of the scan that does this; it holds the list, and unlists the entry.
    ///
    /// # Errors
    /// A page's list is held. None of the others is then.
    fn leave_run<'h>(
        &'h self,
        pages: &'h PageArray,
        first: Pfn,
        pmap: &'h Pmap,
        va: u64,
        but: Option<Pfn>,
    ) -> Result<Self::Hold<'h>, Self::Blocked>;
    /// Waits for what was in the way, or a part of that. Sleeping context, not pinned, with no table locked.
    fn wait(&self, blocked: Self::Blocked);
    /// Unlists all entries of a pmap whose root is closed, and whose tables are about to be freed. Those are not read. Sleeping
    /// context, not pinned, with no table locked.
    fn forget_pmap<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap);
    /// Calls `visit` for each address at which one of the pages, which the caller holds hard-busy, may be mapped, with the page's
    /// position among them, the pmap and the address, until it returns [`Visit::Stop`]. Locks of the reverse map are held meanwhile. Returns whether all addresses were visited.
    fn scan(
        &self,
        object: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool;
    /// As [`scan`](ReverseMap::scan), for a visitor that takes no listed entry out. It may run beside others of its kind. If the
    /// caller holds pages soft-busy alone, addresses at which they are mapped meanwhile may be left out.
    fn scan_shared(
        &self,
        object: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        self.scan(object, pages, visit)
    }
    /// Upper bound on the number of pmaps that a scan for these pages records, one after the other.
    fn places(&self, object: &Object, pages: &[&Page]) -> usize;
    /// Whether no entry of the page is listed; true where none ever is. For assertions.
    fn is_unlisted(&self, _: &Page) -> bool {
        true
    }
    /// Calls `step` for each mapping of a file, of its pages or of private copies of them, and after each hold of a lock, of
    /// `most` mappings at most. A mapping that is made meanwhile may be left out. Sleeping context, not pinned.
    fn walk_shown(
        &self,
        object: &Object,
        most: usize,
        step: &mut impl FnMut(Walked<'_, MappedExtent>),
    ) {
        hub_of(object).walk(most, step);
    }
}

impl Visit {
    /// The answer for an entry that stays, or has gone.
    pub(crate) fn gone_if(gone: bool) -> Visit {
        if gone { Visit::Gone } else { Visit::Keep }
    }

    fn flow(self) -> ControlFlow<()> {
        match self {
            Visit::Keep | Visit::Gone => ControlFlow::Continue(()),
            Visit::Stop => ControlFlow::Break(()),
        }
    }
}

#[cfg(not(any(feature = "naive-rmap", feature = "pv")))]
type Chosen = ByBacking;
#[cfg(feature = "naive-rmap")]
type Chosen = naive::ByPage;
#[cfg(feature = "pv-obm")]
type Chosen = pv::PvObm;
#[cfg(feature = "pv-stock")]
type Chosen = pv::PvStock;

/// The name of the reverse map in use, as a build chooses it.
pub const NAME: &str = if cfg!(feature = "pv-obm") {
    "pv-obm"
} else if cfg!(feature = "pv-stock") {
    "pv-stock"
} else if cfg!(feature = "naive-rmap") {
    "naive"
} else {
    "backings"
};

/// The reverse map in use.
#[cfg(not(feature = "faulty-rmap"))]
pub type Map = Chosen;
/// The reverse map in use.
#[cfg(feature = "faulty-rmap")]
pub type Map = faulty::Skipping<Chosen>;

/// What each pmap has of the reverse map in use.
pub type PmapState = <Map as ReverseMap>::PmapState;
/// What an operation on a pmap holds, in the reverse map in use.
pub type Guard<'p> = <Map as ReverseMap>::Guard<'p>;
/// Room for entries, in the reverse map in use.
pub type Ticket<'p> = <Map as ReverseMap>::Ticket<'p>;
/// What is in the way, in the reverse map in use.
pub type Blocked = <Map as ReverseMap>::Blocked;

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
    let scanned = scan_mapped(
        vm,
        object,
        pages,
        false,
        |gather, (page, pfn, _), pmap, va| {
            let found = pmap.gather_remove(vm, &ksync::pin(), va, pfn, gather)?;
            note(page, found);
            done.visits += 1;
            done.removed += usize::from(found != Scan::Absent);
            // A claim is not listed. What is listed is in the tables, unless their root is closed: then it is unlisted here,
            // not at the end of the pmap, because the frame may have another use by then.
            Ok(match found {
                Scan::Found(_) => Visit::Gone,
                Scan::Absent => Visit::gone_if(Map::PER_PAGE),
                Scan::Unclaimed => Visit::Keep,
            })
        },
    );
    // Only the flags of pages that the scan looked for: a page without MAPPED at its beginning may have been mapped
    // since.
    done.removed += scanned.leaves;
    for page in scanned.pages {
        debug_assert!(
            vm.rmap.is_unlisted(page),
            "a page has entries after their removal"
        );
        // What was mapped may have been written to.
        page.clear_flag(Flags::MAPPED | Flags::MULTI | Flags::WRITEABLE | Flags::UNWRITTEN);
    }
    done
}

/// Passes of a scan after which it divides leaves of 2 MiB where it finds them. It needs three where there is memory, unless a
/// program makes leaves again as fast as they are divided.
const PUT_OFF: usize = 16;

/// What a scan has done.
struct Scanned<'a> {
    /// The pages that were scanned for: those with MAPPED.
    pages: SmallVec<[&'a Page; 32]>,
    /// Leaves of 2 MiB that were removed because they could not be divided.
    leaves: usize,
}

/// Those of the pages, which the caller holds hard-busy, that may be mapped.
fn mapped_of<'a>(pages: impl Iterator<Item = &'a Page>) -> SmallVec<[&'a Page; 32]> {
    // In every design: MAPPED is read without a list, and a fault sets it between two looks at the busy state (`mark_held`).
    fence(SeqCst);
    pages
        .filter(|page| {
            debug_assert!(page.is_hard_busy());
            page.has(Flags::MAPPED)
        })
        .collect()
}

/// What a pass of a scan gathers, with room for the places of these pages, or for a few, and for as many leaves that are put
/// off, if there were some in the pass before.
fn gather_for<M: Machine>(
    vm: &Vm<M>,
    pages: Option<(&Object, &SmallVec<[&Page; 32]>)>,
    passes: usize,
) -> ScanGather {
    let mut gather = ScanGather::new();
    let places = pages.map_or(0, |(object, pages)| vm.rmap.places(object, pages));
    gather.make_room(places);
    if passes < PUT_OFF {
        gather.put_leaves_off(if passes == 0 { 0 } else { places });
    }
    gather
}

/// Visits every address at which the pages, which the caller holds hard-busy, may be mapped, and flushes once, when no
/// lock is held. If there is no room to record another pmap, or `visit` meets another page's list held, it flushes and
/// begins again: `visit` then finds the first addresses already changed, and the scan gets further. With `shared`, for a
/// visitor that hardly ever takes an entry out, beside other such scans, until one must go.
///
/// Where the scan holds a hub's spin locks, leaves of 2 MiB are divided after the pass, with no lock held, and the scan
/// begins again: a division makes a table and writes its 512 entries, and an object may have a leaf in every space.
fn scan_mapped<'a, M: Machine>(
    vm: &Vm<M>,
    object: &Object,
    pages: impl Iterator<Item = &'a Page>,
    mut shared: bool,
    mut visit: impl FnMut(
        &mut ScanGather,
        (&Page, Pfn, Sought),
        &Arc<Pmap>,
        u64,
    ) -> Result<Visit, Blocked>,
) -> Scanned<'a> {
    let mapped = mapped_of(pages);
    let (mut many, mut leaves) = (mapped.iter().any(|page| page.has(Flags::MULTI)), 0);
    let mut passes = if Map::PER_PAGE { PUT_OFF } else { 0 };
    let mut all = mapped.is_empty();
    while !all {
        let mut gather = gather_for(vm, many.then_some((object, &mapped)), passes);
        let mut in_the_way = None;
        let mut visitor = |n: usize, pmap: &Arc<Pmap>, va: u64| {
            if !gather.has_room() {
                return Visit::Stop;
            }
            let pfn = vm.pages.pfn(mapped[n]);
            let sought = if shared {
                Sought::Shared(pfn)
            } else {
                Sought::Held(pfn)
            };
            let visited = visit(&mut gather, (mapped[n], pfn, sought), pmap, va);
            stop_if(visited, &mut in_the_way)
        };
        all = if shared {
            vm.rmap.scan_shared(object, &mapped, &mut visitor)
        } else {
            vm.rmap.scan(object, &mapped, &mut visitor)
        };
        many |= !all && in_the_way.is_none();
        let undivided = gather.take_leaves();
        join_removals(object, &mapped, &mut gather);
        gather.finish(vm);
        if let Some(blocked) = in_the_way {
            // Perhaps because this scan shares the list with itself: the next one does not.
            shared = false;
            vm.rmap.wait(blocked);
        }
        all &= undivided.is_empty();
        passes += 1;
        for leaf in undivided {
            leaves += usize::from(leaf.pmap.divide_unlocked(vm, leaf.va, leaf.pte));
        }
    }
    Scanned {
        pages: mapped,
        leaves,
    }
}

/// Where entries are listed, a removal unlists an entry before its flush, and a scan that comes between the two does not meet the
/// entry. So after the lists it looks at each mapping of the object, which is attached until that flush is over, for flushes that are due
/// where the pages may have been mapped, and makes them. Without that a frame could be used again while a CPU still writes to it.
/// Pages of private memory are freed after the last attachment, and so after all flushes.
fn join_removals(object: &Object, pages: &[&Page], gather: &mut ScanGather) {
    if Map::FINDS_EXTENTS || !object.is_freed_while_mapped() {
        return;
    }
    // Not a walk, which lets go of the locks: the caller may have no reference on the object, but a page of it.
    let _all: ControlFlow<()> = hub_of(object).scan(|extent| {
        // Page by page: the extent that is announced for shared memory is longer than the memory.
        let addresses = pages.iter().filter_map(|page| extent.address(page.index()));
        let (low, high) =
            addresses.fold((u64::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
        if low <= high {
            gather.flush_pending(extent.pmap(), &(low..high + PAGE_SIZE as u64));
        }
        ControlFlow::Continue(())
    });
}

/// The answer of a visitor, which stops if it is blocked, and remembers by what.
fn stop_if(answer: Result<Visit, Blocked>, in_the_way: &mut Option<Blocked>) -> Visit {
    answer.unwrap_or_else(|blocked| {
        *in_the_way = Some(blocked);
        Visit::Stop
    })
}

/// Number of the mappings of an object.
fn mappings(object: &Object) -> usize {
    let mut places = 0;
    let _: ControlFlow<()> = hub_of(object).scan(|_| {
        places += 1;
        ControlFlow::Continue(())
    });
    places
}

/// Makes every entry of the page read-only and marks the page dirty if an entry was. Conditions as for [`remove_all`].
pub fn write_protect_all<M: Machine>(vm: &Vm<M>, object: &Object, index: u32, pfn: Pfn) {
    let page = vm.pages.get(pfn);
    debug_assert!(page.index() == index);
    scan_mapped(
        vm,
        object,
        core::iter::once(page),
        true,
        |gather, (page, _, sought), pmap, va| {
            let pin = ksync::pin();
            let (found, visit) = pmap.gather_write_protect(vm, &pin, va, sought, gather)?;
            note(page, found);
            Ok(visit)
        },
    );
    page.clear_flag(Flags::WRITEABLE);
}

/// Counts, up to `limit`, the signs that the page was used, and clears those that it counts: its REFERENCED flag, and the entries
/// with the accessed bit. The caller holds the page busy; soft busy is enough, and entries made meanwhile may be missed. The TLBs
/// are not flushed, and a CPU that has the entry cached does not set the bit again: the answer is an estimate.
pub fn referenced<M: Machine>(
    vm: &Vm<M>,
    object: &Object,
    index: u32,
    pfn: Pfn,
    limit: usize,
) -> usize {
    let page = vm.pages.get(pfn);
    debug_assert!(page.index() == index);
    let mut count = usize::from(page.clear_flag(Flags::REFERENCED));
    if page.has(Flags::MAPPED) && count < limit {
        let _all = vm.rmap.scan_shared(object, &[page], &mut |_, pmap, va| {
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
