//! Flags and state of a page: one atomic word.
//!
//! The low bits are flags that any CPU may set or clear atomically; the top four bits are the state, which only the
//! owner of the frame changes. Setting or clearing reads first, so that a flag that already has its value costs no
//! write and no transfer of the line.
//!
//! All accesses are Relaxed: a flag publishes no data. They are ordered by the page's busy state, and by the fences
//! between a fault's claim and its loads from the page, and between a scan's busy state and its loads of the flags.

use bitflags::bitflags;
use ksync::atomic::Ordering::Relaxed;

use crate::page::Page;

const STATE_SHIFT: u32 = 28;
const STATE_MASK: u32 = 0xf << STATE_SHIFT;

bitflags! {
    /// A set of page flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Flags: u32 {
        /// A page-table entry may map the page. Conservative: set before the entry is filled, cleared by a scan.
        const MAPPED = 1 << 0;
        /// More than one entry may map it. Conservative.
        const MULTI = 1 << 1;
        /// An entry may map it writable. Conservative.
        const WRITEABLE = 1 << 2;
        /// Used since the last scan for use.
        const REFERENCED = 1 << 3;
        /// Contents differ from the backing store.
        const DIRTY = 1 << 4;
        /// Contents are defined.
        const VALID = 1 << 5;
        /// Allocated for a file and not written to since: counts as a hole for SEEK_DATA and SEEK_HOLE unless it is
        /// MAPPED. Cleared together with MAPPED.
        const UNWRITTEN = 1 << 6;
        /// With UNWRITTEN: made for a write that then copied nothing, so that it may be removed again.
        const BLANK = 1 << 7;
    }
}

/// What a frame is used for. Changed by the frame's owner alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    /// There is no such frame.
    Absent = 0,
    /// In the allocator's free runs.
    Free = 1 << STATE_SHIFT,
    /// Handed out, or in a magazine; no particular use recorded.
    Allocated = 2 << STATE_SHIFT,
    /// A page table.
    Table = 3 << STATE_SHIFT,
    /// Part of a slab.
    Slab = 4 << STATE_SHIFT,
    /// Exists but does not belong to the allocator: kernel image, boot data, firmware.
    Reserved = 5 << STATE_SHIFT,
    /// Page of an anonymous object.
    Anon = 6 << STATE_SHIFT,
    /// Page of a file.
    File = 7 << STATE_SHIFT,
    /// Kernel use outside the slab: stacks, large buffers.
    Kernel = 8 << STATE_SHIFT,
}

impl Page {
    /// Sets flags; writes only if that changes something. Returns whether it did.
    pub fn set_flag(&self, flags: Flags) -> bool {
        self.flags.load(Relaxed) & flags.bits() != flags.bits()
            && self.flags.fetch_or(flags.bits(), Relaxed) & flags.bits() != flags.bits()
    }

    /// As `set_flag`, but a full barrier even if nothing changes: the caller's later loads from the page are at least
    /// as recent as those of a CPU that found the flags not yet set.
    #[inline]
    pub fn mark(&self, flags: Flags) {
        if self.flags().contains(flags) {
            ksync::fence_between_loads();
        } else {
            self.flags.fetch_or(flags.bits(), Relaxed);
            ksync::fence_after_rmw();
        }
    }

    /// After a claim and a full fence: sets `flags`, and returns whether the page `holds` what was found, so that every
    /// scan for its entries will find this one.
    ///
    /// The flags are set between two checks. A scan that began before the first check is over by then, and the flags
    /// that it cleared are seen to be clear. A scan that begins later finds the claim if it finds the flags. If it does
    /// not find them, it looks for no entries and leaves the flags as others set them; then the second check finds the
    /// page busy, or released again unchanged, with the flags set.
    #[inline(always)]
    pub fn mark_held(&self, flags: Flags, holds: impl Fn() -> bool) -> bool {
        holds() && {
            self.mark(flags);
            holds()
        }
    }

    /// Clears flags; writes only if that changes something. Returns whether it did, so that exactly one of several
    /// callers sees a flag change.
    pub fn clear_flag(&self, flags: Flags) -> bool {
        self.flags.load(Relaxed) & flags.bits() != 0
            && self.flags.fetch_and(!flags.bits(), Relaxed) & flags.bits() != 0
    }

    /// The flags now.
    pub fn flags(&self) -> Flags {
        Flags::from_bits_retain(self.flags.load(Relaxed) & !STATE_MASK)
    }

    /// Whether all of `flags` are set.
    pub fn has(&self, flags: Flags) -> bool {
        self.flags().contains(flags)
    }

    /// What the frame is used for.
    pub fn state(&self) -> State {
        match self.flags.load(Relaxed) >> STATE_SHIFT {
            0 => State::Absent,
            1 => State::Free,
            2 => State::Allocated,
            3 => State::Table,
            4 => State::Slab,
            5 => State::Reserved,
            6 => State::Anon,
            7 => State::File,
            _ => State::Kernel,
        }
    }

    /// Sets state and flags by one plain store. The caller owns the frame and no entry maps it: a flag that another CPU
    /// set meanwhile would be lost.
    pub fn init_flags(&self, state: State, flags: Flags) {
        self.flags.store(state as u32 | flags.bits(), Relaxed);
    }

    /// Changes the state and keeps the flags. The caller owns the frame.
    pub fn set_state(&self, state: State) {
        let change = (self.flags.load(Relaxed) & STATE_MASK) ^ state as u32;
        // Only the owner touches the state bits, so flipping those that differ cannot race with another change.
        if change != 0 {
            self.flags.fetch_xor(change, Relaxed);
        }
    }
}
