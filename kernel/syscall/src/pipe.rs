//! pipe(2) and pipe2(2).

use abi::raw::general as nr;
use vfs::file::o;
use vfs::pipe;

use super::errno::Errno;
use super::fsutil::install_pair;
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_pipe, |a| make(a.get(0), 0)),
    (nr::__NR_pipe2, |a: &mut Args| make(a.get(0), a.uint(1))),
];

fn make(out: u64, flags: u32) -> Result<u64, Errno> {
    // There is no packet mode (O_DIRECT).
    if flags & !(o::CLOEXEC | o::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let ends = pipe::open_pair(flags)?;
    install_pair(ends, flags & o::CLOEXEC != 0, out, true)?;
    Ok(0)
}
