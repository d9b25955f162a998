//! Dentries: the names of inodes, and the directories that hold them.
//!
//! A [`Dentry`] is one name of one inode. A directory in memory keeps its dentries in a [`NameTable`], which is read without
//! locks, and in an ordered list, which gives the readers of the directory stable cookies. Both change together, under the
//! lock of [`Dir`].
//!
//! Locks: a rename between directories takes [`RENAME`](super::rename::RENAME) first; then come the locks of the directories,
//! ancestors before descendants, then inodes.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use ksync::atomic::{AtomicU32, AtomicU64, Ordering};

use cred::{MemoryCharge, Payer};
use fscore::path;
use ksync::{CpuPin, EpochPtr, Mutex};
use mem::epoch;

use super::backlog::{AT_ONCE, Backlog};
use super::error::{FsError, Result};
use super::inode::Inode;
use super::name_hash::name_hash;
use super::notify::event::ev;
use super::table::{NameTable, Named};

ksync::lock_class!(pub DirLock, "directory", rank = 44);

hal::machine_static! {
    /// See [`moves`].
    static MOVES: AtomicU64 = AtomicU64::new(0);
}

/// The number of times that a directory got another parent. It is counted after each of them, and
/// [`RENAME`](super::rename::RENAME) is held from before the one until after the other: if a walk up the tree finds the same
/// number at its end as at its beginning, all that it has seen was so at one moment.
pub fn moves() -> u64 {
    MOVES.load(Ordering::Acquire)
}

/// Parent and name of a dentry; a rename replaces it as a whole, so that of two names in one directory one ends when the other
/// begins. In a move to another directory, the new name begins before the old one ends if the two consist of the same letters: a
/// lookup compares the letters only, and the dentry is in the tables of both directories for a moment. rename(2) allows that.
struct Place {
    parent: Option<Arc<Dentry>>,
    name: Box<[u8]>,
    /// The hash of the name.
    hash: u32,
    /// Charged to the user that created the name.
    charge: MemoryCharge,
}

/// Bytes charged for a name besides its letters: the dentry, its place, and its entries in the directory's table and list.
const NAME_BYTES: usize = 192;

/// Bytes charged for a name made on demand besides its letters: the dentry, its place, its inode, and what that holds.
const MADE_BYTES: usize =
    size_of::<Dentry>() + size_of::<Place>() + size_of::<Inode>() + MADE_CONTENT;
/// An estimate of what such an inode holds, and of the reference counts of all these objects.
const MADE_CONTENT: usize = 96;

impl Place {
    fn new(parent: Option<Arc<Dentry>>, name: &[u8], charge: MemoryCharge) -> Box<Place> {
        Box::new(Place {
            parent,
            name: Box::from(name),
            hash: name_hash(name),
            charge,
        })
    }
}

/// Charges `payer` for a name in a directory.
fn name_charge(payer: Payer, name: &[u8]) -> MemoryCharge {
    MemoryCharge::names(payer, NAME_BYTES + name.len())
}

/// Flag: the dentry has been removed from its directory, or never was in one.
const DEAD: u32 = 1;
/// Flag: a file system is mounted on the dentry. A dentry in a directory never gets both flags: a removal fails because of
/// this one, and a mount because of the other.
const MOUNTPOINT: u32 = 2;
/// Flag: the directory that holds the name is [watched](super::notify), or was. Set and cleared under that directory's lock.
const IN_WATCHED: u32 = 4;

/// A name of an inode.
pub struct Dentry {
    /// The inode. Constant.
    pub inode: Arc<Inode>,
    /// Parent and name. Written under the parent's lock.
    place: EpochPtr<Box<Place>>,
    /// Atomic.
    flags: AtomicU32,
    /// The dentry's cookie in its directory's ordered list. Written under that directory's lock.
    cookie: AtomicU64,
}

