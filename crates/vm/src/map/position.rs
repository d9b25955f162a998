//! Positions in the tree: where an address is, and the adjacent entries.

use ksync::CpuPin;
use rust_alloc::sync::Arc;

use super::Extent;
use super::node::Node;
use super::tree::{Branch, Tree};

/// In a leaf's `more`, beside the entry's end: the entry's `low` is below its start.
pub(super) const GUARDED: u64 = 1;

/// A child with a rank in its parent.
pub(super) type ChildRef<'p, E> = (&'p Node<Branch<E>>, usize);

/// The result of a search for an address.
pub(super) struct Lookup<'p, E> {
    /// The leaf that would contain the address's entry.
    pub leaf: &'p Node<E>,
    /// Number of entries of the leaf that begin at or below the address.
    pub count: usize,
    /// The next subtree above the leaf.
    pub subtree_above: Option<ChildRef<'p, E>>,
    /// The next subtree below the leaf.
    pub subtree_below: Option<ChildRef<'p, E>>,
}

/// An entry's position: its leaf and rank.
pub(super) struct Position<'p, E> {
    pub leaf: &'p Node<E>,
    pub rank: usize,
}

impl<E: Extent + Send + Sync + 'static> Tree<E> {
    /// The position of the first entry that ends above `at`; `None` if there is none. Only a hint without the lock.
    pub(super) fn position_above<'p>(
        &'p self,
        pin: &'p CpuPin,
        at: u64,
    ) -> Option<Position<'p, E>> {
        let found = self.lookup(pin, at)?;
        found
            .at_or_below(pin)
            .filter(|position| at < position.end())
            .or_else(|| found.above(pin))
    }

    /// The first entry that ends above `at` and that `wanted`, called with each in turn, accepts; `Ok(None)` if the tree has
    /// no further entry. The map's lock is held. Takes a reference on no entry but the one that it returns, so the others'
    /// cache lines are not written. Each entry is looked at under its own pin.
    ///
    /// # Errors
    /// `most` entries were looked at in vain: the end of the last one, to continue from.
    pub fn first_wanted(
        &self,
        mut at: u64,
        most: usize,
        mut wanted: impl FnMut(&CpuPin, &E) -> bool,
    ) -> Result<Option<Arc<E>>, u64> {
        for _ in 0..most {
            let pin = ksync::pin();
            let position = self.position_above(&pin, at);
            let found = position.and_then(|p| Some((p.leaf.load(&pin, p.rank)?, p)));
            let Some((entry, position)) = found else {
                return Ok(None);
            };
            if wanted(&pin, entry) {
                return Ok(position.entry(&pin));
            }
            at = position.end();
        }
        Err(at)
    }
}

impl<'p, E: Extent + Send + Sync + 'static> Lookup<'p, E> {
    /// The last entry that begins at or below the address.
    pub fn at_or_below(&self, pin: &'p CpuPin) -> Option<Position<'p, E>> {
        if let Some(rank) = self.count.checked_sub(1) {
            return Some(Position {
                leaf: self.leaf,
                rank,
            });
        }
        let (node, rank) = self.subtree_below?;
        let mut branch = node.load(pin, rank)?;
        loop {
            match branch {
                Branch::Inner(node) => branch = node.load(pin, node.len().checked_sub(1)?)?,
                Branch::Leaf(leaf) => {
                    let rank = leaf.len().checked_sub(1)?;
                    return Some(Position { leaf, rank });
                }
            }
        }
    }

    /// The first entry that begins above the address.
    pub fn above(&self, pin: &'p CpuPin) -> Option<Position<'p, E>> {
        if self.count < self.leaf.len() {
            return Some(Position {
                leaf: self.leaf,
                rank: self.count,
            });
        }
        let (node, rank) = self.subtree_above?;
        first(node.load(pin, rank)?, pin)
    }
}

/// The first entry of a branch.
pub(super) fn first<'p, E: Extent + Send + Sync + 'static>(
    mut branch: &'p Branch<E>,
    pin: &'p CpuPin,
) -> Option<Position<'p, E>> {
    loop {
        match branch {
            Branch::Inner(node) => branch = node.load(pin, 0)?,
            Branch::Leaf(leaf) => return (leaf.len() > 0).then_some(Position { leaf, rank: 0 }),
        }
    }
}

impl<'p, E: Extent + Send + Sync + 'static> Position<'p, E> {
    pub fn start(&self) -> u64 {
        self.leaf.key(self.rank)
    }

    pub fn end(&self) -> u64 {
        self.leaf.more(self.rank) & !GUARDED
    }

    /// The lowest address of the entry and its guard gap.
    pub fn low(&self, pin: &CpuPin) -> u64 {
        let start = self.start();
        if self.leaf.more(self.rank) & GUARDED == 0 {
            return start;
        }
        self.leaf.load(pin, self.rank).map_or(start, Extent::low)
    }

    pub fn entry(&self, pin: &CpuPin) -> Option<Arc<E>> {
        self.leaf.get(pin, self.rank)
    }
}
