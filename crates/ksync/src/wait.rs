//! Wait queues and the two words of a thread that sleep and wake-up go through.
//!
//! A queue holds [`Registration`]s, pairs of a thread's number and the number of its waiting
//! *round*.  A round begins before a sleeper looks at what it waits for, and ends when the sleep
//! does; ending it is one atomic operation on the thread and makes every registration of the
//! round void, on however many queues.  So a sleeper needs no memory for a queue, holds no
//! reference on queues, and queues hold none on threads; a void registration is skipped by
//! wakers and thrown out when a queue would grow.
//!
//! **A round comes once.**  It has 64 bits, and the rounds of a thread begin where those of the
//! last bearer of its number ended ([`Round::after`], [`Round::heir`]).  So a registration that a
//! dead thread left names nobody, whoever bears the number by then.
//!
//! No wake-up is lost:
//!
//! 1. The sleeper registers under the queue's lock *before* it tests its condition; the waker
//!    changes the condition before it takes the lock.  Either the waker finds the registration,
//!    or the sleeper's hold of the lock came later and its test sees the change.
//! 2. A waker that finds a registration sets the round's *notified* bit with a compare-and-swap
//!    that fails if the round is over.  The sleeper declares itself `Waiting`, then looks at the
//!    bit; the waker sets the bit, then looks for `Waiting`.  A full fence stands between the two
//!    steps of each, so one of them sees the other, and no sleeper sleeps on with its bit set.
//! 3. A round given up for a signal or a deadline is closed by a swap that returns the bit; if
//!    it was set, the sleeper looks at its condition again, so a `wake_one` spent on this thread
//!    is used and not swallowed.

use alloc::{boxed::Box, collections::VecDeque};
use core::marker::PhantomData;

use crate::{
    atomic::{AtomicU8, AtomicU64, Ordering::*},
    class::LockClass,
    heap::try_box,
    percpu::{CpuPin, pin},
    shim::fence_after_rmw,
    spin::IrqSpin,
};

/// The number of a thread's waiting round and whether a waker has notified it.  Bit 0: notified.
/// The thread advances the rest, wakers set bit 0.
pub struct Round(AtomicU64);

/// Bits of a round number that the next bearer of a thread's number does not inherit.
const OWN_BITS: u32 = 32;

impl Round {
    const_fn! {
        /// The rounds of a thread whose number's last bearer left `heir`; 0 if there was none.
        pub fn after(heir: u32) -> Self {
            Round(AtomicU64::new((heir as u64) << OWN_BITS))
        }
    }

    /// What [`Round::after`] is to be given for the next thread of the same number, so that no
    /// round comes twice.  By or after the thread's last round.
    pub fn heir(&self) -> u32 {
        ((self.0.load(Relaxed) >> OWN_BITS) as u32).wrapping_add(1)
    }

    /// Goes on as [`Round::after`] begins, for a thread whose number changes.  By the thread itself, between two rounds.
    pub fn go_on_after(&self, heir: u32) {
        self.0.store(u64::from(heir) << OWN_BITS, Relaxed);
    }

    /// Begins a round: all earlier registrations are void.  By the thread itself.
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

    /// Whether the present round has been notified.  What the waker did before is seen then.
    pub fn notified(&self) -> bool {
        self.0.load(Acquire) & 1 != 0
    }

    /// Whether `round` goes on and has not been notified.
    pub fn is(&self, round: u64) -> bool {
        self.0.load(Relaxed) == round
    }

    /// Whether `round` has not ended, notified or not.
    pub fn goes_on(&self, round: u64) -> bool {
        self.0.load(Relaxed) & !1 == round
    }

    /// Notifies whatever round goes on now.  To be followed by [`RunState::wake`].
    pub fn notify_present(&self) {
        self.0.fetch_or(1, Release);
    }

    /// Notifies `round`; false if it is over or was notified before.  If true, to be followed by
    /// [`RunState::wake`].
    pub fn notify(&self, round: u64) -> bool {
        self.0
            .compare_exchange(round, round | 1, Release, Relaxed)
            .is_ok()
    }
}

/// Where a thread is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Run {
    /// On a CPU or on a run queue.
    Running = 0,
    /// Still on its CPU, has declared that it will sleep.
    Waiting = 1,
    /// Asleep; its context is saved.
    Blocked = 2,
    /// Will not run again.
    Dead = 3,
}

