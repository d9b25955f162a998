//! Many byte mutexes held at once, by one thread, as one lock.
//!
//! Guarantee: the bytes of a run count as one held lock, however many they are, in the checks of ranks and in the
//! profile. So the fixed room for held locks (class.rs) suffices for the 512 pages of a superpage. A run never sleeps:
//! its bytes are only tried, and so need no order.
//!
//! What is not checked: that a byte is released by the run that has it. The caller remembers its bytes. In debug builds a
//! byte that no writer holds, or another thread, cannot be released, and a run cannot end before as many bytes were released
//! as taken.

use core::{marker::PhantomData, ptr};

use crate::{
    ByteMutex, LockClass, byte_owner,
    class::{self, Order},
    profile,
};

/// The accounting for byte mutexes of class `C` that one thread holds exclusively at once.
#[must_use = "the run ends when it is dropped"]
pub struct ByteRun<C: LockClass> {
    held: usize,
    /// The byte whose hold the profile measures: the first one, until it is released. Only compared.
    first: *const ByteMutex,
    class: PhantomData<C>,
}

impl<C: LockClass> ByteRun<C> {
    /// A run without bytes: it counts as a lock that was got by trying until it is dropped.
    #[inline]
    pub fn new() -> Self {
        class::acquire::<C>(Order::Try);
        Self {
            held: 0,
            first: ptr::null(),
            class: PhantomData,
        }
    }

    /// Takes a byte into the run if it is free; never sleeps. The caller is to release it by `unlock` of this run, before
    /// the run is dropped.
    #[inline]
    #[must_use]
    pub fn try_lock(&mut self, byte: &ByteMutex) -> bool {
        if !byte.enter() {
            return false;
        }
        byte_owner::takes(byte);
        if self.held == 0 {
            self.first = byte;
            profile::taken::<C, _>(byte, true);
        }
        self.held += 1;
        true
    }

    /// Releases a byte, which this run has taken and not released since; the caller sees to that.
    ///
    /// # Panics
    /// In debug builds, if no writer holds the byte, another thread does, or the run has none.
    #[inline]
    pub fn unlock(&mut self, byte: &ByteMutex) {
        debug_assert!(self.held > 0, "releasing \"{}\" of an empty run", C::NAME);
        if ptr::eq(self.first, byte) {
            self.first = ptr::null();
            profile::leaving::<C, _>(byte, true);
        }
        byte.leave::<C>();
        self.held -= 1;
    }
}

impl<C: LockClass> Default for ByteRun<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: LockClass> Drop for ByteRun<C> {
    #[inline]
    fn drop(&mut self) {
        class::release::<C>();
        debug_assert!(
            self.held == 0,
            "a run ends with {} of \"{}\" held",
            self.held,
            C::NAME
        );
    }
}
