//! A sleeping lock of one byte, for embedding in small, numerous objects: for one writer or many readers.
//!
//! Guarantee: one writer, or up to 125 readers, in the order of arrival. A thread that finds the byte held queues
//! itself, and so does a reader that finds threads queued, or finds the count full: no reader is uncounted, and no
//! thread overtakes a waiting one. A released byte is handed over, like [`Mutex`](crate::Mutex) and
//! [`RwLock`](crate::RwLock).
//!
//! The byte holds FREE, WRITER or the number of readers, and beside it WAITERS. The waiters are queued in a table
//! hashed by the byte's address; a list there has the waiters of several bytes, told apart by address.
//!
//! Protocol. WAITERS changes only under the bucket's lock, and while that is free, is set exactly if threads are queued
//! for the byte. While it is set the byte is got only through the queue, so the number of holders falls. A writer
//! releases a byte without WAITERS by one CAS; with WAITERS this fails, and the writer hands over. A reader counts
//! itself down; the last one, if WAITERS is set, hands over. Then the count is 0 beside WAITERS: nobody holds the byte,
//! and only the thread that was the last reader writes it. To hand over is, under the bucket's lock, to take the
//! waiters whose turn it is off the queue, and to write them as the new holders: one writer, or the leading readers as
//! far as they can be counted. They are told when the lock is released. Threads of [`ByteMutex::wait`] that are before
//! them are told, too, and hold nothing; if there are no others, the byte becomes FREE.
//!
//! *No wake-up is lost.* A thread sets WAITERS and queues itself in one section of the bucket's lock, by a CAS that
//! fails if the byte has become free. So the release that makes it free comes before that CAS, and the thread takes the
//! byte; or after it, sees WAITERS, and finds the thread in the queue.
//!
//! *Ordering.* What takes the byte by a CAS acquires; what it reads was written by a release, or by CASes and
//! subtractions of readers after one, which continue its release sequence. So a reader sees the last writer, and a
//! writer all readers. The last reader's subtraction also acquires: with the byte it hands on what the others did. A
//! thread that is handed the byte acquires by the grant (queue.rs). The byte is written before the grants, because its
//! memory may be freed after the last of them.

use core::{marker::PhantomData, pin::pin as stack_pin, ptr};

use crate::{
    atomic::{AtomicU8, Ordering::*},
    byte_owner,
    class::{self, LockClass, Order},
    platform, profile,
    queue::{WaitList, Waiter, Want, list_of},
    shim::BYTE_READERS,
};

const FREE: u8 = 0;
/// Greater than any number of readers.
const WRITER: u8 = 127;
/// Beside the above: threads are queued.
const WAITERS: u8 = 128;

