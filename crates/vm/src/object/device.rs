//! Devices: objects whose frames are not memory.
//!
//! Guarantee: the frames of a device are never allocated, freed, scanned or moved, and their `Page`s are never looked
//! up: they may lie outside the page array. A shared mapping maps the frames themselves; a private one copies a frame's
//! contents to a page of its own at the first write, as for a file.
//!
//! Mechanism: the object has no pages, only a range of indexes and the first frame. A fault that finds no page in any
//! layer enters the frame as an unmanaged leaf, with the object's memory type. Such a leaf is removed with its mapping;
//! no scan looks for it.

use crate::page::{PAGE_SHIFT, Pfn};
use crate::pmap::Pte;

/// Memory type of a device's frames. The machine's page-attribute table must have write-back in entry 0,
/// write-combining in entry 1 and uncached in entry 3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Like memory: ROM.
    WriteBack,
    /// Stores may be combined, nothing is cached: frame buffers.
    WriteCombining,
    /// Each access reaches the device, in order: registers.
    Uncached,
}

impl Cache {
    /// The page-table bits that select the memory type.
    pub const fn bits(self) -> u64 {
        match self {
            Cache::WriteBack => 0,
            Cache::WriteCombining => Pte::WT,
            Cache::Uncached => Pte::CD | Pte::WT,
        }
    }
}

/// A run of frames that are not memory, and their indexes in the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames {
    /// Index of the first frame.
    pub index: u32,
    /// The first frame.
    pub first: Pfn,
    /// Number of frames.
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

    /// Bytes from index 0 to the end of the last frame.
    pub(super) fn bytes(&self) -> u64 {
        (u64::from(self.index) + u64::from(self.count)) << PAGE_SHIFT
    }
}
