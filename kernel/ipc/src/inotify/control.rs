//! The calls that make an instance and change its marks.

use alloc::boxed::Box;
use alloc::sync::Arc;

use vfs::error::{FsError, Result};
use vfs::file::{File, FileRef, Kind, o};
use vfs::inode::Inode;
use vfs::notify::event::ev;

use super::file::InotifyFile;
use super::flag;
use super::instance::Instance;

/// What a call of inotify_add_watch(2) asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request(u32);

impl Request {
    /// The request that a mask makes.
    ///
    /// # Errors
    /// `Invalid` for one that both adds to a mark and is for a new one.
    pub fn new(mask: u32) -> Result<Request> {
        const BOTH: u32 = flag::MASK_ADD | flag::MASK_CREATE;
        if mask & BOTH == BOTH {
            return Err(FsError::Invalid);
        }
        Ok(Request(mask))
    }

    /// The events, and the flags that the mark keeps.
    pub(super) fn wanted(self) -> u32 {
        self.0 & (ev::ALL | flag::EXCL_UNLINK | flag::ONESHOT)
    }

    /// Whether events and flags come to those that the mark has.
    pub(super) fn adds(self) -> bool {
        self.0 & flag::MASK_ADD != 0
    }

    /// Whether there must be no mark yet.
    pub(super) fn creates(self) -> bool {
        self.0 & flag::MASK_CREATE != 0
    }
}

/// Makes an instance, charged to the caller's user, with O_NONBLOCK if `flags` has that.
///
/// # Errors
/// `NoMemory`; `TooManyFiles` if the user has too many.
pub fn make(flags: u32) -> Result<FileRef> {
    let file = InotifyFile::new(Instance::new()?);
    let flags = flags & o::NONBLOCK | o::RDONLY;
    Ok(File::open(None, Kind::Other(Box::new(file)), flags))
}

/// Whether an open file is an instance.
pub fn is_instance(file: &FileRef) -> bool {
    file.ops_as::<InotifyFile>().is_some()
}

fn instance(file: &FileRef) -> Result<&Arc<Instance>> {
    let file: &InotifyFile = file.ops_as().ok_or(FsError::Invalid)?;
    Ok(&file.instance)
}

/// Watches an inode, or changes what is wanted of one that is watched; returns its watch descriptor. When it returns, the names in a
/// directory lead to the watch. The caller holds a reference to a name of the inode, and may read it. Sleeps; takes time in proportion to
/// the names in a directory.
///
/// # Errors
/// `Invalid` for a file of another kind; `Exists`; `NoSpace` if the user has too many; `NoMemory`. Nothing has changed.
pub fn add(file: &FileRef, inode: &Arc<Inode>, request: Request) -> Result<i32> {
    let wd = instance(file)?.mark(inode, request)?;
    // Also where there was one: another thread may have added it, and not be here yet.
    inode.watch_begun();
    Ok(wd)
}

/// Ends a watch.
///
/// # Errors
/// `Invalid` for a file of another kind, and if there is no such watch.
pub fn remove(file: &FileRef, wd: i32) -> Result<()> {
    let mark = instance(file)?.find(wd).ok_or(FsError::Invalid)?;
    mark.remove().then_some(()).ok_or(FsError::Invalid)
}
