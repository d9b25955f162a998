//! name_to_handle_at(2) and open_by_handle_at(2): no file system here has handles that outlive a name.

use abi::raw::general as nr;
use cred::Cap;
use hal::uaccess::UserPtr;
use task::current::current;
use vfs::walk::Want;

use super::credentials::require;
use super::errno::Errno;
use super::fsutil::{Caller, at, fault, file, user_path};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_name_to_handle_at, name_to_handle_at),
    (nr::__NR_open_by_handle_at, open_by_handle_at),
];

/// Most bytes of a handle.
const MOST: u32 = 128;

/// name_to_handle_at(2): EOPNOTSUPP for whatever file is found.
fn name_to_handle_at(a: &mut Args) -> Result<u64, Errno> {
    let flags = a.uint(4);
    if flags & !(at::SYMLINK_FOLLOW | at::EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_path(a.get(1))?;
    let want = Want {
        follow: flags & at::SYMLINK_FOLLOW != 0,
        directory: false,
    };
    Caller::now().find(a.int(0), &path, flags, want)?;
    Err(Errno::EOPNOTSUPP)
}

/// open_by_handle_at(2): ESTALE for whatever handle is given.
fn open_by_handle_at(a: &mut Args) -> Result<u64, Errno> {
    require(&current().cred(), Cap::DacReadSearch)?;
    if a.int(0) != at::FDCWD {
        file(a.int(0))?;
    }
    let len: u32 = UserPtr::new(a.get(1)).read().map_err(fault)?;
    if len == 0 || len > MOST {
        return Err(Errno::EINVAL);
    }
    Err(Errno::ESTALE)
}
