//! POSIX timers: timer_create(2) and its kin.
//!
//! Guarantee: a timer has one signal pending at most; what expires meanwhile is counted as its overrun. A new setting and a deletion drop
//! the signal that is pending, and none of an old setting is sent later. No signal is lost for want of memory: a timer promises its
//! signal to the queue where it will become pending (`signal::pending`) when it is made.
//!
//! Mechanism: a process has one node on a timer wheel, armed for the earliest of its timers; the
//! lock of the list orders settings and expiries. A timer with an interval is armed again when its signal is taken, as in Linux:
//! however short the interval, a process causes one interrupt for each time that it runs. A signal is sent under that lock, so a timer that
//! is armed has none pending: its last one was taken, or dropped by the setting.
//!
//! A signal may have to be shown to all threads of the process. So an interrupt sends a few, or those of [`ENOUGH_NS`]. The next one comes after as
//! much time again, and goes on where the last has stopped, around the list: no timer waits for more than one of each other.
//!
//! Between the wheel's taking the node off and the expiry, a setting may arm the node again; the expiry then leaves all to that.

pub(crate) mod state;

use alloc::vec::Vec;

use task::current::current;
use task::thread::{Thread, flag};
use task::{time, timer};

use self::state::GONE;
use self::state::{List, Phase, Timer, Timers};
pub use self::state::{MOST, Notify, OF_TIMERS, Spec};
use super::itimer::Setting;
use super::process::Process;
use super::signal::{self, Pending, Sent, SigFields, SigInfo, code};
use crate::{UserThreadExt, ids};

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

/// Signals that one interrupt sends at most.
pub const ENOUGH: usize = 64;

/// Nanoseconds after which an interrupt sends no further signal.
pub const ENOUGH_NS: u64 = 50_000;

/// Timers for which a list that had room for them keeps it.
const KEEP: usize = 8;

fn of(p: &Process) -> Option<&Timers> {
    p.seldom.get().map(|timers| &timers.posix)
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
    let timers = &p.seldom().posix;
    let new = Timer::new(spec, current().payer(), p.sigpending_limit()).ok_or(TimerError::Again)?;
    let thread = match spec.notify {
        // The tid may be another process's by now.
        Notify::Thread(tid) => ids::find_thread(tid).filter(|t| is_of(t, p)),
        Notify::Process | Notify::Nobody => None,
    };
    let pending = match spec.notify {
        Notify::Nobody => None,
        Notify::Process => Some(&p.pending),
        Notify::Thread(_) => thread.as_ref().map(|t| &t.user().pending),
    };
    if !pending.is_none_or(Pending::promise) {
        return Err(TimerError::NoMemory);
    }
    let made = insert(timers, new, thread.as_deref());
    if made.is_err()
        && let Some(pending) = pending
    {
        pending.end_promise();
    }
    made
}

/// Puts a new timer, which tells `thread` if that is given, on the list; returns its id. Allocates.
///
/// # Errors
/// `Again`, `NoMemory`.
fn insert(timers: &Timers, mut new: Timer, thread: Option<&Thread>) -> Result<u32, TimerError> {
    loop {
        let mut list = timers.list.lock();
        let len = list.timers.len();
        if len >= MOST {
            return Err(TimerError::Again);
        }
        if len < list.timers.capacity() {
            new.id = list.take_id();
            // One that ends later finds the timer in the list: see `thread_ends`.
            if let Notify::Thread(tid) = &mut new.spec.notify
                && thread.is_none_or(|t| t.has(flag::KILLED))
            {
                *tid = GONE;
            }
            let id = new.id;
            list.timers.push(new);
            return Ok(id);
        }
        drop(list);
        // Another thread may take the room.
        if !resize(timers, |len| (len * 2).clamp(4, MOST)) {
            return Err(TimerError::NoMemory);
        }
    }
}

/// What each timer of `p` is made of, with its id, in order of creation. Allocates without a lock.
///
/// # Errors
/// `NoMemory`.
pub fn all(p: &Process) -> Result<Vec<(u32, Spec)>, TimerError> {
    let mut all = Vec::new();
    let Some(timers) = of(p) else {
        return Ok(all);
    };
    loop {
        let list = timers.list.lock();
        let count = list.timers.len();
        if count <= all.capacity() {
            all.extend(list.timers.iter().map(|timer| (timer.id, timer.spec)));
            return Ok(all);
        }
        drop(list);
        all.try_reserve_exact(count)
            .map_err(|_| TimerError::NoMemory)?;
    }
}

/// Gives the list room for as many timers as `want` says, given how many there are. False if there is no memory.
fn resize(timers: &Timers, want: impl Fn(usize) -> usize) -> bool {
    let want = want(timers.list.lock().timers.len());
    let mut other = Vec::new();
    if other.try_reserve_exact(want).is_err() {
        return false;
    }
    let mut list = timers.list.lock();
    if list.timers.len() < want {
        other.append(&mut list.timers);
        core::mem::swap(&mut list.timers, &mut other);
    }
    drop(list);
    true
}

