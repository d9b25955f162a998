//! The tree against a sorted list, and readers beside a writer.

use super::Extent;
use super::tree::{Branch, Tree};
use ksync::atomic::Ordering::Relaxed;
use ksync::{CpuPin, Epoch};
use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;

/// A range of even numbers, with a gap below it where its start is a multiple of 14.
struct R(u64, u64);

impl Extent for R {
    fn start(&self) -> u64 {
        self.0
    }
    fn end(&self) -> u64 {
        self.1
    }
    fn low(&self) -> u64 {
        low(self.0)
    }
}

fn low(start: u64) -> u64 {
    if start.is_multiple_of(14) {
        start.saturating_sub(6)
    } else {
        start
    }
}

/// Rounds of a test, fewer under an interpreter.
const fn rounds(n: usize) -> usize {
    if cfg!(miri) { n / 50 } else { n }
}

/// Entries of the largest tree.
const MOST: u64 = if cfg!(miri) { 100 } else { 2000 };

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// Checks a branch's invariants: all within `low..high`, no separator inside an entry, no empty node below the root, no
/// hole of `all` that is larger than its bound. Returns the levels.
fn check(branch: &Branch<R>, pin: &CpuPin, all: &[(u64, u64)], (low, high): (u64, u64)) -> usize {
    match branch {
        Branch::Leaf(leaf) => {
            let mut at = low;
            for rank in 0..leaf.len() {
                let entry = leaf.load(pin, rank).unwrap();
                assert_eq!(leaf.key(rank), entry.0);
                assert!(at <= entry.0 && entry.1 <= high, "out of bounds or order");
                at = entry.1;
            }
            1
        }
        Branch::Inner(node) => {
            assert_eq!(node.key(0), 0);
            let mut height = 0;
            for rank in 0..node.len() {
                let from = if rank == 0 { low } else { node.key(rank) };
                let to = if rank + 1 < node.len() {
                    node.key(rank + 1)
                } else {
                    high
                };
                assert!(low <= from && from <= to && to <= high);
                let child = node.load(pin, rank).unwrap();
                let empty = match child {
                    Branch::Leaf(leaf) => leaf.len() == 0,
                    Branch::Inner(node) => node.len() == 0,
                };
                assert!(!empty, "an empty node was left");
                height = height.max(check(child, pin, all, (from, to)));
                let inside = |pair: &&[(u64, u64)]| from <= pair[0].0 && pair[0].0 < to;
                for pair in all.windows(2).filter(inside) {
                    let hole = pair[1].0 - pair[0].1;
                    assert!(node.more(rank) >= hole, "hole behind {:?}", pair[0]);
                }
            }
            height + 1
        }
    }
}

fn height(tree: &Tree<R>) -> usize {
    let (pin, all) = (ksync::pin(), list(tree));
    let root = tree.root.load(&pin);
    let height = root.map_or(0, |root| check(root, &pin, &all, (0, u64::MAX)));
    assert!(all.is_empty() || tree.height.load(Relaxed) == height);
    height
}

fn list(tree: &Tree<R>) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    tree.for_each(&mut |e| all.push((e.0, e.1)));
    all
}

/// The highest hole, by exhaustive search.
fn slow_hole(model: &[(u64, u64)], (from, to): (u64, u64), len: u64, align: u64) -> Option<u64> {
    (from..=to.checked_sub(len)?)
        .rev()
        .filter(|at| at % align == 2 % align)
        .find(|&at| {
            // Of the entries above, the next one's gap counts.
            let next = model.iter().find(|e| e.1 > at);
            next.is_none_or(|e| low(e.0) >= at + len)
        })
}

