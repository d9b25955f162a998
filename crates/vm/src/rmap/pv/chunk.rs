//! Chunks: frames of 168 entries of one pmap, as FreeBSD's pv chunks.
//!
//! An entry is *free*, *reserved* by a ticket, or *listed* with a page. A bit of the chunk says whether it is free. Bits are
//! cleared under the lock of the pmap's chunks, and set again without a lock, by one instruction, which is the last access
//! to the entry. A listed entry names its page; its links and its address are guarded by that page's list.
//!
//! A link is a frame number and a place in that frame, so that an entry with two links, an address and a page has 24 bytes.
//!
//! Under shuttle all fields are plain atomics, too: they are guarded by locks that it sees, or order nothing. It may switch threads
//! between accesses to them where `ksync::may_switch` is called. Under loom, whose atomics are larger, chunks lie beside the frames; it sees
//! the bits, and an entry's page, which are read without a lock, and checks that the other accesses are in an order that the locks establish.

#[cfg(loom)]
use core::cell::OnceCell;
use core::mem::ManuallyDrop;
#[cfg(not(loom))]
use core::mem::size_of;
use core::ptr;
#[cfg(not(loom))]
use core::sync::atomic::AtomicU32 as PageWord;
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use ksync::Watch;
#[cfg(loom)]
use ksync::atomic::AtomicU32 as PageWord;
use ksync::atomic::AtomicUsize;
#[cfg(loom)]
use rust_alloc::boxed::Box;
use rust_alloc::sync::Arc;

use super::pmaps::Pmaps;
use crate::alloc::{NoMemory, Rights};
use crate::page::{Flags, Pfn, State};
#[cfg(not(loom))]
use crate::page::{PAGE_SIZE, zero_frame};
use crate::pmap::Pmap;
use crate::rmap::{FreeBits, Part};
use crate::{Machine, Vm};

/// Entries of a chunk; few in models, so that they get full there.
pub(super) const ENTRIES: usize = if cfg!(any(loom, shuttle)) { 16 } else { 168 };
/// Entries that there is room for.
const ROOM: usize = if cfg!(loom) { ENTRIES } else { 168 };
/// Words of bits of a chunk.
const WORDS: usize = ROOM.div_ceil(64);

/// The place of an entry: its chunk's frame, and its number there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) chunk: Pfn,
    pub(super) slot: u8,
}

/// One address at which a page is mapped. Memory of zeros is an entry that is not listed.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub(super) struct Entry {
    /// The next and the previous entry of the page's list: the number of the chunk's frame plus one, 0 for none; and the
    /// number in the chunk. Guarded by the list.
    next: AtomicU32,
    prev: AtomicU32,
    /// Frame of the page whose list it is in, plus one; 0 for none. Changed under that list's lock; readers without it must
    /// look again under it.
    page: PageWord,
    next_slot: AtomicU8,
    prev_slot: AtomicU8,
    /// The address. Guarded by the list.
    va: AtomicU64,
    /// Of what the list guards.
    watch: Watch,
}

/// See the module.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub(super) struct Chunk {
    /// The pmap. Constant while the frame is a chunk.
    pmap: AtomicPtr<Pmap>,
    watch: Watch,
    /// A bit for each free entry.
    free: FreeBits<WORDS>,
    /// The next chunk of the pmap: its frame plus one, 0 for none. Guarded by the lock of the pmap's chunks.
    next: AtomicU32,
    /// The chunks before and behind it in the list of its memory domain, where there is one: as `next`. Guarded by that list's
    /// lock.
    before: AtomicU32,
    behind: AtomicU32,
    spare: [u32; 5],
    entries: [Entry; ROOM],
}

// loom's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(size_of::<Entry>() == 24 && size_of::<Chunk>() == PAGE_SIZE);

/// Some entries that one word of a chunk's bits stands for, reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    pub(super) chunk: Pfn,
    part: Part,
}

impl Reserved {
    /// Nothing.
    pub(super) const NONE: Reserved = Reserved {
        chunk: Pfn::NONE,
        part: Part { word: 0, bits: 0 },
    };

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        self.part.bits.count_ones() as usize
    }

    /// Takes one of the entries.
    pub(super) fn take(&mut self) -> Option<Place> {
        let part = &mut self.part;
        if part.bits == 0 {
            return None;
        }
        let bit = part.bits.trailing_zeros();
        part.bits &= part.bits - 1;
        Some(Place {
            chunk: self.chunk,
            slot: part.word * 64 + bit as u8,
        })
    }
}

