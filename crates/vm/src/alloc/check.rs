//! Consistency check: each frame is in exactly one place.

use rust_alloc::vec::Vec;

use super::{MAX_ORDER, PageAllocator};
use crate::page::{Page, Pfn, State};

/// Where the free frames are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Census {
    /// In free runs of the domains.
    pub listed: usize,
    /// In magazines.
    pub in_magazines: usize,
    /// Reserved and not taken.
    pub reserved: usize,
    /// Handed out.
    pub allocated: usize,
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inconsistency {
    /// A frame is free in two places.
    Twice(Pfn),
    /// A free run is not aligned, too large, or not marked as free.
    BadRun(Pfn),
    /// A frame lies in the list of another domain.
    WrongDomain(Pfn),
    /// A free frame is not hard-busy, has an identity, or is marked as taken from a reservation.
    InUse(Pfn),
    /// Two free buddies were not merged.
    Unmerged(Pfn),
    /// A domain's count differs from what its lists hold.
    BadCount(usize),
    /// The record of a reserved run contradicts its frames, or is not where it must be; or the tables have runs that are
    /// not reserved (no frame).
    BadReservation(Pfn),
    /// No memory for the check itself, which needs a bit for each frame.
    NoMemory,
}

/// What the check notes. Made before it walks anything: the heap takes its frames from the lists that are walked, and a
/// frame that moves meanwhile would be seen twice or not at all.
struct Notes {
    seen: Seen,
    /// Frames that are reserved and not taken, by domain.
    untaken: Vec<usize>,
    /// Whether a run is in a queue, by run.
    queued: Vec<bool>,
}

impl Notes {
    fn new(frames: usize, domains: usize, runs: usize) -> Result<Notes, Inconsistency> {
        Ok(Notes {
            seen: Seen(filled(frames.div_ceil(64), 0)?),
            untaken: filled(domains, 0)?,
            queued: filled(runs, false)?,
        })
    }
}

fn filled<T: Clone>(len: usize, with: T) -> Result<Vec<T>, Inconsistency> {
    let mut words = Vec::new();
    let room = words.try_reserve_exact(len);
    room.map_err(|_| Inconsistency::NoMemory)?;
    words.resize(len, with);
    Ok(words)
}

/// One bit a frame.
struct Seen(Vec<u64>);

impl Seen {
    /// Returns whether it had been seen before.
    fn mark(&mut self, pfn: Pfn) -> bool {
        let (word, bit) = (pfn.index() / 64, 1 << (pfn.index() % 64));
        let before = self.0[word] & bit != 0;
        self.0[word] |= bit;
        before
    }

    fn has(&self, pfn: Pfn) -> bool {
        self.0[pfn.index() / 64] & 1 << (pfn.index() % 64) != 0
    }
}

impl PageAllocator {
    /// Walks every list and magazine and verifies that each free frame is in one place and in the state it must have.
    /// No CPU may allocate or free meanwhile; the check itself allocates from the heap first, and then no more. Takes the
    /// domains' locks one after the other, for long.
    ///
    /// # Errors
    ///
    /// The first [`Inconsistency`] found.
    pub fn check(&self) -> Result<Census, Inconsistency> {
        self.check_and_visit(&mut |_, _| ())
    }

