//! Open files.
//!
//! A [`File`] is what a descriptor refers to: a position, flags, and operations. Files are shared (by fork, dup and sendmsg),
//! so references to them are counted, by [`FileRef`]; references to the mount that a file is on are counted per CPU.

mod flags;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;
use core::ptr;
use ksync::atomic::{AtomicBool, AtomicU32, Ordering};

use cred::MemoryCharge;
use hal::uio::IoBuf;
use ksync::{EpochRc, Mutex, Once};
use mem::epoch;
use task::current::current;
use task::wait::Waiter;
use vm::ObjectRef;

use super::anon_inode::AnonInode;
use super::attr::Attr;
use super::dynamic::Text;
use super::error::{FsError, Result};
use super::inode::Inode;
use super::kept::Kept;
use super::lock::{self, LockSlot};
use super::notify::event::ev;
use super::notify::told;
use super::opened::{DirFile, Regular};
use super::pipe::end::PipeEnd;
use super::place::{Path, flag};
use super::poll::PollMask;
use super::watch::{Signals, Watchers};

pub use flags::o;

ksync::lock_class!(pub PosLock, "file position", rank = 40);

/// How lseek(2) takes its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// From the start of the file.
    Set,
    /// From the present position.
    Cur,
    /// From the end of the file.
    End,
    /// At the first data at or after the offset.
    Data,
    /// At the first hole at or after the offset.
    Hole,
}

/// The operations of a kind of open file. The default of each fails as the man page says for a file that does not have it.
pub trait FileOps: Send + Sync {
    /// Reads at `pos`, which streams ignore. Returns the bytes read; 0 at the end.
    fn read(&self, _file: &File, _buf: &mut IoBuf, _pos: u64) -> Result<usize> {
        Err(FsError::Invalid)
    }
    /// Writes at `pos`, which streams ignore. Returns the bytes written.
    fn write(&self, _file: &File, _buf: &mut IoBuf, _pos: u64) -> Result<usize> {
        Err(FsError::Invalid)
    }
    /// Writes at the end of the file, in one step with respect to other writers; a kind that has no end writes at `pos`.
    /// Returns the bytes written, and the position after them.
    fn append(&self, file: &File, buf: &mut IoBuf, pos: u64) -> Result<(usize, u64)> {
        let n = self.write(file, buf, pos)?;
        Ok((n, pos + n as u64))
    }
    /// Whether the file has a position.
    fn seekable(&self) -> bool {
        true
    }
    /// Whether lseek(2) succeeds with 0 and changes nothing: for files whose content does not depend on the position.
    fn seeks_in_vain(&self) -> bool {
        false
    }
    /// The end of the file, for `SEEK_END`; `None` if it has none.
    fn end(&self, _file: &File) -> Option<u64> {
        None
    }
    /// The first position at or after `from` where data begin, or with `data` false where a hole begins; `from` is before the
    /// end. By default the whole file is data, with a hole at its end, as lseek(2) allows.
    fn next_run(&self, from: u64, end: u64, data: bool) -> Result<u64> {
        Ok(if data { from } else { end })
    }
    /// Which operations would not block now. If a waiter is given, it is registered first with the queues that are woken when
    /// this changes.
    fn poll(&self, _file: &File, _waiter: Option<&mut Waiter>) -> PollMask {
        PollMask::ALWAYS
    }
    /// Whether [`poll`](Self::poll) tells more than that the file never blocks. An epoll takes no other files.
    fn pollable(&self) -> bool {
        true
    }
    /// The operations as a value of their own type, for the calls that are for one kind of file alone.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
    /// Carries out a request of ioctl(2).
    fn ioctl(&self, _file: &File, _request: u32, _arg: u64) -> Result<u64> {
        Err(FsError::NotTty)
    }
    /// The object that mmap(2) maps; `_range`, in bytes and of whole pages, is the part that is mapped.
    fn object(&self, _file: &File, _range: Range<u64>) -> Result<ObjectRef> {
        Err(FsError::NoDevice)
    }
    /// What the file has in the place of an inode, if it has neither one nor attributes and locks of its own kind.
    fn anon_inode(&self) -> Option<&AnonInode> {
        None
    }
    /// The attributes of a file that has no inode.
    fn attr(&self) -> Option<Attr> {
        self.anon_inode().map(AnonInode::attr)
    }
    /// Where a file that has no inode keeps the locks that programs take on it; `None` if none can be taken.
    fn locks(&self) -> Option<&LockSlot> {
        self.anon_inode().map(AnonInode::locks)
    }
    /// The link text in /proc/PID/fd of a file that has no path.
    fn label(&self) -> &'static str {
        "anon_inode:"
    }
    /// Whether the file's owner can get signals about it (O_ASYNC).
    fn sends_signals(&self) -> bool {
        false
    }
    /// Registers a standing listener, which is called with a cause for each signal that the owner is to get. For kinds that
    /// [send signals](Self::sends_signals).
    fn listen_for_signals(&self, file: &File, waiter: &mut Waiter) {
        self.poll(file, Some(waiter));
    }
    /// The owner that the file gets with O_ASYNC if it has none, as F_SETOWN takes it.
    fn default_owner(&self) -> Option<i32> {
        None
    }
    /// Prints the lines of /proc/PID/fdinfo that only this kind of file has.
    fn print_info(&self, _file: &File, _out: &mut Text) -> Result<()> {
        Ok(())
    }
    /// Called when a descriptor of the file is closed, by the process that had it. For kinds that are [`Kind::Other`].
    fn flush(&self, _file: &File) {}
    /// Called when the last reference is dropped.
    fn close(&self, _file: &File) {}
}

