//! One page-table entry, as a value.
//!
//! The format is that of x86-64 four-level paging, in both worlds: hardware walks it in the kernel, software on the
//! host. Bits that hardware ignores say what hardware need not know.
//!
//! An entry is in one of four states:
//!
//! | state | present | who may leave it |
//! |---|---|---|
//! | empty (zero) | no | the holder of the table's lock |
//! | live | yes | the lock holder; a scan, by compare-and-swap |
//! | claimed | no | the fault that put it there (it holds the lock); a scan, which makes that fault restart |
//! | busy | no | the remover that put it there (it holds the lock); scans wait for it |
//!
//! Claimed and busy entries carry the frame number, so that a scan knows whether they are its concern. They last for
//! a few dozen instructions with preemption off.

use core::fmt;

use crate::page::Pfn;

/// What an entry allows, beyond reading by user programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prot {
    /// Writing.
    pub write: bool,
    /// Instruction fetch.
    pub exec: bool,
}

impl Prot {
    /// Reading only.
    pub const READ: Prot = Prot {
        write: false,
        exec: false,
    };
    /// Reading and writing.
    pub const WRITE: Prot = Prot {
        write: true,
        exec: false,
    };
    /// Reading and executing.
    pub const EXEC: Prot = Prot {
        write: false,
        exec: true,
    };
    /// Everything.
    pub const ALL: Prot = Prot {
        write: true,
        exec: true,
    };
}

/// A page-table entry by value. See the module.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Pte(pub u64);

impl Pte {
    /// Present: hardware uses the entry.
    pub const P: u64 = 1 << 0;
    /// Writable, if all levels above are.
    pub const W: u64 = 1 << 1;
    /// Open to user programs.
    pub const U: u64 = 1 << 2;
    /// Write-through; with [`CD`](Pte::CD), the memory type of device frames.
    pub const WT: u64 = 1 << 3;
    /// Not cached.
    pub const CD: u64 = 1 << 4;
    /// Accessed, set by hardware.
    pub const A: u64 = 1 << 5;
    /// Dirty, set by hardware. Never ignored, whatever W says: clearing W leaves it in place, and processors exist
    /// that set it a moment after W went.
    pub const D: u64 = 1 << 6;
    /// A leaf above level 1. Never produced yet; code that descends asserts that.
    pub const PS: u64 = 1 << 7;
    /// Software: not present, a fault claims the slot for this frame.
    pub const CLAIMED: u64 = 1 << 9;
    /// Software: not present, removed, its A and D are on their way into the page.
    pub const BUSY: u64 = 1 << 10;
    /// Software: belongs to a locked range, which dropping tables spares.
    pub const WIRED: u64 = 1 << 11;
    /// Software: the frame has a page with an identity, to which A and D matter.
    pub const MANAGED: u64 = 1 << 52;
    /// No instruction fetch.
    pub const NX: u64 = 1 << 63;

    const FRAME: u64 = 0x000f_ffff_ffff_f000;

    /// No entry.
    pub const EMPTY: Pte = Pte(0);

    /// A leaf for a managed page. A is set: an entry is made because of an access, and hardware that finds it set
    /// saves a locked update.
    #[inline]
    pub const fn user(pfn: Pfn, prot: Prot) -> Pte {
        let write = if prot.write { Pte::W } else { 0 };
        let no_exec = if prot.exec { 0 } else { Pte::NX };
        Pte(pfn.address() | Pte::P | Pte::U | Pte::A | Pte::MANAGED | write | no_exec)
    }

    /// A leaf for a frame without identity: the shared kernel data page, device memory.
    pub const fn unmanaged(pfn: Pfn, prot: Prot) -> Pte {
        Pte::user(pfn, prot).without(Pte::MANAGED)
    }

    /// An entry of a directory. All rights: the leaf restricts.
    pub(super) const fn directory(table: Pfn) -> Pte {
        Pte(table.address() | Pte::P | Pte::W | Pte::U | Pte::A)
    }

    /// The claim of a slot for the frame of `self`.
    pub(super) const fn claimed(self) -> Pte {
        Pte(self.0 & Pte::FRAME | Pte::CLAIMED)
    }

    /// What stands in the slot of `self` while its A and D are handed on.
    pub(super) const fn busy(self) -> Pte {
        Pte(self.0 & Pte::FRAME | Pte::BUSY)
    }

    /// With bits added.
    #[must_use]
    pub const fn with(self, bits: u64) -> Pte {
        Pte(self.0 | bits)
    }

    /// With bits removed.
    #[must_use]
    pub const fn without(self, bits: u64) -> Pte {
        Pte(self.0 & !bits)
    }

    /// Marked dirty from the start: for the write that is being served, so that hardware need not set D.
    #[must_use]
    pub const fn dirtied(self) -> Pte {
        self.with(Pte::D)
    }

    /// Not marked accessed: for neighbours mapped on speculation.
    #[must_use]
    pub const fn untouched(self) -> Pte {
        self.without(Pte::A)
    }

    /// Part of a locked range.
    #[must_use]
    pub const fn wired(self) -> Pte {
        self.with(Pte::WIRED)
    }

    /// The frame, of an entry that is not empty.
    #[inline]
    pub const fn pfn(self) -> Pfn {
        Pfn::containing(self.0 & Pte::FRAME)
    }

    /// Whether any of `bits` is set.
    #[inline]
    pub const fn any(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    /// Whether there is no entry.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether hardware uses it.
    #[inline]
    pub const fn is_present(self) -> bool {
        self.any(Pte::P)
    }

    /// Whether the leaf allows writing; the levels above may not.
    #[inline]
    pub const fn is_writable(self) -> bool {
        self.any(Pte::W)
    }

    /// Whether the leaf allows instruction fetch.
    pub const fn is_executable(self) -> bool {
        !self.any(Pte::NX)
    }

    /// Whether hardware has written through it.
    #[inline]
    pub const fn is_dirty(self) -> bool {
        self.any(Pte::D)
    }

    /// Whether hardware has used it.
    #[inline]
    pub const fn is_accessed(self) -> bool {
        self.any(Pte::A)
    }

    /// Whether A and D matter to a page.
    #[inline]
    pub const fn is_managed(self) -> bool {
        self.any(Pte::MANAGED)
    }
}

impl fmt::Debug for Pte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("Pte(empty)");
        }
        write!(f, "Pte({:#x}", self.pfn().0)?;
        let names = [
            (Pte::P, " P"),
            (Pte::W, " W"),
            (Pte::A, " A"),
            (Pte::D, " D"),
            (Pte::CLAIMED, " claimed"),
            (Pte::BUSY, " busy"),
            (Pte::WIRED, " wired"),
            (Pte::MANAGED, " managed"),
            (Pte::NX, " NX"),
        ];
        for (bit, name) in names {
            if self.any(bit) {
                f.write_str(name)?;
            }
        }
        f.write_str(")")
    }
}
