//! The slabs of one size class that one CPU has cut.
//!
//! A slab is an aligned run of pages cut into objects. Its first page's record has one bit for each object in use;
//! nothing is stored in the slab, so that objects carry no header, freed memory is not written, and a double free is
//! noticed. The number of objects in use is stored in the page's wire count, as they wire the run.

use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use super::class::{Class, Spacing};
use crate::page::{PAGE_SIZE, Page, PageArray, PageList, Pfn, SLAB_WORDS};

/// An object: its slab and its place there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Object {
    pub(super) slab: Pfn,
    pub(super) place: u32,
}

/// See the module. All of it, and the records of its slabs, are guarded by the depot's lock.
pub(super) struct Depot {
    /// Slabs with objects both in use and free.
    partial: PageList,
    /// One slab without objects in use, kept so that a single object that is allocated and freed again and again does
    /// not allocate a run each time.
    spare: Option<Pfn>,
    /// Pages of all slabs.
    pages: usize,
    /// Objects in use, those in CPUs' caches included.
    in_use: usize,
}

impl Depot {
    pub(super) const fn new() -> Depot {
        Depot {
            partial: PageList::new(),
            spare: None,
            pages: 0,
            in_use: 0,
        }
    }

    /// Pages of all slabs.
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// Objects that are not free in their slab.
    pub(super) fn in_use(&self) -> usize {
        self.in_use
    }

    /// Adds a new slab, whose pages are prepared, without objects in use.
    pub(super) fn add(&mut self, pages: PageArray, slab: Pfn) {
        self.pages += 1 << pages.get(slab).order();
        self.partial.push(pages, slab);
    }

    /// Takes up to `wanted` objects.
    pub(super) fn take(
        &mut self,
        pages: PageArray,
        class: Class,
        wanted: usize,
        mut f: impl FnMut(Object),
    ) {
        let mut left = wanted;
        while left > 0 {
            if self.partial.is_empty()
                && let Some(slab) = self.spare.take()
            {
                self.partial.push(pages, slab);
            }
            let Some(slab) = self.partial.first() else {
                break;
            };
            let page = pages.get(slab);
            let capacity = class.objects(page.order());
            let taken = left.min(capacity - page.wire_count() as usize);
            claim(page, taken, |place| f(Object { slab, place }));
            page.set_wire_count(page.wire_count() + taken as u32);
            if page.wire_count() as usize == capacity {
                self.partial.remove(pages, slab);
            }
            left -= taken;
        }
        self.in_use += wanted - left;
    }

    /// Puts the first of `objects` back, which lie in the slab with that first page, whose memory begins at `base`. Returns their
    /// number, at least one, and a slab that is no longer needed, for the caller to free.
    #[inline(always)]
    pub(super) fn put(
        &mut self,
        pages: PageArray,
        class: Class,
        (slab, page, base): (Pfn, &Page, usize),
        objects: &[AtomicPtr<u8>],
    ) -> (usize, Option<Pfn>) {
        let order = page.order();
        let freed = unclaim(page, class.spacing(), (base, PAGE_SIZE << order), objects);
        self.in_use -= freed;
        let before = page.wire_count() as usize;
        let left = before - freed;
        page.set_wire_count(left as u32);
        let was_full = before == class.objects(order);
        if left != 0 {
            if was_full {
                self.partial.push(pages, slab);
            }
            return (freed, None);
        }
        if !was_full {
            self.partial.remove(pages, slab);
        }
        let surplus = self.spare.replace(slab);
        if let Some(surplus) = surplus {
            self.pages -= 1 << pages.get(surplus).order();
        }
        (freed, surplus)
    }

    /// Takes out the spare slab, for the caller to free.
    pub(super) fn take_spare(&mut self, pages: PageArray) -> Option<Pfn> {
        let spare = self.spare.take()?;
        self.pages -= 1 << pages.get(spare).order();
        Some(spare)
    }

    /// Slabs with free objects, for the consistency check.
    pub(super) fn with_free(&self, pages: PageArray) -> impl Iterator<Item = Pfn> {
        self.partial.iter(pages).chain(self.spare)
    }
}

/// Marks the first `wanted` free objects of a slab, which has so many, as in use; passes their places to `f`.
fn claim(page: &Page, wanted: usize, mut f: impl FnMut(u32)) {
    let mut left = wanted;
    for n in 0..SLAB_WORDS {
        let word = page.slab_word(n);
        let mut free = !word.load(Relaxed);
        if free == 0 {
            continue;
        }
        while free != 0 && left > 0 {
            f(32 * n as u32 + free.trailing_zeros());
            free &= free - 1;
            left -= 1;
        }
        word.store(!free, Relaxed);
        if left == 0 {
            return;
        }
    }
    unreachable!("a slab that is not full has a free object")
}

/// Marks the first of `objects` as free, up to the first that does not lie in the `bytes` from `base` on, the slab's; returns
/// their number. Objects freed in a row are often in one word, which is written once for them.
#[inline(always)]
fn unclaim(
    page: &Page,
    spacing: Spacing,
    (base, bytes): (usize, usize),
    objects: &[AtomicPtr<u8>],
) -> usize {
    let mut done = 0;
    // One round for each word.
    while let Some(object) = objects.get(done) {
        let offset = object.load(Relaxed).addr().wrapping_sub(base);
        if offset >= bytes {
            break;
        }
        let place = spacing.place(offset);
        let (at, mut freed) = (place / 32, 1u32.rotate_left(place));
        done += 1;
        while let Some(object) = objects.get(done) {
            let offset = object.load(Relaxed).addr().wrapping_sub(base);
            if offset >= bytes {
                break;
            }
            let place = spacing.place(offset);
            if place / 32 != at {
                break;
            }
            let mark = 1u32.rotate_left(place);
            assert!(freed & mark == 0, "heap object freed twice");
            freed |= mark;
            done += 1;
        }
        let word = page.slab_word(at as usize);
        let marks = word.load(Relaxed);
        assert!(marks & freed == freed, "heap object freed twice");
        word.store(marks & !freed, Relaxed);
    }
    done
}

/// Objects marked as in use.
pub(super) fn count_marked(page: &Page) -> u32 {
    (0..SLAB_WORDS)
        .map(|n| page.slab_word(n).load(Relaxed).count_ones())
        .sum()
}

/// Whether an object is marked as in use.
pub(super) fn is_marked(page: &Page, place: u32) -> bool {
    page.slab_word(place as usize / 32).load(Relaxed) & 1 << (place % 32) != 0
}
