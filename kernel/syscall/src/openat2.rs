//! openat2(2): openat(2) that refuses flags which it does not know, and takes them in a structure that may grow.

use abi::raw::general as nr;
use hal::uaccess::UserPtr;
use hal::{PAGE_SIZE, user};
use vfs::file::o;
use vfs::inode::mode;

use super::errno::Errno;
use super::file::{OPEN_KNOWN, PATH_KNOWN, open_with};
use super::fsutil::fault;
use crate::call::{Args, Handler};

/// The call of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_openat2, openat2)];

/// The fields of `struct open_how` that this kernel knows: flags, mode and resolve.
type OpenHow = [u64; 3];

const HOW_SIZE: usize = size_of::<OpenHow>();

/// openat2 without restrictions of the lookup: any `resolve` flag fails with EINVAL.
fn openat2(a: &mut Args) -> Result<u64, Errno> {
    let [flags, perm, resolve] = read_how(a.get(2), a.get(3))?;
    let creates = flags & u64::from(o::CREAT | o::TMPFILE & !o::DIRECTORY) != 0;
    let Ok(flags) = u32::try_from(flags) else {
        return Err(Errno::EINVAL);
    };
    if flags & !OPEN_KNOWN != 0 || perm & !u64::from(mode::PERM) != 0 || perm != 0 && !creates {
        return Err(Errno::EINVAL);
    }
    if resolve != 0 || flags & o::PATH != 0 && flags & !PATH_KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    open_with(a.int(0), a.get(1), flags, perm as u32)
}

/// Reads a `struct open_how` of `size` bytes. A program that was built for a newer kernel has a larger one; if all that this kernel
/// does not know is zero, it asks for nothing more.
///
/// # Errors
/// EINVAL for one that is too small, E2BIG for one of more than a page or with something unknown, EFAULT.
fn read_how(at: u64, size: u64) -> Result<OpenHow, Errno> {
    let size = usize::try_from(size).map_err(|_| Errno::E2BIG)?;
    if size < HOW_SIZE {
        return Err(Errno::EINVAL);
    }
    if size > PAGE_SIZE {
        return Err(Errno::E2BIG);
    }
    let mut chunk = [0u8; 64];
    for from in (HOW_SIZE..size).step_by(chunk.len()) {
        let len = chunk.len().min(size - from);
        user::copy_in(&mut chunk[..len], at.wrapping_add(from as u64)).map_err(fault)?;
        if chunk[..len].iter().any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
    }
    UserPtr::new(at).read().map_err(fault)
}
