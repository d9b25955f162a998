//! Dentries: the names of inodes, and the directories that hold them.
//!
//! A [`Dentry`] is one name of one inode. Directories in memory keep theirs in a [`NameTable`]
//! (looked up without locks) and in an ordered list (for reading the directory with stable
//! cookies); both change together under the lock of [`Dir`]. A file system that keeps directories
//! elsewhere uses the same table as its cache.
//!
//! Locks: renames between directories take [`RENAME`] first; then the locks of the directories,
//! ancestors before descendants, otherwise by address; then inodes.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cred::{MemoryCharge, Payer};
use fscore::path::{self, Secret};
use ksync::{CpuPin, EpochPtr, Mutex, Once};
use mem::epoch;

use super::error::{FsError, Result};
use super::inode::Inode;
use super::leftover;
use super::table::NameTable;

ksync::lock_class!(pub RenameLock, "directory renames", rank = 43);
ksync::lock_class!(pub DirLock, "directory", rank = 44);

/// Held by a rename of a directory to another directory: the tree does not change shape under it.
pub static RENAME: Mutex<(), RenameLock> = Mutex::new(());

/// Where a dentry hangs; replaced as a whole by rename.
struct Place {
    parent: Option<Arc<Dentry>>,
    name: Box<[u8]>,
    /// Charged to who made the name.
    charge: MemoryCharge,
}

/// Bytes of a name without its letters: the dentry, its place, and its entries in the directory's tables.
const NAME_BYTES: usize = 192;

/// Bytes of a name that was made on demand, with its inode and what that is for, without its letters.
const MADE_BYTES: usize =
    size_of::<Dentry>() + size_of::<Place>() + size_of::<Inode>() + MADE_CONTENT;
/// What such an inode leads to, and the counts of all of these: an estimate.
const MADE_CONTENT: usize = 96;

impl Place {
    fn new(parent: Option<Arc<Dentry>>, name: &[u8], charge: MemoryCharge) -> Box<Place> {
        Box::new(Place {
            parent,
            name: copy_name(name),
            charge,
        })
    }
}

/// The charge of a name in a directory.
fn name_charge(payer: Payer, name: &[u8]) -> MemoryCharge {
    MemoryCharge::names(payer, NAME_BYTES + name.len())
}

/// The dentry has been removed from its directory.
const DEAD: u32 = 1;
/// Something is mounted here.
const MOUNTPOINT: u32 = 2;

/// A name of an inode.
pub struct Dentry {
    /// The file. Const.
    pub inode: Arc<Inode>,
    /// Parent and name; written under the parent's lock.
    place: EpochPtr<Box<Place>>,
    /// The name's hash; written with `place`.
    hash: AtomicU32,
    /// Atomic.
    flags: AtomicU32,
    /// Position in the directory's ordered list; written under the directory's lock.
    cookie: AtomicU64,
}

/// The secret of all names' hashes. Set at boot, before there is a name.
static SECRET: Once<Secret> = Once::new();

/// Chooses the secret of the names' hashes.
pub fn init() {
    let mut bits = [[0; 8]; 2];
    bits.iter_mut().for_each(|word| drivers::random::fill(word));
    let [begin, factor] = bits.map(u64::from_le_bytes);
    let _ = SECRET.set(Secret::new(begin, factor));
}

#[inline]
fn name_hash(name: &[u8]) -> u32 {
    path::hash(SECRET.get().copied().unwrap_or(Secret::NONE), name)
}

fn copy_name(name: &[u8]) -> Box<[u8]> {
    Box::from(name)
}

impl Dentry {
    /// A name that is not yet in any directory. `payer` pays for it.
    pub fn new(
        parent: Option<Arc<Dentry>>,
        name: &[u8],
        inode: Arc<Inode>,
        payer: Payer,
    ) -> Arc<Self> {
        Self::charged(parent, name, inode, name_charge(payer, name))
    }

