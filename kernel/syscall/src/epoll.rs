//! epoll_create(2), epoll_ctl(2), epoll_wait(2) and their like.

use abi::raw::general as nr;
use hal::USER_END;
use hal::uaccess::{UserFault, UserPtr};
use ipc::epoll::{Event, control, file as epoll_file, wait};
use task::park::Deadline;
use vfs::error::FsError;
use vfs::file::o;

use super::errno::Errno;
use super::fsutil::{fault, install, real_file};
use super::poll::{end_mask, set_mask, timeout};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_epoll_create, create),
    (nr::__NR_epoll_create1, |a: &mut Args| make(a.uint(0))),
    (nr::__NR_epoll_ctl, ctl),
    (nr::__NR_epoll_wait, |a: &mut Args| {
        wait_until(a, milliseconds(a.int(3)))
    }),
    (nr::__NR_epoll_pwait, |a: &mut Args| {
        masked(a, milliseconds(a.int(3)))
    }),
    (nr::__NR_epoll_pwait2, |a: &mut Args| {
        let deadline = timeout(a.get(3), 1_000_000_000)?;
        masked(a, deadline)
    }),
];

const ADD: u32 = 1;
const DEL: u32 = 2;
const MOD: u32 = 3;

/// The most events that one wait may ask for.
const MOST: i32 = i32::MAX / Event::BYTES as i32;

fn make(flags: u32) -> Result<u64, Errno> {
    if flags & !o::CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(install(epoll_file::make()?, flags)?)
}

/// epoll_create(2), whose size must be positive and says nothing.
fn create(a: &mut Args) -> Result<u64, Errno> {
    if a.int(0) <= 0 {
        return Err(Errno::EINVAL);
    }
    make(0)
}

fn ctl(a: &mut Args) -> Result<u64, Errno> {
    let (op, fd) = (a.uint(1), a.int(2));
    let event = if op == DEL {
        Event::default()
    } else {
        let bytes = UserPtr::<[u8; Event::BYTES]>::new(a.get(3));
        Event::from_bytes(bytes.read().map_err(fault)?)
    };
    let epoll = real_file(a.int(0))?;
    let file = real_file(fd)?;
    match op {
        ADD => control::add(&epoll, &file, fd, event)?,
        DEL => control::remove(&epoll, &file, fd)?,
        MOD => control::change(&epoll, &file, fd, event)?,
        _ if !file.ops().pollable() => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

fn milliseconds(ms: i32) -> Deadline {
    match u64::try_from(ms) {
        Ok(0) => Deadline::now(),
        Ok(ms) => Deadline::after(ms * 1_000_000),
        Err(_) => Deadline::Never,
    }
}

/// epoll_wait(2) with a deadline. Unlike poll(2) it is not restarted after a signal, as on Linux.
///
/// # Errors
/// EINVAL, EFAULT, EBADF; EINTR if a signal came first.
fn wait_until(a: &Args, deadline: Deadline) -> Result<u64, Errno> {
    let most = a.int(2);
    if most <= 0 || most > MOST {
        return Err(Errno::EINVAL);
    }
    let most = most as usize;
    let end = a.get(1).checked_add((most * Event::BYTES) as u64);
    if end.is_none_or(|end| end > USER_END) {
        return Err(Errno::EFAULT);
    }
    let epoll = real_file(a.int(0))?;
    let at = UserPtr::<[u8; Event::BYTES]>::new(a.get(1));
    let mut n = 0;
    let found = wait::wait(&epoll, most, deadline, &mut |event| {
        at.add(n)
            .write(&event.to_bytes())
            .map_err(|UserFault| FsError::Fault)?;
        n += 1;
        Ok(())
    });
    match found {
        Ok(found) => Ok(found as u64),
        Err(FsError::Interrupted) => Err(Errno::EINTR),
        Err(e) => Err(e.into()),
    }
}

/// As [`wait_until`], with a signal mask for its duration.
fn masked(a: &Args, deadline: Deadline) -> Result<u64, Errno> {
    let masked = set_mask(a.get(4), a.get(5))?;
    let result = wait_until(a, deadline);
    end_mask(masked, &result);
    result
}
