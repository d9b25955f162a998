//! An owning pointer that readers follow without a lock, and whose replaced targets are dropped after a grace period.

use alloc::{boxed::Box, sync::Arc};
use core::{marker::PhantomData, ptr};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    epoch::{Epoch, Retired},
    percpu::CpuPin,
};

/// A type that an [`EpochPtr`] can own: a `Box`, or one reference of an `Arc`.
///
/// # Safety
/// `into_raw` returns a pointer to the target, which is not null and stays valid until `from_raw` has taken the
/// ownership back and dropped it. The result of `retired` does that no earlier than a grace period later.
pub unsafe trait Owner: Sized {
    /// What it points to.
    type Target;

    /// Turns the ownership into a pointer.
    fn into_raw(self) -> *mut Self::Target;

    /// Turns the pointer into the ownership again.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw), and this was not called for it since.
    unsafe fn from_raw(raw: *mut Self::Target) -> Self;

    /// The object to retire, which an epoch drops once no reader can have it. It is made of the pointer: a `Box` that exists
    /// while readers follow the pointer would claim the target for itself alone.
    ///
    /// # Safety
    /// As for [`from_raw`](Self::from_raw).
    unsafe fn retired(raw: *mut Self::Target) -> Retired
    where
        Self::Target: Send + Sync + 'static;
}

// SAFETY: a box is the only owner of its target, at a fixed address.
unsafe impl<T> Owner for Box<T> {
    type Target = T;

    #[inline]
    fn into_raw(self) -> *mut T {
        Box::into_raw(self)
    }

    #[inline]
    unsafe fn from_raw(raw: *mut T) -> Self {
        // SAFETY: the caller's condition.
        unsafe { Box::from_raw(raw) }
    }

    #[inline]
    unsafe fn retired(raw: *mut T) -> Retired
    where
        T: Send + Sync + 'static,
    {
        // SAFETY: the caller's condition.
        unsafe { Retired::from_raw_box(raw) }
    }
}

// SAFETY: one reference keeps the target alive and in place.
unsafe impl<T> Owner for Arc<T> {
    type Target = T;

    #[inline]
    fn into_raw(self) -> *mut T {
        Arc::into_raw(self).cast_mut()
    }

    #[inline]
    unsafe fn from_raw(raw: *mut T) -> Self {
        // SAFETY: the caller's condition.
        unsafe { Arc::from_raw(raw) }
    }

    #[inline]
    unsafe fn retired(raw: *mut T) -> Retired
    where
        T: Send + Sync + 'static,
    {
        // SAFETY: the caller's condition.
        unsafe { Retired::from_raw_arc(raw) }
    }
}

/// An optional owned target, read under a pin, replaced atomically: `EpochPtr<Box<T>>`, or `EpochPtr<Arc<T>>` if
/// readers may keep the target beyond their pin.
///
/// Ordering: a target is published with Release and read with Acquire, so a reader sees it fully built. A target that
/// was removed is dropped a grace period later, or moved to another such pointer.
///
/// Each change is one swap, which takes the only ownership of the old target: racing changes leak nothing and free
/// nothing twice.
pub struct EpochPtr<P: Owner> {
    target: AtomicPtr<P::Target>,
    owns: PhantomData<P>,
}

// SAFETY: readers share `&T`; a writer, or the epoch's reclaimer, may drop `T` on any thread.
unsafe impl<P: Owner> Sync for EpochPtr<P> where P::Target: Send + Sync {}
// SAFETY: the ownership is sent with the pointer.
unsafe impl<P: Owner> Send for EpochPtr<P> where P::Target: Send + Sync {}

fn into_raw<P: Owner>(value: Option<P>) -> *mut P::Target {
    value.map_or(ptr::null_mut(), P::into_raw)
}

