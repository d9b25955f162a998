//! ioctl(2): the requests that are the same for every file; all others are passed to the file's operations.

use abi::raw::general as nr;
use fs::devpts;
use hal::uaccess::UserPtr;
use net::SocketFile;
use tty::pty;
use vfs::file::{FileRef, Kind, o};

use super::errno::Errno;
use super::fsutil::{Slot, fault, real_file, with_files};
use super::owner;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_ioctl, ioctl)];

const FIONREAD: u32 = 0x541b;
const FIONBIO: u32 = 0x5421;
const FIONCLEX: u32 = 0x5450;
const FIOCLEX: u32 = 0x5451;
const FIOASYNC: u32 = 0x5452;
const TIOCGPTPEER: u32 = 0x5441;
const FIOSETOWN: u32 = 0x8901;
const SIOCSPGRP: u32 = 0x8902;
const FIOGETOWN: u32 = 0x8903;
const SIOCGPGRP: u32 = 0x8904;
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;

fn ioctl(a: &mut Args) -> Result<u64, Errno> {
    let (fd, request, arg) = (a.int(0), a.uint(1), a.get(2));
    let f = real_file(fd)?;
    match request {
        FIOCLEX | FIONCLEX => with_files(|files| files.set_cloexec(fd, request == FIOCLEX))?,
        FIONBIO => {
            let on = UserPtr::<i32>::new(arg).read().map_err(fault)? != 0;
            f.set_flags(if on {
                f.flags() | o::NONBLOCK
            } else {
                f.flags() & !o::NONBLOCK
            });
        }
        TIOCGPTPEER if pty::master(&f).is_some() => return open_peer(&f, arg),
        FIOASYNC => owner::set_async(&f, fd, arg)?,
        FIOSETOWN | SIOCSPGRP | FIOGETOWN | SIOCGPGRP if SocketFile::of(&f).is_some() => {
            owner::of_socket(&f, matches!(request, FIOGETOWN | SIOCGPGRP), arg)?;
        }
        FICLONE | FICLONERANGE => return Err(Errno::EOPNOTSUPP),
        FIONREAD if matches!(f.kind, Kind::Regular(_)) => {
            let size = f.inode().map_or(0, |i| i.size());
            let left = size.saturating_sub(f.with_pos(|p| *p)).min(i32::MAX as u64) as i32;
            UserPtr::<i32>::new(arg).write(&left).map_err(fault)?;
        }
        _ => return Ok(f.ops().ioctl(&f, request, arg)?),
    }
    Ok(0)
}

/// TIOCGPTPEER: opens the terminal of a master, with the flags `arg` of open(2), and returns its descriptor.
fn open_peer(f: &FileRef, arg: u64) -> Result<u64, Errno> {
    let flags = arg as u32;
    let slot = Slot::new(flags)?;
    slot.reserve()?;
    Ok(slot.fill(devpts::open_peer(f, flags), flags)?)
}
