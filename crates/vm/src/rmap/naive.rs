//! The naive reverse map, for tests: for each page a list of its entries, all of them under one spin lock.
//!
//! It works as lists of entries must that have a lock for each page. A page's list is *held* by an operation from before
//! it changes an entry until after that, and by a scan throughout; under a table's lock it is only tried. The spin lock
//! guards the lists themselves for the time of one look, and is taken under any other lock of the VM's tables.
//!
//! It counts, and checks: no entry is listed twice, none is unlisted that was not listed, each ticket is given back. If
//! told so ([`ByPage::refuse_each`]) it says that a list is held now and then although it is not, so that one thread takes
//! every way round.

use ksync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use ksync::{Spin, lock_class};
use rust_alloc::collections::{BTreeMap, BTreeSet};
use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;

use core::cell::Cell;

use super::{Hold, ReverseMap, Visit};
use crate::alloc::NoMemory;
use crate::object::Object;
use crate::page::{Page, PageArray, Pfn};
use crate::pmap::Pmap;
use crate::pmap::table::ENTRIES;
use crate::{Machine, Vm};

lock_class!(
    /// The lists of the naive reverse map.
    pub NaiveLock, "naive reverse map", rank = 104
);

/// A page, by the address of its record.
type Key = usize;

fn key(page: &Page) -> Key {
    core::ptr::from_ref(page).addr()
}

/// The entries that map one page.
type Places = Vec<(Arc<Pmap>, u64)>;

#[derive(Default)]
struct Lists {
    places: BTreeMap<Key, Places>,
    /// Pages whose lists are held.
    held: BTreeSet<Key>,
}

impl Lists {
    fn list(&mut self, page: Key, pmap: &Arc<Pmap>, va: u64) {
        let places = self.places.entry(page).or_default();
        let twice = places
            .iter()
            .any(|(p, at)| Arc::ptr_eq(p, pmap) && *at == va);
        assert!(!twice, "the entry at {va:#x} is listed twice");
        places.push((pmap.clone(), va));
    }

    /// Returns the place, which is not dropped under the lock; `None` if the pmap was forgotten.
    fn unlist(&mut self, page: Key, pmap: &Pmap, va: u64) -> Option<(Arc<Pmap>, u64)> {
        let found = self.places.get_mut(&page).and_then(|places| {
            let is_it = |(p, at): &(Arc<Pmap>, u64)| core::ptr::eq(&**p, pmap) && *at == va;
            let at = places.iter().position(is_it)?;
            Some(places.swap_remove(at))
        });
        if self.places.get(&page).is_some_and(Vec::is_empty) {
            self.places.remove(&page);
        }
        // A scan unlists what it finds behind a closed root.
        let forgotten = pmap.listed().0.load(Relaxed) || pmap.root().is_none();
        assert!(
            found.is_some() || forgotten,
            "the entry at {va:#x} was not listed"
        );
        found
    }
}

/// See the module.
pub struct ByPage {
    lists: Spin<Lists, NaiveLock>,
    /// If not 0, one in so many attempts to hold a list fails. Atomic.
    refuse: AtomicU64,
    /// Attempts so far. Atomic.
    attempts: AtomicU64,
    /// Room for entries that tickets have not given back. Atomic.
    room: AtomicU64,
}

/// Whether a pmap was forgotten. Set under the lists' lock.
#[derive(Default)]
pub struct Forgotten(AtomicBool);

/// An operation on a pmap.
pub struct Operation;

/// Room for entries of a pmap.
pub struct Room<'p> {
    map: &'p ByPage,
    pmap: &'p Arc<Pmap>,
    left: Cell<u64>,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.map.room.fetch_sub(self.left.get(), Relaxed);
    }
}

/// What is in the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InTheWay {
    /// The list of the page with this record is held.
    Page(usize),
    /// Nothing that lasts.
    Nothing,
}

/// What becomes of an entry whose list is held.
enum Change<'h> {
    Enter(&'h Room<'h>, u64),
    Grow,
    Leave(&'h Pmap, u64),
}

/// The lists of one page or, for a leaf, of several in a row, held.
pub struct Holding<'h> {
    map: &'h ByPage,
    pages: Vec<(Key, Change<'h>)>,
}

