//! Calls on descriptors: opening, reading, writing, seeking, duplicating, fcntl(2).

use abi::raw::general as nr;
use hal::uio::IoBuf;
use proc::UserThreadExt;
use task::current::current;
use vfs::dynamic::Dynamic;
use vfs::fdtable::NR_OPEN;
use vfs::file::{File, FileRef, Kind, Whence, o};
use vfs::inode::Node;
use vfs::notify::event::ev;
use vfs::rights::owns;
use vfs::{open, regular};

use super::errno::Errno;
use super::fsutil::{
    Caller, Slot, at, fd_limit, file, install, real_file, user_path, user_range, user_ranges,
    with_files, written,
};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_open, |a| {
        open_at(at::FDCWD, a.get(0), a.uint(1), a.uint(2))
    }),
    (nr::__NR_openat, |a| {
        open_at(a.int(0), a.get(1), a.uint(2), a.uint(3))
    }),
    (nr::__NR_creat, |a| {
        open_at(
            at::FDCWD,
            a.get(0),
            o::CREAT | o::WRONLY | o::TRUNC,
            a.uint(1),
        )
    }),
    (nr::__NR_close, close),
    (nr::__NR_close_range, close_range),
    (nr::__NR_read, read),
    (nr::__NR_write, write),
    (nr::__NR_pread64, pread),
    (nr::__NR_pwrite64, pwrite),
    (nr::__NR_readv, |a| vector(a, false, false)),
    (nr::__NR_writev, |a| vector(a, true, false)),
    (nr::__NR_preadv, |a| vector(a, false, true)),
    (nr::__NR_pwritev, |a| vector(a, true, true)),
    (nr::__NR_preadv2, |a| vector2(a, false)),
    (nr::__NR_pwritev2, |a| vector2(a, true)),
    (nr::__NR_lseek, lseek),
    (nr::__NR_dup, |a| {
        let f = file(a.int(0))?;
        install(f, 0).map_err(Errno::from)
    }),
    (nr::__NR_dup2, dup2),
    (nr::__NR_dup3, dup3),
    (nr::__NR_fcntl, fcntl),
    (nr::__NR_ftruncate, ftruncate),
    (nr::__NR_truncate, truncate),
    (nr::__NR_fallocate, fallocate),
    (nr::__NR_fsync, fsync),
    (nr::__NR_fdatasync, fsync),
    (nr::__NR_syncfs, fsync),
    (nr::__NR_sync, |_| Ok(0)),
    (nr::__NR_sync_file_range, sync_file_range),
    (nr::__NR_fadvise64, fadvise),
    (nr::__NR_readahead, readahead),
];

/// Flags that open and openat interpret; they ignore others, as on Linux, and openat2 refuses them.
pub(super) const OPEN_KNOWN: u32 = o::ACCMODE
    | o::CREAT
    | o::EXCL
    | o::NOCTTY
    | o::TRUNC
    | o::SETFL
    | o::ASYNC
    | o::DSYNC
    | o::SYNC
    | o::LARGEFILE
    | o::DIRECTORY
    | o::NOFOLLOW
    | o::CLOEXEC
    | o::PATH
    | o::TMPFILE;

/// Flags that O_PATH permits; open and openat ignore others, as on Linux, and openat2 refuses them.
pub(super) const PATH_KNOWN: u32 = o::PATH | o::DIRECTORY | o::NOFOLLOW | o::CLOEXEC;

/// open(2) and openat(2).
fn open_at(dirfd: i32, path: u64, flags: u32, perm: u32) -> Result<u64, Errno> {
    let mut flags = flags & OPEN_KNOWN;
    if flags & o::PATH != 0 {
        flags &= PATH_KNOWN;
    } else {
        // As on Linux, a file that a 64-bit program opens has O_LARGEFILE, and F_GETFL shows it.
        flags |= o::LARGEFILE;
    }
    open_with(dirfd, path, flags, perm)
}

