//! What the tests of names share: users, processes with a root and a working directory of their own, mounts, and listings.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

use std::sync::{Arc, Mutex};

use crate::support::Calls;
use crate::support::threads::{spawn, wait_for_ends};
pub use crate::support::users::{as_user, user};
use cred::{Cred, Payer};
use hal::uio::IoBuf;
use vfs::context::{FsContext, FsUse};
use vfs::dentry::Dentry;
use vfs::dirfile::read_entries;
use vfs::dynamic::{DynDir, Dynamic};
use vfs::error::{FsError, Result};
use vfs::file::FileRef;
use vfs::full_name::full_name;
use vfs::inode::Inode;
use vfs::mount;
use vfs::open;
use vfs::place::{MountRef, Path};
use vfs::setattr::{NewMode, chmod, chown};
use vfs::superblock::{FsKind, Super};
use vfs::tmpfs::{self, Settings};
use vfs::walk::{Walk, Want};

/// An ordinary user.
pub const USER: u32 = 1000;
/// Another one.
pub const OTHER: u32 = 1001;
/// A group without members, but for the users that a test puts into it.
pub const TEAM: u32 = 50;

/// Starts `other` on any CPU, does `own` meanwhile, and returns what both have returned.
pub fn both<A: Send + 'static, B>(
    other: impl FnOnce(&Calls) -> A + Send + 'static,
    own: impl FnOnce(&Calls) -> B,
) -> (A, B) {
    let slot = Arc::new(Mutex::new(None));
    let theirs = slot.clone();
    spawn(None, move || {
        let result = other(&Calls::of_root());
        *theirs.lock().expect("no panic") = Some(result);
    });
    let own = own(&Calls::of_root());
    wait_for_ends(1);
    let other = slot.lock().expect("no panic").take();
    (other.expect("a result"), own)
}

/// The inode at a path, which root finds. A link at the end is not followed.
pub fn inode(path: &str) -> Arc<Inode> {
    let place = Calls::of_root().find(path).expect("a path that exists");
    place.dentry.inode.clone()
}

/// Gives the file at `path` these permission bits.
pub fn set_mode(path: &str, bits: u32) {
    chmod(&Cred::root(), &inode(path), bits).expect("root may");
}

/// Gives the file at `path` to that user and that group.
pub fn give(path: &str, uid: u32, gid: u32) {
    chown(&Cred::root(), &inode(path), Some(uid), Some(gid)).expect("root may");
}

/// The permission bits of the file at `path`.
pub fn bits(path: &str) -> u32 {
    inode(path).mode() & 0o7777
}

/// The number of links of the file at `path`.
pub fn nlink(path: &str) -> u32 {
    inode(path).nlink()
}

/// The inode number of the file at `path`.
pub fn ino(path: &str) -> u64 {
    inode(path).ino
}

/// A process's view of the tree: its root directory and its working directory.
pub struct View {
    cred: Cred,
    fs: FsUse,
}

impl View {
    /// A view from the root of everything.
    pub fn of(cred: Cred) -> View {
        let fs = FsContext::boot();
        View { cred, fs }
    }

    /// chdir(2), from the working directory so far.
    pub fn chdir(&self, path: &str) -> Result<()> {
        self.fs.context().set_cwd(self.find(path, Want::DIRECTORY)?);
        Ok(())
    }

    /// chroot(2). The working directory stays.
    pub fn chroot(&self, path: &str) -> Result<()> {
        self.fs
            .context()
            .set_root(self.find(path, Want::DIRECTORY)?);
        Ok(())
    }

    /// Calls `f` with a lookup that begins at the working directory.
    pub fn walk<R>(&self, f: impl FnOnce(&Walk) -> Result<R>) -> Result<R> {
        f(&self.fs.context().walk(&self.cred))
    }

    /// The place at a path.
    pub fn find(&self, path: &str, want: Want) -> Result<Path> {
        self.walk(|walk| walk.find(path.as_bytes(), want))
    }

    /// The inode number of what is at a path. A link at the end is followed.
    pub fn ino(&self, path: &str) -> Result<u64> {
        Ok(self.find(path, Want::FOLLOW)?.dentry.inode.ino)
    }

    /// open(2).
    pub fn open(&self, path: &str, flags: u32) -> Result<FileRef> {
        let new = NewMode::exact(0o644);
        self.walk(|walk| open::open(walk, path.as_bytes(), flags, new, &|| Ok(())))
    }

    /// getcwd(2): the name of the working directory, and whether it is below the root.
    pub fn cwd(&self) -> Result<(String, bool)> {
        let fs = self.fs.context();
        let (name, reached) = full_name(&fs.root()?, &fs.cwd()?)?;
        Ok((String::from_utf8_lossy(&name).into_owned(), reached))
    }
}

