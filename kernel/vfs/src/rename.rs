//! rename(2) within one file system in memory.

use alloc::sync::Arc;

use ksync::Mutex;

use super::dentry::{Dentry, Dir, DirList, name_is_gone, retire_target};
use super::error::{FsError, Result};
use super::inode::Inode;
use super::name_hash::name_hash;
use super::notify::event::ev;
use super::table::Named;

ksync::lock_class!(pub RenameLock, "directory renames", rank = 43);

hal::machine_static! {
    /// Held by a rename between two directories: no other one changes the shape of the tree meanwhile.
    pub static RENAME: Mutex<(), RenameLock> = Mutex::new(());
}

/// What `rename` does if the new name exists already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails with `Exists`.
    NoReplace,
    /// Swaps the two names.
    Exchange,
}

/// The old or the new name of a rename.
pub struct Side<'a> {
    /// The directory.
    pub dir: &'a Arc<Dentry>,
    /// The name in it.
    pub name: &'a [u8],
    /// Whether the path ended in a slash, so that the name must be a directory's.
    pub slash: bool,
}

/// A step of a rename that needs a right.
pub enum RenameStep<'a> {
    /// The name of `node` is removed from `dir` or replaced there. `as_dir` says whether `node` must be a directory: when a
    /// directory is removed, or replaces it.
    Remove {
        /// The directory that holds the name.
        dir: &'a Inode,
        /// The inode that the name refers to.
        node: &'a Inode,
        /// Whether `node` must be a directory.
        as_dir: bool,
    },
    /// A name that does not exist yet is added to this directory.
    Add(&'a Inode),
    /// This directory gets another parent, so that its `..` changes.
    Reparent(&'a Inode),
}

/// Decides whether the caller has the right to make a step.
pub type MayRename<'a> = dyn Fn(RenameStep) -> Result<()> + 'a;

/// A rename in progress. The locks of both directories are held.
struct Rename<'a> {
    from: Side<'a>,
    to: Side<'a>,
    from_dir: &'a Dir,
    to_dir: &'a Dir,
    /// The list of the directory of the old name, and that of the new name's directory if it is another.
    lists: (&'a mut DirList, Option<&'a mut DirList>),
    may: &'a MayRename<'a>,
}

