//! A slot for a hub member that readers under a pin may use while its owner detaches it.

use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr::{self, NonNull},
};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    class::LockClass,
    hub::{HubShard, HubValue, Member},
    percpu::CpuPin,
};

/// A slot for a [`Member`] that is filled when it is made and emptied once, at any time, by any CPU.
///
/// Ordering: the slot is emptied before the member is detached, and hub and member outlive that by a grace period. So a
/// CPU that finds it filled under a pin may use both as long as the pin lasts. The member is in the slot from the
/// beginning, so access to the slot implies a fully built member, and Relaxed is enough.
pub struct MemberSlot<T: HubValue, M: Send + Sync + 'static, C: LockClass = HubShard> {
    member: AtomicPtr<()>,
    owns: PhantomData<Member<T, M, C>>,
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> MemberSlot<T, M, C> {
    /// A slot that holds `member`.
    pub fn new(member: Member<T, M, C>) -> Self {
        Self {
            member: AtomicPtr::new(member.into_raw().as_ptr()),
            owns: PhantomData,
        }
    }

    /// The hub's value, if the member is still attached.
    #[inline(always)]
    pub fn hub<'p>(&self, pin: &'p CpuPin) -> Option<&'p T> {
        self.borrow().map(|member| member.hub_pinned(pin))
    }

    /// The member's value, if it is still attached.
    #[inline(always)]
    pub fn value<'p>(&self, pin: &'p CpuPin) -> Option<&'p M> {
        self.borrow().map(|member| member.pinned(pin))
    }

    /// Passes the member to `f`, if it is still attached. The caller prevents other CPUs from taking it meanwhile; even
    /// if one does, `f` accesses valid memory.
    pub fn with<R>(&self, _pin: &CpuPin, f: impl FnOnce(&Member<T, M, C>) -> R) -> Option<R> {
        self.borrow().map(|member| f(&member))
    }

    /// Whether the member was taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.member.load(Relaxed).is_null()
    }

    /// Removes the member from the slot.
    pub fn take(&self) -> Option<Member<T, M, C>> {
        let raw = NonNull::new(self.member.swap(ptr::null_mut(), Relaxed))?;
        // SAFETY: from `into_raw`, and the swap made this call the only owner.
        Some(unsafe { Member::from_raw(raw) })
    }

    /// The member, not owned. Every caller has a pin that began before this call and outlasts the use of the result.
    #[inline(always)]
    fn borrow(&self) -> Option<ManuallyDrop<Member<T, M, C>>> {
        let raw = NonNull::new(self.member.load(Relaxed))?;
        // SAFETY: from `into_raw`; the copy is never dropped.
        Some(ManuallyDrop::new(unsafe { Member::from_raw(raw) }))
    }
}

impl<T: HubValue, M: Send + Sync + 'static, C: LockClass> Drop for MemberSlot<T, M, C> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
