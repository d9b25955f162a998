//! The file system in which the queues are: mq_open(2) and mq_unlink(2).

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;

use cred::Cred;
use fscore::path::NAME_MAX;
use fscore::perm;
use ksync::Once;
use task::current::current;
use vfs::dentry::{Dentry, Listed};
use vfs::error::{FsError, Result};
use vfs::file::{File, FileRef, Kind, o};
use vfs::ino::new_ino;
use vfs::inode::{Inode, NewInode, Node, mode};
use vfs::mount::hidden;
use vfs::place::Path;
use vfs::rights::{may_remove, permitted};
use vfs::setattr::NewMode;
use vfs::superblock::FsKind;
use vfs::tmpfs::{self, Settings};

use super::file::{QueueFile, SIZE};
use super::queue::Queue;

/// Names that are read from the directory at a time.
const LISTED: usize = 16;
/// Most bytes of the heap that a name, its inode and its entries in tables take.
const NAME_BYTES: usize = 1 << 10;

hal::machine_static! {
    /// The root of the file system.
    static ROOT: Once<Path> = Once::new();
}

/// Makes the file system. Called once, at boot.
///
/// # Errors
/// Those of [`tmpfs::new_super`].
pub fn mount() -> Result<()> {
    let mut settings = Settings::new(mode::STICKY | 0o777);
    (settings.limit, settings.inodes) = (None, None);
    let fs = tmpfs::new_super(FsKind::Mqueue, settings)?;
    let dentry = fs.root.clone();
    let mount = hidden(fs, String::from("mqueue"));
    let _ = ROOT.set(Path { mount, dentry });
    vfs::queues::set_open(|kept| {
        let queue = kept.clone().downcast::<Queue>();
        let queue = queue.map_err(|_| FsError::NoDevAddr)?;
        queue.reopen()?;
        Ok(kind(queue))
    });
    Ok(())
}

fn root() -> Result<&'static Path> {
    ROOT.get().ok_or(FsError::NotFound)
}

/// The open file of a queue that has counted it.
fn kind(queue: Arc<Queue>) -> Kind {
    Kind::Other(Box::new(QueueFile::new(queue)))
}

/// The queue of an inode of the file system.
fn queue_of(inode: &Inode) -> Option<Arc<Queue>> {
    match &inode.node {
        Node::Queue(kept) => kept.clone().downcast().ok(),
        _ => None,
    }
}

/// How mq_open(2) opens.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Flags of open(2).
    pub flags: u32,
    /// The mode of a new queue.
    pub mode: NewMode,
    /// The messages of a new queue, and the bytes of one, if the caller says.
    pub shape: Option<[i64; 2]>,
    /// RLIMIT_MSGQUEUE.
    pub limit: u64,
}

/// Fails with `Access` or `NameTooLong` for what no queue can be named.
fn check_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(FsError::Access);
    }
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    Ok(())
}

/// Opens the queue with a name, or makes one. Waits for memory; takes the lock of the names if it makes one.
///
/// # Errors
/// `Access` for the name, or by the mode; `NameTooLong`; `NotFound`; `Exists`; `Invalid`; `NoSpace`, `TooManyFiles` where the limits forbid another queue;
/// `NoMemory`. No queue was made.
pub fn open(cred: &Cred, name: &[u8], how: How) -> Result<FileRef> {
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    let root = root()?;
    check_name(name)?;
    let creates = how.flags & o::CREAT != 0;
    loop {
        let found = root.dentry.inode.dir()?.get(name);
        let opened = match found {
            Some(dentry) => open_existing(cred, root, dentry, how.flags)?,
            None if creates => match create(cred, root, name, how) {
                Err(FsError::Exists) => None,
                made => Some(made?),
            },
            None => return Err(FsError::NotFound),
        };
        if let Some(opened) = opened {
            return Ok(opened);
        }
        // Another thread has removed it, or made one, meanwhile.
        if current().kill_pending() {
            return Err(FsError::Interrupted);
        }
    }
}