    /// A name that is in no directory, with an inode of its own, as long as somebody uses it; with `more` bytes that only this
    /// keeps. `payer` pays for all of it: it comes back when descriptors are closed.
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
            hash: AtomicU32::new(name_hash(name)),
            flags: AtomicU32::new(0),
            cookie: AtomicU64::new(0),
        })
    }

    /// The name's hash.
    pub fn hash(&self) -> u32 {
        self.hash.load(Ordering::Relaxed)
    }

    /// Whether the dentry bears this name now.
    pub fn is_named(&self, pin: &CpuPin, hash: u32, name: &[u8]) -> bool {
        self.hash() == hash
            && self
                .place
                .load(pin)
                .is_some_and(|p| path::same(&p.name, name))
    }

    /// The name now.
    pub fn name<'p>(&'p self, pin: &'p CpuPin) -> &'p [u8] {
        self.place.load(pin).map_or(&[], |p| &p.name)
    }

    /// The directory that holds the name; `None` at the root of a file system.
    pub fn parent<'p>(&'p self, pin: &'p CpuPin) -> Option<&'p Arc<Dentry>> {
        self.place.load(pin)?.parent.as_ref()
    }

    /// Gives the dentry a new place; the locks of both directories are held.
    fn move_to(&self, parent: &Arc<Dentry>, name: &[u8]) {
        let payer = {
            let pin = ksync::pin();
            let old = self.place.load(&pin);
            old.map_or(Payer::NOBODY, |place| place.charge.payer())
        };
        let place = Place::new(Some(parent.clone()), name, name_charge(payer, name));
        let pin = ksync::pin();
        self.hash.store(name_hash(name), Ordering::Relaxed);
        self.place.replace(epoch(), &pin, Some(place));
    }

    /// Whether the name has been removed.
    pub fn is_dead(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DEAD != 0
    }

    /// Marks a dentry that never had a place in a directory.
    pub fn bury(&self) {
        self.flags.fetch_or(DEAD, Ordering::Release);
    }

    /// Whether something is mounted here.
    pub fn is_mountpoint(&self) -> bool {
        self.flags.load(Ordering::Acquire) & MOUNTPOINT != 0
    }

    /// Notes whether something is mounted here; the mount table's lock is held.
    pub fn set_mountpoint(&self, on: bool) {
        if on {
            self.flags.fetch_or(MOUNTPOINT, Ordering::Release);
        } else {
            self.flags.fetch_and(!MOUNTPOINT, Ordering::Release);
        }
    }

    /// Whether `self` is `other` or lies below it. [`RENAME`] is held, so the answer stays true.
    fn is_within(self: &Arc<Self>, other: &Arc<Dentry>) -> bool {
        let mut held: Option<Arc<Dentry>> = None;
        loop {
            let pin = ksync::pin();
            let mut at = held.as_ref().unwrap_or(self);
            for _ in 0..STEPS {
                if Arc::ptr_eq(at, other) {
                    return true;
                }
                match at.parent(&pin) {
                    Some(up) => at = up,
                    None => return false,
                }
            }
            let next = at.clone();
            drop(pin);
            held = Some(next);
        }
    }
}

/// Steps up a tree between points where preemption is possible: directories may lie as deep as there is memory for.
pub const STEPS: usize = 256;

impl Drop for Dentry {
    fn drop(&mut self) {
        let parent = self.place.take().and_then(|p| p.parent);
        if let Some(rest) = end_chain(parent, leftover::AT_ONCE) {
            leftover::leave_chain(rest);
        }
    }
}

