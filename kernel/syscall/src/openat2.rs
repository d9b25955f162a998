//! openat2(2): openat(2) that refuses flags which it does not know, and takes them in a structure that may grow.

use abi::raw::general as nr;
use vfs::file::o;
use vfs::inode::mode;

use super::errno::Errno;
use super::file::{OPEN_KNOWN, PATH_KNOWN, open_with};
use super::versioned;
use crate::call::{Args, Handler};

/// The call of this file.
pub const HANDLERS: &[(u32, Handler)] = &[(nr::__NR_openat2, openat2)];

/// The fields of `struct open_how` that this kernel knows: flags, mode and resolve.
type OpenHow = [u64; 3];

const HOW_SIZE: u64 = size_of::<OpenHow>() as u64;

/// openat2 without restrictions of the lookup: any `resolve` flag fails with EINVAL.
fn openat2(a: &mut Args) -> Result<u64, Errno> {
    let [flags, perm, resolve]: OpenHow = versioned::read(a.get(2), a.get(3), HOW_SIZE)?;
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
