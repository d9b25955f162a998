//! mq_notify(2): the registration of a process that is to be told of a message.

use alloc::boxed::Box;

use vfs::error::{FsError, Result};
use vfs::file::File;

use super::file::queue;
use super::queue::{Queue, State};
use crate::sysv::present::own_pid;

/// How a process is told. All but [`lives`](Self::lives) is called with no lock held.
pub trait Notice: Send + Sync {
    /// Whether the process that is to be told is there. Called under the queue's lock: does not sleep, and takes no lock.
    fn lives(&self) -> bool;
    /// A message has come.
    fn arrived(self: Box<Self>);
    /// The registration has ended without one.
    fn removed(self: Box<Self>);
}

/// A process that is to be told.
pub struct Registration {
    /// The process.
    pub pid: u32,
    /// How, as SIGEV_SIGNAL and its like number it: for those that read the queue's file.
    pub how: i32,
    /// The signal, or 0; for the same.
    pub signo: i32,
    /// What is done.
    pub notice: Box<dyn Notice>,
}

/// Takes the registration if it is due: a message has just entered a queue on which nobody waited.
pub(super) fn due(state: &mut State) -> Option<Registration> {
    match state.messages.len() {
        1 => state.registration.take(),
        _ => None,
    }
}

/// Registers a process.
///
/// # Errors
/// `BadFd` for a file that is no queue; `Busy` if a process is registered that has not ended.
pub fn register(file: &File, new: Registration) -> Result<()> {
    let queue = queue(file)?;
    let mut state = queue.state.lock();
    let lives = |old: &Registration| old.notice.lives();
    if state.registration.as_ref().is_some_and(lives) {
        drop(state);
        return Err(FsError::Busy);
    }
    let old = state.registration.replace(new);
    drop(state);
    drop(old);
    if let Some(inode) = file.inode() {
        inode.set_times(Some(vfs::attr::now()), None);
    }
    Ok(())
}

/// Ends the registration of the calling process, if there is one.
///
/// # Errors
/// `BadFd` for a file that is no queue.
pub fn unregister(file: &File) -> Result<()> {
    if forget(queue(file)?)
        && let Some(inode) = file.inode()
    {
        inode.set_times(Some(vfs::attr::now()), None);
    }
    Ok(())
}

/// As [`unregister`]; returns whether there was one.
pub(super) fn forget(queue: &Queue) -> bool {
    let pid = own_pid();
    let mut state = queue.state.lock();
    let own = state.registration.take_if(|own| own.pid == pid);
    drop(state);
    let found = own.is_some();
    own.into_iter().for_each(|own| own.notice.removed());
    found
}
