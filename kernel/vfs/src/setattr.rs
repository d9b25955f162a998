//! Changing owners, groups and permissions, and what such changes and others take away.
//!
//! Guarantee: set-user-ID never outlives a change of owner, and of contents by somebody without the right to keep it; a
//! set-group-ID bit is kept, or set, only by members of the group. A change that would take a bit away needs the same
//! right as a chmod. The rules are those of Linux 6.1.
//!
//! Mechanism: each change is judged and made under [`Inode::lock`], so of two changes neither undoes the other.

use cred::{Cap, Cred};
use task::current::current;

use super::error::{FsError, Result};
use super::inode::{Inode, mode};
use super::walk::owns;

/// Whether `cred` may have set-group-ID bits for the group.
pub fn in_group_or_capable(cred: &Cred, gid: u32) -> bool {
    cred.in_group(gid) || cred.capable(Cap::Fsetid)
}

/// The set-group-ID bit, if a change by `cred` takes it from a file: also without the group's right to execute, but then
/// members keep it.
fn group_bit_lost(cred: &Cred, inode: &Inode) -> u32 {
    let bits = inode.mode();
    if bits & 0o010 != 0 || !in_group_or_capable(cred, inode.gid()) {
        bits & mode::SGID
    } else {
        0
    }
}

/// chmod(2), on a file system that may be written.
pub fn chmod(cred: &Cred, inode: &Inode, perm: u32) -> Result<()> {
    let _lock = inode.lock.lock();
    if !owns(cred, inode) {
        return Err(FsError::Perm);
    }
    let lost = if in_group_or_capable(cred, inode.gid()) {
        0
    } else {
        mode::SGID
    };
    inode.set_permissions(perm & !lost);
    Ok(())
}

/// chown(2), on a file system that may be written. What stays as it is, is none.
pub fn chown(cred: &Cred, inode: &Inode, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let _lock = inode.lock.lock();
    // The owner may give the file to a group of his; nobody may give it away.
    let own = cred.fsuid == inode.uid();
    let any = cred.capable(Cap::Chown);
    let uid_ok = |u| any || own && u == inode.uid();
    let gid_ok = |g| any || own && (g == inode.gid() || cred.in_group(g));
    if !uid.is_none_or(uid_ok) || !gid.is_none_or(gid_ok) {
        return Err(FsError::Perm);
    }
    let bits = inode.mode();
    let mut lost = 0;
    if !inode.is_dir() {
        lost = bits & mode::SUID | group_bit_lost(cred, inode);
    }
    if lost != 0 {
        if !owns(cred, inode) {
            return Err(FsError::Perm);
        }
        if !in_group_or_capable(cred, gid.unwrap_or(inode.gid())) {
            lost |= mode::SGID;
        }
        inode.set_permissions(bits & !lost);
    }
    inode.set_owner(uid, gid);
    Ok(())
}

/// Takes set-user-ID and set-group-ID away from a file whose contents the caller changes. [`Inode::lock`] is held.
pub fn drop_privileges(inode: &Inode) {
    let bits = inode.mode();
    // Hardly any file has them, so that a write looks at no credentials.
    if bits & (mode::SUID | mode::SGID) == 0 {
        return;
    }
    let cred = current().cred();
    if cred.capable(Cap::Fsetid) {
        return;
    }
    let lost = bits & mode::SUID | group_bit_lost(&cred, inode);
    if lost != 0 {
        inode.set_permissions(bits & !lost);
    }
}

/// The permissions of a new file: what was asked for, and the bits that the process takes from all its files.
#[derive(Clone, Copy, Debug)]
pub struct NewMode {
    /// The twelve bits.
    pub perm: u32,
    /// Bits that new files do not get.
    pub umask: u32,
}

impl NewMode {
    /// Exactly these bits.
    pub const fn exact(perm: u32) -> NewMode {
        NewMode { perm, umask: 0 }
    }

    /// The group and the permissions of a new node in `dir`: in a set-group-ID directory it gets the directory's group, a
    /// directory the bit as well, and nothing else gets the bit from somebody who is not in the group.
    pub fn inherit(self, cred: &Cred, dir: &Inode, is_dir: bool) -> (u32, u32) {
        let perm = self.perm & mode::PERM & !self.umask;
        if dir.mode() & mode::SGID == 0 {
            return (cred.fsgid, perm);
        }
        let gid = dir.gid();
        if is_dir {
            return (gid, perm | mode::SGID);
        }
        // As it was asked for: a mask that takes execution away makes no difference.
        let runs = self.perm & (mode::SGID | 0o010) == mode::SGID | 0o010;
        if runs && !in_group_or_capable(cred, gid) {
            (gid, perm & !mode::SGID)
        } else {
            (gid, perm)
        }
    }
}
