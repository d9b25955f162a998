//! Wait queues, and the two words of a thread that a sleep and a wake-up use.
//!
//! A queue holds [`Registration`]s, pairs of a thread's tid and the number of its waiting *round*. A round begins
//! before a sleeper tests the condition that it waits for, and ends with the sleep. Ending it is one atomic operation
//! on the thread and makes every registration of the round void, on however many queues. So a sleeper needs no memory
//! per queue and no reference on queues, and queues need no reference on threads. Wakers skip void registrations, and a
//! queue drops them when it would have to grow.
//!
//! **A round number is never reused.** It has 64 bits, and the rounds of a thread begin where those of the last thread
//! with the same tid ended ([`Round::after`], [`Round::heir`]). So a registration that a dead thread left behind
//! matches no later thread with its tid.
//!
//! No wake-up is lost:
//!
//! 1. The sleeper registers under the queue's lock *before* it tests its condition; the waker changes the condition
//!    before it takes the lock. Either the waker finds the registration, or the sleeper's hold of the lock came later
//!    and its test sees the change.
//! 2. A waker that finds a registration sets the round's *notified* bit with a compare-and-swap that fails if the round
//!    is over. The sleeper declares itself `Waiting`, then tests the bit; the waker sets the bit, then tests for
//!    `Waiting`. Each has a full fence between its two steps, so one of them sees the other, and no thread stays asleep
//!    with its bit set.
//! 3. A round that ends because of a signal or a deadline is closed by a swap that returns the bit. If it was set, the
//!    sleeper tests its condition again, so that a `wake_one` that chose this thread is not lost.
//! 4. A round may be notified although its sleeper has found its condition true without that: a `wake_one` for the next
//!    sleeper then chose this thread. So a round that ends with success passes the wake-up on
//!    ([`Round::end_with_success`]).
//!
//! A *listener* has a number and rounds as a thread has, and is called instead of woken ([`Sleepers::call`]), outside of the
//! queue's lock: such as an entry of an epoll. Points 1 and 2 hold for it, with a look at the file in place of the test. It takes no
//! `wake_one` from a thread. Of the *exclusive* listeners one `wake_all` calls no more after one that has woken a thread. A *standing*
//! listener stays on the queue and is called by each wake-up until it ends its round, which no call notifies: such as a file whose
//! changes are told by signals.

use alloc::{boxed::Box, collections::VecDeque};
use core::marker::PhantomData;

use self::registration::VACANT;
pub use self::registration::{Cause, Registration};
pub use self::run_state::{Run, RunState};
use crate::{
    atomic::{AtomicU64, Ordering::*},
    class::LockClass,
    heap::try_box,
    percpu::{CpuPin, pin},
    spin::IrqSpin,
};

mod registration;
mod run_state;

/// The number of a thread's waiting round, and in bit 0 whether a waker has notified it. The thread advances the
/// number, wakers set the bit.
pub struct Round(AtomicU64);

/// Low bits of a round number, which the next thread with the same tid does not inherit.
const OWN_BITS: u32 = 32;

impl Round {
    const_fn! {
        /// The rounds of a new thread. `heir` is from the last thread with the same tid; 0 if there was none.
        pub fn after(heir: u32) -> Self {
            Round(AtomicU64::new((heir as u64) << OWN_BITS))
        }
    }

    /// The argument of [`Round::after`] for the next thread with the same tid, so that no round number is reused.
    /// Called during or after the thread's last round.
    pub fn heir(&self) -> u32 {
        ((self.0.load(Relaxed) >> OWN_BITS) as u32).wrapping_add(1)
    }

    /// Continues as if made by [`Round::after`], for a thread whose tid changes. By the thread itself, between two
    /// rounds.
    pub fn go_on_after(&self, heir: u32) {
        self.0.store(u64::from(heir) << OWN_BITS, Relaxed);
    }

