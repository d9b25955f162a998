//! Inodes: files, apart from their names.
//!
//! Each attribute is an atomic of its own: stat(2) reads them without a lock and writes nothing, and may therefore see only one of two attributes
//! that an operation changes. Changes that depend on an attribute (size, link count) are made under [`Inode::lock`] or the directory's lock.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::ops::Deref;
use ksync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use cred::{MemoryCharge, Payer};
use fscore::links::Links;
use ksync::{EpochPtr, Mutex, Once, Spin};
use task::time::monotonic_to_real;
use vm::{ObjectRef, Quota};

use super::attr::{Attr, Nanos, now};
use super::dentry::Dir;
use super::dynamic::Dynamic;
use super::error::{FsError, Result};
use super::lock::LockSlot;
use super::pipe::state::Pipe;
use super::xattr::store::Attributes;

ksync::lock_class!(pub InodeLock, "inode", rank = 50);
ksync::lock_class!(pub DataLock, "file data", rank = 84);
ksync::lock_class!(pub FifoLock, "fifo", rank = 51);

/// File type and permission bits, as in `st_mode`; the names are those of inode(7).
#[expect(missing_docs, reason = "Linux's names: bits of st_mode")]
pub mod mode {
    pub const FMT: u32 = 0o170_000;
    pub const SOCK: u32 = 0o140_000;
    pub const LNK: u32 = 0o120_000;
    pub const REG: u32 = 0o100_000;
    pub const BLK: u32 = 0o060_000;
    pub const DIR: u32 = 0o040_000;
    pub const CHR: u32 = 0o020_000;
    pub const FIFO: u32 = 0o010_000;
    pub const SUID: u32 = 0o4000;
    pub const SGID: u32 = 0o2000;
    pub const STICKY: u32 = 0o1000;
    pub const PERM: u32 = 0o7777;
    /// All bits of `st_mode`.
    pub const ALL: u32 = 0xffff;
}

/// In the word of the mode, beside the bits of `st_mode`: the inode is [watched](super::notify).
const WATCHED: u32 = 1 << 16;
/// There too: the inode has an access control list of that [kind](super::xattr::store::AclKind).
pub(super) const HAS_ACCESS_LIST: u32 = 1 << 17;
pub(super) const HAS_DEFAULT_LIST: u32 = 1 << 18;

/// Seals of F_ADD_SEALS, without their prefix `F_SEAL_`; the names are those of fcntl(2).
#[expect(missing_docs, reason = "Linux's names: seals of a file")]
pub mod seal {
    pub const SEAL: u32 = 1;
    pub const SHRINK: u32 = 2;
    pub const GROW: u32 = 4;
    pub const WRITE: u32 = 8;
    pub const FUTURE_WRITE: u32 = 16;
    /// All of them.
    pub const ALL: u32 = SEAL | SHRINK | GROW | WRITE | FUTURE_WRITE;
}

/// The largest size of a file, in bytes: what the index of an object reaches.
pub const MAX_SIZE: u64 = (u32::MAX as u64) << 12;

/// The pages of a regular file, and the counts that keep them besides mappings (which hold references of their own). The
/// names are counted in the inode.
pub struct Data {
    /// The pages; `None` once there is neither a name nor an open file, nor a [`Kept`](super::kept::Kept).
    pub(super) object: Option<ObjectRef>,
    /// How often the file is open or kept.
    pub(super) opens: u32,
    /// How often the file is open for writing, and for execution; one of the two is 0.
    pub(super) writers: u32,
    pub(super) runners: u32,
    /// Executions since the file was last [cached](super::exec_cache).
    pub(super) runs: u32,
}

/// What a regular file is opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Reading and mapping.
    Read,
    /// Writing; excluded while the file is open for execution.
    Write,
    /// Execution; excluded while the file is open for writing, or a shared mapping may write to it.
    Run,
}

