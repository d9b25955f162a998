//! Objects: pages by index, and the mappings of an object.
//!
//! Guarantee: a page in an object's slot carries the object's identity and belongs to it alone; every page-table entry
//! that maps it can be found through the object's hub, or is listed with the page.
//!
//! Mechanism: pages are inserted by one compare-and-swap, and are hard-busy until the insertion is complete; they are
//! removed by an operation that holds them hard-busy. `limit` is written before a truncation removes pages, and read
//! after a page was inserted: of an insertion and a truncation, one sees the other. An object lives while it has
//! attachments (mappings) or base references; the operation that ends the last one has a `&Vm` and frees the pages.

mod device;
mod file;
mod hub;
mod node;
mod placement;
mod quota;
mod removal;
mod run;
mod slots;
mod swept;
mod watch;

use core::any::Any;
use core::ptr;

use ksync::atomic::{
    AtomicU8, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use ksync::{CpuPin, Mutex, Once, lock_class};
use rust_alloc::sync::Arc;

pub use self::device::{Cache, Frames};
pub use self::hub::{Attachment, ObjectRef, ReverseLock};
pub(crate) use self::hub::{Hub, Remainder};
pub(crate) use self::node::Slot;
pub use self::quota::{InUse, Quota};
pub(crate) use self::slots::Next;
use self::slots::Slots;
pub(crate) use self::swept::{Progress, Swept};
pub use self::watch::Watch;
use crate::alloc::{Blocks, NoMemory, Rights};
use crate::page::{Flags, HardBusy, PAGE_SHIFT, PAGE_SIZE, Page, Pfn, State, Wanted, zero_frame};
use crate::pmap::Pmap;
use crate::rmap::{Map, ReverseMap};
use crate::{Machine, Vm};

lock_class!(
    /// Serialises changes of an object's size and removals of ranges of its pages.
    pub ObjectLock, "vm object", rank = 64
);

/// Pages that one step of a long operation handles: bounds the time with preemption off.
const STEP: usize = 32;

/// What an object holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Private anonymous memory.
    Anon,
    /// Anonymous memory that mappings share. It has so many bytes, and keeps its pages even where they are not mapped.
    Shared(u64),
    /// The contents of a file, on tmpfs or in the page cache.
    File,
    /// Frames that are not memory: registers, ROM. The object has no pages.
    Device(Frames),
}

/// Result of inserting a page into an object.
#[must_use]
pub enum Insert {
    /// The page is in, hard-busy by the caller.
    Done(HardBusy<'static>),
    /// The slot was taken, or its node is about to be unlinked; the page was freed.
    Lost,
    /// The index is beyond the end (or the object is ending); the page was freed.
    Beyond,
}

/// The page is held busy, or was a moment ago.
struct Held(Pfn);

/// A set of pages with identities. See the module.
pub struct Object {
    kind: Kind,
    /// Size in bytes. Private memory: everything. 0 once the object is ending. Atomic; changed under `lock`.
    limit: AtomicU64,
    /// Whether pages of private memory may be unreachable.
    swept: swept::Mark,
    /// What a sweep has left to the next round.
    pub(crate) rest: swept::Rest,
    slots: Slots,
    /// Serialises changes of size and removals of ranges.
    lock: Mutex<(), ObjectLock>,
    /// A value by which the owner is found from a mapping. Set once.
    tag: Once<Arc<dyn Any + Send + Sync>>,
    /// What is told of attachments. Set once, before the first.
    watch: Once<Arc<dyn Watch>>,
    /// The quota that its pages are charged to; none for anonymous memory. Const.
    quota: Option<&'static Quota>,
    /// 1 once any page was [`Flags::UNWRITTEN`], and for good. Atomic.
    unwritten: AtomicU8,
    /// Time of the last fault that made a page of a shared mapping writable, by the machine's clock; 0 for none since
    /// it was last taken. Atomic.
    stored: AtomicU64,
    /// Number of attachments of shared mappings that may be written to. Atomic.
    writers: AtomicU32,
    /// Where it has, or had, reserved runs of frames.
    blocks: Blocks,
}

impl Object {
    fn new(kind: Kind, quota: Option<&'static Quota>) -> Object {
        if let Some(quota) = quota {
            quota.count_object(1);
        }
        Object {
            kind,
            limit: AtomicU64::new(match kind {
                Kind::Anon => u64::MAX,
                Kind::Shared(bytes) => bytes,
                Kind::File => 0,
                Kind::Device(frames) => frames.bytes(),
            }),
            swept: swept::Mark::whole(),
            rest: swept::Rest::default(),
            slots: Slots::new(),
            lock: Mutex::new(()),
            tag: Once::new(),
            watch: Once::new(),
            quota,
            unwritten: AtomicU8::new(0),
            stored: AtomicU64::new(0),
            writers: AtomicU32::new(0),
            blocks: Blocks::default(),
        }
    }