/// The kind of an open file, with the state of that kind.
pub enum Kind {
    /// A regular file in memory.
    Regular(Regular),
    /// A directory.
    Dir(DirFile),
    /// One end of a pipe or both ends of a fifo.
    Pipe(PipeEnd),
    /// A device that keeps no state for each open file.
    Device(&'static dyn FileOps),
    /// Anything else.
    Other(Box<dyn FileOps>),
    /// A file opened with `O_PATH`: it names a place, and cannot be read or written.
    Place(Option<Kept<Inode>>),
}

struct NoOps;
impl FileOps for NoOps {
    fn read(&self, _: &File, _: &mut IoBuf, _: u64) -> Result<usize> {
        Err(FsError::BadFd)
    }
    fn write(&self, _: &File, _: &mut IoBuf, _: u64) -> Result<usize> {
        Err(FsError::BadFd)
    }
    fn ioctl(&self, _: &File, _: u32, _: u64) -> Result<u64> {
        Err(FsError::BadFd)
    }
}

/// An open file.
pub struct File {
    /// Where the file was found; `None` for pipes and other files without a name. Constant.
    pub path: Option<Path>,
    /// The kind. Constant.
    pub kind: Kind,
    /// Flags of open(2), of which the `SETFL` bits may change. Atomic.
    flags: AtomicU32,
    /// The position of the next read or write.
    pos: Mutex<u64, PosLock>,
    /// Whether the open file was ever the owner of a lock. Atomic.
    locked: AtomicBool,
    /// Whose are the signals about it; set with the first call that asks.
    signals: Once<Arc<dyn Signals>>,
    /// What is to be told when the file is closed.
    pub watchers: Watchers,
    /// Charged to the user that opened the file.
    _charge: MemoryCharge,
}

/// Bytes of an open file and its reference counts.
const FILE_BYTES: usize = size_of::<File>() + 2 * size_of::<usize>();

impl Kind {
    /// Bytes charged for an open file of this kind.
    fn bytes(&self) -> usize {
        match self {
            Kind::Other(ops) => FILE_BYTES + size_of_val(&**ops),
            _ => FILE_BYTES,
        }
    }
}

/// A reference to an open file. The file is closed as soon as the last one is dropped.
pub type FileRef = EpochRc<File>;

impl File {
    /// Makes an open file, which is charged to the caller's user.
    pub fn open(path: Option<Path>, kind: Kind, flags: u32) -> FileRef {
        let charge = MemoryCharge::new(current().payer(), kind.bytes());
        Self::make(path, kind, flags & o::KEPT, charge)
    }

