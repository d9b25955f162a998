//! Files in memory without a name: memfd_create(2).
//!
//! They lie in a file system of their own, which is mounted nowhere and has the default quotas; all users share these.

use alloc::string::String;
use alloc::vec::Vec;

use cred::Cred;
use ksync::Once;

use super::error::{FsError, Result};
use super::file::{File, FileRef, Kind, o};
use super::inode::{Use, seal};
use super::mount;
use super::opened::Regular;
use super::place::Path;
use super::setattr::NewMode;
use super::superblock::FsKind;
use super::tmpfs::{self, Settings};

hal::machine_static! {
    /// The root of that file system.
    static ROOT: Once<Path> = Once::new();
}

/// Makes the file system. Called once, at boot.
///
/// # Errors
/// Those of [`tmpfs::new_super`].
pub fn mount() -> Result<()> {
    let fs = tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o777))?;
    let dentry = fs.root.clone();
    let mount = mount::hidden(fs, String::from("memfd"));
    let _ = ROOT.set(Path { mount, dentry });
    Ok(())
}

/// Makes an empty file, open for reading and writing, that /proc shows as `memfd:NAME`. `sealable` says whether it can get seals.
/// It is charged to the user of `cred`. Waits for memory.
///
/// # Errors
/// `NoMemory`; those of [`tmpfs::create_unlisted`].
pub fn create(cred: &Cred, name: &[u8], sealable: bool) -> Result<FileRef> {
    mem::admit_process().map_err(|_| FsError::NoMemory)?;
    let root = ROOT.get().ok_or(FsError::NotFound)?;
    let mut shown = Vec::new();
    shown
        .try_reserve_exact(PREFIX.len() + name.len())
        .map_err(|_| FsError::NoMemory)?;
    shown.extend_from_slice(PREFIX);
    shown.extend_from_slice(name);
    let place = tmpfs::create_unlisted(cred, root, &shown, NewMode::exact(0o777), true)?;
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
