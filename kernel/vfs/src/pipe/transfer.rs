//! Reading and writing pipes: the operations of an open end.

use hal::uio::IoBuf;
use task::park::{Deadline, Interruptible, Step, park_and_pass_on};
use task::wait::{Cause, Waiter};

use super::end::PipeEnd;
use super::state::{PIPE_BUF, Pipe};
use crate::attr::Attr;
use crate::error::{FsError, Result};
use crate::file::{File, FileOps};
use crate::inode::mode;
use crate::lock::LockSlot;
use crate::poll::PollMask;
use crate::upcalls;

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
                    // SIGPIPE is due even if some bytes were written before. For an error that is returned, the caller
                    // raises it.
                    if e == FsError::BrokenPipe {
                        (upcalls::get().broken_pipe)();
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
        let mut stays = false;
        if let Some(w) = waiter {
            stays = self.reads && w.is_listener();
            let pollers = &self.pipe.pollers;
            match (self.reads, self.writes) {
                (true, false) => w.listen_except(pollers, Cause::Room),
                (false, true) => w.listen_except(pollers, Cause::Input),
                _ => w.listen(pollers),
            }
        }
        let mut s = self.pipe.state.lock();
        s.room.listened |= stays;
        let mut mask = PollMask::NONE;
        if self.reads {
            if !s.ring.is_empty() && !s.ring.front_held {
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

    fn sends_signals(&self) -> bool {
        true
    }

    /// As in Linux, each write is told at the ends for reading, and each read at those for writing.
    fn listen_for_signals(&self, file: &File, waiter: &mut Waiter) {
        self.poll(file, Some(waiter));
        self.pipe.state.lock().room.reads_told |= self.writes;
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
        let (uid, gid) = self.pipe.owner();
        Some(Attr {
            uid,
            gid,
            ..Attr::unnamed(self.pipe.ino(), mode::FIFO | 0o600)
        })
    }

    fn locks(&self) -> Option<&LockSlot> {
        Some(&self.pipe.locks)
    }

    fn label(&self) -> &'static str {
        "pipe:"
    }
}
