//! Calls on local sockets, for their tests.

use user::sys;

/// SOCK_STREAM.
pub const STREAM: i32 = libc::SOCK_STREAM;
/// SOCK_DGRAM.
pub const DGRAM: i32 = libc::SOCK_DGRAM;
/// SOCK_SEQPACKET.
pub const SEQPACKET: i32 = libc::SOCK_SEQPACKET;
/// All types.
pub const TYPES: [i32; 3] = [STREAM, DGRAM, SEQPACKET];
/// POLLIN.
pub const IN: u64 = libc::POLLIN as u64;
/// POLLOUT.
pub const OUT: u64 = libc::POLLOUT as u64;
/// POLLERR.
pub const ERR: u64 = libc::POLLERR as u64;
/// POLLHUP.
pub const HUP: u64 = libc::POLLHUP as u64;
/// POLLRDHUP.
pub const RDHUP: u64 = libc::POLLRDHUP as u64;

/// What was received.
pub type Bytes = Result<Vec<u8>, i32>;

/// socketpair(2).
pub fn pair(kind: i32) -> Result<(i32, i32), i32> {
    let mut fds = [0i32; 2];
    sc!(SYS_socketpair, libc::AF_UNIX, kind, 0, fds.as_mut_ptr())?;
    Ok((fds[0], fds[1]))
}

/// As [`pair`], nonblocking.
pub fn quick(kind: i32) -> Result<(i32, i32), i32> {
    pair(kind | libc::SOCK_NONBLOCK)
}

/// socket(2).
pub fn socket(kind: i32) -> Result<i32, i32> {
    sc!(SYS_socket, libc::AF_UNIX, kind, 0).map(|fd| fd as i32)
}

/// send(2) without SIGPIPE.
pub fn send(fd: i32, bytes: &[u8]) -> Result<u64, i32> {
    sc!(
        SYS_sendto,
        fd,
        bytes.as_ptr(),
        bytes.len(),
        libc::MSG_NOSIGNAL,
        0,
        0
    )
}

/// recv(2).
pub fn recv_with(fd: i32, most: usize, flags: i32) -> Bytes {
    let mut bytes = vec![0u8; most];
    let n = sc!(SYS_recvfrom, fd, bytes.as_mut_ptr(), most, flags, 0, 0)?;
    bytes.truncate(n as usize);
    Ok(bytes)
}

/// recv(2) without flags.
pub fn recv(fd: i32, most: usize) -> Bytes {
    recv_with(fd, most, 0)
}

/// What poll finds at once, of these events.
pub fn events(fd: i32) -> u64 {
    let wanted = IN | OUT | RDHUP;
    let mut list = [u64::from(fd as u32) | wanted << 32];
    let _ = sc!(SYS_poll, list.as_mut_ptr(), 1, 0);
    list[0] >> 48
}

/// The address of a path or of an abstract name.
pub fn address(name: &str) -> Vec<u8> {
    let mut raw = vec![1, 0];
    raw.extend(name.as_bytes());
    raw
}

/// An abstract name that no other process uses.
pub fn name(what: &str) -> String {
    format!("\0abitest-{what}-{}", std::process::id())
}

/// bind(2).
pub fn bind(fd: i32, name: &str) -> Result<u64, i32> {
    let raw = address(name);
    sc!(SYS_bind, fd, raw.as_ptr(), raw.len())
}

/// connect(2).
pub fn connect(fd: i32, name: &str) -> Result<u64, i32> {
    let raw = address(name);
    sc!(SYS_connect, fd, raw.as_ptr(), raw.len())
}

/// sendto(2).
pub fn send_to(fd: i32, bytes: &[u8], name: &str) -> Result<u64, i32> {
    let raw = address(name);
    sc!(
        SYS_sendto,
        fd,
        bytes.as_ptr(),
        bytes.len(),
        0,
        raw.as_ptr(),
        raw.len()
    )
}

/// A socket that listens at this name.
pub fn listener(kind: i32, name: &str, backlog: u32) -> Result<i32, i32> {
    let fd = socket(kind)?;
    bind(fd, name)?;
    sc!(SYS_listen, fd, backlog)?;
    Ok(fd)
}

