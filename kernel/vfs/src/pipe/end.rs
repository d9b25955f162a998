//! The open ends of pipes.

use alloc::sync::Arc;

use task::wait::Cause;

use super::cache;
use super::limits::{DEFAULT_SIZE, Room};
use super::ring::PAGE;
use super::state::{OBJECTS, Pipe};
use crate::error::{FsError, Result};

/// An open end of a pipe; both ends, if a fifo is open for reading and writing.
pub struct PipeEnd {
    pub(super) pipe: Arc<Pipe>,
    pub(super) reads: bool,
    pub(super) writes: bool,
    /// For a fifo that was opened for reading while it had no writer: how often it had been opened for writing by then. As
    /// long as that has not changed, poll(2) reports no hang-up although there is no writer.
    pub(super) unwritten: u32,
}

impl PipeEnd {
    /// Opens an end. The first open end charges the pipe to the caller's user, and sets its size. Takes the pipe's lock. Wakes
    /// nobody: that is left to the open of a fifo.
    ///
    /// # Errors
    /// `TooManyPipes` for the first end, if the user is beyond the hard limit. Nothing is counted.
    pub fn new(pipe: Arc<Pipe>, reads: bool, writes: bool) -> Result<Self> {
        let mut s = pipe.state.lock();
        if s.readers == 0 && s.writers == 0 {
            let room = Room::new().ok_or(FsError::TooManyPipes)?;
            s.ring
                .begin(room.payer, OBJECTS, room.pages as usize * PAGE);
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
        // After the last writer, readers find the end; after the last reader, writers fail.
        if writers == 0 && self.writes && !self.pipe.readers.is_empty() {
            self.pipe.readers.wake_all();
        }
        if readers == 0 && self.reads && !self.pipe.writers.is_empty() {
            self.pipe.writers.wake_all();
        }
        if writers == 0 && self.writes {
            self.pipe.wake_pollers(Cause::Input);
        }
        if readers == 0 && self.reads {
            self.pipe.wake_pollers(Cause::Room);
        }
        if readers == 0 && writers == 0 {
            cache::put(&mut self.pipe);
        }
    }
}
