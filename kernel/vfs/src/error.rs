//! The errors of file operations. The crate `syscall` gives them their errno.

use fscore::links::Refused;
use hal::uaccess::UserFault;

/// A failed file-system operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsError {
    /// No such name; or the file or directory has been removed.
    NotFound,
    /// The name is taken.
    Exists,
    /// A component of the path, or the operand, is not a directory.
    NotDir,
    /// The operand is a directory.
    IsDir,
    /// The permission bits, or the flags of the mount, forbid it.
    Access,
    /// Only the owner, or a process with the capability, may do it; or nobody, in a directory that is made on demand.
    Perm,
    /// A component or a path is too long.
    NameTooLong,
    /// Too many symbolic links.
    Loop,
    /// The directory has entries.
    NotEmpty,
    /// The file system is full, or there is no memory for its files.
    NoSpace,
    /// There is no memory for an object of the kernel.
    NoMemory,
    /// The mount is read-only.
    ReadOnly,
    /// It is in use: as a mount point, for instance, or a pipe holds too many bytes for its new size.
    Busy,
    /// An argument makes no sense.
    Invalid,
    /// The two names are on different mounts.
    CrossDevice,
    /// The link count is at its limit.
    TooManyLinks,
    /// User memory cannot be reached.
    Fault,
    /// No reader has the pipe open.
    BrokenPipe,
    /// The operation would have to wait.
    WouldBlock,
    /// A signal came first, in long copies only one that kills. Whether the call is restarted depends on the signal's handler.
    Interrupted,
    /// A signal came first, and the call is not restarted.
    InterruptedForGood,
    /// The descriptor is not open, or not for this operation.
    BadFd,
    /// The file is not a terminal.
    NotTty,
    /// The file has no position to move.
    NotSeekable,
    /// The position or the size is larger than a file can have, or than the process's limit.
    TooBig,
    /// The operation exists, but not for this file.
    NotSupported,
    /// No driver for the device, no such type of file system, or a file that cannot be mapped.
    NoDevice,
    /// No device behind the node, no reader of the fifo, a socket's name; or no data at or after the position.
    NoDevAddr,
    /// The table of descriptors is full.
    TooManyFiles,
    /// The pipes of the user may hold no more pages.
    TooManyPipes,
    /// The device reported a failure.
    Io,
    /// The process has ended.
    NoProcess,
    /// The file is being executed; or, when it is to be executed, it is open for writing.
    TextBusy,
    /// The socket has no peer, and the packet no address.
    NoDestination,
    /// The socket has no peer.
    NotConnected,
    /// The socket's peer was closed before it had read everything.
    ConnectionReset,
    /// Nobody receives at the address.
    ConnectionRefused,
    /// The other side of a connect has not answered in time.
    TimedOut,
    /// The peer of a socket for packets reads no more: as [`BrokenPipe`](Self::BrokenPipe), but no signal is sent.
    QuietPipe,
    /// The packet is larger than any that the socket may send.
    MessageTooLong,
    /// There is no memory for what is sent, or what was sent was dropped for want of room.
    NoBuffers,
    /// There is nothing in the message.
    NoData,
    /// There is no memory for the lock, or the user may have no more locks, on all files or on this one.
    NoLocks,
    /// The wait for the lock would never end.
    Deadlock,
    /// Real time was set, which cancels the timer.
    Cancelled,
}

impl From<UserFault> for FsError {
    fn from(_: UserFault) -> Self {
        FsError::Fault
    }
}

impl From<Refused> for FsError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Gone => FsError::NotFound,
            Refused::TooMany => FsError::TooManyLinks,
        }
    }
}

/// The result of a file-system operation.
pub type Result<T, E = FsError> = core::result::Result<T, E>;
