//! Hubs: a value and the set of its members, where membership is a reference.
//!
//! A hub is one heap block with a `T` and shards of member nodes. It lives while there are base references ([`HubRef`])
//! or members. Attaching or detaching a member takes one shard's spin lock and writes no other line that CPUs share:
//! the hub's one count, `live`, holds a unit per base reference and one per *non-empty shard*, so only a shard's first
//! and last member change it.
//!
//! A hub starts with one inline shard. When that one is contended (its lock was found held, or another CPU used it
//! last), the hub grows: it gets a pointer to a shard for each CPU, and each CPU that attaches a member from then on
//! allocates its own shard; for other CPUs this costs one word each. A scan visits every member that was attached
//! before it began and is not detached: shards are never merged, and [`Member::replace`] exchanges members in one hold
//! of their lock. A member moves at most once, from the inline shard to that of a CPU that attaches another member
//! through it. Otherwise that CPU's shard would be filled and emptied, and `live` written, each time. Scans visit the
//! inline shard first, so they find a moved member in one of the two shards, or in both.
//!
//! When the last reference is dropped, [`HubValue::last`] runs at once, in the context of that drop, with no lock of
//! the hub held. The memory of hubs and members, and their drop, wait for a grace period, so that lock-free readers may
//! follow them under a pin.
//!
//! Ordering of `live`: a decrement is Release, and the one that reaches zero fences with Acquire, as in every reference
//! count. Zero is final: a CPU that has found a member only under a pin, while its owner may be detaching it, adds a
//! unit by compare-and-swap and fails on zero. A shard's unit is added under its lock while another reference is held.
//! The operation that empties the shard returns the unit after it has released the lock; if the shard is filled again
//! in between, it has two units for a moment. A scan may skip a shard whose head it reads as null without the lock: an
//! attach that happens before the scan is visible to it, and a protocol that races with attaches needs a full fence on
//! both sides anyway.

use alloc::{boxed::Box, vec::Vec};
use core::{
    cell::Cell,
    marker::PhantomData,
    ops::{ControlFlow, Deref},
    ptr::{self, NonNull},
};

use crate::{
    atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering::*, fence},
    class::LockClass,
    epoch::{Epoch, EpochHandle, Freed, Link},
    epoch_ptr::EpochPtr,
    heap::try_box,
    lock_class,
    percpu::{CpuPin, Padded, pin},
    spin::{RawSpin, RawSpinGuard},
};

lock_class!(
    /// The default class of hub shards.
    pub HubShard,
    "hub shard",
    rank = 90
);

/// A hub grows after so many contended acquisitions of the inline shard, or attachments by another CPU than the last
/// one.
const GROW_AFTER: u32 = 4;

/// The value of a hub.
pub trait HubValue: Send + Sync + 'static {
    /// Called when the last reference was dropped: frees what the value owns. The value itself is dropped a grace
    /// period later, because readers under a pin may still use it.
    fn last(&self) {}

    /// Frees a bounded part of what the value owns, before it is dropped; returns whether there is more. Called with
    /// preemption off; the CPU may be preempted between two calls.
    fn free_part(&mut self) -> bool {
        false
    }
}

/// No memory for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachError;

/// No memory to replace a member; returns the arguments unchanged.
pub struct ReplaceError<T: HubValue, M: Send + Sync + 'static, C: LockClass, const N: usize> {
    /// The member, still attached.
    pub old: Member<T, M, C>,
    /// The values that should have replaced it.
    pub new: [M; N],
}

#[repr(C)]
struct Node<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    link: Link,
    /// Neighbours in the shard; guarded by its lock.
    next: Cell<*const Node<T, M, C>>,
    prev: Cell<*const Node<T, M, C>>,
    /// Const once attached.
    hub: NonNull<Inner<T, M, C>>,
    /// The shard that it is linked into. Written under the locks of both shards.
    shard: AtomicPtr<Shard<T, M, C>>,
    value: M,
}

struct Shard<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    lock: RawSpin,
    /// Number of times that the lock was found held, or that another CPU than before attached a member. Atomic,
    /// approximate.
    contended: AtomicU32,
    /// The CPU that attached last; used for the inline shard. Atomic, approximate.
    last_cpu: AtomicU32,
    /// Written under `lock`, may be read without it.
    head: AtomicPtr<Node<T, M, C>>,
    class: PhantomData<C>,
}

