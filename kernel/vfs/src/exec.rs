//! Executable files, as execve(2) opens them.

use alloc::sync::Arc;
use cred::SetIds;
use fscore::perm;
use hal::uio::IoBuf;
use task::current::current;
use vm::ObjectRef;

use super::context::FsContext;
use super::error::{FsError, Result};
use super::exec_cache::{self, CachedExe};
use super::file::{File, FileRef, Kind, o};
use super::inode::{Node, Use, mode};
use super::lost::{Unused, until_used};
use super::notify::event::ev;
use super::opened::Regular;
use super::place::{Path, flag};
use super::rights::permitted;
use super::walk::Want;

/// A regular file that is open for execution. As long as it exists, the file cannot be opened for writing.
#[derive(Clone)]
pub struct ExecFile(Handle);

#[derive(Clone)]
enum Handle {
    Own(FileRef),
    Cached(CachedExe),
    Watched(Arc<Watched>),
}

/// A file of the exec cache whose watches were told that an execution has opened it. They are told of its close when the last process
/// ends that runs it by that execution.
struct Watched(CachedExe);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.tell(ev::CLOSE_NOWRITE);
    }
}

/// Checks that the caller may execute the file at `path`, if it is a program.
fn executable(path: &Path) -> Result<()> {
    if path.mount.flags() & flag::NOEXEC != 0 {
        return Err(FsError::Access);
    }
    permitted(&current().cred(), &path.dentry.inode, perm::EXEC)
}

/// The reference that a process holds on the file that it runs.
pub type ExeRef = ExecFile;

impl ExecFile {
    /// Opens the file at `path` for execution. The path is relative to the working directory of `fs`. One from the exec cache
    /// is open already, but the caller's rights are checked all the same. May sleep.
    ///
    /// # Errors
    /// Those of a walk; those of [`ExecFile::at`].
    pub fn open(fs: &FsContext, path: &[u8]) -> Result<Self> {
        let cred = current().cred();
        until_used(|| {
            let found = fs
                .walk(&cred)
                .resolve(path, Want::FOLLOW, |pin, mount, dentry| {
                    let cached = exec_cache::find(pin, mount, dentry);
                    cached.ok_or_else(|| Path {
                        mount: mount.clone(),
                        dentry: dentry.clone(),
                    })
                })?;
            match found {
                Ok(text) => {
                    executable(text.path.as_ref().ok_or(FsError::NotFound)?)?;
                    Ok(Self::cached(text)?)
                }
                Err(path) => Self::try_at(path),
            }
        })
    }

    /// Opens the file at a place for execution, and puts it into the exec cache if it has been executed often. May sleep.
    ///
    /// # Errors
    /// `Access` if it is no regular file or the caller may not execute it, or none may on the mount; `TextBusy` where [`Use`]
    /// says so; `NotFound` if its pages have been freed with its last name; `NoMemory`.
    pub fn at(path: Path) -> Result<Self> {
        Self::try_at(path).map_err(Unused::error)
    }

    /// As [`at`](Self::at), for a caller that can look the path up again.
    fn try_at(path: Path) -> Result<Self, Unused> {
        executable(&path)?;
        let inode = &path.dentry.inode;
        if !matches!(inode.node, Node::File(_)) {
            return Err(FsError::Access.into());
        }
        mem::admit_process().map_err(|_| FsError::NoMemory)?;
        let data = Regular::open(inode, Use::Run).map_err(|e| Unused::because(inode, e))?;
        let often = inode.is_run_often();
        // Charged to no user, because a cached file outlives the process that executed it first.
        let flags = o::RDONLY | if often { o::UNTOLD } else { 0 };
        let file = File::open_for_all(Some(path), Kind::Regular(data), flags);
        if often {
            return Ok(Self::cached(exec_cache::keep(file))?);
        }
        file.tell(ev::OPEN);
        Ok(ExecFile(Handle::Own(file)))
    }

    /// An execution of a file of the exec cache: tells its watches, if there are any.
    ///
    /// # Errors
    /// `NoMemory`.
    fn cached(text: CachedExe) -> Result<Self> {
        let path = text.path.as_ref();
        if !path.is_some_and(|path| path.dentry.may_be_watched()) {
            return Ok(ExecFile(Handle::Cached(text)));
        }
        mem::admit_process().map_err(|_| FsError::NoMemory)?;
        text.tell(ev::OPEN);
        Ok(ExecFile(Handle::Watched(Arc::new(Watched(text)))))
    }

    fn file(&self) -> &File {
        match &self.0 {
            Handle::Own(file) => file,
            Handle::Cached(text) => text,
            Handle::Watched(watched) => &watched.0,
        }
    }

    /// Reads at `offset`, and updates the access time. Returns fewer bytes than asked for only at the end of the file, or after
    /// a MiB if the caller is being killed.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.file().read_at(&mut IoBuf::Fill(out), offset)
    }

    /// The size of the file in bytes.
    pub fn size(&self) -> u64 {
        let file = self.file();
        file.ops().end(file).unwrap_or(0)
    }

    /// The file's pages, to be mapped. They are tagged with the file's dentry.
    pub fn object(&self) -> Result<&ObjectRef> {
        match &self.file().kind {
            Kind::Regular(regular) => regular.tagged_pages(self.file()),
            _ => Err(FsError::NoDevice),
        }
    }

    /// Whether the caller may read the file.
    pub fn is_readable(&self) -> bool {
        self.path()
            .is_none_or(|path| permitted(&current().cred(), &path.dentry.inode, perm::READ).is_ok())
    }

    /// Where the file was found.
    pub fn path(&self) -> Option<&Path> {
        self.file().path.as_ref()
    }

    /// The user id and the group id that execution gives: those of a set-user-ID or set-group-ID file, unless the mount
    /// forbids it. Takes the inode's lock, and may sleep, if the file has such a bit.
    pub fn set_ids(&self) -> SetIds {
        let Some(path) = self.path().filter(|p| p.mount.flags() & flag::NOSUID == 0) else {
            return SetIds::default();
        };
        let inode = &path.dentry.inode;
        if inode.mode() & (mode::SUID | mode::SGID) == 0 {
            return SetIds::default();
        }
        // Bits and owner must be of one moment: chown clears the bits under this lock.
        let _lock = inode.lock.lock();
        let m = inode.mode();
        let uid = (m & mode::SUID != 0).then(|| inode.uid());
        // Without execute permission for the group, the set-group-ID bit means mandatory locking.
        let gid = (m & (mode::SGID | 0o010) == mode::SGID | 0o010).then(|| inode.gid());
        SetIds { uid, gid }
    }
}
