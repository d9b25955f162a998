//! The buddy system of one domain.
//!
//! Guarantees: a free run of `1 << order` frames is aligned to its size, and two free buddies of one order never stay
//! apart. Mechanism: each free run's first page has the state `Free` and its order, and is linked into a list; no other
//! page is `Free`, so handing out a run writes no line but its first page's. Single pages are listed by cache colour.

use super::MAX_ORDER;
use crate::page::{Flags, PageArray, PageList, Pfn, State};

/// Lists of single pages. 32 pages span the sets of a 2 MiB 16-way cache.
pub const COLOURS: u32 = 32;
const ORDERS: usize = MAX_ORDER as usize + 1;

/// Free runs, linked through their first pages. All of it is guarded by the domain's lock.
pub struct Buddy {
    /// Runs of order 1 and more; entry 0 is unused.
    runs: [PageList; ORDERS],
    /// Single pages, by the low bits of the frame number.
    singles: [PageList; COLOURS as usize],
    /// Colours with a page, one bit each.
    coloured: u32,
    free: usize,
}

impl Default for Buddy {
    fn default() -> Buddy {
        Buddy::new()
    }
}

impl Buddy {
    /// Without memory.
    pub const fn new() -> Buddy {
        Buddy {
            runs: [const { PageList::new() }; ORDERS],
            singles: [const { PageList::new() }; COLOURS as usize],
            coloured: 0,
            free: 0,
        }
    }

    /// Free frames.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Adds the frames `start..end`, which must exist, in the largest aligned runs.
    pub fn add_range(&mut self, pages: PageArray, start: Pfn, end: Pfn) {
        let mut at = start;
        while at < end {
            let aligned = at.0.trailing_zeros().min(u32::from(MAX_ORDER));
            let fits = (end.0 - at.0).ilog2();
            let order = aligned.min(fits) as u8;
            self.put(pages, at, order);
            at = at.add(1 << order);
        }
    }

    /// Frees single pages. Neighbours in `pfns` that are neighbours in memory, as in a region that is torn down, go in
    /// as runs: a burst of 32 then costs little more than one page.
    pub fn put_pages(&mut self, pages: PageArray, pfns: &[Pfn]) {
        let mut rest = pfns;
        while let Some(&first) = rest.first() {
            let len = neighbours(rest);
            if len == 1 {
                self.put(pages, first, 0);
            } else {
                let start = first.min(rest[len - 1]);
                self.add_range(pages, start, start.add(len as u32));
            }
            rest = &rest[len..];
        }
    }

    /// Frees a run and merges it with free buddies. The caller owns all its frames.
    pub fn put(&mut self, pages: PageArray, pfn: Pfn, order: u8) {
        debug_assert!(pfn.0.trailing_zeros() >= u32::from(order));
        self.free += 1 << order;
        let (mut pfn, mut order) = (pfn, order);
        let domain = pages.get(pfn).domain();
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ 1 << order);
            if !is_run(pages, buddy, order, domain) {
                break;
            }
            self.unlink(pages, buddy, order);
            pfn = Pfn(pfn.0 & buddy.0);
            order += 1;
        }
        self.link(pages, pfn, order);
    }

    /// Takes a run of `order`, splitting a larger one if need be.
    pub fn take(&mut self, pages: PageArray, order: u8) -> Option<Pfn> {
        if order == 0 && self.coloured != 0 {
            return self.take_single(pages, 0);
        }
        let (larger, pfn) = (order.max(1)..=MAX_ORDER)
            .find_map(|larger| Some((larger, self.runs[usize::from(larger)].first()?)))?;
        self.unlink(pages, pfn, larger);
        // Keep the low half, give back the high ones.
        for half in (order..larger).rev() {
            self.link(pages, pfn.add(1 << half), half);
        }
        pages.get(pfn).set_order(order);
        self.free -= 1 << order;
        Some(pfn)
    }

    /// Takes a listed single page of colour `from`, or the next colour that has one.
    pub fn take_single(&mut self, pages: PageArray, from: u32) -> Option<Pfn> {
        if self.coloured == 0 {
            return None;
        }
        let from = from % COLOURS;
        let colour = (from + self.coloured.rotate_right(from).trailing_zeros()) % COLOURS;
        let pfn = self.singles[colour as usize].first()?;
        self.unlink(pages, pfn, 0);
        self.free -= 1;
        Some(pfn)
    }

    /// Each free run and its order, for the consistency check.
    pub fn for_each_run(&self, pages: PageArray, mut visit: impl FnMut(Pfn, u8)) {
        let singles = self.singles.iter().map(|list| (list, 0));
        let runs = self.runs.iter().zip(0..);
        for (list, order) in singles.chain(runs) {
            list.iter(pages).for_each(|pfn| visit(pfn, order));
        }
    }

    fn list(&mut self, pfn: Pfn, order: u8) -> &mut PageList {
        match order {
            0 => &mut self.singles[(pfn.0 % COLOURS) as usize],
            _ => &mut self.runs[usize::from(order)],
        }
    }

    fn link(&mut self, pages: PageArray, pfn: Pfn, order: u8) {
        let page = pages.get(pfn);
        page.set_order(order);
        page.init_flags(State::Free, Flags::empty());
        self.list(pfn, order).push(pages, pfn);
        if order == 0 {
            self.coloured |= 1 << (pfn.0 % COLOURS);
        }
    }

    fn unlink(&mut self, pages: PageArray, pfn: Pfn, order: u8) {
        let page = pages.get(pfn);
        debug_assert!(page.state() == State::Free && page.order() == order);
        let list = self.list(pfn, order);
        list.remove(pages, pfn);
        if order == 0 && list.is_empty() {
            self.coloured &= !(1 << (pfn.0 % COLOURS));
        }
        page.init_flags(State::Allocated, Flags::empty());
    }
}

/// Whether `pfn` starts a free run of `order` in `domain`.
fn is_run(pages: PageArray, pfn: Pfn, order: u8, domain: usize) -> bool {
    // What lies beyond the array is no run; what is another domain's is not ours, whatever its state.
    pages.try_get(pfn).is_some_and(|page| {
        page.state() == State::Free && page.order() == order && page.domain() == domain
    })
}

/// How many frame numbers at the front of `pfns`, which is not empty, go up or down by one.
fn neighbours(pfns: &[Pfn]) -> usize {
    let Some(second) = pfns.get(1) else { return 1 };
    let step = second.0.wrapping_sub(pfns[0].0);
    if step != 1 && step != 1u32.wrapping_neg() {
        return 1;
    }
    1 + pfns
        .windows(2)
        .take_while(|pair| pair[1].0.wrapping_sub(pair[0].0) == step)
        .count()
}
