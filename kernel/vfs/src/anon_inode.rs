//! What a file without a name has in the place of an inode: a number, and the locks that programs take on it.

use super::attr::Attr;
use super::ino::new_ino;
use super::lock::LockSlot;

/// See the module.
pub struct AnonInode {
    /// Inode number. Constant.
    ino: u64,
    locks: LockSlot,
}

impl AnonInode {
    /// One with a number of its own, and no locks.
    pub fn new() -> AnonInode {
        AnonInode {
            ino: new_ino(),
            locks: LockSlot::new(),
        }
    }

    /// The attributes: those of a file that its owner reads and writes.
    pub fn attr(&self) -> Attr {
        Attr::unnamed(self.ino, 0o600)
    }

    /// The locks.
    pub fn locks(&self) -> &LockSlot {
        &self.locks
    }
}

impl Default for AnonInode {
    fn default() -> AnonInode {
        AnonInode::new()
    }
}