impl Hold for Holding<'_> {
    fn done(mut self) {
        let mut gone: Vec<(Arc<Pmap>, u64)> = Vec::new();
        let mut lists = self.map.lists.lock();
        for (page, change) in self.pages.drain(..) {
            match change {
                Change::Enter(room, va) => {
                    self.map.room.fetch_sub(1, Relaxed);
                    // Else its table is about to be freed, and nobody would unlist the entry.
                    if !room.pmap.listed().0.load(Relaxed) {
                        lists.list(page, room.pmap, va);
                    }
                }
                Change::Grow => panic!("an entry that gains rights is listed already"),
                Change::Leave(pmap, va) => gone.extend(lists.unlist(page, pmap, va)),
            }
            assert!(lists.held.remove(&page), "a list is not held");
        }
        drop(lists);
    }

    fn undo(mut self) {
        let mut lists = self.map.lists.lock();
        for (page, change) in self.pages.drain(..) {
            if let Change::Enter(room, _) = change {
                room.left.set(room.left.get() + 1);
            }
            assert!(lists.held.remove(&page), "a list is not held");
        }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        assert!(
            self.pages.is_empty(),
            "nothing was said of what became of an entry"
        );
    }
}

impl ByPage {
    /// Makes one in `n` attempts to hold a list fail, as if another operation held it; 0 for none.
    pub fn refuse_each(&self, n: u64) {
        self.refuse.store(n, Relaxed);
    }

    /// The entries of `pmap` that are listed: for each the address of the page's record, and its own address.
    pub fn listed(&self, pmap: &Pmap) -> Vec<(usize, u64)> {
        let lists = self.lists.lock();
        let all = lists.places.iter().flat_map(|(&page, places)| {
            let ours = places.iter().filter(|(p, _)| core::ptr::eq(&**p, pmap));
            ours.map(move |&(_, va)| (page, va))
        });
        all.collect()
    }

    /// Number of entries that are listed, of lists that are held, and the room that tickets have not given back.
    pub fn leftovers(&self) -> (usize, usize, u64) {
        let lists = self.lists.lock();
        let listed = lists.places.values().map(Vec::len).sum();
        (listed, lists.held.len(), self.room.load(Relaxed))
    }

    fn try_hold<'h>(&'h self, page: &Page, change: Change<'h>) -> Result<Holding<'h>, InTheWay> {
        self.try_hold_all(core::iter::once((key(page), change)))
    }

    fn try_hold_all<'h>(
        &'h self,
        pages: impl Iterator<Item = (Key, Change<'h>)>,
    ) -> Result<Holding<'h>, InTheWay> {
        let refuse = self.refuse.load(Relaxed);
        if refuse != 0 && self.attempts.fetch_add(1, Relaxed) % refuse == refuse - 1 {
            return Err(InTheWay::Nothing);
        }
        let pages: Vec<_> = pages.collect();
        let mut lists = self.lists.lock();
        if let Some((page, _)) = pages.iter().find(|(page, _)| lists.held.contains(page)) {
            return Err(InTheWay::Page(*page));
        }
        for (page, change) in &pages {
            if let Change::Enter(room, _) = change {
                if room.pmap.listed().0.load(Relaxed) || room.left.get() == 0 {
                    return Err(InTheWay::Nothing);
                }
                room.left.set(room.left.get() - 1);
            }
            lists.held.insert(*page);
        }
        drop(lists);
        Ok(Holding { map: self, pages })
    }

    /// Holds the list of a page as soon as nobody else does. Sleeping context.
    fn wait_and_hold(&self, page: Key) {
        while !self.lists.lock().held.insert(page) {
            ksync::doze();
        }
    }
}

impl ReverseMap for ByPage {
    const PER_PAGE: bool = true;
    const FINDS_EXTENTS: bool = false;

    type PmapState = Forgotten;
    type Guard<'p> = Operation;
    type Ticket<'p> = Room<'p>;
    type Hold<'h> = Holding<'h>;
    type Blocked = InTheWay;

    fn new<M: Machine>(_: &M, _: PageArray, _: Pfn) -> ByPage {
        ByPage {
            lists: Spin::new(Lists::default()),
            refuse: AtomicU64::new(0),
            attempts: AtomicU64::new(0),
            room: AtomicU64::new(0),
        }
    }

