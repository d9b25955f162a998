//! Files: names, contents, descriptors.
//!
//! - [`walk`] finds a place by its path, and [`ancestry`] keeps it in what a mount shows; [`dentry`] and [`table`] hold
//!   names; [`inode`] has the files that names refer to; [`mount`] says which file system ([`superblock`]) is seen at which
//!   directory; a [`place`] is a dentry seen through a mount, and [`full_name`] is its path;
//! - [`open`] makes a [`file::File`] of a place, which keeps what is in [`opened`]; [`fdtable`] has the descriptors;
//!   [`context`] has a process's root and working directory;
//! - [`exec`] opens programs, and [`exec_cache`] caches those that are executed often; [`contents`] takes a file out of it
//!   that is written or removed;
//! - [`tmpfs`] and [`regular`] implement files in memory, [`memfd`] makes some without a name, [`seals`] forbids their changes; [`pipe`] pipes; [`dynamic`] is the base of the file systems whose
//!   content is made on demand; [`devices`] opens devices, and [`queues`] message queues;
//! - [`leftover`] frees later what takes too long to free at once, and [`kept`] keeps pages that are still shown;
//! - [`rights`] says what credentials permit; [`setattr`] changes owners and permissions; [`protect`] restricts links and
//!   files in directories that all may write;
//! - [`xattr`] has extended attributes, and access control lists;
//! - [`notify`] tells watches of inodes what happens to files; [`watch`] tells epolls that a file is closed;
//! - [`upcalls`] is what this crate calls of processes.
//!
//! The layers, from below; a file imports what is below it:
//! 1. structures that know no inode: [`attr`], [`table`], [`watch`], the table of [`notify`], `backlog`, [`kept`], [`lock`], [`quota`], the sets of [`xattr`], and the pipe itself;
//! 2. what holds one another: [`inode`], [`dentry`], [`dynamic`], [`superblock`], [`place`];
//! 3. the events of [`notify`]; rules about these: [`rights`], [`setattr`], [`xattr`], [`protect`], [`rename`], [`ancestry`]; and [`full_name`];
//! 4. [`opened`], [`mod@file`], and what keeps open files: [`fdtable`], [`exec_cache`];
//! 5. [`contents`], [`seals`] and the operations of each kind of file ([`regular`], [`dirfile`]), [`mount`], [`context`], [`walk`],
//!    [`tmpfs`], [`memfd`], [`open`], [`exec`].
//!
//! The order of locks: file position, mount table, renames, directory, exec cache, inode, fifo, pipe; then those of the VM.

#![no_std]

extern crate alloc;

pub mod account;
pub mod ancestry;
pub mod anon_inode;
pub mod attr;
mod backlog;
pub mod contents;
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
pub mod full_name;
pub mod ino;
pub mod inode;
pub mod kept;
pub mod leftover;
pub mod lock;
pub mod lost;
pub mod memfd;
pub mod mount;
pub mod name_hash;
pub mod notify;
pub mod open;
pub mod opened;
pub mod pipe;
pub mod place;
pub mod poll;
mod printed;
pub mod protect;
pub mod queues;
pub mod quota;
pub mod regular;
pub mod rename;
pub mod rights;
pub mod seals;
pub mod setattr;
pub mod superblock;
pub mod table;
pub mod tmpfs;
pub mod upcalls;
pub mod walk;
pub mod watch;
pub mod xattr;

pub use context::{FsContext, FsUse};
pub use error::FsError;
pub use exec::{ExeRef, ExecFile};
pub use fdtable::FdTable;

/// Sets the file systems in memory up. Called once, at boot, after the random generators have been seeded.
pub fn init(ncpus: usize) {
    name_hash::init();
    ino::init(ncpus);
    pipe::init(ncpus);
}
