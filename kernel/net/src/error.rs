//! The errors of calls on sockets. The crate `syscall` gives them their errno.

use hal::uaccess::UserFault;
use mem::NoMemory;
use vfs::error::FsError;

/// A failed call on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketError {
    /// An error that reads, writes and lookups have, too.
    File(FsError),
    /// A socket has that name already.
    AddressInUse,
    /// The socket is connected.
    IsConnected,
    /// The socket at the address is of another type.
    WrongType,
    /// Descriptors in flight are at the user's limit.
    TooManyInFlight,
    /// There is no memory for what is sent.
    NoBuffers,
    /// A signal came first, and the wait had a timeout: the call is not restarted.
    InterruptedForGood,
    /// There is no such option.
    NoOption,
    /// The address is none of this machine's, or no port is free.
    NotAvailable,
    /// The packet has no address to go to.
    NoDestination,
    /// Addresses of this family are not for this socket.
    WrongFamily,
    /// There is no way to the address.
    Unreachable,
    /// The connection is being made.
    InProgress,
    /// A connection was being made before.
    Already,
    /// The connection could not be made.
    Aborted,
    /// The peer reads no more, and the type of the socket sends no signal for it.
    QuietPipe,
    /// The value is longer or shorter than it may be.
    OutOfRange,
}

/// The result of a call on a socket.
pub type Result<T, E = SocketError> = core::result::Result<T, E>;

impl From<FsError> for SocketError {
    fn from(e: FsError) -> Self {
        SocketError::File(e)
    }
}

impl From<UserFault> for SocketError {
    fn from(_: UserFault) -> Self {
        SocketError::File(FsError::Fault)
    }
}

impl From<NoMemory> for SocketError {
    fn from(_: NoMemory) -> Self {
        SocketError::File(FsError::NoMemory)
    }
}
