//! Lists of threads and processes, linked by id.
//!
//! Guarantee: insertion and removal allocate nothing, take constant time and hold no reference on a member. Mechanism: each
//! member embeds an [`IdLinks`] for each list that it can be on. The links are ids, which the table of the list's [`Role`]
//! resolves. A member must leave its lists before its id leaves the table: a list that meets an id that is not in the table
//! has lost its tail, and debug builds assert that this does not happen.

use core::marker::PhantomData;
use ksync::atomic::{AtomicU32, Ordering};

use ksync::CpuPin;

/// No member.
pub const NONE: u32 = 0;

/// The links of one member on one list. Guarded by the lock of the list that the member is on.
pub struct IdLinks {
    next: AtomicU32,
    prev: AtomicU32,
}

impl Default for IdLinks {
    fn default() -> Self {
        Self::new()
    }
}

impl IdLinks {
    /// Links of a member that is on no list.
    pub const fn new() -> Self {
        IdLinks {
            next: AtomicU32::new(NONE),
            prev: AtomicU32::new(NONE),
        }
    }

    /// Whether the member is on a list. Exact only under that list's lock. A caller without that lock that gets true sees
    /// what was written, under that lock, before the member was listed.
    pub fn linked(&self) -> bool {
        self.next.load(Ordering::Acquire) != NONE
    }

    fn get(&self) -> (u32, u32) {
        (
            self.next.load(Ordering::Relaxed),
            self.prev.load(Ordering::Relaxed),
        )
    }

    fn set(&self, next: u32, prev: u32) {
        // Release: for `linked` without the list's lock.
        self.next.store(next, Ordering::Release);
        self.prev.store(prev, Ordering::Relaxed);
    }
}

/// The kind of a list: how a member's links are found by its id.
pub trait Role {
    /// The links of member `id` on this kind of list; `None` if the id is not in the table. `id` is not [`NONE`].
    fn links(pin: &CpuPin, id: u32) -> Option<&IdLinks>;
}

/// A circular doubly linked list of members.  Lives inside the lock that guards it.
pub struct IdList<R> {
    head: u32,
    _role: PhantomData<fn(R)>,
}

impl<R: Role> Default for IdList<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: Role> IdList<R> {
    /// An empty list.
    pub const fn new() -> Self {
        IdList {
            head: NONE,
            _role: PhantomData,
        }
    }

    /// Whether the list has no member.
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// The first member's id.
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    /// Appends member `id`, which must be on no list of this kind.
    pub fn push_back(&mut self, pin: &CpuPin, id: u32) {
        match R::links(pin, id) {
            Some(links) => self.append(pin, id, links),
            None => debug_assert!(false, "listing an unpublished number {id}"),
        }
    }

    /// As [`push_back`](Self::push_back), for a caller that has the member: `links` are its links.
    pub fn append(&mut self, pin: &CpuPin, id: u32, links: &IdLinks) {
        debug_assert!(!links.linked(), "number {id} is already listed");
        match self.first().and_then(|head| R::links(pin, head)) {
            Some(head) => {
                let (head_next, tail) = head.get();
                links.set(self.head, tail);
                if tail == self.head {
                    head.set(id, id);
                } else {
                    head.set(head_next, id);
                    if let Some(t) = R::links(pin, tail) {
                        let (_, p) = t.get();
                        t.set(id, p);
                    }
                }
            }
            None => {
                links.set(id, id);
                self.head = id;
            }
        }
    }

    /// Takes member `id` off the list. Does nothing if it is on no list.
    pub fn remove(&mut self, pin: &CpuPin, id: u32) {
        let Some(links) = R::links(pin, id) else {
            return;
        };
        if !links.linked() {
            return;
        }
        let (next, prev) = links.get();
        links.set(NONE, NONE);
        if next == id {
            self.head = NONE;
            return;
        }
        if let Some(p) = R::links(pin, prev) {
            let (_, pp) = p.get();
            p.set(next, pp);
        }
        if let Some(n) = R::links(pin, next) {
            let (nn, _) = n.get();
            n.set(nn, prev);
        }
        if self.head == id {
            self.head = next;
        }
    }

    /// Takes the first member off and returns its id.
    pub fn pop_front(&mut self, pin: &CpuPin) -> Option<u32> {
        let id = self.first()?;
        self.remove(pin, id);
        Some(id)
    }

    /// Moves the first member to the end.
    pub fn rotate(&mut self, pin: &CpuPin) {
        if let Some(links) = self.first().and_then(|head| R::links(pin, head)) {
            self.head = links.get().0;
        }
    }

    /// Makes member `id` the first; the others stay in their order, of which the list is a circle.
    pub fn make_first(&mut self, id: u32) {
        self.head = id;
    }

    /// The member after `id`, or `None` after the last.
    pub fn after(&self, pin: &CpuPin, id: u32) -> Option<u32> {
        let (next, _) = R::links(pin, id)?.get();
        (next != NONE && next != self.head).then_some(next)
    }

    /// Calls `f` with each member's id, from first to last, until `f` returns false.
    pub fn each(&self, pin: &CpuPin, mut f: impl FnMut(u32) -> bool) {
        let mut at = self.first();
        while let Some(id) = at {
            if !f(id) {
                return;
            }
            at = self.after(pin, id);
        }
    }
}
