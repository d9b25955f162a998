//! The index of an object: from page index to frame number.
//!
//! Guarantee: lookups and insertions take no lock and never see a page at a wrong index; a slot changes from empty to
//! a page, or from a page to empty, by one compare-and-swap. The memory of the index is in proportion to the pages.
//!
//! Mechanism: the first four slots are in the object, the others in 64-way nodes. An index belongs to the tree whose
//! height is its number of base-64 digits, so that a growing object adds trees and never moves a node. Insertions make
//! nodes. An empty node is freed at once if [`prune`](Slots::prune) follows the removal of its last page, else with the
//! object.

use ksync::{CpuPin, Epoch, EpochLink};

use super::node::{self, At, DIGIT, Inner, Leaf, Node, Scanned, Slot};
use crate::alloc::NoMemory;
use crate::page::Pfn;

pub(super) const INLINE: usize = 4;

/// Leaves that one step of a walk reads, or one step of an object's end frees: bounds the time with preemption off.
const STEP: usize = 128;

/// Result of one step of a walk over the resident pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// The next page.
    Page(u32, Pfn),
    /// None found yet; continue at this index.
    Unseen(u32),
    /// There are no more.
    End,
}

type Inner1 = Inner<Leaf>;
type Inner2 = Inner<Inner1>;
type Inner3 = Inner<Inner2>;
type Inner4 = Inner<Inner3>;
type Inner5 = Inner<Inner4>;

/// The trees, by their height.
#[derive(Default)]
struct Roots(
    EpochLink<Leaf>,
    EpochLink<Inner1>,
    EpochLink<Inner2>,
    EpochLink<Inner3>,
    EpochLink<Inner4>,
    EpochLink<Inner5>,
);

/// The slots of one object.
pub(super) struct Slots {
    inline: [Slot; INLINE],
    roots: Roots,
}

/// Evaluates an expression with the root of the tree of an index, whatever the tree's height.
macro_rules! on_root {
    ($roots:expr, $index:expr, |$root:ident| $with:expr) => {
        match $index {
            0..0x40 => {
                let $root = &$roots.0;
                $with
            }
            0x40..0x1000 => {
                let $root = &$roots.1;
                $with
            }
            0x1000..0x4_0000 => {
                let $root = &$roots.2;
                $with
            }
            0x4_0000..0x100_0000 => {
                let $root = &$roots.3;
                $with
            }
            0x100_0000..0x4000_0000 => {
                let $root = &$roots.4;
                $with
            }
            0x4000_0000.. => {
                let $root = &$roots.5;
                $with
            }
        }
    };
}

/// The first page below a root from an index on, as [`Node::scan`].
fn scan<N: Node>(root: &EpochLink<N>, at: At<'_>, leaves: &mut usize) -> Scanned {
    match root.load(at.pin) {
        Some(node) => node.scan(at, leaves),
        None => Err(1 << (DIGIT * (N::HEIGHT + 1))),
    }
}

impl Slots {
    pub(super) fn new() -> Slots {
        Slots {
            inline: core::array::from_fn(|_| Slot::new()),
            roots: Roots::default(),
        }
    }

    /// The slot of `index`, if its node exists.
    #[inline(always)]
    pub(super) fn slot<'p>(&'p self, pin: &'p CpuPin, index: u32) -> Option<&'p Slot> {
        self.run(pin, index)?.first()
    }

    /// The slot of `index` and those that follow it in its node, if the node exists.
    #[inline(always)]
    pub(super) fn run<'p>(&'p self, pin: &'p CpuPin, index: u32) -> Option<&'p [Slot]> {
        if index < INLINE as u32 {
            return self.inline.get(index as usize..);
        }
        // One case for each common size: a division would cost more than the rest of a lookup.
        let at = At { pin, index };
        match index {
            0..0x40 => self.roots.0.load(pin)?.run(at),
            0x40..0x1000 => self.roots.1.load(pin)?.run(at),
            0x1000..0x4_0000 => self.roots.2.load(pin)?.run(at),
            0x4_0000.. => self.far_run(at),
        }
    }

    #[inline(never)]
    fn far_run<'p>(&'p self, at: At<'p>) -> Option<&'p [Slot]> {
        on_root!(self.roots, at.index, |root| root.load(at.pin)?.run(at))
    }

