//! Physical page allocation.
//!
//! Guarantees: a frame is handed out to one owner at a time, hard-busy, without identity and with undefined contents.
//! While a CPU's magazine is neither empty nor full, taking or freeing a page touches only lines of that CPU. At any
//! time each frame is in a free run, in a magazine, in a reservation, or with its owner.
//!
//! Mechanism, from the CPU outwards:
//! - a *magazine* of 64 frame numbers per CPU, used with preemption off (`magazine`);
//! - a memory `domain` per NUMA node, with a part for each of its CPUs: a spin lock over a buddy system whose single
//!   pages are listed by cache colour. Magazines are refilled in bursts of 32, from the CPU's own part as long as it
//!   has plenty, and emptied into the parts that the frames belong to;
//! - fallback to other domains in order of distance, each with marks below which only more important requests may take
//!   from it;
//! - aligned runs that are kept for an object, if superpages are asked for (`reservation`).
//!
//! A CPU returns frames of another domain to that domain, so that local memory stays local.

pub mod buddy;
mod check;
mod domain;
mod inject;
mod magazine;
mod marks;
mod reservation;
mod reserve;
#[cfg(test)]
mod tests;

use rust_alloc::boxed::Box;
use rust_alloc::vec;

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};
use ksync::{CpuPin, PerCpu};

use self::domain::Domain;
pub use self::domain::FreeRange;
use self::inject::Injector;
use self::magazine::{Gate, Magazine};
use self::reservation::{Broken, Reservations};

pub use self::check::{Census, Inconsistency};
pub use self::magazine::CpuStats;
pub use self::marks::{NoMemory, Pressure, Rights};
pub use self::reservation::{Blocks, Place, Placed, RUN_FRAMES, RUN_ORDER};

use crate::Machine;
use crate::page::{Flags, PageArray, Pfn, State};

pub use crate::page::MAX_ORDER;

/// Reservations that a request for a run breaks at most. A program chooses which frames of its runs are free, so breaking
/// all of them may give no two frames side by side; and preemption is off.
const RUN_BREAKS: usize = 16;

/// The allocator of physical pages. See the module.
pub struct PageAllocator {
    pages: PageArray,
    /// Const after boot; each domain on lines of its own.
    domains: Box<[Domain]>,
    /// For each domain, all domains, nearest first. Const.
    nearest: Box<[Box<[u8]>]>,
    cpus: PerCpu<Magazine>,
    injector: Injector,
    /// Const after boot; none unless superpages are asked for.
    reservations: Option<Box<Reservations>>,
    /// The users' marks of all domains together. Const.
    users_mark: usize,
    /// Number of frames. Atomic; grows at boot only.
    total: AtomicUsize,
}

impl PageAllocator {
    /// Builds the allocator from the frames that are free after boot. Frames of `pages` outside `ranges` stay reserved.
    ///
    /// Allocates from the global heap: about 512 bytes per CPU and per domain, nothing that grows with memory.
    pub fn new<M: Machine>(machine: &M, pages: PageArray, ranges: &[FreeRange]) -> PageAllocator {
        let ndomains = machine.ndomains();
        let mut sizes = vec![0; ndomains];
        for range in ranges {
            sizes[usize::from(range.domain)] += (range.end.0 - range.start.0) as usize;
        }
        let total = sizes.iter().sum();
        let cpus_before = |domain, end| {
            (0..end)
                .filter(|&cpu| machine.domain_of(cpu) == domain)
                .count()
        };
        let domains: Box<[Domain]> = sizes
            .iter()
            .enumerate()
            .map(|(domain, &size)| Domain::new(size, total, cpus_before(domain, machine.ncpus())))
            .collect();
        let allocator = PageAllocator {
            pages,
            users_mark: domains.iter().map(|domain| domain.mark(Rights::User)).sum(),
            domains,
            nearest: (0..ndomains)
                .map(|domain| machine.domains_by_distance(domain).into())
                .collect(),
            cpus: PerCpu::new(machine.ncpus(), |cpu| {
                let domain = machine.domain_of(cpu);
                Magazine::new(domain, cpus_before(domain, cpu), cpu)
            }),
            injector: Injector::new(),
            reservations: None,
            total: AtomicUsize::new(total),
        };
        for range in ranges {
            allocator.domains[usize::from(range.domain)].add_range(pages, *range);
        }
        allocator
    }

