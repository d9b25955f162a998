//! Page faults.
//!
//! Guarantee: when [`Space::fault`] returns `Ok`, the access was allowed by the map at some moment of the call, and the
//! page-table entry then mapped the page that belongs at the address.
//!
//! Mechanism: an attempt runs pinned, looks everything up without a lock, decides, and enters the page under a check
//! that nothing it relied on has changed. Steps that allocate kernel structures, take the map's lock or wait are done
//! unpinned, after which the attempt starts again. `doc/vm.md` has the time lines.
//!
//! | page found | access | action |
//! |---|---|---|
//! | nowhere | any | a page of zeroes is inserted in the front layer (for a hole of a file: in the file) |
//! | in the front | any | entered, writable if shared or seen by this space only; a read of shared pages maps others |
//! | deeper | read | entered read-only, with neighbours if in a file |
//! | deeper | write | moved to the front if only this space can see it, else copied |
//! | nowhere, over a device | any but a private write | the device's frame is entered, unmanaged |
//! | nowhere, over a device | private write | the frame is copied to the front |
//! | no layer, in a special mapping | read | the special object's page is entered, unmanaged (`special`) |
//! | no layer | any other | the mapping gets its first layer (`slow`) |
//! | front visible to others (NEEDS_COPY) | write | a new front layer first (`slow`) |

mod around;
mod copy;
mod device;
mod fill;
mod leaf;
mod remap_pages;
mod slow;
mod special;
mod superpage;

use ksync::CpuPin;
use rust_alloc::sync::Arc;

pub(crate) use self::superpage::{BLOCK_BYTES, has_block, wants};
use crate::alloc::NoMemory;
use crate::backing::{Backing, Chain};
use crate::map::{EntryState, MapEntry, Prot};
use crate::object::{Object, Slot};
use crate::page::{PAGE_SIZE, Page, Pfn, Wanted};
use crate::pmap::{self, EnterError, Entered, Pte};
use crate::rmap::{Blocked, ReverseMap, Ticket, marks};
use crate::space::Space;
use crate::{Machine, Vm};

/// The kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Load.
    Read,
    /// Store, or a load in preparation of a store.
    Write,
    /// Instruction fetch.
    Exec,
}

/// Why an access is not possible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FaultError {
    /// Nothing is mapped there (SEGV_MAPERR).
    NotMapped,
    /// The mapping does not allow it (SEGV_ACCERR).
    Denied,
    /// The mapping has no page there: beyond the end of the file (BUS_ADRERR).
    Bus,
    /// There is no memory for the page or a table.
    NoMemory,
}

impl From<NoMemory> for FaultError {
    fn from(NoMemory: NoMemory) -> FaultError {
        FaultError::NoMemory
    }
}

/// Result of an attempt. All variants carry values of one size, so that it is returned in two registers.
pub(crate) enum Step {
    Done,
    Fail(FaultError),
    /// Something changed meanwhile: try again.
    Again,
    /// This page is held busy, and marked as wanted: wait, then try again.
    Busy(Pfn),
    /// The entry is being replaced under the map's lock: take that lock, then try again.
    Replaced,
    /// Needs work that cannot be done while pinned.
    Slow(Slow),
    /// The reverse map is at work on a page: wait, then try again.
    Blocked(Blocked),
}

/// Work that needs the map's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Slow {
    /// Nothing is mapped here, but a stack may be able to grow.
    GrowDown,
    /// The entry has no layer yet.
    MakeObject,
    /// The entry shows the special object, and is read. Not with the map's lock.
    ReadSpecial,
    /// Others may see the front layer: a new one is needed.
    Shadow,
    /// The fault is served, but the chain is too long.
    Collapse,
    /// A leaf of 2 MiB may be filled. Not with the map's lock.
    Leaf,
}

/// One attempt, with what it has found so far.
struct Attempt<'a, M: Machine> {
    space: &'a Space,
    vm: &'a Vm<M>,
    pin: &'a CpuPin,
    ticket: Ticket<'a>,
    entry: &'a MapEntry,
    /// The entry's state, read before anything else of the entry.
    state: EntryState,
    chain: &'a Chain,
    /// The chain's.
    layers: &'a [Arc<Backing>],
    va: u64,
    write: bool,
}

