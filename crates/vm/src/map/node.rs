//! Nodes of the tree: up to [`FAN`] targets by key, read while one writer changes them.
//!
//! Guarantee: a target that a reader loads was in the node at that moment. Whether it is the one the reader looks for,
//! the reader must check on the target itself. Under the writers' lock, ranks, keys and targets agree.
//!
//! Mechanism: a target keeps its slot for as long as it is in the node. One word holds the slot of each rank, with the
//! free slots after the used ones. The keys are stored separately, by rank, padded with the highest value, so that a
//! search takes four steps without a branch.
//!
//! Ordering: the ordering of the slots, which [`EpochPtr`] provides, is all that a reader needs. The order word and the
//! keys are hints: a reader that combines them with an older slot may miss a target, and a miss proves nothing. A
//! caller that must not miss holds the lock, which orders all of them.

#![expect(
    unsafe_code,
    reason = "moves targets between nodes while readers follow them"
)]

use ksync::atomic::{AtomicU64, Ordering::Relaxed};
use ksync::{CpuPin, Epoch, EpochPtr};
use rust_alloc::sync::Arc;

/// Targets of a node: as many as fit into 384 bytes with their keys.
pub(super) const FAN: usize = 14;
/// Number of keys that the search of four steps may look at.
const KEYS: usize = 15;

/// The order word: bits 0 to 3 hold the number of ranks, then 4 bits for each rank hold its slot.
#[derive(Clone, Copy)]
struct Order(u64);

impl Order {
    const EMPTY: Order = Order(0x0dcb_a987_6543_2100);

    fn len(self) -> usize {
        (self.0 & 15) as usize
    }

    fn slot(self, rank: usize) -> usize {
        (self.0 >> (4 + 4 * rank)) as usize & 15
    }

    /// Inserts the first free slot at `rank`; the ranks from there on move up by one.
    fn insert(self, rank: usize) -> Order {
        let len = self.len();
        let moving = places(rank, len + 1);
        Order((self.0 & !moving) | (self.0 & moving) << 4 & moving | at(rank, self.slot(len)))
            .with_len(len + 1)
    }

    /// Removes `rank`, whose slot becomes free.
    fn remove(self, rank: usize) -> Order {
        let len = self.len();
        let moving = places(rank, len);
        Order((self.0 & !moving) | (self.0 & moving) >> 4 & moving | at(len - 1, self.slot(rank)))
            .with_len(len - 1)
    }

    fn with_len(self, len: usize) -> Order {
        Order(self.0 & !15 | len as u64)
    }
}

/// `slot`, shifted to the bits of `rank`.
fn at(rank: usize, slot: usize) -> u64 {
    (slot as u64) << (4 * rank + 4)
}

/// The bits of the ranks `from..end`, a non-empty range.
fn places(from: usize, end: usize) -> u64 {
    debug_assert!(from < end && end <= FAN);
    (u64::MAX << (4 * from + 4)) & (u64::MAX >> (60 - 4 * end))
}

/// See the module. The tree's lock guards all changes.
pub(super) struct Node<T> {
    /// An [`Order`]. Atomic.
    order: AtomicU64,
    /// By rank. Atomic.
    keys: [AtomicU64; KEYS],
    /// One more number for each slot. Guarded by the tree's lock.
    more: [AtomicU64; FAN],
    /// Atomic.
    targets: [EpochPtr<Arc<T>>; FAN],
}

