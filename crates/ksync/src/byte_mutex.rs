//! A sleeping mutex of one byte, for embedding in small, numerous objects.
//!
//! The byte is free, held, or held with waiters; the waiters are queued in a table hashed by the byte's address. Handed
//! from owner to owner like [`Mutex`](crate::Mutex).
//!
//! The byte changes to and from HELD_WAITERS only under its bucket's lock. An owner releases plain HELD by one CAS;
//! with HELD_WAITERS that CAS fails and the owner hands the lock over.

use core::{marker::PhantomData, pin::pin as stack_pin, ptr};

use crate::{
    atomic::{AtomicU8, Ordering::*},
    class::{self, LockClass, Order},
    platform, profile,
    queue::{WaitList, Waiter, Want, list_of},
};

const FREE: u8 = 0;
const HELD: u8 = 1;
const HELD_WAITERS: u8 = 2;

/// A mutual exclusion lock of one byte that sleeps, without data; the class is a parameter of each call.
#[repr(transparent)]
pub struct ByteMutex {
    byte: AtomicU8,
}

impl ByteMutex {
    const_fn! {
        /// A free lock.
        pub fn new() -> Self {
            Self { byte: AtomicU8::new(FREE) }
        }
    }

    /// Takes the lock; sleeps in the order of arrival if it is held.
    #[inline]
    pub fn lock<C: LockClass>(&self) -> ByteMutexGuard<'_, C> {
        class::may_sleep::<C>();
        class::acquire::<C>(Order::Ascending);
        if self
            .byte
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .is_err()
        {
            self.lock_slow::<C>();
        }
        profile::taken::<C, _>(self, true);
        ByteMutexGuard {
            lock: self,
            class: PhantomData,
        }
    }

    /// Takes the lock if it is free; never sleeps.
    #[inline]
    pub fn try_lock<C: LockClass>(&self) -> Option<ByteMutexGuard<'_, C>> {
        self.byte
            .compare_exchange(FREE, HELD, Acquire, Relaxed)
            .ok()?;
        class::acquire::<C>(Order::Try);
        profile::taken::<C, _>(self, true);
        Some(ByteMutexGuard {
            lock: self,
            class: PhantomData,
        })
    }

    /// Whether it is held now; for assertions.
    pub fn is_locked(&self) -> bool {
        self.byte.load(Relaxed) != FREE
    }

    fn key(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    fn bucket(&self) -> &'static WaitList {
        list_of(self.key())
    }

    #[cold]
    #[inline(never)]
    fn lock_slow<C: LockClass>(&self) {
        let since = platform::ticks();
        let waiter = stack_pin!(Waiter::new(Want::Exclusive, self.key()));
        let mut queue = self.bucket().lock();
        let mut state = self.byte.load(Relaxed);
        loop {
            let next = if state == FREE { HELD } else { HELD_WAITERS };
            match self
                .byte
                .compare_exchange_weak(state, next, Acquire, Relaxed)
            {
                Ok(FREE) => return,
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        queue.push(waiter.as_ref());
        drop(queue);
        waiter.as_ref().wait(C::stats(), since, || 0);
    }

    #[cold]
    #[inline(never)]
    fn unlock_slow(&self) {
        let pin = crate::pin();
        let mut queue = self.bucket().lock();
        let key = self.key();
        // The state is written before the grant: once granted, the new owner may free the memory.
        if !queue.has_second(key) {
            self.byte.store(HELD, Relaxed);
        }
        let granted = queue.grant(key);
        drop(queue);
        granted.wake(&pin);
    }
}

impl Default for ByteMutex {
    fn default() -> Self {
        Self::new()
    }
}

/// Guard of a [`ByteMutex`].
#[must_use = "the lock is released when the guard is dropped"]
pub struct ByteMutexGuard<'a, C: LockClass> {
    lock: &'a ByteMutex,
    class: PhantomData<(C, *mut ())>,
}

impl<C: LockClass> Drop for ByteMutexGuard<'_, C> {
    #[inline]
    fn drop(&mut self) {
        class::release::<C>();
        profile::leaving::<C, _>(self.lock);
        if self
            .lock
            .byte
            .compare_exchange(HELD, FREE, Release, Relaxed)
            .is_err()
        {
            self.lock.unlock_slow();
        }
    }
}
