//! Event counters: eventfd(2).
//!
//! Guarantee: no count is lost. A read takes the whole count, or 1 in semaphore mode, and waits until the count is not 0. A
//! write waits until its value can be added.

use core::any::Any;
use hal::uio::IoBuf;
use ksync::Spin;
use task::park::{Deadline, Interruptible, Step, park};
use task::wait::{WaitQueue, Waiter};

use super::anon_inode::AnonInode;
use super::dynamic::Text;
use super::error::{FsError, Result};
use super::file::{File, FileOps};
use super::poll::PollMask;
use crate::put;

ksync::lock_class!(pub EventLock, "event counter", rank = 85);

/// The largest count.
const MOST: u64 = u64::MAX - 1;
/// Bytes of a value: the least that a read or write must offer.
const LEN: usize = 8;

/// An event counter.
pub struct EventCounter {
    count: Spin<u64, EventLock>,
    /// Whether a read takes 1 instead of the whole count. Constant.
    semaphore: bool,
    readers: WaitQueue,
    writers: WaitQueue,
    inode: AnonInode,
}

impl EventCounter {
    /// A counter that begins at `count`.
    pub fn new(count: u64, semaphore: bool) -> Self {
        EventCounter {
            count: Spin::new(count),
            semaphore,
            readers: WaitQueue::new(),
            writers: WaitQueue::new(),
            inode: AnonInode::new(),
        }
    }

    /// Takes what a read returns; `None` if the count is 0.
    fn take(&self) -> Option<u64> {
        let mut count = self.count.lock();
        if *count == 0 {
            return None;
        }
        let got = if self.semaphore { 1 } else { *count };
        *count -= got;
        drop(count);
        self.writers.wake_all();
        // Readers in semaphore mode that find a count, too, were woken when it was added.
        Some(got)
    }

    /// Adds `more`; false if the count would become too large.
    fn add(&self, more: u64) -> bool {
        let mut count = self.count.lock();
        let Some(sum) = count.checked_add(more).filter(|&sum| sum <= MOST) else {
            return false;
        };
        *count = sum;
        drop(count);
        self.readers.wake_all();
        true
    }

    /// Adds one. At the largest count it is left.
    pub fn tell(&self) {
        self.add(1);
    }
}

impl FileOps for EventCounter {
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() < LEN {
            return Err(FsError::Invalid);
        }
        let got = match self.take() {
            Some(got) => got,
            None if file.nonblocking() => return Err(FsError::WouldBlock),
            None => {
                let mut me = self;
                park(&mut me, Deadline::Never, Interruptible::Yes, |me, w| {
                    w.listen(&me.readers);
                    me.take().map_or(Step::Wait, Step::Done)
                })
                .map_err(|_| FsError::Interrupted)?
            }
        };
        // As in Linux, a count that cannot be copied is lost.
        match buf.put(&got.to_ne_bytes())? {
            LEN => Ok(LEN),
            _ => Err(FsError::Fault),
        }
    }

    fn write(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize> {
        if buf.remaining() < LEN {
            return Err(FsError::Invalid);
        }
        let mut bytes = [0; LEN];
        if buf.take(&mut bytes)? < LEN {
            return Err(FsError::Fault);
        }
        let more = u64::from_ne_bytes(bytes);
        if more > MOST {
            return Err(FsError::Invalid);
        }
        if self.add(more) {
            return Ok(LEN);
        }
        if file.nonblocking() {
            return Err(FsError::WouldBlock);
        }
        let mut state = (self, more);
        park(&mut state, Deadline::Never, Interruptible::Yes, |s, w| {
            w.listen(&s.0.writers);
            if s.0.add(s.1) {
                Step::Done(())
            } else {
                Step::Wait
            }
        })
        .map_err(|_| FsError::Interrupted)?;
        Ok(LEN)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn seeks_in_vain(&self) -> bool {
        true
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(waiter) = waiter {
            if waiter.wants(PollMask::READ.0) {
                waiter.listen(&self.readers);
            }
            if waiter.wants(PollMask::WRITE.0) {
                waiter.listen(&self.writers);
            }
        }
        let count = *self.count.lock();
        let mut ready = PollMask::NONE;
        if count > 0 {
            ready |= PollMask::READ;
        }
        if count < MOST {
            ready |= PollMask::WRITE;
        }
        ready
    }

    fn anon_inode(&self) -> Option<&AnonInode> {
        Some(&self.inode)
    }

    fn print_info(&self, _: &File, out: &mut Text) -> Result<()> {
        let count = *self.count.lock();
        let id = self.inode.attr().ino;
        put!(out, "eventfd-count: {count:16x}\neventfd-id: {id}\n");
        Ok(())
    }

    fn label(&self) -> &'static str {
        "anon_inode:[eventfd]"
    }
}