/// A lock of one byte that sleeps, without data; the class is a parameter of each call.
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
        if !self.enter() {
            self.sleep::<C>(Want::Exclusive);
        }
        byte_owner::takes(self);
        profile::taken::<C, _>(self, true);
        ByteMutexGuard {
            lock: self,
            class: PhantomData,
        }
    }

    /// Takes the lock if it is free; never sleeps.
    #[inline]
    pub fn try_lock<C: LockClass>(&self) -> Option<ByteMutexGuard<'_, C>> {
        if !self.enter() {
            return None;
        }
        class::acquire::<C>(Order::Try);
        byte_owner::takes(self);
        profile::taken::<C, _>(self, true);
        Some(ByteMutexGuard {
            lock: self,
            class: PhantomData,
        })
    }

    /// Takes the lock shared; sleeps if a writer holds it, a thread waits for it, or it has as many readers as it
    /// counts. In the last case it waits until they all are gone.
    #[inline]
    pub fn read<C: LockClass>(&self) -> ByteReadGuard<'_, C> {
        class::may_sleep::<C>();
        class::acquire::<C>(Order::Ascending);
        if !self.enter_shared() {
            self.sleep::<C>(Want::Shared);
        }
        profile::taken::<C, _>(self, false);
        ByteReadGuard {
            lock: self,
            class: PhantomData,
        }
    }

    /// Takes the lock shared, if `read` would not sleep; never sleeps.
    #[inline]
    pub fn try_read<C: LockClass>(&self) -> Option<ByteReadGuard<'_, C>> {
        if !self.enter_shared() {
            return None;
        }
        class::acquire::<C>(Order::Try);
        profile::taken::<C, _>(self, false);
        Some(ByteReadGuard {
            lock: self,
            class: PhantomData,
        })
    }

    /// Sleeps until the lock is free, and does not take it: for an operation that tried where it may not sleep, and
    /// tries again after this.
    ///
    /// Guarantee: at some moment of the call nobody held the lock. It need not be free any more. A caller that is queued
    /// has its turn like one of `lock`; it is told by the thread that releases the lock, and never stands between that
    /// release and the next holder. (Were it handed the lock, to release it at once, then two callers that try again
    /// would find it in each other's hands for ever.) An operation that must not lose the lock to others any number of
    /// times takes it by `lock`.
    ///
    /// The rank is checked as if the lock were taken, and a wait counts as one for the lock. What earlier holders did is
    /// seen by a caller that takes the lock afterwards, not before.
    #[inline]
    pub fn wait<C: LockClass>(&self) {
        class::may_sleep::<C>();
        class::acquire::<C>(Order::Ascending);
        if self.byte.load(Relaxed) != FREE {
            self.sleep::<C>(Want::Look);
        }
        class::release::<C>();
    }

    /// Whether it is held now, by a writer or by readers; for assertions.
    pub fn is_locked(&self) -> bool {
        self.byte.load(Relaxed) != FREE
    }

    /// Makes the caller the writer, if the byte is free.
    #[inline]
    pub(crate) fn enter(&self) -> bool {
        self.byte
            .compare_exchange(FREE, WRITER, Acquire, Relaxed)
            .is_ok()
    }

    /// Ends what `enter` began.
    #[inline]
    pub(crate) fn leave<C: LockClass>(&self) {
        byte_owner::releases(self, C::NAME);
        if let Err(state) = self.byte.compare_exchange(WRITER, FREE, Release, Relaxed) {
            debug_assert!(
                state == WRITER | WAITERS,
                "releasing \"{}\" (byte {state:#x}), which no writer holds",
                C::NAME
            );
            self.hand_over();
        }
    }

    /// Counts the caller as a reader, if there is neither a writer nor a waiter, and room in the count.
    #[inline]
    fn enter_shared(&self) -> bool {
        let mut state = self.byte.load(Relaxed);
        // WRITER, and whatever has WAITERS, is greater.
        while state < BYTE_READERS {
            match self
                .byte
                .compare_exchange_weak(state, state + 1, Acquire, Relaxed)
            {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Ends what `enter_shared` began.
    #[inline]
    fn leave_shared<C: LockClass>(&self) {
        let state = self.byte.fetch_sub(1, AcqRel);
        debug_assert!(
            matches!(state & !WAITERS, 1..=BYTE_READERS),
            "releasing \"{}\" (byte {state:#x}), which no reader holds",
            C::NAME
        );
        if state == 1 | WAITERS {
            self.hand_over();
        }
    }

    fn key(&self) -> usize {
        ptr::from_ref(self).addr()
    }

    fn bucket(&self) -> &'static WaitList {
        list_of(self.key())
    }

    /// Queues the caller, unless it gets in now, and sleeps until it has what it wants.
    #[cold]
    #[inline(never)]
    fn sleep<C: LockClass>(&self, want: Want) {
        let since = platform::ticks();
        let waiter = stack_pin!(Waiter::new(want, self.key()));
        let mut queue = self.bucket().lock();
        let mut state = self.byte.load(Relaxed);
        loop {
            let (next, enters) = match want {
                Want::Exclusive if state == FREE => (WRITER, true),
                Want::Shared if state < BYTE_READERS => (state + 1, true),
                Want::Look if state == FREE => (FREE, true),
                _ => (state | WAITERS, false),
            };
            match self
                .byte
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

    /// Hands the byte, which has waiters and which the caller was the last to hold, to those whose turn it is.
    #[cold]
    #[inline(never)]
    fn hand_over(&self) {
        let pin = crate::pin();
        let mut queue = self.bucket().lock();
        let key = self.key();
        let turn = queue.turn(key, usize::from(BYTE_READERS));
        let holders = if turn.writer {
            WRITER
        } else {
            turn.readers as u8
        };
        let more = if turn.more { WAITERS } else { 0 };
        // Before the grants, see the head. Release: without WAITERS others take the byte by this value, and must see its
        // earlier holders.
        self.byte.store(holders | more, Release);
        let granted = queue.grant(key, turn.waiters);
        drop(queue);
        granted.wake(&pin);
    }
}

impl Default for ByteMutex {
    fn default() -> Self {
        Self::new()
    }
}

/// Guard of a [`ByteMutex`] that is held exclusively.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ByteMutexGuard<'a, C: LockClass> {
    lock: &'a ByteMutex,
    class: PhantomData<(C, *mut ())>,
}

impl<C: LockClass> Drop for ByteMutexGuard<'_, C> {
    #[inline]
    fn drop(&mut self) {
        class::release::<C>();
        profile::leaving::<C, _>(self.lock, true);
        self.lock.leave::<C>();
    }
}

/// Guard of a [`ByteMutex`] that is held shared.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ByteReadGuard<'a, C: LockClass> {
    lock: &'a ByteMutex,
    class: PhantomData<(C, *mut ())>,
}

impl<C: LockClass> Drop for ByteReadGuard<'_, C> {
    #[inline]
    fn drop(&mut self) {
        class::release::<C>();
        profile::leaving::<C, _>(self.lock, false);
        self.lock.leave_shared::<C>();
    }
}
