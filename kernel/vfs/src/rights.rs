//! The rights of a process on files: what its credentials permit it to do with an inode and with the names in a directory.

use cred::{Cap, Cred};
use fscore::perm::{self, Owner, Powers};

use super::dynamic::Dynamic;
use super::error::{FsError, Result};
use super::inode::{HAS_ACCESS_LIST, Inode, Node, mode};
use super::rename::RenameStep;
use super::xattr::list;

/// Checks that `cred` may do `want` (bits of `fscore::perm`) with a file. Fails with `Access`.
#[inline]
pub fn permitted(cred: &Cred, inode: &Inode, want: u32) -> Result<()> {
    let word = inode.mode_word();
    // What owner, group and others all may, anybody may: so it is of nearly every directory on a way.
    if word & HAS_ACCESS_LIST == 0 && (want * 0o111) & !word == 0 {
        return Ok(());
    }
    permitted_to(cred, inode, want)
}

#[inline(never)]
fn permitted_to(cred: &Cred, inode: &Inode, want: u32) -> Result<()> {
    let powers = Powers {
        all: cred.capable(Cap::DacOverride),
        read: cred.capable(Cap::DacReadSearch),
    };
    loop {
        let word = inode.mode_word();
        let owner = Owner {
            uid: inode.uid(),
            gid: inode.gid(),
            mode: word & mode::ALL,
            dir: word & mode::FMT == mode::DIR,
        };
        // As in Linux, a list whose mask permits nothing does not count.
        let listed = word & HAS_ACCESS_LIST != 0 && word & 0o070 != 0 && cred.fsuid != owner.uid;
        let may = if listed {
            match list::granted(cred, inode, want) {
                Some(granted) => granted || powers.allow(owner, want),
                // The list was removed after the mode had been read.
                None => continue,
            }
        } else {
            perm::allowed(owner, cred.fsuid, |g| cred.in_group(g), powers, want)
        };
        return if may || is_callers(inode) {
            Ok(())
        } else {
            Err(FsError::Access)
        };
    }
}

/// Whether this is a directory that is made on demand for the calling process, which may search it.
fn is_callers(inode: &Inode) -> bool {
    matches!(&inode.node, Node::Dynamic(Dynamic::Dir(dir)) if dir.is_callers())
}

/// Whether `cred` owns the file, or has the capability to act as its owner.
pub fn owns(cred: &Cred, inode: &Inode) -> bool {
    cred.fsuid == inode.uid() || cred.capable(Cap::Fowner)
}

/// Checks that `cred` may remove `node` from the directory `dir`, or replace it there. `as_dir` says whether `node` must be a
/// directory.
pub fn may_remove(cred: &Cred, dir: &Inode, node: &Inode, as_dir: bool) -> Result<()> {
    permitted(cred, dir, perm::WRITE | perm::EXEC)?;
    if perm::sticky_forbids(dir.mode(), dir.uid(), node.uid(), cred.fsuid)
        && !cred.capable(Cap::Fowner)
    {
        return Err(FsError::Perm);
    }
    match (as_dir, node.is_dir()) {
        (true, false) => Err(FsError::NotDir),
        (false, true) => Err(FsError::IsDir),
        _ => Ok(()),
    }
}

/// Checks that `cred` may make one step of a rename.
pub fn may_rename(cred: &Cred, step: RenameStep) -> Result<()> {
    match step {
        RenameStep::Remove { dir, node, as_dir } => may_remove(cred, dir, node, as_dir),
        RenameStep::Add(dir) => permitted(cred, dir, perm::WRITE | perm::EXEC),
        RenameStep::Reparent(node) => permitted(cred, node, perm::WRITE),
    }
}
