//! The tree of a map: disjoint ranges by address, persistent.
//!
//! Guarantee: a tree never changes. Each operation makes a new one that shares what it can with the old, so a reader
//! that holds a tree sees one consistent state of the whole map for as long as it likes, without a lock.
//!
//! Mechanism: a height-balanced binary tree with path copying. All changes are made of two functions, `split` and
//! `join` (Adams 1993; Blelloch, Ferizovic and Sun, "Just Join for Parallel Ordered Sets", 2016). Each node
//! knows the extent of its subtree and the largest hole inside, so that a free range is found in logarithmic time.

use rust_alloc::sync::Arc;

/// What the tree needs to know of its elements.
pub trait Extent {
    /// First address.
    fn start(&self) -> u64;
    /// First address behind.
    fn end(&self) -> u64;
    /// Lowest address that a new range must keep clear of: less than `start` where a guard gap is due.
    fn low(&self) -> u64 {
        self.start()
    }
}

type Link<E> = Option<Arc<Node<E>>>;

struct Node<E> {
    start: u64,
    end: u64,
    entry: Arc<E>,
    left: Link<E>,
    right: Link<E>,
    height: u32,
    /// Lowest guarded address of the subtree.
    low: u64,
    /// End of its last entry.
    high: u64,
    /// Largest hole between two entries of the subtree.
    gap: u64,
    count: usize,
}

/// An immutable set of disjoint ranges.
pub struct Tree<E> {
    root: Link<E>,
}

impl<E> Clone for Tree<E> {
    fn clone(&self) -> Self {
        Tree {
            root: self.root.clone(),
        }
    }
}

impl<E: Extent> Tree<E> {
    /// The empty tree.
    pub const fn new() -> Tree<E> {
        Tree { root: None }
    }

    /// A tree of entries in ascending order.
    pub fn from_sorted(entries: &[Arc<E>]) -> Tree<E> {
        Tree {
            root: build(entries),
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.root.as_ref().map_or(0, |n| n.count)
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.root.is_none()
    }

    /// The entry that covers `at`.
    #[inline]
    pub fn find(&self, at: u64) -> Option<&Arc<E>> {
        let mut link = &self.root;
        while let Some(node) = link {
            if at < node.start {
                link = &node.left;
            } else if at >= node.end {
                link = &node.right;
            } else {
                return Some(&node.entry);
            }
        }
        None
    }

    /// The first entry that ends above `at`.
    pub fn first_ending_above(&self, at: u64) -> Option<&Arc<E>> {
        let (mut link, mut best) = (&self.root, None);
        while let Some(node) = link {
            if node.end > at {
                best = Some(&node.entry);
                link = &node.left;
            } else {
                link = &node.right;
            }
        }
        best
    }

    /// The last entry that begins below `at`.
    pub fn last_starting_below(&self, at: u64) -> Option<&Arc<E>> {
        let (mut link, mut best) = (&self.root, None);
        while let Some(node) = link {
            if node.start < at {
                best = Some(&node.entry);
                link = &node.right;
            } else {
                link = &node.left;
            }
        }
        best
    }

    /// Calls `f` for each entry, in order.
    pub fn for_each<'a>(&'a self, f: &mut dyn FnMut(&'a Arc<E>)) {
        visit_all(&self.root, f);
    }

    /// Calls `f` for each entry that overlaps `start..end`, in order, until it returns false.
    pub fn for_overlapping<'a>(
        &'a self,
        start: u64,
        end: u64,
        f: &mut dyn FnMut(&'a Arc<E>) -> bool,
    ) {
        visit(&self.root, start, end, f);
    }

    /// Without the entries that begin in `start..end`, and with `new` (ascending, disjoint from the rest).
    #[must_use]
    pub fn replace(&self, start: u64, end: u64, new: &[Arc<E>]) -> Tree<E> {
        let (left, rest) = split(&self.root, start);
        let (_, right) = split(&rest, end);
        let root = match new {
            [] => concat(left, right),
            [one] => join(left, one.clone(), right),
            [first, more @ ..] => concat(join(left, first.clone(), build(more)), right),
        };
        Tree { root }
    }

    /// With an entry more, which overlaps none. Copies one path.
    #[must_use]
    pub fn insert(&self, entry: &Arc<E>) -> Tree<E> {
        Tree {
            root: insert(&self.root, entry),
        }
    }

    /// Without the entry that begins at `start`. Copies one path.
    #[must_use]
    pub fn remove(&self, start: u64) -> Tree<E> {
        Tree {
            root: remove(&self.root, start),
        }
    }

    /// The highest `at` such that `at..at + len` is free, lies in `low..high`, and `at % align == phase`.
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
        search(&self.root, low, high, &Wanted { len, align, phase })
    }
}

