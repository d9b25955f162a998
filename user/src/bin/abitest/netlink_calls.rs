//! Requests of NETLINK_ROUTE and their answers, for their tests.

use crate::socket_calls::recv_with;
use user::sys;

/// SOCK_RAW.
pub const RAW: i32 = libc::SOCK_RAW;
/// SOL_NETLINK.
pub const LEVEL: i32 = libc::SOL_NETLINK;
/// NLM_F_REQUEST, and with it that all rows of a table are asked for, or an acknowledgement.
pub const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
/// As [`REQUEST`].
pub const DUMP: u16 = REQUEST | libc::NLM_F_DUMP as u16;
/// As [`REQUEST`].
pub const ACK: u16 = REQUEST | libc::NLM_F_ACK as u16;
/// The number that requests have here.
pub const SEQUENCE: u32 = 0x1234;

/// A message of an answer.
#[derive(Debug, PartialEq)]
pub struct Message {
    /// The kind.
    pub kind: u16,
    /// The flags.
    pub flags: u16,
    /// The request's number.
    pub sequence: u32,
    /// The port of the socket that has asked.
    pub port: u32,
    /// What follows.
    pub body: Vec<u8>,
}

/// A word of some bytes.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
    part.map_or(0, u32::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    let part = bytes.get(at..at + 2).and_then(|part| part.try_into().ok());
    part.map_or(0, u16::from_ne_bytes)
}

impl Message {
    /// The errno of an error, or of an end.
    pub fn errno(&self) -> i32 {
        -(word(&self.body, 0) as i32)
    }

    /// An attribute behind the first bytes of the body.
    pub fn attribute(&self, head: usize, kind: u16) -> Option<Vec<u8>> {
        let mut rest = self.body.get(head..)?;
        while rest.len() >= 4 {
            let len = half(rest, 0) as usize;
            if half(rest, 2) == kind {
                return rest.get(4..len).map(<[u8]>::to_vec);
            }
            rest = rest
                .get(len.next_multiple_of(4).max(4)..)
                .unwrap_or_default();
        }
        None
    }

    /// Such an attribute that is a word.
    pub fn number(&self, head: usize, kind: u16) -> Option<u32> {
        self.attribute(head, kind).map(|data| word(&data, 0))
    }
}

/// The messages of a datagram.
pub fn messages(mut bytes: &[u8]) -> Vec<Message> {
    let mut all = Vec::new();
    while bytes.len() >= 16 {
        let len = (word(bytes, 0) as usize).clamp(16, bytes.len());
        all.push(Message {
            kind: half(bytes, 4),
            flags: half(bytes, 6),
            sequence: word(bytes, 8),
            port: word(bytes, 12),
            body: bytes[16..len].to_vec(),
        });
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// Goes where loopback is the only interface, and is up. Pantala is such a machine, and the request to set it up does nothing there.
pub fn alone() -> Result<(), i32> {
    let _ = sc!(SYS_unshare, libc::CLONE_NEWNET);
    let fd = socket(RAW, 0)?;
    let up = libc::IFF_UP as u32;
    let answer = ask(fd, libc::RTM_NEWLINK, ACK, &link(0, 1, up, up))?;
    sys::close(fd)?;
    match answer.first() {
        Some(reply) if reply.errno() == 0 => Ok(()),
        Some(reply) => Err(reply.errno()),
        None => Err(libc::EAGAIN),
    }
}

/// socket(2), nonblocking.
pub fn socket(kind: i32, protocol: i32) -> Result<i32, i32> {
    let kind = kind | libc::SOCK_NONBLOCK;
    sc!(SYS_socket, libc::AF_NETLINK, kind, protocol).map(|fd| fd as i32)
}

/// A struct sockaddr_nl.
pub fn address(port: u32, groups: u32) -> Vec<u8> {
    [libc::AF_NETLINK as u32, port, groups]
        .into_iter()
        .flat_map(u32::to_ne_bytes)
        .collect()
}

/// bind(2) or connect(2).
pub fn call_with(nr: i64, fd: i32, address: &[u8]) -> Result<u64, i32> {
    sys::call(
        nr,
        &[fd as u64, address.as_ptr() as u64, address.len() as u64],
    )
}

/// A request.
pub fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    raw.extend((16 + body.len() as u32).to_ne_bytes());
    raw.extend(kind.to_ne_bytes());
    raw.extend(flags.to_ne_bytes());
    raw.extend(SEQUENCE.to_ne_bytes());
    raw.extend(0u32.to_ne_bytes());
    raw.extend(body);
    raw.resize(raw.len().next_multiple_of(4), 0);
    raw
}

/// A struct ifinfomsg.
pub fn link(family: u8, index: u32, flags: u32, change: u32) -> Vec<u8> {
    let words = [index, flags, change].map(u32::to_ne_bytes);
    [&[family, 0, 0, 0], words.as_flattened()].concat()
}

/// A struct rtmsg: family, length of the address, table, protocol, type, flags.
pub fn route(family: u8, len: u8, [table, by, fate]: [u8; 3], flags: u32) -> Vec<u8> {
    let mut raw = vec![family, len, 0, 0, table, by, 0, fate];
    raw.extend(flags.to_ne_bytes());
    raw
}

/// An attribute.
pub fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut raw = Vec::new();
    raw.extend((4 + data.len() as u16).to_ne_bytes());
    raw.extend(kind.to_ne_bytes());
    raw.extend(data);
    raw.resize(raw.len().next_multiple_of(4), 0);
    raw
}

/// Sends a request.
pub fn send(fd: i32, request: &[u8]) -> Result<u64, i32> {
    sc!(SYS_sendto, fd, request.as_ptr(), request.len(), 0, 0, 0)
}

/// All messages that wait to be received.
pub fn waiting(fd: i32) -> Result<Vec<Message>, i32> {
    let mut all = Vec::new();
    loop {
        match recv_with(fd, 32_768, 0) {
            Ok(bytes) => all.extend(messages(&bytes)),
            Err(libc::EAGAIN) => return Ok(all),
            Err(errno) => return Err(errno),
        }
    }
}

/// Sends a request, and receives the answer.
pub fn ask(fd: i32, kind: u16, flags: u16, body: &[u8]) -> Result<Vec<Message>, i32> {
    send(fd, &request(kind, flags, body))?;
    waiting(fd)
}

/// The errno of the last message of an answer, with its kind.
pub fn end(answer: &[Message]) -> (u16, i32) {
    answer
        .last()
        .map_or((0, 0), |last| (last.kind, last.errno()))
}
