//! The one way to sleep.
//!
//! [`park`] runs a *step*, a plain function over a state, until it reports a result.  Function
//! and state are the whole continuation of the sleeper, so that nothing else of its kernel
//! stack matters while it sleeps.  A step registers with the queues that it depends on, then
//! tests; see [`crate::wait`] for why no wake-up is lost.

use crate::current::{Current, current};
use crate::thread::SleepKind;
use crate::wait::Waiter;
use crate::{sched, timer};

/// When to give up, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// Never.
    Never,
    /// At this time.
    At(u64),
}

impl Deadline {
    /// `ns` nanoseconds from now.
    pub fn after(ns: u64) -> Self {
        Deadline::At(crate::time::monotonic_ns().saturating_add(ns))
    }

    /// At once: the step is tried once and nobody sleeps.
    pub const fn now() -> Self {
        Deadline::At(0)
    }

    /// Nanoseconds left, 0 if the time has come; `None` for never.
    pub fn left(self) -> Option<u64> {
        match self {
            Deadline::Never => None,
            Deadline::At(t) => Some(t.saturating_sub(crate::time::monotonic_ns())),
        }
    }
}

/// What may end a sleep early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruptible {
    /// Nothing; for short waits on something that is sure to come.
    No,
    /// A signal that kills the thread, and no other.
    Kill,
    /// Any signal that the thread does not block or ignore, stop requests included.
    Yes,
}

/// What a step says.
pub enum Step<R> {
    /// The condition holds; this is the result.
    Done(R),
    /// Sleep until a queue that was listened to wakes the thread.
    Wait,
}

/// Why a sleep ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkError {
    /// The deadline passed.
    Timeout,
    /// A signal is pending.
    Signal,
}

/// How long a thread sleeps that a queue had no room for, in nanoseconds.
const NAP_NS: u64 = 5_000_000;

/// Runs `step` until it is done, sleeping in between.
///
/// The step must call [`Waiter::listen`] before it tests its condition, may sleep itself (on a
/// mutex, on a user page, for memory), and is run again after each wake-up and before either error is
/// returned.  A deadline in the past lets the step run once.  Called with preemption on and no
/// spin lock held.
///
/// For queues that wake all their sleepers, or that have one: a wake-up of one of several may be spent on a thread that
/// needs it no more; see [`park_and_pass_on`].
pub fn park<S, R>(
    state: &mut S,
    deadline: Deadline,
    interruptible: Interruptible,
    step: fn(&mut S, &mut Waiter) -> Step<R>,
) -> Result<R, ParkError> {
    park_and_pass_on(state, deadline, interruptible, step, |_| ())
}

/// As [`park`], for a queue that wakes one sleeper of several: `pass_on` runs where the step was done and a wake-up came
/// to this thread all the same; it wakes another one.
pub fn park_and_pass_on<S, R>(
    state: &mut S,
    deadline: Deadline,
    interruptible: Interruptible,
    step: fn(&mut S, &mut Waiter) -> Step<R>,
    pass_on: fn(&mut S),
) -> Result<R, ParkError> {
    let me = current();
    let mut sleep = Sleep::new(deadline, interruptible);
    let result = loop {
        let round = me.round.begin();
        let mut waiter = Waiter::new(me.tid(), round);
        if let Step::Done(result) = step(state, &mut waiter) {
            me.round.end_with_success(|| pass_on(state));
            break Ok(result);
        }
        if !me.round.goes_on(round) {
            // The step slept in rounds of its own, for memory: its registrations are void.
            continue;
        }
        let over = if waiter.unheard() {
            // Nobody would wake it: if there is no reason to give up, it looks again soon.
            let over = sleep.over();
            if over.is_none() {
                sleep.nap();
                continue;
            }
            over
        } else {
            sleep.wait()
        };
        if let Some(error) = over {
            // A wake-up that was spent on this round must be looked at.
            if !me.round.end() {
                break Err(error);
            }
        }
    };
    sleep.finish();
    result
}

/// The parts of a sleep that do not depend on the step's types, so that they exist once.
struct Sleep {
    deadline: Deadline,
    interruptible: Interruptible,
    armed: bool,
}

impl Sleep {
    fn new(deadline: Deadline, interruptible: Interruptible) -> Self {
        Sleep {
            deadline,
            interruptible,
            armed: false,
        }
    }

    /// Why not to sleep (any more).
    fn over(&mut self) -> Option<ParkError> {
        let me = current();
        let signal = match self.interruptible {
            Interruptible::No => false,
            Interruptible::Kill => me.kill_pending(),
            Interruptible::Yes => me.signal_pending(),
        };
        if signal {
            return Some(ParkError::Signal);
        }
        match self.deadline {
            Deadline::Never => None,
            Deadline::At(_) if self.armed && me.timer.armed() => None,
            Deadline::At(t) => {
                // A sleep within the step uses the thread's timer, too.
                self.armed = false;
                (t <= crate::time::monotonic_ns()).then_some(ParkError::Timeout)
            }
        }
    }

    /// Sleeps until the round is notified or there is a reason to give up, which is returned.
    fn wait(&mut self) -> Option<ParkError> {
        let me = current();
        if let Some(error) = self.over() {
            return Some(error);
        }
        let kind = match self.interruptible {
            Interruptible::Yes => SleepKind::Interruptible,
            Interruptible::No | Interruptible::Kill => SleepKind::Uninterruptible,
        };
        loop {
            if let (Deadline::At(t), false) = (self.deadline, self.armed) {
                timer::arm_thread(&me, t);
                self.armed = true;
            }
            me.declare_waiting(kind);
            if me.round.notified() {
                me.declare_running();
                return None;
            }
            let over = self.over();
            if over.is_some() || self.deadline != Deadline::Never && !self.armed {
                me.declare_running();
                match over {
                    Some(error) => return Some(error),
                    None => continue,
                }
            }
            sched::block();
        }
    }

    /// Sleeps for a short while, or until there is a reason to give up: the step is run once more in either case.
    fn nap(&self) {
        let nap = crate::time::monotonic_ns().saturating_add(NAP_NS);
        let until = match self.deadline {
            Deadline::Never => nap,
            Deadline::At(t) => nap.min(t),
        };
        let _ = sleep_until(Deadline::At(until), self.interruptible);
    }

    fn finish(&mut self) {
        if self.armed {
            timer::cancel_thread(&current());
        }
    }
}

/// Sleeps until `deadline` or a signal; `Ok` once the deadline has passed.
pub fn sleep_until(deadline: Deadline, interruptible: Interruptible) -> Result<(), ParkError> {
    match park(&mut (), deadline, interruptible, |_, _| Step::<()>::Wait) {
        Err(ParkError::Timeout) | Ok(()) => Ok(()),
        Err(ParkError::Signal) => Err(ParkError::Signal),
    }
}

/// One sleep of a `ksync` lock: until the token is there, or spuriously.
pub(crate) fn park_for_token(me: &Current) {
    if me.take_token() {
        return;
    }
    me.declare_waiting(SleepKind::Uninterruptible);
    if me.take_token() {
        me.declare_running();
        return;
    }
    sched::block();
    me.take_token();
}
