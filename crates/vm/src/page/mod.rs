//! Frames of physical memory, and the kernel's state for each.
//!
//! One [`Page`] describes one frame. It is 64 bytes and one cache line, so that operations on two frames share no line,
//! and it holds all the state that must be found from a frame number: identity, busy state, flags, wirings, queue
//! membership and 16 machine-dependent bytes.
//!
//! Rules:
//! - The *identity* (object, index) changes only under hard busy.
//! - A frame that is free, or that the allocator has just handed out, is hard-busy. So a CPU with a stale frame number
//!   cannot take a free frame, and handing one out needs no atomic operation.
//! - Memory of `Page`s is never reused for anything else: reading a stale one is always defined, and after busying it
//!   [`Page::is`] says whether it still is the page that was looked for.
#![expect(
    unsafe_code,
    reason = "turns frames into byte slices and shares the machine-dependent bytes"
)]

mod array;
mod busy;
mod flags;
mod frame;
mod list;
mod md;
mod owner;
mod pfn;
#[cfg(test)]
pub(crate) mod tests;

use core::mem::{offset_of, size_of};

pub use self::array::PageArray;
pub use self::busy::{BusyPage, HardBusy, SoftBusy, Wanted};
pub use self::flags::{Flags, State};
pub use self::frame::{
    copy_frame, read_frame, with_frame, with_frame_mut, write_frame, zero_frame,
};
pub use self::list::PageList;
#[cfg(feature = "pv")]
pub use self::md::ListPart;
pub use self::md::{SLAB_WORDS, TablePart};
pub(crate) use self::owner::{hub_of, owner};
pub use self::pfn::{MAX_ORDER, MOST_FRAMES, PAGE_SHIFT, PAGE_SIZE, Pfn};

use crate::page::md::MachineDependent;
use ksync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// The kernel's state for one frame.
///
/// All fields are atomic: any CPU may read a page at any time. Each field names the condition for changing it.
#[repr(C, align(64))]
pub struct Page {
    /// Address of the owning object, 0 if none. Changed under hard busy, whose end publishes it: a CPU that finds the
    /// page not busy, or holds it busy, sees the current value; for others it is a hint.
    object: AtomicUsize,
    /// Page index in the object. Changed under hard busy.
    index: AtomicU32,
    /// Busy word, see `busy.rs`.
    busy: AtomicU32,
    /// Flags and state, see `flags.rs`.
    flags: AtomicU32,
    /// Number of wirings that keep the page resident.
    wire_count: AtomicU32,
    /// Page queue that the page is on, changed under that queue's lock; for a slab, the CPU that cut it.
    queue: AtomicU8,
    /// For use by the owner: size class of a slab, cache colour of a queued page.
    class: AtomicU8,
    /// Memory domain, constant after boot; and whether the frame was taken from the reservation of its run, which is
    /// changed under the run's lock. One byte, so that the end of a use compares both at once.
    domain: AtomicU8,
    /// log2 of the frames in this run; valid in its first page. Changed by the allocator, or by the run's owner.
    order: AtomicU8,
    /// Links of the one list that the page is on. Guarded by that list's lock.
    next: AtomicU32,
    prev: AtomicU32,
    #[cfg(not(feature = "pv-obm"))]
    spare: AtomicU32,
    /// Guards the list of the page's entries. In no other use of the frame these bytes have a meaning: see
    /// [`SLAB_WORDS`].
    #[cfg(feature = "pv-obm")]
    list_lock: ListLock,
    /// Machine-dependent part: page-table pages, reverse map, slab.
    md: MachineDependent,
    spares: [AtomicU32; 2],
}

/// A byte that guards a list, and three that are not used.
#[cfg(feature = "pv-obm")]
#[repr(C)]
struct ListLock {
    byte: ksync::ByteMutex,
    unused: [u8; 3],
}

#[cfg(feature = "pv-obm")]
impl ListLock {
    fn new() -> ListLock {
        ListLock {
            byte: ksync::ByteMutex::new(),
            unused: [0; 3],
        }
    }
}

/// Of the byte `domain`: taken from a reservation.
const TAKEN: u8 = 1 << 7;

