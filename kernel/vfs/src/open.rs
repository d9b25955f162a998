//! open(2) and unlink(2): from a path and flags to a [`File`], and the removal of names.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use fscore::perm;
use ksync::Mutex;
use task::current::current;

use super::context::Origin;
use super::dentry::Dentry;
use super::dynamic::Dynamic;
use super::error::{FsError, Result};
use super::file::{File, FileRef, Kind, o};
use super::inode::{Inode, Node, Use, mode};
use super::kept::Kept;
use super::lost::{Unused, until_used};
use super::notify::event::ev;
use super::notify::told;
use super::opened::{DirFile, Regular};
use super::pipe::open::{open_fifo, reopen};
use super::pipe::state::Pipe;
use super::place::{Path, flag};
use super::printed::Printed;
use super::protect;
use super::regular;
use super::rights::{may_remove, owns, permitted};
use super::setattr::NewMode;
use super::tmpfs::{self, What};
use super::walk::{Last, Walk, Want, child, count_link};

/// The permissions that a file must grant for these flags.
fn wanted(flags: u32) -> u32 {
    let mut want = match flags & o::ACCMODE {
        o::RDONLY => perm::READ,
        o::WRONLY => perm::WRITE,
        _ => perm::READ | perm::WRITE,
    };
    if flags & o::TRUNC != 0 {
        want |= perm::WRITE;
    }
    want
}

/// Flags by which an open creates or empties a file: such an open gets what it needs before it begins. Another one does so
/// when it has found the file.
pub const CHANGING: u32 = o::CREAT | o::TRUNC | o::TMPFILE & !o::DIRECTORY;

fn admit() -> Result<()> {
    mem::admit_process().map_err(|_| FsError::NoMemory)
}

/// What an open calls before it does something that others notice although it neither creates nor empties a file: before it
/// opens a fifo or a device.
pub type Ready<'a> = &'a dyn Fn() -> Result<()>;

/// Opens the file at a path, also if the file loses its name meanwhile: then what has the name now. `new` has the permissions of a new file. Sleeps: for memory, for the other side of a fifo, or in
/// a device's open.
///
/// # Errors
/// Those of open(2), and of `ready`.
pub fn open(walk: &Walk, text: &[u8], flags: u32, new: NewMode, ready: Ready) -> Result<FileRef> {
    let file = open_untold(walk, text, flags, new, ready)?;
    file.tell(ev::OPEN);
    Ok(file)
}

/// As [`open`]; nobody is told that the file is open.
fn open_untold(
    walk: &Walk,
    text: &[u8],
    flags: u32,
    new: NewMode,
    ready: Ready,
) -> Result<FileRef> {
    if flags & CHANGING != 0 {
        admit()?;
    }
    let directory = flags & o::DIRECTORY != 0;
    let follow = flags & o::NOFOLLOW == 0;
    if flags & o::PATH != 0 {
        let want = Want { follow, directory };
        return until_used(|| open_path_only(walk.find(text, want)?, flags));
    }
    if flags & o::TMPFILE == o::TMPFILE {
        return open_nameless(walk, text, flags, new, ready);
    }
    if flags & o::CREAT != 0 {
        return until_used(|| open_or_create(walk, text, flags, new, ready));
    }
    until_used(|| {
        let path = walk.find(text, Want { follow, directory })?;
        open_checked(walk, path, flags, ready)
    })
}

/// truncate(2): sets the size in bytes of the regular file at a path, also if the file loses its name meanwhile, as in [`open`].
/// Sleeps.
///
/// # Errors
/// Those of truncate(2); `Invalid` for what is neither a regular file nor a directory.
pub fn truncate(walk: &Walk, text: &[u8], size: u64) -> Result<()> {
    until_used(|| {
        let place = walk.find(text, Want::FOLLOW)?;
        let inode = &place.dentry.inode;
        if inode.is_dir() {
            return Err(FsError::IsDir.into());
        }
        permitted(walk.cred, inode, perm::WRITE)?;
        if place.mount.is_read_only() {
            return Err(FsError::ReadOnly.into());
        }
        match &inode.node {
            Node::File(_) => {
                regular::truncate(inode, size, false).map_err(|e| Unused::because(inode, e))?;
            }
            // What such a file says has no length.
            Node::Dynamic(Dynamic::File(_)) => {}
            _ => return Err(FsError::Invalid.into()),
        }
        told::tell(&place.dentry, ev::MODIFY, false);
        Ok(())
    })
}

/// Opens a place with `O_PATH`.
fn open_path_only(place: Path, flags: u32) -> Result<FileRef, Unused> {
    admit()?;
    let inode = &place.dentry.inode;
    let kept = Kept::of(inode).map_err(|e| Unused::because(inode, e))?;
    Ok(File::open(Some(place), Kind::Place(kept), flags))
}

