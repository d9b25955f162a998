//! File systems over `vfs`, and what fills the root at boot.

pub mod initramfs;
pub mod procfs;
pub mod setup;
pub mod sysfs;

pub use setup::init;
