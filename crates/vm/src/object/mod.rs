//! Objects: index → page, and who maps them.
//!
//! Guarantee: a page in an object's slot carries the object's identity and belongs to it alone; every page-table
//! entry that maps it is reachable through the object's hub.
//!
//! Mechanism: pages are inserted by one compare-and-swap, hard-busy until their inserter is done, and removed by
//! whoever holds them hard-busy. `limit` is written before pages are swept out, and read after a page was put in: of an
//! insertion and a sweep one sees the other. An object lives while it has attachments (mappings) or base
//! references; whoever ends the last one passes `&Vm` and thereby frees the pages.

mod device;
mod file;
mod hub;
mod quota;
mod slots;

use core::any::Any;
use core::ptr;

use ksync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, SeqCst},
};
use ksync::{CpuPin, Mutex, Once, lock_class};
use rust_alloc::sync::Arc;

pub use self::device::{Cache, Frames};
pub(crate) use self::hub::Hub;
pub use self::hub::{Attachment, ObjectRef, ReverseLock};
pub use self::quota::{InUse, Quota};
pub(crate) use self::slots::Slot;
use self::slots::Slots;
use crate::alloc::{NoMemory, Pressure, Rights};
use crate::page::{Flags, PAGE_SHIFT, PAGE_SIZE, Page, Pfn, State, zero_frame};
use crate::rmap::ReverseMap;
use crate::{Machine, Vm};

lock_class!(
    /// An object's size and the removal of ranges of its pages.
    pub ObjectLock, "vm object", rank = 64
);

/// Pages that one step of a long operation handles: bounds the time with preemption off.
const STEP: usize = 32;

/// What an object holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Memory without a name.
    Anon,
    /// The contents of a file: tmpfs and page cache are one.
    File,
    /// Frames that are no memory: registers, ROM. The object has no pages.
    Device(Frames),
}

/// Outcome of putting a page into an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Insert {
    /// The page is in, hard-busy by the caller.
    Done,
    /// Somebody else was faster; the page was freed.
    Lost,
    /// The index lies beyond the end (or the object is dying); the page was freed.
    Beyond,
}

