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

#[repr(C)]
pub(super) struct Node<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    link: Link,
    /// Neighbours in the shard; guarded by its lock.
    pub(super) next: Cell<*const Node<T, M, C>>,
    pub(super) prev: Cell<*const Node<T, M, C>>,
    /// Const once attached.
    pub(super) hub: NonNull<Inner<T, M, C>>,
    /// The shard that it is linked into. Written under the locks of both shards.
    pub(super) shard: AtomicPtr<Shard<T, M, C>>,
    pub(super) value: M,
}

pub(super) struct Shard<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    pub(super) lock: RawSpin,
    /// Number of times that the lock was found held, or that another CPU than before attached a member. Atomic,
    /// approximate.
    contended: AtomicU32,
    /// The CPU that attached last; used for the inline shard. Atomic, approximate.
    last_cpu: AtomicU32,
    /// Written under `lock`, may be read without it.
    head: AtomicPtr<Node<T, M, C>>,
    class: PhantomData<C>,
}

/// Pointer to a CPU's shard: empty until the CPU attaches a member, then set once.
type ShardPtr<T, M, C> = EpochPtr<Box<Padded<Shard<T, M, C>>>>;

/// The shards of a grown hub, by CPU.
pub(super) struct Shards<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    places: Box<[ShardPtr<T, M, C>]>,
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Shards<T, M, C> {
    /// `None` if memory is short.
    pub(super) fn new(ncpus: usize) -> Option<Self> {
        let mut places = Vec::new();
        places.try_reserve_exact(ncpus).ok()?;
        places.extend((0..ncpus).map(|_| EpochPtr::new(None)));
        Some(Self {
            places: places.into_boxed_slice(),
        })
    }

    /// This CPU's shard; `None` if there is no memory for it.
    pub(super) fn here<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Shard<T, M, C>> {
        let place = &self.places[pin.cpu()];
        if place.is_none() {
            place.set_if_none(try_box(Padded(Shard::new())).ok()?).ok();
        }
        place.load(pin).map(|shard| &shard.0)
    }

    pub(super) fn iter<'p>(&'p self, pin: &'p CpuPin) -> impl Iterator<Item = &'p Shard<T, M, C>> {
        let shards = self.places.iter().filter_map(|place| place.load(pin));
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

    pub(super) fn head(&self) -> Option<&Node<T, M, C>> {
        // SAFETY: the caller holds the lock, so that listed nodes stay alive.
        unsafe { self.head.load(Relaxed).as_ref() }
    }

    /// Links `node`. The lock is held.
    pub(super) fn link(&self, node: NonNull<Node<T, M, C>>) {
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
    pub(super) fn unlink(&self, node: &Node<T, M, C>) -> bool {
        self.close(node.prev.get(), node.next.get())
    }

    /// Links two neighbours, or ends of the list, to each other, past the node between them. The lock is held. Returns
    /// whether the shard is empty now.
    pub(super) fn close(&self, prev: *const Node<T, M, C>, next: *const Node<T, M, C>) -> bool {
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

    pub(super) fn scan<B>(&self, visit: &mut impl FnMut(&M) -> ControlFlow<B>) -> ControlFlow<B> {
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

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Node<T, M, C> {
    unsafe fn free(link: *mut Link) -> Freed {
        // SAFETY: as in `Inner::free`.
        drop(unsafe { Box::from_raw(link.cast::<Self>()) });
        Freed::All(1)
    }

    /// A node that is not linked yet.
    pub(super) fn new(hub: NonNull<Inner<T, M, C>>, value: M) -> Result<NonNull<Self>, M> {
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

    pub(super) fn belong_to(&self, shard: &Shard<T, M, C>) {
        self.shard.store(ptr::from_ref(shard).cast_mut(), Release);
    }

    /// Links a new node into `shard`; the caller keeps its hub alive.
    pub(super) fn attach(node: NonNull<Self>, hub: &Inner<T, M, C>, shard: &Shard<T, M, C>) {
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