    /// Takes one page: hard-busy, no identity, state `Allocated`, contents undefined.
    ///
    /// # Errors
    ///
    /// [`NoMemory`] if every domain is at or below the mark for these rights, or the injector fails the request.
    #[inline]
    pub fn alloc(&self, pin: &CpuPin, rights: Rights) -> Result<Pfn, NoMemory> {
        let cpu = self.cpus.get(pin);
        if cpu.gate.admits(rights)
            && let Some(pfn) = cpu.pop()
        {
            return Ok(pfn);
        }
        self.alloc_slow(cpu, rights)
    }

    /// Gives a page back. The caller is its only owner: hard-busy, no identity, not wired, no entry maps it.
    #[inline]
    pub fn free(&self, pin: &CpuPin, pfn: Pfn) {
        let page = self.pages.get(pfn);
        self.assert_freeable(pfn);
        page.init_flags(State::Allocated, Flags::empty());
        let cpu = self.cpus.get(pin);
        // A frame of a reserved run counts as one of another domain here.
        if page.domain_and_mark() != cpu.domain {
            self.free_remote(cpu, pfn);
        } else if !cpu.push(pfn) {
            self.free_slow(cpu, pfn);
        }
    }

    /// Takes over a frame that was reserved at boot and is no longer needed, such as one of the initial RAM disk. The
    /// caller is its only owner; the marks stay as they were computed at boot.
    pub fn adopt(&self, pin: &CpuPin, pfn: Pfn) {
        debug_assert_eq!(self.pages.get(pfn).state(), State::Reserved);
        self.pages
            .get(pfn)
            .init_flags(State::Allocated, Flags::empty());
        self.total.fetch_add(1, Relaxed);
        self.domains[self.pages.get(pfn).domain()].grow();
        self.free(pin, pfn);
    }

    /// Frees many pages: those that the magazine has no room for go to the free lists in bursts.
    pub fn free_bulk(&self, pin: &CpuPin, pfns: &[Pfn]) {
        let cpu = self.cpus.get(pin);
        let mut rest = pfns;
        while let Some((&pfn, tail)) = rest.split_first() {
            let page = self.pages.get(pfn);
            if page.domain_and_mark() != cpu.domain {
                break;
            }
            self.assert_freeable(pfn);
            page.init_flags(State::Allocated, Flags::empty());
            if !cpu.push(pfn) {
                break;
            }
            rest = tail;
        }
        for alike in rest.chunk_by(|&a, &b| self.are_placed_alike(a, b)) {
            if self.pages.get(alike[0]).is_taken() {
                self.free_placed(cpu, alike);
                continue;
            }
            for pfn in alike {
                self.assert_freeable(*pfn);
                self.pages
                    .get(*pfn)
                    .init_flags(State::Allocated, Flags::empty());
            }
            self.put_by_domain(alike);
        }
    }

    /// Takes an aligned run of `1 << order` pages, hard-busy each; its first page records the order.
    ///
    /// # Errors
    ///
    /// [`NoMemory`] if no domain has such a run to spare, and a few reservations that are broken for it leave none, if
    /// `order` exceeds [`MAX_ORDER`], or if the injector fails the request.
    pub fn alloc_order(&self, pin: &CpuPin, order: u8, rights: Rights) -> Result<Pfn, NoMemory> {
        if order == 0 {
            let pfn = self.alloc(pin, rights)?;
            self.pages.get(pfn).set_order(0);
            return Ok(pfn);
        }
        let cpu = self.cpus.get(pin);
        if order > MAX_ORDER || self.injected(cpu, rights) {
            return Err(NoMemory);
        }
        // No reserve is touched while a reservation can be broken, up to a number of them.
        let mut breaks = RUN_BREAKS;
        while breaks != 0 && self.may_break() {
            if let Some(run) = self.take_run(cpu, order, Rights::User) {
                return Ok(run);
            }
            breaks -= usize::from(self.break_one(cpu) == Broken::One);
        }
        loop {
            if let Some(run) = self.take_run(cpu, order, rights) {
                return Ok(run);
            }
            if breaks == 0 {
                return Err(NoMemory);
            }
            match self.break_one(cpu) {
                Broken::One => breaks -= 1,
                Broken::UnderWay => {}
                Broken::Nothing => {
                    // Once more, for another CPU may have broken one since.
                    let last = || self.take_run(cpu, order, rights);
                    let broken = self.reservations.is_some().then(last).flatten();
                    return broken.ok_or(NoMemory);
                }
            }
        }
    }

