//! One page-table entry, as a value.
//!
//! The format is that of x86-64 four-level paging, in the kernel, where hardware walks it, and on the host, where
//! software does. Bits that hardware ignores hold the software states.
//!
//! An entry of a level-1 table is in one of six states:
//!
//! | state | present | changed by |
//! |---|---|---|
//! | empty (zero) | no | the holder of the table's lock |
//! | live | yes | the lock holder; a scan, by compare-and-swap |
//! | live, claimed | yes | the fault that adds rights (it holds the lock); a scan, which may remove the claim |
//! | claimed | no | the fault that put it there (it holds the lock); a scan, which makes that fault restart |
//! | busy | no | the remover that put it there (it holds the lock); scans wait for it |
//! | frozen: busy, with all other bits | no | the promotion that put it there (it holds the lock); scans wait for it |
//!
//! Claimed and busy entries carry the frame number, so that a scan knows whether they concern it. If a scan removes a
//! claim, the fault starts again. These states last for a few dozen instructions with preemption off; a promotion reads
//! the table once. Where a promotion succeeds, the entries stay frozen, in a table that is dead.
//!
//! An entry of a directory is empty, leads to a table, or, at level 2, is a leaf of 2 MiB with [`PS`](Pte::PS). It changes
//! under the directory's lock alone; but A of a leaf is set by hardware and cleared by a scan. A leaf with W has D.

use core::fmt;

use crate::page::{PAGE_SHIFT, Pfn};

/// Rights of an entry beyond reading by user programs.
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
    /// Writable, if W is set on all levels above.
    pub const W: u64 = 1 << 1;
    /// Accessible to user programs.
    pub const U: u64 = 1 << 2;
    /// Write-through; with [`CD`](Pte::CD), the memory type of device frames.
    pub const WT: u64 = 1 << 3;
    /// Not cached.
    pub const CD: u64 = 1 << 4;
    /// Accessed, set by hardware.
    pub const A: u64 = 1 << 5;
    /// Dirty, set by hardware. Never ignored, whatever W says: clearing W leaves D in place, and some processors set it
    /// a moment after W was cleared.
    pub const D: u64 = 1 << 6;
    /// In an entry of level 2: a leaf of 2 MiB. Level 3 has none.
    pub const PS: u64 = 1 << 7;
    /// Software: a fault claims the slot for this frame. Not present, or a live entry that is about to gain rights.
    pub const CLAIMED: u64 = 1 << 9;
    /// Software: not present; a remover is handing the entry's A and D on to the page.
    pub const BUSY: u64 = 1 << 10;
    /// Software: belongs to a locked range, which [`Pmap::drop_tables`](crate::Pmap::drop_tables) spares. Only tests set it.
    pub const WIRED: u64 = 1 << 11;
    /// Software: the frame has a page with an identity, which needs A and D.
    pub const MANAGED: u64 = 1 << 52;
    /// Software, in a leaf of 2 MiB: of shared memory, or of a file. For counts.
    pub const SHARED: u64 = 1 << 53;
    /// No instruction fetch.
    pub const NX: u64 = 1 << 63;

    const FRAME: u64 = 0x000f_ffff_ffff_f000;

    /// No entry.
    pub const EMPTY: Pte = Pte(0);

    /// A leaf for a managed page. A is set: an entry is made because of an access, and with A set hardware needs no
    /// locked update.
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

    /// A directory entry, with all rights: the leaf restricts them.
    pub(super) const fn directory(table: Pfn) -> Pte {
        Pte(table.address() | Pte::P | Pte::W | Pte::U | Pte::A)
    }

    /// A claim of the slot for the frame of `self`.
    pub(super) const fn claimed(self) -> Pte {
        Pte(self.0 & Pte::FRAME | Pte::CLAIMED)
    }

    /// What replaces `self` while its A and D are handed on.
    pub(super) const fn busy(self) -> Pte {
        Pte(self.0 & Pte::FRAME | Pte::BUSY)
    }

    /// What replaces a live entry while a promotion looks at the others: all that it says, but not present.
    pub(super) const fn frozen(self) -> Pte {
        self.without(Pte::P).with(Pte::BUSY)
    }

    /// The live entry that was frozen.
    pub(super) const fn thawed(self) -> Pte {
        self.without(Pte::BUSY).with(Pte::P)
    }

    /// Whether a promotion has frozen the entry. CPUs may still use what it says: no rights were taken away.
    pub(super) const fn is_frozen(self) -> bool {
        self.0 & (Pte::P | Pte::BUSY | Pte::U) == Pte::BUSY | Pte::U
    }

    /// Whether an entry of a directory is a leaf.
    #[inline]
    pub const fn is_large(self) -> bool {
        self.any(Pte::PS)
    }

    /// Whether an entry of a directory leads to a table. Such an entry is empty, or has P; so one comparison tells.
    #[inline]
    pub(super) const fn is_table(self) -> bool {
        debug_assert!(self.is_empty() || self.is_present());
        (self.0 & 0xff) as i8 > 0
    }

    /// The entry of 4 KiB for page `n` of the 512 that a leaf of 2 MiB maps.
    #[inline]
    pub const fn piece(self, n: usize) -> Pte {
        Pte(self.without(Pte::PS | Pte::SHARED).0 + ((n as u64) << PAGE_SHIFT))
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

    /// Marked dirty in advance, for a write fault, so that hardware need not set D.
    #[must_use]
    pub const fn dirtied(self) -> Pte {
        self.with(Pte::D)
    }

    /// Not marked accessed: for neighbours that are mapped speculatively.
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

    /// Whether a store went through the entry.
    #[inline]
    pub const fn is_dirty(self) -> bool {
        self.any(Pte::D)
    }

    /// Whether an access went through the entry.
    #[inline]
    pub const fn is_accessed(self) -> bool {
        self.any(Pte::A)
    }

    /// Whether the frame's page needs A and D.
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
            (Pte::PS, " 2M"),
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
