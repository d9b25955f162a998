//! The open file of an epoll.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use ksync::atomic::Ordering::Relaxed;

use task::wait::Waiter;
use vfs::anon_inode::AnonInode;
use vfs::dynamic::Text;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::poll::PollMask;
use vfs::put;

use super::event::Event;
use super::set::Set;

/// The open file of an epoll.
pub struct EpollFile {
    pub(super) set: Arc<Set>,
    inode: AnonInode,
}

/// Makes an epoll, charged to the caller's user.
///
/// # Errors
/// `NoMemory`.
pub fn make() -> Result<FileRef> {
    mem::admit().map_err(|_| FsError::NoMemory)?;
    let epoll = EpollFile {
        set: Set::new(),
        inode: AnonInode::new(),
    };
    Ok(File::open(None, Kind::Other(Box::new(epoll)), o::RDWR))
}

/// The epoll that an open file is.
pub(super) fn set_of(file: &FileRef) -> Option<&Arc<Set>> {
    Some(&file.ops_as::<EpollFile>()?.set)
}

impl FileOps for EpollFile {
    fn seekable(&self) -> bool {
        false
    }

    fn seeks_in_vain(&self) -> bool {
        true
    }

    /// There is something to read if an entry is ready. May sleep.
    fn poll(&self, _: &File, mut waiter: Option<&mut Waiter>) -> PollMask {
        if let Some(waiter) = &mut waiter {
            self.set.polled.store(true, Relaxed);
            waiter.listen(&self.set.pollers);
        }
        // The event is not taken, so the first entry that is ready stays on the list.
        match self.set.scan(1, &mut |_| Err(()), waiter) {
            (_, true) => PollMask::READ,
            (_, false) => PollMask::NONE,
        }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn anon_inode(&self) -> Option<&AnonInode> {
        Some(&self.inode)
    }

    /// Without the position, the number and the device of a file that is being closed.
    fn print_info(&self, _: &File, out: &mut Text) -> Result<()> {
        for entry in self.set.all()? {
            let Event { events, data } = entry.event_now();
            let Some(file) = entry.file.upgrade() else {
                continue;
            };
            let pos = if file.ops().seekable() {
                file.with_pos(|pos| *pos)
            } else {
                0
            };
            let (ino, dev) = file.attr().map_or((0, 0), |attr| (attr.ino, attr.dev));
            let fd = entry.fd;
            put!(
                out,
                "tfd: {fd:8} events: {events:8x} data: {data:16x}  pos:{pos} ino:{ino:x} sdev:{dev:x}\n"
            );
        }
        Ok(())
    }

    fn label(&self) -> &'static str {
        "anon_inode:[eventpoll]"
    }

    fn close(&self, _: &File) {
        self.set.close();
    }
}
