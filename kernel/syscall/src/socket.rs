//! Calls on sockets. Each finds the [`Socket`] of a descriptor, and turns the interface's numbers and structures into its arguments.
//! `socket` is the only place that knows which families there are.

mod message;
mod option;

use alloc::boxed::Box;
use alloc::vec::Vec;

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use net::inet::endpoint::Family;
use net::socket::{Address, Message, Receive, Received, Type};
use net::{
    LocalSocket, NetlinkSocket, Socket, SocketError, SocketFile, TcpSocket, UdpSocket, netlink,
};
use proc::signal::{self, sig};
use vfs::error::FsError;
use vfs::file::{FileRef, o};

use super::errno::Errno;
use super::fsutil::{Slot, fault, install, install_pair, real_file, user_range};
use crate::call::{Args, Handler};

/// The calls of this file, and of those below it.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_socket, socket),
    (nr::__NR_socketpair, socketpair),
    (nr::__NR_bind, bind),
    (nr::__NR_listen, listen),
    (nr::__NR_accept, |a| accept(a, 0)),
    (nr::__NR_accept4, |a: &mut Args| accept(a, a.uint(3))),
    (nr::__NR_connect, connect),
    (nr::__NR_getsockname, |a| name(a, |s| Ok(s.name()))),
    (nr::__NR_getpeername, |a| name(a, |s| s.peer_name())),
    (nr::__NR_shutdown, shutdown),
    (nr::__NR_sendto, sendto),
    (nr::__NR_recvfrom, recvfrom),
    (nr::__NR_sendmsg, message::sendmsg),
    (nr::__NR_sendmmsg, message::sendmmsg),
    (nr::__NR_recvmsg, message::recvmsg),
    (nr::__NR_recvmmsg, message::recvmmsg),
    (nr::__NR_setsockopt, option::set),
    (nr::__NR_getsockopt, option::get),
];

impl From<SocketError> for Errno {
    fn from(e: SocketError) -> Errno {
        match e {
            SocketError::File(e) => e.into(),
            SocketError::AddressInUse => Errno::EADDRINUSE,
            SocketError::IsConnected => Errno::EISCONN,
            SocketError::WrongType => Errno::EPROTOTYPE,
            SocketError::TooManyInFlight => Errno::ETOOMANYREFS,
            SocketError::NoBuffers => Errno::ENOBUFS,
            SocketError::InterruptedForGood => Errno::EINTR,
            SocketError::NoOption => Errno::ENOPROTOOPT,
            SocketError::QuietPipe => Errno::EPIPE,
            SocketError::NotAvailable => Errno::EADDRNOTAVAIL,
            SocketError::NoDestination => Errno::EDESTADDRREQ,
            SocketError::WrongFamily => Errno::EAFNOSUPPORT,
            SocketError::Unreachable => Errno::ENETUNREACH,
            SocketError::InProgress => Errno::EINPROGRESS,
            SocketError::Already => Errno::EALREADY,
            SocketError::Aborted => Errno::ECONNABORTED,
            SocketError::OutOfRange => Errno::ERANGE,
        }
    }
}

/// Flags of sends and receives, named as in send(2) without their prefix `MSG_`.
mod msg {
    pub const OOB: u32 = 1;
    pub const PEEK: u32 = 2;
    pub const CTRUNC: u32 = 8;
    pub const TRUNC: u32 = 0x20;
    pub const DONTWAIT: u32 = 0x40;
    pub const WAITALL: u32 = 0x100;
    pub const NOSIGNAL: u32 = 0x4000;
    pub const ERRQUEUE: u32 = 0x2000;
    pub const WAITFORONE: u32 = 0x1_0000;
    pub const FASTOPEN: u32 = 0x2000_0000;
    pub const CMSG_CLOEXEC: u32 = 0x4000_0000;
}

const FLAGS: u32 = o::CLOEXEC | o::NONBLOCK;

pub(super) const AF_UNIX: i32 = 1;
pub(super) const AF_INET: i32 = 2;
pub(super) const AF_INET6: i32 = 10;
const AF_NETLINK: i32 = netlink::AF_NETLINK as i32;
/// A number that no protocol of the internet reaches.
const PROTOCOLS: i32 = 263;

/// A kind of socket.
enum Kind {
    Local(Type),
    Tcp(Family),
    Udp(Family),
    UdpLite(Family),
    Netlink(Type),
}

