//! Blocks of indexes, and places in them.

/// log2 of the frames of a run: 2 MiB, what an entry of a level-2 table maps. Model checkers get runs of four frames.
pub const RUN_ORDER: u8 = if cfg!(any(loom, shuttle)) { 2 } else { 9 };
/// Frames of a run.
pub const RUN_FRAMES: u32 = 1 << RUN_ORDER;

/// A page's place: an index of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The object's identity, not 0.
    pub object: usize,
    /// The page's index.
    pub index: u32,
}

impl Place {
    /// The number of the aligned block of indexes that a run serves.
    pub(crate) const fn block(self) -> u32 {
        self.index >> RUN_ORDER
    }

    /// The page's place in its block.
    pub(super) const fn offset(self) -> u32 {
        self.index & (RUN_FRAMES - 1)
    }
}