    /// Begins a round, which makes all earlier registrations void. By the thread itself.
    pub fn begin(&self) -> u64 {
        let next = (self.0.load(Relaxed) | 1).wrapping_add(1);
        self.0.swap(next, Relaxed);
        next
    }

    /// Ends the round; returns whether it had been notified.  By the thread itself.
    pub fn end(&self) -> bool {
        let next = (self.0.load(Relaxed) | 1).wrapping_add(1);
        self.0.swap(next, Acquire) & 1 != 0
    }

    /// Ends the round of a sleeper whose condition holds. If the round was notified, `pass_on` runs, which wakes another
    /// sleeper. By the thread itself.
    pub fn end_with_success(&self, pass_on: impl FnOnce()) {
        if self.end() {
            pass_on();
        }
    }

    /// Whether the present round was notified. If so, what the waker did before is visible.
    pub fn notified(&self) -> bool {
        self.0.load(Acquire) & 1 != 0
    }

    /// Whether `round` is the present round and was not notified.
    pub fn is(&self, round: u64) -> bool {
        self.0.load(Relaxed) == round
    }

    /// Whether `round` has not ended, notified or not.
    pub fn goes_on(&self, round: u64) -> bool {
        self.0.load(Relaxed) & !1 == round
    }

    /// Notifies the present round, whatever its number. To be followed by [`RunState::wake`].
    pub fn notify_present(&self) {
        self.0.fetch_or(1, Release);
    }

    /// Notifies `round`; false if it is over or was notified before. If true, to be followed by [`RunState::wake`].
    pub fn notify(&self, round: u64) -> bool {
        self.0
            .compare_exchange(round, round | 1, Release, Relaxed)
            .is_ok()
    }
}

/// How a queue finds and wakes threads by their tid.
pub trait Sleepers: 'static {
    /// The rounds of the thread that has `tid` now.
    fn round(pin: &CpuPin, tid: u32) -> Option<&Round>;
    /// Wakes the thread that has `tid`, whose round was notified.
    fn wake(pin: &CpuPin, tid: u32);
    /// The rounds of the listener that has this number now.
    fn listener_round(_pin: &CpuPin, _number: u32) -> Option<&Round> {
        None
    }
    /// Calls the listener that has this number, whose round was notified, with the cause if the wake-up has one. No wait queue's
    /// lock is held. Returns whether it has woken a thread.
    fn call(_pin: &CpuPin, _number: u32, _cause: Option<Cause>) -> bool {
        false
    }
}

/// The registrations after the first. One word while at most one thread waits, the common case.
type Further = Option<List>;
type List = Box<VecDeque<Registration>>;

/// A [`Further`] with an alignment of four bytes, so that a queue with its lock takes 24 bytes.
#[repr(Rust, packed(4))]
struct Packed(Further);

impl Packed {
    /// Passes it to `f`, which may change it.
    #[inline]
    fn with<R>(&mut self, f: impl FnOnce(&mut Further) -> R) -> R {
        let mut further = core::mem::replace(self, Packed(None)).0;
        let result = f(&mut further);
        *self = Packed(further);
        result
    }
}

/// The longest list that an empty queue keeps.
const KEEP: usize = 64;

/// The most listeners of one queue: a wake-up, which may come in an interrupt, calls all of them.
pub const MOST_LISTENERS: usize = 256;

/// Oldest first: `first`, then `more`.
struct Registrations {
    first: Registration,
    more: Packed,
}

impl Registrations {
    fn len(&mut self) -> usize {
        let further = self.more.with(|m| m.as_ref().map_or(0, |m| m.len()));
        usize::from(self.first != VACANT) + further
    }

    fn pop(&mut self) -> Option<Registration> {
        if self.first == VACANT {
            return None;
        }
        let next = self.more.with(|m| m.as_mut()?.pop_front());
        Some(core::mem::replace(&mut self.first, next.unwrap_or(VACANT)))
    }