/// Opens with flags that are all known. An open that may create or empty a file reserves its descriptor first: without one
/// nothing changes.
pub(super) fn open_with(dirfd: i32, path: u64, flags: u32, perm: u32) -> Result<u64, Errno> {
    if flags & o::PATH == 0 {
        if flags & (o::TMPFILE & !o::DIRECTORY) != 0 {
            // O_TMPFILE contains O_DIRECTORY, so its own bit alone is invalid. So is O_TMPFILE with O_CREAT.
            if flags & o::DIRECTORY == 0 || flags & o::CREAT != 0 {
                return Err(Errno::EINVAL);
            }
        } else if flags & (o::DIRECTORY | o::CREAT) == o::DIRECTORY | o::CREAT {
            return Err(Errno::EINVAL);
        }
    }
    if flags & o::ACCMODE == o::ACCMODE {
        return Err(Errno::EINVAL);
    }
    let path = user_path(path)?;
    let caller = Caller::now();
    let new = caller.new_mode(perm);
    let slot = Slot::new(flags)?;
    let opened = caller.walk(dirfd, &path, |w| {
        open::open(w, &path, flags, new, &|| slot.reserve())
    });
    Ok(slot.fill(opened, flags)?)
}

fn close(a: &mut Args) -> Result<u64, Errno> {
    drop(with_files(|files| files.remove(a.int(0)))?);
    Ok(0)
}