#[repr(C)]
struct Inner<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    written: Written<T, M, C>,
    epoch: EpochHandle,
    /// Set once, when the hub grows.
    grown: EpochPtr<Box<Shards<T, M, C>>>,
    value: T,
}

/// Pointer to a CPU's shard: empty until the CPU attaches a member, then set once.
type ShardPtr<T, M, C> = EpochPtr<Box<Padded<Shard<T, M, C>>>>;

/// The shards of a grown hub, by CPU.
struct Shards<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    places: Box<[ShardPtr<T, M, C>]>,
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Shards<T, M, C> {
    /// `None` if memory is short.
    fn new(ncpus: usize) -> Option<Self> {
        let mut places = Vec::new();
        places.try_reserve_exact(ncpus).ok()?;
        places.extend((0..ncpus).map(|_| EpochPtr::new(None)));
        Some(Self {
            places: places.into_boxed_slice(),
        })
    }

    /// This CPU's shard; `None` if there is no memory for it.
    fn here<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Shard<T, M, C>> {
        let place = &self.places[pin.cpu()];
        if place.is_none() {
            place.set_if_none(try_box(Padded(Shard::new())).ok()?).ok();
        }
        place.load(pin).map(|shard| &shard.0)
    }

    fn iter<'p>(&'p self, pin: &'p CpuPin) -> impl Iterator<Item = &'p Shard<T, M, C>> {
        let shards = self.places.iter().filter_map(|place| place.load(pin));
        shards.map(|shard| &shard.0)
    }
}

/// Fields that attaching and detaching write, on a line apart from those that every CPU reads.
#[repr(C, align(64))]
struct Written<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    /// The first field, so that the block can be retired by it.
    link: Link,
    /// Base references plus non-empty shards. Atomic.
    live: AtomicUsize,
    inline: Shard<T, M, C>,
}

