//! Files that lose their last name between a lookup and the open of what it has found.
//!
//! Guarantee: a call that needs the contents of a file at a path fails with `NotFound` only if no file has the name, as in
//! Linux: the name may be another file's by then, or be one that the call creates.
//!
//! Mechanism: a lookup keeps no contents, so they may be freed with the last name; then the path is looked up again. The count of
//! names falls to 0 only when no lookup finds the file by its name any more, so the same file is found again by a link of procfs alone.

use alloc::sync::Arc;

use task::current::current;

use super::error::{FsError, Result};
use super::inode::{Inode, Node};

/// Why an attempt to use the contents of a file at a path failed.
pub enum Unused {
    /// The contents of this file were freed with its last name.
    Lost(Arc<Inode>),
    /// An error.
    Error(FsError),
}

impl From<FsError> for Unused {
    fn from(error: FsError) -> Self {
        Unused::Error(error)
    }
}

impl Unused {
    /// What it means that the contents of `inode` could not be opened.
    pub fn because(inode: &Arc<Inode>, error: FsError) -> Self {
        match (error, &inode.node) {
            (FsError::NotFound, Node::File(_)) => Unused::Lost(inode.clone()),
            (error, _) => Unused::Error(error),
        }
    }

    /// The error of a caller that does not look again.
    pub fn error(self) -> FsError {
        match self {
            Unused::Lost(_) => FsError::NotFound,
            Unused::Error(error) => error,
        }
    }
}

/// Calls `attempt`, which looks a path up and uses the contents of the file there, until it does not lose the file.
///
/// # Errors
/// The error of `attempt`; `NotFound` if it finds the file that it has lost, by a link of procfs; `Interrupted` if the caller
/// is killed.
pub fn until_used<T>(mut attempt: impl FnMut() -> Result<T, Unused>) -> Result<T> {
    let mut lost: Option<Arc<Inode>> = None;
    loop {
        match attempt() {
            Ok(used) => return Ok(used),
            Err(Unused::Error(error)) => return Err(error),
            Err(Unused::Lost(now)) => {
                if lost.is_some_and(|before| Arc::ptr_eq(&before, &now)) {
                    return Err(FsError::NotFound);
                }
                if current().kill_pending() {
                    return Err(FsError::Interrupted);
                }
                lost = Some(now);
            }
        }
    }
}
