//! Address-space identifiers: translations that outlive a switch.
//!
//! *Guarantee.* A CPU that switches to a pmap uses a translation from an earlier activation only if no change of that pmap
//! since then asked for its end.
//!
//! *Mechanism.* Each CPU tags its translations with one of a few identifiers ([`Asids`]), each of which belongs to the pmap that
//! had it last, at a *generation* of that pmap. Every flush raises the generation before it reads which CPUs run the
//! pmap. So there are two cases:
//!
//! ```text
//!   change entry                         enter: set own bit in the active set
//!   generation += 1                             full fence
//!   full fence                                  generation == that of the identifier ?
//!   read the active set                            yes: keep   no: forget all that it tags
//! ```
//!
//! The CPU is seen, and gets the request, or it sees the new generation. A request names its pmap and the generation that it
//! made. One that arrives when the CPU runs something else is ignored: the comparison at the next activation
//! stands for it. One that is not the successor of the generation that the CPU has reached means that others are
//! on their way, and the CPU forgets everything and takes the generation that it finds; those others are then done
//! already.
//!
//! Pmaps are known by a number that is never used again, not by their address. Identifier 0 is for the empty root.

// Of one CPU alone: no protocol, and unseen by model checkers.
use core::sync::atomic::AtomicU64 as LocalU64;

use ksync::CpuPin;
use ksync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::pmap::{Pmap, RootInfo};
use crate::{Machine, Vm};

/// Identifiers that a CPU uses besides 0.
pub const ASIDS: usize = 6;

/// A pmap's number; 0 as long as no CPU has run it.
///
/// All of it is Relaxed: nothing is known by a number but which pmap it is of. A request that is sent before its sender sees the
/// number asks nothing of a CPU: the full fence of the CPU, which has entered with a number, then comes after the one in which
/// the sender found the set, and the CPU finds the new generation.
#[derive(Default)]
pub(crate) struct PmapId(AtomicU64);

impl PmapId {
    /// The number.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// The number, given now if there is none: the CPU and how many it has given.
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

/// What a flush request is about: a pmap, and the generation that the change made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The pmap's number.
    pub(crate) pmap: u64,
    /// The generation.
    pub(crate) generation: u64,
}

/// What a CPU must forget for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Duty {
    /// Nothing: it has done so, or will when it switches to the pmap.
    Nothing,
    /// The pages that the request names.
    Pages,
    /// All that the identifier in use tags, after loading the root that the pmap has now; then
    /// [`refreshed`](Asids::refreshed).
    All,
}

/// An identifier to load a root with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The identifier.
    pub asid: u16,
    /// Whether what it tags may stay.
    pub keep: bool,
}

/// One identifier of a CPU.
struct Slot {
    /// The pmap's number, 0 for none.
    pmap: LocalU64,
    /// The generation up to which everything was forgotten that had to be.
    generation: LocalU64,
}

/// The identifiers of one CPU. It alone uses them, with interrupts off.
pub struct Asids {
    slots: [Slot; ASIDS],
    /// The identifier in use; 0 for the empty root.
    current: LocalU64,
    /// Which slot is given away next.
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

    /// The CPU loads the empty root.
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

    /// What a request asks of this CPU now. The caller does it before it lets another one in.
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

    /// Everything that the identifier in use tags was forgotten, after `info` was read.
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
    /// What a flush request about this pmap names.
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
        // Number 6 overtakes number 5, which then has nothing left to do.
        assert_eq!(asids.duty(target(7, 6), false), Duty::All);
        asids.refreshed(&info(7, 6));
        assert_eq!(asids.duty(target(7, 5), false), Duty::Nothing);
        assert_eq!(asids.duty(target(7, 7), true), Duty::All);
        assert_eq!(asids.duty(None, true), Duty::All);
    }
}
