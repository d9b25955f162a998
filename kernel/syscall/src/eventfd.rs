//! eventfd and eventfd2.

use alloc::boxed::Box;

use abi::raw::general as nr;
use vfs::eventfd::EventCounter;
use vfs::file::{File, Kind, o};

use super::errno::Errno;
use super::fsutil::install;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_eventfd, |a: &mut Args| make(a.uint(0), 0)),
    (nr::__NR_eventfd2, |a: &mut Args| make(a.uint(0), a.uint(1))),
];

const SEMAPHORE: u32 = 1;

fn make(count: u32, flags: u32) -> Result<u64, Errno> {
    if flags & !(SEMAPHORE | o::CLOEXEC | o::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    mem::admit()?;
    let counter = EventCounter::new(count.into(), flags & SEMAPHORE != 0);
    let file = File::open(
        None,
        Kind::Other(Box::new(counter)),
        flags & o::NONBLOCK | o::RDWR,
    );
    Ok(install(file, flags)?)
}
