//! What a system call is, to the table of calls.

use hal::UserFrame;

use super::errno::Errno;

/// The arguments of a call: the user's registers as they were at entry, as far as a call saves them.
pub type Args = UserFrame;

/// What carries a call out.
pub type Handler = fn(&mut Args) -> Result<u64, Errno>;
