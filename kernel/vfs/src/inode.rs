//! Inodes: what a file is, apart from its names.
//!
//! Attributes are single atomics: a stat reads them without a lock and writes nothing, at the
//! price that two attributes changed by one operation may be seen apart. Changes that depend on
//! an attribute (size, link count) are made under [`Inode::lock`] or the directory's lock.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ops::Deref;
use core::ptr;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use cred::{MemoryCharge, Payer};
use ksync::{Mutex, Once, Spin};
use task::time::monotonic_to_real;
use vm::{ObjectRef, Quota};

use super::dentry::Dir;
use super::dynamic::Dynamic;
use super::error::{FsError, Result};
use super::exec_cache;
use super::lock::FileLocks;
use super::pipe::Pipe;

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
}

/// The largest file: what an object's index reaches.
pub const MAX_SIZE: u64 = (u32::MAX as u64) << 12;

/// In the count of names: there is none yet, and there may be one.
const LINKABLE: u32 = 1 << 31;

/// The pages of a regular file, and who needs them besides mappings (which keep them by
/// themselves): names and open files.
pub struct Data {
    /// The pages; gone once there is neither a name nor an open file.
    object: Option<ObjectRef>,
    opens: u32,
    /// Opens for writing, and by running programs: never both.
    writers: u32,
    runners: u32,
    /// Times it was opened to be run since nothing of it was [kept](super::text).
    runs: u32,
}

/// What the contents of a regular file are opened for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Reading and mapping.
    Read,
    /// Writing: not while a program runs from the file.
    Write,
    /// To run it: not while somebody may write.
    Run,
}

/// What kind of thing an inode is, with the data of that kind.
pub enum Node {
    /// A directory held in memory.
    Dir(Dir),
    /// A regular file.
    File(Spin<Data, DataLock>),
    /// A symbolic link with its text.
    Link(LinkText),
    /// A named pipe; the pipe exists while somebody has it open.
    Fifo(Mutex<Option<Arc<Pipe>>, FifoLock>),
    /// A pipe without a name, reached through a descriptor that somebody has of it.
    Pipe(Arc<Pipe>),
    /// A character or block device.
    Device,
    /// A socket's name (a placeholder: nobody can listen yet).
    Socket,
    /// A node whose content is made when it is asked for (procfs, sysfs).
    Dynamic(Dynamic),
}

impl Node {
    /// A regular file over `object`.
    pub fn file(object: ObjectRef) -> Node {
        Node::File(Spin::new(Data {
            object: Some(object),
            opens: 0,
            writers: 0,
            runners: 0,
            runs: 0,
        }))
    }

    /// Bytes that it takes beside the inode's own: texts, and an estimate of what an object of pages takes.
    fn bytes(&self) -> usize {
        match self {
            Node::File(_) => OBJECT_BYTES,
            Node::Link(link) => link.len(),
            _ => 0,
        }
    }
}

const OBJECT_BYTES: usize = 256;

/// The text of a symbolic link. From `LONG` bytes on it takes a page of the file system's room, as in Linux.
pub struct LinkText {
    text: Box<[u8]>,
    room: Option<&'static Quota>,
}

const LONG: usize = 128;

impl LinkText {
    /// # Errors
    /// `NoSpace`.
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

    /// In units of 512 bytes.
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

/// A file.
pub struct Inode {
    /// Number, unique in its file system. Const.
    pub ino: u64,
    /// Device number of the file system. Const.
    pub dev: u64,
    /// Type bits (const) and permission bits. Atomic.
    mode: AtomicU32,
    uid: AtomicU32,
    gid: AtomicU32,
    /// Names, or [`LINKABLE`]. Atomic; falls only under the lock of a directory that holds one.
    nlink: AtomicU32,
    /// Device that a device node names. Const.
    pub rdev: u64,
    /// See [`NewInode::charge`]. Const.
    charge: Option<&'static Quota>,
    /// Its memory, charged to who made it. Const.
    _memory: MemoryCharge,
    /// Bytes of a regular file; changed under [`Inode::lock`].
    size: AtomicU64,
    atime: AtomicI64,
    mtime: AtomicI64,
    ctime: AtomicI64,
    /// Serialises writers of the data and of the size.
    pub lock: Mutex<(), InodeLock>,
    /// Locks of programs, once there was one.
    pub locks: Once<Box<FileLocks>>,
    /// What it is. Const.
    pub node: Node,
}

/// Ends a reference on pages; the last one frees them.
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

/// What a new inode starts with.
#[derive(Clone, Copy)]
pub struct NewInode {
    /// Number.
    pub ino: u64,
    /// File system.
    pub dev: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device named.
    pub rdev: u64,
    /// What it and its names are charged to: one unit for it with its first name, which the caller has taken, and one
    /// for each further name.
    pub charge: Option<&'static Quota>,
    /// Who pays for its memory.
    pub payer: Payer,
}

/// A timestamp in nanoseconds since 1970.
pub type Nanos = i64;

/// The time now, for timestamps.
pub fn now() -> Nanos {
    task::time::realtime_ns() as i64
}

/// The attributes of an inode at one moment.
#[derive(Clone, Copy, Debug)]
#[expect(
    missing_docs,
    reason = "the fields of struct stat without their prefix"
)]
pub struct Attr {
    pub ino: u64,
    pub dev: u64,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: Nanos,
    pub mtime: Nanos,
    pub ctime: Nanos,
}

