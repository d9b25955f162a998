//! File systems over `vfs`, and what fills the root at boot.

#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

pub mod devfs;
pub mod initramfs;
pub mod procfs;
pub mod setup;
pub mod sysfs;

pub use setup::init;