/// Gives a reference back, and if it was the last one that on the parent, and so on, up to `most` of them; returns the next one.
/// One by one: a recursion could overflow the kernel's stack.
pub fn end_chain(mut next: Option<Arc<Dentry>>, most: usize) -> Option<Arc<Dentry>> {
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

/// Cookies of the entries that every directory has: `.` is 0, `..` is 1.
const FIRST_COOKIE: u64 = 2;

/// What the directory's lock guards besides the table.
pub struct DirList {
    /// Entries in the order of their creation, by cookie.
    entries: BTreeMap<u64, Arc<Dentry>>,
    next: u64,
    /// The directory has been removed; nothing may be created in it.
    dead: bool,
}

/// A directory in memory.
pub struct Dir {
    table: NameTable,
    list: Mutex<DirList, DirLock>,
}

impl Default for Dir {
    fn default() -> Self {
        Self::new()
    }
}

/// One entry as a reader of the directory sees it.
pub struct Listed {
    /// The cookie after it.
    pub next: u64,
    /// The dentry.
    pub dentry: Arc<Dentry>,
}

impl Dir {
    /// An empty directory; it owns no memory besides itself.
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

    /// Names held.
    pub fn len(&self) -> usize {
        self.table.count()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Finds a name; writes nothing.
    pub fn find<'p>(&'p self, pin: &'p CpuPin, name: &[u8]) -> Option<&'p Arc<Dentry>> {
        self.table.find(pin, name_hash(name), name)
    }

    /// Finds a name and takes a reference.
    pub fn get(&self, name: &[u8]) -> Option<Arc<Dentry>> {
        let pin = ksync::pin();
        self.find(&pin, name).cloned()
    }

    /// Fills `out` with entries from cookie `from` on, at most as many as its capacity.
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

    /// Adds a name for the inode that `make` returns; `payer` pays for the name.
    ///
    /// `make` runs under the directory's lock, only if the name is free. Fails with `Exists`, or
    /// with `NotFound` in a removed directory.
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
        self.table.insert(&dentry)?;
        list.add(dentry.clone());
        if is_dir {
            this.inode.add_links(1);
        }
        this.inode.touch_mtime();
        Ok(dentry)
    }

    /// Removes a name after `check` agreed to what it names.
    ///
    /// A directory must be empty and is closed for new names. Returns the dentry removed.
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
        if dentry.inode.is_dir() {
            this.inode.drop_links(1);
        }
        this.inode.touch_mtime();
        Ok(dentry)
    }

    /// Empties the directory for the teardown of a file system; returns one child, if any.
    ///
    /// Never sleeps, because the last reference may go in an epoch's reclamation; by then nobody
    /// can hold the lock.
    pub fn pop(&self) -> Option<Arc<Dentry>> {
        let mut list = self.list.try_lock()?;
        let (_, dentry) = list.entries.pop_last()?;
        self.table.remove(&dentry);
        dentry.flags.fetch_or(DEAD, Ordering::Release);
        Some(dentry)
    }
}

impl DirList {
    fn add(&mut self, dentry: Arc<Dentry>) {
        let cookie = self.next;
        self.next += 1;
        dentry.cookie.store(cookie, Ordering::Relaxed);
        self.entries.insert(cookie, dentry);
    }

    /// Takes a dentry out of the ordered list.
    fn take(&mut self, dentry: &Dentry) {
        self.entries.remove(&dentry.cookie.load(Ordering::Relaxed));
    }
}

/// Takes one link from what a name leads to, because the name goes away or is overwritten.
///
/// Fails with `NotEmpty` for a directory that has entries.
fn retire_target(dentry: &Arc<Dentry>) -> Result<()> {
    let inode = &dentry.inode;
    if let Ok(dir) = inode.dir() {
        // A child directory's lock inside its parent's: the order is by depth.
        let mut list = dir.list.lock_nested();
        if !dir.is_empty() {
            return Err(FsError::NotEmpty);
        }
        list.dead = true;
        inode.drop_links(2);
    } else {
        inode.drop_name();
    }
    inode.touch_ctime();
    dentry.flags.fetch_or(DEAD, Ordering::Release);
    Ok(())
}

/// What `rename` does about a name that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail.
    NoReplace,
    /// Swap the two names.
    Exchange,
}

/// One side of a rename.
pub struct Side<'a> {
    /// The directory.
    pub dir: &'a Arc<Dentry>,
    /// The name in it.
    pub name: &'a [u8],
    /// The path ended in a slash, so the name must be a directory's.
    pub slash: bool,
}

