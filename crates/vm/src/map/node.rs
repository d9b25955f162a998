//! Nodes of the tree: up to [`FAN`] targets by key, read while one writer changes them.
//!
//! Guarantee: a target that a reader loads was in the node at that moment; whether it is the one that was looked for, the
//! reader asks the target. Under the writers' lock ranks, keys and targets agree.
//!
//! Mechanism: a target keeps its slot for as long as it is here. One word says which slot each rank has, free slots
//! behind the used ones; the keys lie apart, by rank, padded with the highest number, so that a search is four steps
//! without a branch.
//!
//! Ordering: the slots', which [`EpochPtr`] makes, is all that a reader needs. The word and the keys are hints: who combines them with
//! an older slot misses what it may find, and a miss proves nothing. Who must not miss holds the lock, whose order is theirs.

use ksync::atomic::{AtomicU64, Ordering::Relaxed};
use ksync::{CpuPin, Epoch, EpochPtr};
use rust_alloc::sync::Arc;

/// Targets of a node: as many as fit, with their keys, into 384 bytes.
pub(super) const FAN: usize = 14;
/// Keys that the search of four steps looks at.
const KEYS: usize = 15;

/// The slot of each rank, 4 bits each from bit 4 on, and in the low 4 bits how many ranks there are.
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

    /// With the first free slot at `rank`, those from there on one rank higher.
    fn insert(self, rank: usize) -> Order {
        let len = self.len();
        let moving = places(rank, len + 1);
        Order((self.0 & !moving) | (self.0 & moving) << 4 & moving | at(rank, self.slot(len)))
            .with_len(len + 1)
    }

    /// Without `rank`, whose slot is free.
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

/// `slot` in the place of `rank`.
fn at(rank: usize, slot: usize) -> u64 {
    (slot as u64) << (4 * rank + 4)
}

/// The bits of the ranks `from..end`, of which there is one.
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
    /// A number for each slot. Guarded by the tree's lock.
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

    /// How many keys are not above `at`, which is below the highest number.
    #[inline(always)]
    pub fn count(&self, at: u64) -> usize {
        let key = |rank: usize| self.keys[rank].load(Relaxed);
        let mut n = if key(7) <= at { 8 } else { 0 };
        n += if key(n + 3) <= at { 4 } else { 0 };
        n += if key(n + 1) <= at { 2 } else { 0 };
        n += if key(n) <= at { 1 } else { 0 };
        n
    }

    /// What has `rank`; `None` where a change is under way, or there is no such rank.
    #[inline(always)]
    pub fn load<'p>(&'p self, pin: &'p CpuPin, rank: usize) -> Option<&'p T> {
        self.targets.get(self.order().slot(rank))?.load(pin)
    }

    /// All places for targets.
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

    /// The ranks below `count`, each with its key and `more`, the highest first.
    #[inline(always)]
    pub fn down_from(&self, count: usize) -> impl Iterator<Item = (usize, u64, u64)> {
        // The slot of the next rank in the lowest bits, and the ones below it above.
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

    /// Puts `target` at `rank`. There is room.
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

    /// Takes `rank` out; its slot is free then. Returns the slot.
    fn close(&self, rank: usize) -> usize {
        let order = self.order();
        for pair in self.keys[rank..=order.len()].windows(2) {
            pair[0].store(pair[1].load(Relaxed), Relaxed);
        }
        self.order.store(order.remove(rank).0, Relaxed);
        order.slot(rank)
    }

    /// Takes what has `rank` out, and retires it.
    pub fn remove(&self, (epoch, pin): (&Epoch, &CpuPin), rank: usize) {
        let slot = self.close(rank);
        self.targets[slot].replace(epoch, pin, None);
    }

    /// Puts `target` in the place of what has `rank`, which is retired.
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
            self.targets[slot].move_to(&right.targets[rank], epoch, pin);
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
