//! The queue of waiters of a sleeping lock: a FIFO of nodes on the waiters' own stacks.
//!
//! A lock is handed over, not raced for: the unlocking thread takes the first waiter off the queue, or the readers that
//! are before the first writer, makes them the owners, and wakes them alone.
//!
//! Ordering: the actions of the unlocking thread happen before its Release store to `granted`, which the waiter's
//! Acquire load reads. After that store the node may be gone, so the token to unpark is read before it; preemption is
//! off from before the store until the unpark.

use core::{cell::Cell, marker::PhantomPinned, pin::Pin, ptr};

use crate::shim::{DataCell, PARK_BUCKETS};
use crate::{
    atomic::{AtomicU32, Ordering::*},
    class::ClassStats,
    lock_class,
    percpu::CpuPin,
    platform::{self, Parker},
    spin::{RawSpin, RawSpinGuard},
};

lock_class!(pub(crate) WaitListLock, "sleeping lock queue", rank = 250);

/// How a waiter wants the lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    Shared,
    Exclusive,
    /// Not the lock, only to be told that it was free.
    Look,
}

/// One waiting thread, on its stack. Links are guarded by the list's lock; those of waiters that were taken off belong
/// to the thread that took them.
pub(crate) struct Waiter {
    next: Cell<*const Waiter>,
    parker: Parker,
    /// The thread's number, for messages.
    thread: u32,
    pub(crate) want: Want,
    /// The lock, if several share a list.
    pub(crate) key: usize,
    granted: AtomicU32,
    _pinned: PhantomPinned,
}

impl Waiter {
    pub(crate) fn new(want: Want, key: usize) -> Self {
        Self {
            next: Cell::new(ptr::null()),
            parker: platform::parker(),
            thread: platform::thread(),
            want,
            key,
            granted: AtomicU32::new(0),
            _pinned: PhantomPinned,
        }
    }

    /// Sleeps until the thread is told that it owns the lock, or has had its look, and counts the wait, begun at `since`. A
    /// watchdog that notices a long wait unparks the thread, which then reports the result of `holder`: the thread itself can
    /// read it, because the lock cannot be freed meanwhile. `lock` is its address, 0 where the holder is not known.
    pub(crate) fn wait(
        self: Pin<&Self>,
        stats: &'static ClassStats,
        since: u64,
        lock: usize,
        holder: impl Fn() -> u32,
    ) {
        platform::sleeps_for_lock(since);
        platform::lends(holder(), lock);
        let mut parked = false;
        while self.granted.load(Acquire) == 0 {
            if parked {
                platform::still_waits(stats.name(), holder(), since);
            }
            platform::park();
            parked = true;
        }
        platform::sleeps_for_lock(0);
        let _pin = crate::pin();
        stats.stalled(true, since);
    }
}

/// A queue of waiters and its spin lock.
pub(crate) struct WaitList {
    lock: RawSpin,
    /// Guarded by `lock`.
    ends: DataCell<Ends>,
}

#[derive(Clone, Copy)]
struct Ends {
    head: *const Waiter,
    tail: *const Waiter,
}

// SAFETY: the nodes are accessed under `lock` only, and live until they are granted.
unsafe impl Sync for WaitList {}
// SAFETY: as above; a list with waiters cannot move, because they borrow the lock that contains it.
unsafe impl Send for WaitList {}

impl WaitList {
    const_fn! {
        pub(crate) fn new() -> Self {
            Self {
                lock: RawSpin::new(),
                ends: DataCell::new(Ends { head: ptr::null(), tail: ptr::null() }),
            }
        }
    }

    pub(crate) fn lock(&self) -> WaitListGuard<'_> {
        WaitListGuard {
            list: self,
            _guard: self.lock.lock(),
        }
    }
}

model_static! {
    static BUCKETS: [WaitList; PARK_BUCKETS] = array_of![WaitList::new(); PARK_BUCKETS];
}

/// The list for waiters on `address`, for words that have no list of their own.
pub(crate) fn list_of(address: usize) -> &'static WaitList {
    // Fibonacci hashing: the high half of the product is well mixed.
    let hash = (address as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    &BUCKETS[hash as usize % PARK_BUCKETS]
}

/// A locked list.
pub(crate) struct WaitListGuard<'a> {
    list: &'a WaitList,
    _guard: RawSpinGuard<'a, WaitListLock>,
}

/// Waiters that own their lock now, and must be woken after the list was unlocked. They learn of it when they are woken.
#[must_use]
pub(crate) struct Granted(*const Waiter);