/// A step of a rename, which the caller may forbid.
pub enum RenameStep<'a> {
    /// `node` leaves `dir`, or is replaced there: by a directory, or as one, if `as_dir`.
    Remove {
        /// The directory.
        dir: &'a Inode,
        /// What it holds.
        node: &'a Inode,
        /// The kind that is expected.
        as_dir: bool,
    },
    /// A name that was not there comes to this directory.
    Add(&'a Inode),
    /// This directory gets another parent, which changes its `..`.
    Reparent(&'a Inode),
}

/// Whether a step may be made.
pub type MayRename<'a> = dyn Fn(RenameStep) -> Result<()> + 'a;

/// A rename in progress: both directories' lists are locked.
struct Rename<'a> {
    from: Side<'a>,
    to: Side<'a>,
    from_dir: &'a Dir,
    to_dir: &'a Dir,
    /// List of the first directory, and of the second if it is another.
    lists: (&'a mut DirList, Option<&'a mut DirList>),
    may: &'a MayRename<'a>,
}

/// Renames within one file system of directories in memory.
///
/// Readers see a name that is replaced lead to the old or the new file at every moment. Returns
/// the dentry that was replaced.
pub fn rename(
    from: Side,
    to: Side,
    mode: RenameMode,
    may: &MayRename,
) -> Result<Option<Arc<Dentry>>> {
    let (from_dir, to_dir) = (from.dir.inode.dir()?, to.dir.inode.dir()?);
    if Arc::ptr_eq(from.dir, to.dir) {
        let mut list = from_dir.list.lock();
        return Rename {
            from,
            to,
            from_dir,
            to_dir,
            lists: (&mut list, None),
            may,
        }
        .run(mode);
    }
    // With the tree's shape held still, "ancestor first" is decidable.
    let _shape = RENAME.lock();
    let (mut from_list, mut to_list);
    if from.dir.is_within(to.dir) {
        to_list = to_dir.list.lock();
        from_list = from_dir.list.lock_nested();
    } else {
        from_list = from_dir.list.lock();
        to_list = to_dir.list.lock_nested();
    }
    let lists = (&mut *from_list, Some(&mut *to_list));
    Rename {
        from,
        to,
        from_dir,
        to_dir,
        lists,
        may,
    }
    .run(mode)
}

