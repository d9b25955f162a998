//! Wait queues: threads register with them and sleep, and are woken when something may have changed.
//!
//! [`ksync::WaitQueue`] has the protocol, and the reason why no wake-up is lost; this file binds it to threads, and to the listeners of a
//! crate above.

pub use ksync::Cause;
use ksync::{CpuPin, Once, Registration, Round};

use crate::{ids, lock, sched};

/// Threads by tid, as wait queues find them.
pub enum Threads {}

impl ksync::Sleepers for Threads {
    fn round(pin: &CpuPin, tid: u32) -> Option<&Round> {
        ids::thread(pin, tid).map(|t| &t.round)
    }

    fn wake(pin: &CpuPin, tid: u32) {
        if let Some(t) = ids::thread(pin, tid) {
            sched::wake(pin, t);
        }
    }

    fn listener_round(pin: &CpuPin, number: u32) -> Option<&Round> {
        (LISTENERS.get()?.round)(pin, number)
    }

    fn call(pin: &CpuPin, number: u32, cause: Option<Cause>) -> bool {
        LISTENERS
            .get()
            .is_some_and(|l| (l.call)(pin, number, cause))
    }
}

/// The functions of the crate that has listeners, by their numbers.
pub struct Listeners {
    /// The rounds of a listener; `None` if there is none with that number.
    pub round: for<'p> fn(&'p CpuPin, u32) -> Option<&'p Round>,
    /// Calls a listener, whose round was notified, with the cause if the wake-up has one; returns whether it has woken a thread. Called
    /// with preemption off, in interrupts, too, and under spin locks of ranks below that of wait queues.
    pub call: fn(&CpuPin, u32, Option<Cause>) -> bool,
}

hal::machine_static! {
    static LISTENERS: Once<&'static Listeners> = Once::new();
}

/// Sets the functions for listeners. Called once, before there are any.
pub fn set_listeners(listeners: &'static Listeners) {
    LISTENERS.get_or_init(|| listeners);
}

/// A queue of sleepers, which are woken in the order in which they came.
pub type WaitQueue = ksync::WaitQueue<Threads, lock::WaitQueueLock>;

/// The present waiting round of a thread or of a listener, passed to the step function of [`crate::park::park`]. The step may listen to any
/// number of queues; every registration ends with the round.
pub struct Waiter {
    me: Registration,
    /// A queue had no memory to register the thread. It may not be woken then, so the step is to be run again by itself.
    unheard: bool,
    /// The events of poll(2) of which it is to be woken.
    wanted: u16,
}

impl Waiter {
    /// Round `round` of thread `tid`, which listens to no queue yet.
    pub fn new(tid: u32, round: u64) -> Self {
        Waiter {
            me: Registration::new(tid, round),
            unheard: false,
            wanted: u16::MAX,
        }
    }

    /// A listener in one of its rounds, which listens to no queue yet and wants some of the events of poll(2).
    pub fn listener(me: Registration, wanted: u16) -> Self {
        Waiter {
            me,
            unheard: false,
            wanted,
        }
    }

    /// Whether it is a listener, which stays: its file may do more to tell it of each change.
    pub fn is_listener(&self) -> bool {
        self.me.is_listener()
    }

    /// Whether it wants one of these events of poll(2). One that does not need not listen to a queue that is woken for these alone.
    pub fn wants(&self, events: u16) -> bool {
        self.wanted & events != 0
    }

    /// Whether a queue had no memory to register the thread.
    pub fn unheard(&self) -> bool {
        self.unheard
    }

    /// Makes the step run again after a short while, as if a queue had had no memory to register the thread.
    pub fn look_again(&mut self) {
        self.unheard = true;
    }

    /// What a list that is not a wait queue keeps to wake this thread.
    pub fn registration(&self) -> Registration {
        self.me
    }

    /// Registers the thread with `queue`, whose wake-ups then reach it. To be called before the condition is tested. Takes
    /// the queue's lock. May allocate; without memory the thread is not registered, and the step is run again after a short
    /// while.
    pub fn listen(&mut self, queue: &WaitQueue) {
        self.unheard |= !queue.add(self.me);
    }

    /// As [`listen`](Self::listen), but a listener is not called by wake-ups with that cause.
    pub fn listen_except(&mut self, queue: &WaitQueue, cause: Cause) {
        self.unheard |= !queue.add(self.me.except(cause));
    }
}
