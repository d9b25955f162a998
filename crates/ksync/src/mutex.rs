//! The sleeping mutex: FIFO, handed from owner to owner.
//!
//! One compare-and-swap each to take and to release it if there are no waiters. A thread that finds it held queues
//! itself. The owner that releases it makes the first thread of the queue the owner and wakes only that one, so there
//! is no thundering herd and no starvation.
//!
//! `state` is FREE, HELD or HELD|WAITERS; beside HELD it contains the number of the holding thread, for the watchdog.
//! WAITERS is set and cleared under the queue's lock, and is set exactly while the queue is not empty or is about to
//! get its first node. Only the owner clears HELD, and only without WAITERS: with WAITERS its CAS fails and it hands
//! the lock over.

use core::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
    pin::pin as stack_pin,
};

use crate::{
    atomic::{AtomicU32, Ordering::*},
    class::{self, LockClass, Order},
    platform, profile,
    queue::{WaitList, Waiter, Want},
    shim::DataCell,
};

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITERS: u32 = 2;
/// Bits below the holder's number.
const HOLDER: u32 = 2;

/// The word of a mutex that `thread` holds, without waiters.
#[inline(always)]
fn held_by(thread: u32) -> u32 {
    HELD | thread << HOLDER
}

/// A sleeping, queued mutual exclusion lock with its data.
pub struct Mutex<T, C> {
    state: AtomicU32,
    queue: WaitList,
    class: PhantomData<C>,
    data: DataCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the data.
unsafe impl<T: Send, C> Sync for Mutex<T, C> {}
// SAFETY: the data is sent with it; the class is only a name.
unsafe impl<T: Send, C> Send for Mutex<T, C> {}

impl<T, C> Mutex<T, C> {
    const_fn! {
        /// A free lock around `value`.
        pub fn new(value: T) -> Self {
            Self {
                state: AtomicU32::new(FREE),
                queue: WaitList::new(),
                class: PhantomData,
                data: DataCell::new(value),
            }
        }
    }

    /// The data, with exclusive access.
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: `&mut self`.
        unsafe { &mut *self.data.get() }
    }

    /// The data, without the lock.
    pub fn into_inner(self) -> T {
        self.data.into_inner()
    }
}

impl<T, C: LockClass> Mutex<T, C> {
    /// Takes the lock; sleeps in the order of arrival if it is held.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T, C> {
        self.lock_ordered(Order::Ascending)
    }

    /// As `lock`, while a lock of the same rank is held: for pairs taken in order of address.
    #[inline]
    pub fn lock_nested(&self) -> MutexGuard<'_, T, C> {
        self.lock_ordered(Order::Nested)
    }

    #[inline]
    fn lock_ordered(&self, order: Order) -> MutexGuard<'_, T, C> {
        class::may_sleep::<C>();
        class::acquire::<C>(order);
        let held = held_by(platform::thread());
        if self
            .state
            .compare_exchange(FREE, held, Acquire, Relaxed)
            .is_err()
        {
            self.lock_slow(held);
        }
        profile::taken::<C, _>(&self.state, true);
        MutexGuard {
            mutex: self,
            held,
            not_send: PhantomData,
        }
    }

    /// Takes the lock if it is free; never sleeps.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T, C>> {
        let held = held_by(platform::thread());
        self.state
            .compare_exchange(FREE, held, Acquire, Relaxed)
            .ok()?;
        class::acquire::<C>(Order::Try);
        profile::taken::<C, _>(&self.state, true);
        Some(MutexGuard {
            mutex: self,
            held,
            not_send: PhantomData,
        })
    }

    /// Whether it is held now; for assertions.
    pub fn is_locked(&self) -> bool {
        self.state.load(Relaxed) != FREE
    }

    /// Queues the caller, unless it can take the lock after all, and sleeps until it is the owner.
    #[cold]
    #[inline(never)]
    fn lock_slow(&self, mine: u32) {
        let since = platform::ticks();
        let waiter = stack_pin!(Waiter::new(Want::Exclusive, 0));
        let mut queue = self.queue.lock();
        let mut state = self.state.load(Relaxed);
        loop {
            let (want, free) = match state {
                FREE => (mine, true),
                held => (held | WAITERS, false),
            };
            match self
                .state
                .compare_exchange_weak(state, want, Acquire, Relaxed)
            {
                Ok(_) if free => return,
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        queue.push(waiter.as_ref());
        drop(queue);
        let holder = || self.state.load(Relaxed) >> HOLDER;
        waiter
            .as_ref()
            .wait(C::stats(), since, self.address(), holder);
    }

    /// By which the platform tells it from others.
    fn address(&self) -> usize {
        (&raw const self.state).addr()
    }

    /// Makes the first waiter the owner and wakes it.
    #[cold]
    #[inline(never)]
    fn unlock_slow(&self) {
        let pin = crate::pin();
        let mut queue = self.queue.lock();
        // Written before the grant, while the caller is the owner: other threads need the queue's lock to write the
        // word, and the new owner may release the lock or free its memory as soon as it is granted. There is a first
        // waiter, because WAITERS was set.
        let next = held_by(queue.first(0));
        let more = if queue.has_second(0) { WAITERS } else { 0 };
        self.state.store(next | more, Relaxed);
        let granted = queue.grant(0, 1);
        let address = self.address();
        drop(queue);
        granted.wake(&pin);
        platform::hands_over(address);
    }
}

impl<T: Default, C> Default for Mutex<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Guard of a [`Mutex`].
#[must_use = "the lock is released when the guard is dropped"]
pub struct MutexGuard<'a, T, C: LockClass> {
    mutex: &'a Mutex<T, C>,
    /// The word without waiters. Const.
    held: u32,
    not_send: PhantomData<*mut ()>,
}

// SAFETY: a shared guard gives `&T` only.
unsafe impl<T: Sync, C: LockClass> Sync for MutexGuard<'_, T, C> {}

impl<T, C: LockClass> Drop for MutexGuard<'_, T, C> {
    #[inline]
    fn drop(&mut self) {
        class::release::<C>();
        profile::leaving::<C, _>(&self.mutex.state, true);
        if self
            .mutex
            .state
            .compare_exchange(self.held, FREE, Release, Relaxed)
            .is_err()
        {
            self.mutex.unlock_slow();
        }
    }
}

impl<T, C: LockClass> Deref for MutexGuard<'_, T, C> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.mutex.data.get_shared() }
    }
}

impl<T, C: LockClass> DerefMut for MutexGuard<'_, T, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and the guard borrowed exclusively.
        unsafe { &mut *self.mutex.data.get() }
    }
}
