//! The sleeping reader-writer lock: FIFO, fair to writers.
//!
//! `state` counts readers in units of READER, beside WRITER and WAITERS. WAITERS is set under the queue's lock, and
//! while it is set a thread can get the lock only through the queue: so no thread overtakes a waiting writer. When the
//! last holder releases the lock and WAITERS is set, it hands the lock to the head of the queue: one writer, or all
//! readers up to the next writer. Those that only wait are told on the way, and hold nothing.
//!
//! With WAITERS set and no holder, only the thread that was the last holder writes `state`: taking the lock and
//! queueing need the queue's lock, releasing needs a holder.

use core::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
    pin::pin as stack_pin,
};

use crate::{
    atomic::{AtomicUsize, Ordering::*},
    class::{self, LockClass, Order},
    platform, profile,
    queue::{WaitList, Waiter, Want},
    shim::DataCell,
};

const WRITER: usize = 1;
const WAITERS: usize = 2;
const READER: usize = 4;

/// A sleeping, queued lock for one writer or many readers, with its data.
pub struct RwLock<T, C> {
    state: AtomicUsize,
    queue: WaitList,
    class: PhantomData<C>,
    data: DataCell<T>,
}

// SAFETY: one writer, or readers that share `&T`.
unsafe impl<T: Send + Sync, C> Sync for RwLock<T, C> {}
// SAFETY: the data is sent with it; the class is only a name.
unsafe impl<T: Send, C> Send for RwLock<T, C> {}

impl<T, C> RwLock<T, C> {
    const_fn! {
        /// A free lock around `value`.
        pub fn new(value: T) -> Self {
            Self {
                state: AtomicUsize::new(0),
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

impl<T, C: LockClass> RwLock<T, C> {
    /// Takes the lock shared; sleeps if a writer holds it or waits for it.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T, C> {
        class::may_sleep::<C>();
        class::acquire::<C>(Order::Ascending);
        let state = self.state.load(Relaxed);
        if state & (WRITER | WAITERS) != 0
            || self
                .state
                .compare_exchange(state, state + READER, Acquire, Relaxed)
                .is_err()
        {
            self.lock_slow(Want::Shared);
        }
        profile::taken::<C, _>(&self.state, false);
        ReadGuard {
            lock: self,
            not_send: PhantomData,
        }
    }

    /// Takes the lock exclusively; sleeps in the order of arrival if it is held.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T, C> {
        self.write_ordered(Order::Ascending)
    }

    /// As `write`, while a lock of the same rank is held: for pairs taken in order of address.
    #[inline]
    pub fn write_nested(&self) -> WriteGuard<'_, T, C> {
        self.write_ordered(Order::Nested)
    }

    #[inline]
    fn write_ordered(&self, order: Order) -> WriteGuard<'_, T, C> {
        class::may_sleep::<C>();
        class::acquire::<C>(order);
        if self
            .state
            .compare_exchange(0, WRITER, Acquire, Relaxed)
            .is_err()
        {
            self.lock_slow(Want::Exclusive);
        }
        profile::taken::<C, _>(&self.state, true);
        WriteGuard {
            lock: self,
            not_send: PhantomData,
        }
    }

    /// Sleeps until the lock is free, and does not take it: for an operation that tried where it may not sleep, and tries again
    /// after this. The guarantee is that of [`ByteMutex::wait`](crate::ByteMutex::wait).
    #[inline]
    pub fn wait(&self) {
        class::may_sleep::<C>();
        class::acquire::<C>(Order::Ascending);
        if self.state.load(Relaxed) != 0 {
            self.lock_slow(Want::Look);
        }
        class::release::<C>();
    }

    /// Takes the lock shared if no writer holds it or waits for it; never sleeps.
    #[inline]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T, C>> {
        let mut state = self.state.load(Relaxed);
        loop {
            if state & (WRITER | WAITERS) != 0 {
                return None;
            }
            match self
                .state
                .compare_exchange_weak(state, state + READER, Acquire, Relaxed)
            {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        class::acquire::<C>(Order::Try);
        profile::taken::<C, _>(&self.state, false);
        Some(ReadGuard {
            lock: self,
            not_send: PhantomData,
        })
    }

    /// Takes the lock exclusively if it is free; never sleeps.
    #[inline]
    pub fn try_write(&self) -> Option<WriteGuard<'_, T, C>> {
        self.state
            .compare_exchange(0, WRITER, Acquire, Relaxed)
            .ok()?;
        class::acquire::<C>(Order::Try);
        profile::taken::<C, _>(&self.state, true);
        Some(WriteGuard {
            lock: self,
            not_send: PhantomData,
        })
    }