    /// Whether the quota of the file's file system is exhausted.
    #[cold]
    pub(crate) fn is_over_quota(&self) -> bool {
        self.quota.is_some_and(|quota| quota.left() == 0)
    }

    /// The state of a frame that is one of the object's pages.
    #[inline(always)]
    fn state_of_pages(&self) -> State {
        if self.is_anon() {
            State::Anon
        } else {
            State::File
        }
    }

    /// Whether a shared mapping that may be written to, now or after mprotect(2), has the object attached.
    pub fn has_writers(&self) -> bool {
        self.writers.load(Relaxed) > 0
    }

    /// The identity that the object's pages carry: its address. Its hub has exposed the block that it lies in.
    #[inline]
    pub fn identity(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    /// Whether scans free its pages, by a hole or a smaller size, while others map them: those of files and of shared memory.
    pub(crate) fn is_freed_while_mapped(&self) -> bool {
        matches!(self.kind, Kind::File | Kind::Shared(_))
    }

    /// The kind of its contents.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it is anonymous memory.
    #[inline]
    pub fn is_anon(&self) -> bool {
        matches!(self.kind, Kind::Anon | Kind::Shared(_))
    }

    /// Whether it is private memory.
    pub(crate) fn is_private(&self) -> bool {
        self.kind == Kind::Anon
    }

    /// The frames of a device.
    pub fn frames(&self) -> Option<Frames> {
        match self.kind {
            Kind::Device(frames) => Some(frames),
            Kind::Anon | Kind::Shared(_) | Kind::File => None,
        }
    }

    /// Bytes in a file, or of shared memory; meaningless for private memory. A CPU that sees a size sees what was
    /// written before it was set.
    pub fn size(&self) -> u64 {
        self.limit.load(Acquire)
    }

    /// Whether `index` is within the size.
    #[inline]
    pub fn has_index(&self, index: u32) -> bool {
        // Relaxed: an insertion reads it after a full fence. A fault has a full fence between this load and its
        // page-table entry, so the entry shows what was written before the size was set.
        u64::from(index) << PAGE_SHIFT < self.limit.load(Relaxed)
    }

    /// Sets the size of a file, whose contents are ready, or of an object that has ended; returns the previous one. The
    /// lock is held, or there are no concurrent changes.
    fn set_limit(&self, bytes: u64) -> u64 {
        let before = self.limit.swap(bytes, Release);
        // Pairs with the fence of an insertion.
        ksync::fence_after_rmw();
        before
    }

    /// Number of indexes within the size: indexes from here on are beyond the end.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        // Relaxed: claims and a fence follow.
        self.limit.load(Relaxed).div_ceil(PAGE_SIZE as u64)
    }

    /// Stores a value for [`tag`](Object::tag); only the first call has an effect.
    pub fn set_tag(&self, tag: Arc<dyn Any + Send + Sync>) {
        // A second tag is dropped, as documented.
        drop(self.tag.set(tag));
    }

    /// What [`set_tag`](Object::set_tag) stored.
    pub fn tag(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.tag.get()
    }

    /// Has `watch` told of every attachment. Called once, before the first one.
    pub fn set_watch(&self, watch: Arc<dyn Watch>) {
        drop(self.watch.set(watch));
    }

    /// What [`set_watch`](Object::set_watch) stored.
    #[inline]
    pub(crate) fn watch(&self) -> Option<&Arc<dyn Watch>> {
        self.watch.get()
    }

    /// The page at `index`: a hint, until the page is held busy or the page-table entry claimed, and its identity
    /// checked.
    #[inline]
    pub fn lookup(&self, pin: &CpuPin, index: u32) -> Option<Pfn> {
        self.slots.get(pin, index)
    }

