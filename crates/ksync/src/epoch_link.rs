//! A link in a tree that readers follow without a lock. An empty node can be unlinked; a link that is closed gets no
//! target.

use alloc::boxed::Box;
use core::{marker::PhantomData, ptr};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    close::Part,
    epoch::{Epoch, Retired},
    percpu::CpuPin,
};

/// The address stored in a closed link; no `T` has this address.
const CLOSED: usize = 1;

/// A link to a `T` that it owns, an empty link, or one that is closed for good while its own node is being unlinked.
///
/// Ordering: a target is published with Release and followed with Acquire, so a reader sees it fully built. A CPU that
/// links a new target after an old one was unlinked passes on what preceded the unlinking: every change is a
/// read-modify-write, which continues the release sequence of the last Release.
pub struct EpochLink<T> {
    target: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: readers share `&T`; the CPU that unlinks `T`, or the epoch's reclaimer, drops it on any thread.
unsafe impl<T: Send + Sync> Sync for EpochLink<T> {}
// SAFETY: the target is sent with the link.
unsafe impl<T: Send + Sync> Send for EpochLink<T> {}

const fn closed<T>() -> *mut T {
    ptr::without_provenance_mut(CLOSED)
}

impl<T: Send + Sync + 'static> EpochLink<T> {
    /// An empty link.
    pub fn new() -> Self {
        const { assert!(align_of::<T>() > CLOSED, "no target has the address") };
        Self {
            target: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// The present target; valid for the section of `pin`.
    #[inline(always)]
    pub fn load<'p>(&'p self, _pin: &'p CpuPin) -> Option<&'p T> {
        let target = self.target.load(Acquire);
        // SAFETY: neither null nor closed, it is a target. A target is freed only a grace period after it was unlinked,
        // and the pin delays the end of that.
        (target.addr() > CLOSED).then(|| unsafe { &*target })
    }

    /// Links `value` if the link is empty. Returns the target after that; `None` if the link is closed.
    pub fn load_or_set<'p>(&'p self, pin: &'p CpuPin, value: Box<T>) -> Option<&'p T> {
        let new = Box::into_raw(value);
        if self
            .target
            .compare_exchange(ptr::null_mut(), new, Release, Relaxed)
            .is_ok()
        {
            // SAFETY: linked here, and as in `load` from then on.
            return Some(unsafe { &*new });
        }
        // SAFETY: not published, still owned here.
        drop(unsafe { Box::from_raw(new) });
        self.load(pin)
    }

    /// Unlinks `target`, so that new readers do not find it, and retires it. It is linked, and no other CPU unlinks it.
    pub fn unlink(&self, epoch: &Epoch, pin: &CpuPin, target: &T) {
        let old = self.target.swap(ptr::null_mut(), Release);
        debug_assert!(ptr::eq(old, target), "another node is linked");
        // SAFETY: the swap took the only ownership of `old`.
        epoch.retire(pin, unsafe { Retired::from_raw_box(old) });
    }

    /// The target, with exclusive access.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // Relaxed: `&mut self` orders all earlier accesses.
        let target = self.target.load(Relaxed);
        // SAFETY: neither null nor closed, it is a target; `&mut self`.
        (target.addr() > CLOSED).then(|| unsafe { &mut *target })
    }

    /// Removes the target, with exclusive access.
    pub fn take(&mut self) -> Option<Box<T>> {
        let old = self.target.swap(ptr::null_mut(), Relaxed);
        // SAFETY: as in `get_mut`; no reader, for `load` borrows the link for as long as its result.
        (old.addr() > CLOSED).then(|| unsafe { Box::from_raw(old) })
    }
}

impl<T: Send + Sync + 'static> Part for EpochLink<T> {
    fn is_empty(&self) -> bool {
        self.target.load(Relaxed).is_null()
    }

    fn close(&self) -> bool {
        self.target
            .compare_exchange(ptr::null_mut(), closed(), Acquire, Relaxed)
            .is_ok()
    }

    fn open(&self) {
        let old = self.target.swap(ptr::null_mut(), Relaxed);
        debug_assert!(old == closed(), "a link is opened that is not closed");
    }
}

impl<T> Drop for EpochLink<T> {
    #[inline(always)]
    fn drop(&mut self) {
        let target = self.target.load(Relaxed);
        if target.addr() > CLOSED {
            // SAFETY: as in `take`.
            drop(unsafe { Box::from_raw(target) });
        }
    }
}

impl<T: Send + Sync + 'static> Default for EpochLink<T> {
    fn default() -> Self {
        EpochLink::new()
    }
}
