//! The per-CPU front of the allocator.
//!
//! A magazine is a stack of frame numbers that its CPU uses with preemption off: plain loads and stores, no locked
//! instruction. Other CPUs read lengths for accounting and may close the gate; nothing else of it is shared.
//!
//! One stack of 64 that is filled and emptied by halves has the same hysteresis as Bonwick's pair of magazines of 32,
//! with fewer instructions on the warm path. Frames are returned from the bottom, so that cache-warm ones stay.

use core::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use rust_alloc::boxed::Box;

use super::Rights;
use super::inject::InjectorCount;
use crate::page::Pfn;
use crate::stack::{PfnWord, Stack};
use crate::stats::Tally;

/// Frames that a magazine holds.
pub(super) const CAPACITY: usize = 64;
/// Frames moved under one hold of a domain's lock.
pub(super) const BURST: usize = 32;

/// Reasons to leave the warm path, one bit each.
///
/// Any CPU sets a bit; the owning CPU, or the one that set it, clears it.
pub(super) struct Gate(AtomicU8);

impl Gate {
    /// The magazine holds pages from below the users' mark.
    pub(super) const LOW: u8 = 1 << 0;
    /// The failure injector is on.
    pub(super) const INJECT: u8 = 1 << 1;
    /// The magazine is to be emptied.
    pub(super) const DRAIN: u8 = 1 << 2;

    /// Whether a request may be served from the magazine right away.
    #[inline]
    pub(super) fn admits(&self, rights: Rights) -> bool {
        let barred = match rights {
            Rights::User => Gate::LOW | Gate::INJECT | Gate::DRAIN,
            Rights::Kernel | Rights::Table => Gate::INJECT | Gate::DRAIN,
            Rights::Reserve => 0,
        };
        self.0.load(Relaxed) & barred == 0
    }

    #[inline]
    pub(super) fn has(&self, bit: u8) -> bool {
        self.0.load(Relaxed) & bit != 0
    }

    pub(super) fn set(&self, bit: u8) {
        if !self.has(bit) {
            self.0.fetch_or(bit, Relaxed);
        }
    }

    pub(super) fn clear(&self, bit: u8) {
        if self.has(bit) {
            self.0.fetch_and(!bit, Relaxed);
        }
    }
}

/// One CPU's part of the allocator. A warm request touches only the first line, with the top of a stack that is not
/// deep.
#[repr(C)]
pub(super) struct Magazine {
    pub(super) gate: Gate,
    /// The CPU's own memory domain. Const.
    pub(super) domain: usize,
    /// Its position among the CPUs of that domain, which selects its part. Const.
    pub(super) home: usize,
    /// Frames of the CPU's own domain, or of others if that is exhausted.
    stack: Stack<PfnWord, CAPACITY>,
    /// Freed frames of other domains, collected to be returned in bursts.
    remote: Stack<PfnWord, BURST>,
    /// Cache colour at which the next refill starts. Written by the owner.
    pub(super) colour: AtomicU32,
    pub(super) injector_count: InjectorCount,
    taken_local: Tally,
    taken_remote: Tally,
    refills: Tally,
    pub(super) drains: Tally,
    /// For each domain, the frames that this CPU has put into reservations and given back there, less those that it has
    /// taken from them. None without reservations.
    pub(super) untaken: Box<[Tally]>,
}

/// Statistics of one CPU, in pages or events since boot.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CpuStats {
    /// Pages taken from the CPU's own domain.
    pub taken_local: u64,
    /// Pages taken from other domains.
    pub taken_remote: u64,
    /// Times that pages were fetched from a domain.
    pub refills: u64,
    /// Times that pages were brought back.
    pub drains: u64,
    /// Free pages that the CPU keeps now.
    pub cached: u64,
}

impl Magazine {
    pub(super) fn new(domain: usize, home: usize, cpu: usize) -> Magazine {
        Magazine {
            gate: Gate(AtomicU8::new(0)),
            domain,
            home,
            stack: Stack::new(),
            remote: Stack::new(),
            // CPUs start apart, so that they take different single pages of a domain.
            colour: AtomicU32::new((cpu * BURST / 4) as u32),
            injector_count: InjectorCount::default(),
            taken_local: Tally::new(),
            taken_remote: Tally::new(),
            refills: Tally::new(),
            drains: Tally::new(),
            untaken: Box::default(),
        }
    }

    #[inline]
    pub(super) fn pop(&self) -> Option<Pfn> {
        self.stack.pop()
    }

    /// Adds a frame of the CPU's own domain; false if the magazine is full.
    #[inline]
    pub(super) fn push(&self, pfn: Pfn) -> bool {
        debug_assert!(self.iter().all(|held| held != pfn), "{pfn:?} freed twice");
        self.stack.push(pfn, CAPACITY)
    }

    /// Adds a frame of another domain; false if there is no room.
    pub(super) fn push_remote(&self, pfn: Pfn) -> bool {
        debug_assert!(self.iter().all(|held| held != pfn), "{pfn:?} freed twice");
        self.remote.push(pfn, BURST)
    }

    /// Frames held, those on their way home included.
    pub(super) fn len(&self) -> usize {
        self.stack.len() + self.remote.len()
    }

    /// Takes out up to a burst of the frames freed longest ago, and hands them to `f`.
    pub(super) fn take_oldest(&self, f: impl FnOnce(&[Pfn])) -> usize {
        let mut taken = [Pfn::NONE; BURST];
        let taken = self.stack.take_oldest(&mut taken);
        f(taken);
        taken.len()
    }

    /// Takes out the frames of other domains, and hands them to `f`.
    pub(super) fn take_remote(&self, f: impl FnOnce(&[Pfn])) {
        let mut taken = [Pfn::NONE; BURST];
        f(self.remote.take_oldest(&mut taken));
    }

    /// Counts pages taken from a domain.
    pub(super) fn count_taken(&self, domain: usize, pages: usize) {
        let tally = if domain == self.domain {
            &self.taken_local
        } else {
            &self.taken_remote
        };
        tally.add(pages as u64);
        self.refills.add(1);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Pfn> {
        self.stack.iter().chain(self.remote.iter())
    }

    pub(super) fn stats(&self) -> CpuStats {
        CpuStats {
            taken_local: self.taken_local.get(),
            taken_remote: self.taken_remote.get(),
            refills: self.refills.get(),
            drains: self.drains.get(),
            cached: self.len() as u64,
        }
    }
}
