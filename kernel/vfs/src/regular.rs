//! Reading and writing of regular files in memory. The file's object is its page cache.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ops::Range;

use hal::uio::IoBuf;
use mem::vm;
use task::current::current;
use vm::{Object, ObjectRef};

use super::dentry::Dentry;
use super::error::{FsError, Result};
use super::file::{File, FileOps};
use super::inode::{Inode, MAX_SIZE, Use};
use super::opened::Regular;
use super::seals;
use super::setattr::drop_privileges;
use super::upcalls;

/// The tag by which an object refers to its file.
pub struct FileTag {
    /// The dentry through which the file was first tagged, for /proc/PID/maps.
    pub dentry: Weak<Dentry>,
    /// The inode, which may have lost that name since.
    pub inode: Weak<Inode>,
}

impl FileTag {
    /// The tag for the object of the file at `dentry`.
    pub fn of(dentry: &Arc<Dentry>) -> FileTag {
        FileTag {
            dentry: Arc::downgrade(dentry),
            inode: Arc::downgrade(&dentry.inode),
        }
    }
}

impl Regular {
    /// The pages, tagged with the file.
    pub fn tagged_pages(&self, file: &File) -> Result<&ObjectRef> {
        let object = self.pages()?;
        if object.tag().is_none()
            && let Some(path) = &file.path
        {
            object.set_tag(Arc::new(FileTag::of(&path.dentry)));
        }
        Ok(object)
    }

    /// Writes at `pos`. The caller holds [`Inode::lock`]. Fails as [`writable_from`], [`seals::writable`] and [`copy_in`] do; after an error of the
    /// copy, times and set-ID bits have changed.
    fn write_locked(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        buf.limit(writable_from(pos, buf.remaining())?);
        buf.limit(seals::writable(&self.inode, pos, buf.remaining())?);
        drop_privileges(&self.inode);
        // Before anything is copied: an attempt that finds nothing to copy counts, too.
        self.inode.touch_mtime();
        let n = copy_in(self.pages()?, buf, pos)?;
        let end = pos + n as u64;
        if n > 0 && end > self.inode.size() {
            self.inode.set_size_locked(end);
        }
        Ok(n)
    }
}

/// Calls `f` with the pages of a file, which is open for writing meanwhile. Sleeps; fails as [`Inode::open_data`] does.
fn with_pages<R>(inode: &Inode, f: impl FnOnce(&ObjectRef) -> Result<R>) -> Result<R> {
    let object = inode.open_data(Use::Write)?;
    let result = f(&object);
    inode.close_data(object, Use::Write);
    result
}

/// Copies from the pages to `buf`, up to the end of the file. Stops where the caller is killed, for a read may be as large as
/// memory. Fails, with `Fault` or `Interrupted`, only if nothing was copied. Sleeps for pages of the caller.
fn copy_out(object: &ObjectRef, buf: &mut IoBuf, pos: u64) -> Result<usize> {
    let mut done = 0;
    loop {
        let mut room = SLICE as usize;
        let n = object.read(vm(), pos + done as u64, &mut |bytes| {
            let n = buf.put(&bytes[..bytes.len().min(room)]).unwrap_or(0);
            room -= n;
            n
        });
        done += n as usize;
        if buf.remaining() == 0 || pos + done as u64 >= object.size() {
            return Ok(done);
        }
        let next = if current().kill_pending() {
            Err(FsError::Interrupted)
        } else if room == 0 {
            Ok(())
        } else {
            // The copy stopped at a page of the caller's that is not there.
            buf.fault_in(true).map_err(FsError::from)
        };
        if let Err(e) = next {
            return so_far(done, e);
        }
    }
}

/// The result of a copy that ended early after `done` bytes.
fn so_far(done: usize, error: impl Into<FsError>) -> Result<usize> {
    if done > 0 {
        Ok(done)
    } else {
        Err(error.into())
    }
}

/// The end of the part of `at..end` that is copied or made before the next look for a kill.
fn slice_end(at: u64, end: u64) -> u64 {
    end.min((at / SLICE + 1) * SLICE)
}

/// Copies from `buf` to the pages, which are allocated as needed. The caller holds [`Inode::lock`]. Stops where the caller is
/// killed, for a write may be as large as memory. Fails, with `NoSpace`, `Fault` or `Interrupted`, only if nothing was copied.
fn copy_in(object: &ObjectRef, buf: &mut IoBuf, pos: u64) -> Result<usize> {
    let mut done = 0;
    while buf.remaining() > 0 {
        if current().kill_pending() {
            return so_far(done, FsError::Interrupted);
        }
        let at = pos + done as u64;
        let len = slice_end(at, at + buf.remaining() as u64) - at;
        let step = object.write(vm(), at, len, &mut |bytes| buf.take(bytes).unwrap_or(0));
        match step {
            Ok(n) => {
                done += n as usize;
                if n == len {
                    continue;
                }
            }
            Err(_) if done == 0 => return Err(FsError::NoSpace),
            Err(_) => break,
        }
        // Short because of a page of the caller's that is not there; or for want of space, which the next attempt tells.
        if let Err(e) = buf.fault_in(false) {
            // A page that was made for bytes that cannot be had goes again.
            object.forget_blank(vm(), pos + done as u64);
            return so_far(done, e);
        }
    }
    Ok(done)
}

