//! Calls that move bytes between two descriptors: sendfile, copy_file_range, splice, tee, vmsplice.

use alloc::sync::Arc;

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use proc::signal::{self, sig};
use task::current::current;
use vfs::error::FsError;
use vfs::file::{File, FileRef, Kind, Whence, o};
use vfs::notify::event::ev;
use vfs::pipe::PipeEnd;
use vfs::{pipe, regular};

use super::errno::Errno;
use super::file::position;
use super::fsutil::{RW_MAX, fault, real_file, user_ranges, written};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_sendfile, sendfile),
    (nr::__NR_copy_file_range, copy_file_range),
    (nr::__NR_splice, splice),
    (nr::__NR_tee, tee),
    (nr::__NR_vmsplice, vmsplice),
];

/// Most bytes that are copied from file to file in one step.
const STEP: usize = regular::BUFFER;

/// Copies up to `count` bytes from one file to another; returns the number of bytes. `from` and `to` are positions,
/// which the call advances; `None` stands for the file's own position. It ends early at the end of the input, at a signal, and
/// at an error, which it returns only if nothing has been copied. May sleep.
fn copy(
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
        let got = match input.read_untold(&mut buf, *from) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        };
        let mut buf = IoBuf::Drain(&page[..got]);
        let put = match output.write_untold(&mut buf, *to, false) {
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
    if done > 0 {
        input.tell(ev::ACCESS);
        output.tell(ev::MODIFY);
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
    let count = a.size(3).min(RW_MAX);
    let moved = written(copy(&input, &mut from, &output, &mut to, count))?;
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
    let (mut from, mut to) = (given(from_at)?, given(to_at)?);
    for pos in [from, to].into_iter().flatten() {
        pos.checked_add(a.get(4)).ok_or(Errno::EOVERFLOW)?;
    }
    let mut count = a.size(4).min(RW_MAX);
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
    let moved = written(copy(&input, &mut from, &output, &mut to, count))?;
    if let Some(pos) = from {
        from_at.write(&pos).map_err(fault)?;
    }
    if let Some(pos) = to {
        to_at.write(&pos).map_err(fault)?;
    }
    Ok(moved)
}

/// Flags of splice, tee and vmsplice. SPLICE_F_MOVE, SPLICE_F_MORE and SPLICE_F_GIFT are hints: bytes are always copied.
const NONBLOCK: u32 = 2;
const KNOWN: u32 = 15;

fn pipe_end(file: &File) -> Option<&PipeEnd> {
    match &file.kind {
        Kind::Pipe(end) => Some(end),
        _ => None,
    }
}

/// The two files of a call, open for reading and for writing.
///
/// # Errors
/// EBADF.
fn two_files(input: i32, output: i32) -> Result<(FileRef, FileRef), Errno> {
    let (input, output) = (real_file(input)?, real_file(output)?);
    if input.readable() && output.writable() {
        Ok((input, output))
    } else {
        Err(Errno::EBADF)
    }
}

/// A position that a call is given, or none.
///
/// # Errors
/// EFAULT, EINVAL.
fn given(at: UserPtr<u64>) -> Result<Option<u64>, Errno> {
    if at.is_null() {
        Ok(None)
    } else {
        Ok(Some(position(at.read().map_err(fault)?)?))
    }
}

/// splice(2). If a new position cannot be written it fails with EFAULT, although the bytes have been moved.
fn splice(a: &mut Args) -> Result<u64, Errno> {
    let (from_at, to_at) = (UserPtr::<u64>::new(a.get(1)), UserPtr::<u64>::new(a.get(3)));
    let (len, flags) = (a.size(4).min(RW_MAX), a.uint(5));
    if len == 0 {
        return Ok(0);
    }
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let (input, output) = two_files(a.int(0), a.int(2))?;
    let (from, to) = (pipe_end(&input), pipe_end(&output));
    if from.is_some() && !from_at.is_null() || to.is_some() && !to_at.is_null() {
        return Err(Errno::ESPIPE);
    }
    let waits = |pipe: &File| flags & NONBLOCK == 0 && !pipe.nonblocking();
    match (from, to) {
        (Some(from), Some(to)) => {
            let wait = waits(&input) && waits(&output);
            written(pipe::splice::between(from.pipe(), to.pipe(), len, wait))
        }
        (Some(from), None) => {
            let pos = place(&output, to_at)?;
            if output.flags() & o::APPEND != 0 {
                return Err(Errno::EINVAL);
            }
            let n = written(pipe::splice::to_file(
                from.pipe(),
                &output,
                pos,
                len,
                waits(&input),
            ))?;
            advance(to_at, pos, n)
        }
        (None, Some(to)) => {
            let pos = place(&input, from_at)?;
            if matches!(input.kind, Kind::Dir(_)) {
                return Err(Errno::EINVAL);
            }
            let n = written(pipe::splice::from_file(
                &input,
                pos,
                to.pipe(),
                len,
                waits(&output),
            ))?;
            advance(from_at, pos, n)
        }
        (None, None) => Err(Errno::EINVAL),
    }
}

/// The position in `file` that a splice is given.
///
/// # Errors
/// EFAULT; EINVAL, also for a file without positions.
fn place(file: &File, at: UserPtr<u64>) -> Result<Option<u64>, Errno> {
    if !at.is_null() && !file.ops().seekable() {
        return Err(Errno::EINVAL);
    }
    given(at)
}

/// Writes the position behind the bytes that were moved, and returns their number.
fn advance(at: UserPtr<u64>, pos: Option<u64>, moved: u64) -> Result<u64, Errno> {
    if let Some(pos) = pos {
        at.write(&(pos + moved)).map_err(fault)?;
    }
    Ok(moved)
}

fn tee(a: &mut Args) -> Result<u64, Errno> {
    let (len, flags) = (a.size(2).min(RW_MAX), a.uint(3));
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let (input, output) = two_files(a.int(0), a.int(1))?;
    let (Some(from), Some(to)) = (pipe_end(&input), pipe_end(&output)) else {
        return Err(Errno::EINVAL);
    };
    let wait = flags & NONBLOCK == 0 && !input.nonblocking() && !output.nonblocking();
    written(pipe::splice::duplicate(from.pipe(), to.pipe(), len, wait))
}

/// vmsplice(2): a copy in either direction. EBADF for what is no pipe.
fn vmsplice(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.uint(3);
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let file = real_file(a.int(0))?;
    let mut buf = IoBuf::vector(user_ranges(a.get(1), a.get(2))?);
    let end = pipe_end(&file).ok_or(Errno::EBADF)?;
    if buf.remaining() == 0 {
        return Ok(0);
    }
    let wait = flags & NONBLOCK == 0 && !file.nonblocking();
    if file.writable() {
        written(pipe::splice::fill(end.pipe(), &mut buf, wait))
    } else {
        written(pipe::splice::drain(end.pipe(), &mut buf, wait))
    }
}