/// Checks the permissions of a place that exists, and opens it. With `O_TRUNC` a regular file is emptied before; it stays empty
/// if the open then fails.
fn open_checked(walk: &Walk, path: Path, flags: u32, ready: Ready) -> Result<FileRef, Unused> {
    let inode = &path.dentry.inode;
    let want = wanted(flags);
    match inode.kind() {
        mode::LNK => return Err(FsError::Loop.into()),
        mode::DIR if want & perm::WRITE != 0 => return Err(FsError::IsDir.into()),
        _ => {}
    }
    permitted(walk.cred, inode, want)?;
    if flags & o::NOATIME != 0 && !owns(walk.cred, inode) {
        return Err(FsError::Perm.into());
    }
    // What is written to these is not on the mount.
    let special = matches!(
        inode.kind(),
        mode::CHR | mode::BLK | mode::FIFO | mode::SOCK
    );
    if want & perm::WRITE != 0 && path.mount.is_read_only() && !special {
        return Err(FsError::ReadOnly.into());
    }
    if flags & o::TRUNC != 0 && inode.kind() == mode::REG && matches!(inode.node, Node::File(_)) {
        regular::truncate(inode, 0, true).map_err(|e| Unused::because(inode, e))?;
        told::tell(&path.dentry, ev::MODIFY, false);
    }
    open_place(path, flags, ready)
}

/// Opens with `O_CREAT`. It follows symbolic links at the last component itself, because the file that a link names may have
/// to be created.
fn open_or_create(
    walk: &Walk,
    text: &[u8],
    flags: u32,
    new: NewMode,
    ready: Ready,
) -> Result<FileRef, Unused> {
    let mut base: Option<Path> = None;
    let mut owned: Option<Vec<u8>> = None;
    let mut links = 0;
    loop {
        let text = owned.as_deref().unwrap_or(text);
        let walk = Walk {
            base: base.as_ref().map_or(walk.base, Origin::At),
            ..*walk
        };
        let followed = links;
        let (dir, last) = walk.parent_counted(text, &mut links)?;
        let name = file_name(last, flags)?;
        let found = match child(&dir, name) {
            Err(FsError::NotFound) => {
                match tmpfs::create(walk.cred, &dir, name, &What::File, new) {
                    Ok(dentry) => return open_created(dir, dentry, flags, ready),
                    // Another thread has created it meanwhile. The text is walked again, so its links are counted again.
                    Err(FsError::Exists) => {
                        if current().kill_pending() {
                            return Err(FsError::Interrupted.into());
                        }
                        links = followed;
                        continue;
                    }
                    Err(e) => return Err(e.into()),
                }
            }
            found => found?,
        };
        if flags & o::EXCL != 0 {
            return Err(FsError::Exists.into());
        }
        match &found.dentry.inode.node {
            Node::Link(to) if flags & o::NOFOLLOW == 0 => {
                count_link(&mut links)?;
                protect::may_follow(walk.cred, &dir.dentry.inode, &found.dentry.inode)?;
                let to = to.to_vec();
                let absolute = to.first() == Some(&b'/');
                base = Some(if absolute { walk.root.owned()? } else { dir });
                owned = Some(to);
            }
            Node::Dynamic(Dynamic::Link(_)) if flags & o::NOFOLLOW == 0 => {
                let base = Origin::At(&dir);
                let from_dir = Walk { base, ..walk };
                let found = from_dir.find_counted(name, Want::FOLLOW, &mut links)?;
                return open_checked(&walk, found, flags, ready);
            }
            _ => return open_existing(&walk, &dir, found, flags, ready),
        }
    }
}

/// The last component, for an open with `O_CREAT`: it must be one that may name a file.
fn file_name(last: Last<'_>, flags: u32) -> Result<&[u8]> {
    match last {
        Last::Name(name, false) => Ok(name),
        Last::Name(_, true) => Err(FsError::IsDir),
        _ if flags & o::EXCL != 0 => Err(FsError::Exists),
        _ => Err(FsError::IsDir),
    }
}

/// Opens the file that has just been created in `dir`. Its permissions do not apply to the open that creates it.
fn open_created(
    dir: Path,
    dentry: Arc<Dentry>,
    flags: u32,
    ready: Ready,
) -> Result<FileRef, Unused> {
    let mount = dir.mount;
    open_place(Path { mount, dentry }, flags & !o::TRUNC, ready)
}

/// Opens with `O_CREAT` what exists in `dir` and is not a link to be followed.
fn open_existing(
    walk: &Walk,
    dir: &Path,
    found: Path,
    flags: u32,
    ready: Ready,
) -> Result<FileRef, Unused> {
    let inode = &found.dentry.inode;
    if inode.is_dir() {
        return Err(FsError::IsDir.into());
    }
    protect::may_create_over(walk.cred, &dir.dentry.inode, inode)?;
    if flags & o::DIRECTORY != 0 {
        return Err(FsError::NotDir.into());
    }
    open_checked(walk, found, flags, ready)
}

/// Opens with `O_TMPFILE`: creates a file without a name in the file system of a directory. Fails with `Invalid` unless it is
/// opened for writing.
fn open_nameless(
    walk: &Walk,
    text: &[u8],
    flags: u32,
    new: NewMode,
    ready: Ready,
) -> Result<FileRef> {
    if flags & o::ACCMODE == o::RDONLY {
        return Err(FsError::Invalid);
    }
    let dir = walk.find(text, Want::DIRECTORY)?;
    let place = tmpfs::create_nameless(walk.cred, &dir, new, flags & o::EXCL != 0)?;
    open_place(place, flags, ready).map_err(Unused::error)
}