/// A thread's [`Run`].
pub struct RunState(AtomicU8);

impl RunState {
    const_fn! {
        /// A thread that runs, or is not queued yet.
        pub fn new() -> Self {
            Self(AtomicU8::new(Run::Running as u8))
        }
    }

    /// The present state.  A hint, but for the thread itself while it is `Running` or `Dead`.
    pub fn get(&self) -> Run {
        [Run::Running, Run::Waiting, Run::Blocked, Run::Dead][self.0.load(Relaxed) as usize & 3]
    }

    /// Declares that the thread will sleep unless something wakes it from now on.  The thread
    /// then looks at what could have woken it before.
    pub fn declare_waiting(&self) {
        self.0.swap(Run::Waiting as u8, Relaxed);
        fence_after_rmw();
    }

    /// Takes the declaration back.  By the thread itself: a waker that comes meanwhile writes the same.
    pub fn declare_running(&self) {
        self.0.store(Run::Running as u8, Relaxed);
    }

    /// The thread will not sleep any more, and leave its CPU once.  By the thread itself.
    pub fn declare_dead(&self) {
        self.0.store(Run::Dead as u8, Relaxed);
    }

    /// The thread's context is saved: from here on a waker may have it run elsewhere, so this is
    /// the last touch.  False if it was woken since it declared that it would sleep, and is to be
    /// queued by the caller.
    pub fn settle(&self) -> bool {
        self.0
            .compare_exchange(Run::Waiting as u8, Run::Blocked as u8, Release, Relaxed)
            .is_ok()
    }

    /// Ends a sleep, or a declaration that it will come; true if the caller is to queue the
    /// thread.  Nothing happens to one that runs.  The reason to wake has been made visible by a
    /// read-modify-write.
    pub fn wake(&self) -> bool {
        fence_after_rmw();
        loop {
            let state = self.0.load(Relaxed);
            if state != Run::Waiting as u8 && state != Run::Blocked as u8 {
                return false;
            }
            if self
                .0
                .compare_exchange(state, Run::Running as u8, Acquire, Relaxed)
                .is_ok()
            {
                return state == Run::Blocked as u8;
            }
        }
    }
}

impl Default for RunState {
    fn default() -> Self {
        Self::new()
    }
}

/// How a queue finds and wakes the bearers of numbers.
pub trait Sleepers: 'static {
    /// The waiting rounds of the thread that bears `tid` now.
    fn round(pin: &CpuPin, tid: u32) -> Option<&Round>;
    /// Wakes the thread that bears `tid`, whose round has been notified.
    fn wake(pin: &CpuPin, tid: u32);
}

/// A thread's interest: its number and the round that it registered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// 0: none.
    tid: u32,
    /// The two halves: a queue is smaller for that.
    round: [u32; 2],
}

const VACANT: Registration = Registration {
    tid: 0,
    round: [0; 2],
};

impl Registration {
    /// The interest of thread `tid` in its round `round`.
    pub fn new(tid: u32, round: u64) -> Self {
        Registration {
            tid,
            round: [round as u32, (round >> 32) as u32],
        }
    }

    fn round(self) -> u64 {
        u64::from(self.round[1]) << 32 | u64::from(self.round[0])
    }

    /// The thread's number.
    pub fn tid(self) -> u32 {
        self.tid
    }

    /// Whether the round goes on and nobody has notified it.
    fn live<S: Sleepers>(self, pin: &CpuPin) -> bool {
        S::round(pin, self.tid).is_some_and(|r| r.is(self.round()))
    }

    /// Wakes the thread; false if the registration is void or another waker was first.
    pub fn notify<S: Sleepers>(self, pin: &CpuPin) -> bool {
        let told = S::round(pin, self.tid).is_some_and(|r| r.notify(self.round()));
        if told {
            S::wake(pin, self.tid);
        }
        told
    }
}

/// One word while at most one thread waits, the common case.
type Further = Option<List>;
type List = Box<VecDeque<Registration>>;

/// A [`Further`] that needs no more than four bytes' alignment, so that a queue with its lock takes 24 bytes.
#[repr(Rust, packed(4))]
struct Packed(Further);