impl<P: Owner> EpochPtr<P> {
    const_fn! {
        /// A pointer to nothing.
        pub fn empty() -> Self {
            Self { target: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
        }
    }

    /// A pointer to `value`.
    pub fn new(value: Option<P>) -> Self {
        Self {
            target: AtomicPtr::new(into_raw(value)),
            owns: PhantomData,
        }
    }

    /// Removes the target, with exclusive access.
    pub fn take(&mut self) -> Option<P> {
        // Relaxed: `&mut self` orders all earlier accesses.
        let old = self.target.swap(ptr::null_mut(), Relaxed);
        // SAFETY: `&mut self`; no reader, for `load` borrows the pointer for as long as its result.
        (!old.is_null()).then(|| unsafe { P::from_raw(old) })
    }
}

impl<P: Owner> EpochPtr<P>
where
    P::Target: Send + Sync + 'static,
{
    /// The present target; valid for the section of `pin`.
    #[inline(always)]
    pub fn load<'p>(&'p self, _pin: &'p CpuPin) -> Option<&'p P::Target> {
        // SAFETY: a target is dropped only a grace period after it was removed, and the pin delays the end of that. One
        // that was moved is dropped later still.
        unsafe { self.target.load(Acquire).as_ref() }
    }

    /// Whether there is no target now.
    pub fn is_none(&self) -> bool {
        self.target.load(Relaxed).is_null()
    }

    /// Replaces the target by `value`, and retires the old target.
    pub fn replace(&self, epoch: &Epoch, pin: &CpuPin, value: Option<P>) {
        self.put(epoch, pin, into_raw(value));
    }

    /// Moves the target to `to`, and retires the old target of `to`. In between it is in neither pointer.
    ///
    /// # Safety
    /// A reader that found the target here may follow it until a grace period after this call. Until then `to` is not
    /// dropped, and its target not taken or changed by `&mut`: [`load`](Self::load) borrows this pointer, not `to`.
    pub unsafe fn move_to(&self, to: &Self, epoch: &Epoch, pin: &CpuPin) {
        to.put(epoch, pin, self.target.swap(ptr::null_mut(), AcqRel));
    }

    fn put(&self, epoch: &Epoch, pin: &CpuPin, new: *mut P::Target) {
        let old = self.target.swap(new, AcqRel);
        if !old.is_null() {
            // SAFETY: the swap took the only ownership of `old`.
            epoch.retire(pin, unsafe { P::retired(old) });
        }
    }

    /// Stores `value` if there is no target; otherwise returns it.
    pub fn set_if_none(&self, value: P) -> Result<(), P> {
        let new = value.into_raw();
        match self
            .target
            .compare_exchange(ptr::null_mut(), new, Release, Relaxed)
        {
            Ok(_) => Ok(()),
            // SAFETY: not published, still owned here.
            Err(_) => Err(unsafe { P::from_raw(new) }),
        }
    }

    /// Removes the target and waits until no reader has it. Sleeps for a grace period, if there was a target.
    pub fn withdraw(&self, epoch: &Epoch) -> Option<P> {
        // Relaxed: each attempt to step the epoch has a fence, which makes the initialisation of the target visible.
        let old = self.target.swap(ptr::null_mut(), Relaxed);
        if old.is_null() {
            return None;
        }
        epoch.synchronize();
        // SAFETY: the swap took the only ownership; sections that could have read the pointer are over.
        Some(unsafe { P::from_raw(old) })
    }
}

impl<T: Send + Sync + 'static> EpochPtr<Box<T>> {
    /// The target, with exclusive access.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: `&mut self`, which also orders all earlier accesses: Relaxed finds the target fully built. A box is
        // its only owner.
        unsafe { self.target.load(Relaxed).as_mut() }
    }
}

impl<T: Send + Sync + 'static> EpochPtr<Arc<T>> {
    /// The present target, of which a reader may take a reference of its own.
    #[inline(always)]
    pub fn borrow<'p>(&'p self, _pin: &'p CpuPin) -> Option<ArcBorrow<'p, T>> {
        let target = ptr::NonNull::new(self.target.load(Acquire))?;
        Some(ArcBorrow {
            target,
            pin: PhantomData,
        })
    }

    /// A reference to the present target.
    pub fn get(&self, pin: &CpuPin) -> Option<Arc<T>> {
        self.borrow(pin).map(ArcBorrow::hold)
    }
}

/// The target of an [`EpochPtr`] to an `Arc`, for the section of a pin; the reference count is not written.
pub struct ArcBorrow<'p, T> {
    /// Made from an `Arc`, whose reference the pointer drops no earlier than the end of the pin's section. Not a Rust
    /// reference, whose provenance would not include the count beside the target.
    target: ptr::NonNull<T>,
    pin: PhantomData<&'p T>,
}

impl<'p, T> ArcBorrow<'p, T> {
    /// The target, for as long as the pin.
    #[inline(always)]
    pub fn get(self) -> &'p T {
        // SAFETY: see `target`.
        unsafe { self.target.as_ref() }
    }

    /// A reference to the target, which keeps it beyond the pin.
    #[inline]
    pub fn hold(self) -> Arc<T> {
        // SAFETY: see `target`: while the pin lives there is a reference to copy.
        unsafe {
            Arc::increment_strong_count(self.target.as_ptr());
            Arc::from_raw(self.target.as_ptr())
        }
    }
}

impl<T> Clone for ArcBorrow<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ArcBorrow<'_, T> {}

impl<T> core::ops::Deref for ArcBorrow<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.get()
    }
}

impl<P: Owner> Drop for EpochPtr<P> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
