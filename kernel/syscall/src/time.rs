//! Clocks, sleeps, interval timers.

use abi::raw::general as nr;
use cred::Cap;
use hal::uaccess::UserPtr;
use proc::itimer::{self, Setting, Which};
use proc::signal::RestartBlock;
use proc::{CLOCK_TICKS, SignalExt, UserThreadExt, futex};
use task::current::current;
use task::park::{Deadline, Interruptible, sleep_until};
use task::time::{self, SECOND};
use task::usage::Times;

use super::cpu_clock;
use super::credentials::require;
use super::errno::Errno;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_clock_gettime, clock_gettime),
    (nr::__NR_clock_getres, clock_getres),
    (nr::__NR_clock_settime, clock_settime),
    (nr::__NR_gettimeofday, gettimeofday),
    (nr::__NR_settimeofday, settimeofday),
    (nr::__NR_time, time),
    (nr::__NR_nanosleep, nanosleep),
    (nr::__NR_clock_nanosleep, clock_nanosleep),
    (nr::__NR_restart_syscall, restart_syscall),
    (nr::__NR_getitimer, getitimer),
    (nr::__NR_setitimer, setitimer),
    (nr::__NR_alarm, alarm),
    (nr::__NR_times, times),
    (nr::__NR_getrusage, getrusage),
];

/// Reads a `struct timespec` from user memory, as nanoseconds.
///
/// # Errors
/// EFAULT, EINVAL.
pub fn read_timespec(addr: u64) -> Result<u64, Errno> {
    let [sec, nsec]: [i64; 2] = UserPtr::new(addr).read()?;
    if sec < 0 || !(0..SECOND as i64).contains(&nsec) {
        return Err(Errno::EINVAL);
    }
    // A time that does not fit into 64 bits of nanoseconds becomes the largest one, which is never reached.
    Ok((sec as u64)
        .saturating_mul(SECOND)
        .saturating_add(nsec as u64))
}

/// Nanoseconds, as a `struct timespec`.
pub fn timespec(ns: u64) -> [i64; 2] {
    [(ns / SECOND) as i64, (ns % SECOND) as i64]
}

/// Nanoseconds, as a `struct timeval`.
pub fn timeval(ns: u64) -> [i64; 2] {
    [(ns / SECOND) as i64, (ns % SECOND / 1000) as i64]
}

fn read_timeval(addr: u64) -> Result<u64, Errno> {
    let [sec, usec]: [i64; 2] = UserPtr::new(addr).read()?;
    from_timeval(sec, usec)
}

fn from_timeval(sec: i64, usec: i64) -> Result<u64, Errno> {
    if sec < 0 || !(0..1_000_000).contains(&usec) {
        return Err(Errno::EINVAL);
    }
    Ok((sec as u64)
        .saturating_mul(SECOND)
        .saturating_add(usec as u64 * 1000))
}

/// The present time of a clock, in nanoseconds.
///
/// # Errors
/// EINVAL for an unknown clock.
pub fn clock_now(clock: u32) -> Result<u64, Errno> {
    let me = current();
    Ok(match clock {
        nr::CLOCK_REALTIME | nr::CLOCK_REALTIME_COARSE => time::realtime_ns(),
        // TAI equals real time, as on Linux until its offset is set.
        nr::CLOCK_TAI => time::realtime_ns(),
        nr::CLOCK_MONOTONIC
        | nr::CLOCK_MONOTONIC_RAW
        | nr::CLOCK_MONOTONIC_COARSE
        | nr::CLOCK_BOOTTIME => time::monotonic_ns(),
        nr::CLOCK_PROCESS_CPUTIME_ID => {
            me.charge_now();
            let t = me.process().times();
            t.user_ns + t.sys_ns
        }
        nr::CLOCK_THREAD_CPUTIME_ID => {
            me.charge_now();
            let t = me.times();
            t.user_ns + t.sys_ns
        }
        _ => cpu_clock::now(cpu_clock::number(clock).ok_or(Errno::EINVAL)?)?,
    })
}

fn clock_gettime(a: &mut Args) -> Result<u64, Errno> {
    let now = clock_now(a.uint(0))?;
    UserPtr::new(a.get(1)).write(&timespec(now))?;
    Ok(0)
}

fn clock_getres(a: &mut Args) -> Result<u64, Errno> {
    let clock = a.uint(0);
    let ns = match (clock, cpu_clock::number(clock)) {
        (nr::CLOCK_REALTIME_COARSE | nr::CLOCK_MONOTONIC_COARSE, _) => task::sched::TICK_NS,
        (_, Some(number)) => cpu_clock::resolution(number)?,
        _ => {
            clock_now(clock)?;
            1
        }
    };
    UserPtr::new(a.get(1)).write_if_some(&timespec(ns))?;
    Ok(0)
}

