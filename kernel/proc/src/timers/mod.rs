//! POSIX timers: timer_create(2) and its kin.
//!
//! Guarantee: a timer has one signal pending at most; what expires meanwhile is counted as its overrun. No signal of an old setting
//! is sent once a new one has been made. Mechanism: a process has one node on a timer wheel, armed for the earliest of its timers; the
//! lock of the list orders settings and expiries. A timer with an interval is armed again when its signal is taken, as in Linux:
//! however short the interval, a process causes one interrupt for each time that it runs.
//!
//! Between the wheel's taking the node off and the expiry, a setting may arm the node again; the expiry then leaves all to that.

pub(crate) mod state;

use alloc::boxed::Box;
use alloc::vec::Vec;

use task::current::current;
use task::{time, timer};

use self::state::{List, Phase, Timer, Timers};
pub use self::state::{MOST, Notify, OF_TIMERS, Spec};
use super::itimer::Setting;
use super::itimer::state::CpuTimers;
use super::process::Process;
use super::signal::{self, Sent, SigFields, SigInfo, code, sig};

/// Why no timer was made or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerError {
    /// The process has as many timers, or its user as many signals, as it may have.
    Again,
    /// No memory.
    NoMemory,
    /// There is no such timer.
    NoTimer,
}

/// Nanoseconds until another attempt, if a signal finds no room.
const RETRY: u64 = 1_000_000;

fn of(p: &Process) -> Option<&Timers> {
    p.cpu_timers.get().map(|timers| &timers.posix)
}

fn find(list: &mut List, id: u32) -> Result<&mut Timer, TimerError> {
    let at = list.timers.iter().position(|timer| timer.id == id);
    at.map(|at| &mut list.timers[at]).ok_or(TimerError::NoTimer)
}

/// Makes a timer of `p`, the calling process; returns its id. It is charged to the caller's user. Allocates.
///
/// # Errors
/// `Again`, `NoMemory`.
pub fn create(p: &Process, spec: Spec) -> Result<u32, TimerError> {
    let timers = &p
        .cpu_timers
        .get_or_init(|| Box::new(CpuTimers::default()))
        .posix;
    loop {
        let room = {
            let list = timers.list.lock();
            if list.timers.len() >= MOST {
                return Err(TimerError::Again);
            }
            list.timers.capacity() - list.timers.len()
        };
        // Another thread may take the room.
        if room == 0 && !grow(timers) {
            return Err(TimerError::NoMemory);
        }
        let new = Timer::new(0, spec, current().payer(), p.sigpending_limit());
        let mut new = new.ok_or(TimerError::Again)?;
        let mut list = timers.list.lock();
        if list.timers.len() < list.timers.capacity() && list.timers.len() < MOST {
            let id = list.next_id;
            list.next_id = (id + 1) & i32::MAX as u32;
            new.id = id;
            list.timers.push(new);
            return Ok(id);
        }
    }
}

/// Makes room for twice as many timers. False if there is no memory.
fn grow(timers: &Timers) -> bool {
    let want = (timers.list.lock().timers.len() * 2).clamp(4, MOST);
    let mut bigger = Vec::new();
    if bigger.try_reserve_exact(want).is_err() {
        return false;
    }
    let mut list = timers.list.lock();
    if list.timers.len() < want {
        bigger.append(&mut list.timers);
        core::mem::swap(&mut list.timers, &mut bigger);
    }
    drop(list);
    true
}

/// Sets a timer of `p`, to expire first at monotonic time `at`, in nanoseconds, or with `None` not at all, and then each `interval`
/// nanoseconds. Returns the old setting. Allocates.
///
/// # Errors
/// `NoTimer`.
pub fn set(p: &Process, id: u32, at: Option<u64>, interval: u64) -> Result<Setting, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    let notify = find(&mut timers.list.lock(), id)?.spec.notify;
    // An interrupt cannot make room for the signal.
    match notify {
        Notify::Nobody => {}
        Notify::Process => signal::make_room(p, None),
        Notify::Thread(tid) => signal::make_room(p, Some(tid)),
    }
    let mut list = timers.list.lock();
    let timer = find(&mut list, id)?;
    let old = setting(timer);
    timer.phase = at.map_or(Phase::Off, Phase::Armed);
    timer.interval = interval;
    timer.overrun = 0;
    arm(p, timers, &list);
    drop(list);
    Ok(old)
}

/// The present setting of a timer.
///
/// # Errors
/// `NoTimer`.
pub fn get(p: &Process, id: u32) -> Result<Setting, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    Ok(setting(find(&mut timers.list.lock(), id)?))
}

/// Whether absolute times that a timer is set to are in real time.
///
/// # Errors
/// `NoTimer`.
pub fn is_real(p: &Process, id: u32) -> Result<bool, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    Ok(find(&mut timers.list.lock(), id)?.spec.real)
}

/// The overrun of the signal that was last taken.
///
/// # Errors
/// `NoTimer`.
pub fn overrun(p: &Process, id: u32) -> Result<u32, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    Ok(find(&mut timers.list.lock(), id)?.overrun)
}

