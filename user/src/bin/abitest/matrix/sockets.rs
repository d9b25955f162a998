//! Sockets: the errnos that one line can provoke. `socket/` has the rest.

use super::{BAD, NONE, apart, no_descriptors, nobody};
use user::sys;

/// A fresh local socket.
fn socket() -> Result<u64, i32> {
    sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0)
}

/// A local address.
fn address(name: &str) -> Vec<u8> {
    let mut raw = vec![libc::AF_UNIX as u8, 0];
    raw.extend(name.as_bytes());
    raw.push(0);
    raw
}

fn connect(name: &str) -> Result<u64, i32> {
    let raw = address(name);
    let fd = socket()?;
    let got = sc!(SYS_connect, fd, raw.as_ptr(), raw.len());
    sys::close(fd as i32)?;
    got
}

/// connect(2) to a path, with the address that the C library's users would pass, for the tests of bad paths.
pub fn connect_to(path: u64) -> Result<u64, i32> {
    if path == BAD {
        return sc!(SYS_connect, socket()?, BAD, 50);
    }
    let mut name = Vec::new();
    while let byte @ 1.. = sys::peek(path + name.len() as u64) {
        name.push(byte);
    }
    match String::from_utf8(name) {
        // An address has no room for a longer path, and an empty one has no name.
        Ok(name) if name.len() > 107 => Err(libc::ENAMETOOLONG),
        Ok(name) if name.is_empty() => Err(libc::ENOENT),
        Ok(name) => connect(&name),
        Err(_) => Err(libc::EINVAL),
    }
}

/// A call for messages in which only the descriptor can be wrong.
fn message(fd: u64, nr: i64) -> Result<u64, i32> {
    user::sys::call(nr, &[fd, [0u64; 7].as_ptr() as u64, 0])
}