    /// The slot of `index`, if there is one now.
    #[inline(always)]
    pub(crate) fn slot<'p>(&'p self, pin: &'p CpuPin, index: u32) -> Option<&'p Slot> {
        self.slots.slot(pin, index)
    }

    /// The slot of `index` and some that follow it, if their node exists now.
    #[inline(always)]
    pub(crate) fn slots_from<'p>(&'p self, pin: &'p CpuPin, index: u32) -> Option<&'p [Slot]> {
        self.slots.run(pin, index)
    }

    /// Whether `page` still is this object's page `index` and is not hard-busy. For a fault's check.
    #[inline]
    pub fn holds(&self, page: &Page, index: u32) -> bool {
        // In this order: an operation that makes the page busy after the first load sees the fault's claim. In the
        // other order the page's identity could change between the two loads.
        !page.is_hard_busy() && page.is(self.identity(), index)
    }

    /// The first resident page in `from..=last`: a hint. No pin is held between steps.
    pub fn next_resident(&self, from: u32, last: u32) -> Option<(u32, Pfn)> {
        let mut at = from;
        loop {
            match self.next_resident_step(&ksync::pin(), at, last) {
                Next::Page(index, pfn) => return Some((index, pfn)),
                Next::Unseen(next) => at = next,
                Next::End => return None,
            }
        }
    }

    /// Counts some of the pages from an index on; also returns where to continue, if there are more.
    pub(crate) fn count_some(&self, from: u32) -> (u64, Option<u32>) {
        self.slots.count_some(&ksync::pin(), from)
    }

    /// The first index of `from..=last` with a page that holds data: a hint. Takes time proportional to the pages
    /// before it; no pin is held between steps.
    pub fn next_data<M: Machine>(&self, vm: &Vm<M>, from: u32, last: u32) -> Option<u32> {
        let mut at = from;
        while at <= last {
            let (index, pfn) = self.next_resident(at, last)?;
            if !self.is_unwritten(vm, pfn) {
                return Some(index);
            }
            at = index.checked_add(1)?;
        }
        None
    }

    /// Whether any page may be [unwritten](Self::is_unwritten).
    #[inline]
    pub(crate) fn may_be_unwritten(&self) -> bool {
        // Relaxed, as where it is set: a CPU that finds the page in its slot, or has held it before, also sees the
        // value set before.
        self.unwritten.load(Relaxed) != 0
    }

    /// Whether a page of the file was allocated and not yet written to. A hint.
    pub(crate) fn is_unwritten<M: Machine>(&self, vm: &Vm<M>, pfn: Pfn) -> bool {
        self.may_be_unwritten() && {
            let flags = vm.pages.get(pfn).flags();
            flags.contains(Flags::UNWRITTEN) && !flags.contains(Flags::MAPPED)
        }
    }

    /// The first index of `from..=last` without a page, or with an unwritten one: a hint. Takes time proportional to
    /// the pages before it.
    pub fn next_hole<M: Machine>(&self, vm: &Vm<M>, from: u32, last: u32) -> Option<u32> {
        let is_data = |slot: &Slot| slot.page().is_some_and(|pfn| !self.is_unwritten(vm, pfn));
        let mut at = from;
        while at <= last {
            // Adjacent slots are in one node: the tree is walked once for all of them.
            let pin = ksync::pin();
            let run = self.slots.run(&pin, at).unwrap_or_default();
            let full = run.iter().take_while(|slot| is_data(slot)).count();
            at = at.checked_add(full as u32)?;
            if full < run.len() || run.is_empty() {
                break;
            }
        }
        (at <= last).then_some(at)
    }

    /// As `next_resident`, within the bound on time with preemption off.
    pub(crate) fn next_resident_step(&self, pin: &CpuPin, from: u32, last: u32) -> Next {
        self.slots.next_step(pin, from, last)
    }

    /// Number of resident pages, by counting. Takes time proportional to the object; no pin is held between steps.
    pub fn resident(&self) -> u64 {
        let (mut count, mut from) = (0, Some(0));
        while let Some(at) = from {
            let (pages, next) = self.count_some(at);
            (count, from) = (count + pages, next);
        }
        count
    }

