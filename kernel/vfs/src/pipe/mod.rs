//! Pipes and fifos.
//!
//! A pipe is a queue of bytes with counts of its readers and writers, under one sleeping lock. The lock is held for one copy
//! at a time, and never while a thread waits. A transfer that need not wait only looks whether the wait queues are empty.
//! Readers and writers are woken when the state changes (from empty to not empty; from too full for an atomic write to not
//! so), one at a time. A woken thread wakes the next one if it leaves something for it.

mod cache;
mod limits;
mod ring;

use alloc::sync::Arc;
use ksync::atomic::{AtomicU64, Ordering};

use hal::uio::IoBuf;
use ksync::Mutex;
use task::park::{Deadline, Interruptible, Step, park_and_pass_on};
use task::wait::{WaitQueue, Waiter};

use self::limits::Room;
use self::ring::Ring;
use super::error::{FsError, Result};
use super::file::{File, FileOps, FileRef, Kind, o};
use super::inode::{Attr, mode, now};
use super::poll::PollMask;

pub use cache::drain;
pub(super) use cache::init;
pub use limits::{MAX_SIZE, USER_HARD, USER_SOFT};
pub use ring::PAGE;

ksync::lock_class!(pub PipeLock, "pipe", rank = 54);

/// The largest write that is atomic, in bytes.
pub const PIPE_BUF: usize = 4096;
/// Bytes that a new pipe can hold.
pub const DEFAULT_SIZE: usize = 65536;
/// The largest size of a pipe in bytes: Linux's limit.
const SIZE_LIMIT: usize = 1 << 31;

/// Bytes charged for a pipe and its reference counts, without the buffers and without its open files: a fifo may be open
/// any number of times.
pub const OBJECTS: usize = size_of::<Pipe>() + 2 * size_of::<usize>();

struct State {
    ring: Ring,
    /// The charge for its pages, while it is open.
    room: Room,
    readers: u32,
    writers: u32,
    /// How often the fifo was opened for reading and for writing, so that a thread that waits for the other side does not
    /// miss an open that has been closed again.
    reader_opens: u32,
    writer_opens: u32,
}

/// A pipe.
pub struct Pipe {
    state: Mutex<State, PipeLock>,
    /// Readers that found no byte, and opens of a fifo for reading that wait for a writer.
    readers: WaitQueue,
    /// Writers that found no room, and opens of a fifo for writing that wait for a reader.
    writers: WaitQueue,
    /// Callers of poll(2) and the like, which wait for a change and take no bytes.
    pollers: WaitQueue,
    /// Inode number of a pipe without a name; 0 until it is first asked for. Atomic.
    ino: AtomicU64,
}

impl Pipe {
    fn new() -> Self {
        Pipe {
            state: Mutex::new(State {
                ring: Ring::new(DEFAULT_SIZE),
                room: Room::NONE,
                readers: 0,
                writers: 0,
                reader_opens: 0,
                writer_opens: 0,
            }),
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            pollers: WaitQueue::new(),
            ino: AtomicU64::new(0),
        }
    }

    /// A pipe that is not open yet: from this CPU's cache if it has one. Waits for memory otherwise.
    pub fn create() -> Result<Arc<Pipe>> {
        cache::get()
    }

    /// User id and group id of a pipe without a name.
    pub fn owner(&self) -> (u32, u32) {
        self.state.lock().room.owner
    }