/// A place in two fields that are guarded by the same lock: the chunk's frame plus one, 0 for none; and the number in it,
/// which counts only if there is a chunk.
pub(super) fn read_place(chunk: &AtomicU32, slot: &AtomicU8) -> Option<Place> {
    let chunk = chunk.load(Relaxed).checked_sub(1)?;
    Some(Place {
        chunk: Pfn(chunk),
        slot: slot.load(Relaxed),
    })
}

/// Writes what [`read_place`] reads.
pub(super) fn write_place(chunk: &AtomicU32, slot: &AtomicU8, place: Option<Place>) {
    chunk.store(place.map_or(0, |place| place.chunk.0 + 1), Relaxed);
    if let Some(place) = place {
        slot.store(place.slot, Relaxed);
    }
}

impl Entry {
    pub(super) fn next(&self) -> Option<Place> {
        self.watch.reads();
        read_place(&self.next, &self.next_slot)
    }

    pub(super) fn prev(&self) -> Option<Place> {
        self.watch.reads();
        read_place(&self.prev, &self.prev_slot)
    }

    pub(super) fn set_next(&self, place: Option<Place>) {
        self.watch.writes();
        write_place(&self.next, &self.next_slot, place);
    }

    pub(super) fn set_prev(&self, place: Option<Place>) {
        self.watch.writes();
        write_place(&self.prev, &self.prev_slot, place);
    }

    pub(super) fn va(&self) -> u64 {
        self.watch.reads();
        self.va_at_a_glance()
    }

    /// The address, for a reader that has not got the list: if the entry gets listed meanwhile, perhaps its last one, or a part of it.
    pub(super) fn va_at_a_glance(&self) -> u64 {
        self.va.load(Relaxed)
    }

    pub(super) fn set_va(&self, va: u64) {
        self.watch.writes();
        self.va.store(va, Relaxed);
    }

    /// The page in whose list the entry is.
    pub(super) fn page(&self) -> Option<Pfn> {
        self.page.load(Relaxed).checked_sub(1).map(Pfn)
    }

    pub(super) fn set_page(&self, page: Option<Pfn>) {
        self.page.store(page.map_or(0, |pfn| pfn.0 + 1), Relaxed);
    }
}

impl Chunk {
    /// Reserves up to `entries` entries of one word; `None` if there is no free one. The lock of the pmap's chunks is held.
    pub(super) fn reserve(&self, chunk: Pfn, entries: usize) -> Option<Reserved> {
        ksync::may_switch();
        let part = self.free.reserve(entries)?;
        Some(Reserved { chunk, part })
    }

    /// Makes reserved entries free. Nothing of them is used afterwards.
    pub(super) fn give_back(&self, what: Reserved) {
        self.free.give_back(what.part);
    }

    /// Makes one entry, which is not listed any more, free.
    pub(super) fn give_back_one(&self, place: Place) {
        self.free.give_back(Part::one(place.slot));
    }

    /// Number of free entries.
    pub(super) fn free(&self) -> usize {
        self.free.count()
    }

    /// Entries that are reserved or listed.
    pub(super) fn used(&self, chunk: Pfn) -> impl Iterator<Item = (Place, &Entry)> {
        (0..ENTRIES)
            .filter(move |&slot| !self.free.is_free(slot))
            .map(move |n| {
                let slot = n as u8;
                (Place { chunk, slot }, &self.entries[n])
            })
    }

    pub(super) fn entry(&self, place: Place) -> &Entry {
        &self.entries[usize::from(place.slot)]
    }

    pub(super) fn next(&self) -> Option<Pfn> {
        self.next.load(Relaxed).checked_sub(1).map(Pfn)
    }

    pub(super) fn set_next(&self, next: Option<Pfn>) {
        ksync::may_switch();
        self.next.store(next.map_or(0, |pfn| pfn.0 + 1), Relaxed);
    }

