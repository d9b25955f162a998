//! The tree of a map: disjoint ranges by address, read by anyone, changed in place by one writer at a time.
//!
//! Guarantee: an entry that [`find`](Tree::find) returns was in the map at some moment of the pinned section, and
//! covers the address. `None` proves nothing: whether an address is unmapped can be decided only under the map's lock,
//! which all other operations need.
//!
//! Mechanism: a B+-tree of [`Node`]s, in which a change usually writes one leaf. `doc/vm-map.md` states the protocol
//! and numbers the invariants.

use ksync::atomic::{AtomicUsize, Ordering::Relaxed};
use ksync::{CpuPin, Epoch, EpochPtr};
use rust_alloc::sync::Arc;
use rust_alloc::vec::Vec;
use smallvec::SmallVec;

use super::node::{FAN, Node};
use super::position::{ChildRef, GUARDED, Lookup, Position};

/// What the tree requires of its elements.
pub trait Extent {
    /// First address.
    fn start(&self) -> u64;
    /// First address behind the range.
    fn end(&self) -> u64;
    /// Lowest address that a new range must leave free: less than `start` if there is a guard gap.
    fn low(&self) -> u64 {
        self.start()
    }
}

/// A tree with more levels is rebuilt. Insertions alone reach six with the most entries that a map may have.
const MAX_HEIGHT: usize = 10;
/// A tree with at most this many levels is freed in one go.
const SMALL: usize = 2;
/// Entries of a leaf that is built from a list: leaves room for a few more.
const PACKED: usize = 12;

/// A subtree.
pub(super) enum Branch<E> {
    /// Entries, by start. `more` is an entry's end, perhaps with [`GUARDED`].
    Leaf(Node<E>),
    /// Children, by separator. `more` is an upper bound on the holes behind a child's entries.
    Inner(Node<Branch<E>>),
}

/// Disjoint ranges by address. One writer at a time, under the map's lock.
#[repr(C)]
pub struct Tree<E> {
    pub(super) root: EpochPtr<Arc<Branch<E>>>,
    /// Number of entries. Changed under the lock.
    len: AtomicUsize,
    /// Levels. Changed under the lock.
    pub(super) height: AtomicUsize,
}

/// Retires what is below an inner branch at `height`, one child at a time; calls `pause` after the children of each
/// branch above the lowest inner ones.
fn retire_below<E: Send + Sync + 'static>(
    branch: &Branch<E>,
    epoch: &Epoch,
    height: usize,
    pause: &mut dyn FnMut(),
) {
    let Branch::Inner(node) = branch else { return };
    for target in node.targets() {
        let child = if height > 2 {
            target.get(&ksync::pin())
        } else {
            None
        };
        if let Some(child) = child {
            retire_below(&child, epoch, height - 1, pause);
        }
        target.replace(epoch, &ksync::pin(), None);
    }
    if height == SMALL + 1 {
        pause();
    }
}

