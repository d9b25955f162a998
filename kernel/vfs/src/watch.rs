//! What is to be told when an open file is closed: the entries of epolls.
//!
//! Guarantee: each watcher that is on the list when the last reference to the file is dropped is told once. A file without watchers
//! costs a look at one word.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use ksync::Spin;

use super::error::{FsError, Result};

ksync::lock_class!(pub WatchersLock, "file watchers", rank = 86);

/// The most watchers of one file, as in Linux.
const MOST: usize = 1000;

/// Something that is told of the end of an open file.
pub trait Watcher: Send + Sync {
    /// The file has no reference any more. No lock is held. May sleep.
    fn closed(&self);
}

type List = Box<Vec<Arc<dyn Watcher>>>;

/// The watchers of an open file.
#[derive(Default)]
pub struct Watchers(Spin<Option<List>, WatchersLock>);

impl Watchers {
    /// None.
    pub const fn new() -> Self {
        Watchers(Spin::new(None))
    }

    /// Adds one. May allocate.
    ///
    /// # Errors
    /// `Invalid` if there are a thousand; `NoMemory`.
    pub fn add(&self, watcher: Arc<dyn Watcher>) -> Result<()> {
        let mut list = self.0.lock();
        if list.is_none() {
            *list = Some(ksync::try_box(Vec::new()).map_err(|_| FsError::NoMemory)?);
        }
        let Some(list) = &mut *list else {
            return Err(FsError::NoMemory);
        };
        if list.len() >= MOST {
            return Err(FsError::Invalid);
        }
        list.try_reserve(1).map_err(|_| FsError::NoMemory)?;
        list.push(watcher);
        Ok(())
    }

    /// Takes one out, if it is there.
    pub fn remove(&self, watcher: &Arc<dyn Watcher>) {
        let mut list = self.0.lock();
        let Some(found) = &mut *list else { return };
        let at = found.iter().position(|w| Arc::ptr_eq(w, watcher));
        let gone = at.map(|at| found.swap_remove(at));
        let empty = list.take_if(|list| list.is_empty());
        drop(list);
        drop((gone, empty));
    }

    /// Tells all of them. Of a file whose last reference was dropped.
    pub(super) fn tell(&mut self) {
        if let Some(list) = self.0.get_mut().take() {
            list.iter().for_each(|watcher| watcher.closed());
        }
    }
}
