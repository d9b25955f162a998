//! What is to be told when an open file is closed: the entries of epolls.
//!
//! Guarantee: each watcher that is on the list when the last reference to the file is dropped is told once. A file without watchers
//! costs a look at one word.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::any::Any;

use ksync::Spin;

ksync::lock_class!(pub WatchersLock, "file watchers", rank = 86);

/// Something that is told of the end of an open file.
pub trait Watcher: Send + Sync {
    /// The file has no reference any more. No lock is held. May sleep.
    fn closed(&self);
}

/// What an open file has to send signals to its owner (F_SETOWN, O_ASYNC): of a crate that knows processes.
pub trait Signals: Any + Send + Sync {
    /// A descriptor of the file was closed in the table `files` of descriptors, whose [`note_lock`](crate::FdTable::note_lock) was called. No spin lock
    /// is held. May sleep.
    fn descriptor_closed(&self, files: u64);
    /// The file has no reference any more. No lock is held. May sleep.
    fn closed(&self);
}

/// By their addresses.
type List = Box<BTreeMap<usize, Arc<dyn Watcher>>>;

fn address(watcher: &Arc<dyn Watcher>) -> usize {
    Arc::as_ptr(watcher).addr()
}

/// The watchers of an open file.
#[derive(Default)]
pub struct Watchers(Spin<Option<List>, WatchersLock>);

impl Watchers {
    /// None.
    pub const fn new() -> Self {
        Watchers(Spin::new(None))
    }

    /// Adds one. Allocates, with preemption off; the caller has been admitted.
    pub fn add(&self, watcher: Arc<dyn Watcher>) {
        let mut list = self.0.lock();
        let list = list.get_or_insert_default();
        list.insert(address(&watcher), watcher);
    }

    /// Takes one out, if it is there.
    pub fn remove(&self, watcher: &Arc<dyn Watcher>) {
        let mut list = self.0.lock();
        let Some(found) = &mut *list else { return };
        let gone = found.remove(&address(watcher));
        let empty = list.take_if(|list| list.is_empty());
        drop(list);
        drop((gone, empty));
    }

    /// Tells all of them. Of a file whose last reference was dropped.
    pub(super) fn tell(&mut self) {
        if let Some(list) = self.0.get_mut().take() {
            list.values().for_each(|watcher| watcher.closed());
        }
    }
}