    /// Takes a run of the nearest domain that has one to spare.
    fn take_run(&self, cpu: &Magazine, order: u8, rights: Rights) -> Option<Pfn> {
        let mut nearest = self.nearest[cpu.domain].iter().map(|&d| usize::from(d));
        nearest.find_map(|domain| {
            let run = self.domains[domain].take_run(self.pages, order, rights, cpu.home)?;
            cpu.count_taken(domain, 1 << order);
            Some(run)
        })
    }

    /// Gives back a run taken by [`alloc_order`](PageAllocator::alloc_order).
    pub fn free_order(&self, pin: &CpuPin, pfn: Pfn, order: u8) {
        if order == 0 {
            return self.free(pin, pfn);
        }
        for n in 0..1 << order {
            self.assert_freeable(pfn.add(n));
            self.pages
                .get(pfn.add(n))
                .init_flags(State::Allocated, Flags::empty());
        }
        self.domains[self.pages.get(pfn).domain()].put_run(self.pages, pfn, order);
    }

    /// Empties this CPU's magazine into the free lists.
    pub fn drain(&self, pin: &CpuPin) {
        let cpu = self.cpus.get(pin);
        cpu.gate.clear(Gate::DRAIN);
        self.empty(cpu);
    }

    /// Asks each CPU to empty its magazine at its next allocation or [`poll`](PageAllocator::poll).
    pub fn request_drain(&self) {
        for cpu in self.cpus.iter() {
            cpu.gate.set(Gate::DRAIN);
        }
    }

    /// Drains this CPU's magazine if that was requested. Called by the idle loop and the clock tick.
    #[inline]
    pub fn poll(&self, pin: &CpuPin) {
        if self.cpus.get(pin).gate.has(Gate::DRAIN) {
            self.drain(pin);
        }
    }

    /// Makes about every `period`-th request that is not [`Rights::Reserve`] fail, on each CPU by its own count that
    /// starts from `seed`; 0 switches it off.
    pub fn set_injector(&self, period: u32, seed: u32) {
        self.injector.set(period);
        for cpu in self.cpus.iter() {
            cpu.injector_count.set(seed);
            if period == 0 {
                cpu.gate.clear(Gate::INJECT)
            } else {
                cpu.gate.set(Gate::INJECT)
            }
        }
    }

    /// The period set by [`set_injector`](PageAllocator::set_injector); 0 for off.
    pub fn injector_period(&self) -> u32 {
        self.injector.period()
    }

    /// Whether the injector fails a request now; for admission checks made before memory is needed.
    #[inline]
    pub fn inject(&self, pin: &CpuPin) -> bool {
        self.injected(self.cpus.get(pin), Rights::User)
    }

    /// Whether there is memory for another long-lived object for users, and the injector does not fail the request: for
    /// checks made before memory is needed.
    #[inline]
    pub fn admits(&self, pin: &CpuPin) -> bool {
        let cpu = self.cpus.get(pin);
        self.pressure_on(cpu) != Pressure::Severe && !self.injected(cpu, Rights::User)
    }

    /// All pages.
    pub fn pages(&self) -> PageArray {
        self.pages
    }

    /// Number of frames that the allocator manages.
    pub fn total_pages(&self) -> usize {
        self.total.load(Relaxed)
    }

