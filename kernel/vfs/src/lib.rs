//! Files: names, contents, descriptors.
//!
//! - [`walk`] finds a place by its path, [`dentry`] and [`table`] hold names, [`inode`] what they
//!   lead to, [`mount`] which file system is seen where;
//! - [`open`] makes a [`file::File`] of a place, [`fdtable`] numbers files, [`context`] keeps a
//!   process's root and working directory;
//! - [`exec`] opens programs, and [`exec_cache`] keeps those that are run often;
//! - [`tmpfs`] and [`regular`] are files in memory, [`pipe`] pipes, [`dynamic`] the base of
//!   file systems that are made on demand; [`devices`] opens devices;
//! - [`leftover`] is what is too much to free at once;
//! - [`setattr`] changes owners and permissions, [`protect`] says what others may lay for somebody;
//! - [`upcalls`] is what files ask of processes.
//!
//! The order of locks: file position, mount table, renames, directory, inode, fifo, pipe; then
//! the VM's.

#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

pub mod account;
pub mod context;
pub mod dentry;
pub mod devices;
pub mod dirfile;
pub mod dynamic;
pub mod error;
pub mod eventfd;
pub mod exec;
pub mod exec_cache;
pub mod fdtable;
pub mod file;
pub mod inode;
pub mod leftover;
pub mod lock;
pub mod mount;
pub mod open;
pub mod pipe;
pub mod poll;
pub mod protect;
pub mod quota;
pub mod regular;
pub mod setattr;
pub mod socket;
pub mod table;
pub mod tmpfs;
pub mod upcalls;
pub mod walk;

pub use context::{FsContext, FsUse};
pub use error::FsError;
pub use exec::{ExeRef, ExecFile};
pub use fdtable::FdTable;
