//! Extended attributes: files in memory have none, and say so as Linux's tmpfs without them does.
//!
//! Reading and setting answer "not supported", listing finds an empty list; bad arguments are
//! reported first, as the man pages order it.

use abi::Errno;
use abi::raw::general as nr;

use super::fsutil::{Caller, at, real_file, user_path};
use super::{Args, Handler};
use crate::fs::walk::Want;
use crate::uaccess::{StrError, read_cstr};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_getxattr, |a| by_path(a, true, None)),
    (nr::__NR_lgetxattr, |a| by_path(a, false, None)),
    (nr::__NR_fgetxattr, |a| by_fd(a, None)),
    (nr::__NR_setxattr, |a| by_path(a, true, Some(4))),
    (nr::__NR_lsetxattr, |a| by_path(a, false, Some(4))),
    (nr::__NR_fsetxattr, |a| by_fd(a, Some(4))),
    (nr::__NR_removexattr, |a| by_path(a, true, None)),
    (nr::__NR_lremovexattr, |a| by_path(a, false, None)),
    (nr::__NR_fremovexattr, |a| by_fd(a, None)),
    (nr::__NR_listxattr, |a| list(a, true)),
    (nr::__NR_llistxattr, |a| list(a, false)),
    (nr::__NR_flistxattr, |a| {
        real_file(a.int(0)).map(|_| 0).map_err(Errno::from)
    }),
];

/// Longest name of an attribute, with its NUL.
const NAME_MAX: usize = 256;
/// Largest value.
const VALUE_MAX: u64 = 65536;

fn check(a: &Args, flags_at: Option<usize>) -> Result<(), Errno> {
    let name = read_cstr(a.get(1), NAME_MAX).map_err(|e| match e {
        StrError::Fault => Errno::EFAULT,
        StrError::TooLong => Errno::ERANGE,
        StrError::NoMemory => Errno::ENOMEM,
    })?;
    if name.is_empty() {
        return Err(Errno::ERANGE);
    }
    if let Some(i) = flags_at {
        if a.uint(i) & !3 != 0 {
            return Err(Errno::EINVAL);
        }
        if a.get(3) > VALUE_MAX {
            return Err(Errno::E2BIG);
        }
    }
    Ok(())
}

fn exists(a: &Args, follow: bool) -> Result<(), Errno> {
    let path = user_path(a.get(0))?;
    Caller::now().find(
        at::FDCWD,
        &path,
        0,
        Want {
            follow,
            directory: false,
        },
    )?;
    Ok(())
}

fn by_path(a: &mut Args, follow: bool, flags_at: Option<usize>) -> Result<u64, Errno> {
    check(a, flags_at)?;
    exists(a, follow)?;
    Err(Errno::EOPNOTSUPP)
}

fn by_fd(a: &mut Args, flags_at: Option<usize>) -> Result<u64, Errno> {
    check(a, flags_at)?;
    real_file(a.int(0))?;
    Err(Errno::EOPNOTSUPP)
}

fn list(a: &mut Args, follow: bool) -> Result<u64, Errno> {
    exists(a, follow)?;
    Ok(0)
}