/// The kind of an inode, with the state of that kind.
pub enum Node {
    /// A directory in memory.
    Dir(Dir),
    /// A regular file.
    File(Spin<Data, DataLock>),
    /// A symbolic link.
    Link(LinkText),
    /// A fifo; its pipe exists while the fifo is open. The last pipe's own memory stays until the next one is made.
    Fifo(Mutex<Weak<Pipe>, FifoLock>),
    /// A pipe without a name, which a link in /proc/PID/fd leads to.
    Pipe(Arc<Pipe>),
    /// A character or block device.
    Device,
    /// The name of a socket. It cannot be opened.
    Socket(SocketSlot),
    /// A POSIX message queue, which [`queues`](super::queues) opens.
    Queue(Arc<dyn Any + Send + Sync>),
    /// A node whose content is made when it is read (procfs, sysfs).
    Dynamic(Dynamic),
}

/// What the crate of sockets keeps for the name of a socket; nothing if the name was made by mknod(2).
pub type SocketSlot = Once<Arc<dyn Any + Send + Sync>>;

impl Node {
    /// A regular file with the pages of `object`.
    pub fn file(object: ObjectRef) -> Node {
        Node::File(Spin::new(Data {
            object: Some(object),
            opens: 0,
            writers: 0,
            runners: 0,
            runs: 0,
        }))
    }

    /// Bytes charged besides the inode's own: a link's text, a pipe with its two counts, or an estimate for an object.
    fn bytes(&self) -> usize {
        match self {
            Node::File(_) => OBJECT_BYTES,
            Node::Link(link) => link.len(),
            Node::Fifo(_) => size_of::<Pipe>() + 2 * size_of::<usize>(),
            Node::Socket(_) => SOCKET_BYTES,
            _ => 0,
        }
    }
}

const OBJECT_BYTES: usize = 256;
/// What a [`SocketSlot`] may hold.
const SOCKET_BYTES: usize = 384;

/// The text of a symbolic link. If it has `LONG` bytes or more, one page is charged to the file system's quota, as in Linux.
pub struct LinkText {
    text: Box<[u8]>,
    room: Option<&'static Quota>,
}

const LONG: usize = 128;

impl LinkText {
    /// # Errors
    /// `NoSpace` if the quota has no page left.
    pub fn new(text: &[u8], quota: Option<&'static Quota>) -> Result<LinkText> {
        let room = quota.filter(|_| text.len() >= LONG);
        if !room.is_none_or(|quota| quota.charge(&ksync::pin())) {
            return Err(FsError::NoSpace);
        }
        Ok(LinkText {
            text: Box::from(text),
            room,
        })
    }

    /// The blocks of 512 bytes that stat(2) shows.
    fn blocks(&self) -> u64 {
        if self.len() >= LONG { 8 } else { 0 }
    }
}

impl Deref for LinkText {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.text
    }
}

impl Drop for LinkText {
    fn drop(&mut self) {
        if let Some(quota) = self.room {
            quota.give(&ksync::pin(), 1);
        }
    }
}

/// A file, whatever its names.
pub struct Inode {
    /// Inode number, unique in its file system. Constant.
    pub ino: u64,
    /// Device number of the file system. Constant.
    pub dev: u64,
    /// Type bits (constant), permission bits, and what stands beside them. Atomic.
    pub(super) mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    /// The seals of a regular file, see [`seals`](super::seals). Atomic; set under [`Inode::lock`].
    seals: AtomicU32,
    /// The count of names. Atomic; falls only under the lock of the directory that has held a name, once no lookup finds that one.
    pub links: Links,
    /// The device that a device node names. Constant.
    pub rdev: u64,
    /// See [`NewInode::charge`]. Constant.
    charge: Option<&'static Quota>,
    /// The charge for its memory, to the user that created the file. Constant.
    _memory: MemoryCharge,
    /// Size of a regular file in bytes. Changed under [`Inode::lock`].
    size: AtomicU64,
    atime: AtomicI64,
    mtime: AtomicI64,
    ctime: AtomicI64,
    /// Held by operations that change the data or the size.
    pub lock: Mutex<(), InodeLock>,
    /// The locks that programs have taken on the file; made with the first of them.
    pub locks: LockSlot,
    /// The extended attributes. Changed under [`Inode::lock`]; read without.
    pub(super) attributes: EpochPtr<Arc<Attributes>>,
    /// The kind. Constant.
    pub node: Node,
}

