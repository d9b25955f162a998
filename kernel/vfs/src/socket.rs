//! Sockets: local ones that cannot connect.
//!
//! Programs of the C library ask a name service through a local socket before they read files. The connect fails, and the
//! library reads the files.

use hal::uio::IoBuf;
use task::wait::Waiter;

use super::attr::Attr;
use super::error::{FsError, Result};
use super::file::{File, FileOps};
use super::ino::new_ino;
use super::inode::mode;
use super::lock::LockSlot;
use super::poll::PollMask;

/// A local socket that is not connected and cannot be.
pub struct LocalSocket {
    ino: u64,
    locks: LockSlot,
}

impl LocalSocket {
    /// Makes a socket.
    pub fn new() -> Self {
        LocalSocket {
            ino: new_ino(),
            locks: LockSlot::new(),
        }
    }
}

impl Default for LocalSocket {
    fn default() -> Self {
        Self::new()
    }
}

impl FileOps for LocalSocket {
    fn read(&self, _: &File, _: &mut IoBuf, _: u64) -> Result<usize> {
        Err(FsError::Invalid)
    }
    fn write(&self, _: &File, _: &mut IoBuf, _: u64) -> Result<usize> {
        Err(FsError::NotConnected)
    }
    fn seekable(&self) -> bool {
        false
    }
    fn poll(&self, _: &File, _: Option<&mut Waiter>) -> PollMask {
        PollMask::WRITE | PollMask::HUP
    }
    fn attr(&self) -> Option<Attr> {
        Some(Attr::unnamed(self.ino, mode::SOCK | 0o777))
    }
    fn locks(&self) -> Option<&LockSlot> {
        Some(&self.locks)
    }
    fn label(&self) -> &'static str {
        "socket:"
    }
}
