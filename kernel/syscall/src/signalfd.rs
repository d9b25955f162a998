//! signalfd(2) and signalfd4(2).

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use ipc::signalfd;
use proc::signal::SigSet;
use vfs::file::o;

use super::errno::Errno;
use super::fsutil::{install, real_file};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_signalfd, |a: &mut Args| open_or_set(a, 0)),
    (nr::__NR_signalfd4, |a: &mut Args| {
        let flags = a.uint(3);
        open_or_set(a, flags)
    }),
];

fn open_or_set(a: &Args, flags: u32) -> Result<u64, Errno> {
    if a.get(2) != size_of::<u64>() as u64 {
        return Err(Errno::EINVAL);
    }
    let set = UserPtr::<u64>::new(a.get(1)).read()?;
    if flags & !(o::CLOEXEC | o::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let set = SigSet(set & !SigSet::UNMASKABLE.0);
    let fd = a.int(0);
    if fd == -1 {
        return Ok(install(signalfd::make(set, flags)?, flags)?);
    }
    signalfd::set(&real_file(fd)?, set)?;
    Ok(fd as u64)
}