impl Dentry {
    /// A name that is not in a directory yet. It is charged to `payer`.
    pub fn new(
        parent: Option<Arc<Dentry>>,
        name: &[u8],
        inode: Arc<Inode>,
        payer: Payer,
    ) -> Arc<Self> {
        Self::charged(parent, name, inode, name_charge(payer, name))
    }

    /// A name that is in no directory, and whose inode has no other name: it exists as long as a reference to it does. It is
    /// charged to `payer` together with its inode and `more` bytes of further memory that only it keeps; the charge ends with
    /// the last reference, as descriptors are closed.
    pub fn made(
        parent: Option<Arc<Dentry>>,
        name: &[u8],
        inode: Arc<Inode>,
        more: usize,
        payer: Payer,
    ) -> Arc<Self> {
        let charge = MemoryCharge::new(payer, MADE_BYTES + name.len() + more);
        Self::charged(parent, name, inode, charge)
    }

    fn charged(
        parent: Option<Arc<Dentry>>,
        name: &[u8],
        inode: Arc<Inode>,
        charge: MemoryCharge,
    ) -> Arc<Self> {
        Arc::new(Dentry {
            inode,
            place: EpochPtr::new(Some(Place::new(parent, name, charge))),
            flags: AtomicU32::new(0),
            cookie: AtomicU64::new(0),
        })
    }

    /// The name now.
    pub fn name<'p>(&'p self, pin: &'p CpuPin) -> &'p [u8] {
        self.place.load(pin).map_or(&[], |p| &p.name)
    }

    /// The directory that holds the name; `None` for the root of a file system.
    pub fn parent<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Arc<Dentry>> {
        self.place.load(pin)?.parent.as_ref()
    }

    /// The name and the directory that holds it, as they are or were together.
    pub fn place<'p>(&'p self, pin: &'p CpuPin) -> (&'p [u8], Option<&'p Arc<Dentry>>) {
        let place = self.place.load(pin);
        place.map_or((&[], None), |p| (&p.name, p.parent.as_ref()))
    }

    /// Gives the dentry another parent and name, which is charged to the payer of the old one. The caller holds the locks of
    /// both directories, and [`RENAME`](super::rename::RENAME) if they are two. The tables stay as they are.
    pub(super) fn move_to(&self, parent: &Arc<Dentry>, name: &[u8]) {
        let (payer, moves) = {
            let pin = ksync::pin();
            let is_it = |up: &Arc<Dentry>| Arc::ptr_eq(up, parent);
            let moves = self.inode.is_dir() && !self.parent(&pin).is_some_and(is_it);
            let old = self.place.load(&pin);
            (
                old.map_or(Payer::NOBODY, |place| place.charge.payer()),
                moves,
            )
        };
        let place = Place::new(Some(parent.clone()), name, name_charge(payer, name));
        let pin = ksync::pin();
        self.place.replace(epoch(), &pin, Some(place));
        self.note_watched_in(&parent.inode);
        if moves {
            MOVES.fetch_add(1, Ordering::Release);
        }
    }

    /// The cookie. The caller holds the lock of the directory.
    pub(super) fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Relaxed)
    }

    /// Whether the name has been removed.
    pub fn is_dead(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DEAD != 0
    }

    /// Marks a dentry that is in no directory as removed.
    pub fn bury(&self) {
        self.flags.fetch_or(DEAD, Ordering::Release);
    }

    /// Whether a file system is mounted on the dentry.
    pub fn is_mountpoint(&self) -> bool {
        self.flags.load(Ordering::Acquire) & MOUNTPOINT != 0
    }

    /// Records that a file system is mounted on the dentry; false if the dentry has been removed. The caller holds the mount
    /// table's lock.
    pub fn set_mountpoint(&self) -> bool {
        self.set_unless(MOUNTPOINT, DEAD)
    }

    /// Records that no file system is mounted on the dentry any more. The caller holds the mount table's lock.
    pub fn clear_mountpoint(&self) {
        self.flags.fetch_and(!MOUNTPOINT, Ordering::Release);
    }

    /// Whether the file or the directory that holds the name may be watched: for an operation on the file by this name.
    #[inline]
    pub fn may_be_watched(&self) -> bool {
        self.is_in_watched() || self.inode.is_watched()
    }

    /// Whether the directory that holds the name is watched, or was.
    #[inline]
    pub(super) fn is_in_watched(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & IN_WATCHED != 0
    }

    /// Records that the name is in `dir`, in case that is watched. The caller holds the lock of that directory, or nobody else
    /// knows the dentry yet.
    pub(super) fn note_watched_in(&self, dir: &Inode) {
        if dir.is_watched() && !self.is_in_watched() {
            self.flags.fetch_or(IN_WATCHED, Ordering::Relaxed);
        }
    }

    /// Records that the directory `dir` is watched no more, if it still holds the name. Tries for its lock; without it nothing is
    /// changed.
    pub(super) fn forget_watched(&self, dir: &Arc<Dentry>) {
        let Some(_list) = dir.inode.dir().ok().and_then(|d| d.list.try_lock()) else {
            return;
        };
        let pin = ksync::pin();
        let is_in = self.parent(&pin).is_some_and(|up| Arc::ptr_eq(up, dir));
        if is_in && !dir.inode.is_watched() {
            self.flags.fetch_and(!IN_WATCHED, Ordering::Relaxed);
        }
    }

    /// Sets `flag`, in one step with a test that `other` is not set. Returns whether it was not.
    fn set_unless(&self, flag: u32, other: u32) -> bool {
        let set = |flags| (flags & other == 0).then_some(flags | flag);
        self.flags
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, set)
            .is_ok()
    }
}

