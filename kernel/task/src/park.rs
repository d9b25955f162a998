//! The one way to sleep.
//!
//! [`park`] runs a *step*, a plain function on a state, until the step returns a result. Function and state are the whole
//! continuation of the sleeper: nothing else on its kernel stack is needed while it sleeps. A step first registers with the
//! wait queues that its condition depends on, and then tests the condition; [`crate::wait`] says why no wake-up is lost.

use crate::current::{Current, current};
use crate::thread::SleepKind;
use crate::wait::Waiter;
use crate::{sched, timer};

/// When a sleep times out, in nanoseconds of the monotonic clock.
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

    /// At once: the step runs, again only if a wake-up comes meanwhile, and the thread does not sleep.
    pub const fn now() -> Self {
        Deadline::At(0)
    }

    /// Nanoseconds left; 0 if the deadline has passed, `None` if there is none.
    pub fn left(self) -> Option<u64> {
        match self {
            Deadline::Never => None,
            Deadline::At(t) => Some(t.saturating_sub(crate::time::monotonic_ns())),
        }
    }
}

/// Which signals end a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruptible {
    /// None; for short waits for something that is sure to come.
    No,
    /// Those that kill the thread.
    Kill,
    /// All that the thread neither blocks nor ignores, and requests to stop.
    Yes,
}

/// What a step returns.
pub enum Step<R> {
    /// The condition holds; this is the result of the sleep.
    Done(R),
    /// The condition does not hold: the thread is to sleep until one of the queues that the step listened to wakes it.
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

/// Nanoseconds until the step is run again for a thread that a queue had no memory to register.
const NAP_NS: u64 = 5_000_000;

/// Runs `step` until it is done, and sleeps between the runs.
///
/// The step must call [`Waiter::listen`] before it tests its condition. It may sleep itself (on a mutex, for a user page, for
/// memory). It is run again after each wake-up: an error is returned only if no wake-up has reached the thread since the step
/// began to run last, unless the step has slept itself. A signal comes before the deadline. With a deadline in the past the step
/// runs at least once and the thread does not sleep. Called with preemption on and no spin lock held. A deadline uses the
/// thread's one timer, which an outer sleep then arms again.
///
/// Use it with queues that wake all their sleepers, or that have only one. Where a queue wakes one of several sleepers, the
/// wake-up may reach a thread that no longer needs it; see [`park_and_pass_on`].
///
/// # Errors
/// [`ParkError`].
pub fn park<S, R>(
    state: &mut S,
    deadline: Deadline,
    interruptible: Interruptible,
    step: fn(&mut S, &mut Waiter) -> Step<R>,
) -> Result<R, ParkError> {
    park_and_pass_on(state, deadline, interruptible, step, |_| ())
}

/// As [`park`], for a queue that wakes one of several sleepers. `pass_on` is called if the step was done and a wake-up has
/// reached this thread all the same, and before an error if one may have been lost because the step slept; it wakes another
/// sleeper.
///
/// # Errors
/// [`ParkError`].
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
            // The step has slept in rounds of its own, for memory say: its registrations are void.
            let Some(error) = sleep.over() else {
                continue;
            };
            // A wake-up may have reached the thread before the step slept.
            pass_on(state);
            break Err(error);
        }
        let over = if waiter.unheard() {
            // A queue could not register the thread, so it may not be woken: unless the sleep is over, the step is run again
            // soon.
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
            // A wake-up that has reached the thread in this round is answered by another run of the step.
            if !me.round.end() {
                break Err(error);
            }
        }
    };
    sleep.finish();
    result
}

/// The parts of a sleep that do not depend on the step's types, so that they are compiled once.
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

    /// Why the thread must not sleep (any longer), if there is a reason. Clears `armed` if the timer is not armed any more.
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
                // The timer is not armed any more: it has expired, or a sleep within the step has used it.
                self.armed = false;
                (t <= crate::time::monotonic_ns()).then_some(ParkError::Timeout)
            }
        }
    }

    /// Sleeps until the round is notified, or there is a reason to give up, which is returned.
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
            // Without a reason, and without a timer that would end the sleep, the timer is armed again.
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

    /// Sleeps for a short while, or until there is a reason to give up. The caller runs the step again in either case.
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

/// Sleeps until `deadline`. Called as [`park`].
///
/// # Errors
/// [`ParkError::Signal`] if a signal that `interruptible` allows is pending or comes first, even if the deadline has passed
/// already.
pub fn sleep_until(deadline: Deadline, interruptible: Interruptible) -> Result<(), ParkError> {
    match park(&mut (), deadline, interruptible, |_, _| Step::<()>::Wait) {
        Err(ParkError::Timeout) | Ok(()) => Ok(()),
        Err(ParkError::Signal) => Err(ParkError::Signal),
    }
}

/// One sleep of a thread that waits for a `ksync` lock. Returns when the thread has been given the token, which it takes, or
/// spuriously. No signal and no deadline ends it.
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
