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
//! A timer whose clock is one of CPU time is on no wheel: while it is armed it has an entry in the `watch` of the process that it measures. A thread
//! of that process takes due entries off when it looks at its CPU-time timers (`itimer`), and then expires the timers as an interrupt would:
//! it is late by one tick at most, or by the rest of a system call, or by as many ticks as it takes to send what was due before it. Entry and timer
//! change under the list's lock. Where a look has taken an entry off and a setting comes first, the look finds the timer not due, or due as it is
//! set now, and puts the entry where it belongs.
//!
//! Between the wheel's taking the node off and the expiry, a setting may arm the node again; the expiry then leaves all to that.

mod cpu;
mod make;
pub(crate) mod state;
pub(crate) mod watch;

use alloc::boxed::Box;
use alloc::sync::Arc;

use task::thread::Thread;
use task::wait::Threads;
use task::{time, timer};

pub use self::cpu::{Measured, SleepError};
use self::cpu::{is_of, of_thread};
pub use self::make::{all, create};
use self::make::{end_entry, shrink};
use self::state::{CpuTimer, GONE, List, Phase, Timer, Timers};
pub use self::state::{MOST, Notify, OF_TIMERS, Spec, TimerError};
pub use self::watch::Part;
use self::watch::{BATCH, CpuClock, Due, Node, Owner, Watch, Whose};
use super::itimer::state::Setting;
use super::process::Process;
use super::signal::{self, Pending, Sent, SigFields, SigInfo, code};
use crate::{UserThreadExt, ids};

/// What absolute times mean to which a timer is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Real time.
    Real,
    /// Monotonic time.
    Monotonic,
    /// CPU time, of which so much has been used.
    Cpu(u64),
}

/// Nanoseconds until another attempt, if a signal finds no room.
const RETRY: u64 = 1_000_000;

/// Signals that one interrupt sends at most.
pub const ENOUGH: usize = 64;

/// Nanoseconds after which an interrupt sends no further signal.
pub const ENOUGH_NS: u64 = 50_000;

fn of(p: &Process) -> Option<&Timers> {
    p.seldom.get().map(|timers| &timers.posix)
}

fn find(list: &mut List, id: u32) -> Result<&mut Timer, TimerError> {
    let at = list.timers.iter().position(|timer| timer.id == id);
    at.map(|at| &mut list.timers[at]).ok_or(TimerError::NoTimer)
}

/// The clock of CPU time by which a timer is set, if there is one. Takes the list's lock.
fn cpu_clock(timers: &Timers, id: u32) -> Result<Option<CpuClock>, TimerError> {
    let mut list = timers.list.lock();
    let cpu = &find(&mut list, id)?.cpu;
    Ok(cpu.as_ref().map(|cpu| cpu.clock.clone()))
}

/// What a timer measures, if that is CPU time, and the time on its clock now.
///
/// # Errors
/// `NoTimer`, `Gone`.
fn now_of(timers: &Timers, id: u32) -> Result<(Option<Measured>, u64), TimerError> {
    let Some(clock) = cpu_clock(timers, id)? else {
        return Ok((None, time::monotonic_ns()));
    };
    let measured = clock.measured().ok_or(TimerError::Gone)?;
    let now = measured.time().ok_or(TimerError::Gone)?;
    Ok((Some(measured), now))
}

/// Sets a timer of `p`, to expire first when its clock shows `at`, in nanoseconds, or with `None` not at all, and then each `interval`
/// nanoseconds. Returns the old setting. A signal of that is dropped if it is pending.
///
/// # Errors
/// `NoTimer`, `Gone`.
pub fn set(p: &Process, id: u32, at: Option<u64>, interval: u64) -> Result<Setting, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    let (measured, now) = now_of(timers, id)?;
    let mut list = timers.list.lock();
    let timer = find(&mut list, id)?;
    let old = setting(timer, now);
    discard(p, timer);
    timer.setting = timer.setting.wrapping_add(1);
    timer.phase = at.map_or(Phase::Off, Phase::Armed);
    timer.interval = interval;
    timer.overrun = 0;
    match (&measured, at) {
        (None, _) => arm(p, timers, &list),
        (Some(measured), at) => {
            // As in Linux one that is due expires at once, also if nothing uses CPU time any more.
            if let Some(at) = at.filter(|&at| at <= now) {
                expire(p, timer, at, now);
            }
            enter(p, timer, measured);
        }
    }
    drop(list);
    Ok(old)
}

