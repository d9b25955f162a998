//! Open files.
//!
//! A [`File`] is what a descriptor refers to: a position, flags, and a way to read and write.
//! Files are shared by nature (fork, dup, sendmsg), so they are counted, by [`FileRef`]; the mount that
//! they hold is counted per CPU.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use cred::MemoryCharge;
use hal::uio::IoBuf;
use ksync::{EpochRc, Mutex};
use mem::epoch;
use task::current::current;
use task::wait::Waiter;
use vm::ObjectRef;

use super::dirfile::DirFile;
use super::error::{FsError, Result};
use super::inode::{Attr, Inode};
use super::lock;
use super::mount::{Path, flag};
use super::pipe::PipeEnd;
use super::poll::PollMask;
use super::regular::Regular;

ksync::lock_class!(pub PosLock, "file position", rank = 40);

/// Flags of open(2) and fcntl(2), as x86-64 numbers them; the names are those of open(2).
#[expect(missing_docs, reason = "Linux's names: flags of open(2)")]
pub mod o {
    pub const ACCMODE: u32 = 3;
    pub const RDONLY: u32 = 0;
    pub const WRONLY: u32 = 1;
    pub const RDWR: u32 = 2;
    pub const CREAT: u32 = 0o100;
    pub const EXCL: u32 = 0o200;
    pub const NOCTTY: u32 = 0o400;
    pub const TRUNC: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const NONBLOCK: u32 = 0o4000;
    pub const DSYNC: u32 = 0o10000;
    pub const ASYNC: u32 = 0o20000;
    pub const DIRECT: u32 = 0o40000;
    pub const LARGEFILE: u32 = 0o100_000;
    pub const DIRECTORY: u32 = 0o200_000;
    pub const NOFOLLOW: u32 = 0o400_000;
    pub const NOATIME: u32 = 0o1_000_000;
    pub const CLOEXEC: u32 = 0o2_000_000;
    pub const SYNC: u32 = 0o4_010_000;
    pub const PATH: u32 = 0o10_000_000;
    pub const TMPFILE: u32 = 0o20_000_000 | DIRECTORY;
    /// Flags that F_SETFL may change.
    pub const SETFL: u32 = APPEND | NONBLOCK | ASYNC | DIRECT | NOATIME;
    /// Flags that F_GETFL reports.
    pub const KEPT: u32 =
        ACCMODE | SETFL | DSYNC | SYNC | LARGEFILE | DIRECTORY | PATH | NOFOLLOW | TMPFILE;
}

/// How a position moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// From the start.
    Set,
    /// From where it is.
    Cur,
    /// From the end.
    End,
    /// To data at or after the offset.
    Data,
    /// To a hole at or after the offset.
    Hole,
}

/// What an open file can do. A call that a kind does not have fails as the man page says.
pub trait FileOps: Send + Sync {
    /// Reads at `pos` (ignored by streams). Returns the bytes moved; 0 is the end.
    fn read(&self, _file: &File, _buf: &mut IoBuf, _pos: u64) -> Result<usize> {
        Err(FsError::Invalid)
    }
    /// Writes at `pos` (ignored by streams). Returns the bytes moved.
    fn write(&self, _file: &File, _buf: &mut IoBuf, _pos: u64) -> Result<usize> {
        Err(FsError::Invalid)
    }
    /// Writes at the end, which nobody else moves meanwhile, where the kind has one; else at `pos`. Returns the bytes moved, and
    /// where the next would stand.
    fn append(&self, file: &File, buf: &mut IoBuf, pos: u64) -> Result<(usize, u64)> {
        let n = self.write(file, buf, pos)?;
        Ok((n, pos + n as u64))
    }
    /// Whether there is a position at all.
    fn seekable(&self) -> bool {
        true
    }
    /// Whether lseek(2) does nothing, and succeeds, whatever the offset: what is read is everywhere the same.
    fn seeks_in_vain(&self) -> bool {
        false
    }
    /// The end of the file, for `SEEK_END`; `None` where it means nothing.
    fn end(&self, _file: &File) -> Option<u64> {
        None
    }
    /// Where data begin, or else a hole, at or after `from`, which lies before the end. A kind that does not say counts as
    /// one run of data with a hole at its end, as seek(2) allows.
    fn next_run(&self, from: u64, end: u64, data: bool) -> Result<u64> {
        Ok(if data { from } else { end })
    }
    /// What would not block now. Listens first, if asked to.
    fn poll(&self, _file: &File, _waiter: Option<&mut Waiter>) -> PollMask {
        PollMask::ALWAYS
    }
    /// A device request.
    fn ioctl(&self, _file: &File, _request: u32, _arg: u64) -> Result<u64> {
        Err(FsError::NotTty)
    }
    /// The object that mmap maps, of which it wants the bytes of `_range`, whole pages.
    fn object(&self, _file: &File, _range: Range<u64>) -> Result<ObjectRef> {
        Err(FsError::NoDevice)
    }
    /// Attributes, for a file without a name.
    fn attr(&self) -> Option<Attr> {
        None
    }
    /// What /proc/PID/fd shows for a file without a name.
    fn label(&self) -> &'static str {
        "anon_inode:"
    }
    /// The last reference goes.
    fn close(&self, _file: &File) {}
}

