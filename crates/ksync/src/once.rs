//! Cells that are set once.
//!
//! Threads wait busily for the one that moves a value into its place, so that is not preempted: one with a higher priority, on the same CPU, would
//! wait for ever, or until the scheduler takes that from it.

use core::{cell::UnsafeCell, mem::MaybeUninit};

use crate::{
    atomic::{AtomicU8, Ordering::*},
    platform,
};

const EMPTY: u8 = 0;
const BUSY: u8 = 1;
const READY: u8 = 2;

/// A cell that is set once, then only read.
///
/// Ordering: the value is written before the Release store of READY; readers load it with Acquire.
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: one writer before READY, shared readers after; the value may come from another thread.
unsafe impl<T: Send + Sync> Sync for Once<T> {}
// SAFETY: the value is sent with it.
unsafe impl<T: Send> Send for Once<T> {}

impl<T> Once<T> {
    const_fn! {
        /// An empty cell.
        pub fn new() -> Self {
            Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
        }
    }

    /// The value, if it is set.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        if self.state.load(Acquire) != READY {
            return None;
        }
        // SAFETY: READY means written, for good.
        Some(unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Sets the value; returns it if one is set already or is being made by another thread.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _pin = crate::pin();
        if self
            .state
            .compare_exchange(EMPTY, BUSY, Relaxed, Relaxed)
            .is_err()
        {
            return Err(value);
        }
        self.fill(value);
        Ok(())
    }

    /// The value, made by `make` if there is none. Several callers may make one at once, of which one is kept: so `make` may wait for
    /// memory, and nobody waits for another's.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if let Some(value) = self.get() {
            return value;
        }
        self.keep(make())
    }

    /// As [`get_or_init`](Once::get_or_init); `None` if there is no value and `make` makes none.
    pub fn get_or_make(&self, make: impl FnOnce() -> Option<T>) -> Option<&T> {
        match self.get() {
            Some(value) => Some(value),
            None => Some(self.keep(make()?)),
        }
    }

    /// Sets the value if there is none; returns the one that there is then.
    fn keep(&self, value: T) -> &T {
        let _second = self.set(value);
        loop {
            // Another caller may just be setting its own, without preemption.
            if let Some(value) = self.get() {
                return value;
            }
            platform::relax();
        }
    }

    /// Removes the value, with exclusive access.
    pub fn take(&mut self) -> Option<T> {
        // Relaxed: `&mut self` orders all earlier accesses.
        if self.state.load(Relaxed) != READY {
            return None;
        }
        self.state.store(EMPTY, Relaxed);
        // SAFETY: written, and with EMPTY not read again.
        Some(unsafe { (*self.value.get()).assume_init_read() })
    }

    /// The value, with exclusive access.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        if self.state.load(Relaxed) != READY {
            return None;
        }
        // SAFETY: written; `&mut self`.
        Some(unsafe { (*self.value.get()).assume_init_mut() })
    }

    fn fill(&self, value: T) {
        // SAFETY: this thread has set BUSY, and the value is not read before READY.
        unsafe { (*self.value.get()).write(value) };
        self.state.store(READY, Release);
    }
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Once<T> {
    fn drop(&mut self) {
        // Relaxed: `&mut self` orders all earlier accesses.
        if self.state.load(Relaxed) == READY {
            // SAFETY: written, and not shared any more.
            unsafe { (*self.value.get()).assume_init_drop() };
        }
    }
}
