//! Socket calls: local sockets exist and reach nobody, other families are refused.

use alloc::boxed::Box;

use abi::Errno;
use abi::raw::general as nr;

use super::fsutil::{Caller, at, fault, install, real_file};
use super::{Args, Handler};
use crate::fs::error::FsError;
use crate::fs::file::{File, Kind, o};
use crate::fs::inode::mode;
use crate::fs::socket::LocalSocket;
use crate::fs::walk::Want;
use crate::uaccess::UserPtr;
use crate::uio::IoBuf;

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_socket, socket),
    (nr::__NR_socketpair, |a| {
        family(a.int(0), a.int(1)).and(Err(Errno::EOPNOTSUPP))
    }),
    (nr::__NR_connect, connect),
    (nr::__NR_bind, |a| on_socket(a, Errno::EOPNOTSUPP)),
    (nr::__NR_listen, |a| on_socket(a, Errno::EOPNOTSUPP)),
    (nr::__NR_accept, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_accept4, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_getpeername, |a| on_socket(a, Errno::ENOTCONN)),
    (nr::__NR_getsockname, getsockname),
    (nr::__NR_sendto, |a| on_socket(a, Errno::ENOTCONN)),
    (nr::__NR_recvfrom, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_sendmsg, |a| on_socket(a, Errno::ENOTCONN)),
    (nr::__NR_recvmsg, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_shutdown, |a| on_socket(a, Errno::ENOTCONN)),
    (nr::__NR_setsockopt, |a| on_socket(a, Errno::ENOPROTOOPT)),
    (nr::__NR_getsockopt, |a| on_socket(a, Errno::ENOPROTOOPT)),
];

const AF_UNIX: i32 = 1;

/// Checks family and type of a new socket.
fn family(family: i32, kind: i32) -> Result<(), Errno> {
    const STREAM: i32 = 1;
    const DGRAM: i32 = 2;
    const SEQPACKET: i32 = 5;
    if family != AF_UNIX {
        return Err(Errno::EAFNOSUPPORT);
    }
    let flags = (o::CLOEXEC | o::NONBLOCK) as i32;
    match kind & !flags {
        STREAM | DGRAM | SEQPACKET => Ok(()),
        k if (0..=10).contains(&k) => Err(Errno::ESOCKTNOSUPPORT),
        _ => Err(Errno::EINVAL),
    }
}

fn socket(a: &mut Args) -> Result<u64, Errno> {
    family(a.int(0), a.int(1))?;
    if !matches!(a.int(2), 0 | 1) {
        return Err(Errno::EPROTONOSUPPORT);
    }
    let flags = a.uint(1) & (o::CLOEXEC | o::NONBLOCK);
    let kind = Kind::Other(Box::new(LocalSocket::new()));
    let file = File::open(None, kind, o::RDWR | flags & o::NONBLOCK);
    Ok(install(file, flags)?)
}

/// The file of a descriptor, if it is a socket.
fn check(fd: i32) -> Result<(), Errno> {
    let attr = real_file(fd)?.attr()?;
    if attr.mode & mode::FMT == mode::SOCK {
        Ok(())
    } else {
        Err(Errno::ENOTSOCK)
    }
}

fn on_socket(a: &mut Args, errno: Errno) -> Result<u64, Errno> {
    check(a.int(0))?;
    Err(errno)
}

/// Longest local address: the family and a path.
const ADDRESS: usize = 110;

fn connect(a: &mut Args) -> Result<u64, Errno> {
    check(a.int(0))?;
    let len = a.size(2);
    if !(2..=ADDRESS).contains(&len) {
        return Err(Errno::EINVAL);
    }
    let mut raw = [0; ADDRESS];
    if IoBuf::user(a.get(1), len)
        .take(&mut raw[..len])
        .map_err(fault)?
        < len
    {
        return Err(Errno::EFAULT);
    }
    if i32::from(u16::from_le_bytes([raw[0], raw[1]])) != AF_UNIX {
        return Err(Errno::EINVAL);
    }
    let path = &raw[2..len];
    let path = path.split(|&b| b == 0).next().unwrap_or(&[]);
    if path.is_empty() {
        // An abstract name (or none): nobody listens.
        return Err(Errno::ECONNREFUSED);
    }
    let caller = Caller::now();
    match caller.find(at::FDCWD, path, 0, Want::FOLLOW) {
        Ok(_) => Err(Errno::ECONNREFUSED),
        Err(e) => Err(FsError::into(e)),
    }
}

fn getsockname(a: &mut Args) -> Result<u64, Errno> {
    check(a.int(0))?;
    let len = UserPtr::<u32>::new(a.get(2));
    let room = len.read().map_err(fault)? as i32;
    if room < 0 {
        return Err(Errno::EINVAL);
    }
    let name = (AF_UNIX as u16).to_le_bytes();
    let n = name.len().min(room as usize);
    if IoBuf::user(a.get(1), n).put(&name[..n]).map_err(fault)? < n {
        return Err(Errno::EFAULT);
    }
    len.write(&2).map_err(fault)?;
    Ok(0)
}