    /// As [`check`](PageAllocator::check); then calls `in_use` with each frame that exists and is not free, for an
    /// account of its use.
    ///
    /// # Errors
    ///
    /// The first [`Inconsistency`] found; nothing is visited then.
    pub fn check_and_visit(
        &self,
        in_use: &mut dyn FnMut(Pfn, &Page),
    ) -> Result<Census, Inconsistency> {
        let runs = self.reservations.as_ref().map_or(0, |r| r.len() as usize);
        let mut notes = Notes::new(self.pages.len(), self.domains.len(), runs)?;
        let mut census = Census::default();
        for domain in 0..self.domains.len() {
            census.listed += self.check_domain(domain, &mut notes.seen)?;
        }
        census.reserved = self.check_reservations(&mut notes)?;
        let mut seen = notes.seen;
        for pfn in self.cpus.iter().flat_map(|cpu| cpu.iter()) {
            self.check_frame(pfn, &mut seen)?;
            if self.pages.get(pfn).state() != State::Allocated {
                return Err(Inconsistency::InUse(pfn));
            }
            census.in_magazines += 1;
        }
        let free = census.listed + census.in_magazines + census.reserved;
        census.allocated = self.total_pages() - free;
        for pfn in (0..self.pages.len() as u32).map(Pfn) {
            let page = self.pages.get(pfn);
            if page.state() != State::Absent && !seen.has(pfn) {
                in_use(pfn, page);
            }
        }
        Ok(census)
    }

    /// Returns the frames in a domain's free runs.
    fn check_domain(&self, domain: usize, seen: &mut Seen) -> Result<usize, Inconsistency> {
        let mut listed = 0;
        let mut found = Ok(());
        self.domains[domain].for_each_run(self.pages, |pfn, order| {
            listed += 1 << order;
            found = found.and_then(|()| self.check_run(domain, pfn, order, seen));
        });
        found?;
        if listed == self.domains[domain].free() {
            Ok(listed)
        } else {
            Err(Inconsistency::BadCount(domain))
        }
    }

    /// Returns the frames that are reserved and not taken.
    fn check_reservations(&self, notes: &mut Notes) -> Result<usize, Inconsistency> {
        let Some(reservations) = &self.reservations else {
            return Ok(0);
        };
        let counts = &mut notes.untaken;
        let mut found = Ok(());
        let result = reservations.check(&mut notes.queued, &mut |pfn| {
            let page = self.pages.get(pfn);
            counts[page.domain()] += 1;
            found = found.and_then(|()| self.check_frame(pfn, &mut notes.seen));
            if page.state() != State::Allocated {
                found = found.and(Err(Inconsistency::InUse(pfn)));
            }
        });
        found?;
        result.map_err(Inconsistency::BadReservation)?;
        match (0..counts.len()).find(|&domain| counts[domain] != self.untaken(domain)) {
            Some(domain) => Err(Inconsistency::BadCount(domain)),
            None => Ok(counts.iter().sum()),
        }
    }

    fn check_run(
        &self,
        domain: usize,
        pfn: Pfn,
        order: u8,
        seen: &mut Seen,
    ) -> Result<(), Inconsistency> {
        let page = self.pages.get(pfn);
        if order > MAX_ORDER || pfn.0.trailing_zeros() < u32::from(order) {
            return Err(Inconsistency::BadRun(pfn));
        }
        if page.state() != State::Free || page.order() != order {
            return Err(Inconsistency::BadRun(pfn));
        }
        for n in 0..1 << order {
            let frame = pfn.add(n);
            self.check_frame(frame, seen)?;
            if self.pages.get(frame).domain() != domain {
                return Err(Inconsistency::WrongDomain(frame));
            }
            let state = self.pages.get(frame).state();
            if n != 0 && !matches!(state, State::Allocated | State::Reserved) {
                return Err(Inconsistency::BadRun(frame));
            }
        }
        let buddy = Pfn(pfn.0 ^ 1 << order);
        let free_buddy = self.pages.find(buddy).is_some_and(|buddy| {
            buddy.state() == State::Free && buddy.order() == order && buddy.domain() == domain
        });
        if order < MAX_ORDER && free_buddy {
            Err(Inconsistency::Unmerged(pfn))
        } else {
            Ok(())
        }
    }

    fn check_frame(&self, pfn: Pfn, seen: &mut Seen) -> Result<(), Inconsistency> {
        let page = self.pages.get(pfn);
        if seen.mark(pfn) {
            return Err(Inconsistency::Twice(pfn));
        }
        if !page.is_hard_busy() || page.object() != 0 || page.is_taken() {
            Err(Inconsistency::InUse(pfn))
        } else {
            Ok(())
        }
    }
}
