//! File locks: flock(2), and the lock commands of fcntl(2).

use abi::raw::general as nr;
use fscore::locks::{END, Lock};
use hal::uaccess::UserPtr;
use proc::UserThreadExt;
use task::current::current;
use vfs::error::FsError;
use vfs::file::{File, FileRef};
use vfs::lock::{self, Family, LockSlot};

use super::errno::Errno;
use super::fsutil::{fault, file as file_of, real_file, with_files};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_flock, flock)];

/// The locks of the file that a call is about.
///
/// # Errors
/// `NoLocks` for a file that has none.
fn lockable(file: &File) -> Result<&LockSlot, FsError> {
    file.locks().ok_or(FsError::NoLocks)
}

/// flock(2). Without LOCK_NB it sleeps until it gets the lock, or a signal comes.
fn flock(a: &mut Args) -> Result<u64, Errno> {
    let (how, wait) = (a.uint(1) & !nr::LOCK_NB, a.uint(1) & nr::LOCK_NB == 0);
    if how & nr::LOCK_MAND != 0 {
        // As in Linux since 5.18, a request for a mandatory lock succeeds without effect, whatever the descriptor.
        return Ok(0);
    }
    if !matches!(how, nr::LOCK_SH | nr::LOCK_EX | nr::LOCK_UN) {
        return Err(Errno::EINVAL);
    }
    let file = real_file(a.int(0))?;
    if how == nr::LOCK_UN {
        let any = lock::whole(file.lock_owner(), 0, true);
        lock::unset(lockable(&file)?, Family::Whole, &any)?;
        return Ok(0);
    }
    let exclusive = how == nr::LOCK_EX;
    let locks = lockable(&file)?;
    file.note_lock();
    let wanted = lock::whole(
        file.lock_owner(),
        current().process().pid() as i32,
        exclusive,
    );
    // A conversion is not atomic, as flock(2) says: if another owner's lock is in the way, the old lock is released
    // first, and with LOCK_NB it is lost. So two owners that convert do not wait for each other.
    if lock::query(locks, Family::Whole, &wanted).is_some() {
        lock::unset(locks, Family::Whole, &wanted)?;
    }
    lock::set(locks, Family::Whole, wanted, wait, false)?;
    Ok(0)
}

/// A struct flock: type and origin, start, length, pid.
type Raw = [u64; 4];

const READ: u16 = nr::F_RDLCK as u16;
const WRITE: u16 = nr::F_WRLCK as u16;
const UNLOCK: u16 = nr::F_UNLCK as u16;

/// First and last byte of the range of a struct flock.
///
/// # Errors
/// EINVAL, EOVERFLOW.
fn range(file: &File, raw: &Raw) -> Result<(u64, u64), Errno> {
    let (from, len) = (raw[1] as i64, raw[2] as i64);
    let base = match (raw[0] >> 16) as u16 {
        0 => 0,
        1 if file.ops().seekable() => file.with_pos(|pos| *pos as i64),
        1 => 0,
        2 => file.ops().end(file).unwrap_or(0) as i64,
        _ => return Err(Errno::EINVAL),
    };
    let start = base.checked_add(from).ok_or(Errno::EOVERFLOW)?;
    let (start, last) = match len {
        0 => (start, END as i64),
        1.. => (start, start.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?),
        // A negative length: the bytes before the start.
        _ => (start.checked_add(len).ok_or(Errno::EINVAL)?, start - 1),
    };
    if start < 0 {
        return Err(Errno::EINVAL);
    }
    Ok((start as u64, last as u64))
}

/// Whether the command is about locks of open files, not of processes.
fn is_of_file(cmd: u32) -> bool {
    matches!(cmd, nr::F_OFD_GETLK | nr::F_OFD_SETLK | nr::F_OFD_SETLKW)
}