fn compare(tree: &Tree<R>, model: &[(u64, u64)], top: u64, random: &mut Random) {
    let pin = ksync::pin();
    assert_eq!(tree.len(), model.len());
    let at = random.below(top + 10);
    let covers = model.iter().find(|e| e.0 <= at && at < e.1).map(|e| e.0);
    assert_eq!(tree.get(at).map(|e| e.0), covers);
    assert_eq!(tree.find(&pin, at).map(|e| e.0), covers);
    assert_eq!(
        tree.first_ending_above(at).map(|e| e.0),
        model.iter().find(|e| e.1 > at).map(|e| e.0)
    );
    assert_eq!(
        tree.last_starting_below(at).map(|e| e.0),
        model.iter().rfind(|e| e.0 < at).map(|e| e.0)
    );
    let end = at + random.below(40);
    let (mut some, mut stop) = (Vec::new(), random.below(6));
    tree.for_overlapping(at, end, &mut |e| {
        some.push((e.0, e.1));
        stop = stop.saturating_sub(1);
        stop > 0
    });
    let all = model.iter().copied().filter(|e| e.0 < end && e.1 > at);
    let all: Vec<_> = all.collect();
    assert!(some == all || some.len() < all.len() && some == all[..some.len()]);
    for align in [1, 8] {
        let (len, high) = (1 + random.below(14), top - random.below(top / 4));
        let low = random.below(top / 4);
        assert_eq!(
            tree.highest_hole(low, high, len, align, 2 % align),
            slow_hole(model, (low, high), len, align),
            "hole of {len} in {low}..{high}, aligned to {align}"
        );
    }
}

/// Replaces `old` by `new`, as a map does it.
fn change(tree: &Tree<R>, epoch: &Epoch, old: &[(u64, u64)], new: &[(u64, u64)]) {
    let has = |list: &[(u64, u64)], start| list.iter().any(|e| e.0 == start);
    for e in old.iter().filter(|e| !has(new, e.0)) {
        tree.remove(epoch, e.0);
    }
    for &(start, end) in new {
        if has(old, start) {
            tree.replace(epoch, Arc::new(R(start, end)));
        } else {
            tree.insert(epoch, Arc::new(R(start, end)));
        }
    }
}

/// Changes a tree and a list alike: entries in a random range are removed, replaced, split or merged.
fn step(tree: &Tree<R>, epoch: &Epoch, model: &mut Vec<(u64, u64)>, top: u64, random: &mut Random) {
    let start = 2 * random.below(top / 2);
    let end = start + 2 + 2 * random.below(4);
    let touched = |e: &(u64, u64)| e.0 < end && e.1 > start;
    let old: Vec<_> = model.iter().copied().filter(touched).collect();
    let from = old.first().map_or(start, |e| e.0.min(start));
    let to = old.last().map_or(end, |e| e.1.max(end));
    let middle = from + 2 + 2 * random.below((to - from) / 2);
    let mut new = [(from, middle.min(to)), (middle, to)].to_vec();
    new.retain(|e| e.0 < e.1 && random.below(8) > 0);
    if !old.is_empty() && random.below(2) == 0 {
        new.clear();
    }
    change(tree, epoch, &old, &new);
    model.retain(|e| !touched(e));
    model.extend(&new);
    model.sort_unstable();
}

fn play(epoch: &Epoch, tree: &Tree<R>, (steps, top, seed): (usize, u64, u64)) {
    let (mut model, mut random) = (Vec::new(), Random(seed));
    for n in 0..steps {
        step(tree, epoch, &mut model, top, &mut random);
        compare(tree, &model, top, &mut random);
        height(tree);
        if n % 16 == 0 {
            assert_eq!(list(tree), model);
            epoch.quiescent(&mut ksync::pin());
            epoch.reclaim(&ksync::pin());
        }
    }
    assert_eq!(list(tree), model);
}

#[test]
fn random_changes_match_a_sorted_list() {
    let epoch = Epoch::new(1);
    let sizes = [(3000, 60), (6000, 900), (4000, 4000)];
    for (steps, top) in sizes.into_iter().filter(|&(_, top)| top <= 10 * MOST) {
        let tree = Tree::new();
        play(
            &epoch,
            &tree,
            (rounds(steps), top, 0x9e37_79b9_7f4a_7c15 ^ top),
        );
        assert!(height(&tree) <= 4);
    }
    epoch.drain();
}