/// How many of `len` bytes the caller may write at `pos`, given the file-size limit of its process.
///
/// A write that begins at or beyond the limit raises SIGXFSZ and fails with `TooBig`; one at or beyond [`MAX_SIZE`] only fails.
fn writable_from(pos: u64, len: usize) -> Result<usize> {
    let limit = (upcalls::get().file_size_limit)();
    if pos >= limit && len > 0 {
        (upcalls::get().file_too_large)();
        return Err(FsError::TooBig);
    }
    if pos >= MAX_SIZE {
        return Err(FsError::TooBig);
    }
    let room = limit.min(MAX_SIZE) - pos;
    Ok(len.min(usize::try_from(room).unwrap_or(usize::MAX)))
}

impl FileOps for Regular {
    fn pollable(&self) -> bool {
        false
    }

    fn read(&self, file: &File, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        let nothing = buf.remaining() == 0;
        // An empty vector is no access; all else is, at the end of the file, too: as in Linux.
        if nothing && matches!(buf, IoBuf::Vector { .. }) {
            return Ok(0);
        }
        let size = self.inode.size();
        let result = if pos >= size || nothing {
            Ok(0)
        } else {
            buf.limit(usize::try_from(size - pos).unwrap_or(usize::MAX));
            copy_out(self.pages()?, buf, pos)
        };
        file.accessed();
        result
    }

    fn write(&self, _: &File, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        if buf.remaining() == 0 {
            return Ok(0);
        }
        let _lock = self.inode.lock.lock();
        self.write_locked(buf, pos)
    }

    fn append(&self, _: &File, buf: &mut IoBuf, pos: u64) -> Result<(usize, u64)> {
        if buf.remaining() == 0 {
            return Ok((0, pos));
        }
        let _lock = self.inode.lock.lock();
        let end = self.inode.size();
        let n = self.write_locked(buf, end)?;
        Ok((n, end + n as u64))
    }

    fn end(&self, _: &File) -> Option<u64> {
        Some(self.inode.size())
    }

    fn next_run(&self, from: u64, end: u64, data: bool) -> Result<u64> {
        let (first, last) = ((from >> 12) as u32, ((end - 1) >> 12) as u32);
        let object = self.pages()?;
        if data {
            // No more of it: as behind the end.
            let index = object
                .next_data(vm(), first, last)
                .ok_or(FsError::NoDevAddr)?;
            return Ok(from.max(u64::from(index) << 12));
        }
        let hole = object.next_hole(vm(), first, last);
        Ok(hole.map_or(end, |index| from.max(u64::from(index) << 12)))
    }

    fn object(&self, file: &File, _: Range<u64>) -> Result<ObjectRef> {
        self.tagged_pages(file).cloned()
    }
}

/// Sets the size of a regular file, in bytes. `stamps` says whether the times of modification and change are set even if the
/// size stays the same and there are no pages; truncate(2) does not set them then. Takes [`Inode::lock`]. Sleeps.
///
/// # Errors
/// `TooBig` beyond [`MAX_SIZE`], or, with SIGXFSZ, for a file that grows beyond the process's limit; `Perm` where a seal forbids it;
/// those of [`Inode::open_data`] for a write. Nothing has changed.
pub fn truncate(inode: &Inode, size: u64, stamps: bool) -> Result<()> {
    if size > MAX_SIZE {
        return Err(FsError::TooBig);
    }
    let old = inode.size();
    if size > old {
        let limit = (upcalls::get().file_size_limit)();
        if size > limit {
            (upcalls::get().file_too_large)();
            return Err(FsError::TooBig);
        }
    }
    with_pages(inode, |object| {
        let _lock = inode.lock.lock();
        seals::may_resize(inode, size)?;
        let old = inode.size();
        let changes = stamps || size != old || object.next_resident(0, u32::MAX).is_some();
        // A smaller size is seen before the pages go, a larger one once what lies there can be accessed.
        if size > old {
            object.truncate(vm(), size);
            inode.set_size_locked(size);
        } else {
            inode.set_size_locked(size);
            object.truncate(vm(), size);
        }
        drop_privileges(inode);
        if changes {
            inode.touch_mtime();
        }
        Ok(())
    })
}

/// A buffer of [`BUFFER`] bytes, through which a caller copies.
pub fn page_buffer() -> Result<Vec<u8>> {
    let mut page = Vec::new();
    page.try_reserve_exact(BUFFER)
        .map_err(|_| FsError::NoMemory)?;
    page.resize(BUFFER, 0);
    Ok(page)
}

/// Bytes of [`page_buffer`].
pub const BUFFER: usize = 4096;

