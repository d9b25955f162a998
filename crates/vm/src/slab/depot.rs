//! The slabs of one size class that one CPU has cut.
//!
//! A slab is an aligned run of pages cut into objects. Its first page's record has one bit for each object in use;
//! nothing is stored in the slab, so that objects carry no header, freed memory is not written, and a double free is
//! noticed. The number of objects in use is stored in the page's wire count, as they wire the run.

use core::sync::atomic::Ordering::Relaxed;

use super::class::Class;
use crate::page::{Page, PageArray, PageList, Pfn, SLAB_WORDS};

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
            for _ in 0..taken {
                f(Object {
                    slab,
                    place: claim(page),
                });
            }
            page.set_wire_count(page.wire_count() + taken as u32);
            if page.wire_count() as usize == capacity {
                self.partial.remove(pages, slab);
            }
            left -= taken;
        }
        self.in_use += wanted - left;
    }

    /// Puts objects of one slab back: at least one, as many as `places` yields. Returns a slab that is no longer
    /// needed, for the caller to free.
    pub(super) fn put(
        &mut self,
        pages: PageArray,
        class: Class,
        slab: Pfn,
        places: impl Iterator<Item = u32>,
    ) -> Option<Pfn> {
        let page = pages.get(slab);
        let before = page.wire_count();
        let mut left = before;
        for place in places {
            unclaim(page, place);
            left -= 1;
        }
        page.set_wire_count(left);
        self.in_use -= (before - left) as usize;
        let was_full = before as usize == class.objects(page.order());
        if left == 0 {
            if !was_full {
                self.partial.remove(pages, slab);
            }
            let surplus = self.spare.replace(slab)?;
            self.pages -= 1 << pages.get(surplus).order();
            return Some(surplus);
        }
        if was_full {
            self.partial.push(pages, slab);
        }
        None
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

/// Marks the first free object of a slab that has one as in use; returns its place.
fn claim(page: &Page) -> u32 {
    for n in 0..SLAB_WORDS {
        let word = page.slab_word(n).load(Relaxed);
        if word != u32::MAX {
            page.slab_word(n).store(word | (word + 1), Relaxed);
            return 32 * n as u32 + word.trailing_ones();
        }
    }
    unreachable!("a slab that is not full has a free object")
}

/// Marks an object as free.
fn unclaim(page: &Page, place: u32) {
    let word = page.slab_word(place as usize / 32);
    let (marks, mark) = (word.load(Relaxed), 1 << (place % 32));
    assert!(marks & mark != 0, "heap object freed twice");
    word.store(marks & !mark, Relaxed);
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
