//! Calls on sockets of the internet, for their tests.

use crate::socket_calls::Bytes;
use user::sys;

/// AF_INET.
pub const V4: i32 = libc::AF_INET;
/// AF_INET6.
pub const V6: i32 = libc::AF_INET6;
/// Both families.
pub const FAMILIES: [i32; 2] = [V4, V6];

/// An address: `127.0.0.1` or the like, of either family.
pub fn ip(text: &str) -> std::net::IpAddr {
    text.parse().unwrap_or(std::net::IpAddr::from([0; 4]))
}

/// The loopback address of a family.
pub fn loopback(family: i32) -> &'static str {
    if family == V4 { "127.0.0.1" } else { "::1" }
}

/// A struct sockaddr.
pub fn address(text: &str, port: u16) -> Vec<u8> {
    let mut raw = Vec::new();
    match ip(text) {
        std::net::IpAddr::V4(ip) => {
            raw.extend((V4 as u16).to_ne_bytes());
            raw.extend(port.to_be_bytes());
            raw.extend(ip.octets());
            raw.resize(16, 0);
        }
        std::net::IpAddr::V6(ip) => {
            raw.extend((V6 as u16).to_ne_bytes());
            raw.extend(port.to_be_bytes());
            raw.resize(8, 0);
            raw.extend(ip.octets());
            raw.resize(28, 0);
        }
    }
    raw
}

/// socket(2) of TCP.
pub fn tcp(family: i32) -> Result<i32, i32> {
    sc!(SYS_socket, family, libc::SOCK_STREAM, 0).map(|fd| fd as i32)
}

/// socket(2) of UDP, nonblocking.
pub fn udp(family: i32) -> Result<i32, i32> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK;
    sc!(SYS_socket, family, kind, 0).map(|fd| fd as i32)
}

/// bind(2).
pub fn bind(fd: i32, text: &str, port: u16) -> Result<u64, i32> {
    let raw = address(text, port);
    sc!(SYS_bind, fd, raw.as_ptr(), raw.len())
}

/// connect(2).
pub fn connect(fd: i32, text: &str, port: u16) -> Result<u64, i32> {
    let raw = address(text, port);
    sc!(SYS_connect, fd, raw.as_ptr(), raw.len())
}

/// sendto(2).
pub fn send_to(fd: i32, bytes: &[u8], text: &str, port: u16) -> Result<u64, i32> {
    let raw = address(text, port);
    let (at, len) = (raw.as_ptr(), raw.len());
    sc!(SYS_sendto, fd, bytes.as_ptr(), bytes.len(), 0, at, len)
}

/// The address that a call like getsockname returns.
pub fn named(nr: i64, fd: i32) -> Bytes {
    crate::socket_calls::named(nr, fd)
}

/// The port of a struct sockaddr.
pub fn port_of(raw: &[u8]) -> u16 {
    u16::from_be_bytes([raw[2], raw[3]])
}

/// The port of a socket.
pub fn port(fd: i32) -> Result<u16, i32> {
    named(libc::SYS_getsockname, fd).map(|raw| port_of(&raw))
}

/// A listener at any port, and the port.
pub fn listener(text: &str, backlog: i32) -> Result<(i32, u16), i32> {
    let family = if ip(text).is_ipv4() { V4 } else { V6 };
    let fd = tcp(family)?;
    bind(fd, text, 0)?;
    sc!(SYS_listen, fd, backlog)?;
    Ok((fd, port(fd)?))
}

/// accept(2).
pub fn accept(fd: i32) -> Result<i32, i32> {
    sc!(SYS_accept4, fd, 0, 0, libc::SOCK_CLOEXEC).map(|fd| fd as i32)
}

/// A connection of a family: the client and the server.
pub fn pair(family: i32) -> Result<(i32, i32), i32> {
    let (server, port) = listener(loopback(family), 5)?;
    let client = tcp(family)?;
    connect(client, loopback(family), port)?;
    let accepted = accept(server)?;
    sys::close(server)?;
    Ok((client, accepted))
}

/// An option of any level.
pub fn option(fd: i32, level: i32, number: i32) -> Result<i32, i32> {
    let (mut value, mut len) = (0i32, 4u32);
    sc!(
        SYS_getsockopt,
        fd,
        level,
        number,
        &raw mut value,
        &raw mut len
    )?;
    Ok(value)
}

/// Sets such an option.
pub fn set_option(fd: i32, level: i32, number: i32, value: i32) -> Result<u64, i32> {
    sc!(SYS_setsockopt, fd, level, number, &raw const value, 4)
}

/// The state that TCP_INFO tells.
pub fn state(fd: i32) -> Result<i32, i32> {
    let (mut raw, mut len) = ([0u8; 104], 104u32);
    sc!(
        SYS_getsockopt,
        fd,
        libc::IPPROTO_TCP,
        libc::TCP_INFO,
        raw.as_mut_ptr(),
        &raw mut len
    )?;
    Ok(i32::from(raw[0]))
}

/// Makes a socket nonblocking.
pub fn quick(fd: i32) -> Result<u64, i32> {
    sc!(SYS_fcntl, fd, libc::F_SETFL, libc::O_NONBLOCK)
}

/// Polls until one of these events is found, or for a second; returns those that are.
pub fn await_events(fd: i32, wanted: u64) -> u64 {
    let mut list = [u64::from(fd as u32) | wanted << 32];
    let _ = sc!(SYS_poll, list.as_mut_ptr(), 1, 1000);
    list[0] >> 48
}

/// SO_LINGER.
pub fn linger(fd: i32, seconds: i32) -> Result<u64, i32> {
    let value = [1i32, seconds];
    let (level, number) = (libc::SOL_SOCKET, libc::SO_LINGER);
    sc!(SYS_setsockopt, fd, level, number, value.as_ptr(), 8)
}
