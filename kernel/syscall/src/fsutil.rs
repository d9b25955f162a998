//! Code that the calls on files share: errno of file-system errors, paths and buffers in user memory, descriptors.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;

use cred::Cred;
use hal::USER_END;
use hal::uaccess::{PATH_MAX, StrError, UserFault, UserPtr, UserRange, read_cstr};
use proc::UserThreadExt;
use proc::rlimit::Resource;
use proc::signal::{self, sig};
use task::current::current;
use vfs::context::{FsContext, Origin};
use vfs::error::{FsError, Result};
use vfs::fdtable::FdTable;
use vfs::file::{FileRef, o};
use vfs::open::CHANGING;
use vfs::place::Path;
use vfs::setattr::NewMode;
use vfs::walk::{Walk, Want};

use super::errno::Errno;

impl From<FsError> for Errno {
    fn from(e: FsError) -> Errno {
        match e {
            FsError::NotFound => Errno::ENOENT,
            FsError::Exists => Errno::EEXIST,
            FsError::NotDir => Errno::ENOTDIR,
            FsError::IsDir => Errno::EISDIR,
            FsError::Access => Errno::EACCES,
            FsError::Perm => Errno::EPERM,
            FsError::NameTooLong => Errno::ENAMETOOLONG,
            FsError::Loop => Errno::ELOOP,
            FsError::NotEmpty => Errno::ENOTEMPTY,
            FsError::NoSpace => Errno::ENOSPC,
            FsError::NoMemory => Errno::ENOMEM,
            FsError::ReadOnly => Errno::EROFS,
            FsError::Busy => Errno::EBUSY,
            FsError::Invalid => Errno::EINVAL,
            FsError::CrossDevice => Errno::EXDEV,
            FsError::TooManyLinks => Errno::EMLINK,
            FsError::Fault => Errno::EFAULT,
            FsError::BrokenPipe => Errno::EPIPE,
            FsError::WouldBlock => Errno::EAGAIN,
            FsError::Interrupted => Errno::ERESTARTSYS,
            FsError::InterruptedForGood => Errno::EINTR,
            FsError::BadFd => Errno::EBADF,
            FsError::NotTty => Errno::ENOTTY,
            FsError::NotSeekable => Errno::ESPIPE,
            FsError::TooBig => Errno::EFBIG,
            FsError::NotSupported => Errno::EOPNOTSUPP,
            FsError::NoDevice => Errno::ENODEV,
            FsError::NoDevAddr => Errno::ENXIO,
            FsError::TooManyFiles => Errno::EMFILE,
            FsError::TooManyPipes => Errno::ENFILE,
            FsError::Io => Errno::EIO,
            FsError::NoProcess => Errno::ESRCH,
            FsError::TextBusy => Errno::ETXTBSY,
            FsError::NoDestination => Errno::EDESTADDRREQ,
            FsError::NotConnected => Errno::ENOTCONN,
            FsError::ConnectionReset => Errno::ECONNRESET,
            FsError::ConnectionRefused => Errno::ECONNREFUSED,
            FsError::TimedOut => Errno::ETIMEDOUT,
            FsError::QuietPipe => Errno::EPIPE,
            FsError::MessageTooLong => Errno::EMSGSIZE,
            FsError::NoBuffers => Errno::ENOBUFS,
            FsError::NoData => Errno::ENODATA,
            FsError::NoLocks => Errno::ENOLCK,
            FsError::Deadlock => Errno::EDEADLK,
            FsError::Cancelled => Errno::ECANCELED,
        }
    }
}

/// The errno of an address that the program may not access.
pub fn fault(_: UserFault) -> Errno {
    Errno::EFAULT
}

/// Flags of the `*at` calls, named as in openat(2) and statx(2) without their prefix `AT_`.
pub mod at {
    pub const FDCWD: i32 = -100;
    pub const SYMLINK_NOFOLLOW: u32 = 0x100;
    pub const EACCESS: u32 = 0x200;
    pub const REMOVEDIR: u32 = 0x200;
    pub const SYMLINK_FOLLOW: u32 = 0x400;
    pub const NO_AUTOMOUNT: u32 = 0x800;
    pub const EMPTY_PATH: u32 = 0x1000;
    pub const STATX_SYNC: u32 = 0x6000;
}

/// Copies a path from user memory, without its NUL.
///
/// # Errors
/// EFAULT, ENAMETOOLONG, ENOMEM.
pub fn user_path(addr: u64) -> Result<Vec<u8>, Errno> {
    read_cstr(addr, PATH_MAX).map_err(|e| match e {
        StrError::Fault => Errno::EFAULT,
        StrError::TooLong => Errno::ENAMETOOLONG,
        StrError::NoMemory => Errno::ENOMEM,
    })
}

