//! A counted reference that readers follow without a lock, and that an epoch gives back.

use alloc::sync::Arc;
use core::{marker::PhantomData, ptr};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    epoch::{Epoch, Retired},
    percpu::CpuPin,
};

/// An optional `Arc<T>`, read under a pin. Owns one count.
///
/// Ordering: a target is published with Release and read with Acquire, so a reader sees it as it was built. A count
/// that is taken out is given back a grace period later, or moves on to another such place.
///
/// Each change is one swap, which takes the only ownership of what it finds: changes that race lose no memory and
/// free nothing twice.
pub struct EpochArc<T> {
    target: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

// SAFETY: readers share `&T`; a writer, or the epoch's reclaimer, may drop the last count on any thread.
unsafe impl<T: Send + Sync> Sync for EpochArc<T> {}
// SAFETY: the count goes with it.
unsafe impl<T: Send + Sync> Send for EpochArc<T> {}

fn into_raw<T>(value: Option<Arc<T>>) -> *mut T {
    value.map_or(ptr::null_mut(), |value| Arc::into_raw(value).cast_mut())
}

impl<T: Send + Sync + 'static> EpochArc<T> {
    const_fn! {
        /// No target.
        pub fn empty() -> Self {
            Self { target: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
        }
    }

    /// With a target, or none.
    pub fn new(value: Option<Arc<T>>) -> Self {
        Self {
            target: AtomicPtr::new(into_raw(value)),
            owns: PhantomData,
        }
    }

    /// The target of this moment; it stays valid for the section of `pin`.
    #[inline(always)]
    pub fn load<'p>(&'p self, _pin: &'p CpuPin) -> Option<&'p T> {
        // SAFETY: the count of a target is given back only a grace period after it was taken out, and the pin holds
        // off its end. One that moved is given back later still.
        unsafe { self.target.load(Acquire).as_ref() }
    }

    /// A count of the target of this moment.
    pub fn get(&self, _pin: &CpuPin) -> Option<Arc<T>> {
        let target = self.target.load(Acquire);
        // SAFETY: as in `load`: the place's count is not given back before the pin goes, so there is one to copy.
        (!target.is_null()).then(|| unsafe {
            Arc::increment_strong_count(target);
            Arc::from_raw(target)
        })
    }

    /// Whether there is no target now.
    pub fn is_none(&self) -> bool {
        self.target.load(Relaxed).is_null()
    }

    /// Puts `value` in place, and retires the count of the old target.
    pub fn replace(&self, epoch: &Epoch, pin: &CpuPin, value: Option<Arc<T>>) {
        self.put(epoch, pin, into_raw(value));
    }

    /// Moves the target to `to`, and retires the count of what is there. In between it is in neither place.
    pub fn move_to(&self, to: &EpochArc<T>, epoch: &Epoch, pin: &CpuPin) {
        to.put(epoch, pin, self.target.swap(ptr::null_mut(), AcqRel));
    }

    fn put(&self, epoch: &Epoch, pin: &CpuPin, new: *mut T) {
        let old = self.target.swap(new, AcqRel);
        if !old.is_null() {
            // SAFETY: the swap took the place's count of `old`.
            epoch.retire(pin, Retired::from_arc(unsafe { Arc::from_raw(old) }));
        }
    }
}

impl<T> Drop for EpochArc<T> {
    fn drop(&mut self) {
        // Relaxed: `&mut self` orders all that came before.
        let target = self.target.load(Relaxed);
        if !target.is_null() {
            // SAFETY: `&mut self`: the place's count is ours, and no reader is left that came by it.
            drop(unsafe { Arc::from_raw(target) });
        }
    }
}
