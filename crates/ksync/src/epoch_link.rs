//! A link of a tree that readers follow without a lock: its node goes when it is empty, and none comes where the link is closed.

use alloc::boxed::Box;
use core::{marker::PhantomData, ptr};

use crate::{
    atomic::{AtomicPtr, Ordering::*},
    close::Part,
    epoch::{Epoch, Retired},
    percpu::CpuPin,
};

/// The address that a closed link has, where no `T` lies.
const CLOSED: usize = 1;

/// A link to a `T` that it owns, to none, or closed for good while the node that it is in goes.
///
/// Ordering: a target is published with Release and followed with Acquire, so a reader sees it as it was built. Who puts
/// a target where one has gone passes on what was done before that one went: every change is a read-modify-write, which
/// continues what the last Release began.
pub struct EpochLink<T> {
    target: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: readers share `&T`; whoever unlinks it, or the epoch's reclaimer, drops `T` on any thread.
unsafe impl<T: Send + Sync> Sync for EpochLink<T> {}
// SAFETY: the target goes with it.
unsafe impl<T: Send + Sync> Send for EpochLink<T> {}

const fn closed<T>() -> *mut T {
    ptr::without_provenance_mut(CLOSED)
}

impl<T: Send + Sync + 'static> EpochLink<T> {
    /// A link to nothing.
    pub fn new() -> Self {
        const { assert!(align_of::<T>() > CLOSED, "no target has the address") };
        Self {
            target: AtomicPtr::new(ptr::null_mut()),
            owns: PhantomData,
        }
    }

    /// The target of this moment; it stays valid for the section of `pin`.
    #[inline(always)]
    pub fn load<'p>(&'p self, _pin: &'p CpuPin) -> Option<&'p T> {
        let target = self.target.load(Acquire);
        // SAFETY: neither null nor closed, it is a target; one is freed only a grace period after it was unlinked, and the
        // pin holds off its end.
        (target.addr() > CLOSED).then(|| unsafe { &*target })
    }

    /// Links `value` if there is nothing. The target then; none if the link is closed.
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
        // SAFETY: not published, still ours.
        drop(unsafe { Box::from_raw(new) });
        self.load(pin)
    }

    /// Unlinks `target`, which no reader is to find any more, and retires it. It is linked, and nobody else unlinks it.
    pub fn unlink(&self, epoch: &Epoch, pin: &CpuPin, target: &T) {
        let old = self.target.swap(ptr::null_mut(), Release);
        debug_assert!(ptr::eq(old, target), "another node is linked");
        // SAFETY: the swap took the only ownership of `old`.
        epoch.retire(pin, unsafe { Retired::from_raw_box(old) });
    }

    /// The target, when nobody else can have it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        // Relaxed: `&mut self` orders all that came before.
        let target = self.target.load(Relaxed);
        // SAFETY: neither null nor closed, it is a target; `&mut self`.
        (target.addr() > CLOSED).then(|| unsafe { &mut *target })
    }

    /// Takes the target out, when nobody else can have it.
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
