//! The pages of regular files and the exec cache: an open for writing, and the removal of a name, take the file out of it.

use alloc::sync::Arc;
use core::ptr;
use ksync::atomic::{Ordering, fence};

use vm::ObjectRef;

use super::error::{FsError, Result};
use super::exec_cache;
use super::inode::{Inode, Node, Use, release};
use super::kept::Pages;
use super::opened::Regular;

impl Inode {
    /// Opens a regular file, and returns its pages with a reference. The caller closes it by [`Inode::close_data`]. A file that
    /// is to be written is taken out of the exec cache if that has it open; this sleeps for grace periods. Errors: `TextBusy`
    /// where [`Use`] says so; `NotFound` if the pages have been freed; `Invalid` if this is no regular file.
    pub fn open_data(&self, what: Use) -> Result<ObjectRef> {
        let mut waited = false;
        loop {
            match self.try_open_data(what) {
                Err(FsError::TextBusy) if what == Use::Write => {}
                result => return result,
            }
            if self.forget_text() {
                waited = false;
            } else if waited {
                return Err(FsError::TextBusy);
            } else {
                // Another thread may have taken it out, and be about to close it.
                exec_cache::wait_for_removals();
                waited = true;
            }
        }
    }

    /// Undoes [`Inode::open_data`] with the same `what`. Frees the pages, and ends the watches, if neither a name nor an open file is
    /// left; mappings keep the pages longer. Takes the data lock. Called with preemption on.
    pub fn close_data(&self, object: ObjectRef, what: Use) {
        if let Node::File(data) = &self.node {
            let mut data = data.lock();
            data.opens -= 1;
            match what {
                Use::Read => {}
                Use::Write => data.writers -= 1,
                Use::Run => data.runners -= 1,
            }
            let last = data.opens == 0 && self.nlink() == 0;
            let own = if last { data.object.take() } else { None };
            drop(data);
            release(own);
            if last {
                self.end_watches_if_gone();
            }
        }
        release(Some(object));
    }

    /// Whether the file, which the caller has opened for execution, has been executed often and has a name. If so, the count
    /// begins again. Takes the data lock.
    pub fn is_run_often(&self) -> bool {
        let Node::File(data) = &self.node else {
            return false;
        };
        let mut data = data.lock();
        let often = data.runs >= exec_cache::OFTEN && self.nlink() > 0;
        if often {
            data.runs = 0;
        }
        often
    }

    /// Takes the file out of the exec cache; returns whether it was there. If it was, sleeps for grace periods.
    fn forget_text(&self) -> bool {
        exec_cache::forget(|path| ptr::eq(&*path.dentry.inode, self))
    }

    /// Called after a name has been removed: takes the file out of the exec cache and, if it has no name and is not open,
    /// frees its pages, and ends its watches. So this is done by the caller that removed the name, and not while an epoch frees what
    /// was retired. Takes the data lock. Called with preemption on; sleeps if the file is in the exec cache.
    pub fn unlinked(&self) {
        if let Node::File(data) = &self.node {
            if data.lock().runners > 0 {
                // Pairs with that in `exec_cache::keep`: either the file is found in the cache here, or it is seen there
                // that its last name is gone.
                fence(Ordering::SeqCst);
                self.forget_text();
            }
            if self.nlink() > 0 {
                return;
            }
            let mut data = data.lock();
            let unused = data.opens == 0;
            let own = unused.then(|| data.object.take()).flatten();
            drop(data);
            release(own);
            if unused {
                self.end_watches_if_gone();
            }
        }
    }

    /// Whether the file has neither a name nor an open file: the latter counts for regular files alone. Takes the data lock.
    pub fn is_gone(&self) -> bool {
        match &self.node {
            Node::File(data) => {
                let data = data.lock();
                data.opens == 0 && self.nlink() == 0
            }
            _ => self.nlink() == 0,
        }
    }

    /// Undoes [`add_name`](Inode::add_name).
    pub fn take_back_name(&self) {
        self.drop_name();
        self.unlinked();
        self.end_watches_if_gone();
    }
}

impl Pages for Inode {
    fn keep(&self) -> Result<Option<ObjectRef>> {
        match &self.node {
            Node::File(_) => self.open_data(Use::Read).map(Some),
            _ => Ok(None),
        }
    }

    fn unkeep(&self, pages: ObjectRef) {
        self.close_data(pages, Use::Read);
    }
}

impl Regular {
    /// Opens the pages of `inode`.
    ///
    /// # Errors
    /// Those of [`Inode::open_data`].
    pub fn open(inode: &Arc<Inode>, what: Use) -> Result<Self> {
        Ok(Regular {
            object: Some(inode.open_data(what)?),
            inode: inode.clone(),
            what,
        })
    }
}
