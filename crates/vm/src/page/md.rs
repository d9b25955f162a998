//! The machine-dependent 16 bytes of a page.
//!
//! What they mean depends on the page's state: a page table's lock, live count and place, or words for a slab's map.
//! The reverse maps that lock single pages keep their byte mutex here. All views are atomics over the same bytes.

use core::mem::{ManuallyDrop, size_of};

use ksync::RawSpin;
use ksync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::page::Pfn;

/// 32-bit words that [`Page::slab_word`](crate::page::Page::slab_word) reaches.
pub const SLAB_WORDS: usize = 8;

/// State of a page that holds a page table.
#[repr(C)]
pub struct TablePart {
    /// Guards the table's entries.
    pub lock: RawSpin,
    /// Entries that are not zero. Atomic.
    pub live: AtomicU32,
    parent: AtomicU32,
    /// Level in bits 16.., slot in the parent in bits 0..16.
    place: AtomicU32,
}

impl TablePart {
    fn new() -> TablePart {
        TablePart {
            lock: RawSpin::new(),
            live: AtomicU32::new(0),
            parent: AtomicU32::new(0),
            place: AtomicU32::new(0),
        }
    }

    /// Prepares the part for a new table: no live entries, not locked. The caller owns the page.
    pub fn init(&self, parent: Pfn, level: u8, slot: u16) {
        // The first word of a free frame is 0, whatever it was used for: no lock is held, no object in use.
        debug_assert!(!self.lock.is_locked());
        self.live.store(0, Relaxed);
        self.set_parent(parent);
        self.place
            .store(u32::from(level) << 16 | u32::from(slot), Relaxed);
    }

    /// The table above, or [`Pfn::NONE`]. Changed under the parent's lock.
    pub fn parent(&self) -> Pfn {
        Pfn(self.parent.load(Relaxed))
    }

    /// Sets the table above. The caller holds its lock, or owns this page.
    pub fn set_parent(&self, parent: Pfn) {
        self.parent.store(parent.0, Relaxed);
    }

    /// Level of the table: 1 holds leaf entries.
    pub fn level(&self) -> u8 {
        (self.place.load(Relaxed) >> 16) as u8
    }

    /// The entry of the parent that points here.
    pub fn slot(&self) -> u16 {
        self.place.load(Relaxed) as u16
    }
}

/// See the module.
#[repr(C)]
pub(super) union MachineDependent {
    table: ManuallyDrop<TablePart>,
    words: ManuallyDrop<[AtomicU32; 4]>,
}

const _: () = {
    if size_of::<AtomicU32>() == 4 {
        assert!(size_of::<MachineDependent>() == 16);
    }
};

impl MachineDependent {
    pub(super) fn new() -> MachineDependent {
        MachineDependent {
            table: ManuallyDrop::new(TablePart::new()),
        }
    }

    pub(super) fn table(&self) -> &TablePart {
        // SAFETY: both views consist of 32-bit atomics (a `RawSpin` is one) at the same offsets, for which every bit pattern is valid and
        // shared access is always allowed.
        unsafe { &self.table }
    }

    pub(super) fn word(&self, n: usize) -> &AtomicU32 {
        // SAFETY: as in `table`.
        unsafe { &self.words[n] }
    }
}
