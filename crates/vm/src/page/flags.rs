//! Flags and state of a page: one atomic word.
//!
//! The low bits are flags that anyone may set or clear atomically; the top four bits are the state, which only the
//! owner of the frame changes. Setting or clearing reads first, so that a flag that already has its value costs no
//! write and no line transfer.
//!
//! All accesses are Relaxed. A flag passes nothing on: what it says of the page is ordered by the page's busy state and by the
//! fences that stand between a claim and the looks at the page, and between a scan's busy state and its look at the flags.

use core::ops::BitOr;
use ksync::atomic::Ordering::Relaxed;

use crate::page::Page;

const STATE_SHIFT: u32 = 28;
const STATE_MASK: u32 = 0xf << STATE_SHIFT;

/// A set of page flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags(u32);

impl Flags {
    /// No flag.
    pub const EMPTY: Flags = Flags(0);
    /// A page-table entry may map the page. Conservative: set before the entry is, cleared by a scan.
    pub const MAPPED: Flags = Flags(1 << 0);
    /// More than one entry may map it. Conservative.
    pub const MULTI: Flags = Flags(1 << 1);
    /// An entry may map it writable. Conservative.
    pub const WRITEABLE: Flags = Flags(1 << 2);
    /// Used since the page daemon last looked.
    pub const REFERENCED: Flags = Flags(1 << 3);
    /// Contents differ from the backing store.
    pub const DIRTY: Flags = Flags(1 << 4);
    /// Contents are defined.
    pub const VALID: Flags = Flags(1 << 5);
    /// Made for a file by an allocation, and nothing was put in since: to those who ask where data are it is a hole, unless
    /// it is MAPPED. What clears MAPPED clears it, too.
    pub const UNWRITTEN: Flags = Flags(1 << 6);
    /// With UNWRITTEN: made for a write that found nothing to put in, so that it may go again.
    pub const BLANK: Flags = Flags(1 << 7);

    /// The flags as bits, without the state.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in this set.
    pub const fn intersects(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets, for constants.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        self.with(other)
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
    /// Handed out, or waiting in a magazine; no particular use recorded.
    Allocated = 2 << STATE_SHIFT,
    /// A page table.
    Table = 3 << STATE_SHIFT,
    /// Part of a slab.
    Slab = 4 << STATE_SHIFT,
    /// Exists but is not the allocator's: kernel image, boot data, firmware.
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
        self.flags.load(Relaxed) & flags.0 != flags.0
            && self.flags.fetch_or(flags.0, Relaxed) & flags.0 != flags.0
    }

    /// As `set_flag`, and a full barrier, also where nothing changes: who looks at the page after it sees at least what
    /// those see by now who found the flags not to be set.
    #[inline]
    pub fn mark(&self, flags: Flags) {
        if self.flags().contains(flags) {
            ksync::fence_between_loads();
        } else {
            self.flags.fetch_or(flags.0, Relaxed);
            ksync::fence_after_rmw();
        }
    }

    /// After a claim, and a full fence: whether the page `holds` what was found, and whoever scans for its entries will find
    /// this one.
    ///
    /// The flags lie between two looks. A scan that began before the first one is over by then, and what it cleared is
    /// seen to be clear. One that begins later finds the claim if it finds the flags. If it does not, it looks for no entries and
    /// leaves the flags as others set them; then the second look finds the page busy, or given back as it was, and marked.
    #[inline(always)]
    pub fn mark_held(&self, flags: Flags, holds: impl Fn() -> bool) -> bool {
        holds() && {
            self.mark(flags);
            holds()
        }
    }

    /// Clears flags; writes only if that changes something. Returns whether it did, so that exactly one of several
    /// callers sees a flag go.
    pub fn clear_flag(&self, flags: Flags) -> bool {
        self.flags.load(Relaxed) & flags.0 != 0
            && self.flags.fetch_and(!flags.0, Relaxed) & flags.0 != 0
    }

    /// The flags now.
    pub fn flags(&self) -> Flags {
        Flags(self.flags.load(Relaxed) & !STATE_MASK)
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

    /// Sets state and flags by one plain store. The caller owns the frame and no entry maps it: a flag that another
    /// CPU sets meanwhile would be lost.
    pub fn init_flags(&self, state: State, flags: Flags) {
        self.flags.store(state as u32 | flags.0, Relaxed);
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