/// Drops a reference to an object; with the last one its pages are freed.
pub fn release(object: Option<ObjectRef>) {
    if let Some(object) = object {
        object.release(mem::vm());
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if let Node::File(data) = &mut self.node {
            release(data.get_mut().object.take());
        }
        self.refund();
    }
}

/// What a new inode is made of.
#[derive(Clone, Copy)]
pub struct NewInode {
    /// Inode number.
    pub ino: u64,
    /// Device number of the file system.
    pub dev: u64,
    /// Type bits and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The device that a device node names.
    pub rdev: u64,
    /// The quota to which the inode and its names are charged: one unit for the inode together with its first name, which the
    /// caller has charged already, and one for each further name.
    pub charge: Option<&'static Quota>,
    /// The account to which its memory is charged.
    pub payer: Payer,
}

impl Inode {
    /// Makes an inode with one link, or two if it is a directory.
    pub fn new(new: NewInode, node: Node) -> Self {
        let t = now();
        let nlink = if new.mode & mode::FMT == mode::DIR {
            2
        } else {
            1
        };
        let size = match &node {
            Node::Link(text) => text.len() as u64,
            _ => 0,
        };
        Inode {
            ino: new.ino,
            dev: new.dev,
            mode: AtomicU32::new(new.mode),
            uid: AtomicU32::new(new.uid),
            gid: AtomicU32::new(new.gid),
            seals: AtomicU32::new(seal::SEAL),
            links: Links::new(nlink),
            rdev: new.rdev,
            charge: new.charge,
            _memory: MemoryCharge::names(new.payer, size_of::<Inode>() + node.bytes()),
            size: AtomicU64::new(size),
            atime: AtomicI64::new(t),
            mtime: AtomicI64::new(t),
            ctime: AtomicI64::new(t),
            lock: Mutex::new(()),
            locks: Once::new(),
            attributes: EpochPtr::empty(),
            node,
        }
    }

