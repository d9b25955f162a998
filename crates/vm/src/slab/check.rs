//! Accounting and consistency check of the heap.

use super::class::{CLASSES, Class};
use super::depot::{count_marked, is_marked};
use super::{Slab, find};
use crate::page::{PAGE_SIZE, Page, Pfn, State};
use crate::stats::Tally;
use crate::{Machine, PageAllocator};

/// What the heap holds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct HeapUsage {
    /// Pages of slabs.
    pub slab_pages: usize,
    /// Pages of larger objects.
    pub large_pages: usize,
    /// Bytes handed out, sizes rounded up to their classes or pages.
    pub bytes: usize,
    /// Objects handed out, by class.
    objects: [usize; CLASSES],
}

impl HeapUsage {
    /// The sizes of objects in slabs, each with the number of objects of that size that are handed out.
    pub fn sizes(&self) -> impl Iterator<Item = (usize, usize)> {
        Class::all().map(|class| (class.size(), self.objects[class.index()]))
    }
}

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeapFault {
    /// A slab's count differs from its marks, or it is too large.
    BadSlab(Pfn),
    /// A slab with free objects is on no list, or a full one is.
    BadList(Pfn),
    /// A depot's totals differ from its slabs': CPU, object size.
    BadDepot(usize, usize),
    /// A CPU holds an object that is marked free, or that is held twice.
    BadObject(usize),
}

/// The state of one depot according to the frames' records.
#[derive(Clone, Copy, Default)]
struct Found {
    pages: usize,
    objects: usize,
    /// Slabs with free objects.
    with_free: usize,
}

impl Found {
    /// Adds a page of a slab.
    fn add(&mut self, pfn: Pfn, page: &Page) -> Result<(), HeapFault> {
        self.pages += 1;
        if pfn.0.is_multiple_of(1 << page.order()) {
            let in_use = count_marked(page);
            let capacity = Class::from_index(page.class()).objects(page.order());
            if in_use != page.wire_count() || in_use as usize > capacity {
                return Err(HeapFault::BadSlab(pfn));
            }
            self.objects += in_use as usize;
            self.with_free += usize::from((in_use as usize) < capacity);
        }
        Ok(())
    }
}

impl Slab {
    /// What is in use. Exact while no CPU uses the heap.
    pub fn usage(&self) -> HeapUsage {
        let mut usage = HeapUsage::default();
        for class in Class::all() {
            let depots = self.depots.iter().skip(class.index()).step_by(CLASSES);
            let (mut pages, mut objects) = (0, 0);
            for depot in depots {
                let depot = depot.lock();
                pages += depot.pages();
                objects += depot.in_use();
            }
            let cached: usize = self
                .cpus
                .iter()
                .map(|cpu| cpu.stacks[class.index()].len())
                .sum();
            let in_use = objects.saturating_sub(cached);
            usage.slab_pages += pages;
            usage.objects[class.index()] = in_use;
            usage.bytes += in_use * class.size();
        }
        let large = self.cpus.iter().map(|cpu| &cpu.large).map(Tally::get);
        usage.large_pages = large.fold(0, u64::wrapping_add) as usize;
        usage.bytes += usage.large_pages * PAGE_SIZE;
        usage
    }

    /// Walks all frames, lists and caches and verifies that they agree. Nothing may use the heap meanwhile.
    ///
    /// # Errors
    ///
    /// The first [`HeapFault`] found.
    pub fn check<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
    ) -> Result<HeapUsage, HeapFault> {
        for cpu in 0..machine.ncpus() {
            self.check_depots(frames, cpu)?;
        }
        for class in Class::all() {
            self.check_caches(machine, frames, class)?;
        }
        Ok(self.usage())
    }

    /// Compares a CPU's depots with the frames' records.
    fn check_depots(&self, frames: &PageAllocator, cpu: usize) -> Result<(), HeapFault> {
        let pages = frames.pages();
        let mut found = [Found::default(); CLASSES];
        for n in 0..pages.len() as u32 {
            let page = pages.get(Pfn(n));
            if page.state() == State::Slab && usize::from(page.queue()) == cpu {
                found[usize::from(page.class())].add(Pfn(n), page)?;
            }
        }
        for (class, mut found) in Class::all().zip(found) {
            let depot = self.depot(cpu, class).lock();
            for slab in depot.with_free(pages) {
                let page = pages.get(slab);
                let full = page.wire_count() as usize >= class.objects(page.order());
                if full || page.state() != State::Slab || found.with_free == 0 {
                    return Err(HeapFault::BadList(slab));
                }
                found.with_free -= 1;
            }
            if (found.pages, found.objects, found.with_free) != (depot.pages(), depot.in_use(), 0) {
                return Err(HeapFault::BadDepot(cpu, class.size()));
            }
        }
        Ok(())
    }

    fn check_caches<M: Machine>(
        &self,
        machine: &M,
        frames: &PageAllocator,
        class: Class,
    ) -> Result<(), HeapFault> {
        let cached = || {
            self.cpus
                .iter()
                .flat_map(|cpu| cpu.stacks[class.index()].iter())
        };
        for object in cached() {
            let found = find(machine, frames.pages(), class, object);
            let marked = is_marked(frames.pages().get(found.slab), found.place);
            if !marked || cached().filter(|&other| other == object).count() != 1 {
                return Err(HeapFault::BadObject(object.addr()));
            }
        }
        Ok(())
    }
}