    /// Appends a registration if that needs no memory.
    fn push<S: Sleepers>(&mut self, pin: &CpuPin, r: Registration) -> bool {
        let first = &mut self.first;
        self.more.with(|more| match more {
            _ if *first == VACANT => {
                *first = r;
                true
            }
            more if first.tid == r.tid && more.as_ref().is_none_or(|m| m.is_empty()) => {
                *first = first.later(r);
                true
            }
            // A thread that registers again and again, as poll(2) does for each descriptor of one pipe, takes one slot.
            Some(m) if m.back().is_some_and(|last| last.tid == r.tid) => {
                if let Some(last) = m.back_mut() {
                    *last = last.later(r);
                }
                true
            }
            Some(m) if m.len() < m.capacity() => {
                m.push_back(r);
                true
            }
            Some(m) => {
                m.retain(|old| old.live::<S>(pin));
                // At least half empty: dropping the void registrations was worth its cost.
                let room = m.len() <= m.capacity() / 2;
                if room {
                    m.push_back(r);
                }
                room
            }
            None if !first.live::<S>(pin) => {
                *first = r;
                true
            }
            None => false,
        })
    }

    /// Whether there are as many listeners as there may be. Drops void registrations if it seems so.
    fn is_full_of_listeners<S: Sleepers>(&mut self, pin: &CpuPin) -> bool {
        if self.len() < MOST_LISTENERS {
            return false;
        }
        let further = self.more.with(|more| {
            more.as_mut().map_or(0, |m| {
                m.retain(|old| old.live::<S>(pin));
                m.iter().filter(|r| r.is_listener()).count()
            })
        });
        usize::from(self.first.is_listener()) + further >= MOST_LISTENERS
    }

    /// Takes out the list of an empty queue if many have waited, for the caller to free.
    #[inline]
    fn spare(&mut self) -> Further {
        if self.first != VACANT {
            return None;
        }
        self.more
            .with(|more| more.take_if(|list| list.capacity() > KEEP))
    }

    /// Replaces the list by `bigger`, an empty list, if that has more room; returns the list that is not needed.
    fn grow(&mut self, mut bigger: List) -> Further {
        self.more.with(|more| {
            if let Some(old) = more {
                if old.len() >= bigger.capacity() {
                    return Some(bigger);
                }
                bigger.extend(old.drain(..));
            }
            more.replace(bigger)
        })
    }
}

/// A set of sleepers, woken in order of arrival. 24 bytes while at most one waits.
///
/// All operations except registering may be called from interrupt handlers, and with spin locks held whose rank is
/// below the queues'; waking allocates and frees nothing.
pub struct WaitQueue<S, C> {
    list: IrqSpin<Registrations, C>,
    _sleepers: PhantomData<fn(S)>,
}

impl<S: Sleepers, C: LockClass> Default for WaitQueue<S, C> {
    fn default() -> Self {
        Self::new()
    }
}

/// Registrations removed from a queue in one hold of its lock.
const BATCH: usize = 16;

impl<S: Sleepers, C: LockClass> WaitQueue<S, C> {
    const_fn! {
        /// A queue without sleepers.
        pub fn new() -> Self {
            WaitQueue {
                list: IrqSpin::new(Registrations {
                    first: VACANT,
                    more: Packed(None),
                }),
                _sleepers: PhantomData,
            }
        }
    }

    /// Adds a registration; false if there is no memory for it, or if it is of a listener and the queue has [`MOST_LISTENERS`]. To be
    /// called before the condition is tested. It replaces one of the same thread that is the last on the queue. Allocates and frees
    /// without the queue's lock.
    pub fn add(&self, r: Registration) -> bool {
        let mut list = self.list.lock();
        let spare = list.spare();
        if spare.is_some() {
            drop(list);
            drop(spare);
            list = self.list.lock();
        }
        if r.is_listener() && list.is_full_of_listeners::<S>(&pin()) {
            return false;
        }
        while !list.push::<S>(&pin(), r) {
            // Grow outside the lock: the allocator must not be entered with interrupts off, and the thread may have to wait for memory.
            let want = (list.len() * 2).max(4);
            drop(list);
            let Ok(mut bigger) = try_box(VecDeque::new()) else {
                return false;
            };
            if bigger.try_reserve_exact(want).is_err() {
                return false;
            }
            let spare = self.list.lock().grow(bigger);
            drop(spare);
            list = self.list.lock();
        }
        true
    }