fn clock_settime(a: &mut Args) -> Result<u64, Errno> {
    // The clocks of the calling process and thread cannot be set at all.
    let number = cpu_clock::number(a.uint(0)).filter(|&number| number as u32 == a.uint(0));
    if number.is_none() && a.uint(0) != nr::CLOCK_REALTIME {
        return Err(Errno::EINVAL);
    }
    let to = read_timespec(a.get(1))?;
    if let Some(number) = number {
        return cpu_clock::set(number);
    }
    require(&current().cred(), Cap::SysTime)?;
    set_realtime(to)?;
    Ok(0)
}

/// Sets real time, in nanoseconds since 1970.
///
/// # Errors
/// EINVAL if less than thirty years would be left until 64 bits of nanoseconds end, or if the machine would have been
/// started before 1970.
fn set_realtime(to: u64) -> Result<(), Errno> {
    const END: u64 = i64::MAX as u64 / SECOND;
    const UPTIME_MAX: u64 = 30 * 365 * 24 * 3600;
    if to / SECOND > END - UPTIME_MAX || to < time::monotonic_ns() {
        return Err(Errno::EINVAL);
    }
    time::set_realtime(to);
    proc::vdso::real_time_was_set();
    ipc::timerfd::clock_was_set();
    Ok(())
}

fn gettimeofday(a: &mut Args) -> Result<u64, Errno> {
    UserPtr::new(a.get(0)).write_if_some(&timeval(time::realtime_ns()))?;
    UserPtr::<[i32; 2]>::new(a.get(1)).write_if_some(&[0, 0])?;
    Ok(0)
}

/// Most minutes that a time zone may be west or east of Greenwich.
const MOST_MINUTES_WEST: u32 = 15 * 60;

fn settimeofday(a: &mut Args) -> Result<u64, Errno> {
    let to = match a.get(0) {
        0 => None,
        at => Some(read_timeval(at)?),
    };
    // The time zone, which no program of today sets, is not stored: only its bounds are checked.
    let zone = match a.get(1) {
        0 => [0; 2],
        at => UserPtr::<[i32; 2]>::new(at).read()?,
    };
    // Also for a call that sets nothing.
    require(&current().cred(), Cap::SysTime)?;
    if zone[0].unsigned_abs() > MOST_MINUTES_WEST {
        return Err(Errno::EINVAL);
    }
    if let Some(to) = to {
        set_realtime(to)?;
    }
    Ok(0)
}

fn time(a: &mut Args) -> Result<u64, Errno> {
    let now = time::realtime_ns() / SECOND;
    UserPtr::<u64>::new(a.get(0)).write_if_some(&now)?;
    Ok(now)
}

/// Sleeps until monotonic time `until`, in nanoseconds. A signal ends the sleep; then the time that is left is
/// written to user memory at `rem`, unless that is null, and a restart block is set.
///
/// # Errors
/// ERESTART_RESTARTBLOCK after a signal, EFAULT.
fn relative_sleep(until: u64, rem: u64) -> Result<u64, Errno> {
    match sleep_until(Deadline::At(until), Interruptible::Yes) {
        Ok(()) => Ok(0),
        Err(_) => {
            let left = until.saturating_sub(time::monotonic_ns());
            UserPtr::new(rem).write_if_some(&timespec(left))?;
            current().set_restart(RestartBlock::Sleep { until, rem });
            Err(Errno::ERESTART_RESTARTBLOCK)
        }
    }
}

fn nanosleep(a: &mut Args) -> Result<u64, Errno> {
    let ns = read_timespec(a.get(0))?;
    relative_sleep(time::monotonic_ns().saturating_add(ns), a.get(1))
}

/// clock_nanosleep(2). The end of an absolute sleep on real time does not follow later steps of that clock. After a signal
/// for which no handler runs, it goes on until the same end; see [`relative_sleep`] for the time that is left.
fn clock_nanosleep(a: &mut Args) -> Result<u64, Errno> {
    let clock = a.uint(0);
    match clock {
        nr::CLOCK_REALTIME | nr::CLOCK_MONOTONIC | nr::CLOCK_BOOTTIME | nr::CLOCK_TAI => {}
        // A sleeping thread uses no CPU time.
        nr::CLOCK_THREAD_CPUTIME_ID
        | nr::CLOCK_MONOTONIC_RAW
        | nr::CLOCK_REALTIME_COARSE
        | nr::CLOCK_MONOTONIC_COARSE => return Err(Errno::EOPNOTSUPP),
        _ if cpu_clock::is_of_device(clock) => return Err(Errno::EOPNOTSUPP),
        _ if cpu_clock::number(clock).is_some() => {}
        _ => return Err(Errno::EINVAL),
    }
    let ns = read_timespec(a.get(2))?;
    if let Some(number) = cpu_clock::number(clock) {
        let absolute = a.uint(1) & nr::TIMER_ABSTIME != 0;
        return cpu_clock::sleep(number, ns, absolute, a.get(3));
    }
    if a.uint(1) & nr::TIMER_ABSTIME == 0 {
        return relative_sleep(time::monotonic_ns().saturating_add(ns), a.get(3));
    }
    let real = matches!(clock, nr::CLOCK_REALTIME | nr::CLOCK_TAI);
    let until = if real {
        time::real_to_monotonic(ns)
    } else {
        ns
    };
    sleep_until(Deadline::At(until), Interruptible::Yes).map_err(|_| Errno::ERESTARTNOHAND)?;
    Ok(0)
}