/// What changes need: the epoch in which removed nodes are retired, and a pin.
type Cx<'a> = (&'a Epoch, &'a CpuPin);
impl<E: Extent + Send + Sync + 'static> Tree<E> {
    /// End of the part that readers without the lock read.
    pub const READ_END: usize = core::mem::offset_of!(Self, len);

    /// The empty tree.
    pub fn new() -> Tree<E> {
        Tree {
            root: EpochPtr::empty(),
            len: AtomicUsize::new(0),
            height: AtomicUsize::new(0),
        }
    }

    /// An entry that covers `at`. Needs no lock; see the module for what `None` means.
    #[inline(always)]
    pub fn find<'p>(&'p self, pin: &'p CpuPin, at: u64) -> Option<&'p E> {
        let mut branch = self.root.load(pin)?;
        let leaf = loop {
            match branch {
                Branch::Inner(node) => branch = node.load(pin, node.count(at).checked_sub(1)?)?,
                Branch::Leaf(node) => break node,
            }
        };
        let entry = leaf.load(pin, leaf.count(at).checked_sub(1)?)?;
        (entry.start() <= at && at < entry.end()).then_some(entry)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len.load(Relaxed)
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry that covers `at`.
    pub fn get(&self, at: u64) -> Option<Arc<E>> {
        let pin = ksync::pin();
        let position = self.lookup(&pin, at)?.at_or_below(&pin)?;
        (at < position.end())
            .then(|| position.entry(&pin))
            .flatten()
    }

    /// The first entry that ends above `at`. Only a hint if the lock is not held and the tree changes.
    pub fn first_ending_above(&self, at: u64) -> Option<Arc<E>> {
        let pin = ksync::pin();
        self.position_above(&pin, at)?.entry(&pin)
    }

    /// The last entry that begins below `at`.
    pub fn last_starting_below(&self, at: u64) -> Option<Arc<E>> {
        let pin = ksync::pin();
        let at = at.checked_sub(1)?;
        self.lookup(&pin, at)?.at_or_below(&pin)?.entry(&pin)
    }

    /// The two entries that meet at `at`, if there are two.
    pub fn meeting(&self, at: u64) -> Option<(Arc<E>, Arc<E>)> {
        let pin = ksync::pin();
        let found = self.lookup(&pin, at)?;
        let rank = found.count.checked_sub(1)?;
        let right = Position {
            leaf: found.leaf,
            rank,
        };
        if right.start() != at {
            return None;
        }
        let before = Lookup {
            count: rank,
            ..found
        };
        let left = before.at_or_below(&pin).filter(|left| left.end() == at)?;
        Some((left.entry(&pin)?, right.entry(&pin)?))
    }

    /// Calls `f` for each entry, in order. No pin is held while it runs.
    pub fn for_each(&self, f: &mut dyn FnMut(&Arc<E>)) {
        self.for_overlapping(0, u64::MAX, &mut |entry| {
            f(entry);
            true
        });
    }

    /// Calls `f` for each entry that overlaps `start..end`, in order, until it returns false. No pin is held while it
    /// runs.
    pub fn for_overlapping(&self, start: u64, end: u64, f: &mut dyn FnMut(&Arc<E>) -> bool) {
        let mut next = Some(start);
        while let Some(at) = next.filter(|&at| at < end) {
            let mut some = SmallVec::<[Arc<E>; FAN]>::new();
            next = self.some(at, end, &mut |entry| some.push(entry));
            if !some.iter().all(&mut *f) {
                return;
            }
        }
    }

    /// Passes the entries that overlap `start..end` to `f`, in order. `f` runs pinned, so it must not sleep.
    pub fn collect(&self, start: u64, end: u64, f: &mut impl FnMut(Arc<E>)) {
        let mut next = Some(start);
        while let Some(at) = next.filter(|&at| at < end) {
            next = self.some(at, end, f);
        }
    }

    /// Passes the entries of the leaf that contains `at` which overlap `at..end` to `f`, pinned; returns the separator of the
    /// next leaf, to continue from, unless there is none or an entry at or behind `end` was met.
    fn some(&self, at: u64, end: u64, f: &mut impl FnMut(Arc<E>)) -> Option<u64> {
        let pin = ksync::pin();
        let found = self.lookup(&pin, at)?;
        let covers = |&rank: &usize| {
            let leaf = found.leaf;
            at < Position { leaf, rank }.end()
        };
        let first = found.count.checked_sub(1).filter(covers);
        let first = first.unwrap_or(found.count);
        for rank in first..found.leaf.len() {
            if found.leaf.key(rank) >= end {
                return None;
            }
            found.leaf.get(&pin, rank).into_iter().for_each(&mut *f);
        }
        found.subtree_above.map(|(node, rank)| node.key(rank))
    }

    /// The position of `at`; `None` in an empty tree.
    pub(super) fn lookup<'p>(&'p self, pin: &'p CpuPin, at: u64) -> Option<Lookup<'p, E>> {
        let mut branch = self.root.load(pin)?;
        let (mut above, mut below) = (None, None);
        loop {
            match branch {
                Branch::Inner(node) => {
                    let rank = node.count(at).checked_sub(1)?;
                    if rank + 1 < node.len() {
                        above = Some((node, rank + 1));
                    }
                    if rank > 0 {
                        below = Some((node, rank - 1));
                    }
                    branch = node.load(pin, rank)?;
                }
                Branch::Leaf(leaf) => {
                    let count = leaf.count(at);
                    return Some(Lookup {
                        leaf,
                        count,
                        subtree_above: above,
                        subtree_below: below,
                    });
                }
            }
        }
    }

    /// Replaces what the tree has by `entries`, which are disjoint and in ascending order, in packed nodes. In between,
    /// readers find no entry, which proves nothing.
    pub fn fill(&self, epoch: &Epoch, entries: &[Arc<E>]) {
        let filled = self.fill_while(epoch, entries, &mut || true);
        debug_assert!(filled);
    }

    /// As [`fill`](Tree::fill), but calls `go_on` before it makes each node. If `go_on` returns false, the tree stays as
    /// it was, and the result is false.
    pub fn fill_while(
        &self,
        epoch: &Epoch,
        entries: &[Arc<E>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        let mut height = 1;
        while PACKED.pow(height) < entries.len() {
            height += 1;
        }
        let mut root = None;
        if !entries.is_empty() {
            root = packed(epoch, entries, height, go_on);
            if root.is_none() {
                return false;
            }
        }
        let old = self.take(epoch);
        self.len.store(entries.len(), Relaxed);
        self.height.store(height as usize, Relaxed);
        self.root.replace(epoch, &ksync::pin(), root);
        old.end(epoch, &mut || {});
        true
    }

    /// Adds an entry, which overlaps none. Returns whether another entry ends at its start, and whether one begins at
    /// its end.
    pub fn insert(&self, epoch: &Epoch, entry: Arc<E>) -> (bool, bool) {
        let pin = ksync::pin();
        let (start, end) = (entry.start(), entry.end());
        let Some(found) = self.lookup(&pin, start) else {
            self.fill(epoch, &[entry]);
            return (false, false);
        };
        let met = (
            found
                .at_or_below(&pin)
                .is_some_and(|low| low.end() == start),
            found.above(&pin).is_some_and(|high| high.start() == end),
        );
        if found.leaf.len() < FAN {
            self.len.store(self.len() + 1, Relaxed);
            clear_of(found.subtree_above, end);
            let more = leaf_more(&*entry);
            found
                .leaf
                .insert((epoch, &pin), found.count, start, more, entry);
            self.note_hole(&pin, start);
        } else {
            drop(pin);
            self.insert_below(epoch, entry, MAX_HEIGHT);
        }
        met
    }

    /// Adds an entry; rebuilds the tree if it then has more than `limit` levels.
    pub(super) fn insert_below(&self, epoch: &Epoch, entry: Arc<E>, limit: usize) {
        let pin = ksync::pin();
        let Some(root) = self.root.load(&pin) else {
            return self.fill(epoch, &[entry]);
        };
        self.len.store(self.len() + 1, Relaxed);
        let at = entry.start();
        if let Some((key, right)) = grow((epoch, &pin), root, None, entry) {
            let top = Node::new();
            if let Some(left) = self.root.get(&pin) {
                top.insert((epoch, &pin), 0, 0, u64::MAX, left);
            }
            top.insert((epoch, &pin), 1, key, u64::MAX, right);
            let top = Arc::new(Branch::Inner(top));
            self.root.replace(epoch, &pin, Some(top));
            let height = self.height.load(Relaxed) + 1;
            self.height.store(height, Relaxed);
            drop(pin);
            if height > limit {
                self.rebuild(epoch);
            }
        }
        self.note_hole(&ksync::pin(), at);
    }

    /// Rebuilds the tree from packed nodes. If memory is short it stays as it is until it grows again.
    fn rebuild(&self, epoch: &Epoch) {
        let mut entries = Vec::new();
        if entries.try_reserve_exact(self.len()).is_ok() {
            self.for_each(&mut |entry| entries.push(entry.clone()));
            self.fill(epoch, &entries);
        }
    }

    /// Removes the entry that begins at `start`.
    pub fn remove(&self, epoch: &Epoch, start: u64) {
        let pin = ksync::pin();
        let Some(position) = self.position_of(&pin, start) else {
            debug_assert!(false, "no entry begins at {start:#x}");
            return;
        };
        self.remove_at(epoch, &pin, &position);
    }

    /// Removes the entry that is exactly `start..end`, if there is one, after `before` was called with it, pinned.
    pub fn remove_exact(
        &self,
        epoch: &Epoch,
        start: u64,
        end: u64,
        before: impl FnOnce(&E),
    ) -> Option<Arc<E>> {
        let pin = ksync::pin();
        let position = self.position_of(&pin, start)?;
        let entry = position.entry(&pin).filter(|_| position.end() == end)?;
        before(&entry);
        self.remove_at(epoch, &pin, &position);
        Some(entry)
    }

    /// The position of the entry that begins at `start`.
    fn position_of<'p>(&'p self, pin: &'p CpuPin, start: u64) -> Option<Position<'p, E>> {
        let found = self.lookup(pin, start)?;
        let rank = found.count.checked_sub(1)?;
        let position = Position {
            leaf: found.leaf,
            rank,
        };
        (position.start() == start).then_some(position)
    }

    fn remove_at(&self, epoch: &Epoch, pin: &CpuPin, position: &Position<'_, E>) {
        let start = position.start();
        self.len.store(self.len() - 1, Relaxed);
        if position.leaf.len() > 1 {
            position.leaf.remove((epoch, pin), position.rank);
        } else {
            self.remove_last(epoch, pin, start);
        }
        self.note_hole(pin, start);
    }

    /// Removes an entry that is the only one of its leaf.
    #[inline(never)]
    fn remove_last(&self, epoch: &Epoch, pin: &CpuPin, start: u64) {
        let Some(mut root) = self.root.load(pin) else {
            return;
        };
        shrink((epoch, pin), root, start);
        while let Branch::Inner(node) = root
            && node.len() == 1
            && let Some(only) = node.load(pin, 0)
        {
            self.root.replace(epoch, pin, node.get(pin, 0));
            self.height.store(self.height.load(Relaxed) - 1, Relaxed);
            root = only;
        }
    }

    /// Replaces the entry with the same start: a reader sees the old or the new one.
    pub fn replace(&self, epoch: &Epoch, entry: Arc<E>) {
        let (pin, start) = (ksync::pin(), entry.start());
        let Some(found) = self.lookup(&pin, start).filter(|found| found.count > 0) else {
            return;
        };
        debug_assert_eq!(found.leaf.key(found.count - 1), start);
        clear_of(found.subtree_above, entry.end());
        let more = leaf_more(&*entry);
        found
            .leaf
            .replace((epoch, &pin), found.count - 1, more, entry);
        self.note_hole(&pin, start);
    }

    /// Empties the tree, and returns its former contents.
    pub fn take(&self, epoch: &Epoch) -> Tree<E> {
        let pin = ksync::pin();
        let old = Tree {
            root: EpochPtr::new(self.root.get(&pin)),
            len: AtomicUsize::new(self.len()),
            height: AtomicUsize::new(self.height.load(Relaxed)),
        };
        self.root.replace(epoch, &pin, None);
        self.len.store(0, Relaxed);
        old
    }

    /// Ends a tree that was taken out of a map. A large tree is retired leaf by leaf, because a retired tree would be
    /// freed in one go. Readers that are still in it find no entry from then on, which proves nothing. `pause` is
    /// called now and then.
    pub fn end(self, epoch: &Epoch, pause: &mut dyn FnMut()) {
        let height = self.height.load(Relaxed);
        if height <= SMALL {
            return;
        }
        let root = self.root.get(&ksync::pin());
        if let Some(root) = root {
            retire_below(&root, epoch, height, pause);
        }
    }

    /// Called after a change at `at`: raises the bounds of the subtrees above it if the hole behind the last entry at
    /// or below `at` has grown.
    #[inline]
    fn note_hole(&self, pin: &CpuPin, at: u64) {
        if self.height.load(Relaxed) > 1 {
            self.note_hole_above(pin, at);
        }
    }

    #[inline(never)]
    fn note_hole_above(&self, pin: &CpuPin, at: u64) {
        let Some(mut branch) = self.root.load(pin) else {
            return;
        };
        let Some(found) = self.lookup(pin, at) else {
            return;
        };
        let Some(position) = found.at_or_below(pin) else {
            return;
        };
        let next = found.above(pin).map_or(u64::MAX, |above| above.start());
        let (hole, start) = (next - position.end(), position.start());
        while let Branch::Inner(node) = branch {
            let rank = node.count(start) - 1;
            if node.more(rank) < hole {
                node.set_more(rank, hole);
            }
            match node.load(pin, rank) {
                Some(child) => branch = child,
                None => return,
            }
        }
    }
}

impl<E: Extent + Send + Sync + 'static> Default for Tree<E> {
    fn default() -> Self {
        Tree::new()
    }
}

