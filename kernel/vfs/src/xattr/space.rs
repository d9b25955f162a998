//! The names of extended attributes, and which of them a caller may use. The rules and the order of errors are those of Linux 6.1.

use cred::{Cap, Cred};
use fscore::perm;

use super::store::{AclKind, TRUSTED};
use crate::error::{FsError, Result};
use crate::inode::{Inode, mode};
use crate::rights::{owns, permitted};

/// Names of security modules, of which there is none.
const SECURITY: &[u8] = b"security.";
/// Names for the contents of the file, under its permissions. tmpfs keeps none of them.
const USER: &[u8] = b"user.";
/// Names with a meaning for the kernel.
const SYSTEM: &[u8] = b"system.";
/// Capabilities of a program file, which execve would not give.
const CAPABILITY: &[u8] = b"security.capability";

/// What is done to an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// Its value is read.
    Get,
    /// It is set.
    Set,
    /// It is removed.
    Remove,
}

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meaning {
    /// An access control list.
    Acl(AclKind),
    /// Bytes that mean nothing to the kernel.
    Bytes,
}

/// What `name` stands for, if `cred` may use it so. `keeps` says whether the file's file system has attributes at all.
///
/// # Errors
/// `Perm`, `Access`; `NoData` where a caller may not know whether there is one; `Invalid` for a prefix alone; `NotSupported`.
pub fn usable(cred: &Cred, inode: &Inode, name: &[u8], what: Use, keeps: bool) -> Result<Meaning> {
    permit(cred, inode, name, what)?;
    if !keeps {
        return Err(FsError::NotSupported);
    }
    if let Some(kind) = AclKind::ALL.into_iter().find(|kind| kind.name() == name) {
        return Ok(Meaning::Acl(kind));
    }
    match [TRUSTED, SECURITY]
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix))
    {
        Some([]) => Err(FsError::Invalid),
        Some(_) if name == CAPABILITY && what == Use::Set => Err(FsError::NotSupported),
        Some(_) => Ok(Meaning::Bytes),
        None => Err(FsError::NotSupported),
    }
}

/// Checks the rights on names of that kind, whether or not the file system has them.
fn permit(cred: &Cred, inode: &Inode, name: &[u8], what: Use) -> Result<()> {
    let writes = what != Use::Get;
    let denied = Err(if writes {
        FsError::Perm
    } else {
        FsError::NoData
    });
    if name.starts_with(SYSTEM) {
        return Ok(());
    }
    if name.starts_with(SECURITY) {
        let may = match (name == CAPABILITY, what) {
            (_, Use::Get) => true,
            (true, Use::Set | Use::Remove) => cred.capable(Cap::Setfcap),
            (false, Use::Set | Use::Remove) => cred.capable(Cap::SysAdmin),
        };
        return if may { Ok(()) } else { Err(FsError::Perm) };
    }
    if name.starts_with(TRUSTED) {
        return if cred.capable(Cap::SysAdmin) {
            Ok(())
        } else {
            denied
        };
    }
    if name.starts_with(USER) {
        let of_all = inode.is_dir() && inode.mode() & mode::STICKY != 0;
        if !matches!(inode.kind(), mode::REG | mode::DIR) {
            return denied;
        }
        if writes && of_all && !owns(cred, inode) {
            return denied;
        }
    }
    permitted(cred, inode, if writes { perm::WRITE } else { perm::READ })
}
