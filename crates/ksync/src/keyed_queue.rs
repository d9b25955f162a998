//! A queue whose members can be removed at any position, and which is walked in steps.
//!
//! Guarantee: adding and removing cost O(1) and allocate nothing while there is room. A walk visits each member that
//! was on the queue when it began, in order, once, although it releases the queue's lock between its steps.
//!
//! Mechanism: members are slots of one array, linked by index. A walk that pauses *holds* the slot that it will visit
//! next; if the slot's member is removed meanwhile, the slot stays linked, without a member, until the walk has passed
//! it.

use alloc::vec::Vec;

/// No slot.
const NONE: u32 = u32::MAX;

/// A slot for a member.
pub struct Slot<E> {
    member: Option<E>,
    next: u32,
    prev: u32,
    /// Number of walks that pause here.
    held: u32,
    /// The member's position in the order of arrival.
    seq: u64,
}

/// The queue; it is the data of the lock that guards it.
pub struct KeyedQueue<E> {
    slots: Vec<Slot<E>>,
    first: u32,
    last: u32,
    /// List of slots that are not linked, through `next`.
    free: u32,
    linked: usize,
    arrived: u64,
}

/// The progress of a walk.
pub struct Walk {
    /// The slot that is held, or `NONE` at the beginning.
    at: u32,
    /// Members that arrived from this number on are not visited.
    end: u64,
}

/// What a walk does after visiting a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Continues.
    Keep,
    /// Removes the member and continues.
    Take,
    /// Ends the step; the next one begins with this member.
    Pause,
    /// Ends the walk.
    Stop,
}

impl<E> Default for KeyedQueue<E> {
    fn default() -> Self {
        KeyedQueue {
            slots: Vec::new(),
            first: NONE,
            last: NONE,
            free: NONE,
            linked: 0,
            arrived: 0,
        }
    }
}

impl<E> KeyedQueue<E> {
    /// Number of members that can be added without memory.
    pub fn room(&self) -> usize {
        self.slots.capacity() - self.linked
    }

    /// Number of slots in use.
    pub fn len(&self) -> usize {
        self.linked
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.linked == 0
    }

    /// Replaces the array of slots by `bigger`, which is empty, if that has more room; returns the array that is not
    /// needed, which should be dropped without the lock.
    pub fn grow(&mut self, mut bigger: Vec<Slot<E>>) -> Vec<Slot<E>> {
        if bigger.capacity() > self.slots.capacity() {
            bigger.append(&mut self.slots);
            core::mem::swap(&mut self.slots, &mut bigger);
        }
        bigger
    }

    /// The array of slots if the queue is empty and the array has more than `keep` slots; should be dropped without the
    /// lock.
    pub fn spare(&mut self, keep: usize) -> Vec<Slot<E>> {
        if self.linked > 0 || self.slots.capacity() <= keep {
            return Vec::new();
        }
        self.free = NONE;
        core::mem::take(&mut self.slots)
    }

    /// Adds a member at the end; returns its slot, which it keeps until it is removed.
    ///
    /// # Panics
    /// If there is no room.
    pub fn push_back(&mut self, member: E) -> u32 {
        assert!(self.room() > 0, "a member without room");
        let slot = Slot {
            member: Some(member),
            next: NONE,
            prev: self.last,
            held: 0,
            seq: self.arrived,
        };
        self.arrived += 1;
        let at = if self.free == NONE {
            self.slots.push(slot);
            self.slots.len() as u32 - 1
        } else {
            let at = self.free;
            self.free = self.slots[at as usize].next;
            self.slots[at as usize] = slot;
            at
        };
        match self.last {
            NONE => self.first = at,
            last => self.slots[last as usize].next = at,
        }
        self.last = at;
        self.linked += 1;
        at
    }

    /// The member of a slot, if the slot exists and has one.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut E> {
        self.slots.get_mut(at as usize)?.member.as_mut()
    }

    /// Removes the member of a slot.
    pub fn remove(&mut self, at: u32) -> Option<E> {
        let slot = self.slots.get_mut(at as usize)?;
        let member = slot.member.take()?;
        if slot.held == 0 {
            self.unlink(at);
        }
        Some(member)
    }

    fn unlink(&mut self, at: u32) {
        let Slot { next, prev, .. } = self.slots[at as usize];
        match prev {
            NONE => self.first = next,
            prev => self.slots[prev as usize].next = next,
        }
        match next {
            NONE => self.last = prev,
            next => self.slots[next as usize].prev = prev,
        }
        self.slots[at as usize].next = self.free;
        self.free = at;
        self.linked -= 1;
    }

    /// A walk over the present members. It must be [`walked`](Self::walk) to its end, or [`end`](Self::end)ed.
    pub fn begin(&self) -> Walk {
        Walk {
            at: NONE,
            end: self.arrived,
        }
    }

    /// Continues a walk, past up to `looks` slots, a few of which may have no member, as `visit` decides for each member;
    /// removed members are passed to `taken`. Returns whether the walk must be continued.
    pub fn walk(
        &mut self,
        walk: &mut Walk,
        looks: usize,
        mut visit: impl FnMut(&mut E) -> Visit,
        mut taken: impl FnMut(E),
    ) -> bool {
        let mut at = match core::mem::replace(&mut walk.at, NONE) {
            NONE => self.first,
            held => self.let_go(held),
        };
        for _ in 0..looks {
            if at == NONE || self.slots[at as usize].seq >= walk.end {
                return false;
            }
            let slot = &mut self.slots[at as usize];
            let next = slot.next;
            match slot.member.as_mut().map(&mut visit) {
                None | Some(Visit::Keep) => {}
                Some(Visit::Take) => {
                    if let Some(member) = self.remove(at) {
                        taken(member);
                    }
                }
                Some(Visit::Pause) => break,
                Some(Visit::Stop) => return false,
            }
            at = next;
        }
        if at == NONE {
            return false;
        }
        self.slots[at as usize].held += 1;
        walk.at = at;
        true
    }

    /// How many of the next `looks` slots of a walk have a member that `f` accepts.
    pub fn ahead(&self, walk: &Walk, looks: usize, mut f: impl FnMut(&E) -> bool) -> usize {
        let mut at = match walk.at {
            NONE => self.first,
            held => held,
        };
        let mut accepted = 0;
        for _ in 0..looks {
            if at == NONE || self.slots[at as usize].seq >= walk.end {
                break;
            }
            let slot = &self.slots[at as usize];
            accepted += usize::from(slot.member.as_ref().is_some_and(&mut f));
            at = slot.next;
        }
        accepted
    }

    /// Ends a walk early.
    pub fn end(&mut self, walk: Walk) {
        if walk.at != NONE {
            self.let_go(walk.at);
        }
    }

    /// Releases a slot that a walk held; returns the first slot from there on that has a member, or may have one.
    fn let_go(&mut self, at: u32) -> u32 {
        let slot = &mut self.slots[at as usize];
        let next = slot.next;
        slot.held -= 1;
        if slot.member.is_some() {
            return at;
        }
        if slot.held == 0 {
            self.unlink(at);
        }
        next
    }
}
