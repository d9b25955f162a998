//! A queue whose members are in the order of a key.
//!
//! Guarantee: adding, removing and finding take time in proportion to the logarithm of the number of members, in the worst case, and
//! allocate nothing while there is room. A member keeps its slot until it is removed.
//!
//! Mechanism: members are slots of one array, linked by index as an AVL tree.

use alloc::vec::Vec;

/// No slot.
const NONE: u32 = u32::MAX;

/// A slot for a member.
pub struct SortedSlot<K, E> {
    key: K,
    /// `None` in a free slot.
    member: Option<E>,
    /// The subtrees of lesser and of greater keys; of a free slot, `[0]` is the next free one.
    below: [u32; 2],
    height: u8,
}

/// The queue; it is the data of the lock that guards it.
pub struct SortedQueue<K, E> {
    slots: Vec<SortedSlot<K, E>>,
    root: u32,
    free: u32,
    len: usize,
}

impl<K, E> Default for SortedQueue<K, E> {
    fn default() -> Self {
        SortedQueue {
            slots: Vec::new(),
            root: NONE,
            free: NONE,
            len: 0,
        }
    }
}

impl<K: Ord + Copy, E> SortedQueue<K, E> {
    /// Number of members that can be added without memory.
    pub fn room(&self) -> usize {
        self.slots.capacity() - self.len
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Replaces the array of slots by `bigger`, which is empty, if that has more room; returns the array that is not
    /// needed, which should be dropped without the lock.
    pub fn grow(&mut self, mut bigger: Vec<SortedSlot<K, E>>) -> Vec<SortedSlot<K, E>> {
        if bigger.capacity() > self.slots.capacity() {
            bigger.append(&mut self.slots);
            core::mem::swap(&mut self.slots, &mut bigger);
        }
        bigger
    }

    /// The array of slots if the queue is empty and the array has more than `keep` slots; should be dropped without the
    /// lock.
    pub fn spare(&mut self, keep: usize) -> Vec<SortedSlot<K, E>> {
        if self.len > 0 || self.slots.capacity() <= keep {
            return Vec::new();
        }
        self.free = NONE;
        core::mem::take(&mut self.slots)
    }

    /// Adds a member under a key that no other member has; returns its slot.
    ///
    /// # Panics
    /// If there is no room.
    pub fn insert(&mut self, key: K, member: E) -> u32 {
        assert!(self.room() > 0, "a member without room");
        let slot = SortedSlot {
            key,
            member: Some(member),
            below: [NONE; 2],
            height: 1,
        };
        let at = if self.free == NONE {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        } else {
            let at = self.free;
            self.free = self.slots[at as usize].below[0];
            self.slots[at as usize] = slot;
            at
        };
        self.len += 1;
        self.root = self.insert_below(self.root, at);
        at
    }

    /// The member of a slot, if the slot exists and has one.
    pub fn get(&self, at: u32) -> Option<&E> {
        self.slots.get(at as usize)?.member.as_ref()
    }

    /// As [`get`](Self::get), to change the member.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut E> {
        self.slots.get_mut(at as usize)?.member.as_mut()
    }

    /// The key of a slot's member.
    pub fn key(&self, at: u32) -> Option<K> {
        let slot = self.slots.get(at as usize)?;
        slot.member.as_ref().map(|_| slot.key)
    }

    /// Removes the member of a slot.
    pub fn remove(&mut self, at: u32) -> Option<E> {
        let key = self.key(at)?;
        self.root = self.remove_below(self.root, &key);
        let slot = &mut self.slots[at as usize];
        let member = slot.member.take();
        slot.below = [self.free, NONE];
        self.free = at;
        self.len -= 1;
        member
    }

    /// The slot of the member with the least key that is not less than `from`.
    pub fn first_from(&self, from: &K) -> Option<u32> {
        let (mut at, mut found) = (self.root, None);
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.key < *from {
                at = slot.below[1];
            } else {
                found = Some(at);
                at = slot.below[0];
            }
        }
        found
    }

    /// Adds slot `new` to the tree `at`; returns the tree's new root.
    fn insert_below(&mut self, at: u32, new: u32) -> u32 {
        if at == NONE {
            return new;
        }
        let side = usize::from(self.slots[new as usize].key > self.slots[at as usize].key);
        let child = self.insert_below(self.slots[at as usize].below[side], new);
        self.slots[at as usize].below[side] = child;
        self.balance(at)
    }

    /// Takes the slot with that key out of the tree `at`; returns the tree's new root.
    fn remove_below(&mut self, at: u32, key: &K) -> u32 {
        let SortedSlot {
            key: here, below, ..
        } = &self.slots[at as usize];
        let below = *below;
        if key != here {
            let side = usize::from(key > here);
            let child = self.remove_below(below[side], key);
            self.slots[at as usize].below[side] = child;
            return self.balance(at);
        }
        match below {
            [NONE, one] | [one, NONE] => one,
            [less, greater] => {
                let (next, rest) = self.take_least(greater);
                self.slots[next as usize].below = [less, rest];
                self.balance(next)
            }
        }
    }

    /// Takes the least slot out of the tree `at`; returns it, and the tree's new root.
    fn take_least(&mut self, at: u32) -> (u32, u32) {
        let [less, greater] = self.slots[at as usize].below;
        if less == NONE {
            return (at, greater);
        }
        let (least, rest) = self.take_least(less);
        self.slots[at as usize].below[0] = rest;
        (least, self.balance(at))
    }

    fn height(&self, at: u32) -> u8 {
        self.slots.get(at as usize).map_or(0, |slot| slot.height)
    }

    fn measure(&mut self, at: u32) {
        let [less, greater] = self.slots[at as usize].below;
        self.slots[at as usize].height = 1 + self.height(less).max(self.height(greater));
    }

    /// Balances the tree `at`, whose subtrees are balanced and differ by up to two in height; returns its new root.
    fn balance(&mut self, at: u32) -> u32 {
        let heights = self.slots[at as usize]
            .below
            .map(|child| self.height(child));
        let high = usize::from(heights[1] > heights[0]);
        if heights[high] <= heights[1 - high] + 1 {
            self.measure(at);
            return at;
        }
        let child = self.slots[at as usize].below[high];
        let inner = self.slots[child as usize].below[1 - high];
        let outer = self.slots[child as usize].below[high];
        if self.height(inner) > self.height(outer) {
            self.slots[at as usize].below[high] = self.rotate(child, 1 - high);
        }
        self.rotate(at, high)
    }

    /// Makes the child on that side the root of the tree `at`.
    fn rotate(&mut self, at: u32, side: usize) -> u32 {
        let child = self.slots[at as usize].below[side];
        self.slots[at as usize].below[side] = self.slots[child as usize].below[1 - side];
        self.slots[child as usize].below[1 - side] = at;
        self.measure(at);
        self.measure(child);
        child
    }
}
