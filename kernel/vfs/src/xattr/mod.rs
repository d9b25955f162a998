//! Extended attributes and access control lists of files in memory: xattr(7), acl(5). Guarantee, mechanism and what was rejected
//! are in doc/xattr.md.
//!
//! - [`store`]: what an inode has, as a set that never changes, with its charge. Knows no inode.
//! - [`space`]: the names, and which of them a caller may use.
//! - [`list`]: access control lists: what they grant, and how they follow the mode.
//! - [`ops`]: the operations of the system calls.

pub mod list;
pub mod ops;
pub mod space;
pub mod store;
