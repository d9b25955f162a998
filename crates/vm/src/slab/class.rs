//! Size classes and the shape of their slabs.

use core::alloc::Layout;

use crate::page::PAGE_SIZE;

/// Number of size classes: 16, then two per doubling up to 3072.
pub(super) const CLASSES: usize = 16;
/// Largest size that a slab serves.
pub(super) const MAX_SIZE: usize = 3072;
/// Objects of a slab at most: the bits that a page has for them.
pub(super) const MAX_OBJECTS: usize = 256;

/// Object sizes.
const SIZES: [u16; CLASSES] = {
    let mut sizes = [16; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        let base = 16 << ((class - 1) / 2);
        sizes[class] = if class % 2 == 1 {
            base + base / 2
        } else {
            2 * base
        };
        class += 1;
    }
    sizes
};

/// log2 of the pages of a slab: the least that wastes at most an eighth of it.
const ORDERS: [u8; CLASSES] = {
    let mut orders = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let size = SIZES[class] as usize;
        while (PAGE_SIZE << orders[class]) % size * 8 > PAGE_SIZE << orders[class]
            || (PAGE_SIZE << orders[class]) / size < 4
        {
            orders[class] += 1;
        }
        class += 1;
    }
    orders
};

/// A size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class(u8);

impl Class {
    /// The smallest class whose objects satisfy `layout`; `None` if it is larger than all.
    ///
    /// A slab starts at a page boundary, so objects are aligned to the largest power of two that divides their size.
    #[inline]
    pub(super) fn of(layout: Layout) -> Option<Class> {
        let (size, align) = (layout.size(), layout.align());
        if size > MAX_SIZE || align > MAX_SIZE {
            return None;
        }
        if align <= 8 {
            return Some(Class::of_size(size));
        }
        // An alignment is a power of two: the power-of-two class at or above both fits always, the one half a step
        // below where its size is a multiple of the alignment.
        let class = Class::of_size(size.max(align));
        let fits = class.size().is_multiple_of(align);
        let class = if fits { class } else { Class(class.0 + 1) };
        (usize::from(class.0) < CLASSES).then_some(class)
    }

    #[inline]
    fn of_size(size: usize) -> Class {
        if size <= 16 {
            return Class(0);
        }
        let below = size - 1;
        let log = below.ilog2();
        let upper_half = below >> (log - 1) & 1;
        Class((2 * (log - 4) + 1) as u8 + upper_half as u8)
    }

    /// All classes.
    pub(super) fn all() -> impl Iterator<Item = Class> {
        (0..CLASSES as u8).map(Class)
    }

    /// As an index below [`CLASSES`].
    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The class of an index.
    pub(super) fn from_index(index: u8) -> Class {
        debug_assert!(usize::from(index) < CLASSES);
        Class(index)
    }

    /// Bytes of an object.
    #[inline]
    pub(super) fn size(self) -> usize {
        usize::from(SIZES[self.index()])
    }

    /// log2 of the pages that a slab should have.
    pub(super) fn order(self) -> u8 {
        ORDERS[self.index()]
    }

    /// Objects of a slab of `1 << order` pages.
    pub(super) fn objects(self, order: u8) -> usize {
        ((PAGE_SIZE << order) / self.size()).min(MAX_OBJECTS)
    }

    /// Objects that a CPU keeps: 32, but no more than two pages full.
    #[inline]
    pub(super) fn cached(self) -> usize {
        const CACHED: [u8; CLASSES] = {
            let mut cached = [0; CLASSES];
            let mut class = 0;
            while class < CLASSES {
                let fit = 2 * PAGE_SIZE / SIZES[class] as usize;
                cached[class] = if fit < CACHE { fit as u8 } else { CACHE as u8 };
                class += 1;
            }
            cached
        };
        usize::from(CACHED[self.index()])
    }
}

/// Objects of one class that a CPU keeps at most.
pub(super) const CACHE: usize = 32;

const _: () = {
    let mut class = 0;
    while class < CLASSES {
        assert!((PAGE_SIZE << ORDERS[class]) / SIZES[class] as usize <= MAX_OBJECTS);
        assert!(ORDERS[class] <= 3);
        class += 1;
    }
    assert!(SIZES[CLASSES - 1] as usize == MAX_SIZE);
};