    /// Its neighbours in the list of its memory domain.
    #[cfg(feature = "pv-stock")]
    pub(super) fn neighbours(&self) -> (Option<Pfn>, Option<Pfn>) {
        let read = |field: &AtomicU32| field.load(Relaxed).checked_sub(1).map(Pfn);
        (read(&self.before), read(&self.behind))
    }

    #[cfg(feature = "pv-stock")]
    pub(super) fn set_neighbours(&self, before: Option<Pfn>, behind: Option<Pfn>) {
        let write = |field: &AtomicU32, chunk: Option<Pfn>| {
            field.store(chunk.map_or(0, |pfn| pfn.0 + 1), Relaxed);
        };
        write(&self.before, before);
        write(&self.behind, behind);
    }

    /// Whether it is of this pmap.
    pub(super) fn is_of(&self, pmap: &Pmap) -> bool {
        self.watch.reads();
        ptr::eq(self.pmap.load(Relaxed), pmap)
    }

    /// The pmap, not owned. The caller holds a list with an entry of the chunk, or the list of its memory domain that the chunk
    /// is in: the pmap's last owner takes its entries and chunks out of all lists before it lets go.
    pub(super) fn pmap(&self) -> ManuallyDrop<Arc<Pmap>> {
        self.watch.reads();
        // SAFETY: from `Arc::as_ptr`, and alive as said above; the copy is never dropped.
        ManuallyDrop::new(unsafe { Arc::from_raw(self.pmap.load(Relaxed)) })
    }
}

/// The frames that are chunks.
pub(super) struct Frames {
    /// The direct map's address of frame 0, whether that exists or not. Constant.
    #[cfg(not(loom))]
    base: *mut u8,
    /// A chunk beside each frame that has ever been one.
    #[cfg(loom)]
    beside: Box<[OnceCell<Box<Chunk>>]>,
    /// Most chunks at once, 0 for any number. Constant once there are chunks.
    limit: AtomicUsize,
    /// Numbers of chunks that were made, and that have gone, if they are limited: without a limit, no line is written by all CPUs.
    made: AtomicUsize,
    gone: AtomicUsize,
    /// The pmaps that have chunks.
    pub(super) pmaps: Pmaps,
    /// All chunks.
    #[cfg(feature = "pv-stock")]
    pub(super) lru: super::lru::Lru,
}

// SAFETY: the memory is accessed as atomics alone; and loom's threads take turns in `beside`.
unsafe impl Send for Frames {}
// SAFETY: as above.
unsafe impl Sync for Frames {}

impl Frames {
    /// Finds frames, whose numbers are less than `frames`, by one that exists: adjoining frames adjoin in the direct map.
    pub(super) fn new<M: Machine>(machine: &M, frames: usize, frame: Pfn) -> Frames {
        debug_assert!(frame.index() < frames, "{frame:?} does not exist");
        Frames {
            #[cfg(not(loom))]
            base: (machine.frame(frame).as_ptr()).wrapping_sub(frame.index() * PAGE_SIZE),
            #[cfg(loom)]
            beside: (0..frames).map(|_| OnceCell::new()).collect(),
            limit: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            gone: AtomicUsize::new(0),
            pmaps: Pmaps::new(machine.ncpus()),
            #[cfg(feature = "pv-stock")]
            lru: super::lru::Lru::new(machine.ndomains()),
        }
    }

    /// Sets the most chunks at once, 0 for any number. There is none yet.
    pub(super) fn set_limit(&self, chunks: usize) {
        self.limit.store(chunks, Relaxed);
    }

    /// A frame for a chunk. Neither sleeps nor reclaims.
    ///
    /// # Errors
    /// No memory, or there are as many chunks as may be.
    pub(super) fn alloc<M: Machine>(&self, vm: &Vm<M>) -> Result<Pfn, NoMemory> {
        let limit = self.limit.load(Relaxed);
        let one_more = |made: usize| {
            let in_use = made - self.gone.load(Relaxed).min(made);
            (in_use < limit).then_some(made + 1)
        };
        // Orders nothing: a reader that looks for quiet has met the chunk's list, or the allocator, locked.
        if limit != 0 && self.made.fetch_update(Relaxed, Relaxed, one_more).is_err() {
            return Err(NoMemory);
        }
        let Ok(frame) = vm.alloc.alloc(&ksync::pin(), Rights::Table) else {
            self.count_gone();
            return Err(NoMemory);
        };
        vm.pages
            .get(frame)
            .init_flags(State::Kernel, Flags::empty());
        Ok(frame)
    }

