//! timerfd_create(2), timerfd_settime(2), timerfd_gettime(2).

use abi::raw::general as nr;
use cred::Cap;
use hal::uaccess::UserPtr;
use ipc::timerfd::{self, Mode, Setting};
use task::current::current;
use task::time::SECOND;
use vfs::file::o;

use super::credentials::require;
use super::errno::Errno;
use super::fsutil::{install, real_file};
use super::time::timespec;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_timerfd_create, create),
    (nr::__NR_timerfd_settime, settime),
    (nr::__NR_timerfd_gettime, gettime),
];

/// TFD_TIMER_ABSTIME.
const ABSOLUTE: u32 = 1;
/// TFD_TIMER_CANCEL_ON_SET.
const CANCEL_ON_SET: u32 = 2;

fn create(a: &mut Args) -> Result<u64, Errno> {
    let (clock, flags) = (a.uint(0), a.uint(1));
    if flags & !(o::CLOEXEC | o::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let real = match clock {
        nr::CLOCK_REALTIME | nr::CLOCK_REALTIME_ALARM => true,
        // The machine is never suspended, so time since boot is monotonic time.
        nr::CLOCK_MONOTONIC | nr::CLOCK_BOOTTIME | nr::CLOCK_BOOTTIME_ALARM => false,
        _ => return Err(Errno::EINVAL),
    };
    if matches!(clock, nr::CLOCK_REALTIME_ALARM | nr::CLOCK_BOOTTIME_ALARM) {
        require(&current().cred(), Cap::WakeAlarm)?;
    }
    Ok(install(timerfd::make(real, flags)?, flags)?)
}

/// Reads seconds and nanoseconds, as nanoseconds.
fn from_timespec([sec, nsec]: [i64; 2]) -> Result<u64, Errno> {
    if sec < 0 || !(0..SECOND as i64).contains(&nsec) {
        return Err(Errno::EINVAL);
    }
    Ok((sec as u64)
        .saturating_mul(SECOND)
        .saturating_add(nsec as u64))
}

/// A setting as a struct itimerspec: the interval first.
fn itimerspec(s: Setting) -> [[i64; 2]; 2] {
    [timespec(s.interval), timespec(s.value)]
}

fn settime(a: &mut Args) -> Result<u64, Errno> {
    let [interval, value] = UserPtr::<[[i64; 2]; 2]>::new(a.get(2)).read()?;
    let flags = a.uint(1);
    if flags & !(ABSOLUTE | CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let new = Setting {
        value: from_timespec(value)?,
        interval: from_timespec(interval)?,
    };
    let mode = Mode {
        absolute: flags & ABSOLUTE != 0,
        cancel_on_set: flags & CANCEL_ON_SET != 0,
    };
    let (old, cancelled) = timerfd::set(&real_file(a.int(0))?, new, mode)?;
    if cancelled {
        return Err(Errno::ECANCELED);
    }
    UserPtr::new(a.get(3)).write_if_some(&itimerspec(old))?;
    Ok(0)
}

fn gettime(a: &mut Args) -> Result<u64, Errno> {
    let setting = timerfd::get(&real_file(a.int(0))?)?;
    UserPtr::new(a.get(1)).write(&itimerspec(setting))?;
    Ok(0)
}
