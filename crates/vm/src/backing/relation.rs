//! The mapping between addresses and indexes.

use crate::alloc::RUN_FRAMES;
use crate::page::PAGE_SHIFT;

/// How the addresses of a mapping correspond to the indexes of an object: the sum or the difference of index and page
/// number is constant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Relation {
    base: u64,
    /// Indexes count downwards from the top of the mapping, for ranges that grow down.
    down: bool,
}

impl Relation {
    /// Address `at` has index `index`; indexes rise with addresses.
    pub const fn up(at: u64, index: u64) -> Relation {
        Relation {
            base: (at >> PAGE_SHIFT).wrapping_sub(index),
            down: false,
        }
    }

    /// The page below `end` has index 0; indexes rise as addresses fall.
    pub const fn down(end: u64) -> Relation {
        Relation {
            base: (end >> PAGE_SHIFT) - 1,
            down: true,
        }
    }

    /// Whether indexes fall as addresses rise.
    pub const fn is_down(self) -> bool {
        self.down
    }

    /// The relation of a mapping that is `distance` (modulo 2^64) higher.
    #[must_use]
    pub const fn moved(self, distance: u64) -> Relation {
        // Sign-preserving: the page distance is exact because both ends are page-aligned.
        Relation {
            base: self
                .base
                .wrapping_add(((distance as i64) >> PAGE_SHIFT) as u64),
            down: self.down,
        }
    }

    /// The index of an address of the mapping. Meaningless for other addresses.
    #[inline]
    pub const fn index(self, at: u64) -> u32 {
        self.wide(at) as u32
    }

    const fn wide(self, at: u64) -> u64 {
        let page = at >> PAGE_SHIFT;
        if self.down {
            self.base.wrapping_sub(page)
        } else {
            page.wrapping_sub(self.base)
        }
    }

    /// Whether every page of `start..end` has an index that an object can hold.
    pub const fn holds(self, start: u64, end: u64) -> bool {
        self.wide(start) < u32::MAX as u64 && self.wide(end - 1) < u32::MAX as u64
    }

    /// The address of an index.
    pub const fn address(self, index: u32) -> u64 {
        let page = if self.down {
            self.base.wrapping_sub(index as u64)
        } else {
            self.base.wrapping_add(index as u64)
        };
        page << PAGE_SHIFT
    }

    /// First and last index of `start..end`, which is not empty.
    pub const fn indexes(self, start: u64, end: u64) -> (u32, u32) {
        let (a, b) = (self.index(start), self.index(end - 1));
        if self.down { (b, a) } else { (a, b) }
    }

    /// Byte offset in the object of an address: what /proc shows for a file.
    pub const fn offset(self, at: u64) -> u64 {
        (self.index(at) as u64) << PAGE_SHIFT
    }

    /// Whether the page at an address has the same place in a block of [`RUN_FRAMES`] addresses as in one of indices.
    pub const fn places(self, at: u64) -> bool {
        !self.down && self.index(at) % RUN_FRAMES == (at >> PAGE_SHIFT) as u32 % RUN_FRAMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_and_down_are_bijections() {
        for relation in [
            Relation::up(0x7000_0000, 5),
            Relation::down(0x7000_8000),
            Relation::up(0x1000, 900),
        ] {
            for at in [0x7000_0000, 0x7000_3000, 0x7000_7000] {
                assert_eq!(relation.address(relation.index(at)), at);
                for distance in [0x5000, 0x5000_u64.wrapping_neg()] {
                    let to = at.wrapping_add(distance);
                    assert_eq!(relation.moved(distance).index(to), relation.index(at));
                }
            }
        }
        assert_eq!(Relation::down(0x8000).indexes(0x5000, 0x8000), (0, 2));
        assert_eq!(Relation::up(0x5000, 7).indexes(0x5000, 0x8000), (7, 9));
    }
}
