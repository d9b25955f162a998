//! Frame numbers.

/// Highest order of a run: 4 MiB.
pub const MAX_ORDER: u8 = 10;
/// Bytes in a frame.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// More frames a machine cannot use: 8 TiB. The numbers leave a bit of 32 free, and two words that name no frame.
pub const MOST_FRAMES: usize = (1 << 31) - 2;

/// A frame number: physical address divided by 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct Pfn(pub u32);

impl Pfn {
    /// No frame: ends lists and marks empty links.
    pub const NONE: Pfn = Pfn(u32::MAX);

    /// The frame that holds a physical address.
    pub const fn containing(address: u64) -> Pfn {
        Pfn((address >> PAGE_SHIFT) as u32)
    }

    /// Physical address of the first byte.
    pub const fn address(self) -> u64 {
        (self.0 as u64) << PAGE_SHIFT
    }

    /// The frame as an index into arrays.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The frame `n` frames further on.
    #[must_use]
    pub const fn add(self, n: u32) -> Pfn {
        Pfn(self.0 + n)
    }

    /// Number of the block of the allocator's highest order in which the frame lies.
    pub(crate) const fn block(self) -> u32 {
        self.0 >> MAX_ORDER
    }

    /// One more than the last frame of that block.
    pub(crate) const fn block_end(self) -> Pfn {
        Pfn((self.block() + 1) << MAX_ORDER)
    }

    /// Whether this is [`Pfn::NONE`].
    pub const fn is_none(self) -> bool {
        self.0 == u32::MAX
    }
}
