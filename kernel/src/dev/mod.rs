//! Devices: what device nodes open.
//!
//! A device is found by its number. Simple ones are stateless and shared by all openers; [`tty`] has the terminals.

pub mod kmsg;
pub mod mem;
pub mod physmem;
pub mod random;
pub mod tty;

use crate::fs::error::{FsError, Result};
use crate::fs::file::{Kind, o};
use crate::fs::inode::{Inode, mode};
use crate::kern::cred::Cap;

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

/// The character devices that exist: name, number, permissions.
pub const NODES: &[(&str, u64, u32)] = &[
    ("mem", number(1, 1), 0o640),
    ("null", number(1, 3), 0o666),
    ("zero", number(1, 5), 0o666),
    ("full", number(1, 7), 0o666),
    ("random", number(1, 8), 0o666),
    ("urandom", number(1, 9), 0o666),
    ("kmsg", number(1, 11), 0o644),
    ("tty", number(5, 0), 0o666),
    ("console", number(5, 1), 0o600),
    ("ttyS0", number(4, 64), 0o660),
];

/// Opens what a device node names.
pub fn open(inode: &Inode, flags: u32) -> Result<Kind> {
    if inode.kind() == mode::BLK {
        return Err(FsError::NoDevAddr);
    }
    let cred = || task::current::current().cred();
    Ok(match (major(inode.rdev), minor(inode.rdev)) {
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
        (4, 64) => tty::console::open_line(flags)?,
        _ => return Err(FsError::NoDevAddr),
    })
}