impl<E: Extent> Default for Tree<E> {
    fn default() -> Self {
        Tree::new()
    }
}

fn height<E>(link: &Link<E>) -> u32 {
    link.as_ref().map_or(0, |n| n.height)
}

fn node<E: Extent>(left: Link<E>, entry: Arc<E>, right: Link<E>) -> Arc<Node<E>> {
    let (start, end) = (entry.start(), entry.end());
    let (mut low, mut high, mut gap, mut count) = (entry.low(), end, 0, 1);
    let mut tallest = 0;
    if let Some(l) = &left {
        gap = l.gap.max(low.saturating_sub(l.high));
        low = l.low;
        count += l.count;
        tallest = l.height;
    }
    if let Some(r) = &right {
        gap = gap.max(r.gap).max(r.low.saturating_sub(high));
        high = r.high;
        count += r.count;
        tallest = tallest.max(r.height);
    }
    Arc::new(Node {
        start,
        end,
        entry,
        left,
        right,
        height: tallest + 1,
        low,
        high,
        gap,
        count,
    })
}

/// Makes a node of subtrees whose heights differ by up to three, and restores balance (difference at most two).
fn balance<E: Extent>(left: Link<E>, entry: Arc<E>, right: Link<E>) -> Link<E> {
    let (hl, hr) = (height(&left), height(&right));
    match (&left, &right) {
        (Some(l), _) if hl > hr + 2 => {
            if let (Some(lr), true) = (&l.right, height(&l.left) < height(&l.right)) {
                let a = node(l.left.clone(), l.entry.clone(), lr.left.clone());
                let b = node(lr.right.clone(), entry, right);
                return Some(node(Some(a), lr.entry.clone(), Some(b)));
            }
            let b = node(l.right.clone(), entry, right);
            Some(node(l.left.clone(), l.entry.clone(), Some(b)))
        }
        (_, Some(r)) if hr > hl + 2 => {
            if let (Some(rl), true) = (&r.left, height(&r.right) < height(&r.left)) {
                let a = node(left, entry, rl.left.clone());
                let b = node(rl.right.clone(), r.entry.clone(), r.right.clone());
                return Some(node(Some(a), rl.entry.clone(), Some(b)));
            }
            let a = node(left, entry, r.left.clone());
            Some(node(Some(a), r.entry.clone(), r.right.clone()))
        }
        _ => Some(node(left, entry, right)),
    }
}

/// One tree of everything left, one entry, everything right.
fn join<E: Extent>(left: Link<E>, entry: Arc<E>, right: Link<E>) -> Link<E> {
    let (hl, hr) = (height(&left), height(&right));
    match (&left, &right) {
        (Some(l), _) if hl > hr + 2 => balance(
            l.left.clone(),
            l.entry.clone(),
            join(l.right.clone(), entry, right),
        ),
        (_, Some(r)) if hr > hl + 2 => balance(
            join(left, entry, r.left.clone()),
            r.entry.clone(),
            r.right.clone(),
        ),
        _ => Some(node(left, entry, right)),
    }
}

