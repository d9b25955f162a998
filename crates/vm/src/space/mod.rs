//! Address spaces: a map and its page tables.
//!
//! One file for each group of operations. An operation that changes the map holds the map's lock for its whole length,
//! so that two changes never interleave. Faults take no lock, see [`fault`](crate::fault).
//!
//! A space must be [cleared](Space::clear) before it is dropped: `drop` gets no [`Vm`] to which it could return memory.

mod advise;
pub(crate) mod background;
mod chaos;
mod collapse;
mod detach;
mod edit;
mod end;
mod fork;
mod inspect;
mod mmap;
mod remap;
mod resident;
mod special;
mod sweep;

use ksync::atomic::{AtomicBool, Ordering::Relaxed};
use ksync::{CpuPin, Mutex};
use rust_alloc::sync::Arc;

pub use self::advise::Advice;
pub use self::chaos::Chaos;
pub(crate) use self::collapse::Effort;
pub use self::collapse::{COPY_DEPTH, HARD_DEPTH};
use self::edit::MapState;
pub(crate) use self::edit::{Entries, Locked};
pub use self::inspect::{Cost, EntryInfo, Usage};
pub(crate) use self::mmap::add_plain;
pub use self::mmap::{MapArgs, MapFlags, Source};
pub use self::remap::{RemapArgs, RemapTarget};
pub use self::resident::{MappedPage, Resident, ResidentKinds, Shared, WHOLE};
use crate::alloc::NoMemory;
use crate::map::{MapEntry, MapLock, Tree};
use crate::page::PAGE_SIZE;
use crate::pmap::{Pmap, RootInfo, USER_END};
use crate::{Machine, Vm};

/// Lowest address that may be mapped: Linux's default for `mmap_min_addr`.
pub const USER_LOW: u64 = 0x1_0000;

/// Why an operation on a space failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmError {
    /// No memory, no room in the address space, or too many mappings.
    NoMemory,
    /// Part of the range is not mapped.
    NotMapped,
    /// A parameter makes no sense.
    Invalid,
    /// The range is taken, and may not be replaced.
    Exists,
    /// The mapping does not allow it.
    Denied,
    /// The owner of the file does not allow it.
    Refused,
}

impl From<NoMemory> for VmError {
    fn from(NoMemory: NoMemory) -> VmError {
        VmError::NoMemory
    }
}

/// An address space. See the module.
///
/// The fields that faults read end at a cache-line boundary; those that a change of the map writes begin on the next
/// line.
#[repr(C, align(64))]
pub struct Space {
    _before: [u64; 5],
    /// Whether the space gets no superpages. Atomic; faults that would make one read it.
    no_superpages: AtomicBool,
    pmap: Arc<Pmap>,
    /// Faults read it without a lock. Changed under `map`.
    tree: Tree<MapEntry>,
    map: Mutex<MapState, MapLock>,
}

#[cfg(not(any(loom, shuttle)))]
const _: () =
    assert!((core::mem::offset_of!(Space, tree) + Tree::<MapEntry>::READ_END).is_multiple_of(64));

impl Space {
    /// An empty space. New mappings go below `mmap_base` (see [`set_mmap_base`](Space::set_mmap_base)), which is at
    /// first the end of user addresses.
    ///
    /// # Errors
    /// None at present: page tables are made by faults.
    pub fn new<M: Machine>(_vm: &Vm<M>) -> Result<Arc<Space>, NoMemory> {
        let state = MapState::new(USER_LOW, USER_END - PAGE_SIZE as u64);
        Ok(Space::empty(state).complete())
    }

    /// Publishes a space that is fully built, and records it in its pmap, through which work in the background finds
    /// it.
    fn complete(self) -> Arc<Space> {
        let space = Arc::new(self);
        space.pmap.waiting().belong_to(&space);
        space
    }

    fn empty(state: MapState) -> Space {
        Space {
            _before: [0; 5],
            no_superpages: AtomicBool::new(false),
            pmap: Arc::new(Pmap::new()),
            tree: Tree::new(),
            map: Mutex::new(state),
        }
    }

    /// Sets the address below which mappings without an address hint are placed, from the top down; clamped to what may be
    /// mapped.
    pub fn set_mmap_base(&self, base: u64) {
        self.lock().set_mmap_base(base);
    }

    /// Sets whether faults in the space make no superpages from now on, whatever the setting and madvise say. Those that
    /// exist stay. A copy that fork makes inherits it.
    pub fn forbid_superpages(&self, forbid: bool) {
        self.no_superpages.store(forbid, Relaxed);
    }

    /// Whether faults in the space make no superpages.
    #[inline]
    pub fn forbids_superpages(&self) -> bool {
        self.no_superpages.load(Relaxed)
    }

    /// The page tables.
    #[inline]
    pub fn pmap(&self) -> &Arc<Pmap> {
        &self.pmap
    }

    /// An entry that covers `va`. See [`Tree::find`] for what `None` means.
    #[inline(always)]
    pub(crate) fn find<'p>(&'p self, pin: &'p CpuPin, va: u64) -> Option<&'p MapEntry> {
        self.tree.find(pin, va)
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.map.lock())
    }

    /// Marks this CPU as one that runs the space; see [`Pmap::activate`].
    #[inline]
    pub fn activate<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin) -> RootInfo {
        self.pmap.activate(vm, pin)
    }

    /// Marks this CPU, which has loaded another root, as one that no longer runs the space.
    #[inline]
    pub fn deactivate(&self, pin: &CpuPin) {
        self.pmap.deactivate(pin);
    }

    /// Unmaps everything for good, at exec and exit: no thread runs in the space or will, and nothing can be mapped in
    /// it any more. Preemptible.
    ///
    /// Sends no interrupt unless another CPU has the space's root loaded. The page-table entries are not read for dirty
    /// bits, not even those of shared files: a page is marked dirty when it is entered writable.
    ///
    /// Returns the number of pages that were resident.
    pub fn clear<M: Machine>(&self, vm: &Vm<M>) -> u64 {
        let mut map = self.lock();
        let old = map.take_all(vm);
        let resident = self.pmap.release(vm);
        old.for_each(&mut |entry| entry.end_for_good(vm));
        old.end(&vm.epoch, &mut || vm.let_retired_go());
        resident as u64
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        debug_assert!(
            self.tree.is_empty(),
            "a space was dropped with mappings in it"
        );
    }
}
