//! Wait queues: who wants to be told when something may have changed.
//!
//! A queue holds *registrations*, pairs of a thread's number and the number of its waiting
//! round.  A round begins when [`super::park`] runs a step and ends when the step succeeded, or
//! the sleep was given up, or the next step starts; ending it is one atomic operation on the
//! thread and makes every registration of the round void, on however many queues.  So a
//! [`Waiter`] needs no memory per queue, holds no reference on queues and the queues hold none
//! on threads; a void registration is skipped by wakers and thrown out when a queue would grow.
//!
//! No wake-up is lost:
//!
//! 1. The sleeper registers under the queue's lock *before* it tests its condition; the waker
//!    changes the condition before it takes the lock.  Either the waker finds the registration,
//!    or the sleeper's hold of the lock came later and its test sees the change.
//! 2. A waker that finds a registration sets the round's *notified* bit with a compare-and-swap
//!    that fails if the round is over.  The sleeper declares itself WAITING, then looks at the
//!    bit (both sequentially consistent); the waker sets the bit, then looks for WAITING.  One
//!    of them sees the other, so no sleeper sleeps on with its bit set.
//! 3. A round given up for a signal or a deadline is closed by a swap that returns the bit; if
//!    it was set, the step runs again, so a `wake_one` spent on this thread is used and not
//!    swallowed.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use ksync::{CpuPin, IrqSpin};

use super::sched;
use super::{ids, lock};

/// A thread's interest: its number and the round that it registered in.  `tid` 0: none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Registration {
    pub tid: u32,
    round: u32,
}

const VACANT: Registration = Registration { tid: 0, round: 0 };

impl Registration {
    /// Whether the round goes on and nobody has notified it.
    fn live(self, pin: &CpuPin) -> bool {
        ids::thread(pin, self.tid).is_some_and(|t| t.round.is(self.round))
    }

    /// Tells the thread; false if the registration is void or another queue told it before.
    pub fn notify(self, pin: &CpuPin) -> bool {
        match ids::thread(pin, self.tid) {
            Some(t) if t.round.notify(self.round) => {
                sched::wake(pin, t);
                true
            }
            _ => false,
        }
    }
}

/// Oldest first: `first`, then `more`.
struct Registrations {
    first: Registration,
    #[expect(
        clippy::box_collection,
        reason = "one word while at most one thread waits, the common case"
    )]
    more: Option<Box<VecDeque<Registration>>>,
}

impl Registrations {
    fn len(&self) -> usize {
        usize::from(self.first != VACANT) + self.more.as_ref().map_or(0, |m| m.len())
    }

    fn pop(&mut self) -> Option<Registration> {
        if self.first == VACANT {
            return None;
        }
        let next = self
            .more
            .as_mut()
            .and_then(|m| m.pop_front())
            .unwrap_or(VACANT);
        Some(core::mem::replace(&mut self.first, next))
    }

    /// Appends if that needs no memory.
    fn push(&mut self, pin: &CpuPin, r: Registration) -> bool {
        if self.first == VACANT
            || self.first.tid == r.tid && self.more.as_ref().is_none_or(|m| m.is_empty())
        {
            self.first = r;
            return true;
        }
        match &mut self.more {
            Some(m) if m.len() < m.capacity() => {
                m.push_back(r);
                true
            }
            Some(m) => {
                m.retain(|old| old.live(pin));
                // Half empty or better: the sweep has paid for itself.
                let room = m.len() <= m.capacity() / 2;
                if room {
                    m.push_back(r);
                }
                room
            }
            None if !self.first.live(pin) => {
                self.first = r;
                true
            }
            None => false,
        }
    }
}

/// A set of sleepers, woken in the order in which they came.  24 bytes while at most one waits.
///
/// All operations but registering may be called from interrupts and with spin locks of a rank
/// below the wait queues' held; waking allocates and frees nothing.
pub struct WaitQueue {
    list: IrqSpin<Registrations, lock::WaitQueueLock>,
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

/// Sleepers taken off a queue in one hold of its lock.
const BATCH: usize = 16;

impl WaitQueue {
    /// A queue without sleepers.
    pub const fn new() -> Self {
        WaitQueue {
            list: IrqSpin::new(Registrations {
                first: VACANT,
                more: None,
            }),
        }
    }

    /// Lists a registration; false if there is no memory for that.
    fn add(&self, r: Registration) -> bool {
        let pin = ksync::pin();
        let mut list = self.list.lock();
        while !list.push(&pin, r) {
            // Grow outside the lock: the allocator must not be entered with interrupts off.
            let want = (list.len() * 2).max(4);
            drop(list);
            let mut bigger = Box::new(VecDeque::new());
            if bigger.try_reserve_exact(want).is_err() {
                return false;
            }
            list = self.list.lock();
            if let Some(old) = &mut list.more {
                if old.len() >= bigger.capacity() {
                    drop(list);
                    list = self.list.lock();
                    continue;
                }
                bigger.extend(old.drain(..));
            }
            let old = list.more.replace(bigger);
            drop(list);
            drop(old);
            list = self.list.lock();
        }
        true
    }

    /// Wakes the thread that has waited longest and has not been told yet by another queue.
    /// Returns whether there was one.
    pub fn wake_one(&self) -> bool {
        let pin = ksync::pin();
        let mut list = self.list.lock();
        while let Some(r) = list.pop() {
            if r.notify(&pin) {
                return true;
            }
        }
        false
    }

    /// Wakes every thread that waits now.  Returns how many were told.
    pub fn wake_all(&self) -> usize {
        let pin = ksync::pin();
        let mut left = self.list.lock().len();
        let mut told = 0;
        // Those who register meanwhile stand behind; they have seen the new state.
        while left > 0 {
            let mut batch = [VACANT; BATCH];
            let mut n = 0;
            let mut list = self.list.lock();
            while n < BATCH.min(left) {
                let Some(r) = list.pop() else { break };
                batch[n] = r;
                n += 1;
            }
            drop(list);
            if n == 0 {
                break;
            }
            left -= n;
            told += batch[..n].iter().filter(|r| r.notify(&pin)).count();
        }
        told
    }

    /// Whether somebody may be waiting: void registrations count.  A hint.
    pub fn is_empty(&self) -> bool {
        self.list.lock().first == VACANT
    }
}

/// A thread's present waiting round, handed to the step function of [`super::park::park`].
/// May listen to any number of queues; every registration ends with the round.
pub struct Waiter {
    me: Registration,
    /// Some queue had no room for it: nobody may wake the thread, so it is to look again by itself.
    unheard: bool,
}

impl Waiter {
    pub(super) fn new(tid: u32, round: u32) -> Self {
        Waiter {
            me: Registration { tid, round },
            unheard: false,
        }
    }

    /// Whether a queue that was to be listened to had no memory for that.
    pub(super) fn unheard(&self) -> bool {
        self.unheard
    }

    /// What a list that is not a wait queue keeps to wake this thread.
    pub(super) fn registration(&self) -> Registration {
        self.me
    }

    /// Asks to be woken by `queue`.  To be called before the condition is tested.
    /// Takes the queue's lock; may allocate, and does without where there is no memory: the step is then run again
    /// after a short while.
    pub fn listen(&mut self, queue: &WaitQueue) {
        self.unheard |= !queue.add(self.me);
    }
}
