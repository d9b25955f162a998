//! What all families of sockets have in common.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;

use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use task::wait::Waiter;
use vfs::attr::Attr;
use vfs::error::FsError;
use vfs::file::{File, FileOps, FileRef, o};
use vfs::lock::LockSlot;
use vfs::poll::PollMask;

use crate::error::{Result, SocketError};
use crate::ids::Ids;
use crate::in_flight::Node;
use crate::option::Options;
use crate::rights::Rights;

pub use crate::address::{Address, Type};

/// What comes with the bytes of a send.
#[derive(Default)]
pub struct Message<'a> {
    /// To where, if not to the peer.
    pub to: Option<&'a [u8]>,
    /// The ids that the sender claims, and may.
    pub ids: Option<Ids>,
    /// Descriptors.
    pub rights: Option<Box<Rights>>,
    /// Control messages of the levels of protocols.
    pub control: &'a [Control<'a>],
    /// Fail with `WouldBlock` instead of waiting.
    pub nonblocking: bool,
}

impl<'a> Message<'a> {
    /// The address, for families in which one without bytes is none.
    pub fn addressed(&self) -> Option<&'a [u8]> {
        self.to.filter(|address| !address.is_empty())
    }
}

/// A control message of a send, of a protocol's level.
#[derive(Clone, Copy, Debug)]
pub struct Control<'a> {
    /// The level.
    pub level: i32,
    /// The type.
    pub kind: i32,
    /// The contents.
    pub data: &'a [u8],
}

/// How to receive.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receive {
    /// Leave it there (MSG_PEEK).
    pub peek: bool,
    /// Wait until all bytes are there (MSG_WAITALL).
    pub all: bool,
    /// Take the bytes of a stream without copying them (MSG_TRUNC).
    pub discard: bool,
    /// Fail with `WouldBlock` instead of waiting.
    pub nonblocking: bool,
}

/// What was received.
#[derive(Default)]
pub struct Received {
    /// Bytes that were copied.
    pub bytes: usize,
    /// Bytes that the packet had; those of a stream are all copied.
    pub whole: usize,
    /// Where it came from, if that has an address.
    pub from: Option<Address>,
    /// The sender's ids, if the socket asks for them.
    pub ids: Option<Ids>,
    /// Descriptors.
    pub files: Vec<FileRef>,
    /// When a packet came, if the socket asked for that then; else 0.
    pub stamp: u64,
    /// What else the socket asks for.
    pub notes: Vec<Note>,
}

/// A control message of the internet's levels.
pub struct Note {
    /// The level.
    pub level: i32,
    /// The type.
    pub kind: i32,
    /// The contents, and their length.
    pub data: ([u8; 20], usize),
}

/// A connection that was accepted.
pub struct Accepted {
    /// The new socket.
    pub socket: Box<dyn Socket>,
    /// The address of the other side.
    pub peer: Address,
}

/// Bytes of the longest option: struct tcp_info.
pub const OPTION: usize = 240;

/// A socket of some family. Addresses are bytes as in the family's struct sockaddr, the family included. All calls may sleep for
/// memory; those that wait say so. A wait is ended by a signal, with `Interrupted`, or by the timeout of the options, with `WouldBlock`.
pub trait Socket: Send + Sync + 'static {
    /// The family's number.
    fn domain(&self) -> u32;
    /// The type.
    fn kind(&self) -> Type;
    /// bind(2).
    fn bind(&self, address: &[u8]) -> Result<()>;
    /// listen(2).
    fn listen(&self, backlog: usize) -> Result<()>;
    /// accept(2). Waits for a connection.
    fn accept(&self, nonblocking: bool) -> Result<Accepted>;
    /// connect(2). Waits for room in the backlog.
    fn connect(&self, address: &[u8], nonblocking: bool) -> Result<()>;
    /// getsockname(2).
    fn name(&self) -> Address;
    /// getpeername(2).
    fn peer_name(&self) -> Result<Address>;
    /// shutdown(2): reads, writes or both end.
    fn shutdown(&self, reads: bool, writes: bool) -> Result<()>;
    /// Sends what `buf` has; returns the bytes. Waits for room. What is sent in part is no error.
    fn send(&self, buf: &mut IoBuf, message: Message) -> Result<usize>;
    /// Receives into `buf`. Waits until there is something.
    fn receive(&self, buf: &mut IoBuf, how: Receive) -> Result<Received>;
    /// As [`FileOps::poll`].
    fn poll(&self, waiter: Option<&mut Waiter>) -> PollMask;
    /// As [`FileOps::listen_for_signals`].
    fn listen_for_signals(&self, waiter: &mut Waiter);
    /// The settings that all families have.
    fn options(&self) -> &Options;
    /// What may be sent and not received, as SO_SNDBUF shows it.
    fn send_limit(&self) -> usize;
    /// Sets that.
    fn set_send_limit(&self, bytes: usize);
    /// Sets what may be received and not read, as SO_RCVBUF says.
    fn set_receive_limit(&self, bytes: usize) {
        self.options().set_receive_buffer(bytes);
    }
    /// Whether the socket listens.
    fn listens(&self) -> bool;
    /// Takes the error that the next call would have failed with.
    fn take_error(&self) -> Option<SocketError>;
    /// Bytes that a receive would find.
    fn queued(&self) -> Result<usize>;
    /// Bytes that were sent and not received.
    fn unreceived(&self) -> Result<usize>;
    /// Whether receives show the ids of senders; `None` if the family has none.
    fn shows_ids(&self) -> Option<bool> {
        None
    }
    /// Sets that.
    fn show_ids(&self, _on: bool) {}
    /// Sets whether packets get the time at which they come.
    fn stamp_packets(&self, on: bool);
    /// The ids of the peer of a connection.
    fn peer_ids(&self) -> Option<Ids> {
        None
    }
    /// For fstat(2).
    fn attr(&self) -> Attr;
    /// The protocol's number, 0 if the family has none.
    fn protocol(&self) -> u32 {
        0
    }
    /// Sets an option of a protocol's level.
    fn set_option(&self, _level: i32, _option: u32, _value: &[u8]) -> Result<()> {
        Err(FsError::NotSupported.into())
    }
    /// Puts the value of such an option into `out`; returns the bytes.
    fn option(&self, _level: i32, _option: u32, _out: &mut [u8; OPTION]) -> Result<usize> {
        Err(FsError::NotSupported.into())
    }
    /// Adds a datagram of the kernel, which is no answer, to what may be received. Does not wait: what finds no room is lost, and the next
    /// receive says so.
    fn tell(&self, _bytes: &[u8]) {}
    /// The locks that programs take.
    fn locks(&self) -> &LockSlot;
    /// The open file is closed.
    fn close(&self);
    /// The socket as one that messages may refer to, if its messages may carry descriptors themselves.
    fn node(&self) -> Option<&dyn Node> {
        None
    }
}