impl Space {
    /// Makes the page at `va` accessible. Sleeping context; may allocate, and take the map's lock.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn fault<M: Machine>(&self, vm: &Vm<M>, va: u64, access: Access) -> Result<(), FaultError> {
        let va = va & !0xfff;
        loop {
            let guard = vm.rmap.begin(self.pmap());
            let (guard, ticket) = vm.rmap.prepare(vm, guard, self.pmap(), 1)?;
            let pin = ksync::pin();
            let step = self.attempt(vm, &pin, ticket, va, access);
            if matches!(step, Step::Done) {
                return Ok(());
            }
            // What follows may sleep.
            vm.rmap.end(guard);
            if self.go_on(vm, pin, (va, access), step)? {
                return Ok(());
            }
        }
    }

    /// Handles the result of an attempt that did not serve the fault. Returns whether the fault is served now; if not,
    /// the caller tries again.
    #[cold]
    #[inline(never)]
    fn go_on<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: CpuPin,
        (va, access): (u64, Access),
        step: Step,
    ) -> Result<bool, FaultError> {
        match step {
            Step::Done => return Ok(true),
            Step::Fail(why) => return Err(why),
            Step::Again => {
                vm.stats.get(&pin).restarts.add(1);
                drop(pin);
                // The CPU that is in the way may need this CPU's cache line, or its time slice.
                ksync::relax();
            }
            Step::Busy(pfn) => {
                vm.stats.get(&pin).restarts.add(1);
                drop(pin);
                vm.pages.get(pfn).wait();
            }
            Step::Replaced => {
                vm.stats.get(&pin).restarts.add(1);
                drop(pin);
                drop(self.lock());
            }
            Step::Slow(Slow::Leaf) => {
                drop(pin);
                let (pin, step) = self.fill_leaf(vm, va);
                return self.go_on(vm, pin, (va, access), step);
            }
            Step::Slow(Slow::ReadSpecial) => {
                drop(pin);
                let (pin, step) = self.read_special(vm, va, access);
                return self.go_on(vm, pin, (va, access), step);
            }
            Step::Slow(what) => {
                drop(pin);
                return self.slow(vm, va, what);
            }
            Step::Blocked(blocked) => {
                vm.stats.get(&pin).restarts.add(1);
                drop(pin);
                vm.rmap.wait(blocked);
            }
        }
        Ok(false)
    }

    /// One attempt, pinned. Never sleeps.
    #[inline(always)]
    fn attempt<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        ticket: Ticket<'_>,
        va: u64,
        access: Access,
    ) -> Step {
        self.look(vm, pin, ticket, va, access, |attempt| attempt.serve())
    }

    /// Looks up what an attempt works on, and passes it to `then`; or returns the step that ends the attempt.
    #[inline(always)]
    fn look<'a, M: Machine>(
        &'a self,
        vm: &'a Vm<M>,
        pin: &'a CpuPin,
        ticket: Ticket<'a>,
        va: u64,
        access: Access,
        then: impl FnOnce(Attempt<'a, M>) -> Step,
    ) -> Step {
        let Some(entry) = self.find(pin, va) else {
            return Step::Slow(Slow::GrowDown);
        };
        let state = entry.state();
        if state.is_dead() {
            return Step::Replaced;
        }
        if !allows(entry.prot(), access) {
            return Step::Fail(FaultError::Denied);
        }
        let Some(chain) = entry.chain(pin) else {
            let special = entry.is_special() && access != Access::Write;
            return Step::Slow(if special {
                Slow::ReadSpecial
            } else {
                Slow::MakeObject
            });
        };
        let write = access == Access::Write;
        if write && state.needs_copy() {
            return Step::Slow(Slow::Shadow);
        }
        then(Attempt {
            space: self,
            vm,
            pin,
            ticket,
            entry,
            state,
            chain,
            layers: chain.layers(),
            va,
            write,
        })
    }
}

impl<M: Machine> Attempt<'_, M> {
    /// Looks for the page from the front layer down, and does what the module's table says.
    #[inline(always)]
    fn serve(&self) -> Step {
        let mut front = None;
        for (depth, layer) in self.layers.iter().enumerate() {
            let Some(object) = layer.object(self.pin) else {
                return Step::Again;
            };
            let index = layer.index(self.va);
            let slot = object.slot(self.pin, index);
            if let Some(slot) = slot
                && let Some(pfn) = slot.page()
            {
                // Pages beyond the end of a file may exist for a moment during a truncation. Private copies stay in
                // their object when the file shrinks.
                if !object.has_index(index) || !self.is_reached(self.va, depth) {
                    return Step::Fail(FaultError::Bus);
                }
                let found = Found {
                    depth,
                    object,
                    index,
                    pfn,
                    page: self.vm.pages.get(pfn),
                };
                let Some(front) = front else {
                    return self.resident(&found);
                };
                return if self.write {
                    self.copy(&found, slot, front)
                } else {
                    self.resident(&found)
                };
            }
            front.get_or_insert(EmptySlot {
                object,
                index,
                slot,
            });
        }
        match front {
            Some(front) if front.object.is_anon() => self.fill(front),
            Some(front) => self.fill_layers(front),
            None => Step::Again,
        }
    }
}

