//! Finding a free range.
//!
//! Each child has a bound: at least the size of the largest hole behind one of its entries, up to the next entry, in
//! whichever node that is; guard gaps are not subtracted. A search from the top skips children whose bound is too
//! small, and lowers the bound of a child that it searched in vain. In a tree of many entries it drops its pin now and
//! then: the map's lock keeps the tree as it is.

use ksync::CpuPin;
use ksync::atomic::Ordering::Relaxed;

use super::Extent;
use super::node::Node;
use super::position::{GUARDED, Position, first};
use super::tree::{Branch, Tree};

/// A subtree of at most this many levels is searched under one pin: up to 2,744 entries, and fewer for tests.
const SECTION: usize = if cfg!(test) { 2 } else { 3 };

/// A search in progress.
struct Search {
    /// Lowest address of the range searched.
    low: u64,
    /// First address above the range searched.
    high: u64,
    /// Where the guard gap of the entry looked at last begins, or `high`.
    upper: u64,
    /// Where that entry itself begins.
    next: Option<u64>,
    len: u64,
    align: u64,
    phase: u64,
}

impl<E: Extent + Send + Sync + 'static> Tree<E> {
    /// The highest `at` such that `at..at + len` is free, guard gaps respected, lies in `low..high`, and
    /// `at % align == phase`. The lock is held.
    ///
    /// `align` is a power of two.
    pub fn highest_hole(
        &self,
        low: u64,
        high: u64,
        len: u64,
        align: u64,
        phase: u64,
    ) -> Option<u64> {
        let pin = ksync::pin();
        let root = self.root.load(&pin);
        let levels = self.height.load(Relaxed);
        let next = match root {
            Some(Branch::Inner(_)) => high
                .checked_sub(1)
                .and_then(|last| self.lookup(&pin, last)?.above(&pin)),
            _ => None,
        };
        let mut search = Search {
            low,
            high,
            upper: next.map_or(high, |next| next.low(&pin).min(high)),
            next: None,
            len,
            align,
            phase,
        };
        let found = match root {
            // Most trees are one leaf.
            Some(Branch::Leaf(leaf)) => search.leaf(&pin, leaf, &mut 0),
            Some(Branch::Inner(node)) if levels <= SECTION => search.inner(&pin, node, &mut 0),
            Some(Branch::Inner(_)) => {
                let root = self.root.get(&pin)?;
                drop(pin);
                search.high(&root, levels, &mut 0)
            }
            None => None,
        };
        found.or_else(|| search.fit(low, search.upper))
    }
}

impl Search {
    /// The highest fitting address in `low..upper`.
    #[inline(always)]
    fn fit(&self, low: u64, upper: u64) -> Option<u64> {
        // Most holes are too small.
        let at = upper.checked_sub(self.len).filter(|&at| at >= low)?;
        let at = at.checked_sub(at.wrapping_sub(self.phase) & (self.align - 1))?;
        (at >= low.max(self.low)).then_some(at)
    }

    /// Number of ranks of a node that begin below the limit.
    fn ranks<T: Send + Sync + 'static>(&self, node: &Node<T>) -> usize {
        match self.next {
            Some(_) => node.len(),
            None => node.count(self.high.saturating_sub(1)),
        }
    }

    /// Continues below an entry.
    fn pass<E: Extent + Send + Sync + 'static>(
        &mut self,
        pin: &CpuPin,
        position: &Position<'_, E>,
    ) {
        self.upper = position.low(pin).min(self.high);
        self.next = Some(position.start());
    }

    /// Searches the holes behind the entries of a leaf; raises `most` to a bound on the largest one.
    #[inline(always)]
    fn leaf<E: Extent + Send + Sync + 'static>(
        &mut self,
        pin: &CpuPin,
        leaf: &Node<E>,
        most: &mut u64,
    ) -> Option<u64> {
        let ranks = self.ranks(leaf);
        if self.next.is_none() && ranks < leaf.len() {
            let above = Position { leaf, rank: ranks };
            self.upper = above.low(pin).min(self.high);
        }
        // Kept in registers: most holes do not fit.
        let (mut upper, mut next, mut hole) = (self.upper, self.next, *most);
        for (rank, start, more) in leaf.down_from(ranks) {
            let end = more & !GUARDED;
            if let Some(at) = self.fit(end, upper) {
                return Some(at);
            }
            hole = hole.max(next.map_or(u64::MAX, |next| next - end));
            next = Some(start);
            upper = if more == end {
                start.min(self.high)
            } else {
                let position = Position { leaf, rank };
                position.low(pin).min(self.high)
            };
            if upper <= self.low {
                break;
            }
        }
        (self.upper, self.next, *most) = (upper, next, hole);
        None
    }

    /// As [`leaf`](Search::leaf), for a node that has children.
    fn inner<E: Extent + Send + Sync + 'static>(
        &mut self,
        pin: &CpuPin,
        node: &Node<Branch<E>>,
        most: &mut u64,
    ) -> Option<u64> {
        self.children(node, most, |search, rank, seen| {
            search.branch(pin, node.load(pin, rank)?, seen)
        })
    }

    fn branch<E: Extent + Send + Sync + 'static>(
        &mut self,
        pin: &CpuPin,
        branch: &Branch<E>,
        most: &mut u64,
    ) -> Option<u64> {
        match branch {
            Branch::Leaf(leaf) => self.leaf(pin, leaf, most),
            Branch::Inner(node) => self.inner(pin, node, most),
        }
    }

    /// As [`inner`](Search::inner), for a branch of more levels than one pin may be held for. No pin is held.
    fn high<E: Extent + Send + Sync + 'static>(
        &mut self,
        branch: &Branch<E>,
        levels: usize,
        most: &mut u64,
    ) -> Option<u64> {
        let Branch::Inner(node) = branch else {
            return None;
        };
        self.children(node, most, |search, rank, seen| {
            let pin = ksync::pin();
            if levels - 1 <= SECTION {
                return search.branch(&pin, node.load(&pin, rank)?, seen);
            }
            let child = node.get(&pin, rank)?;
            drop(pin);
            search.high(&child, levels - 1, seen)
        })
    }

    /// Searches the children of a node by `child`, which is given a rank and a bound to raise.
    #[inline(always)]
    fn children<E: Extent + Send + Sync + 'static>(
        &mut self,
        node: &Node<Branch<E>>,
        most: &mut u64,
        child: impl Fn(&mut Search, usize, &mut u64) -> Option<u64>,
    ) -> Option<u64> {
        // A child that was skipped by its bound: its first entry is the next limit.
        let mut skipped = None;
        for rank in (0..self.ranks(node)).rev() {
            let bound = node.more(rank);
            if bound < self.len {
                *most = (*most).max(bound);
                skipped = Some(rank);
                continue;
            }
            self.skip(node, skipped.take());
            let (all, mut seen) = (self.next.is_some(), 0);
            let found = child(self, rank, &mut seen);
            if found.is_some() || self.upper <= self.low {
                return found;
            }
            // Else the search began inside the child, and has not seen its upper holes.
            if all {
                node.set_more(rank, seen);
            }
            *most = (*most).max(node.more(rank));
        }
        self.skip(node, skipped);
        None
    }

    /// Continues below a child that was skipped.
    fn skip<E: Extent + Send + Sync + 'static>(
        &mut self,
        node: &Node<Branch<E>>,
        skipped: Option<usize>,
    ) {
        let Some(rank) = skipped else { return };
        let pin = ksync::pin();
        if let Some(first) = node.load(&pin, rank).and_then(|child| first(child, &pin)) {
            self.pass(&pin, &first);
        }
    }
}