/// Opens a place. The caller has checked the permissions. Sleeps, see [`open`]. Fails with `Loop` for a symbolic link, with
/// `NoDevAddr` for a socket, and with `Access` for a device on a mount with the flag `nodev`.
fn open_place(path: Path, flags: u32, ready: Ready) -> Result<FileRef, Unused> {
    if flags & CHANGING == 0 {
        admit()?;
    }
    let inode = path.dentry.inode.clone();
    let kind = match &inode.node {
        Node::Dir(_) | Node::Dynamic(Dynamic::Dir(_)) => Kind::Dir(DirFile),
        Node::File(_) => {
            let what = match flags & o::ACCMODE {
                o::RDONLY => Use::Read,
                _ => Use::Write,
            };
            let opened = Regular::open(&inode, what);
            Kind::Regular(opened.map_err(|e| Unused::because(&inode, e))?)
        }
        Node::Link(_) | Node::Dynamic(Dynamic::Link(_)) => return Err(FsError::Loop.into()),
        Node::Fifo(slot) => {
            ready()?;
            Kind::Pipe(open_fifo(fifo_pipe(slot)?, flags)?)
        }
        Node::Pipe(pipe) => {
            let end = reopen(pipe.clone(), flags)?;
            return Ok(File::open(None, Kind::Pipe(end), flags));
        }
        Node::Socket(_) => return Err(FsError::NoDevAddr.into()),
        Node::Queue(queue) => super::queues::open(queue)?,
        Node::Device => {
            if path.mount.flags() & flag::NODEV != 0 {
                return Err(FsError::Access.into());
            }
            ready()?;
            super::devices::open(&path, flags)?
        }
        Node::Dynamic(Dynamic::File(f)) => {
            Kind::Other(Box::new(Printed::new(inode.clone(), f.open(flags)?)))
        }
    };
    Ok(File::open(Some(path), kind, flags))
}

/// The pipe of a fifo, which is made unless the fifo is open or another open waits. Takes the fifo's lock. Waits for memory;
/// `NoMemory` if there is none.
fn fifo_pipe(slot: &Mutex<Weak<Pipe>, super::inode::FifoLock>) -> Result<Arc<Pipe>> {
    if let Some(pipe) = slot.lock().upgrade() {
        return Ok(pipe);
    }
    // It may wait for memory, so not under the lock.
    let new = Pipe::create()?;
    let mut slot = slot.lock();
    if let Some(pipe) = slot.upgrade() {
        return Ok(pipe);
    }
    *slot = Arc::downgrade(&new);
    Ok(new)
}

/// Removes a name that is not a directory's, and frees the file's pages if it was the last one and the file is not open. Sleeps.
/// A name with a slash after it is never removed: it fails with `IsDir` for a directory, else with `NotDir`.
pub fn unlink(walk: &Walk, text: &[u8]) -> Result<()> {
    let (dir, last) = walk.parent(text)?;
    let (name, slash) = match last {
        Last::Name(name, slash) => (name, slash),
        _ => return Err(FsError::IsDir),
    };
    writable_dir(&dir)?;
    let parent = &dir.dentry.inode;
    let gone = remove(&dir, name, |node| match slash {
        true if node.is_dir() => Err(FsError::IsDir),
        true => Err(FsError::NotDir),
        false => may_remove(walk.cred, parent, node, false),
    })?;
    gone.inode.unlinked();
    Ok(())
}

/// Removes an empty directory. Sleeps. The errors for `.`, `..` and the root are those of Linux.
pub fn rmdir(walk: &Walk, text: &[u8]) -> Result<()> {
    let (dir, last) = walk.parent(text)?;
    let name = match last {
        Last::Name(name, _) => name,
        Last::Here => return Err(FsError::Invalid),
        Last::Up => return Err(FsError::NotEmpty),
        Last::Root => return Err(FsError::Busy),
    };
    writable_dir(&dir)?;
    let parent = &dir.dentry.inode;
    remove(&dir, name, |node| may_remove(walk.cred, parent, node, true))?;
    Ok(())
}

/// As [`Dir::remove`](super::dentry::Dir::remove). What is made on demand exists, but cannot be removed.
fn remove(
    dir: &Path,
    name: &[u8],
    check: impl FnOnce(&Inode) -> Result<()>,
) -> Result<Arc<Dentry>> {
    let parent = &dir.dentry.inode;
    match parent.made(name)? {
        Some(node) => check(&node).and(Err(FsError::Perm)),
        None => parent.dir()?.remove(&dir.dentry, name, check),
    }
}

/// Fails with `ReadOnly` on a read-only mount.
pub fn writable_dir(dir: &Path) -> Result<()> {
    if dir.mount.is_read_only() {
        Err(FsError::ReadOnly)
    } else {
        Ok(())
    }
}