/// An empty slot of a layer, for a new page.
#[derive(Clone, Copy)]
struct EmptySlot<'a> {
    object: &'a Object,
    index: u32,
    /// `None` if its node does not exist yet.
    slot: Option<&'a Slot>,
}

/// A page found in one of the layers: a hint.
struct Found<'a> {
    depth: usize,
    object: &'a Object,
    index: u32,
    pfn: Pfn,
    page: &'a Page,
}

impl Found<'_> {
    /// After a claim: whether the page still is what it was, and scans will find its entry.
    #[inline]
    fn is_still(&self, write: bool) -> bool {
        let holds = || self.object.holds(self.page, self.index);
        self.page.mark_held(marks(write), holds)
    }

    /// The page is held busy: marks it wanted for `what`, and returns the next step.
    #[cold]
    fn busy(&self, what: Wanted) -> Step {
        if self.object.want(self.index, self.pfn, self.page, what) {
            Step::Busy(self.pfn)
        } else {
            Step::Again
        }
    }
}

impl<M: Machine> Attempt<'_, M> {
    /// Whether the entry has not changed since the attempt began. Asked under the lock of the page table, with what else the decision
    /// rests on.
    #[inline(always)]
    fn is_unchanged(&self) -> bool {
        self.entry.state() == self.state
    }

    /// Whether a layer has no page at an address.
    #[inline(always)]
    fn is_empty_at(&self, layer: &Backing, va: u64) -> bool {
        let object = layer.object(self.pin);
        object.is_some_and(|object| object.lookup(self.pin, layer.index(va)).is_none())
    }

    #[inline(always)]
    fn empty_above(&self, va: u64, depth: usize) -> bool {
        depth == 0
            || self.layers[..depth]
                .iter()
                .all(|layer| self.is_empty_at(layer, va))
    }

    /// Whether all decisions still hold for a page that was found at `depth`. A private copy above a file is not entered beyond its end:
    /// truncation lowers the limit, and then takes this lock, when it looks for copies.
    #[inline(always)]
    fn check_found(&self, depth: usize) -> bool {
        self.is_unchanged() && (self.layers.len() == 1 || self.is_visible(depth))
    }

    /// Whether the page of the layer at `depth` is what the chain shows: no layer above has one, and a file below reaches so far.
    #[inline(never)]
    fn is_visible(&self, depth: usize) -> bool {
        self.empty_above(self.va, depth) && self.is_reached(self.va, depth)
    }

    /// As `is_visible`, when the front layer has a page by now. Says nothing of a page of the file itself: that it has not been
    /// taken away is asked separately.
    #[inline(always)]
    fn is_visible_below_front(&self, depth: usize) -> bool {
        self.layers.len() == 2 || self.empty_between(depth) && self.is_reached(self.va, depth)
    }

    /// Whether the file below the layer at `depth`, if there is one, reaches as far as `va`.
    #[inline(always)]
    fn is_reached(&self, va: u64, depth: usize) -> bool {
        depth + 1 == self.layers.len() || !self.chain.is_cut_off(self.pin, va)
    }

    /// Whether no layer between the front one and that at `depth` has a page here. Asked when the front layer has one: folding may
    /// have moved a page from a layer that was looked at later to one that was looked at earlier, and then neither had it.
    #[inline(always)]
    fn empty_between(&self, depth: usize) -> bool {
        depth <= 1
            || self.layers[1..depth]
                .iter()
                .all(|layer| self.is_empty_at(layer, self.va))
    }

    /// Whether no layer except `except` has a page here.
    #[inline(never)]
    fn empty_but(&self, except: usize) -> bool {
        let mut layers = self.layers.iter().enumerate();
        layers.all(|(depth, layer)| depth == except || self.is_empty_at(layer, self.va))
    }

    fn prot(&self, write: bool) -> pmap::Prot {
        pmap::Prot {
            write,
            exec: self.entry.prot().contains(Prot::EXEC),
        }
    }

    /// Whether a page in the front layer may be entered writable. For a file only if the access is a write, so that
    /// pages that are only read stay clean.
    fn front_writable(&self, anon: bool) -> bool {
        self.entry.prot().contains(Prot::WRITE)
            && !self.state.needs_copy()
            && (self.write || anon)
            && (anon || self.entry.is_shared())
    }

    /// Enters a page that the caller holds busy and that is the right one if `check` holds: replaces any other entry.
    #[inline(always)]
    fn enter_busy(&self, pfn: Pfn, writable: bool, check: impl Fn() -> bool) -> Step {
        let mut leaf = Pte::user(pfn, self.prot(writable));
        if writable {
            leaf = leaf.dirtied();
        }
        self.enter_leaf(leaf, check)
    }

    /// Enters a leaf whose page is held busy, so that no scan works on it.
    #[inline(always)]
    fn enter_leaf(&self, leaf: Pte, check: impl Fn() -> bool) -> Step {
        match self
            .space
            .pmap()
            .enter_new(self.vm, self.pin, &self.ticket, self.va, leaf, &check)
        {
            Ok(_) => Step::Done,
            Err(EnterError::Stale) => Step::Again,
            Err(_) => self.enter_over(leaf, &check),
        }
    }

    /// Enters a leaf whose page is held busy, replacing or flushing another frame's entry.
    #[inline(never)]
    fn enter_over(&self, leaf: Pte, check: &dyn Fn() -> bool) -> Step {
        let pmap = self.space.pmap();
        match pmap.enter_over(self.vm, self.pin, &self.ticket, self.va, leaf, check) {
            Ok(_) => Step::Done,
            Err(EnterError::Blocked(blocked)) => Step::Blocked(blocked),
            Err(EnterError::NoTable(NoMemory)) => Step::Fail(FaultError::NoMemory),
            Err(_) => Step::Again,
        }
    }

    /// Enters a page that is in the front layer, or deeper if the access is not a write; after a read perhaps others.
    #[inline(never)]
    fn resident(&self, found: &Found<'_>) -> Step {
        if found.page.is_hard_busy() {
            return found.busy(Wanted::Kept);
        }
        let writable = found.depth == 0 && self.front_writable(found.object.is_anon());
        if writable && !found.object.is_anon() {
            found.object.note_store(self.vm);
        }
        let mut leaf = Pte::user(found.pfn, self.prot(writable));
        if self.write {
            leaf = leaf.dirtied();
        }
        let entered = self.space.pmap().try_resident(
            self.vm,
            self.pin,
            &self.ticket,
            self.va,
            leaf,
            false,
            move || self.check_found(found.depth),
            move || found.is_still(writable),
        );
        let entered = match entered {
            Err(EnterError::FlushDue) => self.enter_flushed(found, leaf, writable),
            entered => entered,
        };
        let counts = self.vm.stats.get(self.pin);
        match entered {
            Ok(Entered::New) => {
                counts.resident.add(1);
                if !self.write && self.vm.fault_around() > PAGE_SIZE as u64 {
                    self.map_around(found);
                }
                self.resident_done(found)
            }
            Ok(_) => {
                counts.upgraded.add(1);
                self.resident_done(found)
            }
            Err(EnterError::Occupied(_)) if found.object.is_anon() => {
                self.displace(found, writable)
            }
            Err(EnterError::NoTable(NoMemory)) => Step::Fail(FaultError::NoMemory),
            Err(EnterError::Retry) => found.busy(Wanted::Kept),
            Err(EnterError::Blocked(blocked)) => Step::Blocked(blocked),
            Err(_) => Step::Again,
        }
    }

    /// A page that was found is entered. If it is the front layer's, the block may have become one that a leaf can map.
    #[inline(always)]
    fn resident_done(&self, found: &Found<'_>) -> Step {
        if self.may_want_superpage() && found.depth == 0 {
            self.promote_alike(found.object, found.index);
        }
        Step::Done
    }

    /// Enters a page that was found, where a flush is due. Not inlined, which keeps the path of other faults small.
    #[cold]
    #[inline(never)]
    fn enter_flushed(
        &self,
        found: &Found<'_>,
        leaf: Pte,
        writable: bool,
    ) -> Result<Entered, EnterError> {
        self.space.pmap().enter_resident(
            self.vm,
            self.pin,
            &self.ticket,
            self.va,
            leaf,
            move || self.check_found(found.depth),
            move || found.is_still(writable),
        )
    }

    /// The layer has a page, but the page-table entry maps an older one: folding has brought the page up.
    #[cold]
    fn displace(&self, found: &Found<'_>, writable: bool) -> Step {
        let Some(_busy) = found.page.try_soft_busy() else {
            return found.busy(Wanted::Soft);
        };
        if found.page.is(found.object.identity(), found.index) {
            found.page.mark(marks(writable));
            self.enter_busy(found.pfn, writable, || self.check_found(found.depth))
        } else {
            Step::Again
        }
    }
}

/// Whether a protection allows an access. A page that can be written or executed can be read.
#[inline]
pub(crate) fn allows(prot: Prot, access: Access) -> bool {
    match access {
        Access::Read => !prot.is_empty(),
        Access::Write => prot.contains(Prot::WRITE),
        Access::Exec => prot.contains(Prot::EXEC),
    }
}
