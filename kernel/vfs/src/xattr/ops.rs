//! The operations on the extended attributes of a place: getxattr(2), setxattr(2), listxattr(2), removexattr(2).
//!
//! The caller finds the place, checks before a change that the mount is writable, and tells watches afterwards. Changes are made under [`Inode::lock`]; reads take no lock.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use cred::{Cap, Cred};
use fscore::acl::Acl;

use super::list;
use super::space::{Meaning, Use, usable};
use super::store::{self, How, Named, Set};
use crate::error::{FsError, Result};
use crate::inode::{Inode, mode};
use crate::place::Path;
use crate::quota::may_name;
use crate::superblock::FsKind;

/// The value of an attribute, as it was set.
pub enum Value {
    /// One that is shared with the inode.
    Kept(Arc<Named>),
    /// The bytes of an access control list.
    Acl(Vec<u8>),
}

impl Deref for Value {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Value::Kept(named) => named.value(),
            Value::Acl(bytes) => bytes,
        }
    }
}

/// Whether the files of that file system have attributes.
fn keeps(place: &Path) -> bool {
    matches!(place.mount.fs.kind, FsKind::Tmpfs | FsKind::Devtmpfs)
}

fn inode(place: &Path) -> &Inode {
    &place.dentry.inode
}

/// The value of an attribute.
///
/// # Errors
/// `NoData`; those of [`usable`]; `NotSupported` for the access control list of a symbolic link; `NoMemory`.
pub fn get(cred: &Cred, place: &Path, name: &[u8]) -> Result<Value> {
    let inode = inode(place);
    let meaning = usable(cred, inode, name, Use::Get, keeps(place))?;
    if matches!(meaning, Meaning::Acl(_)) && inode.kind() == mode::LNK {
        return Err(FsError::NotSupported);
    }
    let set = inode.attributes_now().ok_or(FsError::NoData)?;
    match meaning {
        Meaning::Bytes => {
            let named = set.named(name).ok_or(FsError::NoData)?;
            Ok(Value::Kept(named.clone()))
        }
        Meaning::Acl(kind) => {
            let kept = set.acl(kind).ok_or(FsError::NoData)?;
            let bytes = kept.acl.bytes().map_err(store::refused)?;
            Ok(Value::Acl(bytes))
        }
    }
}

/// The names of all attributes that `cred` may see, each with a NUL after it. They need no right on the file.
///
/// # Errors
/// `NoMemory`.
pub fn names(cred: &Cred, place: &Path) -> Result<Vec<u8>> {
    match inode(place).attributes_now() {
        Some(set) if keeps(place) => set.list(cred.capable(Cap::SysAdmin)),
        _ => Ok(Vec::new()),
    }
}

/// Sets an attribute. Its memory is charged to the user of `cred`. `how` does not count for an access control list, as in Linux.
///
/// # Errors
/// Those of [`usable`]; `Exists` or `NoData` by `how`; those of [`list::set`] and of [`Acl::parse`]; `NoSpace`, also beyond
/// the user's part of memory for names; `NoMemory`. Then nothing has changed.
pub fn set(cred: &Cred, place: &Path, name: &[u8], value: Vec<u8>, how: How) -> Result<()> {
    let inode = inode(place);
    match usable(cred, inode, name, Use::Set, keeps(place))? {
        Meaning::Bytes => {
            let new = Named::new(name, value, cred.payer)?;
            may_name(cred)?;
            change(inode, |old| store::with_named(old, new, how, cred.payer))
        }
        Meaning::Acl(kind) => {
            let acl = Acl::parse(&value).map_err(store::refused)?;
            list::set(cred, inode, kind, acl)
        }
    }
}

/// Removes an attribute. That an access control list is not there is no error, as in Linux.
///
/// # Errors
/// Those of [`usable`]; `NoData`; those of [`list::set`]; `NoMemory`. Then nothing has changed.
pub fn remove(cred: &Cred, place: &Path, name: &[u8]) -> Result<()> {
    let inode = inode(place);
    match usable(cred, inode, name, Use::Remove, keeps(place))? {
        Meaning::Bytes => change(inode, |old| store::without_named(old, name, cred.payer)),
        Meaning::Acl(kind) => list::set(cred, inode, kind, None),
    }
}

/// Replaces the attributes by what `f` makes of them, and sets the time of change.
fn change(inode: &Inode, f: impl FnOnce(&Set) -> Result<Set>) -> Result<()> {
    let _lock = inode.lock.lock();
    let old = inode.attributes_now();
    let new = f(&old)?;
    inode.replace_attributes(new);
    inode.touch_ctime();
    Ok(())
}