/// The open file of a socket.
pub struct SocketFile(Box<dyn Socket>);

impl SocketFile {
    /// Opens a socket, with the flag O_NONBLOCK of `flags`.
    pub fn open(socket: Box<dyn Socket>, flags: u32) -> FileRef {
        let kind = vfs::file::Kind::Other(Box::new(SocketFile(socket)));
        File::open(None, kind, o::RDWR | flags & o::NONBLOCK)
    }

    /// The socket of an open file, if it is one.
    pub fn of(file: &File) -> Option<&dyn Socket> {
        Some(file.ops_as::<SocketFile>()?.socket())
    }

    /// The socket.
    pub fn socket(&self) -> &dyn Socket {
        &*self.0
    }
}

/// The error of a read or a write. Those that only other calls have do not come here.
fn as_file(e: SocketError) -> FsError {
    match e {
        SocketError::File(e) => e,
        SocketError::NoBuffers => FsError::NoBuffers,
        SocketError::InterruptedForGood => FsError::InterruptedForGood,
        SocketError::QuietPipe => FsError::QuietPipe,
        SocketError::NoDestination => FsError::NoDestination,
        _ => FsError::Invalid,
    }
}

impl FileOps for SocketFile {
    fn read(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize, FsError> {
        if buf.remaining() == 0 {
            return Ok(0);
        }
        let how = Receive {
            nonblocking: file.nonblocking(),
            ..Receive::default()
        };
        let got = self.0.receive(buf, how).map_err(as_file)?;
        Ok(got.bytes)
    }

    fn write(&self, file: &File, buf: &mut IoBuf, _: u64) -> Result<usize, FsError> {
        let message = Message {
            nonblocking: file.nonblocking(),
            ..Message::default()
        };
        self.0.send(buf, message).map_err(as_file)
    }

    fn seekable(&self) -> bool {
        false
    }

    fn poll(&self, _: &File, waiter: Option<&mut Waiter>) -> PollMask {
        self.0.poll(waiter)
    }

    fn sends_signals(&self) -> bool {
        true
    }

    fn listen_for_signals(&self, _: &File, waiter: &mut Waiter) {
        self.0.listen_for_signals(waiter);
    }

    fn ioctl(&self, _: &File, request: u32, arg: u64) -> Result<u64, FsError> {
        const SIOCINQ: u32 = 0x541b;
        const SIOCOUTQ: u32 = 0x5411;
        let n = match request {
            SIOCINQ => self.0.queued().map_err(as_file)?,
            SIOCOUTQ => self.0.unreceived().map_err(as_file)?,
            _ => return crate::interface::ioctl(request, arg).unwrap_or(Err(FsError::NotTty)),
        };
        UserPtr::<i32>::new(arg).write(&(n as i32))?;
        Ok(0)
    }

    fn attr(&self) -> Option<Attr> {
        Some(self.0.attr())
    }

    fn locks(&self) -> Option<&LockSlot> {
        Some(self.0.locks())
    }

    fn label(&self) -> &'static str {
        "socket:"
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn close(&self, _: &File) {
        self.0.close();
    }
}
