//! The shards of a hub, and the nodes of its members.

use alloc::{boxed::Box, vec::Vec};
use core::{
    cell::Cell,
    marker::PhantomData,
    ops::ControlFlow,
    ptr::{self, NonNull},
};

use super::{HubValue, Inner};
use crate::{
    atomic::{AtomicPtr, AtomicU32, Ordering::*},
    class::LockClass,
    epoch::{Freed, Link},
    epoch_ptr::EpochPtr,
    heap::try_box,
    percpu::{CpuPin, Padded},
    spin::{RawSpin, RawSpinGuard},
};

/// What stands in a shard's list: the first field of a [`Node`], or the mark of a [walk](super::walk).
#[repr(C)]
pub(super) struct Links<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    link: Link,
    /// Neighbours in the shard, if it lists its members; guarded by its lock.
    pub(super) next: Cell<Place<T, M, C>>,
    pub(super) prev: Cell<Place<T, M, C>>,
    /// Const once attached. Dangling in a mark.
    pub(super) hub: NonNull<Inner<T, M, C>>,
    /// The shard that it is linked into. Written under the locks of both shards. Null in a mark.
    pub(super) shard: AtomicPtr<Shard<T, M, C>>,
}

/// A place in a shard's list, or its end. Leads to the whole node, if it is a node's.
pub(super) type Place<T, M, C> = *const Links<T, M, C>;

#[repr(C)]
pub(super) struct Node<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    pub(super) links: Links<T, M, C>,
    pub(super) value: M,
}

/// The places before and behind a node in its shard.
type Neighbours<T, M, C> = (Place<T, M, C>, Place<T, M, C>);

pub(super) struct Shard<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    pub(super) lock: RawSpin,
    /// Number of times that the lock was found held, or that another CPU than before attached a member. Atomic,
    /// approximate.
    contended: AtomicU32,
    /// The CPU that attached last; used for the inline shard. Atomic, approximate.
    last_cpu: AtomicU32,
    /// Number of members that have left it, modulo 2^32. Written under `lock`, read without it.
    left: AtomicU32,
    /// The first member; or, if the shard only counts its members, twice their number plus one, which is no address of
    /// a node. Null if there are none. Written under `lock`, may be read without it.
    pub(super) head: AtomicPtr<Links<T, M, C>>,
    class: PhantomData<C>,
}

/// Pointer to a CPU's shard: empty until the CPU attaches a member, then set once.
type ShardPtr<T, M, C> = EpochPtr<Box<Padded<Shard<T, M, C>>>>;

/// Places of shards that stand on a line of their own: each attachment reads one, and next to none writes one, so the line
/// must have no neighbours that are written.
#[repr(align(64))]
struct Line<T>([T; 8]);

/// The shards of a grown hub, by CPU. On a line of its own, as the places are.
#[repr(align(64))]
pub(super) struct Shards<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    lines: Box<[Line<ShardPtr<T, M, C>>]>,
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Shards<T, M, C> {
    /// `None` if memory is short.
    pub(super) fn new(ncpus: usize) -> Option<Self> {
        let mut lines = Vec::new();
        lines.try_reserve_exact(ncpus.div_ceil(8)).ok()?;
        let line = |_| Line(core::array::from_fn(|_| EpochPtr::new(None)));
        lines.extend((0..ncpus.div_ceil(8)).map(line));
        Some(Self {
            lines: lines.into_boxed_slice(),
        })
    }

    /// This CPU's shard; `None` if there is no memory for it.
    pub(super) fn here<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Shard<T, M, C>> {
        let place = &self.lines[pin.cpu() / 8].0[pin.cpu() % 8];
        if place.is_none() {
            place.set_if_none(try_box(Padded(Shard::new())).ok()?).ok();
        }
        place.load(pin).map(|shard| &shard.0)
    }

    /// A CPU's shard, if it has one; `None` if there is no such CPU.
    pub(super) fn of<'p>(
        &'p self,
        pin: &'p CpuPin,
        cpu: usize,
    ) -> Option<Option<&'p Shard<T, M, C>>> {
        let place = &self.lines.get(cpu / 8)?.0[cpu % 8];
        Some(place.load(pin).map(|shard| &shard.0))
    }

    pub(super) fn iter<'p>(&'p self, pin: &'p CpuPin) -> impl Iterator<Item = &'p Shard<T, M, C>> {
        let places = self.lines.iter().flat_map(|line| &line.0);
        let shards = places.filter_map(|place| place.load(pin));
        shards.map(|shard| &shard.0)
    }
}

