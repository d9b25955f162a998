//! What an open file holds on to, by its kind. The operations are in [`regular`](super::regular) and
//! [`dirfile`](super::dirfile).

use alloc::sync::Arc;

use vm::ObjectRef;

use super::error::{FsError, Result};
use super::inode::{Inode, Use};

/// The pages of an open regular file.
pub struct Regular {
    /// `None` only while the file is being closed.
    pub(super) object: Option<ObjectRef>,
    pub(super) inode: Arc<Inode>,
    pub(super) what: Use,
}

impl Regular {
    /// The pages. Errors: `BadFd` while the file is being closed.
    pub(super) fn pages(&self) -> Result<&ObjectRef> {
        self.object.as_ref().ok_or(FsError::BadFd)
    }
}

impl Drop for Regular {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            self.inode.close_data(object, self.what);
        }
    }
}

/// An open directory. The file position is the cookie from which the next read goes on.
pub struct DirFile;