    /// The slot of `index`; missing nodes on the way are made. If one of them cannot be made, empty ones are unlinked
    /// again.
    #[inline(never)]
    pub(super) fn make_slot<'p>(
        &'p self,
        epoch: &Epoch,
        pin: &'p CpuPin,
        index: u32,
    ) -> Result<&'p Slot, NoMemory> {
        if let Some(slot) = self.inline.get(index as usize) {
            return Ok(slot);
        }
        let at = At { pin, index };
        loop {
            match on_root!(self.roots, index, |root| node::make(root, at)) {
                Ok(Some(slot)) => return Ok(slot),
                Ok(None) => {}
                Err(NoMemory) => {
                    self.prune(epoch, pin, index);
                    return Err(NoMemory);
                }
            }
            // A node on the way is about to be unlinked by a CPU that is pinned, so this takes a few instructions.
            ksync::relax();
        }
    }

    /// The page at `index`. A hint until the page is held busy and its identity checked.
    #[inline(always)]
    pub(super) fn get(&self, pin: &CpuPin, index: u32) -> Option<Pfn> {
        self.slot(pin, index)?.page()
    }

    /// Inserts a page into an empty slot; `Ok(false)` if the slot was taken, or its node is about to be unlinked. A
    /// full fence follows.
    pub(super) fn insert(
        &self,
        epoch: &Epoch,
        pin: &CpuPin,
        index: u32,
        pfn: Pfn,
    ) -> Result<bool, NoMemory> {
        Ok(self.make_slot(epoch, pin, index)?.put(pfn))
    }

    /// Empties the slot if it holds `pfn`.
    pub(super) fn remove(&self, pin: &CpuPin, index: u32, pfn: Pfn) -> bool {
        self.slot(pin, index).is_some_and(|slot| slot.take(pfn))
    }

    /// Unlinks the nodes on the way to `index` that have become empty.
    #[cold]
    pub(super) fn prune(&self, epoch: &Epoch, pin: &CpuPin, index: u32) {
        if index >= INLINE as u32 {
            let at = At { pin, index };
            on_root!(self.roots, index, |root| node::prune(root, epoch, at));
        }
    }

    /// Whether no page is in `first..=last`, which are a few nodes.
    pub(super) fn are_empty(&self, pin: &CpuPin, first: u32, last: u32) -> bool {
        let mut at = u64::from(first);
        while at <= u64::from(last) {
            // None, and none to come until somebody makes it, if there is no node.
            let run = self.run(pin, at as u32).unwrap_or_default();
            let len = (u64::from(last) - at + 1) as usize;
            if run.iter().take(len).any(|slot| slot.page().is_some()) {
                return false;
            }
            at = match run.len() as u64 {
                0 => (at | (node::FAN as u64 - 1)) + 1,
                len => at + len,
            };
        }
        true
    }

    /// Counts the pages of one node from `from` on; also returns the index to continue at, if there are more.
    pub(super) fn count_some(&self, pin: &CpuPin, from: u32) -> (u64, Option<u32>) {
        let first = match self.next_step(pin, from, u32::MAX) {
            Next::Page(first, _) => first,
            Next::Unseen(next) => return (0, Some(next)),
            Next::End => return (0, None),
        };
        // No slots if the node was unlinked since.
        let run = self.run(pin, first).unwrap_or_default();
        let pages = run.iter().map(|slot| u64::from(slot.page().is_some()));
        (pages.sum(), first.checked_add(run.len() as u32))
    }

    /// The first resident index in `from..=last`, with its page; looks at a bounded number of nodes.
    pub(super) fn next_step(&self, pin: &CpuPin, from: u32, last: u32) -> Next {
        let (mut index, mut leaves) = (from, STEP);
        while index <= last {
            if index < INLINE as u32 {
                match self.get(pin, index) {
                    Some(pfn) => return Next::Page(index, pfn),
                    None => index += 1,
                }
                continue;
            }
            let at = At { pin, index };
            match on_root!(self.roots, index, |root| scan(root, at, &mut leaves)) {
                Ok((found, pfn)) if found <= last => return Next::Page(found, pfn),
                Err(next) if next <= u64::from(last) => index = next as u32,
                _ => return Next::End,
            }
            if leaves == 0 {
                return Next::Unseen(index);
            }
        }
        Next::End
    }

    /// Number of nodes of all trees.
    pub(super) fn nodes(&self, pin: &CpuPin) -> usize {
        fn below<N: Node>(root: &EpochLink<N>, pin: &CpuPin) -> usize {
            root.load(pin).map_or(0, |node| node.nodes(pin))
        }
        let first = (0..6).map(|height| 1_u32 << (DIGIT * height));
        let tree = |first| on_root!(self.roots, first, |root| below(root, pin));
        first.map(tree).sum()
    }

    /// Frees some of the nodes, when no reader is left; returns whether there are more.
    pub(super) fn free_part(&mut self) -> bool {
        let (mut leaves, roots) = (STEP, &mut self.roots);
        !(node::free(&mut roots.0, &mut leaves)
            && node::free(&mut roots.1, &mut leaves)
            && node::free(&mut roots.2, &mut leaves)
            && node::free(&mut roots.3, &mut leaves)
            && node::free(&mut roots.4, &mut leaves)
            && node::free(&mut roots.5, &mut leaves))
    }
}

#[cfg(test)]
mod tests {
    use ksync::Part;

    use super::*;

    /// An index, and the epoch in which its nodes are retired.
    struct World {
        epoch: Epoch,
        slots: Slots,
    }

