//! Local sockets on the simulated machine, and the calls of their users.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

use std::sync::Arc;

use cred::{CapSet, Cred, Payer};
use hal::uio::IoBuf;
use net::error::Result;
use net::rights::Rights;
use net::socket::{Message, Receive, Received, Type};
use net::{LocalSocket, Socket, SocketError, SocketFile};
use task::current::current;
use vfs::error::FsError;
use vfs::file::{FileRef, o};
use vfs::poll::PollMask;

#[path = "../../../proc/tests/support/beside.rs"]
mod processes;

pub use processes::{beside, join, poll};

/// The error of a call that would have to wait.
pub const AGAIN: SocketError = SocketError::File(FsError::WouldBlock);
/// The other side reads no more.
pub const PIPE: SocketError = SocketError::File(FsError::BrokenPipe);
/// The other side was closed with bytes that it had not read.
pub const RESET: SocketError = SocketError::File(FsError::ConnectionReset);
/// Nobody is there.
pub const REFUSED: SocketError = SocketError::File(FsError::ConnectionRefused);

pub const STREAM: Type = Type::Stream;
pub const DATAGRAM: Type = Type::Datagram;
pub const SEQPACKET: Type = Type::SeqPacket;
/// All types.
pub const TYPES: [Type; 3] = [STREAM, DATAGRAM, SEQPACKET];

/// socketpair(2).
pub fn pair(kind: Type) -> (FileRef, FileRef) {
    let (a, b) = LocalSocket::pair(kind).expect("memory for sockets");
    (
        SocketFile::open(Box::new(a), 0),
        SocketFile::open(Box::new(b), 0),
    )
}

/// As [`pair`], nonblocking.
pub fn quick_pair(kind: Type) -> (FileRef, FileRef) {
    let (a, b) = pair(kind);
    a.set_flags(o::NONBLOCK);
    b.set_flags(o::NONBLOCK);
    (a, b)
}

/// socket(2).
pub fn socket(kind: Type) -> FileRef {
    let socket = LocalSocket::new(kind).expect("memory for a socket");
    SocketFile::open(Box::new(socket), 0)
}

/// The socket of a file.
pub fn of(file: &FileRef) -> &dyn Socket {
    SocketFile::of(file).expect("a socket")
}

/// The address of an abstract name, or of a path.
pub fn address(name: &str) -> Vec<u8> {
    let mut raw = vec![1, 0];
    raw.extend_from_slice(name.as_bytes());
    raw
}

/// bind(2).
pub fn bind(file: &FileRef, name: &str) -> Result<()> {
    of(file).bind(&address(name))
}

/// A listener with this name.
pub fn listener(kind: Type, name: &str, backlog: usize) -> FileRef {
    let file = socket(kind);
    bind(&file, name).expect("a free name");
    of(&file).listen(backlog).expect("a bound socket");
    file
}

/// connect(2).
pub fn connect(file: &FileRef, name: &str) -> Result<()> {
    of(file).connect(&address(name), file.nonblocking())
}

/// accept(2).
pub fn accept(file: &FileRef) -> Result<FileRef> {
    let accepted = of(file).accept(file.nonblocking())?;
    Ok(SocketFile::open(accepted.socket, 0))
}

/// send(2).
pub fn send(to: &FileRef, bytes: &[u8]) -> Result<usize> {
    send_with(to, bytes, Message::default())
}

/// sendmsg(2).
pub fn send_with(to: &FileRef, bytes: &[u8], message: Message) -> Result<usize> {
    let message = Message {
        nonblocking: to.nonblocking(),
        ..message
    };
    of(to).send(&mut IoBuf::Drain(bytes), message)
}

/// sendmsg(2) with descriptors.
pub fn send_files(to: &FileRef, bytes: &[u8], files: &[&FileRef]) -> Result<usize> {
    let files = files.iter().map(|&file| file.clone()).collect();
    let message = Message {
        rights: Some(Rights::new(files)?),
        ..Message::default()
    };
    send_with(to, bytes, message)
}

/// sendto(2).
pub fn send_to(from: &FileRef, bytes: &[u8], name: &str) -> Result<usize> {
    let to = address(name);
    let message = Message {
        to: Some(&to),
        ..Message::default()
    };
    send_with(from, bytes, message)
}