/// The calling thread, for permission checks and path lookups.
pub struct Caller {
    /// The credentials to check: the thread's, or those with its real ids in access(2).
    pub cred: Arc<Cred>,
}

impl Caller {
    /// The calling thread with its present credentials.
    pub fn now() -> Self {
        Caller {
            cred: current().cred(),
        }
    }

    /// The mode for a new file: the permission bits `perm` and the caller's umask.
    pub fn new_mode(&self, perm: u32) -> NewMode {
        NewMode {
            perm,
            umask: proc::with_fs(|fs| fs.umask()).unwrap_or(0),
        }
    }

    /// Calls `f` with a [`Walk`] for `path`. A relative path begins at the directory open as `dirfd`, or at the
    /// working directory for `FDCWD`.
    ///
    /// # Errors
    /// `BadFd` and `NotDir` about `dirfd`; those of `f`.
    pub fn walk<R>(
        &self,
        dirfd: i32,
        path: &[u8],
        f: impl FnOnce(&Walk) -> Result<R>,
    ) -> Result<R> {
        if dirfd == at::FDCWD || path.first() == Some(&b'/') {
            return fs(|fs| f(&fs.walk(&self.cred)));
        }
        let file = file(dirfd)?;
        let base = file.path.as_ref().ok_or(FsError::NotDir)?;
        if !base.dentry.inode.is_dir() && !path.is_empty() {
            return Err(FsError::NotDir);
        }
        fs(|fs| f(&fs.walk_from(&self.cred, Origin::At(base))))
    }

    /// Looks up a path. With `EMPTY_PATH` in `flags` an empty path names the file that `dirfd` itself refers to.
    ///
    /// # Errors
    /// Those of the lookup; `Invalid` if the file of `dirfd` has no path.
    pub fn find(&self, dirfd: i32, path: &[u8], flags: u32, want: Want) -> Result<Path> {
        if path.is_empty() && flags & at::EMPTY_PATH != 0 {
            if dirfd == at::FDCWD {
                return fs(FsContext::cwd);
            }
            return file(dirfd)?.path.clone().ok_or(FsError::Invalid);
        }
        self.walk(dirfd, path, |w| w.find(path, want))
    }
}

/// Calls `f` with the caller's root, working directory and umask.
///
/// # Errors
/// `NotFound` if the process has none; those of `f`.
pub fn fs<R>(f: impl FnOnce(&FsContext) -> Result<R>) -> Result<R> {
    proc::with_fs(|fs| f(fs)).unwrap_or(Err(FsError::NotFound))
}

/// Calls `f` with the caller's table of descriptors.
///
/// # Errors
/// `BadFd` if the process has none; those of `f`.
pub fn with_files<R>(f: impl FnOnce(&FdTable) -> Result<R>) -> Result<R> {
    proc::with_files(|files| f(files)).unwrap_or(Err(FsError::BadFd))
}

/// The open file of a descriptor.
///
/// # Errors
/// `BadFd`.
pub fn file(fd: i32) -> Result<FileRef> {
    with_files(|files| files.get(fd))
}

/// The open file of a descriptor that was not opened with O_PATH.
///
/// # Errors
/// `BadFd`, also for one with O_PATH.
pub fn real_file(fd: i32) -> Result<FileRef> {
    let file = file(fd)?;
    if file.is_place() {
        Err(FsError::BadFd)
    } else {
        Ok(file)
    }
}

/// The caller's soft RLIMIT_NOFILE: one more than the highest descriptor it may get.
pub fn fd_limit() -> u64 {
    current().process().rlimit(Resource::Nofile)
}

/// Gives a file the lowest free descriptor and returns that. Of `flags`, O_CLOEXEC counts.
///
/// # Errors
/// `TooManyFiles`, `NoMemory`.
pub fn install(file: FileRef, flags: u32) -> Result<u64> {
    let fd = with_files(|files| files.add(file, flags & o::CLOEXEC != 0, 0, fd_limit()))?;
    Ok(fd as u64)
}

/// The descriptor of a file that is about to be opened. If there is none for it, nothing has changed. [`fill`](Slot::fill) must
/// follow.
#[must_use]
pub struct Slot(Cell<Option<i32>>);

impl Slot {
    /// The descriptor for an open with these flags. It is reserved before the lookup if the open may create or empty a file.
    ///
    /// # Errors
    /// `TooManyFiles`, `NoMemory`.
    #[inline]
    pub fn new(flags: u32) -> Result<Slot> {
        let slot = Slot(Cell::new(None));
        if flags & CHANGING != 0 {
            slot.reserve()?;
        }
        Ok(slot)
    }

