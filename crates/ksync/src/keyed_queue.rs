//! A queue whose members are taken off wherever they stand, and which is walked in steps.
//!
//! Guarantee: adding and taking off cost O(1) and allocate nothing while there is room; a walk sees each member that stood
//! on the queue when it began, in order, once, though it lets go of the queue's lock between its steps.
//! Mechanism: members are slots of one array, linked by index.  A walk that pauses *holds* the slot that it is to see next;
//! a member that leaves meanwhile leaves its slot linked, without a member, until the walk has passed it.

use alloc::vec::Vec;

/// No slot.
const NONE: u32 = u32::MAX;
/// Slots that an empty queue keeps.
const SPARE: usize = 64;

/// A place for a member.
pub struct Slot<E> {
    member: Option<E>,
    next: u32,
    prev: u32,
    /// Walks that pause here.
    held: u32,
    /// The members' order of arrival.
    seq: u64,
}

/// The queue; it stands inside the lock that guards it.
pub struct KeyedQueue<E> {
    slots: Vec<Slot<E>>,
    first: u32,
    last: u32,
    /// Slots that are not linked, by `next`.
    free: u32,
    linked: usize,
    arrived: u64,
}

/// How far a walk has come.
pub struct Walk {
    /// The slot that is held, or `NONE` at the beginning.
    at: u32,
    /// Members that came later are not seen.
    end: u64,
}

/// What a walk does after it has looked at a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Goes on.
    Keep,
    /// Takes the member off and goes on.
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
    /// Members that can be added without memory.
    pub fn room(&self) -> usize {
        self.slots.capacity() - self.linked
    }

    /// Slots that are in use.
    pub fn len(&self) -> usize {
        self.linked
    }

    /// Whether no slot is in use.
    pub fn is_empty(&self) -> bool {
        self.linked == 0
    }

    /// Puts `bigger`, which is empty, in the place of the array of slots if it has more room; returns what is not needed,
    /// to be dropped without the lock.
    pub fn grow(&mut self, mut bigger: Vec<Slot<E>>) -> Vec<Slot<E>> {
        if bigger.capacity() > self.slots.capacity() {
            bigger.append(&mut self.slots);
            core::mem::swap(&mut self.slots, &mut bigger);
        }
        bigger
    }

    /// An array that an empty queue had for many members: to be dropped without the lock.
    pub fn spare(&mut self) -> Vec<Slot<E>> {
        if self.linked > 0 || self.slots.capacity() <= SPARE {
            return Vec::new();
        }
        self.free = NONE;
        core::mem::take(&mut self.slots)
    }

    /// Adds a member behind all others; returns its slot, which stays until it is taken off.  There is room.
    ///
    /// # Panics
    /// If there is none.
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

    /// The member of a slot, if there is such a slot and one in it.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut E> {
        self.slots.get_mut(at as usize)?.member.as_mut()
    }

    /// Takes off the member of a slot.
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

    /// A walk over the members that there are now.  It must be [`walked`](Self::walk) to its end, or [`end`](Self::end)ed.
    pub fn begin(&self) -> Walk {
        Walk {
            at: NONE,
            end: self.arrived,
        }
    }

    /// Goes on with a walk, past up to `looks` members, as `visit` says of each; those to be taken are passed to `taken`.
    /// Returns whether the walk is to go on.
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

    /// Gives a walk up.
    pub fn end(&mut self, walk: Walk) {
        if walk.at != NONE {
            self.let_go(walk.at);
        }
    }

    /// Lets a slot go that a walk held; returns the first one from there on that is still wanted.
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