    /// Makes an open file that is charged to no user. With [`o::UNTOLD`], those that use it tell watches of its close.
    pub fn open_for_all(path: Option<Path>, kind: Kind, flags: u32) -> FileRef {
        Self::make(path, kind, flags, MemoryCharge::NONE)
    }

    fn make(path: Option<Path>, kind: Kind, flags: u32, charge: MemoryCharge) -> FileRef {
        let file = File {
            path,
            kind,
            flags: AtomicU32::new(flags & (o::KEPT | o::UNTOLD)),
            pos: Mutex::new(0),
            locked: AtomicBool::new(false),
            signals: Once::new(),
            watchers: Watchers::new(),
            _charge: charge,
        };
        EpochRc::new(epoch(), file)
    }

    /// The operations of the file's kind.
    pub fn ops(&self) -> &dyn FileOps {
        match &self.kind {
            Kind::Regular(regular) => regular,
            Kind::Dir(dir) => dir,
            Kind::Pipe(end) => end,
            Kind::Device(ops) => *ops,
            Kind::Other(ops) => &**ops,
            Kind::Place(_) => &NoOps,
        }
    }

    /// The operations as a value of type `T`, for the calls that are for one kind of file alone; `None` if they are of another.
    pub fn ops_as<T: Any>(&self) -> Option<&T> {
        self.ops().as_any()?.downcast_ref()
    }

    /// The flags now.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Replaces the flags that may change after the open.
    pub fn set_flags(&self, flags: u32) {
        // One step: O_ASYNC may be changed beside.
        let change = |old: u32| Some(old & !o::SETFL | flags & o::SETFL);
        let _ = (self.flags).fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Sets or clears O_ASYNC, which other flags do not change. The caller sees to the signals.
    pub fn set_async_flag(&self, on: bool) {
        if on {
            self.flags.fetch_or(o::ASYNC, Ordering::Relaxed);
        } else {
            self.flags.fetch_and(!o::ASYNC, Ordering::Relaxed);
        }
    }

    /// Whether reads and writes must fail instead of wait.
    pub fn nonblocking(&self) -> bool {
        self.flags() & o::NONBLOCK != 0
    }

    /// Whether it was opened for reading.
    pub fn readable(&self) -> bool {
        self.flags() & o::PATH == 0 && matches!(self.flags() & o::ACCMODE, o::RDONLY | o::RDWR)
    }

    /// Whether it was opened for writing.
    pub fn writable(&self) -> bool {
        self.flags() & o::PATH == 0 && matches!(self.flags() & o::ACCMODE, o::WRONLY | o::RDWR)
    }

    /// Whether all writes go to the end of the file.
    fn appends(&self) -> bool {
        self.flags() & o::APPEND != 0
    }

    /// Whether the file was opened with `O_PATH`.
    pub fn is_place(&self) -> bool {
        matches!(self.kind, Kind::Place(_))
    }

    /// The inode, if the file has a path.
    pub fn inode(&self) -> Option<&Arc<Inode>> {
        self.path.as_ref().map(|p| &p.dentry.inode)
    }

    /// Where the file keeps the locks that programs take on it: in its inode, or in what all open files of a pipe without a
    /// name have in common; `None` if none can be taken.
    pub fn locks(&self) -> Option<&LockSlot> {
        match self.inode() {
            Some(inode) => Some(&inode.locks),
            None => self.ops().locks(),
        }
    }

    /// The attributes now.
    ///
    /// # Errors
    /// `BadFd` if the kind has none.
    pub fn attr(&self) -> Result<Attr> {
        match self.inode() {
            Some(inode) => Ok(inode.attr()),
            None => self.ops().attr().ok_or(FsError::BadFd),
        }
    }

    /// Updates the access time, unless the open file or its mount forbids it.
    pub fn accessed(&self) {
        let Some(path) = &self.path else { return };
        let inode = &path.dentry.inode;
        let quiet = flag::NOATIME | if inode.is_dir() { flag::NODIRATIME } else { 0 };
        if path.mount.flags() & quiet == 0 && self.flags() & o::NOATIME == 0 {
            inode.touch_atime();
        }
    }

    /// Records that the open file may own a lock, which is released when its last descriptor is closed.
    pub fn note_lock(&self) {
        self.locked.store(true, Ordering::Relaxed);
    }

    /// What sends signals to its owner, if it ever had one.
    pub fn signals(&self) -> Option<&dyn Signals> {
        self.signals.get().map(|signals| &**signals)
    }

    /// Sets that; if it has been set, the argument is told of the file's end.
    pub fn set_signals(&self, signals: Arc<dyn Signals>) {
        if let Err(second) = self.signals.set(signals) {
            second.closed();
        }
    }

    /// The open file, as the owner of locks.
    pub fn lock_owner(&self) -> u64 {
        ptr::from_ref(self).addr() as u64
    }

    /// Tells the watches what has happened through this open file, unless it is one of `O_PATH`. No spin lock is held.
    #[inline]
    pub fn tell(&self, what: u32) {
        if let Some(path) = &self.path
            && path.dentry.may_be_watched()
            && !self.is_place()
        {
            told::tell(&path.dentry, what, true);
        }
    }

    /// Reads at the position, and moves it behind what was read. Holds the position's lock meanwhile; a file without positions,
    /// such as a pipe, is read without it. Fails with `BadFd` unless it was opened for reading.
    pub fn read(&self, buf: &mut IoBuf) -> Result<usize> {
        let n = self.read_untold(buf, None)?;
        self.tell_read(n, buf);
        Ok(n)
    }

    /// Reads at `pos`; the file's position stays, and its lock is not taken. Fails with `BadFd` or `NotSeekable`.
    pub fn read_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        let n = self.read_untold(buf, Some(pos))?;
        self.tell_read(n, buf);
        Ok(n)
    }