/// The layout is part of the design: the first 24 bytes are what a fault reads.
const _: () = {
    // Model checkers bring larger atomics; the layout matters only with real ones.
    if size_of::<AtomicU32>() == 4 && size_of::<AtomicUsize>() == 8 {
        assert!(size_of::<Page>() == 64 && align_of::<Page>() == 64);
        assert!(offset_of!(Page, object) == 0);
        assert!(offset_of!(Page, index) == 8);
        assert!(offset_of!(Page, busy) == 12);
        assert!(offset_of!(Page, flags) == 16);
        assert!(offset_of!(Page, wire_count) == 20);
        assert!(offset_of!(Page, queue) == 24);
        assert!(offset_of!(Page, next) == 28);
        assert!(offset_of!(Page, prev) == 32);
        #[cfg(feature = "pv-obm")]
        assert!(offset_of!(Page, list_lock) == 36);
        assert!(offset_of!(Page, md) == 40);
        assert!(offset_of!(Page, spares) == 56);
    }
};

impl Page {
    /// The `Page` of a frame that does not exist: the state of all-zero memory.
    pub fn absent() -> Page {
        Page {
            object: AtomicUsize::new(0),
            index: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            flags: AtomicU32::new(State::Absent as u32),
            wire_count: AtomicU32::new(0),
            queue: AtomicU8::new(0),
            class: AtomicU8::new(0),
            domain: AtomicU8::new(0),
            order: AtomicU8::new(0),
            next: AtomicU32::new(0),
            prev: AtomicU32::new(0),
            #[cfg(not(feature = "pv-obm"))]
            spare: AtomicU32::new(0),
            #[cfg(feature = "pv-obm")]
            list_lock: ListLock::new(),
            md: MachineDependent::new(),
            spares: [AtomicU32::new(0), AtomicU32::new(0)],
        }
    }

    /// Gives the page an identity. The caller holds hard busy and the page has none.
    pub fn set_identity(&self, object: usize, index: u32) {
        debug_assert!(self.is_hard_busy(), "identity changes under hard busy");
        debug_assert!(object != 0 && self.object.load(Relaxed) == 0);
        self.index.store(index, Relaxed);
        self.object.store(object, Relaxed);
    }

    /// Takes the identity away. The caller holds hard busy.
    pub fn clear_identity(&self) {
        debug_assert!(self.is_hard_busy(), "identity changes under hard busy");
        self.object.store(0, Relaxed);
    }

    /// Moves the page to another object. The caller holds hard busy.
    pub fn move_identity(&self, object: usize, index: u32) {
        self.clear_identity();
        self.set_identity(object, index);
    }

    /// Whether this is page `index` of `object`. Stable while the caller holds the page busy; otherwise a hint, to be
    /// checked again under a busy state, or after the fence of a page-table claim.
    pub fn is(&self, object: usize, index: u32) -> bool {
        self.object.load(Relaxed) == object && self.index.load(Relaxed) == index
    }

    /// Address of the owning object, 0 if none.
    pub fn object(&self) -> usize {
        self.object.load(Relaxed)
    }

    /// Page index in the owning object.
    pub fn index(&self) -> u32 {
        self.index.load(Relaxed)
    }

    /// Adds a wiring; returns the count before.
    pub fn wire(&self) -> u32 {
        let before = self.wire_count.fetch_add(1, Relaxed);
        debug_assert!(before != u32::MAX);
        before
    }

    /// Removes a wiring; returns the count after.
    pub fn unwire(&self) -> u32 {
        let before = self.wire_count.fetch_sub(1, Relaxed);
        debug_assert!(before != 0, "unwire of a page that is not wired");
        before - 1
    }

    /// Sets the number of wirings. The caller owns the frame.
    pub(crate) fn set_wire_count(&self, count: u32) {
        self.wire_count.store(count, Relaxed);
    }

    /// Number of wirings.
    pub fn wire_count(&self) -> u32 {
        self.wire_count.load(Relaxed)
    }

    /// The page queue, 0 if none. Stable under that queue's lock.
    pub fn queue(&self) -> u8 {
        self.queue.load(Relaxed)
    }

    /// Records the page queue. The caller holds the lock of the queue it leaves or enters.
    pub fn set_queue(&self, queue: u8) {
        self.queue.store(queue, Relaxed);
    }

    /// The owner's byte, see the field.
    pub fn class(&self) -> u8 {
        self.class.load(Relaxed)
    }

