//! Socket calls. Local (AF_UNIX) sockets can be made, but cannot be bound or connected; all other families are
//! refused.

use alloc::boxed::Box;

use abi::raw::general as nr;
use fscore::perm;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use vfs::file::{File, FileRef, Kind, o};
use vfs::inode::mode;
use vfs::rights::permitted;
use vfs::socket::LocalSocket;
use vfs::walk::Want;

use super::errno::Errno;
use super::fsutil::{Caller, at, fault, install, install_pair, real_file};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_socket, socket),
    (nr::__NR_socketpair, socketpair),
    (nr::__NR_connect, connect),
    (nr::__NR_bind, |a| {
        check(a.int(0))?;
        address(a)?;
        Err(Errno::EOPNOTSUPP)
    }),
    // No socket is bound, so none can listen.
    (nr::__NR_listen, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_accept, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_accept4, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_getpeername, |a| on_socket(a, Errno::ENOTCONN)),
    (nr::__NR_getsockname, getsockname),
    (nr::__NR_sendto, |a| on_socket(a, Errno::ENOTCONN)),
    (nr::__NR_recvfrom, |a| on_socket(a, Errno::EINVAL)),
    (nr::__NR_sendmsg, |a| message(a, Errno::ENOTCONN)),
    (nr::__NR_recvmsg, |a| message(a, Errno::EINVAL)),
    (nr::__NR_shutdown, |a| {
        check(a.int(0))?;
        // No socket is connected, so there is nothing to shut down.
        if a.uint(1) <= 2 {
            Ok(0)
        } else {
            Err(Errno::EINVAL)
        }
    }),
    (nr::__NR_setsockopt, setsockopt),
    (nr::__NR_getsockopt, getsockopt),
];

const AF_UNIX: i32 = 1;

/// Checks family, type and protocol of a new socket.
///
/// # Errors
/// EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL.
fn family(family: i32, kind: i32, protocol: i32) -> Result<(), Errno> {
    const STREAM: i32 = 1;
    const DGRAM: i32 = 2;
    const SEQPACKET: i32 = 5;
    if family != AF_UNIX {
        return Err(Errno::EAFNOSUPPORT);
    }
    let flags = (o::CLOEXEC | o::NONBLOCK) as i32;
    match kind & !flags {
        _ if !matches!(protocol, 0 | 1) => Err(Errno::EPROTONOSUPPORT),
        STREAM | DGRAM | SEQPACKET => Ok(()),
        k if (0..=10).contains(&k) => Err(Errno::ESOCKTNOSUPPORT),
        _ => Err(Errno::EINVAL),
    }
}

fn socket(a: &mut Args) -> Result<u64, Errno> {
    family(a.int(0), a.int(1), a.int(2))?;
    let flags = a.uint(1) & (o::CLOEXEC | o::NONBLOCK);
    mem::admit()?;
    Ok(install(new_file(flags), flags)?)
}

fn new_file(flags: u32) -> FileRef {
    let kind = Kind::Other(Box::new(LocalSocket::new()));
    File::open(None, kind, o::RDWR | flags & o::NONBLOCK)
}

/// Checks that a descriptor is a socket's.
///
/// # Errors
/// EBADF, ENOTSOCK.
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

/// Longest local address in bytes: the family and a path.
const ADDRESS: usize = 110;

/// Copies a socket address from user memory; returns it with its length.
///
/// # Errors
/// EINVAL, EFAULT.
fn address(a: &Args) -> Result<([u8; ADDRESS], usize), Errno> {
    let len = a.size(2);
    if !(2..=ADDRESS).contains(&len) {
        return Err(Errno::EINVAL);
    }
    let mut raw = [0; ADDRESS];
    let mut from = IoBuf::user(a.get(1), len);
    if from.take(&mut raw[..len]).map_err(fault)? < len {
        return Err(Errno::EFAULT);
    }
    Ok((raw, len))
}

fn connect(a: &mut Args) -> Result<u64, Errno> {
    check(a.int(0))?;
    let (raw, len) = address(a)?;
    if i32::from(u16::from_le_bytes([raw[0], raw[1]])) != AF_UNIX {
        return Err(Errno::EINVAL);
    }
    let path = &raw[2..len];
    let path = path.split(|&b| b == 0).next().unwrap_or(&[]);
    if path.is_empty() {
        // An abstract name, or none: no socket listens there.
        return Err(Errno::ECONNREFUSED);
    }
    let caller = Caller::now();
    let place = caller.find(at::FDCWD, path, 0, Want::FOLLOW)?;
    permitted(&caller.cred, &place.dentry.inode, perm::WRITE)?;
    Err(Errno::ECONNREFUSED)
}

/// socketpair(2): checks all its arguments and then fails, because sockets cannot be connected.
fn socketpair(a: &mut Args) -> Result<u64, Errno> {
    install_pair((new_file(0), new_file(0)), false, a.get(3), false)?;
    family(a.int(0), a.int(1), a.int(2))?;
    Err(Errno::EOPNOTSUPP)
}

/// A call with a struct msghdr, which fails with `errno` if its arguments are valid.
fn message(a: &mut Args, errno: Errno) -> Result<u64, Errno> {
    check(a.int(0))?;
    UserPtr::<[u64; 7]>::new(a.get(1)).read().map_err(fault)?;
    Err(errno)
}

fn setsockopt(a: &mut Args) -> Result<u64, Errno> {
    check(a.int(0))?;
    if a.int(4) < size_of::<u32>() as i32 {
        return Err(Errno::EINVAL);
    }
    UserPtr::<u32>::new(a.get(3)).read().map_err(fault)?;
    Err(Errno::ENOPROTOOPT)
}

fn getsockopt(a: &mut Args) -> Result<u64, Errno> {
    check(a.int(0))?;
    if UserPtr::<i32>::new(a.get(4)).read().map_err(fault)? < 0 {
        return Err(Errno::EINVAL);
    }
    Err(Errno::ENOPROTOOPT)
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