    /// Free frames, those in magazines and reservations included. Exact while no CPU allocates or frees.
    pub fn free_pages(&self) -> usize {
        self.free_by_domain().sum::<usize>() + self.cpus.iter().map(Magazine::len).sum::<usize>()
    }

    /// Number of free frames and of all frames of a domain, magazines left out.
    pub fn domain_pages(&self, domain: usize) -> (usize, usize) {
        let free = self.domains[domain].free() + self.untaken(domain);
        (free, self.domains[domain].size())
    }

    /// Free frames of each domain, magazines left out.
    fn free_by_domain(&self) -> impl Iterator<Item = usize> {
        (0..self.domains.len()).map(|domain| self.domain_pages(domain).0)
    }

    /// How short memory is. If the CPU's own part has plenty, only its line is read. Unless there is plenty in all, this also
    /// breaks a reservation.
    #[inline]
    pub fn pressure(&self) -> Pressure {
        self.pressure_on(self.cpus.get(&ksync::pin()))
    }

    #[inline(always)]
    fn pressure_on(&self, cpu: &Magazine) -> Pressure {
        let near = self.domains[cpu.domain].free_in_part_of(cpu.home);
        if Pressure::of(near, self.users_mark) == Pressure::None {
            return Pressure::None;
        }
        self.pressure_around(cpu)
    }

    /// As [`pressure`](PageAllocator::pressure); adds up parts only until the answer is known.
    #[inline(never)]
    fn pressure_around(&self, cpu: &Magazine) -> Pressure {
        let nearest = self.nearest[cpu.domain]
            .iter()
            .map(|&domain| &self.domains[usize::from(domain)]);
        let mut free = 0;
        for part in nearest.flat_map(|domain| domain.free_by_part(cpu.home)) {
            free += part;
            if Pressure::of(free, self.users_mark) == Pressure::None {
                return Pressure::None;
            }
        }
        free += (0..self.domains.len())
            .map(|domain| self.untaken(domain))
            .sum::<usize>();
        let pressure = Pressure::of(free, self.users_mark);
        if pressure != Pressure::None {
            // What is reserved is on its way to where it is needed before anybody hears of it.
            self.break_for(cpu);
        }
        pressure
    }

    /// Number of free frames that users may take, magazines left out.
    pub fn spare_pages(&self) -> usize {
        let marks = self.domains.iter().map(|domain| domain.mark(Rights::User));
        let spare = |(free, mark): (usize, usize)| free.saturating_sub(mark);
        self.free_by_domain().zip(marks).map(spare).sum()
    }

    /// Whether new long-lived objects for users should be refused.
    pub fn low_memory(&self) -> bool {
        self.pressure() == Pressure::Severe
    }

    /// Statistics of one CPU.
    pub fn cpu_stats(&self, cpu: usize) -> CpuStats {
        self.cpus.of(cpu).stats()
    }

    /// As `alloc`, where the gate is closed or the magazine empty. Asks the other CPUs to drain before it fails.
    #[cold]
    fn alloc_slow(&self, cpu: &Magazine, rights: Rights) -> Result<Pfn, NoMemory> {
        if self.injected(cpu, rights) {
            return Err(NoMemory);
        }
        if cpu.gate.has(Gate::DRAIN) || (cpu.gate.has(Gate::LOW) && rights == Rights::User) {
            // Pages that a more important request has left in the magazine are below the users' mark: they are
            // returned.
            cpu.gate.clear(Gate::DRAIN);
            self.empty(cpu);
        }
        if let Some(pfn) = cpu.pop() {
            return Ok(pfn);
        }
        // Memory above the users' marks first, in any domain; then what is reserved; only then the reserves, nearest first.
        loop {
            if let Some(pfn) = self.refill(cpu, Rights::User) {
                return Ok(pfn);
            }
            if !self.break_for(cpu) {
                break;
            }
        }
        // Users once more, too, for another CPU may have broken a reservation since.
        if (rights != Rights::User || self.reservations.is_some())
            && let Some(pfn) = self.refill(cpu, rights)
        {
            return Ok(pfn);
        }
        // Other CPUs may have pages in their magazines.
        self.request_drain();
        Err(NoMemory)
    }

