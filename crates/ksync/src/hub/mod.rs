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
//! A [walk](HubRef::walk) does the same in many short holds.
//!
//! A hub whose value [counts](HubValue::counts) has the same shards, and the same life, but no lists: a shard has the
//! number of its members, and attaching and detaching write no neighbour's line. Such a hub is not scanned.
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

mod member;
mod shard;
mod walk;

use alloc::boxed::Box;
use core::{
    ops::{ControlFlow, Deref},
    ptr::{self, NonNull},
};

pub use self::member::{Member, NewMember, ReplaceError};
use self::shard::{Shard, Shards};
pub use self::walk::Walked;
use crate::{
    atomic::{AtomicUsize, Ordering::*, fence},
    class::LockClass,
    epoch::{Epoch, EpochHandle, Freed, Link},
    epoch_ptr::EpochPtr,
    heap::try_box,
    lock_class,
    percpu::{CpuPin, pin},
};

lock_class!(
    /// The default class of hub shards.
    pub HubShard,
    "hub shard",
    rank = 90
);

/// The value of a hub.
pub trait HubValue: Send + Sync + 'static {
    /// Whether some hubs of such values only count their members.
    const MAY_COUNT: bool = false;

    /// Called when the last reference was dropped: frees what the value owns. The value itself is dropped a grace
    /// period later, because readers under a pin may still use it.
    fn last(&self) {}

    /// Frees a bounded part of what the value owns, before it is dropped; returns whether there is more. Called with
    /// preemption off; the CPU may be preempted between two calls.
    fn free_part(&mut self) -> bool {
        false
    }

    /// Whether the hub of this value only counts its members, in each shard: it has no list of them that could be
    /// scanned. Always the same; asked only if [`MAY_COUNT`](HubValue::MAY_COUNT) is set.
    fn counts(&self) -> bool {
        false
    }
}

/// No memory for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachError;

#[repr(C)]
struct Inner<T: HubValue, M: Send + Sync + 'static, C: LockClass> {
    written: Written<T, M, C>,
    epoch: EpochHandle,
    /// Set once, when the hub grows.
    grown: EpochPtr<Box<Shards<T, M, C>>>,
    value: T,
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

    /// Shard `n`, in the order of a scan: `None` behind the last, and a CPU without a shard has none.
    fn shard<'p>(&'p self, pin: &'p CpuPin, n: usize) -> Option<Option<&'p Shard<T, M, C>>> {
        match n.checked_sub(1) {
            None => Some(Some(&self.written.inline)),
            Some(cpu) => self.grown.load(pin)?.of(pin, cpu),
        }
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
        debug_assert!(
            !T::MAY_COUNT || !self.value.counts(),
            "a hub that only counts its members is scanned"
        );
        self.written.inline.scan(&mut visit)?;
        let pin = pin();
        self.shards(&pin)
            .skip(1)
            .try_for_each(|shard| shard.scan(&mut visit))
    }

    /// Number of members that have left a shard, modulo 2^32.
    fn left(&self, pin: &CpuPin) -> u32 {
        self.shards(pin)
            .fold(0, |sum, shard| sum.wrapping_add(shard.left()))
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
        Ok(NewMember::new(value)?.join(self.inner))
    }

    /// Visits every member until `visit` breaks; `visit` runs under a shard's spin lock. Not for a hub that only
    /// [counts](HubValue::counts), of which it visits none.
    pub fn scan<B>(&self, visit: impl FnMut(&M) -> ControlFlow<B>) -> ControlFlow<B> {
        self.inner().scan(visit)
    }

    /// As [`scan`](HubRef::scan), but `None` if a member may have been missed. Without locks on all shards a scan can miss one that
    /// is there all the time: it attaches another in a shard that was visited, and leaves one that was not. So a scan
    /// during which any member has left a shard is not whole.
    pub fn scan_whole<B>(&self, visit: impl FnMut(&M) -> ControlFlow<B>) -> Option<ControlFlow<B>> {
        let (inner, pin) = (self.inner(), pin());
        let before = inner.left(&pin);
        let found = inner.scan(visit);
        (inner.left(&pin) == before).then_some(found)
    }

    /// Lets each CPU have a shard of its own; existing members stay in theirs. Nothing has changed on an error.
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