/// The lock commands of fcntl(2), for the file open as descriptor `fd`. `at` is the user address of the struct flock.
///
/// # Errors
/// As in fcntl(2).
pub fn control(fd: i32, file: &FileRef, cmd: u32, at: u64) -> Result<u64, Errno> {
    let raw = UserPtr::<Raw>::new(at).read().map_err(fault)?;
    let kind = raw[0] as u16;
    if cmd == nr::F_GETLK && kind != READ && kind != WRITE {
        return Err(Errno::EINVAL);
    }
    let wanted = requested(file, cmd, &raw)?;
    if matches!(cmd, nr::F_GETLK | nr::F_OFD_GETLK) {
        let query = match kind {
            READ | WRITE => lock::query,
            // As in Linux since 6.5: the open file asks for its own locks.
            UNLOCK => lock::query_own,
            _ => return Err(Errno::EINVAL),
        };
        let found = file
            .locks()
            .and_then(|locks| query(locks, Family::Ranges, &wanted));
        UserPtr::<Raw>::new(at)
            .write(&answer(raw, found))
            .map_err(fault)?;
        return Ok(0);
    }
    match kind {
        READ if !file.readable() => return Err(Errno::EBADF),
        WRITE if !file.writable() => return Err(Errno::EBADF),
        READ | WRITE => set(fd, file, cmd, wanted)?,
        UNLOCK => lock::unset(lockable(file)?, Family::Ranges, &wanted)?,
        _ => return Err(Errno::EINVAL),
    }
    Ok(0)
}

/// The lock that a struct flock describes. Its owner is the open file or the caller's descriptor table, as the command
/// says. The caller holds no lock.
///
/// # Errors
/// EINVAL, EOVERFLOW; EBADF if the caller has no descriptor table.
fn requested(file: &FileRef, cmd: u32, raw: &Raw) -> Result<Lock, Errno> {
    let of_file = is_of_file(cmd);
    if of_file && raw[3] as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let (start, last) = range(file, raw)?;
    let (owner, pid) = if of_file {
        (file.lock_owner(), -1)
    } else {
        (
            with_files(|table| Ok(table.lock_owner()))?,
            current().process().pid() as i32,
        )
    };
    Ok(Lock {
        owner,
        pid,
        start,
        last,
        exclusive: raw[0] as u16 == WRITE,
    })
}

/// Sets a lock on `file`, which was open as descriptor `fd`, and waits for it if the command says so. A lock that this
/// sets for a process ends when the process closes a descriptor of the file; a close of `fd` during the call counts, one of
/// another descriptor only once the lock is set. The caller holds no lock.
///
/// # Errors
/// As in fcntl(2); EBADF if another thread has closed the descriptor meanwhile, or ENOLCK, and the lock stays, if it then cannot be
/// cut out of a larger one.
fn set(fd: i32, file: &FileRef, cmd: u32, wanted: Lock) -> Result<(), Errno> {
    let of_file = is_of_file(cmd);
    let locks = lockable(file)?;
    // Before the lock is set: a close looks for locks only of an owner that has been noted.
    if of_file {
        file.note_lock();
    } else {
        with_files(|table| {
            table.note_lock();
            Ok(())
        })?;
    }
    let wait = matches!(cmd, nr::F_SETLKW | nr::F_OFD_SETLKW);
    lock::set(locks, Family::Ranges, wanted, wait, !of_file)?;
    // Another thread may have closed the descriptor meanwhile. That close may have ended the process's locks on the
    // file before this one was set, so this one is undone.
    if !of_file && !file_of(fd).is_ok_and(|now| FileRef::ptr_eq(&now, file)) {
        lock::unset(locks, Family::Ranges, &wanted)?;
        return Err(Errno::EBADF);
    }
    Ok(())
}

/// The struct flock that F_GETLK writes back: the conflicting lock, or F_UNLCK.
fn answer(mut raw: Raw, found: Option<Lock>) -> Raw {
    let Some(held) = found else {
        raw[0] = raw[0] & !0xffff | u64::from(UNLOCK);
        return raw;
    };
    let kind = if held.exclusive { WRITE } else { READ };
    let len = if held.last == END {
        0
    } else {
        held.last - held.start + 1
    };
    // Type and origin share this word; origin 0 is the start of the file.
    [u64::from(kind), held.start, len, u64::from(held.pid as u32)]
}
