//! Members of a hub.

use alloc::boxed::Box;
use core::{
    alloc::Layout,
    ops::{ControlFlow, Deref},
    ptr::{self, NonNull},
};

use super::{
    AttachError, HubRef, HubShard, HubValue, Inner,
    shard::{Node, Shard},
};
use crate::{
    atomic::Ordering::*,
    class::LockClass,
    percpu::{CpuPin, pin},
    spin::RawSpinGuard,
};

/// A hub grows after so many contended acquisitions of the inline shard, or attachments by another CPU than the last
/// one.
const GROW_AFTER: u32 = 4;

/// No memory to replace a member; returns the arguments unchanged.
pub struct ReplaceError<T: HubValue, M: Send + Sync + 'static, C: LockClass, const N: usize> {
    /// The member, still attached.
    pub old: Member<T, M, C>,
    /// The values that should have replaced it.
    pub new: [M; N],
}

/// A member of a hub, and thereby a reference to it. Dropping it detaches it: the node and its `M` are freed after a
/// grace period.
pub struct Member<T: HubValue, M: Send + Sync + 'static, C: LockClass = HubShard> {
    node: NonNull<Node<T, M, C>>,
}

// SAFETY: `T` and `M` are shared and dropped on any thread.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Sync for Member<T, M, C> {}
// SAFETY: as above.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Send for Member<T, M, C> {}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Member<T, M, C> {
    /// Turns the member into an address; it stays attached.
    pub(crate) fn into_raw(self) -> NonNull<()> {
        core::mem::ManuallyDrop::new(self).node.cast()
    }

    /// Turns the result of `into_raw` into a member again.
    ///
    /// # Safety
    /// `raw` comes from `into_raw` of exactly this type, and only one member made from it is ever dropped.
    pub(crate) unsafe fn from_raw(raw: NonNull<()>) -> Self {
        Self { node: raw.cast() }
    }

    fn node(&self) -> &Node<T, M, C> {
        // SAFETY: alive while attached.
        unsafe { self.node.as_ref() }
    }

    fn inner(&self) -> &Inner<T, M, C> {
        // SAFETY: the shard of an attached member keeps the hub alive.
        unsafe { self.node().links.hub.as_ref() }
    }

    fn shard(&self) -> &Shard<T, M, C> {
        // SAFETY: part of the hub, because it was attached.
        unsafe { &*self.node().links.shard.load(Acquire) }
    }

    /// The hub's value.
    #[inline]
    pub fn hub(&self) -> &T {
        &self.inner().value
    }

    /// The hub's value for the rest of the section, even if the member is detached meanwhile.
    #[inline]
    pub fn hub_pinned<'p>(&self, _pin: &'p CpuPin) -> &'p T {
        // SAFETY: attached now, in the section; the hub is freed no earlier than a grace period after the member was
        // detached.
        unsafe { &(*self.node().links.hub.as_ptr()).value }
    }

    /// The member's value for the rest of the section, even if it is detached meanwhile.
    #[inline]
    pub fn pinned<'p>(&self, _pin: &'p CpuPin) -> &'p M {
        // SAFETY: attached now, in the section; the node is freed a grace period after it was detached.
        unsafe { &(*self.node.as_ptr()).value }
    }

    /// A base reference to the hub; `None` if its last reference was dropped. An attached member always returns one. A
    /// caller that has found the member under a pin, and does not prevent its owner from detaching it, may find the hub
    /// ended.
    pub fn hub_ref(&self) -> Option<HubRef<T, M, C>> {
        let live = &self.inner().written.live;
        let mut units = live.load(Relaxed);
        while units != 0 {
            // Relaxed: the member was read from where it was published, and with it the hub. Zero is final.
            match live.compare_exchange_weak(units, units + 1, Relaxed, Relaxed) {
                Ok(_) => {
                    return Some(HubRef {
                        inner: self.node().links.hub,
                    });
                }
                Err(now) => units = now,
            }
        }
        None
    }

    /// Detaches the member. If it was the last of its shard, returns the shard's reference, which the caller must end.
    pub fn detach(self) -> Option<HubRef<T, M, C>> {
        let member = core::mem::ManuallyDrop::new(self);
        let inner = member.node().links.hub;
        // SAFETY: not used as a member afterwards.
        unsafe { member.leave() }.then(|| HubRef { inner })
    }

    /// Removes the member from its shard and retires it. Returns whether the shard is empty now, so that the caller
    /// owns its unit of `live`.
    ///
    /// # Safety
    /// The member is not used afterwards.
    unsafe fn leave(&self) -> bool {
        let shard = self.shard();
        let guard = shard.lock();
        let emptied = shard.unlink(self.node());
        let epoch = self.inner().epoch;
        // SAFETY: unlinked, and this call ends the only ownership.
        unsafe { epoch.retire_link(guard.pin(), self.node.as_ptr().cast()) };
        emptied
    }

    /// Whether both are members of one hub.
    pub fn same_hub(&self, other: &Self) -> bool {
        self.node().links.hub == other.node().links.hub
    }

    /// Whether the member belongs to `hub`.
    pub fn is_of(&self, hub: &HubRef<T, M, C>) -> bool {
        self.node().links.hub == hub.inner
    }

    /// Attaches another member in the same shard: a scan sees both in one hold of the lock.
    pub fn attach_beside(&self, value: M) -> Result<Self, AttachError> {
        let node = Node::new(self.node().links.hub, value).map_err(|_| AttachError)?;
        let node = NonNull::from(Box::leak(node));
        Node::attach(node, self.inner(), self.shard());
        Ok(Member { node })
    }

    /// Attaches another member to the same hub, in the shard of this CPU, or in the inline one if the hub is not grown or there
    /// is no memory; this member may move to the former, too. The caller prevents all concurrent operations on this member
    /// except reads. Allocates nothing but what lets the hub grow, so the caller may hold a pin.
    pub fn attach_elsewhere(&self, new: NewMember<T, M, C>) -> Self {
        self.move_here(&pin());
        new.join(self.node().links.hub)
    }

    /// Moves the member from the inline shard of a grown hub to this CPU's, if the latter's lock is free.
    fn move_here(&self, pin: &CpuPin) {
        let (inner, node) = (self.inner(), self.node());
        let Some(shards) = inner.grown.load(pin) else {
            return;
        };
        let from = self.shard();
        if !ptr::eq(from, &inner.written.inline) {
            return;
        }
        let Some(to) = shards.here(pin) else {
            return;
        };
        let emptied = {
            let _from = from.lock();
            // Two locks of one rank: this does not wait for the second.
            let Some(_to) = to.lock.try_lock::<C>() else {
                return;
            };
            if to.is_empty() {
                inner.written.live.fetch_add(1, Relaxed);
            }
            let neighbours = node.neighbours();
            // Linked into the new shard first: a scan that sees the old one empty finds the member there.
            node.belong_to(to);
            to.link(self.node);
            from.close(neighbours)
        };
        if emptied {
            // SAFETY: the inline shard's unit. The other shard's unit, which this member keeps, keeps the hub alive.
            unsafe { Inner::put(node.links.hub) };
        }
    }

    /// Replaces this member by members with the values `new`, in one hold of the shard's lock: a scan sees either the
    /// old one or all the new ones.
    pub fn replace<const N: usize>(
        self,
        new: [M; N],
    ) -> Result<[Self; N], ReplaceError<T, M, C, N>> {
        let hub = self.node().links.hub;
        let nodes = match new_nodes(hub, new) {
            Ok(nodes) => nodes,
            Err(new) => return Err(ReplaceError { old: self, new }),
        };
        let shard = self.shard();
        {
            let _guard = shard.lock();
            for node in nodes {
                // SAFETY: not linked yet, so owned by this thread.
                unsafe { node.as_ref().belong_to(shard) };
                shard.link(node);
            }
            if N > 0 {
                shard.unlink(self.node());
            }
        }
        // Without new members the drop of `self` detaches it, and returns the shard's unit if it was the last.
        if N > 0 {
            let (epoch, pin) = (self.inner().epoch, pin());
            let old = core::mem::ManuallyDrop::new(self);
            // SAFETY: unlinked, and the only owner is given up here.
            unsafe { epoch.retire_link(&pin, old.node.as_ptr().cast()) };
        }
        Ok(nodes.map(|node| Member { node }))
    }

    /// Visits every member of the hub; see [`HubRef::scan`].
    pub fn scan<B>(&self, visit: impl FnMut(&M) -> ControlFlow<B>) -> ControlFlow<B> {
        self.inner().scan(visit)
    }

    /// Locks the shard that contains the member.
    fn lock_shard(&self) -> (RawSpinGuard<'_, C>, &Shard<T, M, C>) {
        loop {
            let shard = self.shard();
            let guard = shard.lock();
            if ptr::eq(shard, self.shard()) {
                return (guard, shard);
            }
        }
    }

    /// Whether this member is the only reference to the hub. While it is, no other CPU can make one, except by
    /// [`hub_ref`](Member::hub_ref) of this member, or attach a member.
    pub fn is_sole(&self) -> bool {
        // There is another unit, or was a moment ago: no reason to take the lock.
        if self.inner().written.live.load(Relaxed) != 1 {
            return false;
        }
        let (_guard, shard) = self.lock_shard();
        // Acquire: all uses of the hub by other references are over and visible.
        shard.has_only(self.node()) && self.inner().written.live.load(Acquire) == 1
    }
}

