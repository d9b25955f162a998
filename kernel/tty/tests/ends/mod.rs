//! Pseudo-terminals on the simulated machine, and the calls of the users of both ends.
#![allow(dead_code, unused_imports, reason = "no test uses all of it")]

use std::sync::Arc;

use hal::uio::IoBuf;
use task::current::current;
use tty::pts::{Options, Pts};
use tty::pty;
use vfs::context::boot_root;
use vfs::dentry::Dentry;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileRef, o};
use vfs::place::Path;

#[path = "../../../proc/tests/support/beside.rs"]
mod processes;

pub use processes::{beside, join, poll};

pub const TCFLSH: u32 = 0x540b;
pub const TCXONC: u32 = 0x540a;
pub const TIOCSCTTY: u32 = 0x540e;
pub const TIOCNOTTY: u32 = 0x5422;
pub const TIOCSIG: u32 = 0x4004_5436;

/// A file system without terminals.
pub fn devpts() -> Arc<Pts> {
    Pts::new(9, Options::default())
}

/// Opens /dev/ptmx, and unlocks the terminal.
pub fn master(pts: &Arc<Pts>) -> Result<FileRef> {
    let file = File::open(None, pty::open_master(pts)?, o::RDWR);
    pty::master(&file).expect("a master").set_locked(false)?;
    Ok(file)
}

/// Opens the terminal with this number.
pub fn slave(pts: &Arc<Pts>, number: u32) -> Result<FileRef> {
    let inode = pts.node(number).ok_or(FsError::NotFound)?;
    let dentry = Dentry::made(None, b"", inode, 0, current().payer());
    let mount = boot_root()?.mount.clone();
    let path = Path { mount, dentry };
    let kind = pty::open_slave(pts, &path, o::RDWR | o::NOCTTY)?;
    Ok(File::open(Some(path), kind, o::RDWR))
}

/// A master and its terminal, number 0 of a file system of its own.
pub fn pair() -> (FileRef, FileRef) {
    let pts = devpts();
    let master = master(&pts).expect("memory for a terminal");
    let slave = slave(&pts, 0).expect("an unlocked terminal");
    (master, slave)
}

pub fn quick(file: &FileRef) {
    file.set_flags(o::NONBLOCK);
}

pub fn read(file: &FileRef, most: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let n = file.read(&mut IoBuf::Fill(&mut bytes))?;
    bytes.truncate(n);
    Ok(bytes)
}

pub fn write(file: &FileRef, bytes: &[u8]) -> Result<usize> {
    file.write(&mut IoBuf::Drain(bytes))
}

/// ioctl(2) with a number.
pub fn ioctl(file: &FileRef, request: u32, arg: u64) -> Result<u64> {
    file.ops().ioctl(file, request, arg)
}
