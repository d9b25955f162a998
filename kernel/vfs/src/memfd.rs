//! Files in memory without a name: memfd_create(2).
//!
//! They lie in file systems that are mounted nowhere and have the default quotas, one for each user: so no user fills another's. That of the
//! super-user is there from boot on; another user's is made with its first file. It is never freed, and is reused for another user once it
//! has no file. A thread that is about to make a file in it then makes it in what is the other user's by then, and that user is not charged.

use alloc::string::String;
use alloc::vec::Vec;

use cred::Cred;
use ksync::{Mutex, Once};

use super::error::{FsError, Result};
use super::file::{File, FileRef, Kind, o};
use super::inode::{Use, seal};
use super::mount;
use super::opened::Regular;
use super::place::Path;
use super::quota;
use super::setattr::NewMode;
use super::superblock::FsKind;
use super::tmpfs::{self, Settings};

ksync::lock_class!(pub SharesLock, "memfd shares", rank = 41);

/// The file system of a user's files.
struct Share {
    uid: u32,
    root: Path,
}

hal::machine_static! {
    /// The root of the super-user's file system.
    static ROOT: Once<Path> = Once::new();
    /// Those of other users.
    static SHARES: Mutex<Vec<Share>, SharesLock> = Mutex::new(Vec::new());
}

/// Makes the super-user's file system. Called once, at boot.
///
/// # Errors
/// Those of [`tmpfs::new_super`].
pub fn mount() -> Result<()> {
    let _ = ROOT.set(new_root()?);
    Ok(())
}

/// Makes a file system.
///
/// # Errors
/// Those of [`tmpfs::new_super`].
fn new_root() -> Result<Path> {
    let fs = tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o777))?;
    let dentry = fs.root.clone();
    let mount = mount::hidden(fs, String::from("memfd"));
    Ok(Path { mount, dentry })
}

/// The root of the file system of user `uid`. Sleeps.
///
/// # Errors
/// Those of [`tmpfs::new_super`]; `NotFound` before [`mount`].
fn root_of(uid: u32) -> Result<Path> {
    if uid == 0 {
        return ROOT.get().cloned().ok_or(FsError::NotFound);
    }
    let mut shares = SHARES.lock();
    if let Some(share) = shares.iter().find(|share| share.uid == uid) {
        return Ok(share.root.clone());
    }
    let unused = |share: &&mut Share| share.root.mount.fs.quota.is_some_and(quota::is_idle);
    if let Some(share) = shares.iter_mut().find(unused) {
        share.uid = uid;
        return Ok(share.root.clone());
    }
    shares.try_reserve(1).map_err(|_| FsError::NoMemory)?;
    let root = new_root()?;
    let share = Share {
        uid,
        root: root.clone(),
    };
    shares.push(share);
    Ok(root)
}

/// Makes an empty file, open for reading and writing, that /proc shows as `memfd:NAME`. `sealable` says whether it can get seals.
/// It is charged to the real user of `cred`. Waits for memory.
///
/// # Errors
/// `NoMemory`; those of [`tmpfs::new_super`] and of [`tmpfs::create_unlisted`].
pub fn create(cred: &Cred, name: &[u8], sealable: bool) -> Result<FileRef> {
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    let root = root_of(cred.uid)?;
    let mut shown = Vec::new();
    shown
        .try_reserve_exact(PREFIX.len() + name.len())
        .map_err(|_| FsError::NoMemory)?;
    shown.extend_from_slice(PREFIX);
    shown.extend_from_slice(name);
    let place = tmpfs::create_unlisted(cred, &root, &shown, NewMode::exact(0o777), true)?;
    let inode = place.dentry.inode.clone();
    if sealable {
        inode.set_seals(0);
    }
    debug_assert!(
        sealable || inode.seals() == seal::SEAL,
        "no other seals yet"
    );
    let opened = Regular::open(&inode, Use::Write)?;
    let flags = o::RDWR | o::LARGEFILE;
    Ok(File::open(Some(place), Kind::Regular(opened), flags))
}

const PREFIX: &[u8] = b"memfd:";