    /// Sets the owner's byte. The caller owns the page.
    pub fn set_class(&self, class: u8) {
        self.class.store(class, Relaxed);
    }

    /// Memory domain of the frame.
    pub fn domain(&self) -> usize {
        usize::from(self.domain.load(Relaxed) & !TAKEN)
    }

    /// Memory domain of a frame that was not taken from a reservation; no domain's number for one that was.
    #[inline]
    pub(crate) fn domain_and_mark(&self) -> usize {
        usize::from(self.domain.load(Relaxed))
    }

    /// Whether the frame was taken from the reservation of its run, and has not been freed since. Stable under the run's lock,
    /// and while the frame is in use.
    pub fn is_taken(&self) -> bool {
        self.domain.load(Relaxed) & TAKEN != 0
    }

    /// Marks the frame as taken from a reservation, or as not taken. The caller holds the run's lock.
    pub(crate) fn set_taken(&self, taken: bool) {
        self.set_taken_in(self.domain(), taken);
    }

    /// As `set_taken`, for a frame that is known to be of this domain: writes without reading.
    #[inline]
    pub(crate) fn set_taken_in(&self, domain: usize, taken: bool) {
        debug_assert!(domain == self.domain());
        let mark = if taken { TAKEN } else { 0 };
        self.domain.store(domain as u8 | mark, Relaxed);
    }

    /// log2 of the frames in the run that starts here.
    pub fn order(&self) -> u8 {
        self.order.load(Relaxed)
    }

    /// Sets the order of a run. The caller owns the run.
    pub fn set_order(&self, order: u8) {
        self.order.store(order, Relaxed);
    }

    /// Link to the next page of the list that this page is on. Stable under that list's lock.
    pub fn next(&self) -> Pfn {
        Pfn(self.next.load(Relaxed))
    }

    /// Link to the previous page. Stable under the list's lock.
    pub fn prev(&self) -> Pfn {
        Pfn(self.prev.load(Relaxed))
    }

    /// Sets the forward link. The caller holds the list's lock.
    pub fn set_next(&self, pfn: Pfn) {
        self.next.store(pfn.0, Relaxed);
    }

    /// Sets the backward link. The caller holds the list's lock.
    pub fn set_prev(&self, pfn: Pfn) {
        self.prev.store(pfn.0, Relaxed);
    }

    /// The part used while the frame is a page table.
    pub fn table(&self) -> &TablePart {
        self.md.table()
    }

    /// The list of the page's entries.
    #[cfg(feature = "pv")]
    pub(crate) fn list(&self) -> &ListPart {
        self.md.list()
    }

    /// The lock of that list.
    #[cfg(feature = "pv-obm")]
    pub(crate) fn list_lock(&self) -> &ksync::ByteMutex {
        &self.list_lock.byte
    }

    /// Whether an operation holds the list of the page's entries. For tests.
    #[cfg(feature = "pv-obm")]
    pub fn is_list_locked(&self) -> bool {
        self.list_lock.byte.is_locked()
    }

    /// Word `n` of the [`SLAB_WORDS`] that a slab page uses as its map of objects in use. For model checkers.
    #[cfg(any(loom, shuttle))]
    pub fn slab_word(&self, n: usize) -> &core::sync::atomic::AtomicU32 {
        let _where_they_lie = (&self.spares, &self.index);
        self.md.word(n)
    }

    /// Word `n` of the [`SLAB_WORDS`] that a slab page uses as its map of objects in use.
    ///
    /// They overlap the machine-dependent part and the index, so a page with an identity has none.
    #[cfg(not(any(loom, shuttle)))]
    pub fn slab_word(&self, n: usize) -> &AtomicU32 {
        match n {
            0..4 => self.md.word(n),
            4..6 => &self.spares[n - 4],
            #[cfg(not(feature = "pv-obm"))]
            6 => &self.spare,
            _ => &self.index,
        }
    }

    /// Marks an absent frame as existing and reserved, in `domain`. At boot only.
    pub(crate) fn exist(&self, domain: u8) {
        assert!(domain & TAKEN == 0, "fewer than 128 domains");
        self.domain.store(domain, Relaxed);
        self.busy.store(busy::HARD, Relaxed);
        self.init_flags(State::Reserved, Flags::empty());
    }
}
