//! Pseudo-terminals on the simulated machine, and the calls of the users of both ends.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;

use hal::uio::IoBuf;
use proc::wait4::Children;
use task::current::current;
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use tty::pts::{Options, Pts};
use tty::pty;
use vfs::context::boot_root;
use vfs::dentry::Dentry;
use vfs::error::{FsError, Result};
use vfs::file::{File, FileRef, o};
use vfs::place::Path;
use vfs::poll::PollMask;

use crate::support::{exited, fork, wait};

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

/// poll(2) of one file.
pub fn poll(file: &FileRef, wanted: PollMask, deadline: Deadline) -> Result<PollMask, ParkError> {
    let mut state = (file.clone(), wanted);
    park::park(&mut state, deadline, Interruptible::Yes, |state, w| {
        let always = PollMask::ERR | PollMask::HUP;
        let found = state.0.poll(Some(w)) & (state.1 | always);
        match found.is_empty() {
            true => Step::Wait,
            false => Step::Done(found),
        }
    })
}

/// Starts a process that does something beside the caller.
pub fn beside(what: impl FnOnce() + Send + Sync + 'static) -> u32 {
    let what = std::sync::Mutex::new(Some(what));
    fork(move || {
        let what = what.lock().expect("not poisoned").take();
        what.expect("one process runs it")();
        0
    })
}

/// Waits for the ends of so many children.
pub fn join(count: usize) {
    for _ in 0..count {
        let (_, status) = wait(Children::Any).expect("a child");
        assert_eq!(status, exited(0));
    }
}
