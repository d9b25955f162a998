//! Calls on descriptors: opening, reading, writing, seeking, duplicating, fcntl(2).

use alloc::sync::Arc;

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use proc::UserThreadExt;
use proc::signal::{self, sig};
use task::current::current;
use vfs::error::FsError;
use vfs::fdtable::NR_OPEN;
use vfs::file::{File, FileRef, Kind, Whence, o};
use vfs::inode::Node;
use vfs::rights::owns;
use vfs::{open, regular};

use super::errno::Errno;
use super::fsutil::{
    Caller, Slot, at, fault, fd_limit, file, install, real_file, user_path, user_range,
    user_ranges, with_files, written,
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
    (nr::__NR_sendfile, sendfile),
    (nr::__NR_copy_file_range, copy_file_range),
];

/// Flags that open and openat interpret; they ignore others, as on Linux, and openat2 refuses them.
pub(super) const OPEN_KNOWN: u32 = o::ACCMODE
    | o::CREAT
    | o::EXCL
    | o::NOCTTY
    | o::TRUNC
    | o::SETFL
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
fn position(raw: u64) -> Result<u64, Errno> {
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
        _ => Err(Errno::EINVAL),
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
        Node::Dir(_) => return Err(Errno::EISDIR),
        _ => return Err(Errno::EINVAL),
    }
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

/// Most bytes that are copied from file to file in one step.
const STEP: usize = regular::BUFFER;

/// Copies up to `count` bytes from one file to another; returns the number of bytes. `from` and `to` are positions,
/// which the call advances; `None` stands for the file's own position. It ends early at the end of the input, at a signal, and
/// at an error, which it returns only if nothing has been copied. May sleep.
fn splice(
    input: &File,
    from: &mut Option<u64>,
    output: &File,
    to: &mut Option<u64>,
    count: usize,
) -> Result<usize, FsError> {
    let mut page = regular::page_buffer()?;
    let mut done = 0;
    while done < count {
        let want = STEP.min(count - done);
        let mut buf = IoBuf::Fill(&mut page[..want]);
        let got = match *from {
            Some(pos) => input.read_at(&mut buf, pos),
            None => input.read(&mut buf),
        };
        let got = match got {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        };
        let mut buf = IoBuf::Drain(&page[..got]);
        let put = match *to {
            Some(pos) => output.write_at(&mut buf, pos),
            None => output.write(&mut buf),
        };
        let put = match put {
            Ok(n) => n,
            Err(e) => {
                unread(input, from.is_none(), got);
                if done == 0 {
                    return Err(e);
                }
                // The call returns the bytes that went through, so no later code raises SIGPIPE.
                if e == FsError::BrokenPipe {
                    signal::raise(sig::PIPE);
                }
                break;
            }
        };
        done += put;
        for pos in [&mut *from, &mut *to].into_iter().flatten() {
            *pos += put as u64;
        }
        if put < got {
            unread(input, from.is_none(), got - put);
            break;
        }
        if current().signal_pending() {
            break;
        }
    }
    Ok(done)
}

/// Moves the file's own position back by `bytes`, which were read and not written, if the call uses it (`own`).
fn unread(input: &File, own: bool, bytes: usize) {
    if own {
        // The input is seekable: sendfile and copy_file_range refuse others.
        let _ = input.seek(-(bytes as i64), Whence::Cur);
    }
}

/// sendfile(2), from a file that can seek to any that is not open with O_APPEND. If the new position cannot be written it fails
/// with EFAULT, although the bytes have been copied.
fn sendfile(a: &mut Args) -> Result<u64, Errno> {
    let output = real_file(a.int(0))?;
    let input = real_file(a.int(1))?;
    if !input.readable() || !output.writable() {
        return Err(Errno::EBADF);
    }
    if a.get(2) != 0 && !input.ops().seekable() {
        return Err(Errno::ESPIPE);
    }
    let mappable = matches!(
        input.kind,
        Kind::Regular(_) | Kind::Other(_) | Kind::Device(_)
    );
    if !mappable || !input.ops().seekable() || output.flags() & o::APPEND != 0 {
        return Err(Errno::EINVAL);
    }
    let at = UserPtr::<u64>::new(a.get(2));
    // Both positions are read before the transfer and set after it: input and output may be the same open file, and
    // then each end still counts its own.
    let own = |f: &File| f.with_pos(|pos| *pos);
    let mut from = Some(if at.is_null() {
        own(&input)
    } else {
        position(at.read().map_err(fault)?)?
    });
    let mut to = output.ops().seekable().then(|| own(&output));
    let count = a.size(3).min(super::fsutil::RW_MAX);
    let moved = written(splice(&input, &mut from, &output, &mut to, count))?;
    if moved > 0
        && let Some(to) = to
    {
        output.with_pos(|pos| *pos = to);
    }
    if let Some(from) = from {
        if !at.is_null() {
            at.write(&from).map_err(fault)?;
        } else if moved > 0 {
            input.with_pos(|pos| *pos = from);
        }
    }
    Ok(moved)
}

/// copy_file_range(2), between regular files. EINVAL if the two ranges of one file overlap. If a new position cannot be written
/// it fails with EFAULT, although the bytes have been copied.
fn copy_file_range(a: &mut Args) -> Result<u64, Errno> {
    let (input, output) = (real_file(a.int(0))?, real_file(a.int(2))?);
    if a.uint(5) != 0 {
        return Err(Errno::EINVAL);
    }
    if matches!(input.kind, Kind::Dir(_)) || matches!(output.kind, Kind::Dir(_)) {
        return Err(Errno::EISDIR);
    }
    if !input.readable() || !output.writable() || output.flags() & o::APPEND != 0 {
        return Err(Errno::EBADF);
    }
    let (Kind::Regular(_), Kind::Regular(_)) = (&input.kind, &output.kind) else {
        return Err(Errno::EINVAL);
    };
    let (from_at, to_at) = (UserPtr::<u64>::new(a.get(1)), UserPtr::<u64>::new(a.get(3)));
    let given = |p: UserPtr<u64>| -> Result<Option<u64>, Errno> {
        if p.is_null() {
            Ok(None)
        } else {
            Ok(Some(position(p.read().map_err(fault)?)?))
        }
    };
    let (mut from, mut to) = (given(from_at)?, given(to_at)?);
    for pos in [from, to].into_iter().flatten() {
        pos.checked_add(a.get(4)).ok_or(Errno::EOVERFLOW)?;
    }
    let mut count = a.size(4).min(super::fsutil::RW_MAX);
    if let (Some(x), Some(y)) = (input.inode(), output.inode())
        && Arc::ptr_eq(x, y)
    {
        let x = from.unwrap_or_else(|| input.with_pos(|p| *p));
        let y = to.unwrap_or_else(|| output.with_pos(|p| *p));
        // Bytes beyond the end of the file are not copied, so they do not count as overlapping.
        let rest = input.ops().end(&input).unwrap_or(0).saturating_sub(x);
        count = count.min(usize::try_from(rest).unwrap_or(usize::MAX));
        if x.abs_diff(y) < count as u64 {
            return Err(Errno::EINVAL);
        }
    }
    let moved = written(splice(&input, &mut from, &output, &mut to, count))?;
    if let Some(pos) = from {
        from_at.write(&pos).map_err(fault)?;
    }
    if let Some(pos) = to {
        to_at.write(&pos).map_err(fault)?;
    }
    Ok(moved)
}