impl Named for Dentry {
    fn hash(&self) -> u32 {
        self.place.load(&ksync::pin()).map_or(0, |p| p.hash)
    }

    fn is_named(&self, pin: &CpuPin, hash: u32, name: &[u8]) -> bool {
        let place = self.place.load(pin);
        place.is_some_and(|p| p.hash == hash && path::same(&p.name, name))
    }
}

/// Steps up the tree in one section with preemption off: directories may be nested as deep as memory allows.
pub const STEPS: usize = 256;

impl Drop for Dentry {
    fn drop(&mut self) {
        let parent = self.place.take().and_then(|p| p.parent);
        if let Some(rest) = end_chain(parent, AT_ONCE) {
            CHAINS.push(rest);
        }
    }
}

/// Drops a reference to a dentry and, if it was the last one, that which the dentry held on its parent, and so on upwards,
/// for up to `most` dentries. Returns the reference that is to be dropped next, if any are left. A loop, because a recursion
/// could overflow the kernel's stack.
fn end_chain(mut next: Option<Arc<Dentry>>, most: usize) -> Option<Arc<Dentry>> {
    let mut count = 0;
    while let Some(parent) = next {
        if count == most {
            return Some(parent);
        }
        count += 1;
        next = match Arc::into_inner(parent) {
            Some(mut last) => last.place.take().and_then(|p| p.parent),
            None => None,
        };
    }
    None
}

hal::machine_static! {
    /// References to directories, perhaps the last ones; with each go the directories above that nothing else refers to.
    static CHAINS: Backlog<Arc<Dentry>> = Backlog::new();
}

/// Frees the chains of removed directories that were too long to be freed at once; returns whether there were any. Called
/// with preemption on.
pub(super) fn finish_chains() -> bool {
    CHAINS.finish(|from| drop(end_chain(Some(from), usize::MAX)))
}

/// The first cookie of a name: 0 is that of `.` and 1 that of `..`, which every directory has.
const FIRST_COOKIE: u64 = 2;

