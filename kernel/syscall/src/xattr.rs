//! Extended attributes: the system calls of xattr(7), over [`vfs::xattr`].
//!
//! The order of errors is that of Linux 6.1: the file is found before the arguments are looked at, and a read-only mount comes
//! before the arguments of a change.

use abi::raw::general as nr;
use alloc::vec::Vec;
use hal::uaccess::{StrError, read_cstr};
use hal::user;
use net::socket::{SocketFile, Type};
use vfs::error::FsError;
use vfs::file::File;
use vfs::notify::event::ev;
use vfs::notify::told;
use vfs::open::writable_dir;
use vfs::place::Path;
use vfs::walk::Want;
use vfs::xattr::ops;
use vfs::xattr::store::How;

use super::errno::Errno;
use super::fsutil::{Caller, at, fault, real_file, user_bytes, user_path};
use super::socket::{AF_INET, AF_INET6, AF_UNIX};
use crate::call::{Args, Handler};

const IPPROTO_UDPLITE: u32 = 136;

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

/// What the attributes are of.
enum On<'a> {
    /// The file at a place.
    Place(&'a Path),
    /// An open file that has no path: a pipe, a socket.
    Unnamed(&'a File),
}

impl<'a> On<'a> {
    /// Checks that the mount is writable, where there is one.
    fn check_writable(&self) -> Result<(), Errno> {
        match self {
            On::Place(place) => Ok(writable_dir(place)?),
            On::Unnamed(_) => Ok(()),
        }
    }

    /// The place, for a change of the attribute with that name: no other file has attributes that can be changed.
    fn place(self, name: &[u8]) -> Result<&'a Path, Errno> {
        match self {
            On::Place(place) => Ok(place),
            On::Unnamed(_) => Err(lacks(name, FsError::Perm)),
        }
    }
}

/// One operation: with the arguments of its call.
type Operation = fn(&Args, On) -> Result<u64, Errno>;

fn by_path(a: &Args, follow: bool, f: Operation) -> Result<u64, Errno> {
    let path = user_path(a.get(0))?;
    let directory = false;
    let place = Caller::now().find(at::FDCWD, &path, 0, Want { follow, directory })?;
    f(a, On::Place(&place))
}

fn by_fd(a: &Args, f: Operation) -> Result<u64, Errno> {
    let file = real_file(a.int(0))?;
    f(
        a,
        match &file.path {
            Some(place) => On::Place(place),
            None => On::Unnamed(&file),
        },
    )
}

/// The one attribute that a socket has: its protocol.
const PROTOCOL: &[u8] = b"system.sockprotoname\0";

/// The name of the protocol of a socket, as Linux names it, with a NUL; `None` for another file.
fn protocol(file: &File) -> Option<&'static [u8]> {
    let socket = SocketFile::of(file)?;
    let stream = socket.kind() == Type::Stream;
    let lite = socket.protocol() == IPPROTO_UDPLITE;
    Some(match (socket.domain() as i32, stream) {
        (AF_UNIX, true) => b"UNIX-STREAM\0",
        (AF_UNIX, false) => b"UNIX\0",
        (AF_INET, true) => b"TCP\0",
        (AF_INET, false) if lite => b"UDP-Lite\0",
        (AF_INET, false) => b"UDP\0",
        (AF_INET6, true) => b"TCPv6\0",
        (AF_INET6, false) if lite => b"UDPLITEv6\0",
        (AF_INET6, false) => b"UDPv6\0",
        _ => b"NETLINK\0",
    })
}

/// The error for an attribute that an open file without a path does not have, as in Linux: `user` is that for names that such files cannot have.
fn lacks(name: &[u8], user: FsError) -> Errno {
    match name.starts_with(b"user.") {
        true => user.into(),
        false => Errno::EOPNOTSUPP,
    }
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

fn get(a: &Args, on: On) -> Result<u64, Errno> {
    let name = name(a)?;
    let place = match on {
        On::Place(place) => place,
        On::Unnamed(file) => {
            let value = protocol(file).filter(|_| *name == PROTOCOL[..PROTOCOL.len() - 1]);
            let value = value.ok_or_else(|| lacks(&name, FsError::NoData))?;
            return give(value, a.get(2), a.get(3));
        }
    };
    let value = ops::get(&Caller::now().cred, place, &name)?;
    give(&value, a.get(2), a.get(3))
}

fn list(a: &Args, on: On) -> Result<u64, Errno> {
    let place = match on {
        On::Place(place) => place,
        On::Unnamed(file) => {
            let names = protocol(file).map_or(&[][..], |_| PROTOCOL);
            return give(names, a.get(1), a.get(2));
        }
    };
    let names = ops::names(&Caller::now().cred, place)?;
    give(&names, a.get(1), a.get(2))
}

fn set(a: &Args, on: On) -> Result<u64, Errno> {
    on.check_writable()?;
    let how = match a.uint(4) {
        0 => How::Any,
        1 => How::Create,
        2 => How::Replace,
        3 => How::Never,
        _ => return Err(Errno::EINVAL),
    };
    let name = name(a)?;
    let value = value(a.get(2), a.get(3))?;
    let place = on.place(&name)?;
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

fn remove(a: &Args, on: On) -> Result<u64, Errno> {
    on.check_writable()?;
    let name = name(a)?;
    let place = on.place(&name)?;
    ops::remove(&Caller::now().cred, place, &name)?;
    told::tell(&place.dentry, ev::ATTRIB, false);
    Ok(0)
}