impl Rename<'_> {
    fn run(mut self, mode: RenameMode) -> Result<Option<Arc<Dentry>>> {
        if self.lists.0.dead || self.lists.1.as_ref().is_some_and(|l| l.dead) {
            return Err(FsError::NotFound);
        }
        let src = self.from_dir.get(self.from.name).ok_or(FsError::NotFound)?;
        let dst = self.to_dir.get(self.to.name);
        let exchange = mode == RenameMode::Exchange;
        self.check_names(&src, dst.as_ref(), mode)?;
        // Two names of one file: nothing happens, and nobody needs a right to it.
        if dst
            .as_ref()
            .is_some_and(|dst| Arc::ptr_eq(&dst.inode, &src.inode))
        {
            return Ok(None);
        }
        self.check_rights(&src.inode, dst.as_ref().map(|dst| &*dst.inode), exchange)?;
        if src.is_mountpoint() || dst.as_ref().is_some_and(|dst| dst.is_mountpoint()) {
            return Err(FsError::Busy);
        }
        match dst {
            Some(dst) if exchange => {
                self.exchange(&src, &dst);
                Ok(None)
            }
            dst => {
                // Before the name that is replaced goes: from there on nothing can fail.
                self.to_dir.table.reserve(name_hash(self.to.name))?;
                dst.as_ref().map_or(Ok(()), retire_target)?;
                self.shift(&src, dst.as_ref());
                Ok(dst)
            }
        }
    }

    /// What is wrong with the names, whoever asks.
    fn check_names(
        &self,
        src: &Arc<Dentry>,
        dst: Option<&Arc<Dentry>>,
        mode: RenameMode,
    ) -> Result<()> {
        let exchange = mode == RenameMode::Exchange;
        match dst {
            Some(_) if mode == RenameMode::NoReplace => return Err(FsError::Exists),
            None if exchange => return Err(FsError::NotFound),
            Some(dst) if exchange && self.to.slash && !dst.inode.is_dir() => {
                return Err(FsError::NotDir);
            }
            _ => {}
        }
        if (self.from.slash || self.to.slash && !exchange) && !src.inode.is_dir() {
            return Err(FsError::NotDir);
        }
        if self.is_in_one() {
            return Ok(());
        }
        // A directory cannot go below itself, nor take the place of what it lies in.
        if src.inode.is_dir() && self.to.dir.is_within(src) {
            return Err(FsError::Invalid);
        }
        match dst {
            Some(dst) if self.from.dir.is_within(dst) && exchange => Err(FsError::Invalid),
            Some(dst) if self.from.dir.is_within(dst) => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Whether the caller may do it, in the order in which Linux asks.
    fn check_rights(&self, src: &Inode, dst: Option<&Inode>, exchange: bool) -> Result<()> {
        let (from, to) = (&self.from.dir.inode, &self.to.dir.inode);
        (self.may)(RenameStep::Remove {
            dir: from,
            node: src,
            as_dir: src.is_dir(),
        })?;
        (self.may)(match dst {
            None => RenameStep::Add(to),
            Some(dst) => RenameStep::Remove {
                dir: to,
                node: dst,
                as_dir: if exchange { dst.is_dir() } else { src.is_dir() },
            },
        })?;
        if self.is_in_one() {
            return Ok(());
        }
        if src.is_dir() {
            (self.may)(RenameStep::Reparent(src))?;
        }
        match dst {
            Some(dst) if exchange && dst.is_dir() => (self.may)(RenameStep::Reparent(dst)),
            _ => Ok(()),
        }
    }

    /// Whether both names are in one directory.
    fn is_in_one(&self) -> bool {
        self.lists.1.is_none()
    }

    /// The list of the second directory.
    fn second_list(&mut self) -> &mut DirList {
        match &mut self.lists.1 {
            Some(list) => list,
            None => self.lists.0,
        }
    }

    /// Moves `src` to its new name, over `dst`, which has been retired. Cannot fail.
    fn shift(&mut self, src: &Arc<Dentry>, dst: Option<&Arc<Dentry>>) {
        let old_hash = src.hash();
        src.move_to(self.to.dir, self.to.name);
        self.to_dir.table.install(src, dst);
        let same = self.is_in_one();
        if !(same && self.to_dir.table.same_leaf(old_hash, src.hash())) {
            self.from_dir.table.uninstall(old_hash, src);
        }
        self.from_dir.table.add_len(-1);
        self.to_dir.table.add_len(i32::from(dst.is_none()));
        self.lists.0.take(src);
        let to_list = self.second_list();
        if let Some(dst) = dst {
            to_list.take(dst);
        }
        to_list.add(src.clone());
        let (from, to) = (&self.from.dir.inode, &self.to.dir.inode);
        if src.inode.is_dir() {
            from.drop_links(1);
            if dst.is_none() {
                to.add_links(1);
            }
        }
        src.inode.touch_ctime();
        from.touch_mtime();
        to.touch_mtime();
    }

    /// Swaps two names. Cannot fail.
    fn exchange(&mut self, src: &Arc<Dentry>, dst: &Arc<Dentry>) {
        let (src_hash, dst_hash) = (src.hash(), dst.hash());
        let same = self.is_in_one();
        src.move_to(self.to.dir, self.to.name);
        dst.move_to(self.from.dir, self.from.name);
        if !(same && self.from_dir.table.same_leaf(src_hash, dst_hash)) {
            self.to_dir.table.uninstall(dst_hash, dst);
            self.to_dir.table.install(src, None);
            self.from_dir.table.uninstall(src_hash, src);
            self.from_dir.table.install(dst, None);
        }
        if !same {
            self.lists.0.take(src);
            self.second_list().take(dst);
            self.lists.0.add(dst.clone());
            self.second_list().add(src.clone());
        }
        let (from, to) = (&self.from.dir.inode, &self.to.dir.inode);
        match (src.inode.is_dir(), dst.inode.is_dir()) {
            (true, false) => {
                from.drop_links(1);
                to.add_links(1);
            }
            (false, true) => {
                from.add_links(1);
                to.drop_links(1);
            }
            _ => {}
        }
        src.inode.touch_ctime();
        dst.inode.touch_ctime();
        from.touch_mtime();
        to.touch_mtime();
    }
}
