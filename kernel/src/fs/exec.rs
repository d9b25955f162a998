//! Files as execve sees them.

use fscore::perm;
use vm::ObjectRef;

use super::error::{FsError, Result};
use super::file::{File, FileRef, Kind, o};
use super::inode::{Node, Use, mode};
use super::mount::{Path, flag};
use super::regular::Regular;
use super::walk::{Want, permitted};
use crate::kern::{current, with_fs};
use crate::uio::IoBuf;

/// A regular file that may be executed; nobody can open it for writing meanwhile.
#[derive(Clone)]
pub struct ExecFile(FileRef);

/// What a process keeps of the file that it runs.
pub type ExeRef = ExecFile;

impl ExecFile {
    /// Opens a path for execution, relative to the working directory of the current process.
    pub fn open(path: &[u8]) -> Result<Self> {
        let cred = current().cred();
        let found = with_fs(|fs| fs.walk(&cred).find(path, Want::FOLLOW));
        Self::at(found.ok_or(FsError::NotFound)??)
    }

    /// Opens a place for execution.
    pub fn at(path: Path) -> Result<Self> {
        let cred = current().cred();
        let inode = &path.dentry.inode;
        if inode.kind() != mode::REG || path.mount.flags() & flag::NOEXEC != 0 {
            return Err(FsError::Access);
        }
        permitted(&cred, inode, perm::EXEC)?;
        if !matches!(inode.node, Node::File(_)) {
            return Err(FsError::Access);
        }
        crate::mm::admit().map_err(|_| FsError::NoMemory)?;
        let data = Regular::open(inode, Use::Run)?;
        let file = File::open(Some(path), Kind::Regular(data), o::RDONLY);
        Ok(ExecFile(file))
    }

    /// Reads at `offset`; short only at the end of the file.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.0.read_at(&mut IoBuf::Fill(out), offset)
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        self.0.ops().end(&self.0).unwrap_or(0)
    }

    /// The pages, for mapping. They remember which file they are.
    pub fn object(&self) -> Result<ObjectRef> {
        self.0.object(0..self.len().next_multiple_of(4096))
    }

    /// Where it is.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_ref()
    }

    /// The user and group that execution gives, for set-user-ID and set-group-ID files on a mount
    /// that allows it.
    pub fn set_ids(&self) -> (Option<u32>, Option<u32>) {
        let Some(path) = self.path().filter(|p| p.mount.flags() & flag::NOSUID == 0) else {
            return (None, None);
        };
        let inode = &path.dentry.inode;
        let m = inode.mode();
        let uid = (m & mode::SUID != 0).then(|| inode.uid());
        // Without group execution the bit means mandatory locking, not execution.
        let gid = (m & (mode::SGID | 0o010) == mode::SGID | 0o010).then(|| inode.gid());
        (uid, gid)
    }
}
