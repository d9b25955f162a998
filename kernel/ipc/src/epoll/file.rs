//! The open file of an epoll.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::any::Any;
use ksync::atomic::Ordering::Relaxed;

use task::wait::Waiter;
use vfs::attr::Attr;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileOps, FileRef, Kind, o};
use vfs::ino::new_ino;
use vfs::lock::LockSlot;
use vfs::poll::PollMask;

use super::set::Set;

/// The open file of an epoll.
pub struct EpollFile {
    pub(super) set: Arc<Set>,
    /// Inode number. Constant.
    ino: u64,
    locks: LockSlot,
}

/// Makes an epoll, charged to the caller's user.
///
/// # Errors
/// `NoMemory`.
pub fn make() -> Result<FileRef> {
    mem::admit().map_err(|_| FsError::NoMemory)?;
    let epoll = EpollFile {
        set: Set::new(),
        ino: new_ino(),
        locks: LockSlot::new(),
    };
    Ok(File::open(None, Kind::Other(Box::new(epoll)), o::RDWR))
}

/// The epoll that an open file is.
pub(super) fn set_of(file: &FileRef) -> Option<&Arc<Set>> {
    let epoll: &EpollFile = file.ops().as_any()?.downcast_ref()?;
    Some(&epoll.set)
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

    fn attr(&self) -> Option<Attr> {
        Some(Attr::unnamed(self.ino, 0o600))
    }

    fn locks(&self) -> Option<&LockSlot> {
        Some(&self.locks)
    }

    fn label(&self) -> &'static str {
        "anon_inode:[eventpoll]"
    }

    fn close(&self, _: &File) {
        self.set.close();
    }
}
