//! The owners of open files, and their signals: commands of fcntl(2) and requests of ioctl(2).

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use ipc::dnotify;
use ipc::owner::{self, Type};
use vfs::file::{File, FileRef};

use super::errno::Errno;
use super::fsutil::{fault, with_files};

const F_GETOWNER_UIDS: u32 = 17;
const MOST_SIGNAL: u64 = 64;

/// The commands of fcntl(2).
///
/// # Errors
/// EINVAL, also for another command; ESRCH, EFAULT, ENOMEM.
pub(super) fn control(file: &File, cmd: u32, arg: u64) -> Result<u64, Errno> {
    match cmd {
        nr::F_SETOWN => owner::set_signed(file, arg as i32)?,
        // A group looks like an error, as in Linux.
        nr::F_GETOWN => return Ok(i64::from(owner::get_signed(file)) as u64),
        nr::F_SETSIG => {
            let signo = u8::try_from(arg)
                .ok()
                .filter(|&n| u64::from(n) <= MOST_SIGNAL);
            owner::set_signal(file, signo.ok_or(Errno::EINVAL)?)?;
        }
        nr::F_GETSIG => return Ok(u64::from(owner::signal(file))),
        nr::F_SETOWN_EX => {
            let [is, number]: [i32; 2] = UserPtr::new(arg).read().map_err(fault)?;
            let is = match is as u32 {
                nr::F_OWNER_TID => Type::Thread,
                nr::F_OWNER_PID => Type::Process,
                nr::F_OWNER_PGRP => Type::Group,
                _ => return Err(Errno::EINVAL),
            };
            let number = u32::try_from(number).map_err(|_| Errno::ESRCH)?;
            owner::set(file, is, number)?;
        }
        nr::F_GETOWN_EX => {
            let (is, number) = owner::get(file);
            let is = match is {
                Type::Thread => nr::F_OWNER_TID,
                Type::Process => nr::F_OWNER_PID,
                Type::Group => nr::F_OWNER_PGRP,
            };
            UserPtr::<[u32; 2]>::new(arg)
                .write(&[is, number])
                .map_err(fault)?;
        }
        F_GETOWNER_UIDS => {
            let (uid, euid) = owner::uids(file);
            UserPtr::<[u32; 2]>::new(arg)
                .write(&[uid, euid])
                .map_err(fault)?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// F_NOTIFY.
///
/// # Errors
/// ENOTDIR, ENOMEM.
pub(super) fn notify(file: &FileRef, fd: i32, arg: u32) -> Result<u64, Errno> {
    Ok(with_files(|files| {
        // Each close of a descriptor asks the file from now on.
        files.note_lock();
        dnotify::set(file, fd, files.lock_owner(), arg)?;
        // Nobody would end it if the descriptor had been closed before.
        if !files.get(fd).is_ok_and(|now| FileRef::ptr_eq(&now, file)) {
            dnotify::set(file, fd, files.lock_owner(), 0)?;
        }
        Ok(0)
    })?)
}

/// FIOASYNC.
///
/// # Errors
/// EFAULT; ENOTTY for a change at a file that sends no signals; ENOMEM.
pub(super) fn set_async(file: &File, fd: i32, arg: u64) -> Result<(), Errno> {
    let on = UserPtr::<i32>::new(arg).read().map_err(fault)? != 0;
    let changes = on != (file.flags() & vfs::file::o::ASYNC != 0);
    if changes && !file.ops().sends_signals() {
        return Err(Errno::ENOTTY);
    }
    Ok(owner::set_async(file, fd, on)?)
}

/// FIOSETOWN, SIOCSPGRP; with `asks`, FIOGETOWN and SIOCGPGRP.
///
/// # Errors
/// EFAULT; those of F_SETOWN.
pub(super) fn of_socket(file: &File, asks: bool, arg: u64) -> Result<(), Errno> {
    let at = UserPtr::<i32>::new(arg);
    if asks {
        return at.write(&owner::get_signed(file)).map_err(fault);
    }
    let number = at.read().map_err(fault)?;
    Ok(owner::set_signed(file, number)?)
}