    /// As in Linux, a read of a vector counts even if there was nothing to read.
    #[inline]
    fn tell_read(&self, n: usize, buf: &IoBuf) {
        if n > 0 || matches!(buf, IoBuf::Vector { .. }) {
            self.tell(ev::ACCESS);
        }
    }

    /// As [`read_at`](Self::read_at), or [`read`](Self::read) if there is no position, but watches are not told: for one of several
    /// steps of a call, which tells them at its end.
    #[inline]
    pub fn read_untold(&self, buf: &mut IoBuf, pos: Option<u64>) -> Result<usize> {
        if !self.readable() {
            return Err(FsError::BadFd);
        }
        let ops = self.ops();
        if let Some(pos) = pos {
            if !ops.seekable() {
                return Err(FsError::NotSeekable);
            }
            check_end(pos, buf)?;
            return ops.read(self, buf, pos);
        }
        if !ops.seekable() {
            return ops.read(self, buf, 0);
        }
        let mut pos = self.pos.lock();
        check_end(*pos, buf)?;
        let n = ops.read(self, buf, *pos)?;
        *pos += n as u64;
        Ok(n)
    }

    /// Writes at the position, or at the end of the file with `O_APPEND`, and moves the position. Holds the position's lock
    /// meanwhile, if the file has positions.
    pub fn write(&self, buf: &mut IoBuf) -> Result<usize> {
        self.write_or_append(buf, None, false)
    }

    /// Writes at the end of the file, and moves the position behind what was written.
    pub fn append(&self, buf: &mut IoBuf) -> Result<usize> {
        self.write_or_append(buf, None, true)
    }

    /// Writes at `pos`, or at the end of the file with `O_APPEND`; the file's position stays.
    pub fn write_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        self.write_or_append(buf, Some(pos), false)
    }

