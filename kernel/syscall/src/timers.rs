//! POSIX timers: timer_create, timer_settime, timer_gettime, timer_getoverrun, timer_delete.

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use proc::itimer::Setting;
use proc::signal::sig;
use proc::timers::{self, Base, Notify, Spec, TimerError};
use proc::{UserThreadExt, ids};
use task::current::current;
use task::time;

use super::cpu_clock;
use super::errno::Errno;
use super::time::{read_timespec, timespec};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_timer_create, timer_create),
    (nr::__NR_timer_settime, timer_settime),
    (nr::__NR_timer_gettime, timer_gettime),
    (nr::__NR_timer_getoverrun, timer_getoverrun),
    (nr::__NR_timer_delete, timer_delete),
];

impl From<TimerError> for Errno {
    fn from(e: TimerError) -> Errno {
        match e {
            TimerError::Again => Errno::EAGAIN,
            TimerError::NoMemory => Errno::ENOMEM,
            TimerError::NoTimer => Errno::EINVAL,
            TimerError::Gone => Errno::ESRCH,
        }
    }
}

/// timer_create(2). EOPNOTSUPP for the clocks without timers.
fn timer_create(a: &mut Args) -> Result<u64, Errno> {
    let cpu = cpu_clock::number(a.uint(0));
    let real = match a.uint(0) {
        nr::CLOCK_REALTIME | nr::CLOCK_TAI => true,
        nr::CLOCK_MONOTONIC | nr::CLOCK_BOOTTIME => false,
        _ if cpu.is_some() => false,
        clock if cpu_clock::is_of_device(clock) => return Err(Errno::EOPNOTSUPP),
        nr::CLOCK_MONOTONIC_RAW
        | nr::CLOCK_REALTIME_COARSE
        | nr::CLOCK_MONOTONIC_COARSE
        | nr::CLOCK_REALTIME_ALARM
        | nr::CLOCK_BOOTTIME_ALARM => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    };
    let mut spec = match a.get(1) {
        0 => Spec {
            notify: Notify::Process,
            signo: sig::ALRM,
            value: None,
            real,
            clock: 0,
        },
        at => read_event(at, real)?,
    };
    spec.clock = cpu.unwrap_or(a.int(0));
    let measured = cpu.map(|number| cpu_clock::measured(number, false));
    let p = current().process().clone();
    let id = timers::create(&p, spec, measured.transpose()?.as_ref())?;
    let shown = UserPtr::<u32>::new(a.get(2)).write(&id);
    if shown.is_err() {
        // Another thread may have guessed the id, and deleted it.
        let _ = timers::delete(&p, id);
    }
    shown?;
    Ok(0)
}

/// Reads a `struct sigevent`, for a timer of real time or not.
///
/// # Errors
/// EINVAL for an unknown kind of notification, a signal that is none, or a thread that is not of this process. EFAULT.
fn read_event(at: u64, real: bool) -> Result<Spec, Errno> {
    let [value, how, tid]: [u64; 3] = UserPtr::new(at).read()?;
    let (signo, notify, tid) = (how as u32, (how >> 32) as u32, tid as u32);
    let notify = match notify {
        nr::SIGEV_NONE => Notify::Nobody,
        nr::SIGEV_SIGNAL | nr::SIGEV_THREAD => Notify::Process,
        n if n == nr::SIGEV_THREAD_ID | nr::SIGEV_SIGNAL => {
            let mine = current().process().pid();
            let thread = ids::find_thread(tid).filter(|t| t.process().pid() == mine);
            Notify::Thread(thread.ok_or(Errno::EINVAL)?.tid())
        }
        _ => return Err(Errno::EINVAL),
    };
    if notify != Notify::Nobody && !(1..=u32::from(sig::MAX)).contains(&signo) {
        return Err(Errno::EINVAL);
    }
    Ok(Spec {
        notify,
        signo: signo as u8,
        value: Some(value),
        real,
        clock: 0,
    })
}

/// A setting as a `struct itimerspec`: the interval first, then the time left.
fn itimerspec(s: Setting) -> [i64; 4] {
    let [is, ins] = timespec(s.interval);
    let [vs, vns] = timespec(s.value);
    [is, ins, vs, vns]
}

/// timer_settime(2). A time in real time does not follow later steps of that clock.
fn timer_settime(a: &mut Args) -> Result<u64, Errno> {
    let (id, new) = (a.uint(0), a.get(2));
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let interval = read_timespec(new)?;
    let value = read_timespec(new.wrapping_add(16))?;
    let relative = a.uint(1) & nr::TIMER_ABSTIME == 0;
    let at = match value {
        0 => None,
        value => Some(match timers::base(current().process(), id)? {
            Base::Cpu(used) if relative => used.saturating_add(value),
            _ if relative => time::monotonic_ns().saturating_add(value),
            Base::Real => time::real_to_monotonic(value),
            Base::Monotonic | Base::Cpu(_) => value,
        }),
    };
    let old = timers::set(current().process(), id, at, interval)?;
    UserPtr::new(a.get(3)).write_if_some(&itimerspec(old))?;
    Ok(0)
}

fn timer_gettime(a: &mut Args) -> Result<u64, Errno> {
    let now = timers::get(current().process(), a.uint(0))?;
    UserPtr::new(a.get(1)).write(&itimerspec(now))?;
    Ok(0)
}

fn timer_getoverrun(a: &mut Args) -> Result<u64, Errno> {
    Ok(timers::overrun(current().process(), a.uint(0))?.into())
}

fn timer_delete(a: &mut Args) -> Result<u64, Errno> {
    timers::delete(current().process(), a.uint(0))?;
    Ok(0)
}