/// The `more` of an entry in its leaf.
fn leaf_more<E: Extent>(entry: &E) -> u64 {
    debug_assert!(entry.start() < entry.end() && entry.end() & GUARDED == 0);
    if entry.low() == entry.start() {
        entry.end()
    } else {
        entry.end() | GUARDED
    }
}

/// Raises the separator of the next subtree above a leaf to `end`, so that it does not lie inside an entry of the leaf.
fn clear_of<E: Send + Sync + 'static>(above: Option<ChildRef<'_, E>>, end: u64) {
    if let Some((node, rank)) = above
        && node.key(rank) < end
    {
        node.set_key(rank, end);
    }
}

/// A branch of `height` levels of entries in ascending order; `None` if `go_on` returns false before one of its nodes.
///
/// As in [`grow`], no node is on the stack while the function calls itself: a kernel stack is small.
fn packed<E: Extent + Send + Sync + 'static>(
    epoch: &Epoch,
    entries: &[Arc<E>],
    height: u32,
    go_on: &mut dyn FnMut() -> bool,
) -> Option<Arc<Branch<E>>> {
    if !go_on() {
        return None;
    }
    let below = height.saturating_sub(1);
    let branch = empty(below == 0);
    match &*branch {
        Branch::Leaf(leaf) => {
            for (rank, entry) in entries.iter().enumerate() {
                let cx = (epoch, &ksync::pin());
                leaf.insert(cx, rank, entry.start(), leaf_more(&**entry), entry.clone());
            }
        }
        Branch::Inner(inner) => {
            let parts = entries.len().div_ceil(PACKED.pow(below));
            for (rank, part) in entries.chunks(entries.len().div_ceil(parts)).enumerate() {
                let key = if rank == 0 { 0 } else { part[0].start() };
                let child = packed(epoch, part, below, go_on)?;
                inner.insert((epoch, &ksync::pin()), rank, key, u64::MAX, child);
            }
        }
    }
    Some(branch)
}