/// What an open file reads and writes.
pub enum Kind {
    /// A regular file in memory.
    Regular(Regular),
    /// A directory.
    Dir(DirFile),
    /// One end of a pipe or both ends of a fifo.
    Pipe(PipeEnd),
    /// A device without state of its own.
    Device(&'static dyn FileOps),
    /// Anything else.
    Other(Box<dyn FileOps>),
    /// Opened with `O_PATH`: names a place and nothing more.
    Place,
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
    /// Where it is; none for pipes and other nameless files. Const.
    pub path: Option<Path>,
    /// What it is. Const.
    pub kind: Kind,
    /// Flags of open(2); `SETFL` bits change. Atomic.
    flags: AtomicU32,
    /// Where the next read or write begins.
    pos: Mutex<u64, PosLock>,
    /// Whether it ever held a lock. Atomic.
    locked: AtomicBool,
    /// Charged to who opened it.
    _charge: MemoryCharge,
}

/// Bytes of an open file and its counts.
const FILE_BYTES: usize = size_of::<File>() + 2 * size_of::<usize>();

impl Kind {
    /// Bytes for which who opens a file of this kind is charged: none for ends of pipes, for the pipe is charged with them.
    fn bytes(&self) -> usize {
        match self {
            Kind::Pipe(_) => 0,
            Kind::Other(ops) => FILE_BYTES + size_of_val(&**ops),
            _ => FILE_BYTES,
        }
    }
}

/// A reference to an open file. The last one closes it, at once.
pub type FileRef = EpochRc<File>;

impl File {
    /// Opens, for the caller's user.
    pub fn open(path: Option<Path>, kind: Kind, flags: u32) -> FileRef {
        let charge = match kind.bytes() {
            0 => MemoryCharge::NONE,
            bytes => MemoryCharge::new(current().payer(), bytes),
        };
        Self::open_charged(path, kind, flags, charge)
    }

    /// Opens, for nobody in particular.
    pub fn open_for_all(path: Option<Path>, kind: Kind, flags: u32) -> FileRef {
        Self::open_charged(path, kind, flags, MemoryCharge::NONE)
    }

    fn open_charged(path: Option<Path>, kind: Kind, flags: u32, charge: MemoryCharge) -> FileRef {
        let file = File {
            path,
            kind,
            flags: AtomicU32::new(flags & o::KEPT),
            pos: Mutex::new(0),
            locked: AtomicBool::new(false),
            _charge: charge,
        };
        EpochRc::new(epoch(), file)
    }

    /// The operations of its kind.
    pub fn ops(&self) -> &dyn FileOps {
        match &self.kind {
            Kind::Regular(regular) => regular,
            Kind::Dir(dir) => dir,
            Kind::Pipe(end) => end,
            Kind::Device(ops) => *ops,
            Kind::Other(ops) => &**ops,
            Kind::Place => &NoOps,
        }
    }

    /// The flags now.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Replaces the flags that may change.
    pub fn set_flags(&self, flags: u32) {
        let kept = self.flags() & !o::SETFL;
        self.flags.store(kept | flags & o::SETFL, Ordering::Relaxed);
    }

    /// Whether reads and writes must not wait.
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

    /// Whether all writes go to the end.
    fn appends(&self) -> bool {
        self.flags() & o::APPEND != 0
    }

    /// Whether it only names a place.
    pub fn is_place(&self) -> bool {
        matches!(self.kind, Kind::Place)
    }

    /// The inode, if it has a name.
    pub fn inode(&self) -> Option<&Arc<Inode>> {
        self.path.as_ref().map(|p| &p.dentry.inode)
    }

