//! Extended attributes: the system calls of xattr(7), over [`vfs::xattr`].
//!
//! The order of errors is that of Linux 6.1: the file is found before the arguments are looked at, and a read-only mount comes
//! before the arguments of a change.

use abi::raw::general as nr;
use alloc::vec::Vec;
use hal::uaccess::{StrError, read_cstr};
use hal::user;
use vfs::error::FsError;
use vfs::notify::event::ev;
use vfs::notify::told;
use vfs::open::writable_dir;
use vfs::place::Path;
use vfs::walk::Want;
use vfs::xattr::ops;
use vfs::xattr::store::How;

use super::errno::Errno;
use super::fsutil::{Caller, at, fault, real_file, user_bytes, user_path};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_getxattr, |a| by_path(a, true, get)),
    (nr::__NR_lgetxattr, |a| by_path(a, false, get)),
    (nr::__NR_fgetxattr, |a| by_fd(a, get)),
    (nr::__NR_setxattr, |a| by_path(a, true, set)),
    (nr::__NR_lsetxattr, |a| by_path(a, false, set)),
    (nr::__NR_fsetxattr, |a| by_fd(a, set)),
    (nr::__NR_removexattr, |a| by_path(a, true, remove)),
    (nr::__NR_lremovexattr, |a| by_path(a, false, remove)),
    (nr::__NR_fremovexattr, |a| by_fd(a, remove)),
    (nr::__NR_listxattr, |a| by_path(a, true, list)),
    (nr::__NR_llistxattr, |a| by_path(a, false, list)),
    (nr::__NR_flistxattr, |a| by_fd(a, list)),
];

/// Longest name of an attribute in bytes, with its NUL.
const NAME_MAX: usize = 256;
/// Largest value of an attribute in bytes, and largest list of names.
const SIZE_MAX: u64 = 65536;

/// One operation: with the arguments of its call, on the file at a place; `None` for one that has no path, such as a pipe.
type Operation = fn(&Args, Option<&Path>) -> Result<u64, Errno>;

fn by_path(a: &Args, follow: bool, f: Operation) -> Result<u64, Errno> {
    let path = user_path(a.get(0))?;
    let directory = false;
    let place = Caller::now().find(at::FDCWD, &path, 0, Want { follow, directory })?;
    f(a, Some(&place))
}

fn by_fd(a: &Args, f: Operation) -> Result<u64, Errno> {
    f(a, real_file(a.int(0))?.path.as_ref())
}

/// The name that the second argument leads to.
fn name(a: &Args) -> Result<Vec<u8>, Errno> {
    let name = read_cstr(a.get(1), NAME_MAX).map_err(|e| match e {
        StrError::Fault => Errno::EFAULT,
        StrError::TooLong => Errno::ERANGE,
        StrError::NoMemory => Errno::ENOMEM,
    })?;
    if name.is_empty() {
        return Err(Errno::ERANGE);
    }
    Ok(name)
}

/// Writes `bytes` to the program's buffer of `size` bytes, and returns their number; with a size of 0 it only does that.
fn give(bytes: &[u8], to: u64, size: u64) -> Result<u64, Errno> {
    if size != 0 {
        if (size as usize) < bytes.len() {
            return Err(Errno::ERANGE);
        }
        user::copy_out(to, bytes).map_err(fault)?;
    }
    Ok(bytes.len() as u64)
}

fn get(a: &Args, place: Option<&Path>) -> Result<u64, Errno> {
    let name = name(a)?;
    let place = place.ok_or(FsError::NotSupported)?;
    let value = ops::get(&Caller::now().cred, place, &name)?;
    give(&value, a.get(2), a.get(3))
}

fn list(a: &Args, place: Option<&Path>) -> Result<u64, Errno> {
    let Some(place) = place else { return Ok(0) };
    let names = ops::names(&Caller::now().cred, place)?;
    give(&names, a.get(1), a.get(2))
}

fn set(a: &Args, place: Option<&Path>) -> Result<u64, Errno> {
    place.map_or(Ok(()), writable_dir)?;
    let how = match a.uint(4) {
        0 => How::Any,
        1 => How::Create,
        2 => How::Replace,
        3 => How::Never,
        _ => return Err(Errno::EINVAL),
    };
    let name = name(a)?;
    let value = value(a.get(2), a.get(3))?;
    let place = place.ok_or(FsError::NotSupported)?;
    ops::set(&Caller::now().cred, place, &name, value, how)?;
    told::tell(&place.dentry, ev::ATTRIB, false);
    Ok(0)
}

/// A copy of the `size` bytes at `from`.
fn value(from: u64, size: u64) -> Result<Vec<u8>, Errno> {
    if size > SIZE_MAX {
        return Err(Errno::E2BIG);
    }
    user_bytes(from, size as usize)
}

fn remove(a: &Args, place: Option<&Path>) -> Result<u64, Errno> {
    place.map_or(Ok(()), writable_dir)?;
    let name = name(a)?;
    let place = place.ok_or(FsError::NotSupported)?;
    ops::remove(&Caller::now().cred, place, &name)?;
    told::tell(&place.dentry, ev::ATTRIB, false);
    Ok(0)
}
