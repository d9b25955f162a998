//! Address-space identifiers: translations that outlive a switch.
//!
//! *Guarantee.* A CPU that switches to a pmap uses a translation from an earlier activation only if no change of that
//! pmap since then required its invalidation.
//!
//! *Mechanism.* Each CPU tags its translations with one of a few identifiers ([`Asids`]), each assigned to the pmap
//! that used it last, at a *generation* of that pmap. Every flush raises the generation before it reads which CPUs run
//! the pmap. So there are two cases:
//!
//! ```text
//!   change entry                         enter: set own bit in the active set
//!   generation += 1                             full fence
//!   full fence                                  generation == that of the identifier ?
//!   read the active set                            yes: keep   no: drop all that it tags
//! ```
//!
//! Either the flush sees the CPU, which gets the request, or the CPU sees the new generation. A request names its pmap
//! and the generation that it made. A CPU that runs something else ignores it: the comparison at the next activation
//! does its work. If the request's generation is not the successor of the one that the CPU has reached, other requests
//! are on their way; the CPU then flushes everything and takes the generation that it finds, so that the other requests
//! find nothing to do.
//!
//! Pmaps are named by an id that is never reused, not by their address. Identifier 0 is that of the empty root.

// Used by one CPU alone: no protocol, and model checkers need not see it.
use core::sync::atomic::AtomicU64 as LocalU64;

use ksync::CpuPin;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::pmap::{Pmap, RootInfo};
use crate::{Machine, Vm};

/// Identifiers that a CPU uses besides 0.
pub const ASIDS: usize = 6;

/// A pmap's id; 0 as long as no CPU has run the pmap.
///
/// All accesses are Relaxed: the id publishes no other data. If a sender does not yet see the id of its pmap, its
/// request has no effect on any CPU, and needs none: a CPU that gets the id then runs its full fence after the one in
/// which the sender read the active set, and so finds the new generation.
#[derive(Default)]
pub(crate) struct PmapId(AtomicU64);

impl PmapId {
    /// The id.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// The id, assigned now if there is none: made of the CPU and the number of ids that it has assigned.
    #[inline]
    pub(crate) fn get_or_give<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin) -> u64 {
        match self.0.load(Relaxed) {
            0 => self.give(vm, pin),
            id => id,
        }
    }

    #[cold]
    fn give<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin) -> u64 {
        let counts = vm.pmaps.counts(pin);
        counts.numbered.add(1);
        let new = (counts.numbered.get() << 16) | pin.cpu() as u64;
        match self.0.compare_exchange(0, new, Relaxed, Relaxed) {
            Ok(_) => new,
            Err(theirs) => theirs,
        }
    }
}

/// What a flush request names: a pmap, and the generation that the change made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The pmap's id.
    pub(crate) pmap: u64,
    /// The generation.
    pub(crate) generation: u64,
}

/// What a CPU must invalidate for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Duty {
    /// Nothing: it has done so, or will do so when it switches to the pmap.
    Nothing,
    /// The pages that the request names.
    Pages,
    /// All translations of the identifier in use, after loading the root that the pmap has now; then it calls
    /// [`refreshed`](Asids::refreshed).
    All,
}

/// An identifier to load a root with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The identifier.
    pub asid: u16,
    /// Whether the translations that it tags may be kept.
    pub keep: bool,
}

/// One identifier of a CPU.
struct Slot {
    /// The pmap's id, 0 for none.
    pmap: LocalU64,
    /// The generation up to which all required invalidations are done.
    generation: LocalU64,
}

/// The identifiers of one CPU. It alone uses them, with interrupts off.
pub struct Asids {
    slots: [Slot; ASIDS],
    /// The identifier in use; 0 for the empty root.
    current: LocalU64,
    /// The slot to reassign next.
    next: LocalU64,
}

impl Asids {
    /// No identifier in use.
    pub const fn new() -> Asids {
        Asids {
            slots: [const {
                Slot {
                    pmap: LocalU64::new(0),
                    generation: LocalU64::new(0),
                }
            }; ASIDS],
            current: LocalU64::new(0),
            next: LocalU64::new(0),
        }
    }

    /// The identifier for a pmap that has just been activated; its root is to be loaded with it.
    pub fn enter(&self, info: &RootInfo) -> Tag {
        debug_assert!(info.pmap != 0, "an active pmap has a number");
        let known = self
            .slots
            .iter()
            .position(|slot| slot.pmap.load(Relaxed) == info.pmap);
        let n = known.unwrap_or_else(|| {
            let n = self.next.load(Relaxed) as usize % ASIDS;
            self.next.store(n as u64 + 1, Relaxed);
            n
        });
        let slot = &self.slots[n];
        let keep = known.is_some() && slot.generation.load(Relaxed) == info.generation;
        slot.pmap.store(info.pmap, Relaxed);
        slot.generation.store(info.generation, Relaxed);
        self.current.store(n as u64 + 1, Relaxed);
        Tag {
            asid: n as u16 + 1,
            keep,
        }
    }

