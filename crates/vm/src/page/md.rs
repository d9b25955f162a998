//! The machine-dependent 16 bytes of a page.
//!
//! Their meaning depends on the page's state: a page table's lock and counts, words of a slab's bit map, or the list of a
//! page's entries where the reverse map has such lists. All views are atomics over the same bytes.

#[cfg(not(any(loom, shuttle)))]
use core::mem::ManuallyDrop;
use core::mem::size_of;
#[cfg(feature = "pv")]
use core::sync::atomic as plain;

use ksync::RawSpin;
use ksync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// 32-bit words that [`Page::slab_word`](crate::page::Page::slab_word) reaches. Where a page's list has a lock of its own, its
/// byte is no part of them: an operation may try the lock of a page whose frame has become a slab meanwhile.
pub const SLAB_WORDS: usize = if cfg!(feature = "pv-obm") { 7 } else { 8 };

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

/// The list of a page's entries. All of it is guarded by the list's lock; as a model checker sees that lock, it need not see
/// these, but loom checks that the lock orders the accesses. All zeros are an empty list, and so is what any other use of the
/// frame leaves behind: the first word of a free frame is 0, and the others count only if it is not.
#[cfg(feature = "pv")]
#[repr(C)]
#[derive(Default)]
pub struct ListPart {
    /// The chunk of the first entry: its frame plus one, 0 if the list is empty.
    chunk: plain::AtomicU32,
    /// The number of the first entry in its chunk.
    slot: plain::AtomicU8,
    unused: [u8; 3],
    /// Number of entries.
    count: plain::AtomicU32,
    /// Changes with the list, for a design that drops the lock and looks again.
    generation: plain::AtomicU32,
    /// Of all this.
    pub(crate) watch: ksync::Watch,
}

#[cfg(feature = "pv")]
impl ListPart {
    /// The place of the first entry.
    pub(crate) fn first(&self) -> (&plain::AtomicU32, &plain::AtomicU8) {
        (&self.chunk, &self.slot)
    }

    /// Whether no entry is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunk.load(Relaxed) == 0
    }

    /// Number of entries.
    pub(crate) fn count(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            self.count.load(Relaxed) as usize
        }
    }

    /// Sets it, after the list was changed.
    pub(crate) fn set_count(&self, count: usize) {
        self.count.store(count as u32, Relaxed);
    }

    /// Notes that the list was changed.
    pub(crate) fn note_change(&self) {
        self.watch.writes();
        if cfg!(feature = "pv-stock") {
            let before = self.generation.load(Relaxed);
            self.generation.store(before.wrapping_add(1), Relaxed);
        }
    }

    /// A number that is another one when the list has changed.
    #[cfg(feature = "pv-stock")]
    pub(crate) fn generation(&self) -> u32 {
        self.watch.reads();
        self.generation.load(Relaxed)
    }
}

/// See the module.
#[cfg(not(any(loom, shuttle)))]
#[repr(C)]
pub(super) union MachineDependent {
    table: ManuallyDrop<TablePart>,
    words: ManuallyDrop<[AtomicU32; 4]>,
    #[cfg(feature = "pv")]
    list: ManuallyDrop<ListPart>,
}

/// See the module. The model checkers' atomics cannot overlap; the slab's words, guarded by a lock, do not need theirs.
#[cfg(any(loom, shuttle))]
pub(super) struct MachineDependent {
    table: TablePart,
    words: [core::sync::atomic::AtomicU32; SLAB_WORDS],
    #[cfg(feature = "pv")]
    list: ListPart,
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
            #[cfg(feature = "pv")]
            list: ListPart::default(),
        }
    }

    pub(super) fn table(&self) -> &TablePart {
        &self.table
    }

    pub(super) fn word(&self, n: usize) -> &core::sync::atomic::AtomicU32 {
        &self.words[n]
    }

    #[cfg(feature = "pv")]
    pub(super) fn list(&self) -> &ListPart {
        &self.list
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

    #[cfg(feature = "pv")]
    pub(super) fn list(&self) -> &ListPart {
        // SAFETY: as in `table`.
        unsafe { &self.list }
    }
}