/// Renames within one file system in memory, as the caller has checked. Returns the dentry that was replaced, whose inode the
/// caller lets be [`Inode::unlinked`]. If both are names of one file, nothing is changed. At every moment a lookup of a name
/// that is replaced finds the old file or the new one, and a lookup that begins after another one has missed the old name finds
/// the new one; while two names are swapped it may find neither. Takes [`RENAME`], if the directories are two, and their locks.
/// Errors: `NotFound`; `Exists`; `NotDir`; `Perm` in a directory whose entries are made on demand; `Busy` for a mount point;
/// `Invalid` for a directory moved below itself; `NotEmpty`; `NoMemory`; the error of `may`. Then nothing has changed.
pub fn rename(
    from: Side,
    to: Side,
    mode: RenameMode,
    may: &MayRename,
) -> Result<Option<Arc<Dentry>>> {
    for side in [&from, &to] {
        // Fails with `NotFound` for what could be made on demand and is not; what is cannot be renamed.
        side.dir.inode.made(side.name)?;
    }
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
    // While this lock is held the tree keeps its shape, so it can be told which directory is the ancestor.
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
        // A removed directory has no names, so the other one need not be asked.
        if self.lists.1.as_ref().is_some_and(|l| l.dead) {
            return Err(FsError::NotFound);
        }
        let src = self.from_dir.get(self.from.name).ok_or(FsError::NotFound)?;
        let dst = self.to_dir.get(self.to.name);
        let exchange = mode == RenameMode::Exchange;
        self.check_names(&src, dst.as_ref(), mode)?;
        // Both are names of one file: nothing is changed, and no right is needed.
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
                // This can fail, so it comes before the name that is replaced is removed; nothing after it can fail.
                self.to_dir.table.reserve(name_hash(self.to.name))?;
                dst.as_ref().map_or(Ok(()), retire_target)?;
                self.shift(&src, dst.as_ref());
                if let Some(dst) = &dst {
                    name_is_gone(dst);
                    dst.inode.end_watches_if_gone();
                }
                Ok(dst)
            }
        }
    }

    /// Checks what is independent of the caller's rights.
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
        // A directory cannot be moved below itself, nor replace a directory that it lies in.
        if src.inode.is_dir() && self.to.dir.is_within(src) {
            return Err(FsError::Invalid);
        }
        match dst {
            Some(dst) if self.from.dir.is_within(dst) && exchange => Err(FsError::Invalid),
            Some(dst) if self.from.dir.is_within(dst) => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Checks the caller's rights, in the order in which Linux does.
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

    /// The list of the new name's directory.
    fn second_list(&mut self) -> &mut DirList {
        match &mut self.lists.1 {
            Some(list) => list,
            None => self.lists.0,
        }
    }

    /// Moves `src` to its new name, in place of `dst`, which [`retire_target`] has marked as removed. Cannot fail.
    fn shift(&mut self, src: &Arc<Dentry>, dst: Option<&Arc<Dentry>>) {
        let (old_hash, new_hash) = (src.hash(), name_hash(self.to.name));
        // Where the new name is looked for, before `dst`; it is passed over there until it has that name.
        self.to_dir.table.install(new_hash, src);
        src.move_to(self.to.dir, self.to.name);
        if let Some(dst) = dst {
            self.to_dir.table.uninstall(new_hash, dst);
        }
        let same = self.is_in_one();
        // In one leaf, the installation has taken the old place of `src` out.
        if !(same && self.to_dir.table.same_leaf(old_hash, new_hash)) {
            self.from_dir.table.uninstall(old_hash, src);
        }
        self.from_dir.table.add_len(-1);
        self.to_dir.table.add_len(i32::from(dst.is_none()));
        let kept = dst.or(same.then_some(src)).map(|dentry| dentry.cookie());
        self.lists.0.take(src);
        let to_list = self.second_list();
        if let Some(dst) = dst {
            to_list.take(dst);
        }
        match kept {
            Some(cookie) => to_list.put(cookie, src.clone()),
            None => to_list.add(src.clone()),
        }
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
        self.tell_move(src, dst);
    }

    /// Tells that `src` has its new name, in place of `replaced`.
    fn tell_move(&self, src: &Dentry, replaced: Option<&Arc<Dentry>>) {
        let (from, to) = (&self.from.dir.inode, &self.to.dir.inode);
        tell_names((from, self.from.name), (to, self.to.name), &src.inode);
        if let Some(replaced) = replaced {
            replaced.inode.tell(ev::ATTRIB);
        }
        src.inode.tell(ev::MOVE_SELF);
    }

    /// Swaps the two names. Cannot fail.
    fn exchange(&mut self, src: &Arc<Dentry>, dst: &Arc<Dentry>) {
        let (src_hash, dst_hash) = (src.hash(), dst.hash());
        let same = self.is_in_one();
        src.move_to(self.to.dir, self.to.name);
        dst.move_to(self.from.dir, self.from.name);
        // In one leaf, each is found by the name that it has.
        if !(same && self.from_dir.table.same_leaf(src_hash, dst_hash)) {
            self.to_dir.table.uninstall(dst_hash, dst);
            self.to_dir.table.install(dst_hash, src);
            self.from_dir.table.uninstall(src_hash, src);
            self.from_dir.table.install(src_hash, dst);
        }
        let (src_cookie, dst_cookie) = (src.cookie(), dst.cookie());
        self.lists.0.put(src_cookie, dst.clone());
        self.second_list().put(dst_cookie, src.clone());
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
        self.tell_move(src, None);
        tell_names((to, self.to.name), (from, self.from.name), &dst.inode);
        dst.inode.tell(ev::MOVE_SELF);
    }
}

/// Tells the two directories that a name has left the one and come to the other.
fn tell_names(from: (&Inode, &[u8]), to: (&Inode, &[u8]), file: &Inode) {
    if core::ptr::eq(from.0, to.0) {
        from.0.tell_of_name(ev::RENAME, from.1, file, 0);
    }
    let cookie = from.0.new_cookie(to.0);
    from.0.tell_of_name(ev::MOVED_FROM, from.1, file, cookie);
    to.0.tell_of_name(ev::MOVED_TO, to.1, file, cookie);
}