    /// The inode number that fstat(2) and /proc/PID/fd show.
    pub fn ino(&self) -> u64 {
        let ino = self.ino.load(Ordering::Relaxed);
        if ino != 0 {
            return ino;
        }
        let fresh = super::tmpfs::new_ino();
        self.ino
            .compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|now| now, |_| fresh)
    }

    fn wake_readers(&self) {
        if !self.readers.is_empty() {
            self.readers.wake_one();
        }
        self.wake_pollers();
    }

    fn wake_writers(&self) {
        if !self.writers.is_empty() {
            self.writers.wake_one();
        }
        self.wake_pollers();
    }

    fn wake_pollers(&self) {
        if !self.pollers.is_empty() {
            self.pollers.wake_all();
        }
    }

    /// Tries to read; `None` if the caller must wait.
    fn try_read(&self, buf: &mut IoBuf) -> Result<Option<usize>> {
        let mut s = self.state.lock();
        if s.ring.len() == 0 {
            return Ok((s.writers == 0).then_some(0));
        }
        let tight = s.ring.room() < PIPE_BUF;
        let taken = s.ring.drain(buf);
        let relieved = tight && s.ring.room() >= PIPE_BUF;
        let more = s.ring.len() > 0;
        drop(s);
        if relieved {
            self.wake_writers();
        }
        // Also if nothing could be copied: no other wake-up than the one that this reader had may come.
        if more && !self.readers.is_empty() {
            self.readers.wake_one();
        }
        taken.map(Some)
    }

    /// Tries to write; `None` if the caller must wait. A write of at most [`PIPE_BUF`] bytes is made as a whole or not at
    /// all.
    fn try_write(&self, buf: &mut IoBuf) -> Result<Option<usize>> {
        let mut s = self.state.lock();
        if s.readers == 0 {
            return Err(FsError::BrokenPipe);
        }
        let need = if buf.remaining() <= PIPE_BUF {
            buf.remaining()
        } else {
            1
        };
        if s.ring.room() < need {
            return Ok(None);
        }
        let empty = s.ring.len() == 0;
        let put = s.ring.fill(buf);
        let (filled, room) = (empty && s.ring.len() > 0, s.ring.room() >= PIPE_BUF);
        drop(s);
        if filled {
            self.wake_readers();
        }
        // Also if nothing could be copied, as in `try_read`.
        if room && !self.writers.is_empty() {
            self.writers.wake_one();
        }
        put.map(Some)
    }

    /// Sets the size, as `F_SETPIPE_SZ`; returns the size that the pipe has got, in bytes.
    ///
    /// # Errors
    /// `Invalid`; `Perm`; `Busy` if the pipe holds more bytes; `NoMemory`.
    pub fn resize(&self, bytes: usize) -> Result<usize> {
        if bytes > SIZE_LIMIT {
            return Err(FsError::Invalid);
        }
        let size = bytes.max(PAGE).next_power_of_two();
        let mut s = self.state.lock();
        let before = s.room.pages;
        s.room.resize(size / PAGE)?;
        if let Err(e) = s.ring.resize(size) {
            s.room.restore(before);
            return Err(e);
        }
        drop(s);
        self.wake_writers();
        Ok(size)
    }

    /// The size in bytes, as `F_GETPIPE_SZ`.
    pub fn size(&self) -> usize {
        self.state.lock().ring.limit()
    }
}

/// An open end of a pipe; both ends, if a fifo is open for reading and writing.
pub struct PipeEnd {
    pipe: Arc<Pipe>,
    reads: bool,
    writes: bool,
    /// For a fifo that was opened for reading while it had no writer: how often it had been opened for writing by then. As
    /// long as that has not changed, poll(2) reports no hang-up although there is no writer.
    unwritten: u32,
}

impl PipeEnd {
    /// Opens an end. The first open end charges the pipe to the caller's user.
    ///
    /// # Errors
    /// `TooManyPipes`.
    pub fn new(pipe: Arc<Pipe>, reads: bool, writes: bool) -> Result<Self> {
        let mut s = pipe.state.lock();
        if s.readers == 0 && s.writers == 0 {
            let room = Room::new().ok_or(FsError::TooManyPipes)?;
            s.ring.begin(room.payer, OBJECTS, room.pages * PAGE);
            s.room = room;
        }
        if reads {
            s.readers += 1;
            s.reader_opens = s.reader_opens.wrapping_add(1);
        }
        if writes {
            s.writers += 1;
            s.writer_opens = s.writer_opens.wrapping_add(1);
        }
        drop(s);
        Ok(PipeEnd {
            pipe,
            reads,
            writes,
            unwritten: u32::MAX,
        })
    }

