//! A file system in memory on the simulated machine, and its calls by path.
#![allow(dead_code, reason = "no test uses all of it")]

pub mod counted;
pub mod users;

use cred::Cred;
use hal::uio::IoBuf;
use vfs::context::{self, Origin, boot_root};
use vfs::dentry::Dentry;
use vfs::error::{FsError, Result};
use vfs::file::{FileRef, o};
use vfs::inode::Node;
use vfs::place::Path;
use vfs::rename::{self, RenameMode, Side};
use vfs::rights::may_rename;
use vfs::setattr::NewMode;
use vfs::superblock::FsKind;
use vfs::tmpfs::{self, Settings, What};
use vfs::walk::{Last, Walk, Want};
use vfs::{open, upcalls};

/// The kernel of the tests of threads.
#[path = "../../../task/tests/support/mod.rs"]
pub mod threads;

/// Nothing limits or interrupts the test.
static NO_PROCESSES: upcalls::Upcalls = upcalls::Upcalls {
    file_size_limit: || u64::MAX,
    file_too_large: || (),
    broken_pipe: || (),
};

/// Runs `body` in a thread of a machine with so many CPUs and an empty root file system.
pub fn on(cpus: usize, body: impl FnOnce() + Send + 'static) {
    threads::on(cpus, move || {
        set_up(cpus).expect("memory for the root file system");
        body();
    });
}

fn set_up(cpus: usize) -> Result<()> {
    upcalls::set(&NO_PROCESSES);
    drivers::random::init(cpus);
    vfs::init(cpus);
    context::mount_root(tmpfs::new_super(FsKind::Tmpfs, Settings::new(0o755))?)
}

/// A user's calls by path, from the root directory.
pub struct Calls {
    cred: Cred,
}

impl Calls {
    /// Those of root.
    pub fn of_root() -> Calls {
        Calls::of(Cred::root())
    }

    /// Those of a thread with these credentials.
    pub fn of(cred: Cred) -> Calls {
        Calls { cred }
    }

    /// The credentials.
    pub fn cred(&self) -> &Cred {
        &self.cred
    }

    fn walk<R>(&self, f: impl FnOnce(&Walk) -> Result<R>) -> Result<R> {
        let root = boot_root()?;
        f(&Walk {
            cred: &self.cred,
            root: Origin::At(root),
            base: Origin::At(root),
        })
    }

    fn make(&self, path: &str, what: &What, perm: u32) -> Result<()> {
        self.walk(|walk| {
            let (dir, last) = walk.parent(path.as_bytes())?;
            let Last::Name(name, _) = last else {
                return Err(FsError::Exists);
            };
            tmpfs::create(&self.cred, &dir, name, what, NewMode::exact(perm)).map(|_| ())
        })
    }

    /// mkdir(2).
    pub fn mkdir(&self, path: &str) -> Result<()> {
        self.make(path, &What::Dir, 0o755)
    }

    /// symlink(2).
    pub fn symlink(&self, to: &str, path: &str) -> Result<()> {
        self.make(path, &What::Link(to.as_bytes()), 0o777)
    }

    /// mkfifo(3).
    pub fn mkfifo(&self, path: &str) -> Result<()> {
        self.make(path, &What::Fifo, 0o644)
    }

    /// open(2).
    pub fn open(&self, path: &str, flags: u32) -> Result<FileRef> {
        self.walk(|walk| {
            open::open(walk, path.as_bytes(), flags, NewMode::exact(0o644), &|| {
                Ok(())
            })
        })
    }

    /// Creates a file that does not exist.
    pub fn create(&self, path: &str) -> Result<()> {
        self.open(path, o::WRONLY | o::CREAT | o::EXCL).map(drop)
    }

    /// Writes `bytes` at `pos`.
    pub fn write(&self, path: &str, pos: u64, bytes: &[u8]) -> Result<usize> {
        self.open(path, o::WRONLY)?
            .write_at(&mut IoBuf::Drain(bytes), pos)
    }

    /// The whole content of a file.
    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.open(path, o::RDONLY)?;
        let mut all = Vec::new();
        loop {
            let mut part = [0; 5000];
            let n = file.read_at(&mut IoBuf::Fill(&mut part), all.len() as u64)?;
            if n == 0 {
                return Ok(all);
            }
            all.extend_from_slice(&part[..n]);
        }
    }

    /// truncate(2).
    pub fn truncate(&self, path: &str, size: u64) -> Result<()> {
        self.walk(|walk| open::truncate(walk, path.as_bytes(), size))
    }

    /// unlink(2).
    pub fn unlink(&self, path: &str) -> Result<()> {
        self.walk(|walk| open::unlink(walk, path.as_bytes()))
    }

    /// rmdir(2).
    pub fn rmdir(&self, path: &str) -> Result<()> {
        self.walk(|walk| open::rmdir(walk, path.as_bytes()))
    }

    /// link(2).
    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        self.walk(|walk| {
            let source = walk.find(from.as_bytes(), Want::NOFOLLOW)?;
            let (dir, last) = walk.parent(to.as_bytes())?;
            let Last::Name(name, _) = last else {
                return Err(FsError::Exists);
            };
            tmpfs::link(&self.cred, &source.dentry.inode, &dir, name, true)
        })
    }

    /// renameat2(2).
    pub fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let gone = self.walk(|walk| {
            let (from_dir, Last::Name(from, from_slash)) = walk.parent(from.as_bytes())? else {
                return Err(FsError::Busy);
            };
            let (to_dir, Last::Name(to, to_slash)) = walk.parent(to.as_bytes())? else {
                return Err(FsError::Busy);
            };
            let from = Side {
                dir: &from_dir.dentry,
                name: from,
                slash: from_slash,
            };
            let to = Side {
                dir: &to_dir.dentry,
                name: to,
                slash: to_slash,
            };
            rename::rename(from, to, mode, &|step| may_rename(&self.cred, step))
        })?;
        if let Some(gone) = gone {
            gone.inode.unlinked();
        }
        Ok(())
    }

    /// The place at a path; does not follow a link at its end.
    pub fn find(&self, path: &str) -> Result<Path> {
        self.walk(|walk| walk.find(path.as_bytes(), Want::NOFOLLOW))
    }

    /// As `find`; follows a link.
    pub fn follow(&self, path: &str) -> Result<Path> {
        self.walk(|walk| walk.find(path.as_bytes(), Want::FOLLOW))
    }

    /// readlink(2).
    pub fn readlink(&self, path: &str) -> Result<String> {
        match &self.find(path)?.dentry.inode.node {
            Node::Link(text) => Ok(String::from_utf8_lossy(text).into_owned()),
            _ => Err(FsError::Invalid),
        }
    }

    /// The sorted names in a directory.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        let place = self.follow(path)?;
        let dir = place.dentry.inode.dir()?;
        let (mut from, mut names) = (0, Vec::new());
        loop {
            let mut part = Vec::with_capacity(5);
            dir.list(from, &mut part);
            let Some(last) = part.last() else {
                names.sort();
                return Ok(names);
            };
            from = last.next;
            let pin = ksync::pin();
            let name = |dentry: &Dentry| String::from_utf8_lossy(dentry.name(&pin)).into_owned();
            names.extend(part.iter().map(|entry| name(&entry.dentry)));
            drop(pin);
        }
    }
}