/// Deletes a timer. Its signal may be pending, and stays so.
///
/// # Errors
/// `NoTimer`.
pub fn delete(p: &Process, id: u32) -> Result<(), TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    let mut list = timers.list.lock();
    let at = list.timers.iter().position(|timer| timer.id == id);
    let gone = list.timers.remove(at.ok_or(TimerError::NoTimer)?);
    arm(p, timers, &list);
    drop(list);
    drop(gone);
    Ok(())
}

/// The process ends, or runs another program: deletes all timers.
pub(super) fn end(p: &Process) {
    if let Some(timers) = of(p) {
        let mut list = timers.list.lock();
        let gone = core::mem::take(&mut list.timers);
        arm(p, timers, &list);
        drop(list);
        drop(gone);
    }
}

/// Time to the next expiry, and between expiries.
fn setting(timer: &Timer) -> Setting {
    let now = time::monotonic_ns();
    let value = match timer.phase {
        Phase::Off => 0,
        // One that is about to expire is still set.
        Phase::Armed(at) if timer.interval == 0 || at > now => at.saturating_sub(now).max(1),
        Phase::Fired(_) if timer.interval == 0 => 0,
        Phase::Armed(at) | Phase::Fired(at) => next(at, timer.interval, now).0 - now,
    };
    Setting {
        value,
        interval: timer.interval,
    }
}

/// The first multiple of `interval` behind `at` that is later than `now`, and how many of them come before it.
fn next(at: u64, interval: u64, now: u64) -> (u64, u64) {
    let missed = now.saturating_sub(at) / interval;
    let next = at.saturating_add(interval.saturating_mul(missed.saturating_add(1)));
    (next, missed)
}

/// Arms the node for the earliest timer. The caller holds the list's lock.
fn arm(p: &Process, timers: &Timers, list: &List) {
    let id = p.pid() | OF_TIMERS;
    timer::cancel_process(id, &timers.node);
    let times = list.timers.iter().filter_map(|timer| match timer.phase {
        Phase::Armed(at) => Some(at),
        _ => None,
    });
    if let Some(at) = times.min() {
        timer::arm_process(id, &timers.node, at.max(list.not_before));
    }
}

/// The wheel has taken the node off because a timer has expired. Called in the timer interrupt.
pub(super) fn expired(p: &Process) {
    let Some(timers) = of(p) else { return };
    let mut list = timers.list.lock();
    if timers.node.armed() {
        return;
    }
    let now = time::monotonic_ns();
    let mut full = false;
    for timer in &mut list.timers {
        if let Phase::Armed(at) = timer.phase
            && at <= now
        {
            full |= !expire(p, timer, at, now);
        }
    }
    list.not_before = if full { now + RETRY } else { 0 };
    arm(p, timers, &list);
}

/// A timer has expired at `at`. False if its signal finds no room; then nothing has changed.
fn expire(p: &Process, timer: &mut Timer, at: u64, now: u64) -> bool {
    let sent = match timer.spec.notify {
        Notify::Nobody => Sent::Dropped,
        // Sent under the list's lock: once timer_settime(2) has returned, no signal of the old setting is sent.
        Notify::Process => signal::send_of_timer(p, None, info(timer)),
        Notify::Thread(tid) => signal::send_of_timer(p, Some(tid), info(timer)),
    };
    timer.phase = match sent {
        Sent::Full => return false,
        Sent::Pending => Phase::Fired(at),
        Sent::Dropped if timer.interval == 0 => Phase::Off,
        // Nobody takes it, so it goes on by itself; not more often than the scheduler's tick, as in Linux.
        Sent::Dropped => {
            let after =
                now.max(at.saturating_add(task::sched::TICK_NS.saturating_sub(timer.interval)));
            Phase::Armed(next(at, timer.interval, after).0)
        }
    };
    true
}

fn info(timer: &Timer) -> SigInfo {
    SigInfo {
        signo: timer.spec.signo,
        code: code::TIMER,
        fields: SigFields::Timer {
            id: timer.id,
            overrun: 0,
            value: timer.spec.value.unwrap_or(timer.id.into()),
        },
    }
}

/// A thread of `p` has taken a signal: the timers that wait for that are armed again, at the next multiples of their intervals. If the
/// signal is one of theirs, `info` gets its overrun.
pub(super) fn taken(p: &Process, info: &mut SigInfo) {
    let Some(timers) = of(p) else { return };
    let mut list = timers.list.lock();
    if list.timers.is_empty() {
        return;
    }
    let now = time::monotonic_ns();
    let mut changed = false;
    for timer in &mut list.timers {
        let Phase::Fired(at) = timer.phase else {
            continue;
        };
        // A standard signal that was pending stands for those of several timers; a real-time signal is one timer's own.
        let own = matches!(info.fields, SigFields::Timer { id, .. } if id == timer.id);
        if timer.spec.signo != info.signo || info.signo >= sig::RTMIN && !own {
            continue;
        }
        changed = true;
        if timer.interval == 0 {
            timer.phase = Phase::Off;
            timer.overrun = 0;
        } else {
            let (at, missed) = next(at, timer.interval, now);
            timer.phase = Phase::Armed(at);
            timer.overrun = missed.min(i32::MAX as u64) as u32;
        }
        if let SigFields::Timer { id, overrun, .. } = &mut info.fields
            && *id == timer.id
        {
            *overrun = timer.overrun;
        }
    }
    if changed {
        arm(p, timers, &list);
    }
}
