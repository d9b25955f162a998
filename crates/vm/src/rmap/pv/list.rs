//! The list of a page's entries. All of this is done under the lock of the list.
//!
//! Guarantee of the search for the entry of a pmap at an address: it looks at no more entries than the list has, and at hardly
//! more than twice as many as the pmap has, and [`ALONE`]. So a page that ten thousand processes map costs each of them what its own
//! entries are.
//!
//! Mechanism: an entry is in two lists, that of its page and that of its pmap's chunks. Beyond the first entries of the page
//! both are searched by turns, the latter under its lock. An entry of the pmap that names the page is stable, because the
//! page's list is held; others change meanwhile, but none of these becomes the one that is looked for. A chunk that a
//! reclaimer has taken away is in no list of the pmap: then the page's has the entry.

use core::ops::ControlFlow::{self, Break, Continue};

use super::chunk::{Frames, Place};
use super::chunks::PmapChunks;
use crate::page::{ListPart, Page, Pfn};
use crate::pmap::Pmap;

/// Entries of the page that are looked at before those of the pmap are, too: most pages have no more.
const ALONE: usize = if cfg!(shuttle) { 2 } else { 64 };

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

    /// The entry of `pmap`, whose chunks these are, at `va`, and the number of entries looked at. `page` is the frame of the
    /// list's page.
    pub(super) fn find(
        &self,
        page: Pfn,
        chunks: &PmapChunks,
        (pmap, va): (&Pmap, u64),
    ) -> (Option<Place>, usize) {
        let (mut theirs, mut steps) = (self.iter(), 0);
        let mut look = |steps: &mut usize| -> ControlFlow<Option<Place>> {
            let Some(place) = theirs.next() else {
                return Break(None);
            };
            *steps += 1;
            let chunk = self.frames.chunk(place.chunk);
            if chunk.entry(place).va() == va && chunk.is_of(pmap) {
                return Break(Some(place));
            }
            Continue(())
        };
        let mut found = (0..ALONE).try_for_each(|_| look(&mut steps));
        if found.is_continue() {
            found = chunks.try_each_living(self.frames, |chunk, place| {
                steps += 1;
                let entry = chunk.entry(place);
                if entry.page() == Some(page) && entry.va() == va {
                    return Break(Some(place));
                }
                look(&mut steps)
            });
        }
        loop {
            match found {
                Break(place) => return (place, steps),
                Continue(()) => found = look(&mut steps),
            }
        }
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
