//! inotify_init(2), inotify_init1(2), inotify_add_watch(2), inotify_rm_watch(2).

use abi::raw::general as nr;
use fscore::perm;
use ipc::inotify::{self, Request, flag};
use vfs::file::{FileRef, o};
use vfs::rights::permitted;
use vfs::walk::Want;

use super::errno::Errno;
use super::fsutil::{Caller, at, install, real_file, user_path};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_inotify_init, |_| init(0)),
    (nr::__NR_inotify_init1, |a| init(a.uint(0))),
    (nr::__NR_inotify_add_watch, add_watch),
    (nr::__NR_inotify_rm_watch, rm_watch),
];

fn init(flags: u32) -> Result<u64, Errno> {
    if flags & !(o::CLOEXEC | o::NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(install(inotify::make(flags)?, flags)?)
}

/// The errors come in Linux's order: of the mask, of the descriptor, of its kind, of the path.
fn add_watch(a: &mut Args) -> Result<u64, Errno> {
    let mask = a.uint(2);
    if mask & flag::KNOWN == 0 {
        return Err(Errno::EINVAL);
    }
    let file = real_file(a.int(0))?;
    let request = Request::new(mask)?;
    let file = instance(file)?;
    let path = user_path(a.get(1))?;
    let want = Want {
        follow: mask & flag::DONT_FOLLOW == 0,
        directory: mask & flag::ONLYDIR != 0,
    };
    let caller = Caller::now();
    let place = caller.find(at::FDCWD, &path, 0, want)?;
    permitted(&caller.cred, &place.dentry.inode, perm::READ)?;
    Ok(inotify::add(&file, &place.dentry.inode, request)? as u64)
}

fn rm_watch(a: &mut Args) -> Result<u64, Errno> {
    let file = instance(real_file(a.int(0))?)?;
    inotify::remove(&file, a.int(1))?;
    Ok(0)
}

/// # Errors
/// EINVAL for a file of another kind.
fn instance(file: FileRef) -> Result<FileRef, Errno> {
    if inotify::is_instance(&file) {
        Ok(file)
    } else {
        Err(Errno::EINVAL)
    }
}