/// What a directory's lock guards besides the table.
pub struct DirList {
    /// The dentries by cookie, in the order in which they were added.
    entries: BTreeMap<u64, Arc<Dentry>>,
    next: u64,
    /// The directory has been removed: no name may be added to it.
    pub(super) dead: bool,
}

/// A directory in memory. It holds a reference to each of its dentries.
pub struct Dir {
    pub(super) table: NameTable<Dentry>,
    pub(super) list: Mutex<DirList, DirLock>,
}

impl Default for Dir {
    fn default() -> Self {
        Self::new()
    }
}

/// An entry, as it is passed to a reader of the directory.
pub struct Listed {
    /// The cookie from which to go on after this entry.
    pub next: u64,
    /// The dentry.
    pub dentry: Arc<Dentry>,
}

impl Dir {
    /// An empty directory. It allocates nothing.
    pub const fn new() -> Self {
        let list = DirList {
            entries: BTreeMap::new(),
            next: FIRST_COOKIE,
            dead: false,
        };
        Dir {
            table: NameTable::new(),
            list: Mutex::new(list),
        }
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.table.count()
    }

    /// Whether the directory has no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds a name, without a lock or a write.
    pub fn find<'p>(&'p self, pin: &'p CpuPin, name: &[u8]) -> Option<&'p Arc<Dentry>> {
        self.table.find(pin, name_hash(name), name)
    }

    /// Finds a name and takes a reference.
    pub fn get(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        let pin = ksync::pin();
        self.find(&pin, name).cloned()
    }

    /// Appends the entries from cookie `from` on to `out`, up to its capacity. Takes the directory's lock.
    pub fn list(&self, from: u64, out: &mut Vec<Listed>) {
        let list = self.list.lock();
        let room = out.capacity() - out.len();
        for (cookie, dentry) in list.entries.range(from.max(FIRST_COOKIE)..).take(room) {
            out.push(Listed {
                next: cookie + 1,
                dentry: dentry.clone(),
            });
        }
    }

    /// Adds a name for the inode that `make` returns. The name is charged to `payer`. `make` is called under the directory's
    /// lock, and only if the name is free. Sets the directory's times. Errors: `NotFound` in a directory that has been removed;
    /// `Exists`; the error of `make`; `NoMemory`, after `make` has been called. Then the directory is as before.
    pub fn create(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        payer: Payer,
        make: impl FnOnce() -> Result<Arc<Inode>>,
    ) -> Result<Arc<Dentry>> {
        let mut list = self.list.lock();
        if list.dead {
            return Err(FsError::NotFound);
        }
        if self.get(name).is_some() {
            return Err(FsError::Exists);
        }
        let inode = make()?;
        let is_dir = inode.is_dir();
        let dentry = Dentry::new(Some(this.clone()), name, inode, payer);
        dentry.note_watched_in(&this.inode);
        self.table.insert(&dentry)?;
        list.add(dentry.clone());
        if is_dir {
            this.inode.add_links(1);
        }
        this.inode.touch_mtime();
        // A new file has no watches; one that gets another name may.
        dentry.inode.tell(ev::ATTRIB);
        this.inode.tell_of_name(ev::CREATE, name, &dentry.inode, 0);
        Ok(dentry)
    }

    /// Removes a name if `check` allows it for the inode, and drops the inode's count of names. Returns the dentry. A
    /// directory must be empty; no name can be added to it afterwards. The caller lets a file be [`Inode::unlinked`]. Takes
    /// the directory's lock and, under it, that of a directory that is removed. Errors: `NotFound`; the error of `check`;
    /// `Busy` for a mount point; `NotEmpty`. Then nothing has changed.
    pub fn remove(
        &self,
        this: &Arc<Dentry>,
        name: &[u8],
        check: impl FnOnce(&Inode) -> Result<()>,
    ) -> Result<Arc<Dentry>> {
        let mut list = self.list.lock();
        let dentry = self.get(name).ok_or(FsError::NotFound)?;
        check(&dentry.inode)?;
        if dentry.is_mountpoint() {
            return Err(FsError::Busy);
        }
        retire_target(&dentry)?;
        self.table.remove(&dentry);
        list.take(&dentry);
        name_is_gone(&dentry);
        if dentry.inode.is_dir() {
            this.inode.drop_links(1);
        }
        this.inode.touch_mtime();
        if !dentry.inode.is_dir() {
            dentry.inode.tell(ev::ATTRIB);
        }
        dentry.inode.end_watches_if_gone();
        this.inode.tell_of_name(ev::DELETE, name, &dentry.inode, 0);
        Ok(dentry)
    }