/// recvmsg(2) of at most so many bytes.
pub fn receive_with(from: &FileRef, most: usize, how: Receive) -> Result<(Vec<u8>, Received)> {
    let mut bytes = vec![0; most];
    let how = Receive {
        nonblocking: from.nonblocking() || how.nonblocking,
        ..how
    };
    let got = of(from).receive(&mut IoBuf::Fill(&mut bytes), how)?;
    bytes.truncate(got.bytes);
    Ok((bytes, got))
}

/// recv(2) of at most so many bytes.
pub fn receive(from: &FileRef, most: usize) -> Result<Vec<u8>> {
    receive_with(from, most, Receive::default()).map(|(bytes, _)| bytes)
}

/// recv(2) with MSG_PEEK.
pub fn peek(from: &FileRef, most: usize) -> Result<(Vec<u8>, Received)> {
    let how = Receive {
        peek: true,
        ..Receive::default()
    };
    receive_with(from, most, how)
}

/// The bytes and the descriptors of a message.
pub fn receive_files(from: &FileRef, most: usize) -> Result<(Vec<u8>, Vec<FileRef>)> {
    receive_with(from, most, Receive::default()).map(|(bytes, got)| (bytes, got.files))
}

/// The events of a file now.
pub fn events(file: &FileRef) -> PollMask {
    file.poll(None)
}

/// Makes the caller a user without capabilities. Returns the account.
pub fn become_user(uid: u32) -> Payer {
    let mut cred = Cred::root();
    (cred.uid, cred.euid, cred.suid, cred.fsuid) = (uid, uid, uid, uid);
    (cred.gid, cred.egid, cred.sgid, cred.fsgid) = (uid, uid, uid, uid);
    cred.caps.effective = CapSet::EMPTY;
    cred.caps.permitted = CapSet::EMPTY;
    cred.payer = task::account::of_thread(uid).expect("memory for an account");
    let payer = cred.payer;
    drop(current().replace_cred(Arc::new(cred)));
    payer
}

/// Sockets of the internet.
pub mod inet {
    use net::inet::endpoint::{Endpoint, Family, Ip};
    use net::inet::ports;
    use net::inet::protocol::Protocol;
    use net::{TcpSocket, UdpSocket};

    use super::*;

    pub const V4: Family = Family::V4;
    pub const V6: Family = Family::V6;

    /// socket(2) of TCP.
    pub fn tcp(family: Family) -> FileRef {
        let socket = TcpSocket::new(family).expect("memory for a socket");
        SocketFile::open(Box::new(socket), 0)
    }

    /// socket(2) of UDP, nonblocking.
    pub fn udp(family: Family) -> FileRef {
        let socket = UdpSocket::new(family).expect("memory for a socket");
        SocketFile::open(Box::new(socket), o::NONBLOCK)
    }

    /// As [`udp`], of UDP-Lite.
    pub fn lite(family: Family) -> FileRef {
        let socket = UdpSocket::lite(family).expect("memory for a socket");
        SocketFile::open(Box::new(socket), o::NONBLOCK)
    }

    /// The loopback address of a family.
    pub fn loopback(family: Family) -> Ip {
        family.any().source()
    }

    /// A struct sockaddr.
    pub fn at(family: Family, port: u16) -> Vec<u8> {
        let ip = loopback(family);
        Endpoint { ip, port }.address(family).0
    }

    /// bind(2) to the loopback address.
    pub fn bind(file: &FileRef, family: Family, port: u16) -> Result<()> {
        of(file).bind(&at(family, port))
    }

    /// The port of a socket.
    pub fn port(file: &FileRef) -> u16 {
        let raw = of(file).name().0;
        u16::from_be_bytes([raw[2], raw[3]])
    }

    /// A listener at any port.
    pub fn listener(family: Family, backlog: usize) -> (FileRef, u16) {
        let file = tcp(family);
        bind(&file, family, 0).expect("a free port");
        of(&file).listen(backlog).expect("a bound socket");
        let port = port(&file);
        (file, port)
    }

    /// connect(2).
    pub fn connect(file: &FileRef, family: Family, port: u16) -> Result<()> {
        of(file).connect(&at(family, port), file.nonblocking())
    }

    /// A client that finds no room at a listener, and does not wait.
    pub fn late_client(number: u16) -> FileRef {
        let late = tcp(Family::V4);
        late.set_flags(o::NONBLOCK);
        assert_eq!(
            connect(&late, Family::V4, number),
            Err(SocketError::InProgress)
        );
        late
    }