    /// The identifier for the empty root, which the CPU loads.
    pub fn leave(&self) -> Tag {
        self.current.store(0, Relaxed);
        Tag {
            asid: 0,
            keep: true,
        }
    }

    /// The identifier in use.
    pub fn current(&self) -> u16 {
        self.current.load(Relaxed) as u16
    }

    fn slot(&self) -> Option<&Slot> {
        let n = (self.current.load(Relaxed) as usize).checked_sub(1)?;
        Some(&self.slots[n])
    }

    /// What a flush request requires this CPU to invalidate now. The caller does so before it serves another request.
    ///
    /// `target` is `None` if the request is for several pmaps: then a CPU that runs any pmap drops all of its
    /// translations. `full` says that the request names no pages, but all of the pmap. A CPU with the empty root has
    /// nothing to invalidate.
    pub fn duty(&self, target: Option<Target>, full: bool) -> Duty {
        let Some(slot) = self.slot() else {
            return Duty::Nothing;
        };
        let Some(target) = target else {
            return Duty::All;
        };
        let reached = slot.generation.load(Relaxed);
        if slot.pmap.load(Relaxed) != target.pmap || reached >= target.generation {
            return Duty::Nothing;
        }
        if full || reached + 1 != target.generation {
            return Duty::All;
        }
        slot.generation.store(target.generation, Relaxed);
        Duty::Pages
    }

    /// Records that all translations of the identifier in use were flushed, after `info` was read.
    pub fn refreshed(&self, info: &RootInfo) {
        if let Some(slot) = self.slot() {
            debug_assert!(slot.pmap.load(Relaxed) == info.pmap);
            slot.generation.store(info.generation, Relaxed);
        }
    }
}

impl Default for Asids {
    fn default() -> Asids {
        Asids::new()
    }
}

impl Pmap {
    /// What a flush request for this pmap names.
    pub(crate) fn target(&self, generation: u64) -> Target {
        Target {
            pmap: self.id().get(),
            generation,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Pfn;

    fn info(pmap: u64, generation: u64) -> RootInfo {
        RootInfo {
            root: Pfn(1),
            generation,
            pmap,
        }
    }

    #[test]
    fn a_return_keeps_what_nobody_took() {
        let asids = Asids::new();
        let first = asids.enter(&info(7, 3));
        assert!(!first.keep);
        assert!(!asids.enter(&info(8, 0)).keep);
        assert_eq!(
            asids.leave(),
            Tag {
                asid: 0,
                keep: true
            }
        );
        assert_eq!(
            asids.enter(&info(7, 3)),
            Tag {
                keep: true,
                ..first
            }
        );
        assert_eq!(asids.enter(&info(7, 4)), first, "a change came meanwhile");
        assert!(asids.enter(&info(7, 4)).keep);
    }

    #[test]
    fn an_identifier_that_is_given_away_starts_empty() {
        let asids = Asids::new();
        for pmap in 1..=ASIDS as u64 + 1 {
            assert!(!asids.enter(&info(pmap, 0)).keep);
        }
        assert!(asids.enter(&info(2, 0)).keep);
        assert!(
            !asids.enter(&info(1, 0)).keep,
            "its identifier went to the last"
        );
    }

    #[test]
    fn requests() {
        let asids = Asids::new();
        let target = |pmap, generation| Some(Target { pmap, generation });
        assert_eq!(asids.duty(target(7, 1), false), Duty::Nothing);
        asids.enter(&info(7, 3));
        assert_eq!(asids.duty(target(8, 9), true), Duty::Nothing);
        assert_eq!(asids.duty(target(7, 3), true), Duty::Nothing);
        assert_eq!(asids.duty(target(7, 4), false), Duty::Pages);
        assert_eq!(asids.duty(target(7, 4), false), Duty::Nothing);
        // Request 6 overtakes request 5, which then has nothing left to do.
        assert_eq!(asids.duty(target(7, 6), false), Duty::All);
        asids.refreshed(&info(7, 6));
        assert_eq!(asids.duty(target(7, 5), false), Duty::Nothing);
        assert_eq!(asids.duty(target(7, 7), true), Duty::All);
        assert_eq!(asids.duty(None, true), Duty::All);
    }
}
