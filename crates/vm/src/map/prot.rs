//! Protections and flags of map entries.

use core::ops::{BitAnd, BitOr};

/// Allowed accesses. `EXEC` and `WRITE` imply that the page can be read, as on x86-64.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prot(u8);

impl Prot {
    /// No access.
    pub const NONE: Prot = Prot(0);
    /// Read.
    pub const READ: Prot = Prot(1);
    /// Write.
    pub const WRITE: Prot = Prot(2);
    /// Execute.
    pub const EXEC: Prot = Prot(4);
    /// Everything.
    pub const ALL: Prot = Prot(7);

    /// Whether nothing of `other` is missing.
    pub const fn contains(self, other: Prot) -> bool {
        self.0 & other.0 == other.0
    }

    /// Without `other`.
    #[must_use]
    pub const fn without(self, other: Prot) -> Prot {
        Prot(self.0 & !other.0)
    }

    /// Whether no access is allowed.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Prot {
    type Output = Prot;
    fn bitor(self, other: Prot) -> Prot {
        Prot(self.0 | other.0)
    }
}

impl BitAnd for Prot {
    type Output = Prot;
    fn bitand(self, other: Prot) -> Prot {
        Prot(self.0 & other.0)
    }
}

/// Properties of an entry; const after publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryFlags(u32);

impl EntryFlags {
    /// None: private.
    pub const EMPTY: EntryFlags = EntryFlags(0);
    /// Stores are visible in all mappings of the object.
    pub const SHARED: EntryFlags = EntryFlags(1 << 0);
    /// A fault below the entry extends it downwards.
    pub const GROWSDOWN: EntryFlags = EntryFlags(1 << 1);
    /// Locked in memory.
    pub const LOCKED: EntryFlags = EntryFlags(1 << 2);
    /// Not inherited by fork.
    pub const DONTFORK: EntryFlags = EntryFlags(1 << 3);
    /// The child of a fork gets zeroes.
    pub const WIPEONFORK: EntryFlags = EntryFlags(1 << 4);
    /// MAP_NORESERVE.
    pub const NORESERVE: EntryFlags = EntryFlags(1 << 5);
    /// Left out of core dumps.
    pub const DONTDUMP: EntryFlags = EntryFlags(1 << 6);
    /// The program break's area.
    pub const HEAP: EntryFlags = EntryFlags(1 << 7);
    /// The first thread's stack.
    pub const STACK: EntryFlags = EntryFlags(1 << 8);
    /// Made by the kernel (vdso): never merged with a neighbour.
    pub const SPECIAL: EntryFlags = EntryFlags(1 << 9);
    /// The mapping was made of a file, or of an object that has a name: its bottom layer is never dropped.
    pub const FILE: EntryFlags = EntryFlags(1 << 10);
    /// The mapping was made of a device.
    pub const DEVICE: EntryFlags = EntryFlags(1 << 11);

    /// Whether nothing of `other` is missing.
    pub const fn contains(self, other: EntryFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// With `other`.
    #[must_use]
    pub const fn with(self, other: EntryFlags) -> EntryFlags {
        EntryFlags(self.0 | other.0)
    }

    /// Without `other`.
    #[must_use]
    pub const fn without(self, other: EntryFlags) -> EntryFlags {
        EntryFlags(self.0 & !other.0)
    }
}

impl BitOr for EntryFlags {
    type Output = EntryFlags;
    fn bitor(self, other: EntryFlags) -> EntryFlags {
        self.with(other)
    }
}
