//! pipe and pipe2.

use abi::Errno;
use abi::raw::general as nr;

use super::fsutil::{fault, fd_limit, with_files};
use super::{Args, Handler};
use crate::fs::file::o;
use crate::fs::pipe;
use crate::uaccess::UserPtr;

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_pipe, |a| make(a.get(0), 0)),
    (nr::__NR_pipe2, |a: &mut Args| make(a.get(0), a.uint(1))),
];

fn make(out: u64, flags: u32) -> Result<u64, Errno> {
    // Packet mode (O_DIRECT) is not offered.
    if flags & !(o::CLOEXEC | o::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let (reader, writer) = pipe::open_pair(flags)?;
    let (cloexec, limit) = (flags & o::CLOEXEC != 0, fd_limit());
    let (a, b) = (reader.clone(), writer.clone());
    let (r, w) = with_files(|files| files.add_pair(a, b, cloexec, limit))?;
    let shown = UserPtr::<[i32; 2]>::new(out).write(&[r, w]);
    if shown.is_err() {
        with_files(|files| {
            files.undo(&[(r, &reader), (w, &writer)]);
            Ok(())
        })?;
    }
    shown.map_err(fault)?;
    Ok(0)
}