    /// The pipe of which this is an end.
    pub fn pipe(&self) -> &Arc<Pipe> {
        &self.pipe
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut s = self.pipe.state.lock();
        s.readers -= u32::from(self.reads);
        s.writers -= u32::from(self.writes);
        let (readers, writers) = (s.readers, s.writers);
        if readers == 0 && writers == 0 {
            // Bytes that nobody has read are lost, also if the fifo is opened again.
            s.ring.reset(DEFAULT_SIZE);
            core::mem::replace(&mut s.room, Room::NONE).end();
        }
        drop(s);
        if writers == 0 && self.writes && !self.pipe.readers.is_empty() {
            self.pipe.readers.wake_all();
        }
        if readers == 0 && self.reads && !self.pipe.writers.is_empty() {
            self.pipe.writers.wake_all();
        }
        self.pipe.wake_pollers();
        if readers == 0 && writers == 0 {
            cache::put(&mut self.pipe);
        }
    }
}

/// A read or a write, as the state of a step.
struct Transfer<'a, 'b, 'c> {
    pipe: &'a Pipe,
    buf: &'b mut IoBuf<'c>,
}

impl Transfer<'_, '_, '_> {
    fn read_step(&mut self, w: &mut Waiter) -> Step<Result<usize>> {
        w.listen(&self.pipe.readers);
        done(self.pipe.try_read(self.buf))
    }

    fn write_step(&mut self, w: &mut Waiter) -> Step<Result<usize>> {
        w.listen(&self.pipe.writers);
        done(self.pipe.try_write(self.buf))
    }
}

fn done(tried: Result<Option<usize>>) -> Step<Result<usize>> {
    match tried {
        Ok(Some(n)) => Step::Done(Ok(n)),
        Ok(None) => Step::Wait,
        Err(e) => Step::Done(Err(e)),
    }
}

impl FileOps for PipeEnd {
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() == 0 {
            return Ok(0);
        }
        if let Some(n) = self.pipe.try_read(buf)? {
            return Ok(n);
        }
        if file.nonblocking() {
            return Err(FsError::WouldBlock);
        }
        let mut t = Transfer {
            pipe: &self.pipe,
            buf,
        };
        let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
        let read = park_and_pass_on(&mut t, deadline, signals, Transfer::read_step, |t| {
            t.pipe.readers.wake_one();
        });
        read.unwrap_or(Err(FsError::Interrupted))
    }

    fn write(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        let mut total = 0;
        while buf.remaining() > 0 {
            let step = match self.pipe.try_write(buf) {
                Ok(Some(n)) => Ok(n),
                Ok(None) if file.nonblocking() => Err(FsError::WouldBlock),
                Ok(None) => {
                    let mut t = Transfer {
                        pipe: &self.pipe,
                        buf: &mut *buf,
                    };
                    let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
                    let written =
                        park_and_pass_on(&mut t, deadline, signals, Transfer::write_step, |t| {
                            t.pipe.writers.wake_one();
                        });
                    written.unwrap_or(Err(FsError::Interrupted))
                }
                Err(e) => Err(e),
            };
            match step {
                Ok(n) => total += n,
                Err(e) if total == 0 => return Err(e),
                Err(e) => {
                    // SIGPIPE is due even if some bytes were written before.
                    if e == FsError::BrokenPipe {
                        (super::upcalls::get().broken_pipe)();
                    }
                    break;
                }
            }
        }
        Ok(total)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(w) = waiter {
            w.listen(&self.pipe.pollers);
        }
        let s = self.pipe.state.lock();
        let mut mask = PollMask::NONE;
        if self.reads {
            if s.ring.len() > 0 {
                mask |= PollMask::READ;
            }
            // If no writer has opened the fifo since this end was opened, there is no hang-up.
            if s.writers == 0 && s.writer_opens != self.unwritten {
                mask |= PollMask::HUP;
            }
        }
        if self.writes {
            if s.ring.room() >= PIPE_BUF {
                mask |= PollMask::WRITE;
            }
            if s.readers == 0 {
                mask |= PollMask::ERR;
            }
        }
        mask
    }

    fn ioctl(&self, _: &File, request: u32, arg: u64) -> Result<u64> {
        const FIONREAD: u32 = 0x541b;
        if request != FIONREAD {
            return Err(FsError::NotTty);
        }
        let n = self.pipe.state.lock().ring.len() as i32;
        hal::uaccess::UserPtr::<i32>::new(arg).write(&n)?;
        Ok(0)
    }

    fn attr(&self) -> Option<Attr> {
        let t = now();
        let (uid, gid) = self.pipe.owner();
        Some(Attr {
            ino: self.pipe.ino(),
            dev: 1,
            mode: mode::FIFO | 0o600,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: t,
            mtime: t,
            ctime: t,
        })
    }

    fn label(&self) -> &'static str {
        "pipe:"
    }
}

