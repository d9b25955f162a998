//! Making POSIX timers, and the room of their lists.

use alloc::vec::Vec;

use task::current::current;
use task::thread::{Thread, flag};

use super::cpu::{Measured, is_of, lives};
use super::state::{CpuTimer, GONE, MOST, Notify, Spec, Timer, TimerError, Timers};
use super::watch::Whose;
use crate::process::Process;
use crate::signal::Pending;
use crate::{UserThreadExt, ids};

/// Timers for which a list that had room for them keeps it.
const KEEP: usize = 8;

/// Makes a timer of `p`, the calling process; returns its id. With `measured` it is set by that one's CPU time. It is charged to the
/// caller's user. Allocates.
///
/// # Errors
/// `Again`, `NoMemory`.
pub fn create(p: &Process, spec: Spec, measured: Option<&Measured>) -> Result<u32, TimerError> {
    mem::admit().map_err(|_| TimerError::NoMemory)?;
    let timers = &p.seldom().posix;
    let limit = p.sigpending_limit();
    let cpu = measured.map(|m| by_cpu_time(p, m)).transpose()?;
    let new = Timer::new(spec, cpu, current().payer(), limit).ok_or(TimerError::Again)?;
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
    let made = insert(p, timers, new, thread.as_deref());
    if made.is_err()
        && let Some(pending) = pending
    {
        pending.end_promise();
    }
    made
}

/// What a timer of `p` needs to be set by that CPU time. Allocates.
///
/// # Errors
/// `NoMemory`.
fn by_cpu_time(p: &Process, measured: &Measured) -> Result<CpuTimer, TimerError> {
    let clock = measured.clock();
    let handle = clock.watch.handle(p.pid()).ok_or(TimerError::NoMemory)?;
    Ok(CpuTimer { clock, handle })
}

/// Takes a timer that is on no list out of the watch of what it measures.
pub(super) fn end_entry(timer: &mut Timer) {
    if let Some(CpuTimer { clock, handle }) = &mut timer.cpu {
        clock.watch.take(handle);
    }
}

/// Puts a new timer, which tells `thread` if that is given, on the list; returns its id. Allocates.
///
/// # Errors
/// `Again`, `NoMemory`.
fn insert(
    p: &Process,
    timers: &Timers,
    mut new: Timer,
    thread: Option<&Thread>,
) -> Result<u32, TimerError> {
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
            if let Some(CpuTimer { clock, .. }) = &mut new.cpu
                && let Whose::Thread(tid) = &mut clock.shown.whose
                && !lives(p, *tid)
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
    let Some(timers) = p.seldom.get().map(|seldom| &seldom.posix) else {
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

/// Gives room back, if the list has much more than it needs for `len` timers. Allocates.
pub(super) fn shrink(timers: &Timers, len: usize, room: usize) {
    if room > KEEP && room / 4 > len {
        // Without memory it stays as it is, and the next deletion tries again.
        resize(timers, |len| (len * 2).max(KEEP));
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