    /// Writes at the end of the file; the file's position stays. `pos` must be a valid position; a file that has no end is
    /// written at it.
    pub fn append_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        self.write_or_append(buf, Some(pos), true)
    }

    #[inline]
    fn write_or_append(&self, buf: &mut IoBuf, pos: Option<u64>, append: bool) -> Result<usize> {
        let n = self.write_untold(buf, pos, append)?;
        if n > 0 {
            self.tell(ev::MODIFY);
        }
        Ok(n)
    }

    /// Writes at `pos`, or else at the position of the file, which moves behind what was written; or at the file's end if it
    /// `append`s or the flag O_APPEND is set. The position's lock is taken for the file's own position alone. A file without
    /// positions, such as a pipe, is written without it: writers may sleep. Fails with `BadFd` unless it was opened for writing, and
    /// with `NotSeekable` for a position of a file without them. Watches are not told, as in [`read_untold`](Self::read_untold).
    #[inline]
    pub fn write_untold(&self, buf: &mut IoBuf, pos: Option<u64>, append: bool) -> Result<usize> {
        if !self.writable() {
            return Err(FsError::BadFd);
        }
        let ops = self.ops();
        let append = append || self.appends();
        if let Some(pos) = pos {
            if !ops.seekable() {
                return Err(FsError::NotSeekable);
            }
            check_end(pos, buf)?;
            return match append {
                true => ops.append(self, buf, pos).map(|(n, _)| n),
                false => ops.write(self, buf, pos),
            };
        }
        if !ops.seekable() {
            return ops.write(self, buf, 0);
        }
        let mut pos = self.pos.lock();
        check_end(*pos, buf)?;
        let n;
        if append {
            (n, *pos) = ops.append(self, buf, *pos)?;
        } else {
            n = ops.write(self, buf, *pos)?;
            *pos += n as u64;
        }
        Ok(n)
    }

    /// Moves the position, and returns it. Takes its lock. A file that seeks in vain stays where it is, and returns 0.
    ///
    /// # Errors
    /// `BadFd` for `O_PATH`; `NotSeekable`; `Invalid` for a position that cannot be, from an end that the file does not have,
    /// and for data or holes of a directory; `NoDevAddr` for data or holes at an offset that is negative or not before the end,
    /// or if there is no data after it.
    pub fn seek(&self, offset: i64, whence: Whence) -> Result<u64> {
        let ops = self.ops();
        if self.is_place() {
            return Err(FsError::BadFd);
        }
        if ops.seeks_in_vain() {
            return Ok(0);
        }
        if !ops.seekable() {
            return Err(FsError::NotSeekable);
        }
        let mut pos = self.pos.lock();
        let end = ops.end(self);
        let base = match whence {
            Whence::Set => 0,
            Whence::Cur => *pos,
            Whence::End => end.ok_or(FsError::Invalid)?,
            Whence::Data | Whence::Hole if matches!(self.kind, Kind::Dir(_)) => {
                return Err(FsError::Invalid);
            }
            Whence::Data | Whence::Hole => {
                let end = end.ok_or(FsError::Invalid)?;
                let from = u64::try_from(offset).map_err(|_| FsError::NoDevAddr)?;
                if from >= end {
                    return Err(FsError::NoDevAddr);
                }
                *pos = ops.next_run(from, end, whence == Whence::Data)?;
                return Ok(*pos);
            }
        };
        let to = base
            .checked_add_signed(offset)
            .filter(|&p| p <= i64::MAX as u64);
        *pos = to.ok_or(FsError::Invalid)?;
        Ok(*pos)
    }

    /// Calls `f` with the position, which it may change, under the position's lock.
    pub fn with_pos<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut self.pos.lock())
    }

    /// Which operations would not block now. If a waiter is given, it is registered first with the queues that are woken when
    /// this changes.
    pub fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask {
        self.ops().poll(self, waiter)
    }

    /// The object that a mapping of `range`, in bytes and of whole pages, shows.
    pub fn object(&self, range: Range<u64>) -> Result<ObjectRef> {
        self.ops().object(self, range)
    }
}

/// Fails with `Invalid` if a transfer of `buf` at `pos` would end beyond the largest position.
fn check_end(pos: u64, buf: &IoBuf) -> Result<()> {
    if pos + buf.remaining() as u64 > i64::MAX as u64 {
        Err(FsError::Invalid)
    } else {
        Ok(())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if *self.flags.get_mut() & o::UNTOLD == 0 {
            let writes = self.writable();
            self.tell([ev::CLOSE_NOWRITE, ev::CLOSE_WRITE][usize::from(writes)]);
        }
        self.watchers.tell();
        if let Some(signals) = self.signals.take() {
            signals.closed();
        }
        if *self.locked.get_mut()
            && let Some(locks) = self.locks()
        {
            lock::release(locks, self.lock_owner());
        }
        self.ops().close(self);
    }
}
