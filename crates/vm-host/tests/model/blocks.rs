//! Pages and lengths of the sequences in which programs get superpages: three blocks of 2 MiB, and their borders.

use crate::ops::At;

/// The first page number of the blocks.
pub const BLOCKS: u64 = 200 << 9;
/// Pages of all blocks.
pub const PAGES: u64 = 3 << 9;

/// Pages of the blocks that operations begin at.
const STARTS: [u64; 16] = [
    0, 1, 2, 3, 255, 256, 300, 510, 511, 512, 513, 1000, 1023, 1024, 1280, 1535,
];
/// Numbers of pages.
const LENGTHS: [u64; 12] = [1, 1, 2, 3, 64, 211, 256, 511, 512, 513, 1024, 1536];

/// The page number of an operation.
pub fn page_of(at: At) -> u64 {
    BLOCKS + STARTS[usize::from(at) % STARTS.len()]
}

/// The number of pages for an operation's length, within the blocks.
pub fn pages_of(page: u64, len: u8) -> u64 {
    let pages = LENGTHS[usize::from(len) % LENGTHS.len()];
    match (BLOCKS + PAGES).checked_sub(page) {
        Some(left) if left > 0 && page >= BLOCKS => pages.min(left),
        _ => pages.min(64),
    }
}

/// Whether a mapped page is looked at after operation `turn`: those at borders always, others in turn.
pub fn is_looked_at(page: u64, turn: usize) -> bool {
    matches!(page % 512, 0 | 1 | 511) || (page + turn as u64).is_multiple_of(29)
}