#[test]
fn packed_trees_take_changes() {
    let epoch = Epoch::new(1);
    let counts = [1, 12, 13, 14, 15, 100, 144, 145, 400, 2000];
    for count in counts.into_iter().filter(|&n| n <= MOST) {
        let model: Vec<_> = (0..count).map(|n| (n * 10, n * 10 + 4)).collect();
        let entries: Vec<_> = model.iter().map(|e| Arc::new(R(e.0, e.1))).collect();
        let tree = Tree::new();
        tree.fill(&epoch, &entries);
        height(&tree);
        assert_eq!(list(&tree), model);
        let mut random = Random(count);
        compare(&tree, &model, count * 10 + 10, &mut random);
        // One more entry in each hole; then all are removed, from the middle outwards.
        for n in 0..count {
            tree.insert(&epoch, Arc::new(R(n * 10 + 4, n * 10 + 10)));
        }
        height(&tree);
        assert_eq!(tree.len() as u64, 2 * count);
        for n in (count / 2..count).chain(0..count / 2) {
            tree.remove(&epoch, n * 10);
            tree.remove(&epoch, n * 10 + 4);
        }
        assert!(tree.is_empty() && height(&tree) <= 1);
    }
    epoch.drain();
}

#[test]
fn a_fill_that_is_stopped_leaves_nothing() {
    let epoch = Epoch::new(1);
    let entries: Vec<_> = (0..MOST).map(|n| Arc::new(R(n * 10, n * 10 + 4))).collect();
    let tree = Tree::new();
    let mut nodes = 0;
    assert!(tree.fill_while(&epoch, &entries, &mut || {
        nodes += 1;
        true
    }));
    tree.take(&epoch).end(&epoch, &mut || {});
    for most in 0..nodes {
        let mut left = most;
        let filled = tree.fill_while(&epoch, &entries, &mut || {
            left -= 1;
            left >= 0
        });
        assert!(!filled && tree.is_empty() && height(&tree) == 0);
    }
    epoch.drain();
    assert!(entries.iter().all(|entry| Arc::strong_count(entry) == 1));
}

#[test]
fn a_tree_that_is_too_high_is_built_anew() {
    let epoch = Epoch::new(1);
    let (tree, mut kept) = (Tree::new(), Vec::new());
    // One leaf after the other is filled and then almost emptied.
    for block in 0..MOST * 3 / 10 {
        for n in 0..7 {
            let at = 2 * (block * 7 + n);
            tree.insert_below(&epoch, Arc::new(R(at, at + 2)), 3);
            assert!(height(&tree) <= 3, "too high");
        }
        for n in 1..7 {
            tree.remove(&epoch, 2 * (block * 7 + n));
        }
        kept.push((14 * block, 14 * block + 2));
    }
    assert_eq!(list(&tree), kept);
    epoch.drain();
}

#[test]
fn what_was_taken_out_is_in_the_result() {
    let (epoch, tree) = (Epoch::new(1), Tree::new());
    for n in 0..50 {
        tree.insert(&epoch, Arc::new(R(n * 4, n * 4 + 2)));
    }
    let all = list(&tree);
    let old = tree.take(&epoch);
    assert!(tree.is_empty() && list(&tree).is_empty());
    assert_eq!(list(&old), all);
    epoch.drain();
    assert_eq!(list(&old), all, "the result holds on to them");
}

/// A reader never gets an entry that does not cover the address, nor one that was removed before it looked.
#[test]
fn readers_beside_a_writer() {
    use ksync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    let (epoch, tree) = (Epoch::new(2), Tree::new());
    // The even hundreds stay; the others are inserted and removed.
    for n in 0..6 {
        tree.insert(&epoch, Arc::new(R(200 * n, 200 * n + 100)));
    }
    let (stop, gone) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ksync::host::set_cpu(1);
            let (mut random, mut hits) = (Random(77), 0);
            while !stop.load(SeqCst) || hits == 0 {
                let at = random.below(1200);
                let before = gone.load(SeqCst);
                {
                    let pin = ksync::pin();
                    if let Some(entry) = tree.find(&pin, at) {
                        hits += 1;
                        assert!(entry.0 <= at && at < entry.1);
                        let still = gone.load(SeqCst) == before;
                        assert!(!still || entry.0 != before, "{before} was gone");
                    }
                }
                epoch.quiescent(&mut ksync::pin());
            }
            epoch.offline(1);
        });
        let mut random = Random(5);
        for _ in 0..rounds(3000) {
            let at = 200 * random.below(6) + 100 + 10 * random.below(9);
            gone.store(u64::MAX, SeqCst);
            tree.insert(&epoch, Arc::new(R(at, at + 6)));
            tree.remove(&epoch, at);
            gone.store(at, SeqCst);
            epoch.quiescent(&mut ksync::pin());
            epoch.reclaim(&ksync::pin());
        }
        stop.store(true, SeqCst);
    });
    epoch.drain();
}
