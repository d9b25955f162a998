//! What the designs share: entries, the chunks that they lie in, and tickets. How a page's list is locked is each design's
//! own.

use core::cell::Cell;

use rust_alloc::sync::Arc;

use super::chunk::{Frames, Place, Reserved};
use super::chunks::PmapChunks;
use super::list::PageEntries;
use crate::alloc::NoMemory;
use crate::page::{Page, PageArray, Pfn};
use crate::pmap::Pmap;
use crate::{Machine, Vm};

/// Parts that a ticket has: what is reserved of one word of a chunk each.
const PARTS: usize = 3;

/// The entries of a machine, in lists of pages and in chunks of pmaps.
pub struct Lists {
    pub(super) frames: Frames,
    pub(super) pages: PageArray,
}

/// Entries that are reserved.
pub struct Ticket<'p> {
    pub(super) lists: &'p Lists,
    pub(super) pmap: &'p Arc<Pmap>,
    pub(super) parts: [Cell<Reserved>; PARTS],
}

impl Ticket<'_> {
    pub(super) fn take(&self) -> Option<Place> {
        self.parts.iter().find_map(|part| {
            let mut reserved = part.get();
            let place = reserved.take();
            part.set(reserved);
            place
        })
    }

    /// Reserves up to `entries` more, in parts that have none.
    pub(super) fn fill<M: Machine>(&self, vm: &Vm<M>, entries: usize) -> Result<(), NoMemory> {
        let mut missing = entries;
        for part in &self.parts {
            if missing == 0 {
                break;
            }
            if part.get().len() == 0 {
                let chunks = chunks_of(self.pmap);
                part.set(chunks.reserve(vm, &self.lists.frames, self.pmap, missing)?);
                missing -= part.get().len();
            }
        }
        Ok(())
    }

    /// Gives all entries back.
    pub(super) fn clear(&self) {
        for part in &self.parts {
            let reserved = part.replace(Reserved::NONE);
            if reserved.len() != 0 {
                self.lists.frames.chunk(reserved.chunk).give_back(reserved);
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What is in the way: the list of the page in this frame, or nothing that lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InTheWay(pub(super) Pfn);

impl InTheWay {
    pub(super) const NOTHING: InTheWay = InTheWay(Pfn::NONE);
}

/// What becomes of an entry whose list is held.
#[derive(Clone, Copy)]
pub(super) enum Change<'h> {
    Enter(&'h Arc<Pmap>, Place, u64),
    Grow,
    Leave(&'h Pmap, u64),
}

/// The chunks of a pmap.
pub(super) fn chunks_of(pmap: &Pmap) -> &PmapChunks {
    pmap.listed()
}

impl Lists {
    pub(super) fn new<M: Machine>(machine: &M, pages: PageArray, frame: Pfn) -> Lists {
        Lists {
            frames: Frames::new(machine, pages.len(), frame),
            pages,
        }
    }

    /// A ticket without room.
    pub(super) fn ticket<'p>(&'p self, pmap: &'p Arc<Pmap>) -> Ticket<'p> {
        Ticket {
            lists: self,
            pmap,
            parts: [const { Cell::new(Reserved::NONE) }; PARTS],
        }
    }

    /// A ticket with room for `entries` entries. Nothing is reclaimed.
    ///
    /// # Errors
    /// No memory.
    #[cfg(feature = "pv-stock")]
    pub fn room<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<Ticket<'p>, NoMemory> {
        let ticket = self.ticket(pmap);
        ticket.fill(vm, entries)?;
        Ok(ticket)
    }

    /// Takes an entry out of the list of `page`, which is held, unless its pmap was forgotten: then it is in no list, or about
    /// to leave it, and the frame may have another use.
    pub(super) fn unlist(&self, page: &Page, pmap: &Pmap, va: u64) {
        if chunks_of(pmap).is_forgotten() {
            return;
        }
        let list = PageEntries::of(&self.frames, page);
        let (found, _) = list.find(self.pages.pfn(page), chunks_of(pmap), (pmap, va));
        match found {
            Some(place) => self.remove(list, pmap, place),
            // A scan that found the root closed has unlisted it.
            None => debug_assert!(pmap.root().is_none(), "the entry at {va:#x} was not listed"),
        }
    }

    /// Takes an entry of `pmap` out of a list, which is held.
    pub(super) fn remove(&self, list: PageEntries<'_>, pmap: &Pmap, place: Place) {
        list.remove(place);
        self.give_back(pmap, place);
    }

    fn give_back(&self, pmap: &Pmap, place: Place) {
        chunks_of(pmap).note_freed();
        self.frames.chunk(place.chunk).give_back_one(place);
    }

    /// Makes a change, under the page's list.
    pub(super) fn settle(&self, page: &Page, change: Change<'_>) {
        match change {
            Change::Enter(_, place, va) => {
                let list = PageEntries::of(&self.frames, page);
                list.push(self.pages.pfn(page), place, va);
            }
            Change::Grow => debug_assert!(false, "an entry that gains rights is listed already"),
            Change::Leave(pmap, va) => self.unlist(page, pmap, va),
        }
    }

    /// Drops a change that was not made.
    pub(super) fn undo(&self, change: Change<'_>) {
        if let Change::Enter(pmap, place, _) = change {
            self.give_back(pmap, place);
        }
    }

    pub(super) fn tidy<M: Machine>(&self, vm: &Vm<M>, pmap: &Pmap) {
        chunks_of(pmap).tidy(vm, &self.frames);
    }

    /// Calls `forget` for each listed entry of a pmap that was forgotten, with the frame of the page that it was seen to map.
    /// Returns whether entries are reserved beside these.
    pub(super) fn forget_listed(&self, pmap: &Pmap, mut forget: impl FnMut(Pfn, Place)) -> bool {
        let mut reserved = false;
        chunks_of(pmap).for_each_used(&self.frames, |chunk, place| {
            match chunk.entry(place).page() {
                Some(pfn) => forget(pfn, place),
                None => reserved = true,
            }
        });
        reserved
    }

    /// Unlists a listed entry of a pmap that was forgotten, under the list of the page that it is said to map.
    pub(super) fn forget_entry(&self, pfn: Pfn, pmap: &Pmap, place: Place) {
        // A scan may have taken it out meanwhile; nothing enters it again.
        if self.frames.entry(place).page() == Some(pfn) {
            self.remove(
                PageEntries::of(&self.frames, self.pages.get(pfn)),
                pmap,
                place,
            );
        }
    }

    /// Calls `visit` with the frame and the address of each entry of a pmap that is listed, and returns how many are
    /// reserved beside these. Exact while nothing is entered or removed. For tests and reports.
    pub fn for_each_listed(&self, pmap: &Pmap, mut visit: impl FnMut(Pfn, u64)) -> usize {
        let mut reserved = 0;
        chunks_of(pmap).for_each_used(&self.frames, |chunk, place| {
            let entry = chunk.entry(place);
            match entry.page() {
                Some(page) => visit(page, entry.va()),
                None => reserved += 1,
            }
        });
        reserved
    }

    /// Number of frames of a pmap that hold entries.
    pub fn chunks(&self, pmap: &Pmap) -> usize {
        chunks_of(pmap).len()
    }

    /// Number of entries that the search for that of `va` looks at, if there is one. Exact while nothing is entered or removed.
    /// For tests.
    pub fn steps_to(&self, page: &Page, pmap: &Pmap, va: u64) -> Option<usize> {
        let list = PageEntries::of(&self.frames, page);
        let (found, steps) = list.find(self.pages.pfn(page), chunks_of(pmap), (pmap, va));
        found.map(|_| steps)
    }

    /// Number of entries of a page.
    pub fn entries(&self, page: &Page) -> usize {
        page.list().count()
    }
}