// SAFETY: nodes are linked and unlinked under the shard's lock; `M` is shared, and dropped on any thread.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Sync for Shard<T, M, C> {}
// SAFETY: as above.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Send for Shard<T, M, C> {}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Shard<T, M, C> {
    fn new() -> Self {
        Self {
            lock: RawSpin::new(),
            contended: AtomicU32::new(0),
            last_cpu: AtomicU32::new(0),
            head: AtomicPtr::new(ptr::null_mut()),
            class: PhantomData,
        }
    }

    fn lock(&self) -> RawSpinGuard<'_, C> {
        if self.lock.is_locked() {
            self.contended.fetch_add(1, Relaxed);
        }
        self.lock.lock::<C>()
    }

    /// Records that `cpu` has attached a member; returns how contended the shard has been.
    fn used_by(&self, cpu: usize) -> u32 {
        let contended = self.contended.load(Relaxed);
        if self.last_cpu.load(Relaxed) == cpu as u32 {
            return contended;
        }
        self.last_cpu.store(cpu as u32, Relaxed);
        self.contended.store(contended + 1, Relaxed);
        contended + 1
    }

    fn head(&self) -> Option<&Node<T, M, C>> {
        // SAFETY: the caller holds the lock, so that listed nodes stay alive.
        unsafe { self.head.load(Relaxed).as_ref() }
    }

    /// Links `node`. The lock is held.
    fn link(&self, node: NonNull<Node<T, M, C>>) {
        let head = self.head.load(Relaxed);
        // SAFETY: the caller owns the unlinked node, and holds the lock for its neighbour.
        unsafe {
            node.as_ref().prev.set(ptr::null());
            node.as_ref().next.set(head);
            if let Some(head) = head.as_ref() {
                head.prev.set(node.as_ptr());
            }
        }
        // Relaxed: a scan that reads the head without the lock only learns whether to take the lock.
        self.head.store(node.as_ptr(), Relaxed);
    }

    /// Unlinks `node`. The lock is held. Returns whether the shard is empty now.
    fn unlink(&self, node: &Node<T, M, C>) -> bool {
        self.close(node.prev.get(), node.next.get())
    }

    /// Links two neighbours, or ends of the list, to each other, past the node between them. The lock is held. Returns
    /// whether the shard is empty now.
    fn close(&self, prev: *const Node<T, M, C>, next: *const Node<T, M, C>) -> bool {
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
        self.head.load(Relaxed).is_null()
    }

    fn scan<B>(&self, visit: &mut impl FnMut(&M) -> ControlFlow<B>) -> ControlFlow<B> {
        if self.head.load(Acquire).is_null() {
            return ControlFlow::Continue(());
        }
        let _guard = self.lock();
        let mut at = self.head();
        while let Some(node) = at {
            visit(&node.value)?;
            // SAFETY: the lock is held.
            at = unsafe { node.next.get().as_ref() };
        }
        ControlFlow::Continue(())
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Inner<T, M, C> {
    /// Frees a hub whose grace period is over, or a part of it.
    unsafe fn free(link: *mut Link) -> Freed {
        let hub = link.cast::<Self>();
        // SAFETY: `link` is the first field of the block, which is not shared any more.
        if unsafe { (*hub).value.free_part() } {
            return Freed::Some(0);
        }
        // SAFETY: the block is a leaked box; it is freed once.
        drop(unsafe { Box::from_raw(hub) });
        Freed::All(1)
    }

    fn shards<'p>(&'p self, pin: &'p CpuPin) -> impl Iterator<Item = &'p Shard<T, M, C>> {
        let grown = self.grown.load(pin).into_iter();
        let grown = grown.flat_map(|shards| shards.iter(pin));
        core::iter::once(&self.written.inline).chain(grown)
    }

    fn grow(&self, pin: &CpuPin) -> Result<(), AttachError> {
        if self.grown.load(pin).is_some() {
            return Ok(());
        }
        let shards = Shards::new(self.epoch.ncpus()).ok_or(AttachError)?;
        // Shards that another CPU has set serve as well.
        let _ = self
            .grown
            .set_if_none(try_box(shards).map_err(|_| AttachError)?);
        Ok(())
    }

    fn scan<B>(&self, mut visit: impl FnMut(&M) -> ControlFlow<B>) -> ControlFlow<B> {
        self.written.inline.scan(&mut visit)?;
        let pin = pin();
        self.shards(&pin)
            .skip(1)
            .try_for_each(|shard| shard.scan(&mut visit))
    }

    /// Returns one unit of `live`, which the caller held.
    ///
    /// # Safety
    /// `hub` is alive by that unit, and the caller does not use it afterwards.
    unsafe fn put(hub: NonNull<Self>) {
        // SAFETY: alive by the caller's unit.
        let inner = unsafe { hub.as_ref() };
        if inner.written.live.fetch_sub(1, Release) != 1 {
            return;
        }
        fence(Acquire);
        inner.value.last();
        let (epoch, pin) = (inner.epoch, pin());
        // SAFETY: no reference is left, so that only readers in sections open now can reach it. Not used afterwards.
        unsafe { epoch.retire_link(&pin, hub.as_ptr().cast()) };
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Node<T, M, C> {
    unsafe fn free(link: *mut Link) -> Freed {
        // SAFETY: as in `Inner::free`.
        drop(unsafe { Box::from_raw(link.cast::<Self>()) });
        Freed::All(1)
    }

    /// A node that is not linked yet.
    fn new(hub: NonNull<Inner<T, M, C>>, value: M) -> Result<NonNull<Self>, M> {
        let node = try_box(Node {
            link: Link::new(Self::free),
            next: Cell::new(ptr::null()),
            prev: Cell::new(ptr::null()),
            hub,
            shard: AtomicPtr::new(ptr::null_mut()),
            value,
        });
        match node {
            Ok(node) => Ok(NonNull::from(Box::leak(node))),
            Err(node) => Err(node.value),
        }
    }

    fn belong_to(&self, shard: &Shard<T, M, C>) {
        self.shard.store(ptr::from_ref(shard).cast_mut(), Release);
    }

    /// Links a new node into `shard`; the caller keeps its hub alive.
    fn attach(node: NonNull<Self>, hub: &Inner<T, M, C>, shard: &Shard<T, M, C>) {
        // SAFETY: not linked yet, so owned by the caller.
        unsafe { node.as_ref().belong_to(shard) };
        let _guard = shard.lock();
        if shard.head().is_none() {
            // Relaxed: the caller's own reference keeps the count from zero.
            hub.written.live.fetch_add(1, Relaxed);
        }
        shard.link(node);
    }
}

/// A base reference to a hub: keeps it alive without being a member. Cloning it writes the hub's shared count.
pub struct HubRef<T: HubValue, M: Send + Sync + 'static, C: LockClass = HubShard> {
    inner: NonNull<Inner<T, M, C>>,
}

// SAFETY: `T` and `M` are shared and dropped on any thread.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Sync for HubRef<T, M, C> {}
// SAFETY: as above.
unsafe impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Send for HubRef<T, M, C> {}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> HubRef<T, M, C> {
    /// A hub without members; its memory is freed through `epoch`. Returns `value` if memory is short.
    pub fn new(epoch: &Epoch, value: T) -> Result<Self, T> {
        let inner = try_box(Inner {
            written: Written {
                link: Link::new(Inner::<T, M, C>::free),
                live: AtomicUsize::new(1),
                inline: Shard::new(),
            },
            epoch: epoch.handle(),
            grown: EpochPtr::new(None),
            value,
        });
        match inner {
            Ok(inner) => {
                let inner = Box::into_raw(inner);
                // For `around`: a reference to the value alone does not lead to what stands beside it.
                inner.expose_provenance();
                // SAFETY: a box is not null.
                let inner = unsafe { NonNull::new_unchecked(inner) };
                Ok(Self { inner })
            }
            Err(inner) => Err(inner.into_value()),
        }
    }

    fn inner(&self) -> &Inner<T, M, C> {
        // SAFETY: alive by this reference.
        unsafe { self.inner.as_ref() }
    }

    /// Attaches a member, in a shard chosen by CPU.
    pub fn attach(&self, value: M) -> Result<Member<T, M, C>, AttachError> {
        attach_chosen(self.inner, value)
    }

    /// Visits every member, a shard's spin lock at a time, until `visit` breaks.
    pub fn scan<B>(&self, visit: impl FnMut(&M) -> ControlFlow<B>) -> ControlFlow<B> {
        self.inner().scan(visit)
    }

    /// Lets each CPU have a shard of its own; existing members stay in theirs.
    pub fn grow(&self) -> Result<(), AttachError> {
        self.inner().grow(&pin())
    }

    /// Whether each CPU may have a shard of its own.
    pub fn is_grown(&self) -> bool {
        !self.inner().grown.is_none()
    }

    /// Whether this is the only reference, base or member. Then no other CPU can make one, except by
    /// [`Member::hub_ref`].
    pub fn is_only(&self) -> bool {
        self.inner().written.live.load(Acquire) == 1
    }

    /// Ends this reference, unless it is the only one: then returns it, so that what the value owns can be freed while
    /// the hub is alive. Of all references that end at the same time exactly one, the last, is returned.
    pub fn end_unless_only(self) -> Result<(), Self> {
        let live = &self.inner().written.live;
        let mut units = live.load(Acquire);
        while units != 1 {
            // Release as in `put`; Acquire for the caller that finds that the others have ended.
            match live.compare_exchange_weak(units, units - 1, Release, Acquire) {
                Ok(_) => {
                    core::mem::forget(self);
                    return Ok(());
                }
                Err(now) => units = now,
            }
        }
        Err(self)
    }

    /// The value for the rest of the section, even if this reference is dropped meanwhile.
    pub fn pinned<'p>(&self, _pin: &'p CpuPin) -> &'p T {
        // SAFETY: alive now, in the section; the hub is freed no earlier than a grace period after its last reference
        // was dropped.
        unsafe { &(*self.inner.as_ptr()).value }
    }

    /// The hub around a value, not owned: the result must not outlive the reference that keeps `value` alive.
    ///
    /// # Safety
    /// `value` is in a hub of exactly this type.
    pub unsafe fn around(value: &T) -> core::mem::ManuallyDrop<Self> {
        let start = ptr::from_ref(value).addr() - core::mem::offset_of!(Inner<T, M, C>, value);
        let inner = ptr::with_exposed_provenance_mut(start);
        // SAFETY: the value is that field of an `Inner`, so this is the start of one, which `new` has exposed; not null.
        let inner = unsafe { NonNull::new_unchecked(inner) };
        core::mem::ManuallyDrop::new(Self { inner })
    }

    /// Whether both refer to the same hub.
    pub fn same(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Inner<T, M, C> {
    fn into_value(self) -> T {
        self.value
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Deref for HubRef<T, M, C> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Clone for HubRef<T, M, C> {
    fn clone(&self) -> Self {
        // Relaxed: `self` keeps the count from zero.
        self.inner().written.live.fetch_add(1, Relaxed);
        Self { inner: self.inner }
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Drop for HubRef<T, M, C> {
    fn drop(&mut self) {
        // SAFETY: returns this reference's own unit.
        unsafe { Inner::put(self.inner) };
    }
}

/// Attaches to a hub that the caller keeps alive.
fn attach_chosen<T: HubValue, M: Send + Sync + 'static, C: LockClass>(
    hub: NonNull<Inner<T, M, C>>,
    value: M,
) -> Result<Member<T, M, C>, AttachError> {
    let node = Node::new(hub, value).map_err(|_| AttachError)?;
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
    Ok(Member { node })
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
        unsafe { self.node().hub.as_ref() }
    }

    fn shard(&self) -> &Shard<T, M, C> {
        // SAFETY: part of the hub, because it was attached.
        unsafe { &*self.node().shard.load(Acquire) }
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
        unsafe { &(*self.node().hub.as_ptr()).value }
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
                        inner: self.node().hub,
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
        let inner = member.node().hub;
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
        self.node().hub == other.node().hub
    }

    /// Whether the member belongs to `hub`.
    pub fn is_of(&self, hub: &HubRef<T, M, C>) -> bool {
        self.node().hub == hub.inner
    }

    /// Attaches another member in the same shard: a scan sees both in one hold of the lock.
    pub fn attach_beside(&self, value: M) -> Result<Self, AttachError> {
        let node = Node::new(self.node().hub, value).map_err(|_| AttachError)?;
        Node::attach(node, self.inner(), self.shard());
        Ok(Member { node })
    }

    /// Attaches another member to the same hub, in the shard of this CPU; this member may move there, too. The caller
    /// prevents all concurrent operations on this member except reads.
    pub fn attach_elsewhere(&self, value: M) -> Result<Self, AttachError> {
        self.move_here(&pin());
        attach_chosen(self.node().hub, value)
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
            if to.head().is_none() {
                inner.written.live.fetch_add(1, Relaxed);
            }
            let (prev, next) = (node.prev.get(), node.next.get());
            // Linked into the new shard first: a scan that sees the old one empty finds the member there.
            node.belong_to(to);
            to.link(self.node);
            from.close(prev, next)
        };
        if emptied {
            // SAFETY: the inline shard's unit. The other shard's unit, which this member keeps, keeps the hub alive.
            unsafe { Inner::put(node.hub) };
        }
    }

    /// Replaces this member by members with the values `new`, in one hold of the shard's lock: a scan sees either the
    /// old one or all the new ones.
    pub fn replace<const N: usize>(
        self,
        new: [M; N],
    ) -> Result<[Self; N], ReplaceError<T, M, C, N>> {
        let hub = self.node().hub;
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
    fn lock_shard(&self) -> RawSpinGuard<'_, C> {
        loop {
            let shard = self.shard();
            let guard = shard.lock();
            if ptr::eq(shard, self.shard()) {
                return guard;
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
        let (_guard, node) = (self.lock_shard(), self.node());
        let alone = node.prev.get().is_null() && node.next.get().is_null();
        // Acquire: all uses of the hub by other references are over and visible.
        alone && self.inner().written.live.load(Acquire) == 1
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
        return Ok(results.map(|r| r.unwrap_or_else(|_| unreachable!("all are nodes"))));
    }
    Err(results.map(|result| match result {
        // SAFETY: made above, never linked.
        Ok(node) => unsafe { Box::from_raw(node.as_ptr()) }.value,
        Err(value) => value,
    }))
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
        let hub = self.node().hub;
        // SAFETY: this ends the member.
        if unsafe { self.leave() } {
            // SAFETY: the shard's unit, which the operation that empties the shard returns. The hub is not used
            // afterwards.
            unsafe { Inner::put(hub) };
        }
    }
}
