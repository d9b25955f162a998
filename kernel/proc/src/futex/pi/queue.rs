//! The waiters of a bucket's futexes with priority inheritance, in the order in which they are served.

use alloc::vec::Vec;

use ksync::{Registration, SortedQueue, SortedSlot};
use mem::FutexWord;

use crate::futex::Key;

/// What sorts waiters: the word, then the priority, highest first, then the arrival. A lock comes before its waiters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    base: u64,
    offset: u64,
    /// 0 for a lock; lower for waiters of a higher priority.
    order: u32,
    /// Unique in its bucket for ever.
    pub arrival: u64,
}

impl Rank {
    fn first(key: &Key, order: u32) -> Rank {
        Rank {
            base: key.base,
            offset: key.offset,
            order,
            arrival: 0,
        }
    }

    fn is_of(&self, key: &Key) -> bool {
        (self.base, self.offset) == (key.base, key.offset)
    }
}

/// A waiter.
pub struct Waiter {
    /// The word that it waits for. Its last reference may not be dropped under the bucket's lock.
    pub word: FutexWord,
    /// The lock that it is to be moved to, if it waits for a condition; else it waits for a lock.
    pub target: Option<FutexWord>,
    /// Wakes it.
    pub sleeper: Registration,
    /// By which it is sorted.
    pub priority: u32,
}

/// What is in a bucket's array.
pub enum Node {
    /// A lock that has waiters, and the tid of its owner; 0: it has none, and its first waiter is to become the owner.
    Lock(u32),
    /// One of them, or one that waits for a condition.
    Waiter(Waiter),
}

/// Room for nodes.
pub type Room = Vec<SortedSlot<Rank, Node>>;

/// Slots that one waiter may need: for itself, and for its lock.
pub const NEED: usize = 2;

/// The waiters of one bucket. Under the bucket's lock.
#[derive(Default)]
pub struct PiQueue {
    nodes: SortedQueue<Rank, Node>,
    arrived: u64,
}

impl PiQueue {
    /// How many nodes can be added without memory.
    pub fn room(&self) -> usize {
        self.nodes.room()
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// As [`SortedQueue::grow`].
    pub fn grow(&mut self, bigger: Room) -> Room {
        self.nodes.grow(bigger)
    }

    /// As [`SortedQueue::spare`].
    pub fn spare(&mut self, keep: usize) -> Room {
        self.nodes.spare(keep)
    }

    /// Whether anything waits for that word.
    pub fn has(&self, key: &Key) -> bool {
        let first = self.nodes.first_from(&Rank::first(key, 0));
        first
            .and_then(|at| self.nodes.key(at))
            .is_some_and(|rank| rank.is_of(key))
    }

    fn lock_slot(&self, key: &Key) -> Option<u32> {
        let at = self.nodes.first_from(&Rank::first(key, 0))?;
        (self.nodes.key(at)? == Rank::first(key, 0)).then_some(at)
    }

    /// The owner of the lock with that word, 0 if it has none; `None` if no thread waits for such a lock.
    pub fn owner(&self, key: &Key) -> Option<u32> {
        match self.nodes.get(self.lock_slot(key)?)? {
            Node::Lock(owner) => Some(*owner),
            Node::Waiter(_) => None,
        }
    }

    /// Says which thread owns the lock with that word, which has waiters.
    pub fn set_owner(&mut self, key: &Key, owner: u32) {
        let node = self.lock_slot(key).and_then(|at| self.nodes.get_mut(at));
        if let Some(Node::Lock(now)) = node {
            *now = owner;
        }
    }

    /// Adds a lock, before its first waiter.
    pub fn add_lock(&mut self, key: &Key, owner: u32) {
        self.nodes.insert(Rank::first(key, 0), Node::Lock(owner));
    }

    /// Removes a lock, after its last waiter.
    pub fn remove_lock(&mut self, key: &Key) {
        if let Some(at) = self.lock_slot(key) {
            self.nodes.remove(at);
        }
    }

    /// The slot of the waiter of that word that is served first.
    pub fn first(&self, key: &Key) -> Option<u32> {
        let at = self.nodes.first_from(&Rank::first(key, 1))?;
        self.nodes.key(at)?.is_of(key).then_some(at)
    }

    /// The waiter in a slot, and its rank.
    pub fn waiter(&self, at: u32) -> Option<(&Waiter, Rank)> {
        match self.nodes.get(at)? {
            Node::Waiter(w) => Some((w, self.nodes.key(at)?)),
            Node::Lock(_) => None,
        }
    }

    /// The waiter in a slot, if it is that thread; and its rank.
    pub fn waiter_of(&self, at: u32, tid: u32) -> Option<(&Waiter, Rank)> {
        self.waiter(at).filter(|(w, _)| w.sleeper.tid() == tid)
    }

    /// The tid of the waiter in a slot.
    pub fn tid(&self, at: u32) -> Option<u32> {
        self.waiter(at).map(|(w, _)| w.sleeper.tid())
    }

    /// Renews what wakes the waiter in a slot.
    pub fn renew(&mut self, at: u32, sleeper: Registration) {
        if let Some(Node::Waiter(w)) = self.nodes.get_mut(at) {
            w.sleeper = sleeper;
        }
    }

    /// Adds a waiter behind those of its priority; returns its slot. There is room.
    pub fn add(&mut self, waiter: Waiter) -> u32 {
        self.arrived += 1;
        self.add_again(waiter, self.arrived)
    }

    /// Adds a waiter that was in this bucket before, and arrived then.
    pub fn add_again(&mut self, waiter: Waiter, arrival: u64) -> u32 {
        let rank = Rank {
            arrival,
            ..Rank::first(&waiter.word.key, u32::MAX - waiter.priority)
        };
        self.nodes.insert(rank, Node::Waiter(waiter))
    }

    /// Removes the waiter in a slot.
    pub fn remove(&mut self, at: u32) -> Option<Waiter> {
        self.waiter(at)?;
        match self.nodes.remove(at)? {
            Node::Waiter(w) => Some(w),
            Node::Lock(_) => None,
        }
    }
}