/// Flags of fallocate(2); the names are those of fallocate(2).
#[expect(missing_docs, reason = "Linux's names: flags of fallocate(2)")]
pub mod fallocate {
    pub const KEEP_SIZE: u32 = 1;
    pub const PUNCH_HOLE: u32 = 2;
    pub const ZERO_RANGE: u32 = 16;
    /// All flags that Linux has.
    const ALL: u32 = 0x7f & !4;

    /// Whether the combination of flags is valid, for any kind of file.
    pub fn is_meaningful(how: u32) -> bool {
        let punches = how & PUNCH_HOLE != 0;
        how & !ALL == 0 && (!punches || how & KEEP_SIZE != 0 && how & ZERO_RANGE == 0)
    }
}

/// Bytes that are copied or made between two looks for a kill: a multiple of a page.
const SLICE: u64 = 1 << 20;

/// Makes the pages of `from..end`; the size grows, if it is to, when all are there. Stops where the caller is killed, for
/// a range may be as large as memory. If it fails, the pages that it has made go, but for those that hold data by then:
/// a mapping may have been stored to meanwhile.
fn make_pages(object: &Object, from: u64, end: u64, grow: bool) -> Result<()> {
    let mut at = from;
    while at < end {
        let next = slice_end(at, end);
        let stopped = if current().kill_pending() {
            Some((at, FsError::Interrupted))
        } else {
            let made = object.allocate(vm(), at, next - at, grow && next == end);
            made.err().map(|at| (at, FsError::NoSpace))
        };
        if let Some((at, why)) = stopped {
            object.forget_unwritten(vm(), from, at);
            return Err(why);
        }
        at = next;
    }
    Ok(())
}

/// Allocates or frees the pages of `len` bytes at `offset` of a regular file, as fallocate(2) with the flags `how` does. Takes
/// [`Inode::lock`]. Sleeps.
///
/// # Errors
/// `TooBig` beyond [`MAX_SIZE`], or, with SIGXFSZ, beyond the process's limit; `NotSupported`; `Perm` where a seal forbids it; those of [`Inode::open_data`] for
/// a write. `NoSpace`, or `Interrupted` if the caller is killed: then what `ZERO_RANGE` has zeroed stays so, and times and set-ID
/// bits have changed for it.
pub fn allocate(inode: &Inode, how: u32, offset: u64, len: u64) -> Result<()> {
    use fallocate::{KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE};
    let end = offset
        .checked_add(len)
        .filter(|&e| e <= MAX_SIZE)
        .ok_or(FsError::TooBig)?;
    let keep = how & KEEP_SIZE != 0;
    if how & PUNCH_HOLE != 0 && !keep || how & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 {
        return Err(FsError::NotSupported);
    }
    with_pages(inode, |object| {
        let _lock = inode.lock.lock();
        seals::may_allocate(inode, end, how & (PUNCH_HOLE | ZERO_RANGE) != 0)?;
        // As tmpfs in Linux: pages behind the end count, whether or not the size is to grow.
        let makes_more = how & PUNCH_HOLE == 0 && end > inode.size();
        if makes_more && end > (upcalls::get().file_size_limit)() {
            (upcalls::get().file_too_large)();
            return Err(FsError::TooBig);
        }
        if how & (PUNCH_HOLE | ZERO_RANGE) != 0 {
            object.punch(vm(), offset, len);
        }
        let made = if how & PUNCH_HOLE == 0 {
            make_pages(object, offset, end, !keep)
        } else {
            Ok(())
        };
        if made.is_ok() && !keep && end > inode.size() {
            inode.set_size_locked(end);
        }
        // What has been zeroed is a change, whether or not its pages could be made again.
        if made.is_ok() || how & ZERO_RANGE != 0 {
            drop_privileges(inode);
            inode.touch_mtime();
        }
        made
    })
}

/// Calls `free`, which frees pages of the file of `object` through a mapping, unless a seal forbids writes; and clears the
/// set-user-ID and set-group-ID bits of the file. Returns whether it did. Takes [`Inode::lock`], under which seals change. Sleeps.
pub fn free_by_mapping(object: &Object, free: &mut dyn FnMut()) -> bool {
    let tag = object.tag().and_then(|tag| tag.downcast_ref::<FileTag>());
    let Some(inode) = tag.and_then(|tag| tag.inode.upgrade()) else {
        free();
        return true;
    };
    let _lock = inode.lock.lock();
    if inode.seals() & seals::ANY_WRITE != 0 {
        return false;
    }
    free();
    drop_privileges(&inode);
    true
}

/// Writes bytes of the kernel at `pos` of a regular file that no program has open yet (of the initramfs). Fails with `NoSpace`
/// if not all fit; those that do may have been written. `Invalid` if this is no regular file.
pub fn write_kernel(inode: &Inode, pos: u64, bytes: &[u8]) -> Result<()> {
    with_pages(inode, |object| {
        let _lock = inode.lock.lock();
        let mut buf = IoBuf::Drain(bytes);
        let n = copy_in(object, &mut buf, pos)?;
        inode.set_size_locked(inode.size().max(pos + n as u64));
        if n < bytes.len() {
            Err(FsError::NoSpace)
        } else {
            Ok(())
        }
    })
}
