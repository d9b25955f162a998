//! pipe(2), pipe2(2), and the refusal of splice(2), tee(2) and vmsplice(2).

use abi::raw::general as nr;
use vfs::file::o;
use vfs::pipe;

use super::errno::Errno;
use super::fsutil::{file, install_pair};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_pipe, |a| make(a.get(0), 0)),
    (nr::__NR_pipe2, |a: &mut Args| make(a.get(0), a.uint(1))),
    (nr::__NR_splice, |a| not_spliced(&[a.int(0), a.int(2)])),
    (nr::__NR_tee, |a| not_spliced(&[a.int(0), a.int(1)])),
    (nr::__NR_vmsplice, |a| not_spliced(&[a.int(0)])),
];

/// The calls that splice: no file supports it. They fail with EINVAL, on which programs fall back to copying; on
/// ENOSYS programs give up.
fn not_spliced(files: &[i32]) -> Result<u64, Errno> {
    for &fd in files {
        file(fd)?;
    }
    Err(Errno::EINVAL)
}

fn make(out: u64, flags: u32) -> Result<u64, Errno> {
    // There is no packet mode (O_DIRECT).
    if flags & !(o::CLOEXEC | o::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let ends = pipe::open_pair(flags)?;
    install_pair(ends, flags & o::CLOEXEC != 0, out, true)?;
    Ok(0)
}