/// The address that a call like getsockname returns.
pub fn named(nr: i64, fd: i32) -> Bytes {
    let (mut raw, mut len) = (vec![0u8; 120], 120u32);
    sys::call(
        nr,
        &[fd as u64, raw.as_mut_ptr() as u64, &raw mut len as u64],
    )?;
    raw.truncate(len as usize);
    Ok(raw)
}

/// An option at the level SOL_SOCKET.
pub fn option(fd: i32, number: i32) -> Result<i32, i32> {
    let (mut value, mut len) = (0i32, 4u32);
    sc!(
        SYS_getsockopt,
        fd,
        libc::SOL_SOCKET,
        number,
        &raw mut value,
        &raw mut len
    )?;
    Ok(value)
}

/// Sets such an option.
pub fn set_option(fd: i32, number: i32, value: i32) -> Result<u64, i32> {
    sc!(
        SYS_setsockopt,
        fd,
        libc::SOL_SOCKET,
        number,
        &raw const value,
        4
    )
}

/// A control message.
pub fn control(kind: i32, words: &[i32]) -> Vec<u8> {
    let mut raw = Vec::new();
    raw.extend((16 + 4 * words.len() as u64).to_ne_bytes());
    raw.extend(libc::SOL_SOCKET.to_ne_bytes());
    raw.extend(kind.to_ne_bytes());
    words.iter().for_each(|word| raw.extend(word.to_ne_bytes()));
    raw.resize(raw.len().next_multiple_of(8), 0);
    raw
}

/// sendmsg of one buffer with control messages.
pub fn send_with(fd: i32, bytes: &[u8], control: &[u8]) -> Result<u64, i32> {
    let buffer = [bytes.as_ptr() as u64, bytes.len() as u64];
    let header = [
        0,
        0,
        buffer.as_ptr() as u64,
        1,
        control.as_ptr() as u64,
        control.len() as u64,
        0,
    ];
    sc!(SYS_sendmsg, fd, header.as_ptr(), libc::MSG_NOSIGNAL)
}

/// The bytes, the words of the control messages with their headers, and the flags that recvmsg returns.
pub type Message = (Vec<u8>, Vec<i32>, i32);

/// recvmsg(2) with so much room for control messages.
pub fn receive(fd: i32, most: usize, room: usize, flags: i32) -> Result<Message, i32> {
    let mut bytes = vec![0u8; most];
    let mut words = vec![0i32; room.div_ceil(4)];
    let buffer = [bytes.as_mut_ptr() as u64, most as u64];
    let at = if room == 0 {
        0
    } else {
        words.as_mut_ptr() as u64
    };
    let mut header = [0, 0, buffer.as_ptr() as u64, 1, at, room as u64, 0];
    let n = sc!(SYS_recvmsg, fd, header.as_mut_ptr(), flags)?;
    bytes.truncate(n as usize);
    words.truncate(header[5] as usize / 4);
    Ok((bytes, words, header[6] as i32))
}

/// The descriptors among the words of [`receive`].
pub fn descriptors(words: &[i32]) -> Vec<i32> {
    match words {
        [len, _, level, kind, rest @ ..]
            if (*level, *kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) =>
        {
            rest[..(*len as usize - 16) / 4].to_vec()
        }
        _ => Vec::new(),
    }
}

/// Whether two descriptors refer to one file.
pub fn same(a: i32, b: i32) -> bool {
    let (mut x, mut y) = (sys::zeroed_stat(), sys::zeroed_stat());
    let got = [sc!(SYS_fstat, a, &raw mut x), sc!(SYS_fstat, b, &raw mut y)];
    got == [Ok(0), Ok(0)] && (x.st_dev, x.st_ino) == (y.st_dev, y.st_ino)
}

/// Runs `f` in a child beside the caller.
pub fn beside(f: impl FnOnce() -> bool) -> Result<u64, i32> {
    match sys::fork()? {
        0 => sys::exit(i32::from(!f())),
        pid => Ok(pid),
    }
}

/// Whether a child ended well.
pub fn ended(pid: u64) -> bool {
    sys::wait(pid as i64, 0) == Ok((pid, 0))
}
