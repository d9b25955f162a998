//! Files as execve sees them.

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
use super::mount::{Path, flag};
use super::regular::Regular;
use super::walk::{Want, permitted};

/// A regular file that may be executed; nobody can open it for writing meanwhile.
#[derive(Clone)]
pub struct ExecFile(Handle);

#[derive(Clone)]
enum Handle {
    Own(FileRef),
    Cached(CachedExe),
}

/// Whether the caller may execute what lies there.
fn executable(path: &Path) -> Result<()> {
    let inode = &path.dentry.inode;
    if inode.kind() != mode::REG || path.mount.flags() & flag::NOEXEC != 0 {
        return Err(FsError::Access);
    }
    permitted(&current().cred(), inode, perm::EXEC)
}

/// What a process keeps of the file that it runs.
pub type ExeRef = ExecFile;

impl ExecFile {
    /// Opens a path for execution, relative to the working directory of `fs`.
    pub fn open(fs: &FsContext, path: &[u8]) -> Result<Self> {
        let cred = current().cred();
        let found = fs
            .walk(&cred)
            .resolve(path, Want::FOLLOW, |pin, mount, dentry| {
                exec_cache::find(pin, mount, dentry).ok_or_else(|| Path {
                    mount: mount.clone(),
                    dentry: dentry.clone(),
                })
            })?;
        match found {
            Ok(text) => {
                let file = ExecFile(Handle::Cached(text));
                executable(file.path().ok_or(FsError::NotFound)?)?;
                Ok(file)
            }
            Err(path) => Self::at(path),
        }
    }

    /// Opens a place for execution.
    pub fn at(path: Path) -> Result<Self> {
        executable(&path)?;
        let inode = &path.dentry.inode;
        if !matches!(inode.node, Node::File(_)) {
            return Err(FsError::Access);
        }
        mem::admit().map_err(|_| FsError::NoMemory)?;
        let data = Regular::open(inode, Use::Run)?;
        let often = inode.is_run_often();
        // A cached program outlives the process that ran it first.
        let file = File::open_for_all(Some(path), Kind::Regular(data), o::RDONLY);
        Ok(ExecFile(if often {
            Handle::Cached(exec_cache::keep(file))
        } else {
            Handle::Own(file)
        }))
    }

    fn file(&self) -> &File {
        match &self.0 {
            Handle::Own(file) => file,
            Handle::Cached(text) => text,
        }
    }

    /// Reads at `offset`; short only at the end of the file.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.file().read_at(&mut IoBuf::Fill(out), offset)
    }

    /// Bytes in the file.
    pub fn size(&self) -> u64 {
        let file = self.file();
        file.ops().end(file).unwrap_or(0)
    }

    /// The pages, for mapping. They remember which file they are.
    pub fn object(&self) -> Result<&ObjectRef> {
        match &self.file().kind {
            Kind::Regular(regular) => regular.tagged_pages(self.file()),
            _ => Err(FsError::NoDevice),
        }
    }

    /// Whether the caller may read it.
    pub fn is_readable(&self) -> bool {
        self.path()
            .is_none_or(|path| permitted(&current().cred(), &path.dentry.inode, perm::READ).is_ok())
    }

    /// Where it is.
    pub fn path(&self) -> Option<&Path> {
        self.file().path.as_ref()
    }

    /// The user and group that execution gives, for set-user-ID and set-group-ID files on a mount
    /// that allows it.
    pub fn set_ids(&self) -> SetIds {
        let Some(path) = self.path().filter(|p| p.mount.flags() & flag::NOSUID == 0) else {
            return SetIds::default();
        };
        let inode = &path.dentry.inode;
        if inode.mode() & (mode::SUID | mode::SGID) == 0 {
            return SetIds::default();
        }
        // Bits and owner of one moment: a change of owner takes the bits away under this lock.
        let _lock = inode.lock.lock();
        let m = inode.mode();
        let uid = (m & mode::SUID != 0).then(|| inode.uid());
        // Without group execution the bit means mandatory locking, not execution.
        let gid = (m & (mode::SGID | 0o010) == mode::SGID | 0o010).then(|| inode.gid());
        SetIds { uid, gid }
    }
}