impl Inode {
    /// Makes an inode with one link (two for a directory).
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
            nlink: AtomicU32::new(nlink),
            rdev: new.rdev,
            charge: new.charge,
            _memory: MemoryCharge::names(new.payer, size_of::<Inode>() + node.bytes()),
            size: AtomicU64::new(size),
            atime: AtomicI64::new(t),
            mtime: AtomicI64::new(t),
            ctime: AtomicI64::new(t),
            lock: Mutex::new(()),
            locks: Once::new(),
            node,
        }
    }

    /// Type and permission bits.
    pub fn mode(&self) -> u32 {
        self.mode.load(Ordering::Relaxed)
    }

    /// The type bits.
    pub fn kind(&self) -> u32 {
        self.mode() & mode::FMT
    }

    /// Whether this is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == mode::DIR
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.uid.load(Ordering::Relaxed)
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.gid.load(Ordering::Relaxed)
    }

    /// Names.
    pub fn nlink(&self) -> u32 {
        self.nlink.load(Ordering::Relaxed) & !LINKABLE
    }

    /// Bytes of a regular file.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size; [`Inode::lock`] is held.
    pub fn set_size_locked(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Adds names; the lock of the directory concerned is held.
    pub fn add_links(&self, n: u32) {
        self.nlink.fetch_add(n, Ordering::Relaxed);
    }

    /// Counts and charges one more name, unless the last has gone or there are `max`. Tells whether it is the first.
    pub fn add_name(&self, max: u32) -> Result<bool> {
        let first = self.count_name(max)?;
        let paid = |quota: &Quota| quota.charge(&ksync::pin());
        if !first && !self.charge.is_none_or(paid) {
            self.drop_links(1);
            self.unlinked();
            return Err(FsError::NoSpace);
        }
        Ok(first)
    }

    fn count_name(&self, max: u32) -> Result<bool> {
        // A file without a name goes with its last descriptor, which looks at the names under this lock.
        let data = if let Node::File(data) = &self.node {
            Some(data.lock())
        } else {
            None
        };
        let gone = data.as_ref().is_some_and(|data| data.object.is_none());
        let more = |n| match n {
            LINKABLE if !gone => Some(1),
            0 | LINKABLE => None,
            n => (n < max).then_some(n + 1),
        };
        match self
            .nlink
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
        {
            Ok(old) => Ok(old == LINKABLE),
            Err(0 | LINKABLE) => Err(FsError::NotFound),
            Err(_) => Err(FsError::TooManyLinks),
        }
    }

    /// Undoes [`add_name`](Inode::add_name), which told `first`.
    pub fn take_back_name(&self, first: bool) {
        if first {
            self.nlink.store(LINKABLE, Ordering::Relaxed);
        } else {
            self.drop_name();
        }
        self.unlinked();
    }

    /// Gives back what one name, or the file itself, was charged.
    fn refund(&self) {
        if let Some(quota) = self.charge {
            quota.give(&ksync::pin(), 1);
        }
    }

    /// Takes the name of a file away that is no directory; the lock of the directory that held it is held.
    pub fn drop_name(&self) {
        let names = self.nlink.fetch_sub(1, Ordering::Relaxed);
        // The last one is charged with the file, which may still be open.
        if names > 1 {
            self.refund();
        }
    }

    /// Makes a new inode one without a name; `linkable` says whether it may get one.
    pub fn set_nameless(&self, linkable: bool) {
        let links = if linkable { LINKABLE } else { 0 };
        self.nlink.store(links, Ordering::Relaxed);
    }

    /// Takes names away; the lock of the directory concerned is held.
    pub fn drop_links(&self, n: u32) {
        self.nlink.fetch_sub(n, Ordering::Relaxed);
    }

    /// Replaces the permission bits and stamps the change.
    pub fn set_permissions(&self, perm: u32) {
        let fmt = self.kind();
        self.mode.store(fmt | perm & mode::PERM, Ordering::Relaxed);
        self.touch_ctime();
    }

    /// Replaces the owner and the group and stamps the change.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) {
        if let Some(uid) = uid {
            self.uid.store(uid, Ordering::Relaxed);
        }
        if let Some(gid) = gid {
            self.gid.store(gid, Ordering::Relaxed);
        }
        self.touch_ctime();
    }

    /// Sets access and modification times.
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

    /// Stamps a change of attributes.
    pub fn touch_ctime(&self) {
        self.stamp_stores();
        self.ctime.store(now(), Ordering::Relaxed);
    }

    /// Stamps what was stored through mappings of a regular file since the last stamp. The VM records when; it is looked
    /// at before the times are shown, and before something else sets them.
    fn stamp_stores(&self) {
        let Node::File(data) = &self.node else { return };
        let stored = data.lock().object.as_ref().and_then(|o| o.take_stored());
        let Some(stored) = stored else { return };
        let t = monotonic_to_real(hal::time::ns_at(stored)) as i64;
        // A later write has stamped more.
        if t > self.ctime.load(Ordering::Relaxed) {
            self.mtime.store(t, Ordering::Relaxed);
            self.ctime.store(t, Ordering::Relaxed);
        }
    }

    /// Stamps a change of content.
    pub fn touch_mtime(&self) {
        let t = now();
        self.mtime.store(t, Ordering::Relaxed);
        self.ctime.store(t, Ordering::Relaxed);
    }

    /// Stamps an access, as a `relatime` mount does: only if the last access is not newer than
    /// the last change, or a day old. So a file that many read is written at most once.
    pub fn touch_atime(&self) {
        const DAY: Nanos = 86_400_000_000_000;
        let a = self.atime.load(Ordering::Relaxed);
        let changed = self
            .mtime
            .load(Ordering::Relaxed)
            .max(self.ctime.load(Ordering::Relaxed));
        if a <= changed {
            let t = now();
            // Two stamps of one clock reading would make every later access look stale.
            self.atime
                .store(t.max(changed.saturating_add(1)), Ordering::Relaxed);
        } else {
            let t = now();
            if t.saturating_sub(a) > DAY {
                self.atime.store(t, Ordering::Relaxed);
            }
        }
    }

    /// The attributes now. The blocks of a file are counted, in time proportional to its pages: a count kept at hand
    /// would be a word that all who write or map the file write. May be preempted meanwhile.
    pub fn attr(&self) -> Attr {
        self.stamp_stores();
        let size = match &self.node {
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

    /// Frames that hold the contents of a regular file. Takes time in proportion to the file.
    pub fn resident(&self) -> u64 {
        let Node::File(data) = &self.node else {
            return 0;
        };
        let object = data.lock().object.clone();
        let frames = object.as_ref().map_or(0, |o| o.resident());
        release(object);
        frames
    }

    /// Opens a regular file: the pages, for as long as [`Inode::close_data`] is not called.
    ///
    /// Fails with `TextBusy` where `Use` says so.
    pub fn open_data(&self, what: Use) -> Result<ObjectRef> {
        loop {
            match self.try_open_data(what) {
                Err(FsError::TextBusy) if what == Use::Write && self.forget_text() => {}
                result => return result,
            }
        }
    }

    fn try_open_data(&self, what: Use) -> Result<ObjectRef> {
        let Node::File(data) = &self.node else {
            return Err(FsError::Invalid);
        };
        let mut data = data.lock();
        let object = data.object.clone().ok_or(FsError::NotFound)?;
        match what {
            Use::Read => {}
            Use::Write if data.runners > 0 => return Err(FsError::TextBusy),
            Use::Write => data.writers += 1,
            Use::Run if data.writers > 0 => return Err(FsError::TextBusy),
            Use::Run => {
                data.runners += 1;
                data.runs += 1;
            }
        }
        data.opens += 1;
        Ok(object)
    }

    /// Whether the file, which the caller has opened to run it, has been run often; then the count begins anew.
    pub fn is_run_often(&self) -> bool {
        let Node::File(data) = &self.node else {
            return false;
        };
        let mut data = data.lock();
        let often = data.runs >= exec_cache::OFTEN;
        if often {
            data.runs = 0;
        }
        often
    }

    /// Closes what is kept of a program that nobody runs; whether there was anything. May sleep.
    fn forget_text(&self) -> bool {
        exec_cache::forget(|path| ptr::eq(&*path.dentry.inode, self))
    }

    /// Undoes [`Inode::open_data`] with the same `what`; frees the pages if nobody can reach them any more.
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
        }
        release(Some(object));
    }

    /// Frees the pages of a file that has lost its last name, unless it is open. Called where
    /// the name was removed, so that the work is done there and not in an epoch's reclamation.
    pub fn unlinked(&self) {
        if let Node::File(data) = &self.node {
            if data.lock().runners > 0 {
                self.forget_text();
            }
            if self.nlink() > 0 {
                return;
            }
            let mut data = data.lock();
            let own = if data.opens == 0 {
                data.object.take()
            } else {
                None
            };
            drop(data);
            release(own);
        }
    }

    /// The directory in memory that this inode is.
    pub fn dir(&self) -> Result<&Dir> {
        match &self.node {
            Node::Dir(dir) => Ok(dir),
            // Directories made on demand take no new names.
            Node::Dynamic(Dynamic::Dir(_)) => Err(FsError::Perm),
            _ => Err(FsError::NotDir),
        }
    }
}
