//! Entries of a map.

use ksync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use ksync::{CpuPin, EpochPtr};
use rust_alloc::boxed::Box;
use rust_alloc::sync::Arc;

use crate::backing::{Backing, Chain, LONGEST, Layers};
use crate::map::{EntryFlags, Extent, Prot};
use crate::{Machine, Vm};

/// Addresses kept free below a range that grows down.
pub const GUARD_GAP: u64 = 1 << 20;

const DEAD: u32 = 1 << 31;
const NEEDS_COPY: u32 = 1 << 30;
const GENERATION: u32 = NEEDS_COPY - 1;
/// Generations come again. What a chain remembers of one is forgotten each time that so many have passed: also what a fault that was
/// late has stored after the last time.
const REMEMBERED: u32 = 1024;

/// State of an entry as a fault saw it. Two states are equal only if nothing changed in between on which a fault
/// depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryState(u32);

impl EntryState {
    /// The state as an integer.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// The entry was replaced or unmapped.
    pub const fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// Others may see the front layer: a private write needs a new layer first.
    pub const fn needs_copy(self) -> bool {
        self.0 & NEEDS_COPY != 0
    }
}

/// One mapped range. Bounds, protection and flags never change: a change replaces the entry.
pub struct MapEntry {
    start: u64,
    end: u64,
    prot: Prot,
    maxprot: Prot,
    flags: EntryFlags,
    /// DEAD, NEEDS_COPY, generation. Changed under the map's lock, before any table is touched; read by faults.
    state: AtomicU32,
    /// Upper half: the state, plus one, in which folding last found nothing to do. Lower half: a counter of questions
    /// since. Atomic, approximate.
    folded: AtomicU64,
    /// The layers, front to oldest. None before the first fault of anonymous memory. Changed under the map's lock.
    chain: EpochPtr<Box<Chain>>,
}

impl Extent for MapEntry {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }

    fn low(&self) -> u64 {
        if self.flags.contains(EntryFlags::GROWSDOWN) {
            self.start.saturating_sub(GUARD_GAP)
        } else {
            self.start
        }
    }
}

/// The constant properties of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryArgs {
    /// First address.
    pub start: u64,
    /// First address behind the range.
    pub end: u64,
    /// Allowed accesses.
    pub prot: Prot,
    /// Accesses that mprotect may allow later.
    pub maxprot: Prot,
    /// Other properties.
    pub flags: EntryFlags,
}

impl EntryArgs {
    /// Whether the entry is a stack, which resource limits count separately.
    pub fn is_stack(&self) -> bool {
        self.flags.contains(EntryFlags::GROWSDOWN) || self.flags.contains(EntryFlags::STACK)
    }

    /// The same, but that a special mapping is not locked.
    pub(crate) fn special_unlocked(mut self) -> EntryArgs {
        if self.flags.contains(EntryFlags::SPECIAL) {
            self.flags = self.flags.difference(EntryFlags::LOCKED);
        }
        self
    }

    /// Whether its pages count as data if they are writable: RLIMIT_DATA's measure.
    pub fn may_be_data(&self) -> bool {
        !self.is_stack() && !self.flags.contains(EntryFlags::SHARED)
    }
}

impl MapEntry {
    /// An entry over a chain. `needs_copy` says that others may see the chain's front layer. The map's lock is held, or
    /// the map is not yet published.
    pub(crate) fn new(args: EntryArgs, chain: Option<Chain>, needs_copy: bool) -> Arc<MapEntry> {
        MapEntry::over(args, chain.map(Box::new), needs_copy)
    }

    /// As [`new`](MapEntry::new).
    pub(crate) fn over(
        args: EntryArgs,
        chain: Option<Box<Chain>>,
        needs_copy: bool,
    ) -> Arc<MapEntry> {
        debug_assert!(args.start < args.end);
        debug_assert!(chain.is_some() || !needs_copy, "what is there to copy?");
        debug_assert!(
            match &chain {
                None => args.end - args.start <= LONGEST,
                Some(chain) => chain
                    .layers()
                    .iter()
                    .all(|layer| layer.relation().holds(args.start, args.end)),
            },
            "an index for each page"
        );
        Arc::new(MapEntry {
            start: args.start,
            end: args.end,
            prot: args.prot,
            maxprot: args.maxprot,
            flags: args.flags,
            state: AtomicU32::new(if needs_copy { NEEDS_COPY } else { 0 }),
            folded: AtomicU64::new(0),
            chain: EpochPtr::new(chain),
        })
    }

    /// All constant properties.
    pub fn args(&self) -> EntryArgs {
        EntryArgs {
            start: self.start,
            end: self.end,
            prot: self.prot,
            maxprot: self.maxprot,
            flags: self.flags,
        }
    }

    /// Allowed accesses.
    #[inline]
    pub fn prot(&self) -> Prot {
        self.prot
    }

    /// Accesses that mprotect may allow.
    pub fn maxprot(&self) -> Prot {
        self.maxprot
    }

    /// Flags.
    #[inline]
    pub fn flags(&self) -> EntryFlags {
        self.flags
    }

