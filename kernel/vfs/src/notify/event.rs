//! Events, and what they are told to.

/// Kinds of events, and flags of them, as inotify(7) numbers them; the names are those of inotify(7).
#[expect(missing_docs, reason = "Linux's names: events of inotify")]
pub mod ev {
    pub const ACCESS: u32 = 1;
    pub const MODIFY: u32 = 2;
    pub const ATTRIB: u32 = 4;
    pub const CLOSE_WRITE: u32 = 8;
    pub const CLOSE_NOWRITE: u32 = 0x10;
    pub const OPEN: u32 = 0x20;
    pub const MOVED_FROM: u32 = 0x40;
    pub const MOVED_TO: u32 = 0x80;
    pub const CREATE: u32 = 0x100;
    pub const DELETE: u32 = 0x200;
    pub const DELETE_SELF: u32 = 0x400;
    pub const MOVE_SELF: u32 = 0x800;
    pub const UNMOUNT: u32 = 0x2000;
    pub const Q_OVERFLOW: u32 = 0x4000;
    pub const IGNORED: u32 = 0x8000;
    /// A name in the directory has become another one in it. No watch of inotify(7) is told; for F_NOTIFY.
    pub const RENAME: u32 = 0x1000_0000;
    pub const ISDIR: u32 = 0x4000_0000;
    /// All kinds that a watch may ask for.
    pub const ALL: u32 = 0xfff;
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// What has happened: one kind, with [`ev::ISDIR`] if it has happened to a directory.
    pub mask: u32,
    /// The name in the directory that is watched; empty for an event of what is watched itself.
    pub name: &'a [u8],
    /// What the two events of one rename have in common; else 0.
    pub cookie: u32,
    /// Whether it has happened through an open file that has lost the name by which it was opened.
    pub unlinked: bool,
}

impl Event<'_> {
    /// An event of what is watched itself.
    pub const fn own(mask: u32) -> Event<'static> {
        Event {
            mask,
            name: &[],
            cookie: 0,
            unlinked: false,
        }
    }
}

/// A watch of an inode.
pub trait Watch: Send + Sync {
    /// Something has happened. The caller may hold locks of directories, and no spin lock. Does not sleep.
    fn tell(&self, event: &Event);
    /// The inode is not watched any more, because it is gone ([`ev::DELETE_SELF`]) or its file system is ([`ev::UNMOUNT`]). The
    /// table has no reference to the watch any more. The caller holds what that of `tell` may hold. Does not sleep.
    fn ended(&self, why: u32);
}

/// What can be watched: an inode.
pub trait Watchable: Send + Sync + 'static {
    /// The device number of its file system.
    fn dev(&self) -> u64;
    /// Whether there is a watch of it.
    fn is_watched(&self) -> bool;
    /// Sets that. Called under the lock of the table's shard.
    fn set_watched(&self, watched: bool);
}
