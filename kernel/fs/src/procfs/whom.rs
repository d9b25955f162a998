//! The process or thread that a file of /proc is about, and whether the caller may look into it.

use alloc::sync::{Arc, Weak};

use cred::LookAs;
use proc::look::Image;
use proc::process::Process;
use proc::{UserThreadExt, ids};
use task::current::current;
use task::thread::Thread;
use vfs::error::{FsError, Result};

/// The process or thread that a file of /proc is about. It stays the one that was looked up, even if a new process
/// has the same id by now.
#[derive(Clone)]
pub struct Whom {
    pub process: Weak<Process>,
    pub tid: u32,
}

impl Whom {
    /// The process, if it has not been reaped.
    ///
    /// # Errors
    /// `NoProcess`: the process has been reaped, or the thread has ended and is not the leader.
    pub fn find(&self) -> Result<Arc<Process>> {
        let p = self.process.upgrade().filter(|p| !p.is_reaped());
        p.filter(|p| self.tid == p.pid() || thread_of(p, self.tid).is_some())
            .ok_or(FsError::NoProcess)
    }

    /// As `find`, for lookups and listings in one of its directories.
    ///
    /// # Errors
    /// `NotFound` where `find` says `NoProcess`, because a directory of a process that is gone has no entries.
    pub fn find_dir(&self) -> Result<Arc<Process>> {
        self.find().map_err(|_| FsError::NotFound)
    }

    /// Whether the calling thread belongs to it.
    pub fn is_callers(&self) -> bool {
        core::ptr::eq(self.process.as_ptr(), Arc::as_ptr(current().process()))
    }
}

/// The thread of `p` with that tid; `None` also if the tid belongs to another process's thread by now.
pub fn thread_of(p: &Process, tid: u32) -> Option<Arc<Thread>> {
    ids::find_thread(tid).filter(|t| core::ptr::eq(&**t.process(), p))
}

/// The thread whose credentials decide instead of the process's: the one of that tid, unless it is the leader.
pub fn thread(p: &Process, tid: u32) -> Option<Arc<Thread>> {
    (tid != p.pid()).then(|| thread_of(p, tid)).flatten()
}

/// Uid and gid that own an entry of /proc/PID which is not a world-readable directory.
pub fn owner(p: &Process, tid: u32) -> (u32, u32) {
    p.shown_owner(thread(p, tid).as_deref(), false)
}

/// The memory of `p`, if the caller's credentials permit it to inspect the process, or its thread `tid`.
///
/// # Errors
/// `Access` if they do not.
pub fn look(p: &Process, tid: u32) -> Result<Image> {
    p.image_shown(thread(p, tid).as_deref(), LookAs::Files)
        .map_err(|_| FsError::Access)
}