/// One tree of two, all of `left` before all of `right`.
fn concat<E: Extent>(left: Link<E>, right: Link<E>) -> Link<E> {
    let Some(r) = &right else { return left };
    if left.is_none() {
        return right;
    }
    let (first, rest) = take_first(r);
    join(left, first, rest)
}

fn take_first<E: Extent>(n: &Arc<Node<E>>) -> (Arc<E>, Link<E>) {
    match &n.left {
        None => (n.entry.clone(), n.right.clone()),
        Some(l) => {
            let (first, rest) = take_first(l);
            (first, balance(rest, n.entry.clone(), n.right.clone()))
        }
    }
}

fn insert<E: Extent>(link: &Link<E>, entry: &Arc<E>) -> Link<E> {
    let Some(n) = link else {
        return Some(node(None, entry.clone(), None));
    };
    if entry.start() < n.start {
        balance(insert(&n.left, entry), n.entry.clone(), n.right.clone())
    } else {
        balance(n.left.clone(), n.entry.clone(), insert(&n.right, entry))
    }
}

fn remove<E: Extent>(link: &Link<E>, start: u64) -> Link<E> {
    let n = link.as_ref()?;
    if start < n.start {
        balance(remove(&n.left, start), n.entry.clone(), n.right.clone())
    } else if start > n.start {
        balance(n.left.clone(), n.entry.clone(), remove(&n.right, start))
    } else {
        concat(n.left.clone(), n.right.clone())
    }
}

/// The entries that begin below `at`, and the others.
fn split<E: Extent>(link: &Link<E>, at: u64) -> (Link<E>, Link<E>) {
    let Some(n) = link else { return (None, None) };
    if n.low_start() >= at {
        return (None, link.clone());
    }
    if n.high <= at {
        return (link.clone(), None);
    }
    if at <= n.start {
        let (a, b) = split(&n.left, at);
        (a, join(b, n.entry.clone(), n.right.clone()))
    } else {
        let (a, b) = split(&n.right, at);
        (join(n.left.clone(), n.entry.clone(), a), b)
    }
}

impl<E> Node<E> {
    /// A lower bound for the first start in the subtree.
    fn low_start(&self) -> u64 {
        self.low
    }
}

fn build<E: Extent>(entries: &[Arc<E>]) -> Link<E> {
    if entries.is_empty() {
        return None;
    }
    let middle = entries.len() / 2;
    Some(node(
        build(&entries[..middle]),
        entries[middle].clone(),
        build(&entries[middle + 1..]),
    ))
}

fn visit_all<'a, E>(link: &'a Link<E>, f: &mut dyn FnMut(&'a Arc<E>)) {
    let mut link = link;
    while let Some(node) = link {
        if node.left.is_some() {
            visit_all(&node.left, f);
        }
        f(&node.entry);
        link = &node.right;
    }
}

fn visit<'a, E>(
    link: &'a Link<E>,
    start: u64,
    end: u64,
    f: &mut dyn FnMut(&'a Arc<E>) -> bool,
) -> bool {
    let Some(n) = link else { return true };
    if n.high <= start {
        return true;
    }
    (n.start <= start || visit(&n.left, start, end, f))
        && (n.end <= start || n.start >= end || f(&n.entry))
        && (n.end >= end || visit(&n.right, start, end, f))
}

struct Wanted {
    len: u64,
    align: u64,
    phase: u64,
}

impl Wanted {
    /// The highest fitting place in a free range.
    fn fit(&self, low: u64, high: u64) -> Option<u64> {
        let at = high.checked_sub(self.len)?;
        let at = at.checked_sub(at.wrapping_sub(self.phase) & (self.align - 1))?;
        (at >= low).then_some(at)
    }
}