/// `N` nodes that are not linked yet.
type NewNodes<T, M, C, const N: usize> = [NonNull<Node<T, M, C>>; N];

/// Nodes for all of `values`; otherwise all the values.
fn new_nodes<T: HubValue, M: Send + Sync + 'static, C: LockClass, const N: usize>(
    hub: NonNull<Inner<T, M, C>>,
    values: [M; N],
) -> Result<NewNodes<T, M, C, N>, [M; N]> {
    let results = values.map(|value| Node::new(hub, value));
    if results.iter().all(Result::is_ok) {
        let nodes = results.map(|r| r.unwrap_or_else(|_| unreachable!("all are nodes")));
        return Ok(nodes.map(|node| NonNull::from(Box::leak(node))));
    }
    Err(results.map(|result| match result {
        Ok(node) => node.value,
        Err(value) => value,
    }))
}

/// A member of no hub yet.
pub struct NewMember<T: HubValue, M: Send + Sync + 'static, C: LockClass = HubShard> {
    /// Owned, and not linked.
    node: Box<Node<T, M, C>>,
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> NewMember<T, M, C> {
    /// The block that it takes: for tests, which let just that fail.
    pub const BLOCK: Layout = Layout::new::<Node<T, M, C>>();

    /// Allocates it.
    ///
    /// # Errors
    /// No memory.
    pub fn new(value: M) -> Result<Self, AttachError> {
        // The hub is set where it is attached.
        let node = Node::new(NonNull::dangling(), value);
        node.map(|node| NewMember { node }).map_err(|_| AttachError)
    }

    /// Attaches it to a hub that the caller keeps alive: in this CPU's shard, else in the inline one, which may make the hub grow.
    pub(super) fn join(mut self, hub: NonNull<Inner<T, M, C>>) -> Member<T, M, C> {
        self.node.links.hub = hub;
        let node = NonNull::from(Box::leak(self.node));
        // SAFETY: alive by the caller's reference.
        let inner = unsafe { hub.as_ref() };
        let pin = pin();
        match inner.grown.load(&pin).and_then(|shards| shards.here(&pin)) {
            Some(shard) => Node::attach(node, inner, shard),
            None => {
                Node::attach(node, inner, &inner.written.inline);
                if inner.written.inline.used_by(pin.cpu()) >= GROW_AFTER {
                    // If there is no memory the hub does not grow.
                    let _ = inner.grow(&pin);
                }
            }
        }
        Member { node }
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Deref for Member<T, M, C> {
    type Target = M;
    #[inline]
    fn deref(&self) -> &M {
        &self.node().value
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Drop for Member<T, M, C> {
    fn drop(&mut self) {
        let hub = self.node().links.hub;
        // SAFETY: this ends the member.
        if unsafe { self.leave() } {
            // SAFETY: the shard's unit, which the operation that empties the shard returns. The hub is not used
            // afterwards.
            unsafe { Inner::put(hub) };
        }
    }
}
