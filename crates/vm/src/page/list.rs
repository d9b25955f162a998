//! Lists of pages, linked through the pages themselves.

use crate::page::{PageArray, Pfn};

/// A doubly linked list of pages. The lock that guards the list guards the links of its pages; a page is on one list at
/// a time.
#[derive(Debug)]
pub struct PageList {
    head: Pfn,
}

impl Default for PageList {
    fn default() -> PageList {
        PageList::new()
    }
}

impl PageList {
    /// An empty list.
    pub const fn new() -> PageList {
        PageList { head: Pfn::NONE }
    }

    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// The page added last.
    pub fn first(&self) -> Option<Pfn> {
        if self.head.is_none() {
            None
        } else {
            Some(self.head)
        }
    }

    /// Adds a page in front.
    pub fn push(&mut self, pages: PageArray, pfn: Pfn) {
        let page = pages.get(pfn);
        page.set_next(self.head);
        page.set_prev(Pfn::NONE);
        if !self.head.is_none() {
            pages.get(self.head).set_prev(pfn);
        }
        self.head = pfn;
    }

    /// Removes a page from this list.
    pub fn remove(&mut self, pages: PageArray, pfn: Pfn) {
        let page = pages.get(pfn);
        let (next, prev) = (page.next(), page.prev());
        if !next.is_none() {
            pages.get(next).set_prev(prev);
        }
        if prev.is_none() {
            debug_assert!(self.head == pfn, "{pfn:?} is not on this list");
            self.head = next;
        } else {
            pages.get(prev).set_next(next);
        }
    }

    /// Removes the page added last.
    pub fn pop(&mut self, pages: PageArray) -> Option<Pfn> {
        let pfn = self.first()?;
        self.remove(pages, pfn);
        Some(pfn)
    }

    /// All pages, the one added last first.
    pub fn iter(&self, pages: PageArray) -> impl Iterator<Item = Pfn> {
        core::iter::successors(self.first(), move |&pfn| {
            let next = pages.get(pfn).next();
            if next.is_none() { None } else { Some(next) }
        })
    }
}
