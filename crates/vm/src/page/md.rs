//! The machine-dependent 16 bytes of a page.
//!
//! Their meaning depends on the page's state: a page table's lock and counts, or words of a slab's bit map. The reverse
//! maps that lock single pages keep their byte mutex here. All views are atomics over the same bytes.

#[cfg(not(any(loom, shuttle)))]
use core::mem::ManuallyDrop;
use core::mem::size_of;

use ksync::RawSpin;
use ksync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// 32-bit words that [`Page::slab_word`](crate::page::Page::slab_word) reaches.
pub const SLAB_WORDS: usize = 8;

/// State of a page that holds a page table. `vm::pmap::table` defines the meaning of the fields.
#[repr(C)]
pub struct TablePart {
    /// Guards the table's entries.
    pub lock: RawSpin,
    /// Number of entries that are not zero, and [`TablePart::DEAD`]. Atomic.
    pub live: AtomicU32,
    /// Groups of entries that may not be empty. Changed under `lock`.
    pub groups: AtomicU64,
}

impl TablePart {
    /// In `live`: the table is unlinked. Set under `lock`.
    pub const DEAD: u32 = 1 << 31;

    fn new() -> TablePart {
        TablePart {
            lock: RawSpin::new(),
            live: AtomicU32::new(0),
            groups: AtomicU64::new(0),
        }
    }

    /// Prepares the part for a new table: no live entries, not locked. The caller owns the page.
    pub fn init(&self) {
        // The first word of a free frame is 0, whatever it was used for: no lock is held, and no slab object is in use.
        debug_assert!(!self.lock.is_locked());
        self.live.store(0, Relaxed);
        self.groups.store(0, Relaxed);
    }
}

/// See the module.
#[cfg(not(any(loom, shuttle)))]
#[repr(C)]
pub(super) union MachineDependent {
    table: ManuallyDrop<TablePart>,
    words: ManuallyDrop<[AtomicU32; 4]>,
}

/// See the module. The model checkers' atomics cannot overlap; the slab's words, guarded by a lock, do not need theirs.
#[cfg(any(loom, shuttle))]
pub(super) struct MachineDependent {
    table: TablePart,
    words: [core::sync::atomic::AtomicU32; SLAB_WORDS],
}

const _: () = {
    if size_of::<AtomicU32>() == 4 {
        assert!(size_of::<MachineDependent>() == 16);
    }
};

#[cfg(any(loom, shuttle))]
impl MachineDependent {
    pub(super) fn new() -> MachineDependent {
        MachineDependent {
            table: TablePart::new(),
            words: Default::default(),
        }
    }

    pub(super) fn table(&self) -> &TablePart {
        &self.table
    }

    pub(super) fn word(&self, n: usize) -> &core::sync::atomic::AtomicU32 {
        &self.words[n]
    }
}

#[cfg(not(any(loom, shuttle)))]
impl MachineDependent {
    pub(super) fn new() -> MachineDependent {
        MachineDependent {
            table: ManuallyDrop::new(TablePart::new()),
        }
    }

    pub(super) fn table(&self) -> &TablePart {
        // SAFETY: both views consist of atomics (a `RawSpin` is one) over the same bytes, for which every bit pattern
        // is valid and shared access is always allowed.
        unsafe { &self.table }
    }

    pub(super) fn word(&self, n: usize) -> &AtomicU32 {
        // SAFETY: as in `table`.
        unsafe { &self.words[n] }
    }
}
