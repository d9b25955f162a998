//! Places in the tree: a mount, and a dentry seen through it.

use alloc::string::String;
use alloc::sync::Arc;
use ksync::atomic::{AtomicBool, AtomicU32, Ordering};

use ksync::PerCpuRef;

use super::backlog::Backlog;
use super::dentry::Dentry;
use super::inode::Inode;
use super::kept::Kept;
use super::superblock::Super;

/// Mount flags, as mount(2) numbers them; the names are those of mount(2).
#[expect(missing_docs, reason = "Linux's names: flags of mount(2)")]
pub mod flag {
    pub const RDONLY: u32 = 1;
    pub const NOSUID: u32 = 2;
    pub const NODEV: u32 = 4;
    pub const NOEXEC: u32 = 8;
    pub const REMOUNT: u32 = 32;
    pub const NOATIME: u32 = 1024;
    pub const NODIRATIME: u32 = 2048;
    pub const BIND: u32 = 4096;
    pub const MOVE: u32 = 8192;
    pub const UNBINDABLE: u32 = 1 << 17;
    pub const PRIVATE: u32 = 1 << 18;
    pub const SLAVE: u32 = 1 << 19;
    pub const SHARED: u32 = 1 << 20;
    pub const RELATIME: u32 = 1 << 21;
    /// Flags that are stored in the mount.
    pub const KEPT: u32 = RDONLY | NOSUID | NODEV | NOEXEC | NOATIME | NODIRATIME | RELATIME;
}

/// A reference to a mount, counted per CPU.
pub type MountRef = PerCpuRef<Mount>;

/// A mount: a file system, or a part of one, seen at a place in the tree.
pub struct Mount {
    /// Its id in /proc/PID/mountinfo. Constant.
    pub id: u32,
    /// The file system. Constant.
    pub fs: Arc<Super>,
    /// The dentry that is seen at the mount point. Constant.
    pub root: Arc<Dentry>,
    /// The mount and the dentry on which it is mounted; `None` for the first mount. Constant.
    pub over: Option<(MountRef, Arc<Dentry>)>,
    /// The source that mount(2) was given. Constant.
    pub source: String,
    /// Flags of mount(2). Atomic.
    pub(super) flags: AtomicU32,
    /// Whether a detach is deciding whether the mount stays; see [`detach`](super::mount::detach). Atomic; changed under the
    /// mount table's lock.
    pub(super) leaving: AtomicBool,
    /// The pages of the file, if the root is a regular one. Constant until the mount is freed.
    pub(super) pages: Option<Kept<Inode>>,
}

hal::machine_static! {
    /// The pages of files that were mounted.
    static FILES: Backlog<Kept<Inode>> = Backlog::new();
}

/// Frees the pages of files that were mounted; returns whether there were any. Called with preemption on.
pub(super) fn finish_files() -> bool {
    FILES.finish(drop)
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The last reference may be dropped with preemption off.
        self.pages.take().into_iter().for_each(|p| FILES.push(p));
    }
}

impl Mount {
    /// The flags.
    pub fn flags(&self) -> u32 {
        self.flags.load(Ordering::Relaxed)
    }

    /// Whether the mount shows its whole file system.
    pub fn shows_all(&self) -> bool {
        Arc::ptr_eq(&self.root, &self.fs.root)
    }

    /// Whether nothing may be written through this mount.
    pub fn is_read_only(&self) -> bool {
        self.flags() & flag::RDONLY != 0
    }
}

/// A place in the tree: a dentry, seen through a mount.
#[derive(Clone)]
pub struct Path {
    /// The mount.
    pub mount: MountRef,
    /// The dentry.
    pub dentry: Arc<Dentry>,
}

impl Path {
    /// Whether both are the same place.
    pub fn is(&self, other: &Path) -> bool {
        self.mount.id == other.mount.id && Arc::ptr_eq(&self.dentry, &other.dentry)
    }
}