/// An empty branch.
#[inline(never)]
fn empty<E: Extent + Send + Sync + 'static>(leaf: bool) -> Arc<Branch<E>> {
    Arc::new(if leaf {
        Branch::Leaf(Node::new())
    } else {
        Branch::Inner(Node::new())
    })
}

/// Inserts an entry into a branch, whose next subtree is `above`. Returns the new branch that was split off at its upper
/// end, if any, with its separator.
fn grow<E: Extent + Send + Sync + 'static>(
    cx: Cx<'_>,
    branch: &Branch<E>,
    above: Option<ChildRef<'_, E>>,
    entry: Arc<E>,
) -> Option<(u64, Arc<Branch<E>>)> {
    let start = entry.start();
    match branch {
        Branch::Leaf(leaf) => {
            clear_of(above, entry.end());
            let (rank, more) = (leaf.count(start), leaf_more(&*entry));
            if leaf.len() < FAN {
                leaf.insert(cx, rank, start, more, entry);
                return None;
            }
            Some(split_leaf(cx, leaf, rank, (start, more), entry))
        }
        Branch::Inner(node) => {
            let rank = node.count(start) - 1;
            let above = if rank + 1 < node.len() {
                Some((node, rank + 1))
            } else {
                above
            };
            let (key, split) = grow(cx, node.load(cx.1, rank)?, above, entry)?;
            let more = node.more(rank);
            if node.len() < FAN {
                node.insert(cx, rank + 1, key, more, split);
                return None;
            }
            Some(split_inner(cx, node, rank + 1, (key, more), split))
        }
    }
}