/// A set of pages with identities. See the module.
pub struct Object {
    kind: Kind,
    /// Bytes that exist. Anonymous objects: everything, or nothing once the object is dying. Atomic; changed
    /// under `lock`.
    limit: AtomicU64,
    slots: Slots,
    /// The last reference went, and nobody has freed the pages yet. Atomic.
    orphan: AtomicBool,
    /// Serialises changes of size and removals of ranges.
    lock: Mutex<(), ObjectLock>,
    /// Whatever the owner wants to find again from a mapping. Set once.
    tag: Once<Arc<dyn Any + Send + Sync>>,
    /// What its pages are charged to; none for anonymous memory. Const.
    quota: Option<&'static Quota>,
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
                Kind::File => 0,
                Kind::Device(frames) => frames.bytes(),
            }),
            slots: Slots::new(),
            orphan: AtomicBool::new(false),
            lock: Mutex::new(()),
            tag: Once::new(),
            quota,
        }
    }

    /// Whether nothing more fits into the file system of the file.
    #[cold]
    pub(crate) fn is_over_quota(&self) -> bool {
        self.quota.is_some_and(|quota| quota.left() == 0)
    }

    /// Takes credits for a page where the CPU has none at hand. A write stops before memory is short: the last of it is
    /// not for files, which nobody can end.
    #[cold]
    fn charge<M: Machine>(vm: &Vm<M>, pin: &CpuPin, quota: &Quota, write: bool) -> bool {
        (!write || vm.alloc.pressure() == Pressure::None) && quota.take_burst(pin)
    }

    /// Gives the credits of pages back that have left the object.
    #[inline]
    fn refund(&self, pin: &CpuPin, pages: usize) {
        if let Some(quota) = self.quota {
            quota.give(pin, pages);
        }
    }

    /// The identity that the object's pages carry.
    #[inline]
    pub fn identity(&self) -> usize {
        ptr::from_ref(self).expose_provenance()
    }

    /// What it holds.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether it is anonymous memory.
    #[inline]
    pub fn is_anon(&self) -> bool {
        self.kind == Kind::Anon
    }

    /// The frames of a device.
    pub fn frames(&self) -> Option<Frames> {
        match self.kind {
            Kind::Device(frames) => Some(frames),
            Kind::Anon | Kind::File => None,
        }
    }

    /// Bytes in a file; meaningless for anonymous memory.
    pub fn size(&self) -> u64 {
        self.limit.load(Acquire)
    }

    /// Whether a page exists, or may be made, at `index`.
    #[inline]
    pub fn has_index(&self, index: u32) -> bool {
        u64::from(index) << PAGE_SHIFT < self.limit.load(SeqCst)
    }

    /// Pages that exist, or may be made: indexes from here on are beyond the end.
    #[inline]
    pub(crate) fn pages(&self) -> u64 {
        self.limit.load(SeqCst).div_ceil(PAGE_SIZE as u64)
    }

    /// Remembers something about the object for [`tag`](Object::tag); the first call counts.
    pub fn set_tag(&self, tag: Arc<dyn Any + Send + Sync>) {
        // A second tag is dropped, as documented.
        drop(self.tag.set(tag));
    }

    /// What [`set_tag`](Object::set_tag) stored.
    pub fn tag(&self) -> Option<&Arc<dyn Any + Send + Sync>> {
        self.tag.get()
    }

    /// The page at `index`: a hint, until it is busied or claimed and its identity checked.
    #[inline]
    pub fn lookup(&self, index: u32) -> Option<Pfn> {
        self.slots.get(index)
    }

    /// The slot of `index`, if there is one yet.
    #[inline(always)]
    pub(crate) fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.slot(index)
    }

    /// The slot of `index` and some that follow it, if there are any yet.
    #[inline(always)]
    pub(crate) fn slots_from(&self, index: u32) -> Option<&[Slot]> {
        self.slots.run(index)
    }

    /// Whether `page` is still this object's page `index` and nobody is changing that. For a fault's check.
    #[inline]
    pub fn holds(&self, page: &Page, index: u32) -> bool {
        // In this order: who makes the page busy after the first look sees the fault's claim. The other way round, a page
        // could change hands between the looks.
        !page.is_hard_busy() && page.is(self.identity(), index)
    }

    /// The first resident page in `from..=last`: a hint.
    pub fn next_resident(&self, from: u32, last: u32) -> Option<(u32, Pfn)> {
        self.slots.next(from, last)
    }

    /// Number of resident pages, by counting. Takes time proportional to the object.
    pub fn resident(&self) -> u64 {
        self.slots.count()
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

    /// Puts a fresh page, whose contents are ready, at `index`, with `flags` besides VALID. It stays hard-busy unless freed.
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
        self.insert_fresh(vm, pin, (index, self.slot(index)), pfn, flags, false)
    }

    /// As `insert`, into a slot found before, if there was one.
    #[inline(always)]
    pub(crate) fn insert_at<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        place: (u32, Option<&Slot>),
        pfn: Pfn,
        flags: Flags,
    ) -> Result<Insert, NoMemory> {
        self.insert_fresh(vm, pin, place, pfn, flags, false)
    }

    #[inline(always)]
    fn insert_fresh<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (index, slot): (u32, Option<&Slot>),
        pfn: Pfn,
        flags: Flags,
        beyond: bool,
    ) -> Result<Insert, NoMemory> {
        let page = vm.pages.get(pfn);
        let state = if self.is_anon() {
            State::Anon
        } else {
            if let Some(quota) = self.quota
                && !quota.take(pin)
                && !Object::charge(vm, pin, quota, beyond)
            {
                discard(vm, pin, page, pfn);
                return Err(NoMemory);
            }
            State::File
        };
        page.init_flags(state, flags.with(Flags::VALID));
        page.set_identity(self.identity(), index);
        let slot = match slot.map_or_else(|| self.slots.make_slot(pin, index), Ok) {
            Ok(slot) => slot,
            Err(NoMemory) => {
                self.refund(pin, 1);
                discard(vm, pin, page, pfn);
                return Err(NoMemory);
            }
        };
        if !slot.put(pfn) {
            self.refund(pin, 1);
            discard(vm, pin, page, pfn);
            return Ok(Insert::Lost);
        }
        // Pairs with the fence of a sweep: either it sees the page, or this sees the limit.
        ksync::fence_after_rmw();
        if !beyond && !self.has_index(index) {
            self.take_back(vm, pin, index, pfn);
            return Ok(Insert::Beyond);
        }
        Ok(Insert::Done)
    }

    /// Takes out a page that the caller holds hard-busy and that nothing maps or reads, and frees it.
    #[cold]
    pub(crate) fn take_back<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, index: u32, pfn: Pfn) {
        let removed = self.slots.remove(index, pfn);
        debug_assert!(removed, "a hard-busy page left its slot");
        self.refund(pin, 1);
        discard(vm, pin, vm.pages.get(pfn), pfn);
    }

    /// Moves a page that the caller holds hard-busy from `index` here to `to_index` of `to`, where it stays busy. Its
    /// page-table entries stay as they are. False, and nothing done, if that slot is taken or `to` has ended.
    pub(crate) fn move_page<M: Machine>(
        &self,
        vm: &Vm<M>,
        pin: &CpuPin,
        (index, pfn): (u32, Pfn),
        to: &Object,
        to_index: u32,
    ) -> Result<bool, NoMemory> {
        debug_assert!(to.is_anon());
        // In at the new place first: who sees the old slot empty finds the new one full.
        if !to.slots.insert(pin, to_index, pfn)? {
            return Ok(false);
        }
        // As in an insertion: whoever unmaps the range meanwhile may have ended `to`.
        ksync::fence_after_rmw();
        if !to.has_index(to_index) {
            let removed = to.slots.remove(to_index, pfn);
            debug_assert!(removed, "a hard-busy page left its slot");
            return Ok(false);
        }
        vm.rmap.moved((self, index), (to, to_index));
        vm.pages.get(pfn).move_identity(to.identity(), to_index);
        let removed = self.slots.remove(index, pfn);
        debug_assert!(removed, "a hard-busy page left its slot");
        Ok(true)
    }

    /// Frees the pages of `first..=last`, which nothing maps and no one else can reach. Preemptible.
    pub(crate) fn remove_unmapped<M: Machine>(&self, vm: &Vm<M>, first: u32, last: u32) {
        self.remove_waiting(vm, first, last, ksync::doze);
    }

    fn remove_waiting<M: Machine>(&self, vm: &Vm<M>, first: u32, last: u32, wait: fn()) {
        let mut from = first;
        while let Some(next) = self.remove_step(vm, from, last, wait) {
            from = next;
        }
    }

    /// Frees up to [`STEP`] pages; returns where to go on.
    fn remove_step<M: Machine>(&self, vm: &Vm<M>, from: u32, last: u32, wait: fn()) -> Option<u32> {
        let pin = ksync::pin();
        let mut freed = [Pfn::NONE; STEP];
        let (mut count, mut at, mut more) = (0, from, None);
        'nodes: while let Some((first, _)) = self.slots.next(at, last) {
            // Neighbours lie in one node: the tree is walked once for all of them.
            let run = self.slots.run(first).unwrap_or_default();
            for (index, slot) in (first..=last).zip(run) {
                let Some(pfn) = slot.page() else { continue };
                let page = vm.pages.get(pfn);
                if count == STEP || !page.try_hard_busy() {
                    more = Some(index);
                    break 'nodes;
                }
                if page.is(self.identity(), index) && slot.take(pfn) {
                    page.clear_identity();
                    freed[count] = pfn;
                    count += 1;
                } else {
                    unbusy(vm, page);
                }
            }
            match first.checked_add(run.len() as u32) {
                Some(next) if next <= last && next > first => at = next,
                _ => break,
            }
        }
        self.refund(&pin, count);
        vm.alloc.free_bulk(&pin, &freed[..count]);
        let stuck = more.is_some() && count == 0;
        drop(pin);
        if stuck {
            // Somebody holds the page for the length of a fault or a scan.
            wait();
        }
        more
    }

    /// Frees everything: nothing is attached and no reference is left. Faults that are still under way find the limit.
    fn die<M: Machine>(&self, vm: &Vm<M>, wait: fn()) {
        self.limit.swap(0, SeqCst);
        // Pairs with the fence of an insertion.
        ksync::fence_after_rmw();
        self.remove_waiting(vm, 0, u32::MAX, wait);
    }

    /// Takes the pages of `first..=last` out, hard-busy and without identity, and passes them to `give`, while the
    /// caller sees to their page-table entries. Sleeping context.
    pub(crate) fn take_out<M: Machine>(
        &self,
        vm: &Vm<M>,
        first: u32,
        last: u32,
        give: &mut dyn FnMut(Pfn),
    ) {
        let mut at = first;
        while let Some((index, _)) = self.slots.next(at, last) {
            if let Some(pfn) = self.busy_page(vm, index) {
                let removed = self.slots.remove(index, pfn);
                debug_assert!(removed, "a hard-busy page left its slot");
                vm.pages.get(pfn).clear_identity();
                self.refund(&ksync::pin(), 1);
                give(pfn);
            }
            match index.checked_add(1) {
                Some(next) if next <= last => at = next,
                _ => return,
            }
        }
    }

    /// As `die`, in one go under the caller's pin: if the last two references ended at the same time.
    fn die_if_last<M: Machine>(&self, vm: &Vm<M>) {
        // A load first: hardly ever, and the line is read by all who share the object.
        if self.orphan.load(SeqCst) && self.orphan.swap(false, SeqCst) {
            // Pinned: whoever holds a page is pinned too, on another CPU, or about to be done.
            self.die(vm, ksync::relax);
        }
    }

    /// Hard-busies the page at `index`, waiting for others. `None` if there is none. Sleeping context.
    pub(crate) fn busy_page<M: Machine>(&self, vm: &Vm<M>, index: u32) -> Option<Pfn> {
        loop {
            let pfn = self.slots.get(index)?;
            let page = vm.pages.get(pfn);
            if page.try_hard_busy() {
                if page.is(self.identity(), index) {
                    return Some(pfn);
                }
                unbusy(vm, page);
            }
            ksync::doze();
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        debug_assert!(
            self.slots.next(0, u32::MAX).is_none(),
            "an object was dropped with pages in it"
        );
        if let Some(quota) = self.quota {
            quota.count_object(-1);
        }
    }
}

/// Drops hard busy.
#[inline(always)]
pub(crate) fn unbusy<M: Machine>(_vm: &Vm<M>, page: &Page) {
    // Nobody sleeps for a page: holders are pinned or about to finish, so waiters doze and look again.
    let _woken = page.hard_unbusy();
}

/// Frees a hard-busy page that no slot holds.
#[cold]
fn discard<M: Machine>(vm: &Vm<M>, pin: &CpuPin, page: &Page, pfn: Pfn) {
    page.clear_identity();
    vm.alloc.free(pin, pfn);
}

/// Bytes from `offset` to the end of its page.
const fn rest_of_page(offset: u64) -> usize {
    PAGE_SIZE - (offset as usize & (PAGE_SIZE - 1))
}