fn restart_syscall(_: &mut Args) -> Result<u64, Errno> {
    match current().take_restart() {
        RestartBlock::None => Err(Errno::EINTR),
        RestartBlock::Sleep { until, rem } => relative_sleep(until, rem),
        RestartBlock::CpuSleep { clock, until, rem } => cpu_clock::go_on(clock, until, rem),
        RestartBlock::Poll {
            addr,
            count,
            deadline,
        } => super::poll::poll_until(addr, count, deadline),
        RestartBlock::Futex {
            addr,
            value,
            until,
            bits,
            shared,
        } => super::futex::wait_until(addr, shared, value, bits, until),
    }
}

fn which(n: u32) -> Result<Which, Errno> {
    match n {
        nr::ITIMER_REAL => Ok(Which::Real),
        nr::ITIMER_VIRTUAL => Ok(Which::Virtual),
        nr::ITIMER_PROF => Ok(Which::Prof),
        _ => Err(Errno::EINVAL),
    }
}

/// A timer's setting as a `struct itimerval`: the interval first, then the time left.
fn itimerval(s: Setting) -> [i64; 4] {
    let [is, iu] = timeval(s.interval);
    let [vs, vu] = timeval(s.value);
    // A timer that expires in less than a microsecond must not look as if it were not set.
    let vu = if s.value > 0 && vs == 0 && vu == 0 {
        1
    } else {
        vu
    };
    [is, iu, vs, vu]
}

fn getitimer(a: &mut Args) -> Result<u64, Errno> {
    let s = itimer::get(current().process(), which(a.uint(0))?);
    UserPtr::new(a.get(1)).write(&itimerval(s))?;
    Ok(0)
}

fn setitimer(a: &mut Args) -> Result<u64, Errno> {
    let which = which(a.uint(0))?;
    // As on Linux, a null pointer stands for a setting of zero.
    let [is, iu, vs, vu] = if a.get(1) == 0 {
        [0; 4]
    } else {
        UserPtr::<[i64; 4]>::new(a.get(1)).read()?
    };
    let new = Setting {
        value: from_timeval(vs, vu)?,
        interval: from_timeval(is, iu)?,
    };
    let old = itimer::set(current().process(), which, new);
    UserPtr::new(a.get(2)).write_if_some(&itimerval(old))?;
    Ok(0)
}

fn alarm(a: &mut Args) -> Result<u64, Errno> {
    let new = Setting {
        value: u64::from(a.uint(0)) * SECOND,
        interval: 0,
    };
    let old = itimer::set(current().process(), Which::Real, new);
    // Rounded to seconds; 0 means that no timer was set, so less than half a second becomes 1.
    let seconds = (old.value + SECOND / 2) / SECOND;
    Ok(if old.value > 0 { seconds.max(1) } else { 0 })
}

fn ticks(ns: u64) -> u64 {
    ns / (SECOND / CLOCK_TICKS)
}

fn times(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    me.charge_now();
    let (own, children) = (me.process().times(), me.process().child_times());
    let tms = [
        ticks(own.user_ns),
        ticks(own.sys_ns),
        ticks(children.user_ns),
        ticks(children.sys_ns),
    ];
    UserPtr::new(a.get(0)).write_if_some(&tms)?;
    Ok(ticks(time::monotonic_ns()))
}

/// Resource usage as a `struct rusage`.
pub fn rusage(t: &Times) -> [i64; 18] {
    let mut r = [0; 18];
    r[0..2].copy_from_slice(&timeval(t.user_ns));
    r[2..4].copy_from_slice(&timeval(t.sys_ns));
    r[4] = t.max_rss_kib as i64;
    r[8] = t.minor_faults as i64;
    r[9] = t.major_faults as i64;
    r[16] = t.voluntary as i64;
    r[17] = t.involuntary as i64;
    r
}

fn getrusage(a: &mut Args) -> Result<u64, Errno> {
    let me = current();
    me.charge_now();
    let t = match a.int(0) {
        0 => me.process().times(),
        -1 => me.process().child_times(),
        1 => me.times(),
        _ => return Err(Errno::EINVAL),
    };
    UserPtr::new(a.get(1)).write(&rusage(&t))?;
    Ok(0)
}

impl From<futex::FutexError> for Errno {
    fn from(e: futex::FutexError) -> Errno {
        use futex::FutexError::*;
        match e {
            Fault => Errno::EFAULT,
            Invalid => Errno::EINVAL,
            Changed => Errno::EAGAIN,
            Timeout => Errno::ETIMEDOUT,
            Signal => Errno::ERESTARTSYS,
            NoMemory => Errno::ENOMEM,
            Deadlock => Errno::EDEADLK,
            NoOwner => Errno::ESRCH,
            NotPermitted => Errno::EPERM,
        }
    }
}