/// Makes a pipe and opens both its ends: for reading and for writing.
///
/// # Errors
/// `TooManyPipes`; `NoMemory`.
pub fn open_pair(flags: u32) -> Result<(FileRef, FileRef)> {
    let pipe = Pipe::create()?;
    let keep = flags & (o::NONBLOCK | o::DIRECT);
    let reader = PipeEnd::new(pipe.clone(), true, false)?;
    let writer = PipeEnd::new(pipe, false, true)?;
    Ok((
        File::open(None, Kind::Pipe(reader), keep | o::RDONLY),
        File::open(None, Kind::Pipe(writer), keep | o::WRONLY),
    ))
}

/// Whether these flags of open(2) ask for reading, and for writing.
fn sides(flags: u32) -> (bool, bool) {
    match flags & o::ACCMODE {
        o::RDONLY => (true, false),
        o::WRONLY => (false, true),
        _ => (true, true),
    }
}

/// Opens a pipe without a name once more, through /proc/PID/fd. Does not wait for the other side.
pub fn reopen(pipe: Arc<Pipe>, flags: u32) -> Result<PipeEnd> {
    let (reads, writes) = sides(flags);
    PipeEnd::new(pipe, reads, writes)
}

/// An open of a fifo that waits for the other side, as the state of a step.
struct Opening<'a> {
    pipe: &'a Pipe,
    reads: bool,
    seen: u32,
}

impl Opening<'_> {
    /// The queue on which it waits, beside the reads or writes of ends that are open already.
    fn queue(&self) -> &WaitQueue {
        if self.reads {
            &self.pipe.readers
        } else {
            &self.pipe.writers
        }
    }

    fn step(&mut self, w: &mut Waiter) -> Step<()> {
        w.listen(self.queue());
        let s = self.pipe.state.lock();
        let opens = if self.reads {
            s.writer_opens
        } else {
            s.reader_opens
        };
        if opens == self.seen {
            Step::Wait
        } else {
            Step::Done(())
        }
    }
}

/// Opens a fifo as fifo(7) says: an open for reading waits for a writer, and an open for writing for a reader.
///
/// # Errors
/// `NoDevAddr` for a non-blocking open for writing without a reader; `NoMemory`; `Interrupted`.
pub fn open_fifo(pipe: Arc<Pipe>, flags: u32) -> Result<PipeEnd> {
    let (reads, writes) = sides(flags);
    let nonblocking = flags & o::NONBLOCK != 0;
    let (peers, seen) = {
        let s = pipe.state.lock();
        if reads {
            (s.writers, s.writer_opens)
        } else {
            (s.readers, s.reader_opens)
        }
    };
    if !reads && nonblocking && peers == 0 {
        return Err(FsError::NoDevAddr);
    }
    // open(2) of a fifo reports the limit on pipes as shortage of memory.
    let mut end = PipeEnd::new(pipe, reads, writes).map_err(|e| match e {
        FsError::TooManyPipes => FsError::NoMemory,
        e => e,
    })?;
    if reads && !writes && peers == 0 {
        end.unwritten = seen;
    }
    // Wakes the opens that wait for this side.
    if reads {
        end.pipe.writers.wake_all();
    }
    if writes {
        end.pipe.readers.wake_all();
    }
    if reads && writes || nonblocking || peers > 0 {
        return Ok(end);
    }
    let mut opening = Opening {
        pipe: &end.pipe,
        reads,
        seen,
    };
    // Bytes or room may have been announced to this thread, which takes none: the announcement is another sleeper's.
    let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
    park_and_pass_on(&mut opening, deadline, signals, Opening::step, |o| {
        o.queue().wake_one();
    })
    .map_err(|_| FsError::Interrupted)?;
    Ok(end)
}
