//! What keeps the pages of a regular file besides names, open files and mappings.
//!
//! A file's pages are freed as soon as it has neither a name nor an open file. But it can still be reached through a mount of the
//! file itself, or through a descriptor that was opened with `O_PATH`. Each of these has a [`Kept`], which counts as an open file
//! for that.

use alloc::sync::Arc;

use vm::ObjectRef;

use super::error::Result;
use super::inode::{Inode, Node, Use};

/// Keeps the pages of a regular file. Where the last one may be dropped with preemption off, it is given to
/// [`leave_file`](super::leftover::leave_file).
pub struct Kept {
    inode: Arc<Inode>,
    /// `None` only while the value is being dropped.
    object: Option<ObjectRef>,
}

impl Kept {
    /// Keeps the pages of `inode`, if it is a regular file.
    ///
    /// # Errors
    /// `NotFound` if they have been freed.
    pub fn of(inode: &Arc<Inode>) -> Result<Option<Kept>> {
        if !matches!(inode.node, Node::File(_)) {
            return Ok(None);
        }
        let object = Some(inode.open_data(Use::Read)?);
        let inode = inode.clone();
        Ok(Some(Kept { inode, object }))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            self.inode.close_data(object, Use::Read);
        }
    }
}
