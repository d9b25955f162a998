//! A pipe: its bytes, its counts of readers and writers, and the threads that wait for either.

use ksync::atomic::{AtomicU64, Ordering};

use hal::uio::IoBuf;
use ksync::Mutex;
use task::wait::{Cause, WaitQueue};

use super::limits::{DEFAULT_SIZE, Room};
use super::ring::{PAGE, Ring};
use crate::error::{FsError, Result};
use crate::ino::new_ino;
use crate::lock::LockSlot;

ksync::lock_class!(pub PipeLock, "pipe", rank = 54);

/// The largest write that is atomic, in bytes.
pub const PIPE_BUF: usize = 4096;
/// The largest size of a pipe in bytes: Linux's limit.
const SIZE_LIMIT: usize = 1 << 31;

/// Bytes charged for a pipe and its reference counts, without the buffers and without its open files: a fifo may be open
/// any number of times.
pub const OBJECTS: usize = size_of::<Pipe>() + 2 * size_of::<usize>();

/// What a pipe's lock guards.
pub(super) struct State {
    pub ring: Ring,
    /// The charge for its pages, while it is open.
    pub room: Room,
    pub readers: u32,
    pub writers: u32,
    /// How often the fifo was opened for reading and for writing, so that a thread that waits for the other side does not
    /// miss an open that has been closed again.
    pub reader_opens: u32,
    pub writer_opens: u32,
}

/// A pipe.
pub struct Pipe {
    pub(super) state: Mutex<State, PipeLock>,
    /// Readers that found no byte, and opens of a fifo for reading that wait for a writer.
    pub(super) readers: WaitQueue,
    /// Writers that found no room, and opens of a fifo for writing that wait for a reader.
    pub(super) writers: WaitQueue,
    /// Callers of poll(2) and the like, which wait for a change and take no bytes.
    pub(super) pollers: WaitQueue,
    /// Inode number of a pipe without a name; 0 until it is first asked for. Atomic.
    pub(super) ino: AtomicU64,
    /// The locks that programs have taken on a pipe without a name, by any of its ends; made with the first of them.
    pub(super) locks: LockSlot,
}

/// With the two counts of an `Arc`, a pipe fits its size class of the heap.
const _: () = assert!(cfg!(shuttle) || OBJECTS <= 256);

impl Pipe {
    /// A pipe that is not open, and has no buffer.
    pub(super) fn new() -> Self {
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
            locks: LockSlot::new(),
        }
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
        let fresh = new_ino();
        self.ino
            .compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|now| now, |_| fresh)
    }

    pub(super) fn wake_readers(&self) {
        if !self.readers.is_empty() {
            self.readers.wake_one();
        }
        self.wake_pollers(Cause::Input);
    }

    pub(super) fn wake_writers(&self) {
        if !self.writers.is_empty() {
            self.writers.wake_one();
        }
        self.wake_pollers(Cause::Room);
    }

    /// Wakes the callers of poll(2) and the like; epolls only of ends that look for this.
    pub(super) fn wake_pollers(&self, cause: Cause) {
        if !self.pollers.is_empty() {
            self.pollers.wake_all_for(cause);
        }
    }

    /// Tries to read; `None` if the caller must wait, 0 if the pipe is empty and has no writer. It must wait, too, while the first
    /// bytes are held. Holds the pipe's lock while it
    /// copies, and may sleep. Fails with `Fault` if nothing could be copied.
    pub(super) fn try_read(&self, buf: &mut IoBuf) -> Result<Option<usize>> {
        let mut s = self.state.lock();
        if s.ring.is_empty() {
            return Ok((s.writers == 0).then_some(0));
        }
        if s.ring.front_held {
            return Ok(None);
        }
        // Writers are woken only when there is room again for any write that is made as a whole.
        let tight = s.ring.room() < PIPE_BUF;
        let taken = s.ring.drain(buf);
        let relieved = tight && s.ring.room() >= PIPE_BUF;
        let more = !s.ring.is_empty();
        let told = s.room.reads_told && matches!(taken, Ok(1..));
        drop(s);
        if relieved {
            self.wake_writers();
        } else if told {
            self.wake_pollers(Cause::Room);
        }
        // Also if nothing could be copied: no other wake-up than the one that this reader had may come.
        if more && !self.readers.is_empty() {
            self.readers.wake_one();
        }
        taken.map(Some)
    }

    /// Tries to write; `None` if the caller must wait. A write of at most [`PIPE_BUF`] bytes waits until it has room as a whole;
    /// only a fault, or want of memory, can cut it short. Holds the pipe's lock while it copies, and may sleep.
    ///
    /// # Errors
    /// `BrokenPipe` if there is no reader; `Fault`, or `NoMemory`, if nothing could be written.
    pub(super) fn try_write(&self, buf: &mut IoBuf) -> Result<Option<usize>> {
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
        let empty = s.ring.is_empty();
        let put = s.ring.fill(buf);
        let (filled, room) = (empty && !s.ring.is_empty(), s.ring.room() >= PIPE_BUF);
        let told = s.room.listened && matches!(put, Ok(1..));
        drop(s);
        if filled {
            self.wake_readers();
        } else if told {
            self.wake_pollers(Cause::Input);
        }
        // Also if nothing could be copied, as in `try_read`.
        if room && !self.writers.is_empty() {
            self.writers.wake_one();
        }
        put.map(Some)
    }

    /// Sets the size, as `F_SETPIPE_SZ`, to a power of two of at least a page; returns it, in bytes. Takes the pipe's lock, and
    /// may wait for memory. Wakes a writer.
    ///
    /// # Errors
    /// `Invalid` beyond 2 GiB; `Perm` beyond a limit on pages; `Busy` if the pipe holds more bytes; `NoMemory`. Nothing has
    /// changed.
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
