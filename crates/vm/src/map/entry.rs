//! Entries of a map.

use ksync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use ksync::{CpuPin, EpochPtr};
use rust_alloc::boxed::Box;
use rust_alloc::sync::Arc;

use crate::backing::{Chain, LONGEST};
use crate::map::{EntryFlags, Extent, Prot};
use crate::{Machine, Vm};

/// Addresses kept free below a range that grows down.
pub const GUARD_GAP: u64 = 1 << 20;

const DEAD: u32 = 1 << 31;
const NEEDS_COPY: u32 = 1 << 30;
const GENERATION: u32 = NEEDS_COPY - 1;

/// State of an entry as a fault saw it: two of them are equal only if nothing changed that a fault depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryState(u32);

impl EntryState {
    /// As a number.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    /// The entry was replaced or unmapped.
    pub const fn is_dead(self) -> bool {
        self.0 & DEAD != 0
    }

    /// The front layer may be seen by others: a private write needs a new layer first.
    pub const fn needs_copy(self) -> bool {
        self.0 & NEEDS_COPY != 0
    }
}

/// One mapped range. Bounds, protection and flags never change: a change makes a new entry.
pub struct MapEntry {
    start: u64,
    end: u64,
    prot: Prot,
    maxprot: Prot,
    flags: EntryFlags,
    /// DEAD, NEEDS_COPY, generation. Changed under the map's lock, before any table is touched; read by faults.
    state: AtomicU32,
    /// The state in which folding found nothing more to do, and one more in the upper half; how often that was asked.
    /// Atomic, approximate.
    folded: AtomicU64,
    /// The layers, front to old; none before the first fault of anonymous memory. Changed under the map's lock.
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

/// What a new entry is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryArgs {
    /// First address.
    pub start: u64,
    /// First address behind.
    pub end: u64,
    /// Allowed accesses.
    pub prot: Prot,
    /// Accesses that mprotect may allow.
    pub maxprot: Prot,
    /// The rest.
    pub flags: EntryFlags,
}

impl EntryArgs {
    /// Whether it is a stack, which limits count by itself.
    pub fn is_stack(&self) -> bool {
        self.flags.contains(EntryFlags::GROWSDOWN) || self.flags.contains(EntryFlags::STACK)
    }

    /// Whether its pages count as data where they may be written: RLIMIT_DATA's measure.
    pub fn may_be_data(&self) -> bool {
        !self.is_stack() && !self.flags.contains(EntryFlags::SHARED)
    }
}

impl MapEntry {
    /// An entry over a chain, whose front others may see if it `needs_copy`. The map's lock is held, or the map is not yet
    /// published.
    pub(crate) fn new(args: EntryArgs, chain: Option<Chain>, needs_copy: bool) -> Arc<MapEntry> {
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
            chain: EpochPtr::new(chain.map(Box::new)),
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

    /// Whether writes are seen by others who map the same.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.flags.contains(EntryFlags::SHARED)
    }

    /// The state now.
    #[inline]
    pub fn state(&self) -> EntryState {
        EntryState(self.state.load(SeqCst))
    }

    /// Makes every fault that has seen an earlier state restart. The map's lock is held.
    pub(crate) fn kill(&self) {
        // Relaxed: it passes nothing on but the end. A fault looks under the lock of the table that it enters, which who
        // kills takes later, or after the full fence by which both see what the other does without that lock.
        self.state.fetch_or(DEAD, Relaxed);
    }

    /// Sets or clears NEEDS_COPY, with a new generation. The map's lock is held.
    pub(crate) fn set_needs_copy(&self, needs_copy: bool) {
        let now = self.state.load(Relaxed);
        let generation = now.wrapping_add(1) & GENERATION;
        let flag = if needs_copy { NEEDS_COPY } else { 0 };
        self.state.store((now & DEAD) | flag | generation, SeqCst);
    }

    /// A new generation; else all is as before. The map's lock is held.
    pub(crate) fn renew(&self) {
        self.set_needs_copy(self.state().needs_copy());
    }

    /// The layers. Stable under the map's lock.
    #[inline]
    pub(crate) fn chain<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Chain> {
        self.chain.load(pin)
    }

    /// The slot of the chain, for its writer under the map's lock.
    pub(crate) fn chain_slot(&self) -> &EpochPtr<Box<Chain>> {
        &self.chain
    }

    /// Gives an entry without a chain, or over, a chain. The map's lock is held.
    pub(crate) fn set_chain<M: Machine>(&self, vm: &Vm<M>, chain: Option<Chain>) {
        self.chain
            .replace(&vm.epoch, &ksync::pin(), chain.map(Box::new));
    }

    /// Replaces chain `old` by `new`, which keeps the layers that page-table entries still need. The map's lock is held.
    pub(crate) fn succeed<M: Machine>(&self, vm: &Vm<M>, pin: &CpuPin, old: &Chain, new: Chain) {
        old.drop_uses(&new);
        self.chain.replace(&vm.epoch, pin, Some(Box::new(new)));
    }

    /// Another entry over the same layers, or a part of them. The map's lock is held.
    pub(crate) fn part(&self, args: EntryArgs) -> Arc<MapEntry> {
        // Not pinned where memory is allocated: there the thread can wait for it.
        let chain = {
            let pin = ksync::pin();
            self.chain(&pin).map(Chain::share)
        };
        MapEntry::new(args, chain, self.state().needs_copy())
    }

    /// Whether it is time to try to fold the chain, which is long: not since it was last in vain, but now and then, for
    /// those who share layers go without a sign.
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

    /// Records that folding has nothing more to do. The map's lock is held.
    pub(crate) fn set_folded(&self) {
        let state = u64::from(self.state.load(Relaxed)) + 1;
        self.folded.store(state << 32, Relaxed);
    }
}