    impl World {
        fn new() -> World {
            World {
                epoch: Epoch::new(1),
                slots: Slots::new(),
            }
        }

        fn put(&self, index: u32, pfn: u32) -> bool {
            self.slots
                .insert(&self.epoch, &ksync::pin(), index, Pfn(pfn))
                .unwrap()
        }

        fn take(&self, index: u32, pfn: u32) -> bool {
            self.slots.remove(&ksync::pin(), index, Pfn(pfn))
        }

        fn get(&self, index: u32) -> Option<Pfn> {
            self.slots.get(&ksync::pin(), index)
        }

        fn step(&self, from: u32, last: u32) -> Next {
            self.slots.next_step(&ksync::pin(), from, last)
        }

        fn prune(&self, index: u32) {
            self.slots.prune(&self.epoch, &ksync::pin(), index);
        }
    }

    #[test]
    fn indexes_of_every_size_are_found_in_order() {
        let world = World::new();
        let at = [
            0,
            3,
            4,
            63,
            64,
            65,
            4095,
            4096,
            4097,
            262_143,
            262_144,
            1 << 24,
            1 << 30,
            u32::MAX - 1,
            u32::MAX,
        ];
        for (n, &i) in at.iter().enumerate() {
            assert!(world.get(i).is_none());
            assert!(world.put(i, n as u32));
            assert!(!world.put(i, 77));
            assert_eq!(world.get(i), Some(Pfn(n as u32)));
        }
        let mut from = 0;
        for (n, &i) in at.iter().enumerate() {
            assert_eq!(world.step(from, u32::MAX), Next::Page(i, Pfn(n as u32)));
            from = i.wrapping_add(1);
        }
        let (mut count, mut from) = (0, Some(0));
        while let Some(at) = from {
            let (pages, next) = world.slots.count_some(&ksync::pin(), at);
            (count, from) = (count + pages, next);
        }
        assert_eq!(count, at.len() as u64);
        assert_eq!(world.step(66, 4094), Next::End);
        assert!(!world.take(64, 0));
        assert!(world.take(64, 4));
        assert_eq!(world.step(64, u32::MAX), Next::Page(65, Pfn(5)));
    }

    /// Empty nodes are walked in bounded steps, and freed in bounded steps.
    #[test]
    fn a_walk_over_empty_nodes_takes_steps() {
        let mut world = World::new();
        let (nodes, last) = (10 * STEP as u32, 0x10_0000);
        for node in 1..=nodes {
            assert!(world.put(node << DIGIT, node));
            assert!(world.take(node << DIGIT, node));
        }
        assert!(world.put(last, 1));
        let (mut at, mut steps) = (0, 1);
        let found = loop {
            match world.step(at, u32::MAX) {
                Next::Unseen(next) => {
                    assert!(
                        next > at && next - at <= (STEP as u32 + 2) << DIGIT,
                        "{at} {next}"
                    );
                    (at, steps) = (next, steps + 1);
                }
                found => break found,
            }
        };
        assert_eq!((found, steps), (Next::Page(last, Pfn(1)), 11));
        assert!(world.take(last, 1));
        let parts = 1 + std::iter::from_fn(|| world.slots.free_part().then_some(())).count();
        assert_eq!((parts, world.step(0, u32::MAX)), (11, Next::End));
    }

    /// Two indexes at distances that need nodes of each height; after both are removed, the root has no nodes.
    #[test]
    fn nodes_go_with_their_last_page() {
        for (index, other) in [
            (5, 6),
            (0x3ff, 0x3c0),
            (1 << 18, 1 << 17),
            (1 << 20, 1 << 21),
            (u32::MAX, 1 << 30),
        ] {
            let world = World::new();
            assert!(world.put(index, 1) && world.put(other, 2));
            world.prune(index);
            assert!(world.take(index, 1));
            world.prune(index);
            assert_eq!((world.get(index), world.get(other)), (None, Some(Pfn(2))));
            let shared = world.slots.run(&ksync::pin(), index).is_some();
            assert_eq!(
                shared,
                index >> DIGIT == other >> DIGIT,
                "the node of {index:#x}"
            );
            assert!(world.take(other, 2));
            world.prune(other);
            let mut slots = world.slots;
            assert!(
                on_root!(slots.roots, index, |root| root.is_empty()),
                "the tree of {index:#x}"
            );
            assert!(on_root!(slots.roots, other, |root| root.is_empty()));
            assert!(!slots.free_part());
            drop(world.epoch);
        }
    }

    #[test]
    fn what_goes_takes_no_page_and_another_comes_in_its_stead() {
        let world = World::new();
        assert!(world.put(70, 1) && world.take(70, 1));
        let pin = ksync::pin();
        let slot = world.slots.slot(&pin, 70).unwrap();
        world.prune(70);
        assert!(!slot.put(Pfn(1)), "the node has gone");
        assert_eq!(slot.page(), None);
        assert!(world.put(70, 2));
        assert_eq!(world.get(70), Some(Pfn(2)));
    }
}