/// Opens what a lookup has found; `None` if it has ended, so that the name leads elsewhere now.
fn open_existing(
    cred: &Cred,
    root: &Path,
    dentry: Arc<Dentry>,
    flags: u32,
) -> Result<Option<FileRef>> {
    const NEW: u32 = o::CREAT | o::EXCL;
    if flags & NEW == NEW {
        return Err(FsError::Exists);
    }
    let want = match flags & o::ACCMODE {
        o::RDONLY => perm::READ,
        o::WRONLY => perm::WRITE,
        o::RDWR => perm::READ | perm::WRITE,
        _ => return Err(FsError::Invalid),
    };
    permitted(cred, &dentry.inode, want)?;
    let queue = queue_of(&dentry.inode).ok_or(FsError::Invalid)?;
    if queue.reopen().is_err() {
        return Ok(None);
    }
    Ok(Some(file(root, dentry, queue, flags)))
}

/// The open file of a queue that has counted it.
fn file(root: &Path, dentry: Arc<Dentry>, queue: Arc<Queue>, flags: u32) -> FileRef {
    let mount = root.mount.clone();
    let flags = flags & !(o::PATH | o::ASYNC);
    File::open(Some(Path { mount, dentry }), kind(queue), flags)
}

fn create(cred: &Cred, root: &Path, name: &[u8], how: How) -> Result<FileRef> {
    let dir = &root.dentry.inode;
    let mut made = None;
    let dentry = dir.dir()?.create(&root.dentry, name, cred.payer, || {
        let queue = Queue::new(how.shape, cred, how.limit)?;
        made = Some(queue.clone());
        Ok(inode(cred, root, how.mode, queue))
    })?;
    let queue = made.ok_or(FsError::NoMemory)?;
    Ok(file(root, dentry, queue, how.flags))
}

/// The inode of a new queue.
fn inode(cred: &Cred, root: &Path, new: NewMode, queue: Arc<Queue>) -> Arc<Inode> {
    let (gid, perm) = new.inherit(cred, &root.dentry.inode, false);
    let kept: Arc<dyn Any + Send + Sync> = queue;
    let new = NewInode {
        ino: new_ino(),
        dev: root.mount.fs.dev,
        mode: mode::REG | perm,
        uid: cred.fsuid,
        gid,
        rdev: 0,
        charge: None,
        payer: cred.payer,
    };
    let inode = Inode::new(new, Node::Queue(kept));
    inode.set_size_locked(SIZE);
    Arc::new(inode)
}

/// Bytes of the heap that the queues with names take, with their names, inodes and messages: for the accounting of the heap. Takes the lock of the
/// names, and that of one queue at a time.
pub(crate) fn bytes() -> usize {
    let Some(Ok(dir)) = ROOT.get().map(|root| root.dentry.inode.dir()) else {
        return 0;
    };
    let (mut sum, mut from) = (0, 0);
    loop {
        let mut some: Vec<Listed> = Vec::new();
        if some.try_reserve_exact(LISTED).is_err() {
            return sum;
        }
        dir.list(from, &mut some);
        let Some(last) = some.last() else {
            return sum;
        };
        from = last.next;
        let queues = some
            .iter()
            .filter_map(|listed| queue_of(&listed.dentry.inode));
        sum += queues
            .map(|queue| queue.bytes() + NAME_BYTES)
            .sum::<usize>();
    }
}

/// Removes the name of a queue. Takes the lock of the names.
///
/// # Errors
/// `Access`, `NameTooLong` for the name; `NotFound`; `Perm` for a caller that neither owns the queue nor is privileged.
pub fn unlink(cred: &Cred, name: &[u8]) -> Result<()> {
    let root = root()?;
    check_name(name)?;
    let dir = &root.dentry.inode;
    let gone = dir.dir()?.remove(&root.dentry, name, |node| {
        may_remove(cred, dir, node, false)
    })?;
    if let Some(queue) = queue_of(&gone.inode) {
        queue.unlinked();
    }
    gone.inode.unlinked();
    Ok(())
}
