//! Page tables of one address space: a cache of its map and objects.
//!
//! *Guarantees.*
//! - A translation is entered only if the caller's checks (the map entry's state, the page's identity) hold at a moment
//!   after which every removal of the range or the page finds the entry.
//! - When a gather is finished, no CPU can use the translations that [`Pmap::remove_range`], [`Pmap::protect_range`] or
//!   a scan recorded in it.
//! - Any part of the page tables may be dropped at any moment; the next access faults it in again. No dirty bit is
//!   lost.
//! - Each table page is counted, is freed when it is empty, and is never freed while a CPU walks it.
//! - Switching to a pmap allocates nothing: a pmap without tables runs on a shared empty root.
//!
//! *Mechanism.* Real x86-64 tables in real frames. Walks take no lock; they run pinned, and an unlinked table page is
//! freed after a grace period. Filling an empty entry takes the table's lock. Emptying one does not if a scan of the
//! reverse map does it. `doc/vm-pmap.md` draws the protocols as time lines. One concept a file:
//!
//! | file | subject |
//! |---|---|
//! | [`pte`] | an entry as a value |
//! | [`table`] | a table page: words, lock, account |
//! | `walk` | walking, making missing tables, unlinking empty ones |
//! | `enter` | filling entries |
//! | `large` | leaves of 2 MiB: made of a table, divided, restricted, removed |
//! | `look` | reading the entries of a range |
//! | `pending` | flushes that are due |
//! | `range` | removal and protection of address ranges |
//! | `protect` | write protection high in the tree, and pushing it down |
//! | `scan` | operations of the reverse map on single entries |
//! | `release` | exit, and dropping tables |
//!
//! Whether a page is writable is the AND of the W bits along the path; no code relies on a leaf's W alone.
//!
//! A leaf of 2 MiB may stand for a table whose entries agree: [`Pmap::promote`] makes one where they do, a fault
//! may fill one at once, and whatever concerns a part of it divides it. See `doc/vm-superpages.md`.
//!
//! Not implemented, and not ruled out: tables that several pmaps share (a directory entry would say so, and pruning,
//! push-down and release would stop at it).

mod enter;
mod large;
mod look;
mod pending;
mod protect;
pub mod pte;
mod range;
mod release;
mod scan;
pub mod table;
mod walk;

use core::ops::Range;

use ksync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use ksync::{CpuPin, PerCpu};

pub use self::enter::{AROUND, EnterError, Entered};
use self::pending::Pending;
pub(crate) use self::pending::{Listed, Loss};
pub use self::pte::{Prot, Pte};
pub use self::range::Revoke;
pub(crate) use self::range::SPAN as TABLE_BYTES;
pub use self::walk::Mapped;

use crate::asid::PmapId;
use crate::page::Pfn;
use crate::rmap::PmapState;
pub use crate::rmap::Scan;
use crate::space::background::Waiting;
use crate::stats::Tally;
use crate::tlb::ActiveSet;
use crate::{Machine, Vm};

/// First address beyond user space.
pub const USER_END: u64 = 1 << 47;

/// In place of a root frame: the pmap was released and gets no tables any more. No frame has this number.
const CLOSED: u32 = Pfn::NONE.0 - 1;

/// The page tables of one address space. Usually inside a `Space`.
///
/// Each group of fields has a cache line of its own: fields that switches and flushes write, fields that removals and
/// scans write, and fields that every fault reads.
#[repr(C, align(64))]
pub struct Pmap {
    /// CPUs that run the pmap. Atomic, each CPU its own bit.
    active: ActiveSet,
    /// Raised by each flush, before the active set is read. Atomic.
    generation: AtomicU64,
    /// Number of table pages, the root included. Atomic, a count that orders nothing; changed only when a table is made
    /// or unlinked.
    tables: AtomicU32,
    /// Operations that have taken translations away and not yet flushed. Atomic.
    pending: Pending,
    lookup: Lookup,
    /// Its space's link in the queue for work in the background.
    waiting: Waiting,
    /// What it has of the reverse map.
    listed: PmapState,
}

/// Fields that walks and switches read, and that are hardly ever written.
#[repr(C, align(64))]
struct Lookup {
    /// Frame of the level-4 table, [`Pfn::NONE`] or [`CLOSED`]. Set from none by the first enter, reset under the
    /// root's lock; closed for good by a release.
    root: AtomicU32,
    /// The id by which CPUs recognise translations that they kept. Set once.
    id: PmapId,
}

#[cfg(not(any(loom, shuttle)))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(Pmap, pending) == 64 && offset_of!(Pmap, lookup) == 128);
    assert!(size_of::<Pending>() == 64 && size_of::<Lookup>() == 64);
};

/// What a CPU needs to run a pmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootInfo {
    /// Frame of the level-4 table.
    pub root: Pfn,
    /// Changes whenever translations that a CPU may have kept from an earlier activation became invalid.
    pub generation: u64,
    /// The pmap's id, never reused; 0 if no CPU has run it yet.
    pub pmap: u64,
}

/// State that all pmaps of a [`Vm`] share.
pub struct Pmaps {
    /// The root without user entries, whose kernel half every root copies. Const, as is its kernel half.
    empty_root: Pfn,
    counts: PerCpu<Counts>,
}

/// Event counts of one CPU, which alone adds to them.
#[derive(Default)]
pub struct Counts {
    /// Flushes that interrupted other CPUs.
    pub sent: Tally,
    /// CPUs that they interrupted.
    pub targets: Tally,
    /// Flushes that needed no other CPU.
    pub avoided: Tally,
    /// Table pages made.
    pub tables_made: Tally,
    /// Empty table pages unlinked.
    pub tables_pruned: Tally,
    /// Addresses that scans looked at.
    pub scan_visits: Tally,
    /// Entries removed by scans.
    pub scan_removed: Tally,
    /// Ids given to pmaps.
    pub(crate) numbered: Tally,
}

