//! Visiting the members of a hub in many short holds of its locks.
//!
//! Guarantee: a walk visits every member that was attached before it began and that is not detached before it ends, at
//! least once. No lock is held for more than so many members as the caller says, and none between.
//!
//! Mechanism: between two holds a *mark* stands in the shard's list, behind the last member that was visited. Whatever is
//! attached meanwhile comes before it, or in another shard; whatever is detached closes its gap beside it. So it never has
//! to be looked for, and attaching and detaching need not know of it. It is on the stack of the walk, and is taken out
//! before that ends.
//!
//! A shard with a mark counts as not empty. So it keeps its unit of the hub's count when its last member leaves, and the
//! walk, which has a reference of its own, returns the unit when it takes the mark out. A member beside a mark is not
//! [sole](super::Member::is_sole).

use core::{cell::Cell, ptr};

use super::{
    HubRef, HubValue, Inner,
    shard::{Links, Place, Shard},
};
use crate::{
    atomic::Ordering::*,
    class::LockClass,
    percpu::{CpuPin, pin},
};

/// What a walk has come to.
pub enum Walked<'m, M> {
    /// This member. A shard's spin lock is held.
    Member(&'m M),
    /// The end of a hold: no lock of the hub is held.
    Released,
}

struct Walk<'h, T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    hub: &'h HubRef<T, M, C>,
    /// The shard that the walk has come to, as in [`Inner::shard`].
    at: Cell<usize>,
    /// Whether `mark` stands in that shard's list; then it does not move in memory.
    marked: Cell<bool>,
    mark: Links<T, M, C>,
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> HubRef<T, M, C> {
    /// Calls `step` for every member, under a shard's lock, and after each hold of a lock, of `most` members at most and at
    /// least one. A member that is attached or [replaced](super::Member::replace) meanwhile may be left out.
    ///
    /// Sleeping is allowed in `step` where nothing is held. Not for a hub that only [counts](HubValue::counts).
    pub fn walk(&self, most: usize, mut step: impl FnMut(Walked<'_, M>)) {
        debug_assert!(
            !T::MAY_COUNT || !self.inner().value.counts(),
            "a hub that only counts its members is walked"
        );
        let walk = Walk {
            hub: self,
            at: Cell::new(0),
            marked: Cell::new(false),
            mark: Links::mark(),
        };
        while walk.hold(most.max(1), &mut |member| step(Walked::Member(member))) {
            step(Walked::Released);
        }
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Walk<'_, T, M, C> {
    /// Visits up to `most` members of one shard; returns whether there was a shard to lock.
    fn hold(&self, most: usize, visit: &mut impl FnMut(&M)) -> bool {
        let pin = pin();
        let Some(shard) = self.find(&pin) else {
            return false;
        };
        let guard = shard.lock();
        let (mut at, had_unit) = (shard.head.load(Relaxed).cast_const(), self.marked.get());
        if had_unit {
            at = self.mark.next.get();
            self.take_mark(shard);
        }
        let (mut last, mut visited) = (ptr::null(), 0);
        while !at.is_null() && visited < most {
            // SAFETY: the lock is held, so that what is listed stays alive.
            let (value, next) = unsafe { Links::read(at) };
            if let Some(value) = value {
                visit(value);
                visited += 1;
            }
            (last, at) = (at, next);
        }
        if at.is_null() {
            self.at.set(self.at.get() + 1);
        } else {
            self.put_mark(shard, last, at);
        }
        let emptied = had_unit && shard.is_empty();
        drop(guard);
        if emptied {
            self.return_unit();
        }
        true
    }

    /// The shard to go on with: that of the mark, or the next one that has members.
    fn find<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Shard<T, M, C>> {
        loop {
            let shard = self.hub.inner().shard(pin, self.at.get())?;
            // As in a scan, a shard that is empty is not locked.
            if let Some(shard) = shard.filter(|shard| !shard.head.load(Acquire).is_null()) {
                return Some(shard);
            }
            self.at.set(self.at.get() + 1);
        }
    }

    /// Puts the mark between two places. The lock is held.
    fn put_mark(&self, shard: &Shard<T, M, C>, before: Place<T, M, C>, behind: Place<T, M, C>) {
        let mark = ptr::from_ref(&self.mark);
        shard.join((before, mark));
        shard.join((mark, behind));
        self.mark.prev.set(before);
        self.mark.next.set(behind);
        self.marked.set(true);
    }

    /// Takes the mark out. The lock is held. If the shard is empty without it, its unit is the caller's.
    fn take_mark(&self, shard: &Shard<T, M, C>) {
        shard.join((self.mark.prev.get(), self.mark.next.get()));
        self.marked.set(false);
    }

    fn return_unit(&self) {
        // SAFETY: the unit of a shard that is empty; the hub is alive by the walk's reference.
        unsafe { Inner::put(self.hub.inner) };
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Drop for Walk<'_, T, M, C> {
    /// A walk that ends early, by a panic.
    fn drop(&mut self) {
        if !self.marked.get() {
            return;
        }
        let pin = pin();
        let Some(Some(shard)) = self.hub.inner().shard(&pin, self.at.get()) else {
            return;
        };
        let guard = shard.lock();
        self.take_mark(shard);
        let emptied = shard.is_empty();
        drop(guard);
        if emptied {
            self.return_unit();
        }
    }
}