    /// Number of index nodes, by counting: for tests of memory use.
    pub fn nodes(&self) -> usize {
        self.slots.nodes(&ksync::pin())
    }

    /// Takes a page of zeroes from the allocator.
    ///
    /// # Errors
    /// No memory for users.
    #[inline]
    pub(crate) fn zero_page<M: Machine>(vm: &Vm<M>, pin: &CpuPin) -> Result<Pfn, NoMemory> {
        let pfn = vm.alloc.alloc(pin, Rights::User)?;
        zero_frame(&vm.machine, pfn);
        Ok(pfn)
    }

    /// Inserts a fresh page, whose contents are ready, at `index`, with `flags` in addition to VALID. The page stays
    /// hard-busy unless it is freed.
    ///
    /// # Errors
    /// No memory for a node, or the file system is full; the page was freed.
    #[inline]
    pub(crate) fn insert<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        index: u32,
        pfn: Pfn,
        flags: Flags,
    ) -> Result<Insert, NoMemory> {
        let place = (index, self.slot(pin, index));
        self.insert_fresh(vm, pin, place, (pfn, flags), false)
    }

    /// As `insert`, into a slot that was found before, if there was one.
    #[inline(always)]
    pub(crate) fn insert_at<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        place: (u32, Option<&Slot>),
        page: (Pfn, Flags),
    ) -> Result<Insert, NoMemory> {
        self.insert_fresh(vm, pin, place, page, false)
    }

    /// As `insert_at`. With `beyond`, for a write: also beyond the end; but while memory is low only as long as this CPU's
    /// purse has credits.
    #[inline(always)]
    fn insert_fresh<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (index, slot): (u32, Option<&Slot>),
        (pfn, flags): (Pfn, Flags),
        beyond: bool,
    ) -> Result<Insert, NoMemory> {
        let page = vm.pages.get(pfn);
        let busy = HardBusy::of_fresh(page);
        let state = self.state_of_pages();
        if state == State::File
            && let Some(quota) = self.quota
            && !quota.take(pin)
            && !Object::charge(vm, pin, quota, beyond)
        {
            discard(vm, pin, busy, pfn);
            return Err(NoMemory);
        }
        page.init_flags(state, flags | Flags::VALID);
        page.set_identity(self.identity(), index);
        let slot = match slot.map_or_else(|| self.slots.make_slot(&vm.epoch, pin, index), Ok) {
            Ok(slot) => slot,
            Err(NoMemory) => {
                self.refund(pin, 1);
                discard(vm, pin, busy, pfn);
                return Err(NoMemory);
            }
        };
        if !slot.put(pfn) {
            self.refund(pin, 1);
            discard(vm, pin, busy, pfn);
            return Ok(Insert::Lost);
        }
        // The slot's fence pairs with that of a truncation: either it sees the page, or this sees the limit.
        if !beyond && !self.has_index(index) {
            self.take_back(vm, pin, index, (pfn, busy));
            return Ok(Insert::Beyond);
        }
        Ok(Insert::Done(busy))
    }

    /// Removes and frees a page that the caller holds hard-busy and that nothing maps, and returns its credit. A page of
    /// private memory is freed at once, because its readers hold it busy, or check after a copy that the page has stayed;
    /// the frame of any other page waits for a grace period, because readers of a file have only a pin.
    #[cold]
    pub(crate) fn take_back<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        index: u32,
        (pfn, busy): (Pfn, HardBusy<'_>),
    ) {
        self.remove_held(vm, pin, index, (pfn, busy));
        if self.is_private() {
            vm.alloc.free(pin, pfn);
        } else {
            vm.retire_frame(pfn);
        }
    }

    /// Moves the page that the caller holds hard-busy from `index` of this object to `to_index` of `to`; it stays busy
    /// and keeps its page-table entries. Returns false, with nothing changed, if the new slot is taken or its node about to
    /// be unlinked, `to` is ending, or `still` returns false. `still` is called when every later lookup in `to` finds the page.
    ///
    /// # Errors
    /// No memory for the new slot.
    pub(crate) fn move_page<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (index, pfn, busy): (u32, Pfn, &HardBusy<'_>),
        (to, to_index): (&Object, u32),
        still: impl FnOnce() -> bool,
    ) -> Result<bool, NoMemory> {
        debug_assert!(to.is_anon());
        // Inserted in the new slot first: a CPU that sees the old slot empty finds the new one filled.
        if !to.slots.insert(&vm.epoch, pin, to_index, pfn)? {
            return Ok(false);
        }
        // After the slot's fence: either a change is seen here, or the operation that made the change sees the page. The end
        // of a space kills no entry, so that of `to` is asked on its own.
        if !to.has_index(to_index) || !still() {
            to.vacate(vm, pin, to_index, pfn);
            return Ok(false);
        }
        busy.page().move_identity(to.identity(), to_index);
        self.vacate(vm, pin, index, pfn);
        Ok(true)
    }

    /// Whether the sweep mark has this state.
    #[inline(always)]
    pub(crate) fn is_swept(&self, how: Swept) -> bool {
        self.swept.is(how)
    }

    /// Whether a sweep is to begin, or to go on.
    pub(crate) fn is_to_be_swept(&self) -> bool {
        self.is_swept(Swept::No) || !self.rest.is_none()
    }

    /// Sets the mark, which then names nobody. A full barrier if that changes the state.
    pub(crate) fn set_swept(&self, how: Swept) {
        self.swept.set(how);
    }

    /// Sets the mark if it is `from`.
    pub(crate) fn change_swept(&self, from: Swept, to: Swept) {
        if Map::FINDS_EXTENTS {
            self.swept.change(from, to);
        }
    }

    /// Takes the sweeper's name away, before the attachments are looked at.
    pub(crate) fn forget_sweeper(&self) {
        self.swept.forget();
    }

    /// Records that a page of the object may have become unreachable through `pmap`. The cause precedes this call and a
    /// full barrier, or happens under the map's lock. No instructions where nothing is swept.
    #[inline(always)]
    pub(crate) fn leave_page<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, pmap: &Arc<Pmap>) {
        debug_assert!(self.is_private());
        if Map::FINDS_EXTENTS {
            self.set_swept(Swept::No);
            vm.queue(pin, pmap);
        }
    }

    /// Marks `page`, found at `index`, as wanted. Returns true if it is held in a way that excludes `what`, so that the
    /// caller may [`wait`](Page::wait). Looks the page up again, because its frame may have gone to the allocator.
    pub(crate) fn want(&self, index: u32, pfn: Pfn, page: &Page, what: Wanted) -> bool {
        page.want(what, || self.lookup(&ksync::pin(), index) == Some(pfn))
    }

    /// Takes the page at `index` hard-busy, waiting for other holders. `None` if there is none. Sleeping context.
    pub(crate) fn busy_page<M: Machine>(
        &self,
        vm: &Vm<M>,
        index: u32,
    ) -> Option<(Pfn, HardBusy<'static>)> {
        loop {
            let pfn = match self.try_busy_page(vm, index) {
                Ok(page) => return page,
                Err(Held(pfn)) => pfn,
            };
            let page = vm.pages.get(pfn);
            if self.want(index, pfn, page, Wanted::Free) {
                page.wait();
            }
        }
    }

    /// As `busy_page`, without waiting.
    fn try_busy_page<M: Machine>(
        &self,
        vm: &Vm<M>,
        index: u32,
    ) -> Result<Option<(Pfn, HardBusy<'static>)>, Held> {
        let Some(pfn) = self.lookup(&ksync::pin(), index) else {
            return Ok(None);
        };
        let page = vm.pages.get(pfn);
        let busy = page.try_hard_busy().ok_or(Held(pfn))?;
        if page.is(self.identity(), index) {
            Ok(Some((pfn, busy)))
        } else {
            Err(Held(pfn))
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        debug_assert!(
            self.next_resident(0, u32::MAX).is_none(),
            "an object was dropped with pages in it"
        );
        if let Some(quota) = self.quota {
            quota.count_object(-1);
        }
    }
}

/// Frees a hard-busy page that is in no slot.
#[cold]
fn discard<M: Machine>(vm: &Vm<M>, pin: &CpuPin, busy: HardBusy<'_>, pfn: Pfn) {
    busy.into_free();
    vm.alloc.free(pin, pfn);
}

/// Bytes from `offset` to the end of its page.
const fn rest_of_page(offset: u64) -> usize {
    PAGE_SIZE - (offset as usize & (PAGE_SIZE - 1))
}