/// Mounts a new file system in memory on the directory at `path`.
pub fn mount_new(path: &str, settings: Settings, flags: u32) -> Result<()> {
    let over = Calls::of_root().follow(path)?;
    let fs = tmpfs::new_super(FsKind::Tmpfs, settings)?;
    let top = fs.root.clone();
    mount::attach(fs, top, Some(over), String::from("test"), flags).map(drop)
}

/// Mounts a new file system without limits and flags.
pub fn mount_plain(path: &str) -> Result<()> {
    let mut settings = Settings::new(0o755);
    (settings.limit, settings.inodes) = (None, None);
    mount_new(path, settings, 0)
}

/// Mounts what is at `from` on `path` as well.
pub fn bind(from: &str, path: &str, flags: u32) -> Result<()> {
    let root = Calls::of_root();
    let (from, over) = (root.follow(from)?, root.follow(path)?);
    let fs = from.mount.fs.clone();
    mount::attach(fs, from.dentry, Some(over), String::from("bind"), flags).map(drop)
}

/// Mounts a new file system on the directory at `path`, whose root is `dir`, made on demand, with these permissions.
pub fn mount_made(path: &str, dir: impl DynDir + 'static, perm: u32) -> Result<()> {
    let over = Calls::of_root().follow(path)?;
    let dev = mount::new_dev();
    let top = Dynamic::Dir(Box::new(dir)).inode(dev, 1, perm, (0, 0));
    let top = Dentry::new(None, b"", top, Payer::NOBODY);
    let fs = Arc::new(Super {
        kind: FsKind::Proc,
        dev,
        root: top.clone(),
        quota: None,
        inodes: None,
    });
    mount::attach(fs, top, Some(over), String::from("made"), 0).map(drop)
}

/// Takes the mount that is seen at `path` out of the tree; `detach` says that it may be in use.
pub fn umount(path: &str, detach: bool) -> Result<()> {
    let place = Calls::of_root().follow(path)?;
    if !Arc::ptr_eq(&place.mount.root, &place.dentry) {
        return Err(FsError::Invalid);
    }
    let mount: MountRef = place.mount.clone();
    drop(place);
    match mount::detach(&mount, 1, detach) {
        Err(FsError::Busy) => {
            // What was freed keeps its references until the end of a grace period.
            mem::epoch().drain();
            mount::detach(&mount, 1, detach)
        }
        result => result,
    }
}

/// A record of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub name: String,
    pub ino: u64,
    /// The position from which to go on.
    pub next: u64,
    /// The type, as getdents64(2) numbers it.
    pub kind: u8,
}

/// Reads entries of an open directory once, into a buffer of so many bytes.
pub fn read_some(dir: &FileRef, bytes: usize) -> Result<Vec<Record>> {
    let mut buffer = vec![0; bytes];
    let len = read_entries(dir, &mut IoBuf::Fill(&mut buffer), fscore::dirent::pack64)?;
    let (mut records, mut at) = (Vec::new(), 0);
    while at < len {
        let word = |from: usize| {
            let bytes = buffer[from..from + 8].try_into().expect("eight bytes");
            u64::from_le_bytes(bytes)
        };
        let size = usize::from(buffer[at + 16]) | usize::from(buffer[at + 17]) << 8;
        let name = &buffer[at + fscore::dirent::HEADER64..at + size];
        let end = name.iter().position(|&b| b == 0).expect("a NUL");
        records.push(Record {
            name: String::from_utf8_lossy(&name[..end]).into_owned(),
            ino: word(at),
            next: word(at + 8),
            kind: buffer[at + 18],
        });
        at += size;
    }
    Ok(records)
}

/// Reads all that is left of an open directory, with a buffer of so many bytes.
pub fn read_rest(dir: &FileRef, bytes: usize) -> Result<Vec<Record>> {
    let mut all = Vec::new();
    loop {
        let part = read_some(dir, bytes)?;
        if part.is_empty() {
            return Ok(all);
        }
        all.extend(part);
    }
}

/// The names of records, without `.` and `..`.
pub fn names(records: &[Record]) -> Vec<&str> {
    let all = records.iter().map(|record| record.name.as_str());
    all.filter(|name| !matches!(*name, "." | "..")).collect()
}

/// Frees what the epoch and the background thread of the kernel would free sooner or later.
pub fn free_all() {
    loop {
        mem::epoch().drain();
        if !vfs::leftover::finish() {
            return;
        }
    }
}
