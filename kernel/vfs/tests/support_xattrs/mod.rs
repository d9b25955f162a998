//! Attributes and access control lists of files, by root.

use cred::Cred;
use vfs::error::Result;
use vfs::xattr::ops;
use vfs::xattr::store::How;

use crate::support::Calls;

pub const ACCESS: &str = "system.posix_acl_access";

pub fn set_by(cred: &Cred, path: &str, name: &str, value: &[u8], how: How) -> Result<()> {
    let place = Calls::of_root().find(path)?;
    ops::set(cred, &place, name.as_bytes(), value.to_vec(), how)
}

pub fn set(path: &str, name: &str, value: &[u8]) -> Result<()> {
    set_by(&Cred::root(), path, name, value, How::Any)
}

pub fn get(path: &str, name: &str) -> Result<Vec<u8>> {
    let place = Calls::of_root().find(path)?;
    ops::get(&Cred::root(), &place, name.as_bytes()).map(|value| value.to_vec())
}

pub fn remove(path: &str, name: &str) -> Result<()> {
    let place = Calls::of_root().find(path)?;
    ops::remove(&Cred::root(), &place, name.as_bytes())
}

/// The bytes of a list: of each entry the tag, the rights, and the id.
pub fn raw(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}