impl Packed {
    /// Passes it to `f`, who may change it.
    #[inline]
    fn with<R>(&mut self, f: impl FnOnce(&mut Further) -> R) -> R {
        let mut further = core::mem::replace(self, Packed(None)).0;
        let result = f(&mut further);
        *self = Packed(further);
        result
    }
}

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

    /// Appends if that needs no memory.
    fn push<S: Sleepers>(&mut self, pin: &CpuPin, r: Registration) -> bool {
        let first = &mut self.first;
        self.more.with(|more| match more {
            _ if *first == VACANT => {
                *first = r;
                true
            }
            more if first.tid == r.tid && more.as_ref().is_none_or(|m| m.is_empty()) => {
                *first = r;
                true
            }
            // A thread that listens again and again, as poll(2) does for each descriptor of one pipe, takes one place.
            Some(m) if m.back().is_some_and(|last| last.tid == r.tid) => {
                m.pop_back();
                m.push_back(r);
                true
            }
            Some(m) if m.len() < m.capacity() => {
                m.push_back(r);
                true
            }
            Some(m) => {
                m.retain(|old| old.live::<S>(pin));
                // Half empty or better: the sweep has paid for itself.
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

    /// Puts `bigger`, an empty list, in the place of the further ones' if it has more room; returns the one that is
    /// not needed.
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

/// A set of sleepers, woken in the order in which they came.  24 bytes while at most one waits.
///
/// All operations but registering may be called from interrupts and with spin locks of a rank
/// below the queues' held; waking allocates and frees nothing.
pub struct WaitQueue<S, C> {
    list: IrqSpin<Registrations, C>,
    _sleepers: PhantomData<fn(S)>,
}

impl<S: Sleepers, C: LockClass> Default for WaitQueue<S, C> {
    fn default() -> Self {
        Self::new()
    }
}

/// Sleepers taken off a queue in one hold of its lock.
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

    /// Lists a registration; false if there is no memory for that.  To be called before the
    /// condition is tested.
    pub fn add(&self, r: Registration) -> bool {
        let pin = pin();
        let mut list = self.list.lock();
        while !list.push::<S>(&pin, r) {
            // Grow outside the lock: the allocator must not be entered with interrupts off.
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

    /// Wakes the thread that has waited longest and has not been notified yet by another queue.
    /// Returns whether there was one.
    pub fn wake_one(&self) -> bool {
        let pin = pin();
        let mut list = self.list.lock();
        while let Some(r) = list.pop() {
            if r.notify::<S>(&pin) {
                return true;
            }
        }
        false
    }

    /// Wakes every thread that waits now.  Returns how many were notified.
    pub fn wake_all(&self) -> usize {
        let pin = pin();
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
            told += batch[..n].iter().filter(|r| r.notify::<S>(&pin)).count();
        }
        told
    }

    /// Whether somebody may be waiting: void registrations count.  A hint.
    pub fn is_empty(&self) -> bool {
        self.list.lock().first == VACANT
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    crate::lock_class!(QueueLock, "test wait queue", rank = 100);

    static ROUNDS: [Round; 5] = [const { Round::after(0) }; 5];

    enum Threads {}

    impl Sleepers for Threads {
        fn round(_: &CpuPin, tid: u32) -> Option<&Round> {
            ROUNDS.get(tid as usize)
        }

        fn wake(_: &CpuPin, _: u32) {}
    }

    #[test]
    fn what_sleepers_leave_behind_takes_no_memory() {
        let queue = WaitQueue::<Threads, QueueLock>::new();
        for _ in 0..100 {
            for tid in [1, 2] {
                let round = ROUNDS[tid as usize].begin();
                assert!(queue.add(Registration::new(tid, round)));
            }
        }
        let room = |more: &mut Further| more.as_ref().map_or(0, |list| list.capacity());
        let room = queue.list.lock().more.with(room);
        assert!(room <= 4, "room for {room} beside the first");
    }

    #[test]
    fn a_thread_that_listens_again_takes_one_place() {
        let queue = WaitQueue::<Threads, QueueLock>::new();
        let first = Registration::new(3, ROUNDS[3].begin());
        let again = Registration::new(4, ROUNDS[4].begin());
        assert!(queue.add(first));
        for _ in 0..if cfg!(miri) { 20 } else { 1000 } {
            assert!(queue.add(again));
        }
        let room = |more: &mut Further| more.as_ref().map_or(0, |list| list.capacity());
        let room = queue.list.lock().more.with(room);
        assert!(room <= 4, "room for {room} beside the first");
        assert_eq!(queue.wake_all(), 2);
    }
}