/// Makes the watch of what a timer of CPU time measures have its entry if it is armed, and else not. The caller holds the list's
/// lock.
fn enter(p: &Process, timer: &mut Timer, measured: &Measured) {
    let Some(CpuTimer { clock, handle }) = &mut timer.cpu else {
        return;
    };
    let (pid, id) = (p.pid(), timer.id);
    match timer.phase {
        Phase::Armed(at) => measured.wait_for(handle, Owner::Timer { pid, id }, at),
        Phase::Off | Phase::Fired(_) => {
            clock.watch.take(handle);
        }
    }
}

/// The present setting of a timer; none where what it measures has been reaped.
///
/// # Errors
/// `NoTimer`.
pub fn get(p: &Process, id: u32) -> Result<Setting, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    let now = match now_of(timers, id) {
        Ok((_, now)) => now,
        Err(TimerError::Gone) => return Ok(Setting::default()),
        Err(e) => return Err(e),
    };
    let mut list = timers.list.lock();
    let timer = find(&mut list, id)?;
    let mut shown = setting(timer, now);
    if let Phase::Armed(at) | Phase::Fired(at) = timer.phase
        && timer.cpu.is_some()
        && at <= now
        && shown.value != 0
    {
        // Linux shows one that has expired as about to expire until its signal is taken.
        shown.value = 1;
    }
    Ok(shown)
}

/// What absolute times mean to which a timer is set.
///
/// # Errors
/// `NoTimer`, `Gone`.
pub fn base(p: &Process, id: u32) -> Result<Base, TimerError> {
    let timers = of(p).ok_or(TimerError::NoTimer)?;
    match now_of(timers, id)? {
        (Some(_), used) => Ok(Base::Cpu(used)),
        (None, _) if find(&mut timers.list.lock(), id)?.spec.real => Ok(Base::Real),
        (None, _) => Ok(Base::Monotonic),
    }
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
    let mut gone = list.timers.remove(at);
    list.from -= usize::from(at < list.from);
    discard(p, &gone);
    with_pending(p, &gone, Pending::end_promise);
    arm(p, timers, &list);
    let (len, room) = (list.timers.len(), list.timers.capacity());
    drop(list);
    end_entry(&mut gone);
    drop(gone);
    shrink(timers, len, room);
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
    let mut gone = core::mem::take(&mut list.timers);
    list.from = 0;
    arm(p, timers, &list);
    drop(list);
    gone.iter_mut().for_each(end_entry);
    drop(gone);
    signal::end_timers(p);
}

/// The thread with this tid, which is `KILLED`, ends: its timers go on and tell nobody. Before what is pending for it is dropped.
pub(super) fn thread_ends(p: &Process, tid: u32) {
    let Some(seldom) = p.seldom.get() else { return };
    // As in Linux the leader is measured until the process has been reaped.
    let unmeasured = tid != p.pid();
    if unmeasured && let Some(watch) = seldom.cpu_watch.get() {
        watch.thread_ends(tid);
    }
    for timer in &mut seldom.posix.list.lock().timers {
        if timer.spec.notify == Notify::Thread(tid) {
            timer.spec.notify = Notify::Thread(GONE);
        }
        if let Some(CpuTimer { clock, .. }) = &mut timer.cpu
            && unmeasured
            && clock.shown.whose == Whose::Thread(tid)
        {
            clock.shown.whose = Whose::Thread(GONE);
        }
    }
}

