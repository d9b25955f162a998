//! Devices: objects whose frames are no memory.
//!
//! Guarantee: the frames of a device are never allocated, freed, scanned or moved, and nothing looks for a record of
//! them: they may lie outside the page array. A shared mapping shows the frames themselves; a private one copies a
//! frame's contents to a page of its own at the first write, as it does with a file.
//!
//! Mechanism: the object has no pages, only a range of indexes and the frame of the first. A fault that finds no page in
//! any layer enters the frame as an unmanaged leaf, with the object's memory type. Such a leaf goes with its mapping; no
//! scan looks for it.

use crate::page::{PAGE_SHIFT, Pfn};
use crate::pmap::Pte;

/// How CPUs may keep a device's bytes: its memory type. The machine's page-attribute table must have write-back in
/// place 0, write-combining in place 1 and uncached in place 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// As memory: ROM.
    WriteBack,
    /// Stores may be gathered, nothing is kept: frame buffers.
    WriteCombining,
    /// Each access reaches the device, in order: registers.
    Uncached,
}

impl Cache {
    /// The bits of a page-table entry that say so.
    pub const fn bits(self) -> u64 {
        match self {
            Cache::WriteBack => 0,
            Cache::WriteCombining => Pte::WT,
            Cache::Uncached => Pte::CD | Pte::WT,
        }
    }
}

/// A run of frames that are no memory, and the indexes that they have in their object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    /// Index of the first frame.
    pub index: u32,
    /// The first frame.
    pub first: Pfn,
    /// How many.
    pub count: u32,
    /// Their memory type.
    pub cache: Cache,
}

impl Frames {
    /// The frame at an index.
    pub fn at(&self, index: u32) -> Option<Pfn> {
        let n = index.checked_sub(self.index).filter(|&n| n < self.count)?;
        Some(self.first.add(n))
    }

    /// Bytes up to the end of the last frame, counted from index 0.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.index) + u64::from(self.count)) << PAGE_SHIFT
    }
}
