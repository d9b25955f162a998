//! Device numbers, the file system of the device nodes, and the function that opens devices.
//!
//! A device node names a device by number. A crate above sets the function that opens devices, once, at boot.

use alloc::sync::Arc;

use ksync::Once;

use super::error::{FsError, Result};
use super::file::Kind;
use super::inode::mode;
use super::place::Path;
use super::superblock::Super;

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

/// Opens a character device, given its node and the flags of open(2).
pub type Open = fn(&Path, u32) -> Result<Kind>;

hal::machine_static! {
    static OPEN: Once<Open> = Once::new();
    /// The file system of the device nodes. There is one, which may be mounted several times.
    static NODES: Once<Arc<Super>> = Once::new();
}

/// Sets the function that opens character devices. Called once, at boot.
pub fn set_open(open: Open) {
    OPEN.get_or_init(|| open);
}

/// Sets the file system of the device nodes. Called once, at boot.
pub fn set_nodes(fs: Arc<Super>) {
    NODES.get_or_init(|| fs);
}

/// The file system of the device nodes.
///
/// # Errors
/// `NoDevice` before [`set_nodes`].
pub fn nodes() -> Result<Arc<Super>> {
    NODES.get().cloned().ok_or(FsError::NoDevice)
}

/// Opens the device that a node names. Fails with `NoDevAddr` for a block device.
pub(super) fn open(node: &Path, flags: u32) -> Result<Kind> {
    if node.dentry.inode.kind() == mode::BLK {
        return Err(FsError::NoDevAddr);
    }
    let open = OPEN.get().ok_or(FsError::NoDevAddr)?;
    open(node, flags)
}
