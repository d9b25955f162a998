//! Restrictions on links and files in directories that all may write, and on hard links to files of other users.
//!
//! Guarantee: with the settings at their defaults, no process follows a symbolic link, or opens with `O_CREAT` a file, that
//! another user has put in a directory that all may write (with the sticky bit); and no process makes a hard link to a file
//! of another user that it could not write itself. The rules are those of Linux 6.1 (proc(5), `/proc/sys/fs/protected_*`);
//! the defaults are those of Debian.

use ksync::atomic::{AtomicU64, Ordering};

use cred::Cred;
use fscore::perm;

use super::error::{FsError, Result};
use super::inode::{Inode, mode};
use super::rights::{owns, permitted};

/// A setting: the higher, the more is forbidden.
pub struct Level {
    /// Atomic.
    now: AtomicU64,
    most: u64,
}

impl Level {
    const fn new(now: u64, most: u64) -> Level {
        let now = AtomicU64::new(now);
        Level { now, most }
    }

    /// The value now.
    pub fn get(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Sets the value.
    ///
    /// # Errors
    /// `Invalid` if it is larger than the setting allows.
    pub fn set(&self, value: u64) -> Result<()> {
        if value > self.most {
            return Err(FsError::Invalid);
        }
        self.now.store(value, Ordering::Relaxed);
        Ok(())
    }
}

hal::machine_static! {
    /// `protected_symlinks`.
    pub static SYMLINKS: Level = Level::new(1, 1);
    /// `protected_hardlinks`.
    pub static HARDLINKS: Level = Level::new(1, 1);
    /// `protected_regular`.
    pub static REGULAR: Level = Level::new(2, 2);
    /// `protected_fifos`.
    pub static FIFOS: Level = Level::new(1, 2);
}

/// Checks that `cred` may follow the link `link`, at the end of a path, in the directory `dir`. The superuser is not exempt.
pub fn may_follow(cred: &Cred, dir: &Inode, link: &Inode) -> Result<()> {
    const LAID: u32 = mode::STICKY | 0o002;
    let harmless = dir.mode() & LAID != LAID
        || link.uid() == cred.fsuid
        || link.uid() == dir.uid()
        || SYMLINKS.get() == 0;
    if harmless {
        Ok(())
    } else {
        Err(FsError::Access)
    }
}

/// Checks that `cred` may make another name of the file.
pub fn may_link(cred: &Cred, inode: &Inode) -> Result<()> {
    if HARDLINKS.get() == 0 || owns(cred, inode) {
        return Ok(());
    }
    let bits = inode.mode();
    let privileged = bits & mode::SUID != 0 || bits & (mode::SGID | 0o010) == mode::SGID | 0o010;
    let safe = inode.kind() == mode::REG
        && !privileged
        && permitted(cred, inode, perm::READ | perm::WRITE).is_ok();
    if safe { Ok(()) } else { Err(FsError::Perm) }
}

/// Checks that `cred` may open with `O_CREAT` a file that exists already in `dir`.
pub fn may_create_over(cred: &Cred, dir: &Inode, inode: &Inode) -> Result<()> {
    let bits = dir.mode();
    if bits & mode::STICKY == 0 || inode.uid() == dir.uid() || inode.uid() == cred.fsuid {
        return Ok(());
    }
    // For other types of files there is no setting: they are refused in a directory that all may write, and allowed in one
    // that the group may write.
    let level = match inode.kind() {
        mode::REG => REGULAR.get(),
        mode::FIFO => FIFOS.get(),
        _ => 1,
    };
    let laid = level > 0 && bits & 0o002 != 0 || level > 1 && bits & 0o020 != 0;
    if laid { Err(FsError::Access) } else { Ok(()) }
}
