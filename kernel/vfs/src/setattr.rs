//! Changes of owner, group and permissions, and the bits that these and other changes clear.
//!
//! Guarantee: a file loses its set-user-ID bit when its owner changes, and when its contents are changed by a process without
//! CAP_FSETID. Only members of the group, or a process with that capability, keep or set the set-group-ID bit. A change of
//! owner that clears a bit needs the right to chmod(2) as well. The rules are those of Linux 6.1.
//!
//! Mechanism: each change is checked and made under [`Inode::lock`], so two changes at the same time do not undo each other.

use cred::{Cap, Cred};
use task::current::current;

use super::error::{FsError, Result};
use super::inode::{Inode, mode};
use super::rights::owns;
use super::xattr::list;

/// Whether `cred` may set and keep the set-group-ID bit of files of the group.
pub fn in_group_or_capable(cred: &Cred, gid: u32) -> bool {
    cred.in_group(gid) || cred.capable(Cap::Fsetid)
}

/// The set-group-ID bit, if the file has it and a change by `cred` clears it. Members of the group keep a bit that stands
/// without the group's permission to execute.
fn group_bit_lost(cred: &Cred, inode: &Inode) -> u32 {
    let bits = inode.mode();
    if bits & 0o010 != 0 || !in_group_or_capable(cred, inode.gid()) {
        bits & mode::SGID
    } else {
        0
    }
}

/// chmod(2). The caller has checked that the mount is writable. Fails with `Perm` unless `cred` [`owns`] the file. The
/// set-group-ID bit is left out for a caller that is neither in the group nor has CAP_FSETID. The access control list follows; fails with
/// `NoMemory` if there is none for it.
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
    list::follow_mode(inode, perm)?;
    inode.set_permissions(perm & !lost);
    Ok(())
}

/// chown(2). The caller has checked that the mount is writable. `None` keeps the owner, or the group. Fails with `Perm`. Clears
/// set-ID bits of a file that is no directory, even if owner and group stay the same.
pub fn chown(cred: &Cred, inode: &Inode, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let _lock = inode.lock.lock();
    // The owner may give the file to a group that he is a member of, but not to another user.
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
        // As in Linux, where the clearing of bits is a chmod(2) by the rules for the new group.
        if !in_group_or_capable(cred, gid.unwrap_or(inode.gid())) {
            lost |= mode::SGID;
        }
        inode.set_permissions(bits & !lost);
    }
    inode.set_owner(uid, gid);
    Ok(())
}

/// Clears the set-user-ID and set-group-ID bits of a file whose contents the caller changes, unless it has CAP_FSETID. The
/// caller holds [`Inode::lock`].
pub fn drop_privileges(inode: &Inode) {
    let bits = inode.mode();
    // Hardly any file has these bits, so most writes do not read the credentials.
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

/// The permissions of a new file: those that were asked for, and the process's umask.
#[derive(Clone, Copy, Debug)]
pub struct NewMode {
    /// The twelve permission bits that were asked for.
    pub perm: u32,
    /// The bits that new files do not get.
    pub umask: u32,
}

impl NewMode {
    /// These bits and no umask.
    pub const fn exact(perm: u32) -> NewMode {
        NewMode { perm, umask: 0 }
    }

    /// The group and the permissions of a new node in `dir`. In a set-group-ID directory a node gets the directory's group,
    /// and a directory the bit as well; other nodes get the bit only if `cred` is in the group or has CAP_FSETID.
    pub fn inherit(self, cred: &Cred, dir: &Inode, is_dir: bool) -> (u32, u32) {
        let perm = self.perm & mode::PERM & !self.umask;
        if dir.mode() & mode::SGID == 0 {
            return (cred.fsgid, perm);
        }
        let gid = dir.gid();
        if is_dir {
            return (gid, perm | mode::SGID);
        }
        // By the permissions asked for, even if the umask clears the permission to execute.
        let runs = self.perm & (mode::SGID | 0o010) == mode::SGID | 0o010;
        if runs && !in_group_or_capable(cred, gid) {
            (gid, perm & !mode::SGID)
        } else {
            (gid, perm)
        }
    }
}