impl Granted {
    /// Whether there was no waiter.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_null()
    }

    /// Wakes the threads. Preemption must have been off since the grant.
    pub(crate) fn wake(self, _pin: &CpuPin) {
        let mut at = self.0;
        // SAFETY: the nodes were taken off their list, so nobody else grants them, and live until they are granted.
        while let Some(waiter) = unsafe { at.as_ref() } {
            at = waiter.next.get();
            let parker = waiter.parker;
            waiter.granted.store(1, Release);
            platform::unpark(parker);
        }
    }
}

/// The waiters that get a lock when nobody holds it any more: those before the first writer, or it too if no reader is
/// before it. Those that only look are among them.
#[derive(Default)]
pub(crate) struct Turn {
    /// All of them.
    pub(crate) waiters: usize,
    /// Those that share the lock.
    pub(crate) readers: usize,
    /// Whether the last of them gets the lock alone.
    pub(crate) writer: bool,
    /// Whether others wait behind them.
    pub(crate) more: bool,
}

impl WaitListGuard<'_> {
    fn ends(&self) -> Ends {
        // SAFETY: the lock is held.
        unsafe { *self.list.ends.get() }
    }

    fn set_ends(&mut self, ends: Ends) {
        // SAFETY: the lock is held.
        unsafe { *self.list.ends.get() = ends };
    }

    pub(crate) fn push(&mut self, waiter: Pin<&Waiter>) {
        let me = ptr::from_ref(waiter.get_ref());
        let Ends { head, tail } = self.ends();
        // SAFETY: a node on the list is alive, and the list is locked.
        match unsafe { tail.as_ref() } {
            Some(last) => last.next.set(me),
            None => return self.set_ends(Ends { head: me, tail: me }),
        }
        self.set_ends(Ends { head, tail: me });
    }

    /// The number of the first thread that waits for `key`, 0 if there is none.
    pub(crate) fn first(&self, key: usize) -> u32 {
        self.iter().find(|w| w.key == key).map_or(0, |w| w.thread)
    }

    /// Whether at least two wait for `key`.
    pub(crate) fn has_second(&self, key: usize) -> bool {
        self.iter().filter(|w| w.key == key).nth(1).is_some()
    }

    /// Whose turn it is for the lock `key`, which may have `most` readers at once.
    pub(crate) fn turn(&self, key: usize, most: usize) -> Turn {
        let mut turn = Turn::default();
        for waiter in self.iter().filter(|w| w.key == key) {
            let fits = match waiter.want {
                Want::Look => true,
                Want::Shared => turn.readers < most,
                Want::Exclusive => turn.readers == 0,
            };
            if turn.writer || !fits {
                turn.more = true;
                break;
            }
            turn.waiters += 1;
            turn.readers += usize::from(waiter.want == Want::Shared);
            turn.writer = waiter.want == Want::Exclusive;
        }
        turn
    }

    fn iter(&self) -> impl Iterator<Item = &Waiter> {
        // SAFETY: nodes on the list are alive until granted, which needs this lock.
        let mut at = unsafe { self.ends().head.as_ref() };
        core::iter::from_fn(move || {
            let here = at?;
            // SAFETY: as above.
            at = unsafe { here.next.get().as_ref() };
            Some(here)
        })
    }

    /// Removes the first `n` waiters for `key` from the list and makes them the owners.
    pub(crate) fn grant(&mut self, key: usize, n: usize) -> Granted {
        let Ends { mut head, mut tail } = self.ends();
        let (mut prev, mut at) = (ptr::null::<Waiter>(), head);
        let (mut first, mut last) = (ptr::null::<Waiter>(), ptr::null::<Waiter>());
        let mut missing = n;
        while missing > 0
            // SAFETY: nodes on the list are alive until granted, which needs this lock; so is `last`, which is not yet
            // granted.
            && let Some(waiter) = unsafe { at.as_ref() }
        {
            let (me, next) = (at, waiter.next.get());
            at = next;
            if waiter.key != key {
                prev = me;
                continue;
            }
            missing -= 1;
            // SAFETY: as above.
            match unsafe { prev.as_ref() } {
                Some(prev) => prev.next.set(next),
                None => head = next,
            }
            if next.is_null() {
                tail = prev;
            }
            waiter.next.set(ptr::null());
            // SAFETY: as above.
            match unsafe { last.as_ref() } {
                Some(last) => last.next.set(me),
                None => first = me,
            }
            last = me;
        }
        self.set_ends(Ends { head, tail });
        Granted(first)
    }
}
