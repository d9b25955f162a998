//! What can go wrong in a file system, without numbers: the system-call layer has those.

use hal::uaccess::UserFault;

/// A failed file-system operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsError {
    /// No such name.
    NotFound,
    /// The name is taken.
    Exists,
    /// A component, or the operand, is no directory.
    NotDir,
    /// The operand is a directory.
    IsDir,
    /// Permission bits forbid it.
    Access,
    /// Only the owner or the superuser may do it.
    Perm,
    /// A component or a path is too long.
    NameTooLong,
    /// Too many symbolic links.
    Loop,
    /// The directory has entries.
    NotEmpty,
    /// No memory for file data.
    NoSpace,
    /// No memory for the kernel.
    NoMemory,
    /// The mount is read-only.
    ReadOnly,
    /// In use, for instance as a mount point.
    Busy,
    /// An argument makes no sense.
    Invalid,
    /// Two names on different mounts.
    CrossDevice,
    /// The link count is at its limit.
    TooManyLinks,
    /// User memory cannot be reached.
    Fault,
    /// Nobody reads the pipe.
    BrokenPipe,
    /// The operation would have to wait.
    WouldBlock,
    /// A signal came first; the call may be restarted if its handler says so.
    Interrupted,
    /// The descriptor is not open, or not for this.
    BadFd,
    /// No terminal.
    NotTty,
    /// No position to move.
    NotSeekable,
    /// Beyond the largest file.
    TooBig,
    /// The operation exists, but not for this node.
    NotSupported,
    /// No driver for this device, or no such file-system type.
    NoDevice,
    /// No device (or no reader of a fifo) behind the node.
    NoDevAddr,
    /// The table of descriptors is full.
    TooManyFiles,
    /// The user's pipes may hold no more pages.
    TooManyPipes,
    /// The device failed.
    Io,
    /// The process is gone.
    NoProcess,
    /// The file is being executed.
    TextBusy,
    /// The socket has no peer.
    NotConnected,
    /// No lock can be had: no memory for it, or nothing to hold it.
    NoLocks,
    /// The wait would never end.
    Deadlock,
}

impl From<UserFault> for FsError {
    fn from(_: UserFault) -> Self {
        FsError::Fault
    }
}

/// The result of a file-system operation.
pub type Result<T, E = FsError> = core::result::Result<T, E>;
