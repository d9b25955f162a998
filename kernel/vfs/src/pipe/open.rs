//! Opening pipes and fifos.

use alloc::sync::Arc;

use task::park::{Deadline, Interruptible, Step, park_and_pass_on};
use task::wait::{WaitQueue, Waiter};

use super::end::PipeEnd;
use super::state::Pipe;
use crate::error::{FsError, Result};
use crate::file::{File, FileRef, Kind, o};

/// Makes a pipe and opens both its ends: for reading and for writing. Of `flags` both keep O_NONBLOCK and O_DIRECT, which has no
/// effect. May wait for memory.
///
/// # Errors
/// `TooManyPipes` beyond the user's hard limit; `NoMemory`.
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

/// Opens a fifo as fifo(7) says: an open for reading waits for a writer, and an open for writing for a reader, unless the flags are
/// O_RDWR or O_NONBLOCK.
///
/// # Errors
/// `NoDevAddr` for a non-blocking open for writing without a reader; `NoMemory` beyond the user's limit on pages of pipes;
/// `Interrupted`, after which the end is closed again.
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
    if nonblocking || peers > 0 {
        return Ok(end);
    }
    // An open with O_RDWR does not wait here: it has counted as an open for writing itself.
    let mut opening = Opening {
        pipe: &end.pipe,
        reads,
        seen,
    };
    // Opens sleep on the queues of reads and writes. A wake-up for one of those may come to this thread, which takes no bytes and no
    // room: it wakes the next sleeper instead.
    let (deadline, signals) = (Deadline::Never, Interruptible::Yes);
    park_and_pass_on(&mut opening, deadline, signals, Opening::step, |o| {
        o.queue().wake_one();
    })
    .map_err(|_| FsError::Interrupted)?;
    Ok(end)
}
