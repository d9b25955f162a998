//! This machine, as the VM sees it.
use core::ops::Range;
use core::ptr::NonNull;

use vm::asid::{Duty, Target};
use vm::page::Pfn;
use vm::{CpuSet, Gather, Growth, Machine};

use super::boot::info::BootInfo;
use super::{cpu, ipi, irq, memory, paging, physical, spaces, time};
use crate::limits::{MAX_NODES, PAGE_SIZE};

/// The machine under the VM.
pub struct KernelMachine {
    ncpus: usize,
    nodes: usize,
    max_pfn: u32,
    /// For each node, all nodes in the order of their distance from it.
    order: [[u8; MAX_NODES]; MAX_NODES],
    /// The distances of SLIT; 10 from a node to itself.
    distances: &'static [[u8; MAX_NODES]; MAX_NODES],
    /// Reloads, on the calling CPU, the root of the pmap that the CPU runs.
    reload_root: fn(),
}

impl KernelMachine {
    /// The machine that boot has found. `reload_root` must load, on the calling CPU, the root that the pmap which the CPU
    /// runs has at that moment. It is called with interrupts off.
    pub fn new(info: &BootInfo, reload_root: fn()) -> Self {
        let mut order = [[0; MAX_NODES]; MAX_NODES];
        for (from, row) in order.iter_mut().enumerate() {
            for (to, node) in row.iter_mut().enumerate() {
                *node = to as u8;
            }
            // Of nodes at equal distance, those that follow `from` come first, so that not all nodes allocate from node 0.
            let rank = |&to: &u8| {
                let distance = info.distances[from][usize::from(to)];
                let turn = (usize::from(to) + info.nodes - from.min(info.nodes)) % info.nodes;
                (usize::from(to) != from, distance, turn)
            };
            row[..info.nodes].sort_unstable_by_key(rank);
        }
        Self {
            ncpus: info.ncpus,
            nodes: info.nodes,
            max_pfn: info.max_pfn,
            order,
            distances: info.distances,
            reload_root,
        }
    }
}

impl KernelMachine {
    /// The distance between two nodes; 10 from a node to itself.
    pub fn distance(&self, from: usize, to: usize) -> u8 {
        self.distances[from][to]
    }
}

// SAFETY: the direct map covers all RAM, linearly, from a base that is a multiple of 512 GiB, and is never unmapped;
// `frame_of` is the inverse of `frame`.
unsafe impl Machine for KernelMachine {
    #[inline]
    fn frame(&self, pfn: Pfn) -> NonNull<u8> {
        memory::frame(pfn.0)
    }

    #[inline]
    fn frame_of(&self, address: *const u8) -> Option<Pfn> {
        let offset = (address as u64).checked_sub(memory::DIRECT_MAP)?;
        let pfn = offset / PAGE_SIZE as u64;
        (pfn < u64::from(self.max_pfn)).then_some(Pfn(pfn as u32))
    }

    #[inline]
    fn ncpus(&self) -> usize {
        self.ncpus
    }

    fn ndomains(&self) -> usize {
        self.nodes
    }

    #[inline]
    fn domain_of(&self, cpu: usize) -> usize {
        cpu::node(cpu)
    }

    #[inline]
    fn domains_by_distance(&self, domain: usize) -> &[u8] {
        &self.order[domain][..self.nodes]
    }

    #[inline]
    fn ticks(&self) -> u64 {
        time::ticks()
    }

    fn must_stop(&self) -> bool {
        crate::upcalls::symbols::must_stop()
    }

    fn may_grow(&self, to: &Growth) -> bool {
        crate::upcalls::symbols::may_grow(to)
    }

    fn copy_device(&self, to: Pfn, from: Pfn) {
        let mut bytes = [0; 256];
        for offset in (0..PAGE_SIZE).step_by(bytes.len()) {
            physical::read(from.address() + offset as u64, &mut bytes);
            vm::page::write_frame(self, to, offset, &bytes);
        }
    }

    fn flush(&self, cpus: &CpuSet, what: &Gather<'_>) {
        // The caller has preemption off. Most spaces run on one CPU, and then no other CPU is asked.
        if *cpus == CpuSet::one(cpu::id()) {
            let flags = irq::save();
            match spaces::duty(what.target(), what.is_full()) {
                Duty::Nothing => {}
                Duty::Pages => what.runs().for_each(flush_pages),
                Duty::All => (self.reload_root)(),
            }
            irq::restore(flags);
            return;
        }
        let mut work = Flush {
            reload: self.reload_root,
            full: what.is_full(),
            target: what.target(),
            runs: [(0, 0); RUNS],
            used: 0,
        };
        for run in what.runs() {
            work.add(run);
        }
        ipi::call(cpus.iter(), &work, Flush::run);
    }
}

/// The most runs that a request keeps apart; with more of them everything is flushed.
const RUNS: usize = 8;

/// A flush request, as the other CPUs get it.
struct Flush {
    reload: fn(),
    full: bool,
    target: Option<Target>,
    runs: [(u64, u64); RUNS],
    used: usize,
}

impl Flush {
    fn add(&mut self, run: Range<u64>) {
        match self.runs.get_mut(self.used) {
            Some(slot) => {
                *slot = (run.start, run.end);
                self.used += 1;
            }
            None => self.full = true,
        }
    }

    /// Flushes on this CPU. Interrupts are off.
    fn run(&self) {
        match spaces::duty(self.target, self.full) {
            Duty::Nothing => {}
            Duty::Pages => {
                for &(start, end) in &self.runs[..self.used] {
                    flush_pages(start..end);
                }
            }
            Duty::All => (self.reload)(),
        }
    }
}

/// Flushes a range on this CPU.
fn flush_pages(range: Range<u64>) {
    for va in range.step_by(PAGE_SIZE) {
        paging::flush_page(va);
    }
}
