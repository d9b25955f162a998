//! A process's table of descriptors: whether others share it, and what other processes see of it.
//!
//! Guarantee: a table's files are closed, and its locks on files released, when the last process that uses it gives it
//! up; a process that reads about another neither delays that nor makes a table look shared. Mechanism: only processes
//! and their own threads have references to a table. Others look at it under the lock of the process's field, which
//! keeps the table, and only in ways that take no lock, because the table's own lock comes before that one.

use core::ops::Range;

use vfs::fdtable::{STEP, first_in_steps};
use vfs::file::FileRef;
use vfs::{FdTable, FsError};

use super::process::Process;
use super::reference_cache;
use crate::{UserThreadExt, current};

impl Process {
    /// Calls `look` with the table, if there is one. `look` takes no lock and looks at [`STEP`] descriptors at most.
    fn look_at_files<R>(&self, look: impl FnOnce(&FdTable) -> R) -> Option<R> {
        self.files.lock().as_ref().map(|files| look(files))
    }

    /// The open file of a descriptor, for any caller.
    pub fn open_file(&self, fd: i32) -> Option<FileRef> {
        self.look_at_files(|files| files.get(fd).ok())?
    }

    /// The process's table as the owner of locks on files; `None` without one.
    pub fn owner_of_locks(&self) -> Option<u64> {
        self.look_at_files(FdTable::lock_owner)
    }

    /// Whether execve closes a descriptor, for any caller. Takes no lock of the table; the answer may be out of date.
    pub fn closes_on_exec(&self, fd: i32) -> bool {
        self.look_at_files(|files| files.looks_cloexec(fd)) == Some(true)
    }

    /// The first descriptor at or above `from` that is open, with its file, for any caller.
    pub fn next_open_file(&self, from: usize) -> Option<(usize, FileRef)> {
        let first_in = |range: Range<usize>| {
            let pin = ksync::pin();
            self.look_at_files(|files| files.first_in(&pin, range))?
        };
        first_in_steps(from, first_in)
    }

    /// For how many descriptors the table has room; 0 without a table.
    pub fn descriptor_room(&self) -> usize {
        self.look_at_files(FdTable::size).unwrap_or(0)
    }

    /// How many descriptors are open: a sum over steps, between which other threads may open and close some.
    pub fn open_descriptors(&self) -> usize {
        let mut sum = 0;
        for from in (0..).step_by(STEP) {
            let pin = ksync::pin();
            match self.look_at_files(|files| files.open_in(&pin, from..from + STEP)) {
                Some(Some(open)) => sum += open,
                _ => break,
            }
        }
        sum
    }
}

/// Gives the current process a descriptor table of its own, a copy, if another process shares the present one. Called by the
/// process's only thread, not within [`with_files`](crate::with_files) and the like. Sleeps.
///
/// # Errors
/// `NoMemory`; the process has the table that it had.
pub fn own_files() -> Result<(), FsError> {
    reference_cache::forget_files();
    let me = current();
    let p = me.process();
    let Some(files) = p.files() else {
        return Ok(());
    };
    // Two references: the process's and this one. A process alone that uses the table keeps it: the locks on files that
    // the table owns are the process's.
    if alloc::sync::Arc::strong_count(&files) > 2 {
        drop(p.set_files(Some(files.fork()?)));
    }
    Ok(())
}
