//! Character devices: what opening a device node gives.
//!
//! A device is found by its major and minor number. The devices of this directory have no state of their own, so all
//! open files of one share the same operations; those of terminals come from [`tty`].

pub mod kmsg;
pub mod mem;
pub mod physmem;
pub mod random;

use core::ops::RangeInclusive;

use cred::Cap;
use vfs::devices;
use vfs::error::{FsError, Result};
use vfs::file::{Kind, o};
use vfs::place::Path;

use crate::devpts;

/// The character devices that exist: name in /dev, device number, permission bits.
pub const NODES: &[(&str, u64, u32)] = &[
    ("mem", devices::number(1, 1), 0o640),
    ("null", devices::number(1, 3), 0o666),
    ("zero", devices::number(1, 5), 0o666),
    ("full", devices::number(1, 7), 0o666),
    ("random", devices::number(1, 8), 0o666),
    ("urandom", devices::number(1, 9), 0o666),
    ("kmsg", devices::number(1, 11), 0o644),
    ("tty", devices::number(5, 0), 0o666),
    ("console", devices::number(5, 1), 0o600),
    ("ptmx", devices::number(5, 2), 0o666),
    ("ttyS0", devices::number(4, 64), 0o660),
];

/// The major numbers of the terminals of pseudo-terminals.
const PTS: RangeInclusive<u32> = 136..=143;

/// Opens the character device that a node names, with the flags of open(2).
///
/// # Errors
/// `Perm` if the caller's credentials do not permit that; `NoDevAddr` if no device has the number; those of the
/// terminals.
pub fn open(node: &Path, flags: u32) -> Result<Kind> {
    let cred = || task::current::current().cred();
    let number = node.dentry.inode.rdev;
    Ok(match (devices::major(number), devices::minor(number)) {
        (1, 1) if !cred().capable(Cap::SysRawio) => {
            return Err(FsError::Perm);
        }
        (1, 1) => Kind::Device(&physmem::PhysicalMemory),
        (1, 3) => Kind::Device(&mem::Null),
        (1, 5) => Kind::Device(&mem::Zero),
        (1, 7) => Kind::Device(&mem::Full),
        (1, 8 | 9) => Kind::Device(&random::Random),
        (1, 11) if flags & o::ACCMODE != o::WRONLY && !kmsg::may_use(&cred(), true) => {
            return Err(FsError::Perm);
        }
        (1, 11) => Kind::Device(&kmsg::Kmsg),
        (5, 0) => tty::console::open_own()?,
        (5, 1) => tty::console::open_console()?,
        (5, 2) => devpts::open_master(node)?,
        (4, 64) => tty::console::open_line(flags)?,
        (major, _) if PTS.contains(&major) => devpts::open_slave(node, flags)?,
        _ => return Err(FsError::NoDevAddr),
    })
}
