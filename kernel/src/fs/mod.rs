//! Files: names, contents, descriptors.
//!
//! - [`walk`] finds a place by its path, [`dentry`] and [`table`] hold names, [`inode`] what they
//!   lead to, [`mount`] which file system is seen where;
//! - [`open`] makes a [`file::File`] of a place, [`fdtable`] numbers files, [`context`] keeps a
//!   process's root and working directory;
//! - [`exec`] opens programs, and [`text`] keeps those that are run often;
//! - [`tmpfs`] and [`regular`] are files in memory, [`pipe`] pipes, [`dynamic`] the base of
//!   [`procfs`] and [`sysfs`]; devices are in [`crate::dev`];
//! - [`leftover`] is what is too much to free at once;
//! - [`setattr`] changes owners and permissions, [`protect`] says what others may lay for somebody;
//! - [`initramfs`] fills the root at boot.
//!
//! The order of locks: file position, mount table, renames, directory, inode, fifo, pipe; then
//! the VM's.

pub mod account;
pub mod context;
pub mod dentry;
pub mod dirfile;
pub mod dynamic;
pub mod error;
pub mod eventfd;
pub mod exec;
pub mod fdtable;
pub mod file;
pub mod initramfs;
pub mod inode;
pub mod leftover;
pub mod lock;
pub mod mount;
pub mod open;
pub mod pipe;
pub mod poll;
pub mod procfs;
pub mod protect;
pub mod quota;
pub mod regular;
pub mod setattr;
pub mod setup;
pub mod socket;
pub mod sysfs;
pub mod table;
pub mod text;
pub mod tmpfs;
pub mod walk;

pub use context::{FsContext, FsUse};
pub use error::FsError;
pub use exec::{ExeRef, ExecFile};
pub use fdtable::FdTable;
pub use setup::init;

use crate::kern::signal::{self, SigInfo};

/// The epoch that keeps what lookups without locks may still see.
pub(crate) fn epoch() -> &'static ksync::Epoch {
    mem::epoch()
}

/// Sends the calling thread a signal that its own call caused.
pub(crate) fn raise(signo: u8) {
    let me = task::current::current();
    // A signal that cannot be queued is pending already.
    let _ = signal::send_thread(&me, SigInfo::kernel(signo));
}
