//! The open file of a queue.

use alloc::sync::Arc;
use core::any::Any;

use hal::uio::IoBuf;
use task::wait::Waiter;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps};
use vfs::poll::PollMask;
use vfs::put;

use super::claim::Shape;
use super::notice;
use super::queue::Queue;

/// Bytes that fstat(2) shows, as in Linux.
pub(super) const SIZE: u64 = 80;
/// SIGEV_SIGNAL.
const BY_SIGNAL: i32 = 0;

/// The open file of a queue, which counts it.
pub struct QueueFile {
    queue: Arc<Queue>,
}

impl QueueFile {
    /// One that the queue has counted.
    pub(super) fn new(queue: Arc<Queue>) -> QueueFile {
        QueueFile { queue }
    }

    /// The text that a read of the file shows.
    fn text(&self) -> Text {
        let mut text = Text::new();
        let state = self.queue.state.lock();
        let bytes = state.bytes;
        let registration = state.registration.as_ref();
        let registration = registration.filter(|registered| registered.notice.lives());
        let (how, signo, pid) = registration.map_or((0, 0, 0), |r| {
            let signo = if r.how == BY_SIGNAL { r.signo } else { 0 };
            (r.how, signo, r.pid)
        });
        drop(state);
        put!(
            text,
            "QSIZE:{bytes:<10} NOTIFY:{how:<5} SIGNO:{signo:<5} NOTIFY_PID:{pid:<6}\n"
        );
        text
    }
}

/// The queue of an open file.
///
/// # Errors
/// `BadFd` for another file.
pub(super) fn queue(file: &File) -> Result<&Queue> {
    let file: &QueueFile = file.ops_as().ok_or(FsError::BadFd)?;
    Ok(&file.queue)
}

/// The size of the queue of an open file, and the number of its messages.
///
/// # Errors
/// `BadFd` for another file.
pub fn shape(file: &File) -> Result<(Shape, usize)> {
    let queue = queue(file)?;
    let messages = queue.state.lock().messages.len();
    Ok((queue.shape, messages))
}

impl FileOps for QueueFile {
    fn read(&self, file: &File, buf: &mut IoBuf, pos: u64) -> Result<usize> {
        let text = self.text().finish()?;
        let from = usize::try_from(pos).map_or(text.len(), |pos| pos.min(text.len()));
        let wanted = buf.remaining();
        let read = buf.put(&text[from..])?;
        if read == 0 && wanted > 0 && from < text.len() {
            return Err(FsError::Fault);
        }
        if read > 0
            && let Some(inode) = file.inode()
        {
            inode.set_times(Some(vfs::attr::now()), None);
        }
        Ok(read)
    }

    fn end(&self, _: &File) -> Option<u64> {
        Some(SIZE)
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        let queue = &self.queue;
        if let Some(waiter) = waiter {
            waiter.listen(&queue.pollers);
        }
        let messages = queue.state.lock().messages.len();
        let mut ready = PollMask::NONE;
        if messages > 0 {
            ready |= PollMask::READ;
        }
        if messages < queue.shape.messages {
            ready |= PollMask::WRITE;
        }
        ready
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn flush(&self, _: &File) {
        notice::forget(&self.queue);
    }

    fn close(&self, _: &File) {
        self.queue.closed();
    }
}
