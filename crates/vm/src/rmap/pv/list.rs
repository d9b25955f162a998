//! The list of a page's entries. All of this is done under the lock of the list.

use super::chunk::{Frames, Place};
use crate::page::{ListPart, Page, Pfn};
use crate::pmap::Pmap;

/// The list of a page.
#[derive(Clone, Copy)]
pub(super) struct PageEntries<'a> {
    frames: &'a Frames,
    part: &'a ListPart,
}

impl<'a> PageEntries<'a> {
    /// The list of a page whose lock the caller holds.
    pub(super) fn of(frames: &'a Frames, page: &'a Page) -> PageEntries<'a> {
        PageEntries {
            frames,
            part: page.list(),
        }
    }

    /// Lists a reserved entry for `va`. `page` is the frame of the list's page.
    pub(super) fn push(&self, page: Pfn, place: Place, va: u64) {
        let (entry, first) = (self.frames.entry(place), self.first());
        entry.set_va(va);
        entry.set_prev(None);
        entry.set_next(first);
        entry.set_page(Some(page));
        if let Some(first) = first {
            self.frames.entry(first).set_prev(Some(place));
        }
        let before = self.part.count();
        self.set_first(Some(place));
        self.part.set_count(before + 1);
        self.part.note_change();
    }

    /// Takes an entry out of the list.
    pub(super) fn remove(&self, place: Place) {
        let entry = self.frames.entry(place);
        let (prev, next) = (entry.prev(), entry.next());
        match prev {
            Some(prev) => self.frames.entry(prev).set_next(next),
            None => {
                debug_assert!(self.first() == Some(place), "{place:?} is in another list");
                self.set_first(next);
            }
        }
        if let Some(next) = next {
            self.frames.entry(next).set_prev(prev);
        }
        entry.set_page(None);
        self.part.set_count(self.part.count().saturating_sub(1));
        self.part.note_change();
    }

    /// The entry of `pmap` at `va`.
    pub(super) fn find(&self, pmap: &Pmap, va: u64) -> Option<Place> {
        self.iter().find(|&place| {
            let chunk = self.frames.chunk(place.chunk);
            chunk.entry(place).va() == va && chunk.is_of(pmap)
        })
    }

    /// All entries. The one that was returned last may be removed before the next is asked for.
    pub(super) fn iter(&self) -> impl Iterator<Item = Place> + use<'a> {
        let (frames, mut at) = (self.frames, self.first());
        core::iter::from_fn(move || {
            let place = at?;
            at = frames.entry(place).next();
            Some(place)
        })
    }

    fn first(&self) -> Option<Place> {
        self.part.watch.reads();
        let (chunk, slot) = self.part.first();
        super::chunk::read_place(chunk, slot)
    }

    fn set_first(&self, place: Option<Place>) {
        self.part.watch.writes();
        let (chunk, slot) = self.part.first();
        super::chunk::write_place(chunk, slot, place);
    }
}
