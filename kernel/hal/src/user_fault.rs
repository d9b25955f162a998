//! The failure of a copy to or from user memory.

/// User memory could not be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserFault;
