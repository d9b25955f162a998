//! The symbolic links of /proc/PID: `cwd`, `root`, `exe` and the descriptors in `fd`.
//!
//! Guarantee: a link is read or followed only by a caller that may inspect the process. That is checked at each use.

use alloc::boxed::Box;
use alloc::sync::Arc;

use cred::Payer;
use proc::look::Image;
use proc::process::Process;
use proc::with_fs;
use task::current::current;
use vfs::attr::UNNAMED_DEV;
use vfs::dentry::Dentry;
use vfs::dynamic::{DynDir, DynLink, Dynamic, Emit, Entry, Target, Text, ino_below};
use vfs::error::{FsError, Result};
use vfs::file::{FileRef, Kind};
use vfs::full_name::full_name;
use vfs::inode::{Inode, NewInode, Node, mode};
use vfs::place::Path;
use vfs::{pipe, put};

use super::numbers::{digits, number};
use super::whom::{Whom, look, owner};

/// Finds the target of a link; called once the caller's permission has been checked.
pub type Place = fn(&Process, Image) -> Result<Option<Path>>;

pub struct PidLink {
    pub whom: Whom,
    pub place: Place,
}

/// Prints a path relative to the caller's root directory.
fn put_place(out: &mut Text, place: &Path) -> Result<()> {
    let root = with_fs(|fs| fs.root()).ok_or(FsError::NotFound)??;
    let (name, _) = full_name(&root, place)?;
    out.push(&name);
    if place.dentry.is_dead() {
        out.push(b" (deleted)");
    }
    Ok(())
}

impl DynLink for PidLink {
    fn target(&self) -> Result<Target> {
        let p = self.whom.find()?;
        (self.place)(&p, look(&p, self.whom.tid)?)?
            .map(Target::Place)
            .ok_or(FsError::NotFound)
    }

    fn text(&self, out: &mut Text) -> Result<()> {
        match self.target()? {
            Target::Place(place) => put_place(out, &place),
            Target::Text(bytes) => {
                out.push(&bytes);
                Ok(())
            }
        }
    }
}

/// Target of `cwd`: the working directory.
pub fn cwd(p: &Process, _: Image) -> Result<Option<Path>> {
    p.fs().map(|fs| fs.cwd()).transpose()
}

/// Target of `root`: the root directory.
pub fn root(p: &Process, _: Image) -> Result<Option<Path>> {
    p.fs().map(|fs| fs.root()).transpose()
}

/// Target of `exe`: the executable.
pub fn exe(_: &Process, image: Image) -> Result<Option<Path>> {
    Ok(image.program.exe.and_then(|e| e.path().cloned()))
}

/// The directory /proc/PID/fd.
pub struct Fds(pub Whom);

impl DynDir for Fds {
    fn lookup(&self, this: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
        let p = self.0.find_dir()?;
        look(&p, self.0.tid)?;
        let fd = if name == b"0" {
            0
        } else {
            number(name).ok_or(FsError::NotFound)?
        };
        let fd = i32::try_from(fd).map_err(|_| FsError::NotFound)?;
        let file = p.open_file(fd).ok_or(FsError::NotFound)?;
        // As in Linux, the permissions tell what the file was opened for.
        let perm =
            if file.readable() { 0o500 } else { 0 } | if file.writable() { 0o300 } else { 0 };
        let node = Dynamic::Link(Box::new(FdLink {
            whom: self.0.clone(),
            fd,
        }));
        let owner = owner(&p, self.0.tid);
        Ok(node.inode(this.dev, ino_below(this.ino, name), perm, owner))
    }

    /// A process may list its own descriptors even if the directory belongs to root because its memory is hidden.
    fn is_callers(&self) -> bool {
        self.0.is_callers()
    }

    fn list(&self, this: &Inode, from: u64, emit: &mut Emit) -> Result<()> {
        let p = self.0.find_dir()?;
        look(&p, self.0.tid)?;
        let mut at = from as usize - 2;
        while let Some((fd, file)) = p.next_open_file(at) {
            drop(file);
            let mut buf = [0; 10];
            let name = digits(fd as u32, &mut buf);
            let ino = ino_below(this.ino, name);
            if !emit(Entry {
                next: fd as u64 + 3,
                ino,
                kind: mode::LNK,
                name,
            }) {
                break;
            }
            at = fd + 1;
        }
        Ok(())
    }
}

struct FdLink {
    whom: Whom,
    fd: i32,
}

impl FdLink {
    fn file(&self) -> Result<FileRef> {
        let p = self.whom.find()?;
        look(&p, self.whom.tid)?;
        p.open_file(self.fd).ok_or(FsError::NotFound)
    }
}

impl DynLink for FdLink {
    fn target(&self) -> Result<Target> {
        let file = self.file()?;
        if let Some(path) = &file.path {
            return Ok(Target::Place(path.clone()));
        }
        // An anonymous pipe has no path. Following the link makes an inode of the same pipe, so that open(2) opens
        // the pipe again. Other files without a path cannot be opened again.
        let Kind::Pipe(end) = &file.kind else {
            return Err(FsError::NoDevAddr);
        };
        let (uid, gid) = end.pipe().owner();
        let new = NewInode {
            ino: end.pipe().ino(),
            dev: UNNAMED_DEV,
            mode: mode::FIFO | 0o600,
            uid,
            gid,
            rdev: 0,
            charge: None,
            payer: Payer::NOBODY,
        };
        let inode = Arc::new(Inode::new(new, Node::Pipe(end.pipe().clone())));
        let mount = vfs::context::boot_root()?.mount.clone();
        Ok(Target::Place(Path {
            mount,
            dentry: Dentry::made(None, b"", inode, pipe::OBJECTS, current().payer()),
        }))
    }

    fn text(&self, out: &mut Text) -> Result<()> {
        let file = self.file()?;
        match &file.path {
            Some(path) => put_place(out, path),
            None => {
                let ino = file.attr()?.ino;
                match file.ops().label() {
                    whole if !whole.ends_with(':') => put!(out, "{whole}"),
                    kind => put!(out, "{kind}[{ino}]"),
                }
                Ok(())
            }
        }
    }
}