    /// Fills the empty magazine of this CPU and takes a page of it.
    fn refill(&self, cpu: &Magazine, rights: Rights) -> Option<Pfn> {
        let mut nearest = self.nearest[cpu.domain].iter().map(|&d| usize::from(d));
        nearest.find_map(|domain| {
            let taken = self.domains[domain].refill(self.pages, cpu, rights);
            if taken != 0 {
                cpu.count_taken(domain, taken);
            }
            cpu.pop()
        })
    }

    /// Keeps a page in this CPU's magazine, which is full: a burst of the oldest makes room.
    #[cold]
    fn free_slow(&self, cpu: &Magazine, pfn: Pfn) {
        cpu.take_oldest(|oldest| self.put_by_domain(oldest));
        cpu.drains.add(1);
        let pushed = cpu.push(pfn);
        debug_assert!(pushed);
    }

    /// Collects frames of other domains and returns them in bursts; gives back a frame of a reserved run.
    #[inline(never)]
    fn free_remote(&self, cpu: &Magazine, pfn: Pfn) {
        if self.pages.get(pfn).is_taken() {
            self.free_placed(cpu, &[pfn]);
        } else {
            self.free_to(cpu, pfn);
        }
    }

    /// Frees a page that is in no reservation.
    fn free_to(&self, cpu: &Magazine, pfn: Pfn) {
        if self.pages.get(pfn).domain() != cpu.domain {
            self.collect(cpu, pfn);
        } else if !cpu.push(pfn) {
            self.free_slow(cpu, pfn);
        }
    }

    /// Collects frames of other domains and returns them in bursts.
    fn collect(&self, cpu: &Magazine, pfn: Pfn) {
        if !cpu.push_remote(pfn) {
            cpu.take_remote(|taken| self.put_by_domain(taken));
            let pushed = cpu.push_remote(pfn);
            debug_assert!(pushed);
        }
    }

    /// Empties a magazine that belongs to this CPU.
    fn empty(&self, cpu: &Magazine) {
        while cpu.take_oldest(|taken| self.put_by_domain(taken)) != 0 {}
        cpu.take_remote(|taken| self.put_by_domain(taken));
        cpu.gate.clear(Gate::LOW);
        cpu.drains.add(1);
    }

    /// Puts pages on their domains' lists, at most a burst of neighbours in `pfns` in one hold of a lock.
    fn put_by_domain(&self, pfns: &[Pfn]) {
        if self.domains.len() == 1 {
            for burst in pfns.chunks(magazine::BURST) {
                self.domains[0].put_pages(self.pages, burst);
            }
            return;
        }
        let domain_of = |pfn: &Pfn| self.pages.get(*pfn).domain();
        for run in pfns.chunk_by(|a, b| domain_of(a) == domain_of(b)) {
            for burst in run.chunks(magazine::BURST) {
                self.domains[domain_of(&burst[0])].put_pages(self.pages, burst);
            }
        }
    }

    fn injected(&self, cpu: &Magazine, rights: Rights) -> bool {
        rights != Rights::Reserve
            && cpu.gate.has(Gate::INJECT)
            && self.injector.fails(&cpu.injector_count)
    }

    /// A freed page must have no trace of its last use.
    #[inline]
    fn assert_freeable(&self, pfn: Pfn) {
        if cfg!(debug_assertions) {
            let page = self.pages.get(pfn);
            assert!(page.is_hard_busy(), "{pfn:?} freed while not hard-busy");
            assert!(page.object() == 0, "{pfn:?} freed with an identity");
            assert!(page.wire_count() == 0, "{pfn:?} freed while wired");
            #[cfg(feature = "pv")]
            assert!(page.list().is_empty(), "{pfn:?} freed with entries");
            let state = page.state();
            assert!(
                !matches!(state, State::Free | State::Absent | State::Reserved),
                "{pfn:?} freed in state {state:?}"
            );
        }
    }
}