fn close_range(a: &mut Args) -> Result<u64, Errno> {
    const UNSHARE: u32 = 2;
    const CLOEXEC: u32 = 4;
    let (first, last, flags) = (a.uint(0), a.uint(1), a.uint(2));
    if first > last || flags & !(UNSHARE | CLOEXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & UNSHARE != 0 {
        // All threads of a process share one table here: with several threads, the descriptors are closed for all of them.
        if current().process().thread_count() == 1 {
            proc::own_files()?;
        }
    }
    with_files(|files| {
        files.close_range(first as usize, last as usize, flags & CLOEXEC != 0);
        Ok(())
    })?;
    Ok(0)
}

fn read(a: &mut Args) -> Result<u64, Errno> {
    let f = real_file(a.int(0))?;
    if !f.readable() {
        return Err(Errno::EBADF);
    }
    let range = user_range(a.get(1), a.get(2))?;
    Ok(f.read(&mut IoBuf::User(range))? as u64)
}

fn write(a: &mut Args) -> Result<u64, Errno> {
    let f = real_file(a.int(0))?;
    if !f.writable() {
        return Err(Errno::EBADF);
    }
    let range = user_range(a.get(1), a.get(2))?;
    written(f.write(&mut IoBuf::User(range)))
}

/// Checks a file position from a program: EINVAL if it is negative.
pub(super) fn position(raw: u64) -> Result<u64, Errno> {
    if raw > i64::MAX as u64 {
        Err(Errno::EINVAL)
    } else {
        Ok(raw)
    }
}

/// The file of a call that takes a position. ESPIPE, for one without positions, comes before EBADF, for one not open for it.
fn seekable_file(fd: i32) -> Result<FileRef, Errno> {
    let f = real_file(fd)?;
    if f.ops().seekable() {
        Ok(f)
    } else {
        Err(Errno::ESPIPE)
    }
}

fn pread(a: &mut Args) -> Result<u64, Errno> {
    let pos = position(a.get(3))?;
    let f = seekable_file(a.int(0))?;
    if !f.readable() {
        return Err(Errno::EBADF);
    }
    let range = user_range(a.get(1), a.get(2))?;
    Ok(f.read_at(&mut IoBuf::User(range), pos)? as u64)
}

fn pwrite(a: &mut Args) -> Result<u64, Errno> {
    let pos = position(a.get(3))?;
    let f = seekable_file(a.int(0))?;
    if !f.writable() {
        return Err(Errno::EBADF);
    }
    let range = user_range(a.get(1), a.get(2))?;
    written(f.write_at(&mut IoBuf::User(range), pos))
}

fn transfer(f: &File, buf: &mut IoBuf, out: bool, pos: Option<u64>) -> Result<u64, Errno> {
    match (out, pos) {
        (false, None) => Ok(f.read(buf)? as u64),
        (false, Some(pos)) => Ok(f.read_at(buf, pos)? as u64),
        (true, None) => written(f.write(buf)),
        (true, Some(pos)) => written(f.write_at(buf, pos)),
    }
}

fn vector(a: &mut Args, out: bool, at: bool) -> Result<u64, Errno> {
    let (f, pos) = if at {
        let pos = position(a.get(3))?;
        (seekable_file(a.int(0))?, Some(pos))
    } else {
        (real_file(a.int(0))?, None)
    };
    let ranges = user_ranges(a.get(1), a.get(2))?;
    transfer(&f, &mut IoBuf::vector(ranges), out, pos)
}

/// preadv2 and pwritev2. Position -1 stands for the file's own position. RWF_APPEND is obeyed by pwritev2; RWF_HIPRI,
/// RWF_DSYNC and RWF_SYNC are accepted and change nothing, because files are in memory.
fn vector2(a: &mut Args, out: bool) -> Result<u64, Errno> {
    const HIPRI: u32 = 1;
    const DSYNC: u32 = 2;
    const SYNC: u32 = 4;
    const APPEND: u32 = 16;
    let append = out && a.uint(5) & APPEND != 0;
    if a.uint(5) & !(HIPRI | DSYNC | SYNC | APPEND) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let (f, pos) = if a.get(3) == u64::MAX {
        (real_file(a.int(0))?, None)
    } else {
        let pos = position(a.get(3))?;
        (seekable_file(a.int(0))?, Some(pos))
    };
    let mut buf = IoBuf::vector(user_ranges(a.get(1), a.get(2))?);
    match pos {
        None if append => written(f.append(&mut buf)),
        Some(pos) if append => written(f.append_at(&mut buf, pos)),
        _ => transfer(&f, &mut buf, out, pos),
    }
}

fn lseek(a: &mut Args) -> Result<u64, Errno> {
    let f = real_file(a.int(0))?;
    let whence = match a.uint(2) {
        0 => Whence::Set,
        1 => Whence::Cur,
        2 => Whence::End,
        3 => Whence::Data,
        4 => Whence::Hole,
        _ => return Err(Errno::EINVAL),
    };
    Ok(f.seek(a.get(1) as i64, whence)?)
}

fn dup2(a: &mut Args) -> Result<u64, Errno> {
    let (from, to) = (a.int(0), a.int(1));
    if from == to {
        file(from)?;
        return Ok(to as u64);
    }
    Ok(with_files(|files| files.dup_to(from, to, false, fd_limit()))? as u64)
}

fn dup3(a: &mut Args) -> Result<u64, Errno> {
    let (from, to, flags) = (a.int(0), a.int(1), a.uint(2));
    if from == to || flags & !o::CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(with_files(|files| files.dup_to(from, to, flags != 0, fd_limit()))? as u64)
}

/// A command of fcntl(2).
const F_NOTIFY: u32 = 1026;

/// fcntl(2). A descriptor with O_PATH knows only the commands about descriptors, and F_GETFL; others fail with EBADF.
fn fcntl(a: &mut Args) -> Result<u64, Errno> {
    let (fd, cmd, arg) = (a.int(0), a.uint(1), a.get(2));
    let f = file(fd)?;
    match cmd {
        nr::F_DUPFD | nr::F_DUPFD_CLOEXEC => {
            let limit = fd_limit().min(NR_OPEN);
            let min = arg as u32 as usize;
            if min as u64 >= limit {
                return Err(Errno::EINVAL);
            }
            let cloexec = cmd == nr::F_DUPFD_CLOEXEC;
            return Ok(with_files(|files| files.add(f, cloexec, min, limit))? as u64);
        }
        nr::F_GETFD => return Ok(u64::from(with_files(|files| files.cloexec(fd))?)),
        nr::F_SETFD => {
            with_files(|files| files.set_cloexec(fd, arg & u64::from(nr::FD_CLOEXEC) != 0))?;
            return Ok(0);
        }
        nr::F_GETFL => return Ok(u64::from(f.flags())),
        _ if f.is_place() => return Err(Errno::EBADF),
        _ => {}
    }
    match cmd {
        nr::F_SETFL => {
            let quieter = arg as u32 & !f.flags() & o::NOATIME != 0;
            if quieter
                && let Some(inode) = f.inode()
                && !owns(&current().cred(), inode)
            {
                return Err(Errno::EPERM);
            }
            ipc::owner::set_async(&f, fd, arg as u32 & o::ASYNC != 0)?;
            f.set_flags(arg as u32);
            Ok(0)
        }
        nr::F_GETPIPE_SZ | nr::F_SETPIPE_SZ => {
            let Kind::Pipe(end) = &f.kind else {
                return Err(Errno::EBADF);
            };
            if cmd == nr::F_GETPIPE_SZ {
                return Ok(end.pipe().size() as u64);
            }
            Ok(end.pipe().resize(arg as u32 as usize)? as u64)
        }
        nr::F_GETLK
        | nr::F_SETLK
        | nr::F_SETLKW
        | nr::F_OFD_GETLK
        | nr::F_OFD_SETLK
        | nr::F_OFD_SETLKW => super::lock::control(fd, &f, cmd, arg),
        nr::F_ADD_SEALS | nr::F_GET_SEALS => super::memfd::control(&f, cmd, arg),
        F_NOTIFY => super::owner::notify(&f, fd, arg as u32),
        _ => super::owner::control(&f, cmd, arg),
    }
}

fn ftruncate(a: &mut Args) -> Result<u64, Errno> {
    let len = position(a.get(1))?;
    let f = real_file(a.int(0))?;
    if !f.writable() {
        return Err(Errno::EINVAL);
    }
    let inode = f.inode().ok_or(Errno::EINVAL)?;
    match &inode.node {
        Node::File(_) => regular::truncate(inode, len, true)?,
        // What such a file says has no length.
        Node::Dynamic(Dynamic::File(_)) => {}
        Node::Dir(_) => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
    f.tell(ev::MODIFY);
    Ok(0)
}

fn truncate(a: &mut Args) -> Result<u64, Errno> {
    let len = position(a.get(1))?;
    let path = user_path(a.get(0))?;
    Caller::now().walk(at::FDCWD, &path, |w| open::truncate(w, &path, len))?;
    Ok(0)
}

/// fallocate(2). The errors of the arguments come first, in Linux's order: EBADF, EINVAL, EOPNOTSUPP, EBADF for a file not open
/// for writing, then those of its kind.
fn fallocate(a: &mut Args) -> Result<u64, Errno> {
    let (how, offset, len) = (a.uint(1), a.get(2) as i64, a.get(3) as i64);
    let f = real_file(a.int(0))?;
    if offset < 0 || len <= 0 {
        return Err(Errno::EINVAL);
    }
    if !regular::fallocate::is_meaningful(how) {
        return Err(Errno::EOPNOTSUPP);
    }
    if !f.writable() {
        return Err(Errno::EBADF);
    }
    let Some(inode) = f.inode() else {
        let is_pipe = matches!(f.kind, Kind::Pipe(_));
        return Err(if is_pipe {
            Errno::ESPIPE
        } else {
            Errno::ENODEV
        });
    };
    match &inode.node {
        Node::File(_) => {
            regular::allocate(inode, how, offset as u64, len as u64)?;
            f.tell(ev::MODIFY);
            Ok(0)
        }
        Node::Fifo(_) => Err(Errno::ESPIPE),
        Node::Dir(_) => Err(Errno::EISDIR),
        _ => Err(Errno::ENODEV),
    }
}

/// fsync, fdatasync and syncfs: files live in memory alone, so there is nothing to write out.
fn fsync(a: &mut Args) -> Result<u64, Errno> {
    let f = real_file(a.int(0))?;
    match f.kind {
        Kind::Regular(_) | Kind::Dir(_) => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

fn sync_file_range(a: &mut Args) -> Result<u64, Errno> {
    let (offset, len) = (a.get(1) as i64, a.get(2) as i64);
    if offset < 0 || len < 0 || offset.checked_add(len).is_none() || a.uint(3) & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    match real_file(a.int(0))?.kind {
        Kind::Regular(_) | Kind::Dir(_) => Ok(0),
        _ => Err(Errno::ESPIPE),
    }
}

fn fadvise(a: &mut Args) -> Result<u64, Errno> {
    let f = real_file(a.int(0))?;
    if let Kind::Pipe(_) = f.kind {
        return Err(Errno::ESPIPE);
    }
    if (a.get(2) as i64) < 0 || a.uint(3) > 5 {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

fn readahead(a: &mut Args) -> Result<u64, Errno> {
    let f = real_file(a.int(0))?;
    if !f.readable() {
        return Err(Errno::EBADF);
    }
    match f.kind {
        Kind::Regular(_) => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}