    /// Records in each dentry that this directory is watched. It was when the call began. Takes the directory's lock for some
    /// dentries at a time. Sleeps.
    pub(super) fn note_watched(&self) {
        let mut from = 0;
        loop {
            let list = self.list.lock();
            let mut count = 0;
            for (cookie, dentry) in list.entries.range(from..).take(STEPS) {
                if !dentry.is_in_watched() {
                    dentry.flags.fetch_or(IN_WATCHED, Ordering::Relaxed);
                }
                (from, count) = (cookie + 1, count + 1);
            }
            if count < STEPS {
                return;
            }
        }
    }

    /// Takes one dentry out of the directory, and returns it, for the teardown of a file system; `None` if the directory is
    /// empty. It does not sleep, because the last reference to a file system may be dropped while an epoch frees what was
    /// retired. By then nothing else can hold the lock.
    pub fn pop(&self) -> Option<Arc<Dentry>> {
        let mut list = self.list.try_lock()?;
        let (_, dentry) = list.entries.pop_last()?;
        self.table.remove(&dentry);
        dentry.flags.fetch_or(DEAD, Ordering::Release);
        Some(dentry)
    }
}

impl DirList {
    /// Adds a dentry to the ordered list.
    pub(super) fn add(&mut self, dentry: Arc<Dentry>) {
        let cookie = self.next;
        self.next += 1;
        self.put(cookie, dentry);
    }

    /// Adds a dentry with the cookie that its name had so far, or the dentry itself: so a listing in progress neither misses the
    /// name nor shows it twice.
    pub(super) fn put(&mut self, cookie: u64, dentry: Arc<Dentry>) {
        dentry.cookie.store(cookie, Ordering::Relaxed);
        self.entries.insert(cookie, dentry);
    }

    /// Takes a dentry out of the ordered list.
    pub(super) fn take(&mut self, dentry: &Dentry) {
        self.entries.remove(&dentry.cookie());
    }
}

/// Marks a dentry as removed, because its name is about to be removed or replaced, and drops the link counts of a directory; for
/// a file [`name_is_gone`] follows. Fails, and changes nothing, with `NotEmpty` for a directory that has entries, and with `Busy`
/// for a mount point. The caller holds the lock of the directory that holds the name; takes that of a directory.
pub(super) fn retire_target(dentry: &Arc<Dentry>) -> Result<()> {
    let inode = &dentry.inode;
    let dies = || dentry.set_unless(DEAD, MOUNTPOINT);
    let die = || dies().then_some(()).ok_or(FsError::Busy);
    if let Ok(dir) = inode.dir() {
        // The lock of a child directory inside that of its parent: ancestors come first.
        let mut list = dir.list.lock_nested();
        if !dir.is_empty() {
            return Err(FsError::NotEmpty);
        }
        die()?;
        list.dead = true;
        inode.drop_links(2);
    } else {
        die()?;
    }
    inode.touch_ctime();
    Ok(())
}

/// Drops the count of names of a file, which is no directory, once no lookup finds the name of `dentry` any more: while one does,
/// the last close of the file must not free its pages. The caller holds the lock of the directory that held the name.
pub(super) fn name_is_gone(dentry: &Dentry) {
    if dentry.inode.dir().is_err() {
        dentry.inode.drop_name();
    }
}
