//! Calls that read attributes: stat(2) and its variants, statx(2), access(2).

use alloc::sync::Arc;

use abi::raw::general as nr;
use fscore::perm;
use hal::uaccess::UserPtr;
use vfs::attr::{Attr, Nanos};
use vfs::context::FsContext;
use vfs::inode::{Inode, mode};
use vfs::place::flag as mount;
use vfs::rights::permitted;
use vfs::walk::Want;

use super::errno::Errno;
use super::fsutil::{Caller, at, fault, file, fs, user_path};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_stat, |a| stat_at(at::FDCWD, a.get(0), a.get(1), 0)),
    (nr::__NR_lstat, |a| {
        stat_at(at::FDCWD, a.get(0), a.get(1), at::SYMLINK_NOFOLLOW)
    }),
    (nr::__NR_fstat, |a| {
        let attr = file(a.int(0))?.attr()?;
        put_stat(a.get(1), &attr)
    }),
    (nr::__NR_newfstatat, |a| {
        stat_at(a.int(0), a.get(1), a.get(2), a.uint(3))
    }),
    (nr::__NR_statx, statx),
    (nr::__NR_access, |a| {
        access_at(at::FDCWD, a.get(0), a.uint(1), 0)
    }),
    (nr::__NR_faccessat, |a| {
        access_at(a.int(0), a.get(1), a.uint(2), 0)
    }),
    (nr::__NR_faccessat2, |a| {
        access_at(a.int(0), a.get(1), a.uint(2), a.uint(3))
    }),
];

fn split(t: Nanos) -> (u64, u64) {
    (
        t.div_euclid(1_000_000_000) as u64,
        t.rem_euclid(1_000_000_000) as u64,
    )
}

/// Writes the struct stat of `a` to user memory at `addr`.
fn put_stat(addr: u64, a: &Attr) -> Result<u64, Errno> {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let ((at, atn), (mt, mtn), (ct, ctn)) = (split(a.atime), split(a.mtime), split(a.ctime));
    let raw: [u64; 18] = [
        a.dev,
        a.ino,
        u64::from(a.nlink),
        pair(a.mode, a.uid),
        pair(a.gid, 0),
        a.rdev,
        a.size,
        4096,
        a.blocks,
        at,
        atn,
        mt,
        mtn,
        ct,
        ctn,
        0,
        0,
        0,
    ];
    UserPtr::<[u64; 18]>::new(addr).write(&raw).map_err(fault)?;
    Ok(0)
}

/// The attributes of the file that a stat call names.
fn attr_at(dirfd: i32, path: u64, flags: u32) -> Result<Attr, Errno> {
    // As on Linux, a null pointer with AT_EMPTY_PATH stands for an empty path.
    let path = if path == 0 && flags & at::EMPTY_PATH != 0 {
        alloc::vec::Vec::new()
    } else {
        user_path(path)?
    };
    let caller = Caller::now();
    if path.is_empty() && flags & at::EMPTY_PATH != 0 {
        if dirfd == at::FDCWD {
            return Ok(fs(FsContext::cwd)?.dentry.inode.attr());
        }
        return Ok(file(dirfd)?.attr()?);
    }
    let follow = flags & at::SYMLINK_NOFOLLOW == 0;
    let want = Want {
        follow,
        directory: false,
    };
    // [`Walk::resolve`](vfs::walk::Walk::resolve) calls its closure with preemption off. Counting the blocks may take
    // a lock, so it is done afterwards, with a reference to the inode.
    let inode = caller.walk(dirfd, &path, |w| {
        w.resolve(&path, want, |_, _, d| d.inode.clone())
    })?;
    Ok(inode.attr())
}

fn stat_at(dirfd: i32, path: u64, out: u64, flags: u32) -> Result<u64, Errno> {
    if flags & !(at::SYMLINK_NOFOLLOW | at::NO_AUTOMOUNT | at::EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    put_stat(out, &attr_at(dirfd, path, flags)?)
}

/// statx(2). All basic fields are filled in, whatever the mask asks for.
fn statx(a: &mut Args) -> Result<u64, Errno> {
    const BASIC: u32 = 0x7ff;
    const RESERVED: u32 = 0x8000_0000;
    let known = at::SYMLINK_NOFOLLOW | at::NO_AUTOMOUNT | at::EMPTY_PATH | at::STATX_SYNC;
    let (flags, mask) = (a.uint(2), a.uint(3));
    if flags & !known != 0 || flags & at::STATX_SYNC == at::STATX_SYNC || mask & RESERVED != 0 {
        return Err(Errno::EINVAL);
    }
    let attr = attr_at(a.int(0), a.get(1), flags)?;
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut raw = [0u64; 32];
    raw[0] = pair(BASIC, 4096);
    raw[2] = pair(attr.nlink, attr.uid);
    raw[3] = pair(attr.gid, attr.mode & 0xffff);
    raw[4] = attr.ino;
    raw[5] = attr.size;
    raw[6] = attr.blocks;
    for (i, t) in [(8, attr.atime), (12, attr.ctime), (14, attr.mtime)] {
        (raw[i], raw[i + 1]) = split(t);
    }
    let dev = |d: u64| pair(vfs::devices::major(d), vfs::devices::minor(d));
    raw[16] = dev(attr.rdev);
    raw[17] = dev(attr.dev);
    UserPtr::<[u64; 32]>::new(a.get(4))
        .write(&raw)
        .map_err(fault)?;
    Ok(0)
}

/// faccessat2(2). EROFS, and EACCES of a mount with `noexec`, come before the permissions, as on Linux.
fn access_at(dirfd: i32, path: u64, want: u32, flags: u32) -> Result<u64, Errno> {
    let known = at::EACCESS | at::SYMLINK_NOFOLLOW | at::EMPTY_PATH;
    if want & !7 != 0 || flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_path(path)?;
    let mut caller = Caller::now();
    if flags & at::EACCESS == 0 && caller.cred.differs_from_real() {
        // access(2) checks the permissions of the real uid and gid.
        caller.cred = Arc::new(caller.cred.real());
    }
    let follow = flags & at::SYMLINK_NOFOLLOW == 0;
    let place = caller.find(
        dirfd,
        &path,
        flags,
        Want {
            follow,
            directory: false,
        },
    )?;
    let inode = &place.dentry.inode;
    if want & perm::WRITE != 0 && place.mount.is_read_only() && is_data(inode) {
        return Err(Errno::EROFS);
    }
    let noexec = place.mount.flags() & mount::NOEXEC != 0;
    if want & perm::EXEC != 0 && noexec && inode.kind() == mode::REG {
        return Err(Errno::EACCES);
    }
    permitted(&caller.cred, inode, want)?;
    Ok(0)
}

/// Whether writing to a file changes its file system, as it does not for a device, a pipe or a socket.
fn is_data(inode: &Inode) -> bool {
    matches!(inode.kind(), mode::REG | mode::DIR | mode::LNK)
}