    /// Reserves the descriptor, if that has not been done. The open calls it, see [`Ready`](vfs::open::Ready).
    ///
    /// # Errors
    /// `TooManyFiles`, `NoMemory`.
    pub fn reserve(&self) -> Result<()> {
        if self.0.get().is_none() {
            let fd = with_files(|files| files.reserve(fd_limit()))?;
            self.0.set(Some(fd));
        }
        Ok(())
    }

    /// As [`reserve`](Self::reserve), and returns the descriptor.
    ///
    /// # Errors
    /// `TooManyFiles`, `NoMemory`.
    pub fn reserve_number(&self) -> Result<i32> {
        self.reserve()?;
        self.0.get().ok_or(FsError::BadFd)
    }

    /// Gives the opened file the descriptor, or gives it back. Of `flags`, O_CLOEXEC counts.
    ///
    /// # Errors
    /// That of the open; `TooManyFiles`, `NoMemory`.
    #[inline]
    pub fn fill(self, opened: Result<FileRef>, flags: u32) -> Result<u64> {
        let Some(fd) = self.0.get() else {
            return install(opened?, flags);
        };
        // The table is the same: one that several threads use is not replaced before they have ended.
        with_files(|files| match opened {
            Ok(file) => {
                files.fill(fd, file, flags & o::CLOEXEC != 0);
                Ok(fd as u64)
            }
            Err(e) => {
                files.cancel(fd);
                Err(e)
            }
        })
    }
}

/// Gives two files descriptors and writes these to user memory at `out`. Both are removed from the table again if
/// `out` cannot be written or `keep` is false.
///
/// # Errors
/// EFAULT, EMFILE, ENOMEM.
pub fn install_pair(
    (a, b): (FileRef, FileRef),
    cloexec: bool,
    out: u64,
    keep: bool,
) -> Result<(), Errno> {
    let limit = fd_limit();
    let (x, y) = with_files(|files| files.add_pair(a.clone(), b.clone(), cloexec, limit))?;
    let shown = UserPtr::<[i32; 2]>::new(out).write(&[x, y]);
    if shown.is_err() || !keep {
        with_files(|files| {
            files.undo(&[(x, &a), (y, &b)]);
            Ok(())
        })?;
    }
    shown.map_err(fault)
}

/// Turns the result of a write into that of the call, and sends SIGPIPE to the caller if the pipe is broken.
pub fn written(result: Result<usize>) -> Result<u64, Errno> {
    match result {
        Ok(n) => Ok(n as u64),
        Err(e) => {
            if e == FsError::BrokenPipe {
                signal::raise(sig::PIPE);
            }
            Err(e.into())
        }
    }
}

/// Most bytes that one call transfers, as on Linux.
pub const RW_MAX: usize = 0x7fff_f000;
/// Most buffers that readv and similar calls take.
const IOV_MAX: usize = 1024;

/// A copy of `len` bytes of the program, of which the caller has bounded the number and for which it has been admitted.
///
/// # Errors
/// ENOMEM, EFAULT.
pub fn user_bytes(addr: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(len, 0);
    hal::user::copy_in(&mut bytes, addr).map_err(fault)?;
    Ok(bytes)
}

/// The user buffer of a read or write, cut to [`RW_MAX`] bytes.
///
/// # Errors
/// EFAULT if it does not lie in user space.
pub fn user_range(addr: u64, len: u64) -> Result<UserRange, Errno> {
    // As on Linux the check is about the whole length, not the one that is cut.
    let end = addr.checked_add(len).filter(|&end| end <= USER_END);
    if end.is_none() {
        return Err(Errno::EFAULT);
    }
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Ok(UserRange::new(addr, len.min(RW_MAX)))
}

/// The buffers of readv and similar calls, cut to [`RW_MAX`] bytes together.
///
/// # Errors
/// EINVAL for too many or too long ones, EFAULT, ENOMEM.
pub fn user_ranges(addr: u64, count: u64) -> Result<Vec<UserRange>, Errno> {
    let count = usize::try_from(count)
        .ok()
        .filter(|&n| n <= IOV_MAX)
        .ok_or(Errno::EINVAL)?;
    let mut ranges = Vec::new();
    ranges.try_reserve_exact(count).map_err(|_| Errno::ENOMEM)?;
    let mut left = RW_MAX;
    let at = hal::uaccess::UserPtr::<[u64; 2]>::new(addr);
    for i in 0..count {
        let [base, len] = at.add(i).read().map_err(fault)?;
        if len > isize::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        let mut range = user_range(base, len)?;
        range.len = range.len.min(left);
        left -= range.len;
        ranges.push(range);
    }
    Ok(ranges)
}
