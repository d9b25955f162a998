//! Inodes: whether they are watched, and events of which no directory is told.

use alloc::sync::Arc;
use ksync::atomic::{Ordering, fence};

use super::event::{Event, Watch, Watchable, ev};
use super::table;
use crate::inode::{Inode, Node};

impl Watchable for Inode {
    fn dev(&self) -> u64 {
        self.dev
    }

    fn is_watched(&self) -> bool {
        Inode::is_watched(self)
    }

    fn set_watched(&self, watched: bool) {
        self.note_watched(watched);
    }
}

impl Inode {
    /// `what`, with the flag of a directory if this is one.
    pub(super) fn event(&self, what: u32) -> u32 {
        what | if self.is_dir() { ev::ISDIR } else { 0 }
    }

    /// Adds a watch. The caller holds a reference to a name of the inode, or to an open file, and calls
    /// [`watch_begun`](Self::watch_begun) next. The caller has been admitted.
    pub fn watch(self: &Arc<Self>, watch: Arc<dyn Watch>) {
        table::add(self, watch);
    }

    /// Makes the names in this directory, if it is one, lead to its watches; and ends the watches if the file was gone before the
    /// first was added. Takes the directory's lock, and then the data lock. Sleeps; takes time in proportion to the names.
    pub fn watch_begun(&self) {
        if let Node::Dir(dir) = &self.node {
            dir.note_watched();
        }
        // Pairs with that in `end_watches_if_gone`.
        fence(Ordering::SeqCst);
        self.end_watches_if_gone();
    }

    /// Tells the watches of the inode what has happened to it.
    #[inline]
    pub fn tell(&self, what: u32) {
        if self.is_watched() {
            table::tell(self, &Event::own(self.event(what)));
        }
    }

    /// Tells the watches of this directory what has happened to a name in it, which is or was that of `file`. Called under the
    /// directory's lock, so that events come in the order of the changes.
    #[inline]
    pub fn tell_of_name(&self, what: u32, name: &[u8], file: &Inode, cookie: u32) {
        if self.is_watched() {
            let event = Event {
                name,
                cookie,
                ..Event::own(file.event(what))
            };
            table::tell(self, &event);
        }
    }

    /// Ends the watches if the file has neither a name nor an open file. Called after it has lost a name, or an open file. Takes the
    /// data lock if it is watched.
    #[inline]
    pub fn end_watches_if_gone(&self) {
        // Either the count of names is seen to be 0 after a watch was added, or the watch is seen here. For a regular file, callers
        // that come after a hold of the data lock see to that.
        if !matches!(self.node, Node::File(_)) {
            fence(Ordering::SeqCst);
        }
        if self.is_watched() && self.is_gone() {
            table::end(self, ev::DELETE_SELF);
        }
    }

    /// A cookie for the two events of a rename in these two directories; 0 if nobody is told of them.
    pub fn new_cookie(&self, other: &Inode) -> u32 {
        if self.is_watched() || other.is_watched() {
            table::new_cookie()
        } else {
            0
        }
    }
}
