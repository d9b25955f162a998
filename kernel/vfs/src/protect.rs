//! What others may lay for somebody: links and files in directories that everybody may write, and further names of
//! files that are not one's own.
//!
//! Guarantee: with the settings at their usual values nobody is led through a link, or into a file, that somebody else
//! put where all may write, and nobody gives another name to a file that he could not write himself. The rules are those
//! of Linux 6.1 (proc(5), `/proc/sys/fs/protected_*`); the values are those that Debian sets.

use core::sync::atomic::{AtomicU64, Ordering};

use cred::Cred;
use fscore::perm;

use super::error::{FsError, Result};
use super::inode::{Inode, mode};
use super::walk::{owns, permitted};

/// A setting: how much is forbidden.
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

    /// Sets it.
    ///
    /// # Errors
    /// `Invalid` beyond the largest value.
    pub fn set(&self, value: u64) -> Result<()> {
        if value > self.most {
            return Err(FsError::Invalid);
        }
        self.now.store(value, Ordering::Relaxed);
        Ok(())
    }
}

/// `protected_symlinks`.
pub static SYMLINKS: Level = Level::new(1, 1);
/// `protected_hardlinks`.
pub static HARDLINKS: Level = Level::new(1, 1);
/// `protected_regular`.
pub static REGULAR: Level = Level::new(2, 2);
/// `protected_fifos`.
pub static FIFOS: Level = Level::new(1, 2);

/// Whether `cred` may follow the link at the end of a path, which lies in `dir`. There is no exception for the superuser.
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

/// Whether `cred` may give the file another name.
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

/// Whether `cred` may open with `O_CREAT` what is there already, in `dir`.
pub fn may_create_over(cred: &Cred, dir: &Inode, inode: &Inode) -> Result<()> {
    let bits = dir.mode();
    if bits & mode::STICKY == 0 || inode.uid() == dir.uid() || inode.uid() == cred.fsuid {
        return Ok(());
    }
    // Of other kinds the settings say nothing; a directory that all may write is refused, one of a group's is not.
    let level = match inode.kind() {
        mode::REG => REGULAR.get(),
        mode::FIFO => FIFOS.get(),
        _ => 1,
    };
    let laid = level > 0 && bits & 0o002 != 0 || level > 1 && bits & 0o020 != 0;
    if laid { Err(FsError::Access) } else { Ok(()) }
}
