//! A spin lock with interrupts off, for code that runs before `ksync` can be used, or beneath it: the console, the early
//! frame allocator, panics.
use core::cell::UnsafeCell;
use core::hint::spin_loop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

use super::irq;

/// A value behind a test-and-set lock that is held with interrupts off.
pub(super) struct BootLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock allows one reference at a time.
unsafe impl<T: Send> Sync for BootLock<T> {}

impl<T> BootLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    pub(super) fn lock(&self) -> BootGuard<'_, T> {
        let flags = irq::save();
        while self.locked.swap(true, Ordering::Acquire) {
            while self.locked.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
        BootGuard { lock: self, flags }
    }

    /// Releases the lock although a CPU may hold it: for a panic, when the holder will not run again.
    pub(super) fn force_unlock(&self) {
        self.locked.store(false, Ordering::Release);
    }
}

pub(super) struct BootGuard<'a, T> {
    lock: &'a BootLock<T>,
    flags: irq::Flags,
}

impl<T> Deref for BootGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BootGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BootGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.locked.store(false, Ordering::Release);
        irq::restore(self.flags);
    }
}