    /// Type and permission bits.
    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed) & mode::ALL
    }

    /// Whether there is a watch of the inode. The word is that of the mode, which every use of a file reads.
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.mode.load(Ordering::Relaxed) & WATCHED != 0
    }

    /// Records whether there is one. Called under the lock by which watches are added and removed.
    pub(super) fn note_watched(&self, watched: bool) {
        if watched {
            self.mode.fetch_or(WATCHED, Ordering::Relaxed);
        } else {
            self.mode.fetch_and(!WATCHED, Ordering::Relaxed);
        }
    }

    /// The type bits.
    pub fn kind(&self) -> u32 {
        self.mode() & mode::FMT
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == mode::DIR
    }

    /// User id of the owner.
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Group id.
    pub fn gid(&self) -> u32 {
        self.gid.load(Ordering::Relaxed)
    }

    /// Whether number, mode and owner are the same.
    pub fn looks_like(&self, other: &Inode) -> bool {
        let look = |inode: &Inode| (inode.ino, inode.mode(), inode.uid(), inode.gid());
        look(self) == look(other)
    }

    /// The bits of `seal` that are set.
    pub fn seals(&self) -> u32 {
        self.seals.load(Ordering::Relaxed)
    }

    /// Replaces the seals. The caller holds [`Inode::lock`], or nobody else knows the file yet.
    pub(super) fn set_seals(&self, seals: u32) {
        self.seals.store(seals, Ordering::Relaxed);
    }

    /// The count of names.
    pub fn nlink(&self) -> u32 {
        self.links.count()
    }

    /// Size of a regular file in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size, in bytes. The caller holds [`Inode::lock`].
    pub fn set_size_locked(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Adds `n` to the count of names. The caller holds the lock of the directory concerned.
    pub fn add_links(&self, n: u32) {
        self.links.add(n);
    }

    /// Counts a name that is about to be made, and charges the quota for it unless it is the first; [`Links::named`] or
    /// [`take_back_name`](Self::take_back_name) follows. Takes the data lock. Errors: `NotFound` if the file has lost its last
    /// name, or may get none; `TooManyLinks` if it has `max`; `NoSpace`. Then nothing is counted or charged.
    pub fn add_name(&self, max: u32) -> Result<()> {
        // Charged before it is counted, for a name that is taken off meanwhile gives its unit back by the count alone.
        let paid = self.charge.is_none_or(|quota| quota.charge(&ksync::pin()));
        // With a maximum of 0 only a first name is counted, which needs no unit.
        let first = self.count_name(if paid { max } else { 0 });
        if paid && first != Ok(false) {
            self.refund();
        }
        match first {
            Err(FsError::TooManyLinks) if !paid && self.nlink() < max => Err(FsError::NoSpace),
            counted => counted.map(|_| ()),
        }
    }

    fn count_name(&self, max: u32) -> Result<bool> {
        // The last close of a file reads the count of names, and frees the pages if it is 0, under this lock.
        let data = if let Node::File(data) = &self.node {
            Some(data.lock())
        } else {
            None
        };
        let gone = data.as_ref().is_some_and(|data| data.object.is_none());
        Ok(self.links.add_name(max, gone)?)
    }

    /// Gives one unit back to the quota: that of a name, or that of the inode.
    fn refund(&self) {
        if let Some(quota) = self.charge {
            quota.give(&ksync::pin(), 1);
        }
    }

    /// Takes one name from a file that is no directory. The caller holds the lock of the name's directory.
    pub fn drop_name(&self) {
        // The unit of the last name is that of the inode, which may still be open.
        if self.links.take(1) > 1 {
            self.refund();
        }
    }

    /// Makes a new inode one that has no name. `linkable` says whether it may get one later.
    pub fn set_nameless(&self, linkable: bool) {
        self.links.set_none(linkable);
    }

    /// Takes `n` from the count of names. The caller holds the lock of the directory concerned.
    pub fn drop_links(&self, n: u32) {
        self.links.take(n);
    }

    /// Replaces the permission bits, and sets the time of change.
    pub fn set_permissions(&self, perm: u32) {
        let change = |old: u32| Some(old & !mode::PERM | perm & mode::PERM);
        let _ = (self.mode).fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        self.touch_ctime();
    }

    /// Replaces the owner, the group or both, and sets the time of change.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) {
        if let Some(uid) = uid {
            self.uid.store(uid, Ordering::Relaxed);
        }
        if let Some(gid) = gid {
            self.gid.store(gid, Ordering::Relaxed);
        }
        self.touch_ctime();
    }

    /// Sets the times of access and of modification that are given, and the time of change.
    pub fn set_times(&self, atime: Option<Nanos>, mtime: Option<Nanos>) {
        self.stamp_stores();
        if let Some(t) = atime {
            self.atime.store(t, Ordering::Relaxed);
        }
        if let Some(t) = mtime {
            self.mtime.store(t, Ordering::Relaxed);
        }
        self.touch_ctime();
    }

    /// Sets the time of change to now.
    pub fn touch_ctime(&self) {
        self.stamp_stores();
        self.ctime.store(now(), Ordering::Relaxed);
    }

    /// Sets the times of modification and of change to the time of the last store through a mapping of the file, as the VM
    /// has recorded it, if there was one since this was last done. Called before the times are read and before they are set
    /// to something else. Takes the data lock.
    fn stamp_stores(&self) {
        let Node::File(data) = &self.node else { return };
        let stored = data.lock().object.as_ref().and_then(|o| o.take_stored());
        let Some(stored) = stored else { return };
        let t = monotonic_to_real(hal::time::ns_at(stored)) as i64;
        // Unless a later write has set it already.
        if t > self.ctime.load(Ordering::Relaxed) {
            self.mtime.store(t, Ordering::Relaxed);
            self.ctime.store(t, Ordering::Relaxed);
        }
    }

    /// Sets the times of modification and of change to now.
    pub fn touch_mtime(&self) {
        let t = now();
        self.mtime.store(t, Ordering::Relaxed);
        self.ctime.store(t, Ordering::Relaxed);
    }

    /// Sets the time of access as a `relatime` mount does: only if it is not later than the last change, or older than a day.
    pub fn touch_atime(&self) {
        const DAY: Nanos = 86_400_000_000_000;
        let a = self.atime.load(Ordering::Relaxed);
        let changed = self
            .mtime
            .load(Ordering::Relaxed)
            .max(self.ctime.load(Ordering::Relaxed));
        if a <= changed {
            let t = now();
            // If access and change got the same time, every later read would set the time of access again.
            self.atime
                .store(t.max(changed.saturating_add(1)), Ordering::Relaxed);
        } else {
            let t = now();
            if t.saturating_sub(a) > DAY {
                self.atime.store(t, Ordering::Relaxed);
            }
        }
    }

    /// The attributes now. The blocks of a regular file are counted here, in time proportional to its pages: a count that is
    /// kept would be a word that all writes and faults on the file change. First stamps what was stored through mappings.
    /// Called with preemption on.
    pub fn attr(&self) -> Attr {
        self.stamp_stores();
        let size = match &self.node {
            // As tmpfs in Linux: 20 bytes for each name, `.` and `..` included.
            Node::Dir(dir) => dir.len() as u64 * 20 + 40,
            _ => self.size(),
        };
        let blocks = match &self.node {
            Node::File(_) => self.resident() * 8,
            Node::Link(link) => link.blocks(),
            _ => 0,
        };
        Attr {
            ino: self.ino,
            dev: self.dev,
            mode: self.mode(),
            nlink: self.nlink(),
            uid: self.uid(),
            gid: self.gid(),
            rdev: self.rdev,
            size,
            blocks,
            atime: self.atime.load(Ordering::Relaxed),
            mtime: self.mtime.load(Ordering::Relaxed),
            ctime: self.ctime.load(Ordering::Relaxed),
        }
    }

    /// The number of frames that hold the contents of a regular file. Takes time proportional to its pages. Called with
    /// preemption on: if all others drop the pages meanwhile, they are freed here.
    pub fn resident(&self) -> u64 {
        let Node::File(data) = &self.node else {
            return 0;
        };
        let object = data.lock().object.clone();
        let frames = object.as_ref().map_or(0, |o| o.resident());
        release(object);
        frames
    }

    /// Opens a regular file, and returns its pages with a reference. The caller closes it by [`Inode::close_data`]. Takes the
    /// data lock; does not sleep. Errors: `TextBusy` where [`Use`] says so; for a write, perhaps only because the exec cache
    /// has the file open: [`Inode::open_data`] takes it out and tries again. `NotFound` if the pages have been freed;
    /// `Invalid` if this is no regular file. Then nothing is counted.
    pub(super) fn try_open_data(&self, what: Use) -> Result<ObjectRef> {
        let Node::File(data) = &self.node else {
            return Err(FsError::Invalid);
        };
        let mut data = data.lock();
        // An early return may drop it: the last reference must be released instead, but `data` keeps one under the lock.
        let object = data.object.clone().ok_or(FsError::NotFound)?;
        match what {
            Use::Read => {}
            Use::Write if data.runners > 0 => return Err(FsError::TextBusy),
            Use::Write => data.writers += 1,
            Use::Run if data.writers > 0 || object.has_writers() => return Err(FsError::TextBusy),
            Use::Run => {
                data.runners += 1;
                data.runs += 1;
            }
        }
        data.opens += 1;
        Ok(object)
    }

    /// Frees the pages of a regular file whose file system is being freed. Returns false, and does nothing, if there may be
    /// pages and the caller does not say by `preemptible` that preemption is on.
    pub fn free_pages(&self, preemptible: bool) -> bool {
        let Node::File(data) = &self.node else {
            return true;
        };
        let mut data = data.lock();
        if !preemptible {
            return data.object.is_none();
        }
        let object = data.object.take();
        drop(data);
        release(object);
        true
    }

    /// The directory in memory that this inode is. Errors: `NotDir`; `Perm` for a directory that is made on demand.
    pub fn dir(&self) -> Result<&Dir> {
        match &self.node {
            Node::Dir(dir) => Ok(dir),
            // In such a directory no name can be created or removed.
            Node::Dynamic(Dynamic::Dir(_)) => Err(FsError::Perm),
            _ => Err(FsError::NotDir),
        }
    }
}