/// Sets a timer of `p`, to expire first at monotonic time `at`, in nanoseconds, or with `None` not at all, and then each `interval`
/// nanoseconds. Returns the old setting. A signal of that is dropped if it is pending.
///
/// # Errors
/// `NoTimer`.
pub fn set(p: &Process, id: u32, at: Option<u64>, interval: u64) -> Result<Setting, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    let mut list = timers.list.lock();
    let timer = find(&mut list, id)?;
    let old = setting(timer);
    discard(p, timer);
    timer.setting = timer.setting.wrapping_add(1);
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

/// Deletes a timer, and drops its signal if that is pending. Allocates.
///
/// # Errors
/// `NoTimer`.
pub fn delete(p: &Process, id: u32) -> Result<(), TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    let mut list = timers.list.lock();
    let at = list.timers.iter().position(|timer| timer.id == id);
    let at = at.ok_or(TimerError::NoTimer)?;
    let gone = list.timers.remove(at);
    list.from -= usize::from(at < list.from);
    discard(p, &gone);
    with_pending(p, &gone, Pending::end_promise);
    arm(p, timers, &list);
    let (len, room) = (list.timers.len(), list.timers.capacity());
    drop(list);
    drop(gone);
    if room > KEEP && room / 4 > len {
        // Without memory it stays as it is, and the next deletion tries again.
        resize(timers, |len| (len * 2).max(KEEP));
    }
    p.pending.shrink();
    Ok(())
}

/// Drops the signal of a timer if it is pending. The caller holds the list's lock.
fn discard(p: &Process, timer: &Timer) {
    let id = timer.id;
    match (timer.phase, timer.spec.notify) {
        (Phase::Fired(_), Notify::Process) => signal::discard_of_timer(p, None, id),
        (Phase::Fired(_), Notify::Thread(tid)) => signal::discard_of_timer(p, Some(tid), id),
        _ => {}
    }
}

/// Whether a thread is one of a process.
fn is_of(t: &Thread, p: &Process) -> bool {
    core::ptr::eq(&**t.process(), p)
}

/// Calls `f` with the queue to which the timer's signal is promised, if that is still there. The caller holds the list's lock, so the thread does not
/// end.
fn with_pending(p: &Process, timer: &Timer, f: impl FnOnce(&Pending)) {
    match timer.spec.notify {
        Notify::Nobody => {}
        Notify::Process => f(&p.pending),
        Notify::Thread(tid) => {
            let pin = ksync::pin();
            if let Some(t) = ids::thread(&pin, tid).filter(|t| is_of(t, p)) {
                f(&t.user().pending);
            }
        }
    }
}

/// The process ends, or runs another program, and the caller is its only thread: deletes all timers, and drops their signals.
pub(super) fn end(p: &Process) {
    let Some(timers) = of(p) else { return };
    let mut list = timers.list.lock();
    let gone = core::mem::take(&mut list.timers);
    list.from = 0;
    arm(p, timers, &list);
    drop(list);
    drop(gone);
    signal::end_timers(p);
}

/// The thread with this tid, which is `KILLED`, ends: its timers go on and tell nobody. Before what is pending for it is dropped.
pub(super) fn thread_ends(p: &Process, tid: u32) {
    let Some(timers) = of(p) else { return };
    for timer in &mut timers.list.lock().timers {
        if timer.spec.notify == Notify::Thread(tid) {
            timer.spec.notify = Notify::Thread(GONE);
        }
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
    let began = time::monotonic_ns();
    let (mut now, mut sent) = (began, 0);
    let (from, len) = (list.from, list.timers.len());
    list.not_before = 0;
    for at in (from..len).chain(0..from.min(len)) {
        let timer = &mut list.timers[at];
        let Phase::Armed(due) = timer.phase else {
            continue;
        };
        if due > began {
            continue;
        }
        let spent = now - began;
        if sent >= ENOUGH || spent >= ENOUGH_NS {
            list.from = at;
            list.not_before = now + spent.max(ENOUGH_NS);
            break;
        }
        if !expire(p, timer, due, now) {
            list.not_before = now + RETRY;
        }
        sent += 1;
        now = time::monotonic_ns();
    }
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
            setting: timer.setting,
            overrun: 0,
            value: timer.spec.value.unwrap_or(timer.id.into()),
        },
    }
}

/// A thread of `p` has taken a signal. If it is a timer's, that is armed again, at the next multiple of its interval, and `info` gets its
/// overrun.
pub(super) fn taken(p: &Process, info: &mut SigInfo) {
    let SigFields::Timer {
        id,
        setting,
        overrun,
        ..
    } = &mut info.fields
    else {
        return;
    };
    let Some(timers) = of(p) else { return };
    let mut list = timers.list.lock();
    let Ok(timer) = find(&mut list, *id) else {
        return;
    };
    let Phase::Fired(at) = timer.phase else {
        return;
    };
    // The timer may have been set anew since the signal was taken.
    if timer.setting != *setting {
        return;
    }
    if timer.interval == 0 {
        timer.phase = Phase::Off;
        timer.overrun = 0;
        return;
    }
    let (at, missed) = next(at, timer.interval, time::monotonic_ns());
    timer.phase = Phase::Armed(at);
    timer.overrun = missed.min(i32::MAX as u64) as u32;
    *overrun = timer.overrun;
    arm(p, timers, &list);
}
