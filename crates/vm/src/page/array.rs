//! The array of all pages.

use core::mem::{size_of, size_of_val};

use crate::page::{MOST_FRAMES, Page, Pfn, State};

/// One [`Page`] for each frame number from 0, absent ones included, so that finding the page of a frame is one shift.
#[derive(Clone, Copy)]
pub struct PageArray {
    pages: &'static [Page],
}

impl PageArray {
    /// Wraps memory that the platform sets aside, for at most [`MOST_FRAMES`]. All-zero memory is an array of absent frames.
    pub const fn new(pages: &'static [Page]) -> PageArray {
        assert!(pages.len() <= MOST_FRAMES, "more frames than numbers");
        PageArray { pages }
    }

    /// Marks the frames `start..end` as existing, reserved, in `domain`. At boot, before any other use.
    pub fn add_range(&self, start: Pfn, end: Pfn, domain: u8) {
        for page in &self.pages[start.index()..end.index()] {
            page.exist(domain);
        }
    }

    /// One more than the highest frame number.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there are no frames.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The page of a frame number below [`len`](PageArray::len). Panics beyond it: the number comes from the kernel
    /// itself.
    #[inline]
    pub fn get(&self, pfn: Pfn) -> &'static Page {
        &self.pages[pfn.index()]
    }

    /// The pages of `len` neighbouring frames, as [`get`](PageArray::get) for each.
    #[inline]
    pub fn run(&self, first: Pfn, len: u32) -> &'static [Page] {
        &self.pages[first.index()..first.index() + len as usize]
    }

    /// The page of a frame number, `None` beyond the array.
    #[inline]
    pub fn try_get(&self, pfn: Pfn) -> Option<&'static Page> {
        self.pages.get(pfn.index())
    }

    /// The page of any number, `None` if there is no such frame. For untrusted numbers: device mappings, user input.
    pub fn find(&self, pfn: Pfn) -> Option<&'static Page> {
        self.pages
            .get(pfn.index())
            .filter(|page| page.state() != State::Absent)
    }

    /// The frame number of a page of this array.
    #[inline]
    pub fn pfn(&self, page: &Page) -> Pfn {
        let offset = (page as *const Page).addr() - self.pages.as_ptr().addr();
        debug_assert!(offset < size_of_val(self.pages));
        Pfn((offset / size_of::<Page>()) as u32)
    }
}
