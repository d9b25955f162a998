//! inotify(7). `doc/inotify.md` has the guarantees, the order of locks, and the time lines.
//!
//! [`make`] makes an *instance*, an open file with a *queue* of events and a set of *marks*, which are its watches of inodes; [`add`] and
//! [`remove`] change the set. Beneath them: `file` has the operations of the open file, `instance` the set, `mark` one watch, `queue`
//! the events. `vfs::notify` finds the marks of an inode, and calls them.

mod control;
mod file;
mod instance;
mod mark;
mod queue;

use core::sync::atomic::{AtomicU64, Ordering};

pub use self::control::{Request, add, is_instance, make, remove};
pub use self::file::InotifyFile;

/// Flags of a watch's mask, besides the events; the names are those of inotify(7).
#[expect(missing_docs, reason = "Linux's names: flags of inotify_add_watch")]
pub mod flag {
    use vfs::notify::event::ev;

    pub const ONLYDIR: u32 = 0x0100_0000;
    pub const DONT_FOLLOW: u32 = 0x0200_0000;
    pub const EXCL_UNLINK: u32 = 0x0400_0000;
    pub const MASK_CREATE: u32 = 0x1000_0000;
    pub const MASK_ADD: u32 = 0x2000_0000;
    pub const ONESHOT: u32 = 0x8000_0000;
    /// Every bit that a mask may have; others are ignored.
    pub const KNOWN: u32 = ev::ALL
        | ev::UNMOUNT
        | ev::Q_OVERFLOW
        | ev::IGNORED
        | ev::ISDIR
        | ONLYDIR
        | DONT_FOLLOW
        | EXCL_UNLINK
        | MASK_CREATE
        | MASK_ADD
        | ONESHOT;
}

hal::machine_static! {
    /// The most events in the queue of an instance that is made from now on. Atomic.
    pub static MAX_EVENTS: AtomicU64 = AtomicU64::new(16384);
    /// The most instances of one user. Atomic.
    pub static MAX_INSTANCES: AtomicU64 = AtomicU64::new(128);
    /// The most watches of one user's instances. Atomic.
    pub static MAX_WATCHES: AtomicU64 = AtomicU64::new(0);
}

pub(crate) fn init() {
    // As in Linux: a hundredth of memory is for watches and the inodes that they keep.
    let watches = mem::memory().total / 100 / mark::COST;
    MAX_WATCHES.store(watches.clamp(8192, 1 << 20), Ordering::Relaxed);
}
