//! Protections and flags of map entries.

use bitflags::bitflags;

bitflags! {
    /// Allowed accesses. `EXEC` and `WRITE` imply that the page can be read, as on x86-64. The bits are those of mmap(2).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Prot: u8 {
        /// Read.
        const READ = 1;
        /// Write.
        const WRITE = 2;
        /// Execute.
        const EXEC = 4;
    }
}

bitflags! {
    /// Properties of an entry; const after publication. Without `SHARED`, the mapping is private.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct EntryFlags: u32 {
        /// Stores are visible in all mappings of the object.
        const SHARED = 1 << 0;
        /// A fault below the entry extends it downwards.
        const GROWSDOWN = 1 << 1;
        /// Locked in memory.
        const LOCKED = 1 << 2;
        /// Not inherited by fork.
        const DONTFORK = 1 << 3;
        /// The child of a fork gets zeroes.
        const WIPEONFORK = 1 << 4;
        /// MAP_NORESERVE.
        const NORESERVE = 1 << 5;
        /// Left out of core dumps.
        const DONTDUMP = 1 << 6;
        /// The program break's area.
        const HEAP = 1 << 7;
        /// The first thread's stack.
        const STACK = 1 << 8;
        /// Shows the special object (the vDSO), from its first page on: never merged with a neighbour, split or extended.
        const SPECIAL = 1 << 9;
        /// The mapping was made of a file, or of an object that has a name: its bottom layer is never dropped.
        const FILE = 1 << 10;
        /// The mapping was made of a device.
        const DEVICE = 1 << 11;
        /// Superpages are wanted, unless they are switched off (MADV_HUGEPAGE).
        const HUGEPAGE = 1 << 12;
        /// Superpages are not wanted (MADV_NOHUGEPAGE).
        const NOHUGEPAGE = 1 << 13;
    }
}
