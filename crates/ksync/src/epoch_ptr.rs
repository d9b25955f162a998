//! A pointer that readers follow without a lock, and whose old targets an epoch frees.

use alloc::boxed::Box;
use core::{marker::PhantomData, ptr};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    epoch::{Epoch, Retired},
    percpu::CpuPin,
};

/// An optional owned `T`, read under a pin, replaced atomically.
///
/// Ordering: a replacement is published with Release and read with Acquire, so a reader sees the
/// target as it was built. The old target is retired after it was unlinked, by the same thread.
pub struct EpochPtr<T> {
    target: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: readers share `&T`; a writer, or the epoch's reclaimer, drops `T` on any thread.
unsafe impl<T: Send + Sync> Sync for EpochPtr<T> {}
// SAFETY: the target goes with it.
unsafe impl<T: Send + Sync> Send for EpochPtr<T> {}

fn into_raw<T>(value: Option<Box<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), Box::into_raw)
}

impl<T: Send + Sync + 'static> EpochPtr<T> {
    const_fn! {
        /// A pointer to nothing.
        pub fn empty() -> Self {
            Self { target: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
        }
    }

    /// A pointer to `value`.
    pub fn new(value: Option<Box<T>>) -> Self {
        Self {
            target: AtomicPtr::new(into_raw(value)),
            owns: PhantomData,
        }
    }

    /// The target of this moment; it stays valid for the section of `pin`.
    #[inline(always)]
    pub fn load<'p>(&'p self, _pin: &'p CpuPin) -> Option<&'p T> {
        // SAFETY: a target is freed only a grace period after it was unlinked, and the pin holds off
        // its end.
        unsafe { self.target.load(Acquire).as_ref() }
    }

    /// Whether there is no target now.
    pub fn is_none(&self) -> bool {
        self.target.load(Relaxed).is_null()
    }

    /// Puts `value` in place, and retires the old target.
    pub fn replace(&self, epoch: &Epoch, pin: &CpuPin, value: Option<Box<T>>) {
        let old = self.target.swap(into_raw(value), AcqRel);
        if !old.is_null() {
            // SAFETY: the swap took the only ownership of `old`.
            epoch.retire(pin, Retired::from_box(unsafe { Box::from_raw(old) }));
        }
    }

    /// Puts `value` in place if there is nothing; gives it back otherwise.
    pub fn set_if_none(&self, value: Box<T>) -> Result<(), Box<T>> {
        let new = Box::into_raw(value);
        match self
            .target
            .compare_exchange(ptr::null_mut(), new, Release, Relaxed)
        {
            Ok(_) => Ok(()),
            // SAFETY: not published, still ours.
            Err(_) => Err(unsafe { Box::from_raw(new) }),
        }
    }

    /// Takes the target out and waits until no reader has it. Sleeps for a grace period.
    pub fn withdraw(&self, epoch: &Epoch) -> Option<Box<T>> {
        // Relaxed: each try to step the epoch has a fence, which makes what the target's maker did visible.
        let old = self.target.swap(ptr::null_mut(), Relaxed);
        if old.is_null() {
            return None;
        }
        epoch.synchronize();
        // SAFETY: the swap took the only ownership; sections that could have read the pointer are over.
        Some(unsafe { Box::from_raw(old) })
    }

    /// The target, when nobody else can have it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // SAFETY: `&mut self`, which also orders all that came before: Relaxed finds the target whole.
        unsafe { self.target.load(Relaxed).as_mut() }
    }

    /// Takes the target out, when nobody else can have it.
    pub fn take(&mut self) -> Option<Box<T>> {
        let old = self.target.swap(ptr::null_mut(), Relaxed);
        // SAFETY: `&mut self`, as in `get_mut`; no reader, for `load` borrows the pointer for as long as its result.
        (!old.is_null()).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for EpochPtr<T> {
    fn drop(&mut self) {
        let target = self.target.load(Relaxed);
        if !target.is_null() {
            // SAFETY: as in `take`.
            drop(unsafe { Box::from_raw(target) });
        }
    }
}
