//! Devices: their numbers, their file system, and what opens them.
//!
//! A device node names a device by number. What opens devices stands above this crate and is told once, at boot.

use alloc::sync::Arc;

use ksync::Once;

use super::error::{FsError, Result};
use super::file::Kind;
use super::inode::{Inode, mode};
use super::mount::Super;

/// Builds a device number from major and minor, as makedev(3) does.
pub const fn number(major: u32, minor: u32) -> u64 {
    (minor & 0xff) as u64
        | ((major & 0xfff) as u64) << 8
        | ((minor & !0xff) as u64) << 12
        | ((major & !0xfff) as u64) << 32
}

/// The major number.
pub const fn major(dev: u64) -> u32 {
    ((dev >> 8) & 0xfff) as u32 | (dev >> 32) as u32 & !0xfff
}

/// The minor number.
pub const fn minor(dev: u64) -> u32 {
    (dev & 0xff) as u32 | (dev >> 12) as u32 & !0xff
}

/// Opens a character device: its major and minor number, and the flags of open(2).
pub type Open = fn(u32, u32, u32) -> Result<Kind>;

static OPEN: Once<Open> = Once::new();
/// The device nodes' file system: there is one, however often it is mounted.
static NODES: Once<Arc<Super>> = Once::new();

/// Says what opens character devices. Once, at boot.
pub fn set_open(open: Open) {
    OPEN.get_or_init(|| open);
}

/// Makes `fs` the device nodes' file system. Once, at boot.
pub fn set_nodes(fs: Arc<Super>) {
    NODES.get_or_init(|| fs);
}

/// The device nodes' file system.
///
/// # Errors
/// There is none yet.
pub fn nodes() -> Result<Arc<Super>> {
    NODES.get().cloned().ok_or(FsError::NoDevice)
}

/// Opens what a device node names.
pub(super) fn open(inode: &Inode, flags: u32) -> Result<Kind> {
    if inode.kind() == mode::BLK {
        return Err(FsError::NoDevAddr);
    }
    let open = OPEN.get().ok_or(FsError::NoDevAddr)?;
    open(major(inode.rdev), minor(inode.rdev), flags)
}