    fn begin<'p>(&'p self, _: &'p Pmap) -> Operation {
        Operation
    }

    fn tidy<M: Machine>(&self, _: &Vm<M>, _: &Pmap) {}

    fn prepare<'p, M: Machine>(
        &'p self,
        vm: &Vm<M>,
        operation: Operation,
        pmap: &'p Arc<Pmap>,
        entries: usize,
    ) -> Result<(Operation, Room<'p>), NoMemory> {
        let room = Room {
            map: self,
            pmap,
            left: Cell::new(0),
        };
        self.top_up(vm, &room, entries);
        Ok((operation, room))
    }

    fn top_up<M: Machine>(&self, _: &Vm<M>, ticket: &Room<'_>, entries: usize) {
        self.room.fetch_add(entries as u64, Relaxed);
        ticket.left.set(ticket.left.get() + entries as u64);
    }

    fn enter<'h>(
        &'h self,
        ticket: &'h Room<'_>,
        page: &'h Page,
        va: u64,
    ) -> Result<Holding<'h>, InTheWay> {
        self.try_hold(page, Change::Enter(ticket, va))
    }

    fn hold<'h>(&'h self, page: &'h Page) -> Result<Holding<'h>, InTheWay> {
        self.try_hold(page, Change::Grow)
    }

    fn leave<'h>(
        &'h self,
        page: &'h Page,
        pmap: &'h Pmap,
        va: u64,
    ) -> Result<Holding<'h>, InTheWay> {
        self.try_hold(page, Change::Leave(pmap, va))
    }

    fn leave_run<'h>(
        &'h self,
        pages: &'h PageArray,
        first: Pfn,
        pmap: &'h Pmap,
        va: u64,
        but: Option<Pfn>,
    ) -> Result<Holding<'h>, InTheWay> {
        let run = (0..ENTRIES).map(|n| (first.add(n as u32), va + ((n as u64) << 12)));
        self.try_hold_all(
            run.filter(|(pfn, _)| Some(*pfn) != but)
                .map(|(pfn, va)| (key(pages.get(pfn)), Change::Leave(pmap, va))),
        )
    }

    fn wait(&self, blocked: InTheWay) {
        if let InTheWay::Page(page) = blocked {
            while self.lists.lock().held.contains(&page) {
                ksync::doze();
            }
        }
    }

    fn forget_pmap<M: Machine>(&self, _: &Vm<M>, pmap: &Pmap) {
        let mut gone: Vec<(Arc<Pmap>, u64)> = Vec::new();
        loop {
            let mut lists = self.lists.lock();
            pmap.listed().0.store(true, Relaxed);
            let Lists { places, held } = &mut *lists;
            let mut left = false;
            places.retain(|page, places| {
                let is_it = |(p, _): &(Arc<Pmap>, u64)| core::ptr::eq(&**p, pmap);
                if held.contains(page) {
                    left |= places.iter().any(is_it);
                } else {
                    gone.extend(places.extract_if(.., |place| is_it(place)));
                }
                !places.is_empty()
            });
            drop(lists);
            if !left {
                return;
            }
            ksync::doze();
        }
    }

    fn scan(
        &self,
        _: &Object,
        pages: &[&Page],
        visit: &mut impl FnMut(usize, &Arc<Pmap>, u64) -> Visit,
    ) -> bool {
        pages.iter().enumerate().all(|(n, page)| {
            let page = key(page);
            self.wait_and_hold(page);
            let places = self.lists.lock().places.get(&page).cloned();
            let places = places.unwrap_or_default();
            let all = places.iter().all(|(pmap, va)| {
                let visited = visit(n, pmap, *va);
                if visited == Visit::Gone {
                    drop(self.lists.lock().unlist(page, pmap, *va));
                }
                visited != Visit::Stop
            });
            let held = self.lists.lock().held.remove(&page);
            assert!(held, "a scan's list is not held");
            all
        })
    }

    fn places(&self, _: &Object, pages: &[&Page]) -> usize {
        let lists = self.lists.lock();
        let places = pages.iter().filter_map(|page| lists.places.get(&key(page)));
        places.map(Vec::len).sum()
    }
}