errnos! {
    accept EBADF |_| sc!(SYS_accept, NONE, 0, 0);
    accept EINVAL |_| sc!(SYS_accept, socket()?, 0, 0);
    accept ENOTSOCK |h| sc!(SYS_accept, h.fd, 0, 0);
    accept4 EBADF |_| sc!(SYS_accept4, NONE, 0, 0, 0);
    accept4 EINVAL |_| sc!(SYS_accept4, socket()?, 0, 0, 0);
    accept4 EINVAL |_| sc!(SYS_accept4, socket()?, 0, 0, 1);
    accept4 ENOTSOCK |h| sc!(SYS_accept4, h.fd, 0, 0, 0);
    bind EBADF |_| sc!(SYS_bind, NONE, address("/x").as_ptr(), 5);
    bind EFAULT |_| sc!(SYS_bind, socket()?, BAD, 5);
    bind EINVAL |_| sc!(SYS_bind, socket()?, address("/x").as_ptr(), 999);
    bind ENOTSOCK |h| sc!(SYS_bind, h.fd, address("/x").as_ptr(), 5);
    connect EACCES |h| { sc!(SYS_mknod, h.p("s"), libc::S_IFSOCK | 0o600, 0)?; let name = format!("{}/s", h.dir); nobody(|| connect(&name)) };
    connect EBADF |_| sc!(SYS_connect, NONE, address("/x").as_ptr(), 5);
    connect ECONNREFUSED |_| connect("\0nobody-listens");
    connect ECONNREFUSED |h| connect(&format!("{}/f", h.dir));
    connect ECONNREFUSED |h| { sc!(SYS_mknod, h.p("s"), libc::S_IFSOCK | 0o600, 0)?; connect(&format!("{}/s", h.dir)) };
    connect EFAULT |_| sc!(SYS_connect, socket()?, BAD, 5);
    connect EINVAL |_| sc!(SYS_connect, socket()?, address("/x").as_ptr(), 999);
    connect EINVAL |_| sc!(SYS_connect, socket()?, address("/x").as_ptr(), 1);
    connect EINVAL |_| sc!(SYS_connect, socket()?, [2u64; 2].as_ptr(), 16);
    connect ENOENT |_| connect("/none");
    connect ENOTSOCK |h| sc!(SYS_connect, h.fd, address("/x").as_ptr(), 5);
    getpeername EBADF |_| sc!(SYS_getpeername, NONE, 0, 0);
    getpeername ENOTCONN |_| sc!(SYS_getpeername, socket()?, [0u8; 110].as_mut_ptr(), [110u32].as_mut_ptr());
    getpeername ENOTSOCK |h| sc!(SYS_getpeername, h.fd, 0, 0);
    getsockname EBADF |_| sc!(SYS_getsockname, NONE, 0, 0);
    getsockname EFAULT |_| sc!(SYS_getsockname, socket()?, BAD, [110u32].as_mut_ptr());
    getsockname EINVAL |_| sc!(SYS_getsockname, socket()?, [0u8; 110].as_mut_ptr(), [-1i32].as_mut_ptr());
    getsockname ENOTSOCK |h| sc!(SYS_getsockname, h.fd, 0, 0);
    getsockopt EBADF |_| sc!(SYS_getsockopt, NONE, libc::SOL_SOCKET, libc::SO_TYPE, 0, 0);
    getsockopt EFAULT |_| sc!(SYS_getsockopt, socket()?, libc::SOL_SOCKET, libc::SO_TYPE, BAD, BAD);
    getsockopt EINVAL |_| sc!(SYS_getsockopt, socket()?, libc::SOL_SOCKET, libc::SO_TYPE, [0u32].as_mut_ptr(), [-1i32].as_mut_ptr());
    getsockopt ENOPROTOOPT |_| sc!(SYS_getsockopt, socket()?, libc::SOL_SOCKET, 9999, [0u32].as_mut_ptr(), [4u32].as_mut_ptr());
    getsockopt ENOTSOCK |h| sc!(SYS_getsockopt, h.fd, libc::SOL_SOCKET, libc::SO_TYPE, 0, 0);
    listen EBADF |_| sc!(SYS_listen, NONE, 1);
    listen EINVAL |_| sc!(SYS_listen, socket()?, 1);
    listen ENOTSOCK |h| sc!(SYS_listen, h.fd, 1);
    recvfrom EBADF |_| sc!(SYS_recvfrom, NONE, [0u8].as_mut_ptr(), 1, 0, 0, 0);
    recvfrom EINVAL |_| sc!(SYS_recvfrom, socket()?, [0u8].as_mut_ptr(), 1, 0, 0, 0);
    recvfrom ENOTSOCK |h| sc!(SYS_recvfrom, h.fd, [0u8].as_mut_ptr(), 1, 0, 0, 0);
    recvmsg EBADF |_| message(NONE as u64, libc::SYS_recvmsg);
    recvmsg EFAULT |_| sc!(SYS_recvmsg, socket()?, BAD, 0);
    recvmsg EINVAL |_| message(socket()?, libc::SYS_recvmsg);
    recvmsg ENOTSOCK |h| message(h.fd as u64, libc::SYS_recvmsg);
    sendmsg EBADF |_| message(NONE as u64, libc::SYS_sendmsg);
    sendmsg EFAULT |_| sc!(SYS_sendmsg, socket()?, BAD, 0);
    sendmsg ENOTCONN |_| message(socket()?, libc::SYS_sendmsg);
    sendmsg ENOTSOCK |h| message(h.fd as u64, libc::SYS_sendmsg);
    sendto EBADF |_| sc!(SYS_sendto, NONE, [0u8].as_ptr(), 1, 0, 0, 0);
    sendto ENOTCONN |_| sc!(SYS_sendto, socket()?, [0u8].as_ptr(), 1, 0, 0, 0);
    sendto ENOTSOCK |h| sc!(SYS_sendto, h.fd, [0u8].as_ptr(), 1, 0, 0, 0);
    setsockopt EBADF |_| sc!(SYS_setsockopt, NONE, libc::SOL_SOCKET, libc::SO_REUSEADDR, [1u32].as_ptr(), 4);
    setsockopt EFAULT |_| sc!(SYS_setsockopt, socket()?, libc::SOL_SOCKET, libc::SO_REUSEADDR, BAD, 4);
    setsockopt EINVAL |_| sc!(SYS_setsockopt, socket()?, libc::SOL_SOCKET, libc::SO_REUSEADDR, [1u32].as_ptr(), 1);
    setsockopt ENOPROTOOPT |_| sc!(SYS_setsockopt, socket()?, libc::SOL_SOCKET, 9999, [1u32].as_ptr(), 4);
    setsockopt ENOTSOCK |h| sc!(SYS_setsockopt, h.fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, [1u32].as_ptr(), 4);
    shutdown EBADF |_| sc!(SYS_shutdown, NONE, 0);
    shutdown EINVAL |_| sc!(SYS_shutdown, socket()?, 9);
    shutdown ENOTSOCK |h| sc!(SYS_shutdown, h.fd, 0);
    socket EAFNOSUPPORT |_| sc!(SYS_socket, 77, libc::SOCK_STREAM, 0);
    socket EINVAL |_| sc!(SYS_socket, libc::AF_UNIX, 100, 0);
    socket EINVAL |_| sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | 0x10_0000, 0);
    socket EMFILE |_| no_descriptors(socket);
    socket EPROTONOSUPPORT |_| sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 5);
    socket ESOCKTNOSUPPORT |_| sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_RDM, 0);
    socketpair EAFNOSUPPORT |_| sc!(SYS_socketpair, 77, libc::SOCK_STREAM, 0, [0u32; 2].as_mut_ptr());
    socketpair EFAULT |_| sc!(SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, BAD);
    socketpair EINVAL |_| sc!(SYS_socketpair, libc::AF_UNIX, 100, 0, [0u32; 2].as_mut_ptr());
    socketpair EMFILE |_| no_descriptors(|| sc!(SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 0, [0u32; 2].as_mut_ptr()));
    socketpair EPROTONOSUPPORT |_| sc!(SYS_socketpair, libc::AF_UNIX, libc::SOCK_STREAM, 5, [0u32; 2].as_mut_ptr());
}

flags! {
    getsockname AF_UNIX |_| { let (mut raw, mut len) = ([9u16; 55], 110u32); sc!(SYS_getsockname, socket()?, raw.as_mut_ptr(), &raw mut len)?; Ok((raw[0], len) == (1, 2)) };
    shutdown SHUT_RD |_| sc!(SYS_shutdown, socket()?, libc::SHUT_RD);
    shutdown SHUT_RDWR |_| sc!(SYS_shutdown, socket()?, libc::SHUT_RDWR);
    shutdown SHUT_WR |_| sc!(SYS_shutdown, socket()?, libc::SHUT_WR);
    socket SOCK_CLOEXEC |_| { let fd = sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?; Ok(sc!(SYS_fcntl, fd, libc::F_GETFD)? == 1) };
    socket SOCK_DGRAM |_| sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM, 0);
    socket SOCK_NONBLOCK |_| { let fd = sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0)?; Ok(sc!(SYS_fcntl, fd, libc::F_GETFL)? & libc::O_NONBLOCK as u64 != 0) };
    socket SOCK_SEQPACKET |_| sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_SEQPACKET, 0);
    socket SOCK_STREAM |_| apart(socket);
}
