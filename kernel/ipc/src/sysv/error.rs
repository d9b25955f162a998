//! Why a call on a System V object fails.

use mem::NoMemory;
use task::park::ParkError;

/// The errors of System V objects. Nothing has changed where one is returned, unless it is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SysvError {
    /// The mode bits do not permit it.
    Denied,
    /// Only the owner, the maker or a privileged process may.
    NotOwner,
    /// There is an object with that key.
    Exists,
    /// There is none with that key.
    NotFound,
    /// A limit on objects, or on what all of them may have, or that of the user.
    NoSpace,
    /// An argument that no object has, or that this one does not.
    Invalid,
    /// The object was removed.
    Removed,
    /// No memory.
    NoMemory,
    /// It would have to wait, and must not; or the wait has timed out.
    Again,
    /// A signal is pending.
    Interrupted,
    /// More than the caller has room for, or than one call may ask for.
    TooBig,
    /// A value out of its range.
    Range,
    /// A semaphore that the set does not have.
    NoSemaphore,
    /// No message that the caller would take.
    NoMessage,
}

/// The result of a call on a System V object.
pub type Result<T> = core::result::Result<T, SysvError>;

impl From<NoMemory> for SysvError {
    fn from(_: NoMemory) -> Self {
        SysvError::NoMemory
    }
}

impl From<ParkError> for SysvError {
    fn from(e: ParkError) -> Self {
        match e {
            ParkError::Timeout => SysvError::Again,
            ParkError::Signal => SysvError::Interrupted,
        }
    }
}