    /// A listener without room, its port, the client that has it, and one that is late.
    pub fn crowded() -> (FileRef, u16, FileRef, FileRef) {
        let (server, number) = listener(Family::V4, 0);
        let first = tcp(Family::V4);
        assert_eq!(connect(&first, Family::V4, number), Ok(()));
        (server, number, first, late_client(number))
    }

    /// A connection: the client and the server.
    pub fn pair(family: Family) -> (FileRef, FileRef) {
        let (server, port) = listener(family, 1);
        let client = tcp(family);
        connect(&client, family, port).expect("a listener");
        let accepted = accept(&server).expect("a connection");
        (client, accepted)
    }

    /// How many sockets of a protocol have a port, and how many ends are remembered.
    pub fn counts() -> (usize, usize) {
        let (mut sockets, mut waits) = (0, 0);
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::UdpLite] {
            ports::each(protocol, |_, _| sockets += 1);
        }
        ports::each_wait(|_, _| waits += 1);
        (sockets, waits)
    }

    /// sendto(2).
    pub fn send_to(from: &FileRef, bytes: &[u8], family: Family, port: u16) -> Result<usize> {
        let to = at(family, port);
        let message = Message {
            to: Some(&to),
            ..Message::default()
        };
        send_with(from, bytes, message)
    }
}

/// Sockets of AF_NETLINK.
pub mod netlink {
    use net::NetlinkSocket;
    use net::netlink::message::word;

    use super::*;

    /// RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE.
    pub const LINKS: u16 = 18;
    pub const ADDRESSES: u16 = 22;
    pub const ROUTES: u16 = 26;
    /// NLM_F_REQUEST, and with it NLM_F_ACK, or NLM_F_DUMP.
    pub const REQUEST: u16 = 1;
    pub const ACK: u16 = 5;
    pub const DUMP: u16 = 0x301;

    /// Numbers that stand for errors here.
    pub fn number(error: SocketError) -> u16 {
        match error {
            SocketError::File(FsError::Busy) => 16,
            SocketError::File(FsError::NoDevice) => 19,
            SocketError::File(FsError::Invalid) => 22,
            _ => 99,
        }
    }

    /// socket(2), nonblocking, whose listings have datagrams of up to `room` bytes.
    pub fn socket(room: usize) -> FileRef {
        let socket = NetlinkSocket::with_room(Type::Raw, number, room);
        let socket = socket.expect("memory for a socket");
        SocketFile::open(Box::new(socket), o::NONBLOCK)
    }

    /// bind(2).
    pub fn bind(file: &FileRef, port: u32) -> Result<()> {
        let words = [16, port, 0].map(u32::to_ne_bytes);
        of(file).bind(words.as_flattened())
    }

    /// The port of a socket.
    pub fn port(file: &FileRef) -> u32 {
        word(&of(file).name().0, 4).unwrap_or(0)
    }

    /// A request.
    pub fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let mut raw = (16 + body.len() as u32).to_ne_bytes().to_vec();
        raw.extend(kind.to_ne_bytes());
        raw.extend(flags.to_ne_bytes());
        raw.extend([7, 0, 0, 0, 0, 0, 0, 0]);
        raw.extend(body);
        raw
    }

    /// The kinds of the messages of a datagram, each with the first word of its body.
    pub fn kinds(mut bytes: &[u8]) -> Vec<(u16, u32)> {
        let mut all = Vec::new();
        while let Some(len) = word(bytes, 0) {
            assert!(
                len >= 16 && len as usize <= bytes.len(),
                "a length of {len}"
            );
            let kind = word(bytes, 4).unwrap_or(0) as u16;
            all.push((kind, word(&bytes[..len as usize], 16).unwrap_or(0)));
            bytes = bytes
                .get(len.next_multiple_of(4) as usize..)
                .unwrap_or_default();
        }
        all
    }

    /// Sends a request, and receives the datagrams of the answer.
    pub fn ask(file: &FileRef, request: &[u8]) -> Result<Vec<Vec<(u16, u32)>>> {
        send(file, request)?;
        let mut all = Vec::new();
        loop {
            match receive(file, 9999) {
                Ok(bytes) => all.push(kinds(&bytes)),
                Err(AGAIN) => return Ok(all),
                Err(e) => return Err(e),
            }
        }
    }
}