/// Inserts an entry at `rank` of a full leaf. Returns the upper half, with its separator.
#[inline(never)]
fn split_leaf<E: Extent + Send + Sync + 'static>(
    cx: Cx<'_>,
    leaf: &Node<E>,
    rank: usize,
    keyed: (u64, u64),
    entry: Arc<E>,
) -> (u64, Arc<Branch<E>>) {
    let right = split(cx, leaf, rank, keyed, entry);
    (right.key(0), Arc::new(Branch::Leaf(right)))
}

/// Inserts a branch at `rank` of a full node. Returns the upper half, with its separator.
#[inline(never)]
fn split_inner<E: Extent + Send + Sync + 'static>(
    cx: Cx<'_>,
    node: &Node<Branch<E>>,
    rank: usize,
    keyed: (u64, u64),
    branch: Arc<Branch<E>>,
) -> (u64, Arc<Branch<E>>) {
    let right = split(cx, node, rank, keyed, branch);
    let key = right.key(0);
    right.set_key(0, 0);
    (key, Arc::new(Branch::Inner(right)))
}

/// Inserts `target` at `rank` of a full node. Returns the upper half.
fn split<T: Send + Sync + 'static>(
    cx: Cx<'_>,
    node: &Node<T>,
    rank: usize,
    (key, more): (u64, u64),
    target: Arc<T>,
) -> Node<T> {
    let right = node.split(cx);
    match rank.checked_sub(node.len() + 1) {
        // It belongs behind the first target of the upper half.
        Some(behind) => right.insert(cx, behind + 1, key, more, target),
        None => node.insert(cx, rank, key, more, target),
    }
    right
}

/// Result of a removal from a branch.
#[derive(PartialEq, Eq)]
enum Shrunk {
    /// The branch does not contain the entry.
    Missing,
    /// It still contains others.
    Fewer,
    /// It is empty now.
    Empty,
}

/// Removes the entry that begins at `start` from a branch.
fn shrink<E: Extent + Send + Sync + 'static>(cx: Cx<'_>, branch: &Branch<E>, start: u64) -> Shrunk {
    let left = match branch {
        Branch::Leaf(leaf) => {
            let Some(rank) = leaf.count(start).checked_sub(1) else {
                return Shrunk::Missing;
            };
            if leaf.key(rank) != start {
                return Shrunk::Missing;
            }
            leaf.remove(cx, rank);
            leaf.len()
        }
        Branch::Inner(node) => {
            let rank = node.count(start) - 1;
            let Some(child) = node.load(cx.1, rank) else {
                return Shrunk::Missing;
            };
            match shrink(cx, child, start) {
                Shrunk::Empty => node.remove(cx, rank),
                other => return other,
            }
            if rank == 0 && node.len() > 0 {
                node.set_key(0, 0);
            }
            node.len()
        }
    };
    if left == 0 {
        Shrunk::Empty
    } else {
        Shrunk::Fewer
    }
}
