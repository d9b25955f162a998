//! Types of the table of system calls.

use hal::UserFrame;

use super::errno::Errno;

/// The arguments of a call: the user registers that the system-call entry saves.
pub type Args = UserFrame;

/// The function that performs a call.
pub type Handler = fn(&mut Args) -> Result<u64, Errno>;