/// Checks family, type and protocol of a new socket.
///
/// # Errors
/// EAFNOSUPPORT, EPROTONOSUPPORT, ESOCKTNOSUPPORT, EINVAL.
fn kind(family: i32, kind: i32, protocol: i32) -> Result<Kind, Errno> {
    if kind as u32 & !(0xf | FLAGS) != 0 || kind & 0xf > 10 {
        return Err(Errno::EINVAL);
    }
    match family {
        AF_UNIX => local(kind & 0xf, protocol).map(Kind::Local),
        AF_INET => internet(Family::V4, kind & 0xf, protocol),
        AF_INET6 => internet(Family::V6, kind & 0xf, protocol),
        AF_NETLINK => netlink(kind & 0xf, protocol).map(Kind::Netlink),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

fn local(kind: i32, protocol: i32) -> Result<Type, Errno> {
    match kind {
        _ if !matches!(protocol, 0 | 1) => Err(Errno::EPROTONOSUPPORT),
        1 => Ok(Type::Stream),
        // As in Linux, SOCK_RAW of this family is SOCK_DGRAM.
        2 | 3 => Ok(Type::Datagram),
        5 => Ok(Type::SeqPacket),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

fn internet(family: Family, kind: i32, protocol: i32) -> Result<Kind, Errno> {
    const TCP: i32 = 6;
    const UDP: i32 = 17;
    const UDP_LITE: i32 = 136;
    if !(0..PROTOCOLS).contains(&protocol) {
        return Err(Errno::EINVAL);
    }
    match (kind, protocol) {
        (1, 0 | TCP) => Ok(Kind::Tcp(family)),
        (2, 0 | UDP) => Ok(Kind::Udp(family)),
        (2, UDP_LITE) => Ok(Kind::UdpLite(family)),
        (1 | 2, _) => Err(Errno::EPROTONOSUPPORT),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

fn netlink(kind: i32, protocol: i32) -> Result<Type, Errno> {
    const ROUTE: i32 = 0;
    match (kind, protocol) {
        (2, ROUTE) => Ok(Type::Datagram),
        (3, ROUTE) => Ok(Type::Raw),
        (2 | 3, _) => Err(Errno::EPROTONOSUPPORT),
        _ => Err(Errno::ESOCKTNOSUPPORT),
    }
}

fn socket(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.uint(1) & FLAGS;
    let socket: Box<dyn Socket> = match kind(a.int(0), a.int(1), a.int(2))? {
        Kind::Local(kind) => Box::new(LocalSocket::new(kind)?),
        Kind::Tcp(family) => Box::new(TcpSocket::new(family)?),
        Kind::Udp(family) => Box::new(UdpSocket::new(family)?),
        Kind::UdpLite(family) => Box::new(UdpSocket::lite(family)?),
        Kind::Netlink(kind) => Box::new(NetlinkSocket::new(kind, |e| Errno::from(e).get())?),
    };
    Ok(install(SocketFile::open(socket, flags), flags)?)
}

/// socketpair(2). As in Linux, the errors of the descriptors come before those of the family.
fn socketpair(a: &mut Args) -> Result<u64, Errno> {
    let kind = match kind(a.int(0), a.int(1), a.int(2)) {
        Ok(Kind::Local(kind)) => Ok(kind),
        Ok(_) => Err(Errno::EOPNOTSUPP),
        Err(e) => Err(e),
    };
    let flags = a.uint(1) & FLAGS;
    let (x, y) = LocalSocket::pair(kind.unwrap_or(Type::Stream))?;
    let open = |socket| SocketFile::open(Box::new(socket), flags);
    let keep = kind.is_ok();
    install_pair((open(x), open(y)), flags & o::CLOEXEC != 0, a.get(3), keep)?;
    kind.map(|_| 0)
}

/// The open file of a descriptor that is a socket's.
///
/// # Errors
/// EBADF, ENOTSOCK.
fn file_of(fd: i32) -> Result<FileRef, Errno> {
    let file = real_file(fd)?;
    match SocketFile::of(&file) {
        Some(_) => Ok(file),
        None => Err(Errno::ENOTSOCK),
    }
}

/// The socket of a file that [`file_of`] has returned.
fn of(file: &FileRef) -> Result<&dyn Socket, Errno> {
    SocketFile::of(file).ok_or(Errno::ENOTSOCK)
}

/// Bytes of the longest address of any family.
const ADDRESS: usize = 128;

/// Copies a socket address from user memory.
///
/// # Errors
/// EINVAL, EFAULT.
fn address(addr: u64, len: i32) -> Result<Vec<u8>, Errno> {
    let len = usize::try_from(len).ok().filter(|&n| n <= ADDRESS);
    let len = len.ok_or(Errno::EINVAL)?;
    let mut raw = alloc::vec![0; len];
    let mut from = IoBuf::user(addr, len);
    if len > 0 && from.take(&mut raw).map_err(fault)? < len {
        return Err(Errno::EFAULT);
    }
    Ok(raw)
}

/// Writes an address to user memory, as much as there is room for, and its length; nothing but the length 0 if there is none.
///
/// # Errors
/// EINVAL, EFAULT.
fn put_address(addr: u64, len_at: u64, address: Option<&Address>) -> Result<(), Errno> {
    let at = UserPtr::<i32>::new(len_at);
    let room = usize::try_from(at.read().map_err(fault)?).map_err(|_| Errno::EINVAL)?;
    let bytes = address.map_or(&[][..], |address| &address.0);
    let n = bytes.len().min(room);
    if n > 0 && IoBuf::user(addr, n).put(&bytes[..n]).map_err(fault)? < n {
        return Err(Errno::EFAULT);
    }
    at.write(&(bytes.len() as i32)).map_err(fault)
}

fn bind(a: &mut Args) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    let address = address(a.get(1), a.int(2))?;
    of(&file)?.bind(&address)?;
    Ok(0)
}

fn listen(a: &mut Args) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    // As in Linux, a negative backlog is a large one.
    of(&file)?.listen(a.uint(1) as usize)?;
    Ok(0)
}

fn connect(a: &mut Args) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    let address = address(a.get(1), a.int(2))?;
    of(&file)?.connect(&address, file.nonblocking())?;
    Ok(0)
}

fn accept(a: &mut Args, flags: u32) -> Result<u64, Errno> {
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let file = file_of(a.int(0))?;
    let socket = of(&file)?;
    // Without a descriptor no connection is taken.
    let slot = Slot::new(0)?;
    slot.reserve()?;
    let accepted = socket
        .accept(file.nonblocking())
        .map_err(Errno::from)
        .and_then(|accepted| {
            // First: the open file closes the socket if the address cannot be written.
            let file = SocketFile::open(accepted.socket, flags);
            if a.get(1) != 0 {
                put_address(a.get(1), a.get(2), Some(&accepted.peer))?;
            }
            Ok(file)
        });
    match accepted {
        Ok(file) => Ok(slot.fill(Ok(file), flags)?),
        Err(errno) => {
            let _ = slot.fill(Err(FsError::Invalid), flags);
            Err(errno)
        }
    }
}

fn name(
    a: &mut Args,
    which: impl FnOnce(&dyn Socket) -> net::error::Result<Address>,
) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    let address = which(of(&file)?)?;
    put_address(a.get(1), a.get(2), Some(&address))?;
    Ok(0)
}

fn shutdown(a: &mut Args) -> Result<u64, Errno> {
    let file = file_of(a.int(0))?;
    let (reads, writes) = match a.uint(1) {
        0 => (true, false),
        1 => (false, true),
        2 => (true, true),
        _ => return Err(Errno::EINVAL),
    };
    of(&file)?.shutdown(reads, writes)?;
    Ok(0)
}

/// Sends with these flags, and sends SIGPIPE to the caller if the connection is broken.
fn send(file: &FileRef, buf: &mut IoBuf, mut message: Message, flags: u32) -> Result<u64, Errno> {
    if flags & (msg::OOB | msg::FASTOPEN) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    message.nonblocking = file.nonblocking() || flags & msg::DONTWAIT != 0;
    let sent = of(file)?.send(buf, message);
    if sent == Err(SocketError::File(FsError::BrokenPipe)) && flags & msg::NOSIGNAL == 0 {
        signal::raise(sig::PIPE);
    }
    Ok(sent? as u64)
}

fn sendto(a: &mut Args) -> Result<u64, Errno> {
    let range = user_range(a.get(1), a.get(2))?;
    let file = file_of(a.int(0))?;
    let to = match a.get(4) {
        0 => None,
        addr => Some(address(addr, a.int(5))?),
    };
    let message = Message {
        to: to.as_deref(),
        ..Message::default()
    };
    send(&file, &mut IoBuf::User(range), message, a.uint(3))
}

/// How to receive from a file with these flags.
fn how(file: &FileRef, flags: u32) -> Receive {
    Receive {
        peek: flags & msg::PEEK != 0,
        all: flags & msg::WAITALL != 0,
        discard: flags & msg::TRUNC != 0,
        nonblocking: file.nonblocking() || flags & msg::DONTWAIT != 0,
    }
}

/// Receives from a file with these flags.
fn receive(file: &FileRef, buf: &mut IoBuf, flags: u32) -> Result<Received, Errno> {
    let socket = of(file)?;
    if flags & msg::OOB != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    // No socket has a queue of errors. Families that have none in Linux do not know the flag.
    let has_queue = [AF_INET, AF_INET6].contains(&(socket.domain() as i32));
    if flags & msg::ERRQUEUE != 0 && has_queue {
        return Err(Errno::EAGAIN);
    }
    Ok(socket.receive(buf, how(file, flags))?)
}

fn recvfrom(a: &mut Args) -> Result<u64, Errno> {
    let range = user_range(a.get(1), a.get(2))?;
    let file = file_of(a.int(0))?;
    let flags = a.uint(3);
    let mut buf = IoBuf::User(range);
    let got = receive(&file, &mut buf, flags)?;
    if a.get(4) != 0 {
        put_address(a.get(4), a.get(5), got.from.as_ref())?;
    }
    Ok(message::count(of(&file)?, &got, flags))
}