    /// Frees the frame of a chunk that is in no list, and of which no entry is used.
    pub(super) fn free<M: Machine>(&self, vm: &Vm<M>, chunk: Pfn) {
        debug_assert!(self.chunk(chunk).free() == ENTRIES);
        self.chunk(chunk).watch.writes();
        vm.alloc.free(&ksync::pin(), chunk);
        self.count_gone();
    }

    fn count_gone(&self) {
        if self.limit.load(Relaxed) != 0 {
            self.gone.fetch_add(1, Relaxed);
        }
    }

    /// A chunk is about to be made, or to leave its list: with `pv-stock` reclaimers know of it until it is over.
    pub(super) fn begin_move(&self) {
        #[cfg(feature = "pv-stock")]
        self.lru.begin();
    }

    /// It is in its list, or its frame is free.
    pub(super) fn end_move(&self) {
        #[cfg(feature = "pv-stock")]
        self.lru.end();
    }

    /// There was no frame for it.
    pub(super) fn cancel_move(&self) {
        #[cfg(feature = "pv-stock")]
        self.lru.cancel();
    }

    /// To be read before a look for room and chunks, for [`is_quiet_since`](Frames::is_quiet_since).
    #[cfg(feature = "pv-obm")]
    pub(super) fn moment(&self) -> usize {
        self.made
            .load(Relaxed)
            .wrapping_add(self.gone.load(Relaxed))
    }

    /// Whether a look that began at a moment cannot have missed a chunk because it came or went meanwhile.
    #[cfg(feature = "pv-obm")]
    pub(super) fn is_quiet_since(&self, moment: usize) -> bool {
        // Only limited ones are counted. Whatever has a chunk is in its list until the chunk is free.
        self.moment() == moment
    }

    /// As above.
    #[cfg(feature = "pv-stock")]
    pub(super) fn moment(&self) -> usize {
        self.lru.ended()
    }

    /// As above.
    #[cfg(feature = "pv-stock")]
    pub(super) fn is_quiet_since(&self, moment: usize) -> bool {
        self.lru.is_quiet_since(moment)
    }

    /// Makes a chunk of a frame that the caller owns. All entries are free.
    pub(super) fn make<M: Machine>(&self, machine: &M, frame: Pfn, pmap: &Arc<Pmap>) -> &Chunk {
        let chunk = self.chunk(frame);
        self.clear(machine, frame);
        chunk.watch.writes();
        chunk.pmap.store(Arc::as_ptr(pmap).cast_mut(), Relaxed);
        chunk.free.fill(ENTRIES);
        chunk
    }

    /// Makes all entries ones that are not listed.
    #[cfg(not(loom))]
    fn clear<M: Machine>(&self, machine: &M, frame: Pfn) {
        zero_frame(machine, frame);
    }

    /// As above.
    #[cfg(loom)]
    fn clear<M: Machine>(&self, _: &M, frame: Pfn) {
        for entry in &self.chunk(frame).entries {
            entry.watch.writes();
            entry.set_page(None);
        }
    }

    /// The chunk in a frame.
    #[cfg(loom)]
    pub(super) fn chunk(&self, frame: Pfn) -> &Chunk {
        // loom's threads take turns, and there is none between the look and the making.
        self.beside[frame.index()].get_or_init(Box::default)
    }

    /// The chunk in a frame.
    #[cfg(not(loom))]
    pub(super) fn chunk(&self, frame: Pfn) -> &Chunk {
        let at = self.base.wrapping_add(frame.index() * PAGE_SIZE);
        // SAFETY: the frame exists, because it was handed out as a chunk; its bytes live as long as the machine, and any of
        // them are valid atomics. They are accessed otherwise only by `make`, whose caller owns the frame.
        unsafe { &*at.cast::<Chunk>() }
    }

    /// An entry.
    pub(super) fn entry(&self, place: Place) -> &Entry {
        self.chunk(place.chunk).entry(place)
    }
}
