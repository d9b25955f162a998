//! Pure file-system logic: code that needs no lock, no page and no process.
//!
//! The kernel's VFS, terminal and initramfs code calls these modules; they are separate so that their cases can be
//! tested on the host with plain `cargo test`. Only [`acl`], [`byte_ring`], [`gzip`] and [`locks`] allocate, and nothing here uses an error number.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod acl;
pub mod byte_ring;
pub mod bytes;
pub mod cpio;
pub mod dirent;
pub mod gzip;
pub mod ldisc;
pub mod links;
pub mod locks;
pub mod path;
pub mod perm;