impl<T: Send + Sync + 'static> Node<T> {
    pub fn new() -> Node<T> {
        Node {
            order: AtomicU64::new(Order::EMPTY.0),
            keys: core::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            more: core::array::from_fn(|_| AtomicU64::new(0)),
            targets: core::array::from_fn(|_| EpochPtr::empty()),
        }
    }

    fn order(&self) -> Order {
        Order(self.order.load(Relaxed))
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.order().len()
    }

    /// Number of keys that are not above `at`. `at` is below the highest value.
    #[inline(always)]
    pub fn count(&self, at: u64) -> usize {
        let key = |rank: usize| self.keys[rank].load(Relaxed);
        let mut n = if key(7) <= at { 8 } else { 0 };
        n += if key(n + 3) <= at { 4 } else { 0 };
        n += if key(n + 1) <= at { 2 } else { 0 };
        n += if key(n) <= at { 1 } else { 0 };
        n
    }

    /// The target with `rank`; `None` while a change is in progress, or if there is no such rank.
    #[inline(always)]
    pub fn load<'p>(&'p self, pin: &'p CpuPin, rank: usize) -> Option<&'p T> {
        self.targets.get(self.order().slot(rank))?.load(pin)
    }

    /// All slots.
    pub fn targets(&self) -> &[EpochPtr<Arc<T>>] {
        &self.targets
    }

    pub fn get(&self, pin: &CpuPin, rank: usize) -> Option<Arc<T>> {
        self.targets.get(self.order().slot(rank))?.get(pin)
    }

    pub fn key(&self, rank: usize) -> u64 {
        self.keys[rank].load(Relaxed)
    }

    pub fn set_key(&self, rank: usize, key: u64) {
        self.keys[rank].store(key, Relaxed);
    }

    pub fn more(&self, rank: usize) -> u64 {
        self.more[self.order().slot(rank)].load(Relaxed)
    }

    /// The ranks below `count`, highest first, each with its key and `more`.
    #[inline(always)]
    pub fn down_from(&self, count: usize) -> impl Iterator<Item = (usize, u64, u64)> {
        // The slot of the next rank is in the lowest bits.
        let mut slots = self.order().0.rotate_right(4 * count as u32);
        (0..count.min(FAN)).rev().map(move |rank| {
            let more = self.more.get(slots as usize & 15);
            slots = slots.rotate_left(4);
            (
                rank,
                self.key(rank),
                more.map_or(0, |more| more.load(Relaxed)),
            )
        })
    }

    pub fn set_more(&self, rank: usize, more: u64) {
        self.more[self.order().slot(rank)].store(more, Relaxed);
    }

    /// Inserts `target` at `rank`. The node is not full.
    pub fn insert(
        &self,
        (epoch, pin): (&Epoch, &CpuPin),
        rank: usize,
        key: u64,
        more: u64,
        target: Arc<T>,
    ) {
        let order = self.order();
        let slot = order.slot(order.len());
        self.more[slot].store(more, Relaxed);
        self.targets[slot].replace(epoch, pin, Some(target));
        self.open(rank, key);
    }

    /// Gives the first free slot `rank` and `key`.
    fn open(&self, rank: usize, key: u64) {
        let order = self.order();
        for pair in self.keys[rank..=order.len()].windows(2).rev() {
            pair[1].store(pair[0].load(Relaxed), Relaxed);
        }
        self.keys[rank].store(key, Relaxed);
        self.order.store(order.insert(rank).0, Relaxed);
    }

    /// Removes `rank` and returns its slot, which is then free.
    fn close(&self, rank: usize) -> usize {
        let order = self.order();
        for pair in self.keys[rank..=order.len()].windows(2) {
            pair[0].store(pair[1].load(Relaxed), Relaxed);
        }
        self.order.store(order.remove(rank).0, Relaxed);
        order.slot(rank)
    }

    /// Removes the target with `rank` and retires it.
    pub fn remove(&self, (epoch, pin): (&Epoch, &CpuPin), rank: usize) {
        let slot = self.close(rank);
        self.targets[slot].replace(epoch, pin, None);
    }

    /// Replaces the target with `rank` by `target`, and retires the old one.
    pub fn replace(&self, (epoch, pin): (&Epoch, &CpuPin), rank: usize, more: u64, target: Arc<T>) {
        let slot = self.order().slot(rank);
        self.more[slot].store(more, Relaxed);
        self.targets[slot].replace(epoch, pin, Some(target));
    }

    /// Moves the upper half of the ranks to a new node.
    pub fn split(&self, (epoch, pin): (&Epoch, &CpuPin)) -> Node<T> {
        let right = Node::new();
        for rank in 0..self.len() - FAN / 2 {
            let (key, more) = (self.key(FAN / 2), self.more(FAN / 2));
            let slot = self.close(FAN / 2);
            right.more[rank].store(more, Relaxed);
            // SAFETY: the new node enters the tree before this operation ends, and leaves it by being retired.
            unsafe { self.targets[slot].move_to(&right.targets[rank], epoch, pin) };
            right.open(rank, key);
        }
        right
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rust_alloc::vec::Vec;

    #[test]
    fn orders_are_permutations() {
        let (mut order, mut model) = (Order::EMPTY, Vec::new());
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..if cfg!(miri) { 200 } else { 10_000 } {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            if model.len() < FAN && (model.is_empty() || seed & 1 == 0) {
                let rank = (seed >> 8) as usize % (model.len() + 1);
                model.insert(rank, order.slot(model.len()));
                order = order.insert(rank);
            } else {
                let rank = (seed >> 8) as usize % model.len();
                model.remove(rank);
                order = order.remove(rank);
            }
            let slots: Vec<_> = (0..FAN).map(|rank| order.slot(rank)).collect();
            assert_eq!(order.len(), model.len());
            assert_eq!(slots[..model.len()], model);
            let mut all = slots;
            all.sort_unstable();
            assert_eq!(all, (0..FAN).collect::<Vec<_>>());
        }
    }
}