    /// The attributes now.
    pub fn attr(&self) -> Result<Attr> {
        match self.inode() {
            Some(inode) => Ok(inode.attr()),
            None => self.ops().attr().ok_or(FsError::BadFd),
        }
    }

    /// Notes that the contents have been read, unless the file or its mount asks for no such notes.
    pub fn accessed(&self) {
        let Some(path) = &self.path else { return };
        let inode = &path.dentry.inode;
        let quiet = flag::NOATIME | if inode.is_dir() { flag::NODIRATIME } else { 0 };
        if path.mount.flags() & quiet == 0 && self.flags() & o::NOATIME == 0 {
            inode.touch_atime();
        }
    }

    /// Notes that the file may hold locks, which its last descriptor ends.
    pub fn note_lock(&self) {
        self.locked.store(true, Ordering::Relaxed);
    }

    /// Reads from the position on.
    pub fn read(&self, buf: &mut IoBuf) -> Result<usize> {
        if !self.readable() {
            return Err(FsError::BadFd);
        }
        let ops = self.ops();
        if !ops.seekable() {
            return ops.read(self, buf, 0);
        }
        let mut pos = self.pos.lock();
        check_end(*pos, buf)?;
        let n = ops.read(self, buf, *pos)?;
        *pos += n as u64;
        Ok(n)
    }

    /// Writes from the position on, or at the end if the file was opened for that.
    pub fn write(&self, buf: &mut IoBuf) -> Result<usize> {
        self.write_or_append(buf, false)
    }

    /// Writes at the end, and moves the position behind what it has written.
    pub fn append(&self, buf: &mut IoBuf) -> Result<usize> {
        self.write_or_append(buf, true)
    }

    #[inline]
    fn write_or_append(&self, buf: &mut IoBuf, append: bool) -> Result<usize> {
        if !self.writable() {
            return Err(FsError::BadFd);
        }
        let ops = self.ops();
        if !ops.seekable() {
            return ops.write(self, buf, 0);
        }
        let mut pos = self.pos.lock();
        check_end(*pos, buf)?;
        let n;
        if append || self.appends() {
            (n, *pos) = ops.append(self, buf, *pos)?;
        } else {
            n = ops.write(self, buf, *pos)?;
            *pos += n as u64;
        }
        Ok(n)
    }

    /// Reads at a given position.
    pub fn read_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        if !self.readable() {
            return Err(FsError::BadFd);
        }
        if !self.ops().seekable() {
            return Err(FsError::NotSeekable);
        }
        check_end(pos, buf)?;
        self.ops().read(self, buf, pos)
    }

    /// Writes at a given position, or at the end if the file was opened for that.
    pub fn write_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        self.write_or_append_at(buf, pos, false)
    }

    /// Writes at the end, and leaves the position; `pos` is checked as a position, and counts where there is no end.
    pub fn append_at(&self, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        self.write_or_append_at(buf, pos, true)
    }

    fn write_or_append_at(&self, buf: &mut IoBuf, pos: u64, append: bool) -> Result<usize> {
        if !self.writable() {
            return Err(FsError::BadFd);
        }
        if !self.ops().seekable() {
            return Err(FsError::NotSeekable);
        }
        check_end(pos, buf)?;
        if append || self.appends() {
            let (n, _) = self.ops().append(self, buf, pos)?;
            return Ok(n);
        }
        self.ops().write(self, buf, pos)
    }

    /// Moves the position.
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

    /// Calls `f` with the position locked; what it returns is the new position.
    pub fn with_pos<R>(&self, f: impl FnOnce(&mut u64) -> R) -> R {
        f(&mut self.pos.lock())
    }

    /// What would not block now, and waits for it if asked to.
    pub fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask {
        self.ops().poll(self, waiter)
    }

    /// The object that a mapping of a range of pages shows.
    pub fn object(&self, range: Range<u64>) -> Result<ObjectRef> {
        self.ops().object(self, range)
    }
}

/// Fails if what is to be read or written from `pos` on would end where no position is.
fn check_end(pos: u64, buf: &IoBuf) -> Result<()> {
    if pos + buf.remaining() as u64 > i64::MAX as u64 {
        Err(FsError::Invalid)
    } else {
        Ok(())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if *self.locked.get_mut()
            && let Some(inode) = self.inode()
        {
            lock::release(inode, lock::file_owner(self));
        }
        self.ops().close(self);
    }
}
