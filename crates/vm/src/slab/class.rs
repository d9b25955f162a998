//! Size classes and the shape of their slabs.

use core::alloc::Layout;

use crate::page::{PAGE_SIZE, SLAB_WORDS};

/// Number of size classes: 16, then two per doubling up to 3072.
pub(super) const CLASSES: usize = 16;
/// Largest size that a slab serves.
pub(super) const MAX_SIZE: usize = 3072;
/// Objects of a slab at most: the bits that a page has for them.
pub(super) const MAX_OBJECTS: usize = 32 * SLAB_WORDS;

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

/// The class of each size, by (size − 1) / 8.
static BY_SIZE: [u8; MAX_SIZE / 8] = {
    let mut classes = [0; MAX_SIZE / 8];
    let (mut class, mut at) = (0, 0);
    while at < classes.len() {
        if 8 * (at + 1) > SIZES[class] as usize {
            class += 1;
        }
        classes[at] = class as u8;
        at += 1;
    }
    classes
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

/// Objects of a slab of one page, and of a slab of the class's order.
static CAPACITY: [[u16; CLASSES]; 2] = {
    let mut capacity = [[0; CLASSES]; 2];
    let mut class = 0;
    while class < CLASSES {
        capacity[0][class] = objects(class, 0);
        capacity[1][class] = objects(class, ORDERS[class]);
        class += 1;
    }
    capacity
};

/// Objects of a slab of `1 << order` pages: as many as fit, and have bits.
const fn objects(class: usize, order: u8) -> u16 {
    let fit = (PAGE_SIZE << order) / SIZES[class] as usize;
    if fit < MAX_OBJECTS {
        fit as u16
    } else {
        MAX_OBJECTS as u16
    }
}

/// 2³² divided by each size, rounded up.
static RECIPROCAL: [u32; CLASSES] = {
    let mut reciprocal = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        reciprocal[class] = (1u64 << 32).div_ceil(SIZES[class] as u64) as u32;
        class += 1;
    }
    reciprocal
};

/// A size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class(u8);

impl Class {
    /// The smallest class whose objects satisfy `layout`; `None` if it is larger than all.
    ///
    /// A slab starts at a page boundary, so objects are aligned to the largest power of two that divides their size.
    /// The class of the size, rounded up to a multiple of the alignment, satisfies it: a class is 2ⁿ or 3·2ⁿ bytes, so
    /// an alignment that does not divide it exceeds 2ⁿ, and no multiple of that lies between it and the class below.
    #[inline]
    pub(super) fn of(layout: Layout) -> Option<Class> {
        // One less than the rounded size; all ones for a size of zero, which is never requested: it gets a page.
        let below = layout.size().wrapping_sub(1) | (layout.align() - 1);
        if below < MAX_SIZE {
            Some(Class(BY_SIZE[below / 8]))
        } else {
            None
        }
    }

    /// All classes.
    pub(super) fn all() -> impl Iterator<Item = Class> {
        (0..CLASSES as u8).map(Class)
    }

    /// As an index below [`CLASSES`].
    #[inline]
    pub(super) fn index(self) -> usize {
        // The remainder spares bounds checks: a class is below CLASSES.
        usize::from(self.0) % CLASSES
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

    /// Objects of a slab of `1 << order` pages: the class's own order, or single pages where memory is short.
    pub(super) fn objects(self, order: u8) -> usize {
        usize::from(CAPACITY[usize::from(order != 0)][self.index()])
    }

    /// Where objects lie in a slab.
    #[inline(always)]
    pub(super) fn spacing(self) -> Spacing {
        Spacing {
            size: SIZES[self.index()].into(),
            reciprocal: RECIPROCAL[self.index()] as usize,
        }
    }

    /// Objects that a CPU keeps: 252, but no more than six pages full. That covers what a few forks allocate and their
    /// ends free, so that short-lived processes do not touch the slabs.
    #[inline]
    pub(super) fn cached(self) -> usize {
        const CACHED: [u8; CLASSES] = {
            let mut cached = [0; CLASSES];
            let mut class = 0;
            while class < CLASSES {
                let fit = 6 * PAGE_SIZE / SIZES[class] as usize;
                cached[class] = if fit < CACHE { fit as u8 } else { CACHE as u8 };
                class += 1;
            }
            cached
        };
        usize::from(CACHED[self.index()])
    }

    /// Objects exchanged with a depot at once: half of what a CPU keeps, but no more than [`BURST`].
    pub(super) fn burst(self) -> usize {
        self.cached().div_ceil(2).min(BURST)
    }
}

/// Where the objects of a class lie in a slab.
#[derive(Clone, Copy)]
pub(super) struct Spacing {
    size: usize,
    reciprocal: usize,
}

impl Spacing {
    /// The place of the object that starts `offset` bytes into its slab.
    #[inline(always)]
    pub(super) fn place(self, offset: usize) -> u32 {
        // Multiplied by 2³²/size, rounded up: exact, as an offset is below 2¹⁵ and a multiple of the size.
        let place = (offset * self.reciprocal) >> 32;
        assert!(place * self.size == offset, "no heap object starts here");
        place as u32
    }
}

/// Objects of one class that a CPU keeps at most.
pub(super) const CACHE: usize = 252;

/// Objects exchanged with a depot at once, at most.
pub(super) const BURST: usize = 64;

const _: () = {
    let mut class = 0;
    while class < CLASSES {
        assert!((PAGE_SIZE << ORDERS[class]) / SIZES[class] as usize <= 256);
        assert!(ORDERS[class] <= 3);
        class += 1;
    }
    assert!(SIZES[CLASSES - 1] as usize == MAX_SIZE);
};
