//! Extended attributes, which no file has: the calls answer as Linux does for a tmpfs without support for them.
//!
//! Getting, setting and removing one fails with EOPNOTSUPP, and the list of attributes is empty. Errors of the
//! arguments come first, in the order of the manual pages.

use abi::raw::general as nr;
use hal::uaccess::{StrError, read_cstr};
use vfs::place::Path;
use vfs::walk::Want;

use super::errno::Errno;
use super::fsutil::{Caller, at, real_file, user_path};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_getxattr, |a| by_path(a, true, Use::Get)),
    (nr::__NR_lgetxattr, |a| by_path(a, false, Use::Get)),
    (nr::__NR_fgetxattr, |a| by_fd(a, Use::Get)),
    (nr::__NR_setxattr, |a| by_path(a, true, Use::Set)),
    (nr::__NR_lsetxattr, |a| by_path(a, false, Use::Set)),
    (nr::__NR_fsetxattr, |a| by_fd(a, Use::Set)),
    (nr::__NR_removexattr, |a| by_path(a, true, Use::Remove)),
    (nr::__NR_lremovexattr, |a| by_path(a, false, Use::Remove)),
    (nr::__NR_fremovexattr, |a| by_fd(a, Use::Remove)),
    (nr::__NR_listxattr, |a| list(a, true)),
    (nr::__NR_llistxattr, |a| list(a, false)),
    (nr::__NR_flistxattr, |a| {
        real_file(a.int(0)).map(|_| 0).map_err(Errno::from)
    }),
];

/// Longest name of an attribute in bytes, with its NUL.
const NAME_MAX: usize = 256;
/// Largest value of an attribute in bytes.
const VALUE_MAX: u64 = 65536;

/// What a call does to an attribute.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Get,
    Set,
    Remove,
}

fn check(a: &Args, what: Use) -> Result<(), Errno> {
    let name = read_cstr(a.get(1), NAME_MAX).map_err(|e| match e {
        StrError::Fault => Errno::EFAULT,
        StrError::TooLong => Errno::ERANGE,
        StrError::NoMemory => Errno::ENOMEM,
    })?;
    if name.is_empty() {
        return Err(Errno::ERANGE);
    }
    if what == Use::Set {
        if a.uint(4) & !3 != 0 {
            return Err(Errno::EINVAL);
        }
        if a.get(3) > VALUE_MAX {
            return Err(Errno::E2BIG);
        }
    }
    Ok(())
}

/// The errno for getting or changing an attribute of the file at `place`.
fn answer(place: Option<&Path>, what: Use) -> Result<u64, Errno> {
    if what != Use::Get && place.is_some_and(|place| place.mount.is_read_only()) {
        return Err(Errno::EROFS);
    }
    Err(Errno::EOPNOTSUPP)
}

fn find(a: &Args, follow: bool) -> Result<Path, Errno> {
    let path = user_path(a.get(0))?;
    Ok(Caller::now().find(
        at::FDCWD,
        &path,
        0,
        Want {
            follow,
            directory: false,
        },
    )?)
}

fn by_path(a: &mut Args, follow: bool, what: Use) -> Result<u64, Errno> {
    check(a, what)?;
    answer(Some(&find(a, follow)?), what)
}

fn by_fd(a: &mut Args, what: Use) -> Result<u64, Errno> {
    check(a, what)?;
    answer(real_file(a.int(0))?.path.as_ref(), what)
}

fn list(a: &mut Args, follow: bool) -> Result<u64, Errno> {
    find(a, follow)?;
    Ok(0)
}