impl Pmaps {
    /// Takes over the template root. `empty_root` is a frame whose words 256.. are the kernel half, complete and
    /// constant from now on (a kernel that grows fills the level-4 entries before), and whose words ..256 are zero.
    pub fn new(ncpus: usize, empty_root: Pfn) -> Pmaps {
        Pmaps {
            empty_root,
            counts: PerCpu::new(ncpus, |_| Counts::default()),
        }
    }

    /// The root without user entries. Idle CPUs and kernel threads run on it too.
    pub fn empty_root(&self) -> Pfn {
        self.empty_root
    }

    /// This CPU's counts.
    pub fn counts<'p>(&'p self, pin: &'p CpuPin) -> &'p Counts {
        self.counts.get(pin)
    }

    /// The counts of all CPUs.
    pub fn all_counts(&self) -> impl Iterator<Item = &Counts> {
        self.counts.iter()
    }
}

impl Pmap {
    /// A pmap without tables. Allocates nothing.
    pub fn new() -> Pmap {
        Pmap {
            active: ActiveSet::default(),
            generation: AtomicU64::new(0),
            tables: AtomicU32::new(0),
            pending: Pending::default(),
            lookup: Lookup {
                root: AtomicU32::new(Pfn::NONE.0),
                id: PmapId::default(),
            },
            waiting: Waiting::default(),
            listed: PmapState::default(),
        }
    }

    /// What the pmap has of the reverse map.
    #[inline]
    pub fn listed(&self) -> &PmapState {
        &self.listed
    }

    pub(crate) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Marks this CPU as one that runs the pmap and returns the root to load.
    ///
    /// The caller disables interrupts between this call and the load of the root, so that no flush request is served in
    /// between: the root that such a request loads would be replaced by the older one. It deactivates the pmap that the
    /// CPU ran before after the load.
    #[inline]
    pub fn activate<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin) -> RootInfo {
        self.lookup.id.get_or_give(vm, pin);
        self.active.enter(pin.cpu());
        self.root_info(vm)
    }

    /// The root to load now, for a CPU that runs the pmap and was asked for a full flush.
    #[inline]
    pub fn root_info<M: Machine>(&self, vm: &Vm<M>) -> RootInfo {
        self.root_info_or(vm.pmaps.empty_root)
    }

    /// As [`root_info`](Pmap::root_info), for callers that know the empty root.
    #[inline]
    pub fn root_info_or(&self, empty_root: Pfn) -> RootInfo {
        // Read before the root, so that a CPU with a generation has at least the root that it came with.
        let generation = self.generation.load(SeqCst);
        RootInfo {
            root: self.root().unwrap_or(empty_root),
            generation,
            pmap: self.lookup.id.get(),
        }
    }

    pub(crate) fn id(&self) -> &PmapId {
        &self.lookup.id
    }

    /// Marks this CPU, which has loaded another root, as one that no longer runs the pmap. Without address-space
    /// identifiers that load has flushed its translations; with them, see [`asid`](crate::asid).
    #[inline]
    pub fn deactivate(&self, pin: &CpuPin) {
        self.active.leave(pin.cpu());
    }

    /// The CPUs that run the pmap.
    pub fn active(&self) -> &ActiveSet {
        &self.active
    }

    /// Number of table pages, the root included. Exact while no CPU enters, removes or scans.
    pub fn tables(&self) -> usize {
        self.tables.load(Relaxed) as usize
    }

    /// Whether an operation other than `own`, the caller's, has taken away at least `loss` from a part of `range` and
    /// not yet flushed. To be called after the entries were read.
    #[inline(always)]
    pub(crate) fn is_pending(&self, own: Option<&Listed>, range: &Range<u64>, loss: Loss) -> bool {
        self.pending.overlaps(own, range, loss)
    }

    /// Whether a CPU may still use another frame at an empty entry of `start..end`. The table's lock is held.
    #[inline(always)]
    fn is_frame_due(&self, start: u64, end: u64) -> bool {
        self.is_pending(None, &(start..end), Loss::Frames)
    }

    /// Lists an operation that is about to take translations of `range` away.
    pub(crate) fn raise_pending(&self, range: &Range<u64>, loss: Loss) -> Listed {
        self.pending.raise(range, loss)
    }

    /// Extends a listed operation to `range`.
    pub(crate) fn widen_pending(&self, listed: &Listed, range: &Range<u64>, loss: Loss) {
        self.pending.widen(listed, range, loss);
    }

    /// Takes an operation that has flushed out of the list.
    pub(crate) fn lower_pending(&self, listed: Listed) {
        self.pending.lower(listed);
    }

    /// Raises the generation; returns the new one.
    pub(crate) fn bump_generation(&self) -> u64 {
        self.generation.fetch_add(1, SeqCst) + 1
    }

    /// The root's frame; `None` if the CPU is to load the empty root.
    #[inline]
    pub fn root(&self) -> Option<Pfn> {
        let root = self.lookup.root.load(SeqCst);
        (root < CLOSED).then_some(Pfn(root))
    }
}

impl Default for Pmap {
    fn default() -> Self {
        Pmap::new()
    }
}

impl Drop for Pmap {
    fn drop(&mut self) {
        debug_assert!(self.root().is_none(), "a pmap was dropped with its tables");
    }
}