// SAFETY: nodes are linked and unlinked under the shard's lock; `M` is shared, and dropped on any thread.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Sync for Shard<T, M, C> {}
// SAFETY: as above.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Send for Shard<T, M, C> {}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Shard<T, M, C> {
    pub(super) fn new() -> Self {
        Self {
            lock: RawSpin::new(),
            contended: AtomicU32::new(0),
            last_cpu: AtomicU32::new(0),
            left: AtomicU32::new(0),
            head: AtomicPtr::new(ptr::null_mut()),
            class: PhantomData,
        }
    }

    pub(super) fn lock(&self) -> RawSpinGuard<'_, C> {
        if self.lock.is_locked() {
            self.contended.fetch_add(1, Relaxed);
        }
        self.lock.lock::<C>()
    }

    /// Records that `cpu` has attached a member; returns how contended the shard has been.
    pub(super) fn used_by(&self, cpu: usize) -> u32 {
        let contended = self.contended.load(Relaxed);
        if self.last_cpu.load(Relaxed) == cpu as u32 {
            return contended;
        }
        self.last_cpu.store(cpu as u32, Relaxed);
        self.contended.store(contended + 1, Relaxed);
        contended + 1
    }

    /// Number of members that have left, modulo 2^32.
    pub(super) fn left(&self) -> u32 {
        self.left.load(Acquire)
    }

    /// Whether it has no member. The lock is held.
    pub(super) fn is_empty(&self) -> bool {
        self.head.load(Relaxed).is_null()
    }

    /// The number of its members, if it has some and only counts them. The lock is held.
    fn counted(&self) -> Option<usize> {
        if !T::MAY_COUNT {
            return None;
        }
        let head = self.head.load(Relaxed).addr();
        (head & 1 != 0).then_some(head >> 1)
    }

    /// Sets the number of the members that are only counted. The lock is held.
    fn count(&self, members: usize) {
        let head = if members == 0 { 0 } else { members << 1 | 1 };
        let head = ptr::without_provenance_mut(head);
        self.head.store(head, Relaxed);
    }

    /// Whether `node`, which is in it, is its only member. The lock is held.
    pub(super) fn has_only(&self, node: &Node<T, M, C>) -> bool {
        if let Some(members) = self.counted() {
            return members == 1;
        }
        node.links.prev.get().is_null() && node.links.next.get().is_null()
    }

    /// Takes in `node`: counts it, if the shard counts or is empty in a hub that does, or links it. The lock is held, and
    /// the hub is alive.
    pub(super) fn link(&self, node: NonNull<Node<T, M, C>>) {
        if T::MAY_COUNT {
            // SAFETY: the caller owns the node, and keeps its hub alive.
            let value = unsafe { &node.as_ref().links.hub.as_ref().value };
            let empty = || (self.is_empty() && value.counts()).then_some(0);
            if let Some(others) = self.counted().or_else(empty) {
                return self.count(others + 1);
            }
        }
        let (head, node) = (
            self.head.load(Relaxed),
            node.as_ptr().cast::<Links<T, M, C>>(),
        );
        // SAFETY: the caller owns the unlinked node, and holds the lock for its neighbour.
        unsafe {
            (*node).prev.set(ptr::null());
            (*node).next.set(head);
            if let Some(head) = head.as_ref() {
                head.prev.set(node);
            }
        }
        // Relaxed: a scan that reads the head without the lock only learns whether to take the lock.
        self.head.store(node, Relaxed);
    }

    /// Takes out `node`. The lock is held. Returns whether the shard is empty now.
    pub(super) fn unlink(&self, node: &Node<T, M, C>) -> bool {
        self.close(node.neighbours())
    }

    /// Takes out a node between these neighbours, or ends of the list, which it had here and may no more have. The lock
    /// is held. Returns whether the shard is empty now.
    pub(super) fn close(&self, (prev, next): Neighbours<T, M, C>) -> bool {
        // Release: a reader of the number sees what the member, or one made from it, joined before.
        self.left.store(self.left().wrapping_add(1), Release);
        if let Some(members) = self.counted() {
            self.count(members - 1);
            return self.is_empty();
        }
        self.join((prev, next));
        self.is_empty()
    }

    /// Makes two places, or ends of the list, neighbours. The lock is held.
    pub(super) fn join(&self, (prev, next): Neighbours<T, M, C>) {
        // SAFETY: neighbours on the list are alive while the lock is held.
        unsafe {
            match prev.as_ref() {
                Some(prev) => prev.next.set(next),
                // Release: a scan that sees the shard empty sees the new place of its last member.
                None => self.head.store(next.cast_mut(), Release),
            }
            if let Some(next) = next.as_ref() {
                next.prev.set(prev);
            }
        }
    }

    /// Visits the members under the lock, until `visit` breaks; takes no lock if there are none. Visits none that are only
    /// counted.
    pub(super) fn scan<B>(&self, visit: &mut impl FnMut(&M) -> ControlFlow<B>) -> ControlFlow<B> {
        if self.head.load(Acquire).is_null() {
            return ControlFlow::Continue(());
        }
        let _guard = self.lock();
        if self.counted().is_some() {
            return ControlFlow::Continue(());
        }
        let mut at: Place<T, M, C> = self.head.load(Relaxed);
        while !at.is_null() {
            // SAFETY: the lock is held, so that what is listed stays alive.
            let (value, next) = unsafe { Links::read(at) };
            value.map_or(ControlFlow::Continue(()), &mut *visit)?;
            at = next;
        }
        ControlFlow::Continue(())
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Links<T, M, C> {
    fn new(hub: NonNull<Inner<T, M, C>>, run: unsafe fn(*mut Link) -> Freed) -> Self {
        Links {
            link: Link::new(run),
            next: Cell::new(ptr::null()),
            prev: Cell::new(ptr::null()),
            hub,
            shard: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// A mark, which is no member, and is never retired.
    pub(super) fn mark() -> Self {
        Links::new(NonNull::dangling(), |_| Freed::All(0))
    }

    /// The member at a place, unless a mark is there, and the next place.
    ///
    /// # Safety
    /// `at` is in a list, and stays alive for `'s`.
    #[inline(always)]
    pub(super) unsafe fn read<'s>(at: Place<T, M, C>) -> (Option<&'s M>, Place<T, M, C>) {
        // SAFETY: as the caller says.
        let links = unsafe { &*at };
        let is_mark = links.hub == NonNull::dangling();
        // SAFETY: it is the first field of a node, of which the place was made.
        let value = (!is_mark).then(|| unsafe { &(*at.cast::<Node<T, M, C>>()).value });
        (value, links.next.get())
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Node<T, M, C> {
    unsafe fn free(link: *mut Link) -> Freed {
        // SAFETY: as in `Inner::free`.
        drop(unsafe { Box::from_raw(link.cast::<Self>()) });
        Freed::All(1)
    }

    /// Its neighbours. Its shard's lock is held.
    pub(super) fn neighbours(&self) -> Neighbours<T, M, C> {
        (self.links.prev.get(), self.links.next.get())
    }

    /// A node that is not linked yet, or the value if memory is short.
    pub(super) fn new(hub: NonNull<Inner<T, M, C>>, value: M) -> Result<Box<Self>, M> {
        let links = Links::new(hub, Self::free);
        let node = try_box(Node { links, value });
        node.map_err(|node| node.value)
    }

    pub(super) fn belong_to(&self, shard: &Shard<T, M, C>) {
        self.links
            .shard
            .store(ptr::from_ref(shard).cast_mut(), Release);
    }

    /// Links a new node into `shard`; the caller keeps its hub alive.
    pub(super) fn attach(node: NonNull<Self>, hub: &Inner<T, M, C>, shard: &Shard<T, M, C>) {
        // SAFETY: not linked yet, so owned by the caller.
        unsafe { node.as_ref().belong_to(shard) };
        let _guard = shard.lock();
        if shard.is_empty() {
            // Relaxed: the caller's own reference keeps the count from zero.
            hub.written.live.fetch_add(1, Relaxed);
        }
        shard.link(node);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::super::{HubRef, HubValue};
    use crate::epoch::Epoch;

    struct Counting(bool);

    impl HubValue for Counting {
        const MAY_COUNT: bool = true;

        fn counts(&self) -> bool {
            self.0
        }
    }

    /// In a hub that counts no member is linked to another.
    #[test]
    fn a_hub_counts_or_lists() {
        let epoch = Epoch::new(1);
        for counts in [false, true] {
            let hub: HubRef<_, u8> = HubRef::new(&epoch, Counting(counts)).ok().unwrap();
            let members = [1, 2].map(|value| hub.attach(value).unwrap());
            let shard = &hub.inner().written.inline;
            assert_eq!(shard.counted(), counts.then_some(2));
            drop(members);
            assert!(shard.is_empty());
        }
    }
}
