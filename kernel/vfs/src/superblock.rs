//! File systems, as mounts show them: their records, and how they are freed.

use alloc::sync::Arc;

use vm::Quota;

use super::backlog::{AT_ONCE, Backlog};
use super::dentry::Dentry;
use super::notify::table;
use super::quota;

/// The types of file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// Files in memory.
    Tmpfs,
    /// The device nodes: one tree, which may be mounted several times.
    Devtmpfs,
    /// Processes, and the state of the kernel.
    Proc,
    /// Devices, and settings of the kernel.
    Sysfs,
    /// Pseudo-terminals.
    Devpts,
    /// POSIX message queues; mounted nowhere.
    Mqueue,
}

impl FsKind {
    /// The name that mount(2) and /proc/mounts use.
    pub fn name(self) -> &'static str {
        match self {
            FsKind::Tmpfs => "tmpfs",
            FsKind::Devtmpfs => "devtmpfs",
            FsKind::Proc => "proc",
            FsKind::Sysfs => "sysfs",
            FsKind::Devpts => "devpts",
            FsKind::Mqueue => "mqueue",
        }
    }

    /// The magic number that statfs(2) reports.
    pub fn magic(self) -> u64 {
        match self {
            FsKind::Tmpfs | FsKind::Devtmpfs => 0x0102_1994,
            FsKind::Proc => 0x9fa0,
            FsKind::Sysfs => 0x6265_6572,
            FsKind::Devpts => 0x1cd1,
            FsKind::Mqueue => 0x1980_0202,
        }
    }
}

/// A file system. Several mounts may show it.
pub struct Super {
    /// Its type.
    pub kind: FsKind,
    /// Its device number.
    pub dev: u64,
    /// Its root.
    pub root: Arc<Dentry>,
    /// The quota for the pages of its files; `None` if it has no such files, or no limit.
    pub quota: Option<&'static Quota>,
    /// The quota for its files and their further names; `None` for no limit.
    pub inodes: Option<&'static Quota>,
}

/// What a new file takes from its file system.
#[derive(Clone, Copy)]
pub struct Home {
    /// Its device number.
    pub dev: u64,
    /// The quota for the pages of its files.
    pub quota: Option<&'static Quota>,
    /// The quota for its files and their names.
    pub inodes: Option<&'static Quota>,
}

impl Super {
    /// What a new file takes from this file system.
    pub fn home(&self) -> Home {
        Home {
            dev: self.dev,
            quota: self.quota,
            inodes: self.inodes,
        }
    }
}

impl Drop for Super {
    fn drop(&mut self) {
        table::unmounted(self.dev);
        let mut tree = Tree {
            root: self.root.clone(),
            at: self.root.clone(),
            quotas: [self.quota, self.inodes],
        };
        if !tree.fall(AT_ONCE, false) {
            TREES.push(tree);
        }
    }
}

/// A file system that is being freed.
struct Tree {
    root: Arc<Dentry>,
    /// The directory whose children are taken out next, or a name that was taken out.
    at: Arc<Dentry>,
    quotas: [Option<&'static Quota>; 2],
}

impl Tree {
    /// Frees the directories in memory, leaf by leaf, in up to `most` steps; returns whether everything is freed, and the
    /// quotas are given back. Children hold references to their parents, so the tree is not freed by dropping its root; and a
    /// recursion could overflow the kernel's stack.
    ///
    /// A regular file may have so many pages that only a caller with preemption on, which says so by `preemptible`, can free
    /// them: before the name's last reference is dropped, which happens after a grace period with preemption off.
    fn fall(&mut self, most: usize, preemptible: bool) -> bool {
        for _ in 0..most {
            if !self.at.inode.free_pages(preemptible) {
                return false;
            }
            if let Some(child) = self.at.inode.dir().ok().and_then(|d| d.pop()) {
                self.at = child;
                continue;
            }
            let pin = ksync::pin();
            let up = self.at.parent(&pin).cloned();
            drop(pin);
            match up {
                Some(up) if !Arc::ptr_eq(&self.at, &self.root) => self.at = up,
                _ => {
                    self.quotas.into_iter().flatten().for_each(quota::release);
                    return true;
                }
            }
        }
        false
    }
}

hal::machine_static! {
    /// What is left of file systems.
    static TREES: Backlog<Tree> = Backlog::new();
}

/// Frees what is left of file systems; returns whether there was anything. Called with preemption on. Sleeps.
pub(super) fn finish_trees() -> bool {
    TREES.finish(|mut tree| {
        tree.fall(usize::MAX, true);
    })
}
