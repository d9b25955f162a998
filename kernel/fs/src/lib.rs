//! procfs, sysfs and the device files, file systems over `vfs`; and the set-up of the root file system at boot.

#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

pub mod devfs;
pub mod devpts;
pub mod initramfs;
pub mod procfs;
pub mod setup;
pub mod sysfs;

pub use setup::init;
