//! The clocks of CPU time: their numbers, as clock_getcpuclockid(3) and pthread_getcpuclockid(3) make them, and sleeps by them.

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use proc::signal::RestartBlock;
use proc::timers::{Measured, Part, SleepError};
use proc::{SignalExt, UserThreadExt, current_process, ids};
use task::current::current;

use super::errno::Errno;
use super::time::timespec;

/// The numbers that Linux gives to the clocks of the calling process and thread where it keeps a clock's number.
const OWN_PROCESS: i32 = -6;
const OWN_THREAD: i32 = -2;

/// In a number below zero: the kind of clock, and whether it is a thread's. The other bits are those of the pid or tid, inverted.
const KIND: i32 = 3;
const PER_THREAD: i32 = 4;
/// Kinds: all CPU time, that in user mode, all again but exact.
const PROF: i32 = 0;
const VIRT: i32 = 1;
const SCHED: i32 = 2;
/// Neither a process's nor a thread's, but a device's.
const OF_DEVICE: i32 = 3;

/// A clock's number, as Linux keeps it; `None` if it is no clock of CPU time.
pub fn number(clock: u32) -> Option<i32> {
    match clock {
        nr::CLOCK_PROCESS_CPUTIME_ID => Some(OWN_PROCESS),
        nr::CLOCK_THREAD_CPUTIME_ID => Some(OWN_THREAD),
        _ if (clock as i32) < 0 && clock as i32 & (KIND | PER_THREAD) != OF_DEVICE => {
            Some(clock as i32)
        }
        _ => None,
    }
}

/// Whether a number below zero is that of a device's clock.
pub fn is_of_device(clock: u32) -> bool {
    (clock as i32) < 0 && number(clock).is_none()
}

fn id_in(number: i32) -> u32 {
    !(number >> 3) as u32
}

/// What the clock with that number measures. Only to read it, a thread may name its process by its own tid.
///
/// # Errors
/// EINVAL if there is none, or for a thread of another process.
pub fn measured(number: i32, reading: bool) -> Result<Measured, Errno> {
    let part = match number & KIND {
        PROF | SCHED => Part::All,
        VIRT => Part::User,
        _ => return Err(Errno::EINVAL),
    };
    let (me, id) = (current(), id_in(number));
    if number & PER_THREAD == 0 {
        let own = id == 0 || reading && id == me.tid();
        let process = if own {
            Some(current_process())
        } else {
            ids::find_process(id).filter(|p| !p.is_reaped())
        };
        return Ok(Measured::process(process.ok_or(Errno::EINVAL)?, part));
    }
    if id == 0 {
        return Ok(Measured::thread(&me, part));
    }
    let thread = ids::find_thread(id).filter(|t| t.process().pid() == me.process().pid());
    let thread = thread.ok_or(Errno::EINVAL)?;
    Ok(Measured::thread(&thread, part))
}

/// What the clock with that number shows.
///
/// # Errors
/// EINVAL.
pub fn now(number: i32) -> Result<u64, Errno> {
    measured(number, true)?.time().ok_or(Errno::EINVAL)
}

/// The resolution of the clock with that number, in nanoseconds.
///
/// # Errors
/// EINVAL.
pub fn resolution(number: i32) -> Result<u64, Errno> {
    measured(number, false)?;
    Ok(if number & KIND == SCHED {
        1
    } else {
        task::sched::TICK_NS
    })
}

/// clock_settime(2) of such a clock, which always fails.
///
/// # Errors
/// EINVAL, EPERM.
pub fn set(number: i32) -> Result<u64, Errno> {
    measured(number, false)?;
    Err(Errno::EPERM)
}

/// clock_nanosleep(2) by the clock with that number: for a time, or until one. A signal ends the sleep; see `relative_sleep` in `time`.
///
/// # Errors
/// EINVAL, also for the calling thread's own clock. ESRCH, ENOMEM, EFAULT; ERESTARTNOHAND or ERESTART_RESTARTBLOCK after a signal.
pub fn sleep(number: i32, ns: u64, absolute: bool, rem: u64) -> Result<u64, Errno> {
    if number & PER_THREAD != 0 && [0, current().tid()].contains(&id_in(number)) {
        return Err(Errno::EINVAL);
    }
    let measured = measured(number, false)?;
    let now = measured.time().ok_or(Errno::ESRCH)?;
    if ns == 0 {
        return Ok(0);
    }
    if absolute {
        return ended(measured.sleep_until(ns));
    }
    relative_sleep(number, measured, now.saturating_add(ns), rem)
}

/// Goes on with a sleep that a signal has interrupted.
///
/// # Errors
/// As [`sleep`].
pub fn go_on(number: i32, until: u64, rem: u64) -> Result<u64, Errno> {
    relative_sleep(number, measured(number, false)?, until, rem)
}

fn relative_sleep(number: i32, measured: Measured, until: u64, rem: u64) -> Result<u64, Errno> {
    let left = match measured.sleep_until(until) {
        Err(SleepError::Signal(left)) => left,
        slept => return ended(slept),
    };
    UserPtr::new(rem).write_if_some(&timespec(left))?;
    current().set_restart(RestartBlock::CpuSleep {
        clock: number,
        until,
        rem,
    });
    Err(Errno::ERESTART_RESTARTBLOCK)
}

/// ERESTARTNOHAND after a signal.
fn ended(slept: Result<(), SleepError>) -> Result<u64, Errno> {
    match slept {
        Ok(()) => Ok(0),
        Err(SleepError::NoMemory) => Err(Errno::ENOMEM),
        Err(SleepError::Gone) => Err(Errno::ESRCH),
        Err(SleepError::Signal(_)) => Err(Errno::ERESTARTNOHAND),
    }
}