/// Searches the holes of `low..high`, in which `link` holds all entries, from the top.
fn search<E: Extent>(link: &Link<E>, low: u64, high: u64, wanted: &Wanted) -> Option<u64> {
    let Some(n) = link else {
        return wanted.fit(low, high);
    };
    let largest = n
        .gap
        .max(high.saturating_sub(n.high))
        .max(n.low.saturating_sub(low));
    if largest < wanted.len {
        return None;
    }
    search(&n.right, low.max(n.end), high, wanted)
        .or_else(|| search(&n.left, low, high.min(n.entry.low()), wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_alloc::vec::Vec;

    struct R(u64, u64);
    impl Extent for R {
        fn start(&self) -> u64 {
            self.0
        }
        fn end(&self) -> u64 {
            self.1
        }
    }

    fn check(link: &Link<R>) -> u32 {
        let Some(n) = link else { return 0 };
        let (l, r) = (check(&n.left), check(&n.right));
        assert!(l.abs_diff(r) <= 2, "heights {l} and {r}");
        assert_eq!(n.height, l.max(r) + 1);
        n.height
    }

    fn list(t: &Tree<R>) -> Vec<(u64, u64)> {
        let mut v = Vec::new();
        t.for_overlapping(0, u64::MAX, &mut |e| {
            v.push((e.0, e.1));
            true
        });
        v
    }

    #[test]
    fn random_replacements_match_a_sorted_list() {
        let (mut tree, mut model) = (Tree::new(), Vec::<(u64, u64)>::new());
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..4000 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let start = seed % 500;
            let end = start + 1 + (seed >> 20) % 20;
            // Only whole entries are replaced, as the map does it.
            let covered: Vec<_> = model
                .iter()
                .copied()
                .filter(|e| e.0 < end && e.1 > start)
                .collect();
            let (lo, hi) = covered
                .iter()
                .fold((start, end), |(l, h), e| (l.min(e.0), h.max(e.1)));
            model.retain(|e| !(e.0 < hi && e.1 > lo));
            let new: Vec<_> = if seed & 64 == 0 {
                Vec::new()
            } else {
                rust_alloc::vec![(lo, (lo + hi).div_ceil(2)), ((lo + hi).div_ceil(2), hi)]
            };
            let mut new: Vec<_> = new.into_iter().filter(|e| e.0 < e.1).collect();
            if seed & 128 == 0 {
                // One entry only: the path that most changes take.
                new.truncate(1);
            }
            let arcs: Vec<_> = new.iter().map(|e| Arc::new(R(e.0, e.1))).collect();
            tree = match (&covered[..], &arcs[..]) {
                ([], [one]) => tree.insert(one),
                ([one], []) => tree.remove(one.0),
                _ => tree.replace(lo, hi, &arcs),
            };
            model.extend(&new);
            model.sort_unstable();
            check(&tree.root);
            assert_eq!(list(&tree), model);
            let at = (seed >> 30) % 520;
            assert_eq!(
                tree.find(at).map(|e| e.0),
                model.iter().find(|e| e.0 <= at && at < e.1).map(|e| e.0)
            );
            assert_eq!(
                tree.first_ending_above(at).map(|e| e.0),
                model.iter().find(|e| e.1 > at).map(|e| e.0)
            );
            let len = 1 + (seed >> 40) % 12;
            let slow = (0..=520 - len)
                .rev()
                .find(|&a| model.iter().all(|e| e.1 <= a || e.0 >= a + len));
            assert_eq!(tree.highest_hole(0, 520, len, 1, 0), slow);
            let slow = (0..=520 - len)
                .rev()
                .find(|&a| a % 8 == 3 && model.iter().all(|e| e.1 <= a || e.0 >= a + len));
            assert_eq!(tree.highest_hole(0, 520, len, 8, 3), slow);
        }
    }

    #[test]
    fn an_old_tree_stays_as_it_was() {
        let old = Tree::new().replace(0, 0, &[Arc::new(R(10, 20)), Arc::new(R(30, 40))]);
        let new = old.replace(10, 20, &[]);
        assert_eq!(list(&old), [(10, 20), (30, 40)]);
        assert_eq!(list(&new), [(30, 40)]);
    }
}