    /// Wakes the thread that has waited longest and that no other queue has notified yet. Returns whether there was
    /// one. Listeners that come before it are called.
    pub fn wake_one(&self) -> bool {
        let pin = pin();
        let mut list = self.list.lock();
        // Those that stay are met once.
        let mut left = usize::MAX;
        while left > 0
            && let Some(r) = list.pop()
        {
            left -= 1;
            if r.is_listener() {
                if r.stays() && r.live::<S>(&pin) {
                    left = left.min(list.len());
                    list.push::<S>(&pin, r);
                }
                drop(list);
                r.notify::<S>(&pin);
                list = self.list.lock();
            } else if r.notify::<S>(&pin) {
                return true;
            }
        }
        false
    }

    /// Wakes every thread that waits now, and calls every listener, but exclusive ones behind the first of them that has woken a
    /// thread. Returns the number of threads notified and of listeners that have woken one. Preemption is off for a batch at a
    /// time, unless it is off in the caller.
    pub fn wake_all(&self) -> usize {
        self.wake(None)
    }

    /// As [`wake_all`](Self::wake_all), but listeners that are not called for this cause stay.
    pub fn wake_all_for(&self, cause: Cause) -> usize {
        self.wake(Some(cause))
    }

    fn wake(&self, cause: Option<Cause>) -> usize {
        let bit = cause.map_or(0, |cause| cause as u32);
        let mut left = self.list.lock().len();
        let mut told = 0;
        let mut served = false;
        // Threads that register meanwhile come later in the queue; they have seen the new state.
        while left > 0 {
            // From before the first is taken off until the last is told: a thread that ran in between, and perhaps needs more
            // CPU time than this one gets, would find the queue empty while they sleep on.
            let pin = pin();
            let mut batch = [VACANT; BATCH];
            let mut n = 0;
            let mut list = self.list.lock();
            let mut passed = 0;
            while n < BATCH && passed < BATCH.min(left) {
                let Some(r) = list.pop() else { break };
                passed += 1;
                let exclusive = r.is_exclusive();
                if r.tid & bit != 0 && r.is_listener() || exclusive && served {
                    // It stays, behind those that are called: so exclusive ones take turns. There is room where it was.
                    if r.live::<S>(&pin) {
                        list.push::<S>(&pin, r);
                    }
                    continue;
                }
                if r.stays() && r.live::<S>(&pin) {
                    list.push::<S>(&pin, r);
                }
                batch[n] = r;
                n += 1;
                if exclusive || r.stays() {
                    // Whether the next exclusive one is called depends on this one; and one that stays may send signals to a whole group,
                    // between which preemption is on.
                    break;
                }
            }
            drop(list);
            if passed == 0 {
                break;
            }
            left -= passed;
            for r in &batch[..n] {
                let woke = r.notify_of::<S>(&pin, cause);
                told += usize::from(woke);
                served |= woke && r.is_exclusive();
            }
        }
        told
    }

    /// Frees the list of a queue that nobody sleeps on, if more than one thread has waited at once. Its registrations are
    /// void.
    pub fn clear(&mut self) {
        let list = self.list.get_mut();
        if list.more.with(Option::take).is_some() {
            list.first = VACANT;
        }
    }

    /// Whether the queue has no registration. A hint, because void registrations count.
    pub fn is_empty(&self) -> bool {
        self.list.lock().first == VACANT
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