    /// Whether a writer holds it now; for assertions.
    pub fn is_write_locked(&self) -> bool {
        self.state.load(Relaxed) & WRITER != 0
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self, want: Want) {
        let since = platform::ticks();
        let waiter = stack_pin!(Waiter::new(want, 0));
        let mut queue = self.queue.lock();
        let mut state = self.state.load(Relaxed);
        loop {
            let (next, enters) = match want {
                Want::Exclusive if state == 0 => (WRITER, true),
                Want::Shared if state & (WRITER | WAITERS) == 0 => (state + READER, true),
                Want::Look if state == 0 => (0, true),
                _ => (state | WAITERS, false),
            };
            match self
                .state
                .compare_exchange_weak(state, next, Acquire, Relaxed)
            {
                Ok(_) if enters => return,
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        queue.push(waiter.as_ref());
        drop(queue);
        waiter.as_ref().wait(C::stats(), since, 0, || 0);
    }

    /// Hands a lock without a holder, but with waiters, to the next of them.
    #[cold]
    #[inline(never)]
    fn hand_over(&self) {
        let pin = crate::pin();
        let mut queue = self.queue.lock();
        let turn = queue.turn(0, usize::MAX);
        let holders = if turn.writer {
            WRITER
        } else {
            turn.readers * READER
        };
        let more = if turn.more { WAITERS } else { 0 };
        // Written before the grants: a granted thread may release the lock at once. All readers are counted before the
        // first of them knows, so that none hands the lock over while others are not yet woken. Release: without
        // WAITERS a new reader takes the lock by this value, and must see the last writer.
        self.state.store(holders | more, Release);
        let granted = queue.grant(0, turn.waiters);
        drop(queue);
        granted.wake(&pin);
    }
}

impl<T: Default, C> Default for RwLock<T, C> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// Guard of a [`RwLock`] that is held shared.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ReadGuard<'a, T, C: LockClass> {
    lock: &'a RwLock<T, C>,
    not_send: PhantomData<*mut ()>,
}

impl<T, C: LockClass> Drop for ReadGuard<'_, T, C> {
    #[inline]
    fn drop(&mut self) {
        class::release::<C>();
        profile::leaving::<C, _>(&self.lock.state, false);
        // Release: a writer sees that this reader is done. Acquire: the last reader, which hands over, passes on what
        // all earlier readers released.
        if self.lock.state.fetch_sub(READER, AcqRel) == READER | WAITERS {
            self.lock.hand_over();
        }
    }
}

impl<T, C: LockClass> Deref for ReadGuard<'_, T, C> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held shared.
        unsafe { &*self.lock.data.get_shared() }
    }
}

/// Guard of a [`RwLock`] that is held exclusively.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WriteGuard<'a, T, C: LockClass> {
    lock: &'a RwLock<T, C>,
    not_send: PhantomData<*mut ()>,
}

impl<'a, T, C: LockClass> WriteGuard<'a, T, C> {
    /// Turns the exclusive hold into a shared one without letting another writer in between. Waiting readers stay
    /// queued until the lock is next handed over.
    pub fn downgrade(self) -> ReadGuard<'a, T, C> {
        let lock = self.lock;
        core::mem::forget(self);
        profile::sharing::<C, _>(&lock.state);
        // WRITER becomes one READER; WAITERS stays as it is.
        lock.state.fetch_add(READER - WRITER, Release);
        ReadGuard {
            lock,
            not_send: PhantomData,
        }
    }
}

impl<T, C: LockClass> Drop for WriteGuard<'_, T, C> {
    #[inline]
    fn drop(&mut self) {
        class::release::<C>();
        profile::leaving::<C, _>(&self.lock.state, true);
        if self
            .lock
            .state
            .compare_exchange(WRITER, 0, Release, Relaxed)
            .is_err()
        {
            self.lock.hand_over();
        }
    }
}

impl<T, C: LockClass> Deref for WriteGuard<'_, T, C> {
    type Target = T;
    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is held exclusively.
        unsafe { &*self.lock.data.get_shared() }
    }
}

impl<T, C: LockClass> DerefMut for WriteGuard<'_, T, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held exclusively, and the guard borrowed so.
        unsafe { &mut *self.lock.data.get() }
    }
}
