//! What keeps the pages of a regular file besides names, open files and mappings.
//!
//! A file's pages are freed as soon as it has neither a name nor an open file. But it can still be reached through a mount of the
//! file itself, or through a descriptor that was opened with `O_PATH`. Each of these has a [`Kept`], which counts as an open file
//! for that.

use alloc::sync::Arc;

use vm::ObjectRef;

use super::error::Result;

/// A file that may have pages: an inode.
pub trait Pages {
    /// Counts one more that keeps the pages, and returns them with a reference; `None` if this is no regular file.
    ///
    /// # Errors
    /// `NotFound` if they have been freed.
    fn keep(&self) -> Result<Option<ObjectRef>>;

    /// Undoes [`keep`](Self::keep), which returned `pages`.
    fn unkeep(&self, pages: ObjectRef);
}

/// Keeps the pages of a regular file. Where the last one may be dropped with preemption off, it is put on a list of
/// [leftovers](super::leftover).
pub struct Kept<F: Pages> {
    file: Arc<F>,
    /// `None` only while the value is being dropped.
    object: Option<ObjectRef>,
}

impl<F: Pages> Kept<F> {
    /// Keeps the pages of `file`, if it is a regular file.
    ///
    /// # Errors
    /// `NotFound` if they have been freed.
    pub fn of(file: &Arc<F>) -> Result<Option<Self>> {
        let Some(object) = file.keep()? else {
            return Ok(None);
        };
        Ok(Some(Kept {
            file: file.clone(),
            object: Some(object),
        }))
    }
}

impl<F: Pages> Drop for Kept<F> {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            self.file.unkeep(object);
        }
    }
}