    /// Whether other mappings of the same object see its writes.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.flags.contains(EntryFlags::SHARED)
    }

    /// The state now.
    #[inline]
    pub fn state(&self) -> EntryState {
        EntryState(self.state.load(SeqCst))
    }

    /// Marks the entry dead: every fault that has seen an earlier state starts again. The map's lock is held.
    pub(crate) fn kill(&self) {
        // Relaxed suffices: no other data is published by it. A fault checks the state under the lock of the page table
        // that it fills. Either the caller takes that lock afterwards, or both sides have a full fence by which one
        // sees what the other did.
        self.state.fetch_or(DEAD, Relaxed);
    }

    /// Sets or clears NEEDS_COPY, with a new generation, so that faults that saw an earlier state start again, even if the
    /// flag does not change. The map's lock is held.
    pub(crate) fn set_needs_copy(&self, needs_copy: bool) {
        let now = self.state.load(Relaxed);
        let generation = now.wrapping_add(1) & GENERATION;
        let flag = if needs_copy { NEEDS_COPY } else { 0 };
        self.state.store((now & DEAD) | flag | generation, SeqCst);
        if generation.is_multiple_of(REMEMBERED)
            && let Some(chain) = self.chain(&ksync::pin())
        {
            chain.forget_own();
        }
    }

    /// Changes the generation only, so that faults that saw an earlier state start again. The map's lock is held.
    pub(crate) fn renew(&self) {
        self.set_needs_copy(self.state().needs_copy());
    }

    /// The layers. Stable under the map's lock.
    #[inline]
    pub(crate) fn chain<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Chain> {
        self.chain.load(pin)
    }

    /// The slot of the chain, for a writer that holds the map's lock.
    pub(crate) fn chain_slot(&self) -> &EpochPtr<Box<Chain>> {
        &self.chain
    }

    /// Sets the chain, and retires the previous one. Does not touch the uses of layers. The map's lock is held.
    pub(crate) fn set_chain<M: Machine>(&self, vm: &Vm<M>, chain: Option<Chain>) {
        let chain = chain.map(Box::new);
        self.chain.replace(&vm.epoch, &ksync::pin(), chain);
    }

    /// Replaces the chain by `new`, which contains all of its layers. The map's lock is held.
    pub(crate) fn succeed<M: Machine>(&self, vm: &Vm<M>, new: Chain) {
        let new = Box::new(new);
        let pin = ksync::pin();
        if let Some(old) = self.chain(&pin) {
            old.drop_uses(&new);
        }
        self.chain.replace(&vm.epoch, &pin, Some(new));
    }

    /// Another entry over the same layers, as one more user of each. Its range may be a part of this one, or reach beyond it
    /// if the layers serve the rest as well. The map's lock is held.
    pub(crate) fn part(&self, args: EntryArgs) -> Arc<MapEntry> {
        let chain = self.copy_layers(0).map(Chain::new);
        MapEntry::new(args, chain, self.state().needs_copy())
    }

    /// The chain as it is, not counted as a use of its layers; `None` without one.
    pub(crate) fn view(&self) -> Option<Chain> {
        self.copy_layers(0).map(Chain::view_of)
    }

    /// The chain with a new front layer; `None` without one. The map's lock is held.
    pub(crate) fn shadowed_by(&self, front: Arc<Backing>) -> Option<Chain> {
        let mut layers = self.copy_layers(1)?;
        layers.insert(0, front);
        Some(Chain::new(layers))
    }

    /// The number of layers. Stable under the map's lock.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        let pin = ksync::pin();
        self.chain(&pin).map_or(0, |chain| chain.layers().len())
    }

    /// The layer at a depth, if there is one, for callers that wait and so hold no pin.
    #[inline]
    pub(crate) fn layer(&self, depth: usize) -> Option<Arc<Backing>> {
        let pin = ksync::pin();
        self.chain(&pin)?.layers().get(depth).cloned()
    }

    /// The layers at this moment, with room for `more`; `None` without a chain.
    fn copy_layers(&self, more: usize) -> Option<Layers> {
        // No pin is held where memory is allocated, so that the thread can wait for memory there.
        let mut layers = Layers::with_capacity(self.depth() + more);
        layers.extend(self.chain(&ksync::pin())?.layers().iter().cloned());
        Some(layers)
    }

    /// Whether a fault should try to fold the chain, which is long. Not while the state is the one in which folding was
    /// last in vain, except once in `fold_every` times: spaces that share layers may have ended without a change of the
    /// state.
    pub(crate) fn may_fold<M: Machine>(&self, vm: &Vm<M>, state: EntryState) -> bool {
        let last = u64::from(vm.tuning.fold_every) - 1;
        let folded = self.folded.load(Relaxed);
        if folded >> 32 != u64::from(state.0) + 1 {
            return true;
        }
        self.folded
            .store(folded & !u64::from(u32::MAX) | (folded + 1) & last, Relaxed);
        folded & last == last
    }

    /// Records that folding has nothing more to do in the present state. The map's lock is held.
    pub(crate) fn set_folded(&self) {
        let state = u64::from(self.state.load(Relaxed)) + 1;
        self.folded.store(state << 32, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hint of a generation is gone before the generation comes again, also one that a late fault stores.
    #[test]
    fn no_hint_outlives_its_generation() {
        let args = EntryArgs {
            start: 0,
            end: 4096,
            prot: Prot::READ,
            maxprot: Prot::READ,
            flags: EntryFlags::default(),
        };
        let entry = MapEntry::new(args, Some(Chain::view_of(Layers::new())), false);
        let pin = ksync::pin();
        let chain = entry.chain(&pin).expect("a chain");
        for at in [0, 1, REMEMBERED - 1, REMEMBERED, GENERATION - 3, GENERATION] {
            entry.state.store(at, Relaxed);
            for late in [0, 1, 2 * REMEMBERED + 5] {
                let state = entry.state();
                (0..late).for_each(|_| entry.set_needs_copy(false));
                chain.set_own(1, state.bits());
                assert!(chain.knows_own(1, state.bits()));
                (0..REMEMBERED).for_each(|_| entry.renew());
                assert!(!chain.knows_own(1, state.bits()), "{state:?}, {late} late");
            }
        }
    }
}