/// Time to the next expiry, and between expiries, if its clock shows `now`.
fn setting(timer: &Timer, now: u64) -> Setting {
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
        Phase::Armed(at) if timer.cpu.is_none() => Some(at),
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
        if due > began || timer.cpu.is_some() {
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

/// Expires the timers, and wakes the sleepers, that have waited for the CPU time `used` of the caller's process, in user mode and all of it; those
/// of the process itself first. Returns how much is left to the next. Called by the thread `me` on its way to user mode. Takes the locks of
/// the lists of those timers.
pub(super) fn look(me: &Thread, used: [u64; 2]) -> u64 {
    let p = me.process();
    let Some(watch) = p.seldom.get().and_then(|seldom| seldom.cpu_watch.get()) else {
        return u64::MAX;
    };
    let mut due = Due::default();
    let pin = ksync::pin();
    let own = watch.take_own(&pin, me.tid(), &mut due, |pin, shown| match shown.whose {
        Whose::Process => Some(used[usize::from(shown.part == Part::All)]),
        Whose::Thread(tid) => {
            let t = ids::thread(pin, tid).filter(|t| is_of(t, p))?;
            Some(of_thread(t, shown.part))
        }
    });
    drop(pin);
    let mut left = own;
    for (node, used) in due.entries.into_iter().flatten() {
        // It may be armed again.
        left = 0;
        is_due(p, watch, node, used);
    }
    for n in 0..BATCH {
        match watch.take_other(n, used) {
            Ok((node, used)) => is_due(p, watch, node, used),
            Err(other) => return left.min(other),
        }
    }
    0
}

/// The CPU time of `p` for which the entry `node` has waited is `used`. The entry is off the watch.
fn is_due(p: &Arc<Process>, watch: &Arc<Watch>, node: Box<Node>, used: u64) {
    match *node.member() {
        Owner::Sleeper(sleeper) => {
            sleeper.notify::<Threads>(&ksync::pin());
        }
        Owner::Timer { pid, id } => {
            if let Some(of) = ids::find_process(pid) {
                timer_is_due(&of, id, (p, watch), node, used);
            }
        }
    }
}

/// As [`is_due`], for the timer `id` of `p`: meanwhile that may have been set anew, or deleted, or another process have the pid. So the entry must be the timer's.
fn timer_is_due(
    p: &Process,
    id: u32,
    (by, watch): (&Arc<Process>, &Arc<Watch>),
    node: Box<Node>,
    used: u64,
) {
    let Some(timers) = of(p) else { return };
    let mut list = timers.list.lock();
    let Ok(timer) = find(&mut list, id) else {
        return;
    };
    let shown = node.key().shown;
    let Some(CpuTimer { clock, handle }) = &mut timer.cpu else {
        return;
    };
    if !Arc::ptr_eq(&clock.watch, watch) || !handle.is_of(&node) {
        return;
    }
    handle.take_back(node);
    let measured = Measured::by(by.clone(), clock.shown);
    if let Phase::Armed(at) = timer.phase
        && at <= used
        && clock.shown == shown
    {
        // Where its signal finds no room it stays armed, and the next look tries again.
        expire(p, timer, at, used);
    }
    enter(p, timer, &measured);
    drop(list);
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
        // Linux 6.1 ends such a timer with its first expiry.
        Sent::Dropped if timer.cpu.is_some() && timer.spec.notify == Notify::Nobody => Phase::Off,
        Sent::Dropped if timer.cpu.is_some() => Phase::Armed(next(at, timer.interval, now).0),
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
    // What has been reaped expires no more.
    let Ok((measured, now)) = now_of(timers, *id) else {
        return;
    };
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
    let (at, missed) = next(at, timer.interval, now);
    timer.phase = Phase::Armed(at);
    timer.overrun = missed.min(i32::MAX as u64) as u32;
    *overrun = timer.overrun;
    match &measured {
        None => arm(p, timers, &list),
        Some(measured) => enter(p, timer, measured),
    }
}
