//! Calls on directories and the working directory.

use abi::raw::general as nr;
use cred::Cap;
use fscore::{dirent, perm};
use hal::uaccess::PATH_MAX;
use hal::uio::IoBuf;
use vfs::dirfile::read_entries;
use vfs::error::FsError;
use vfs::full_name::full_name;
use vfs::place::Path;
use vfs::rights::permitted;
use vfs::walk::Want;

use super::credentials::require;
use super::errno::Errno;
use super::fsutil::{Caller, at, fault, file, fs, real_file, user_path, user_range};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_getdents64, |a| {
        let f = real_file(a.int(0))?;
        let range = user_range(a.get(1), u64::from(a.uint(2)))?;
        Ok(read_entries(&f, &mut IoBuf::User(range), dirent::pack64)? as u64)
    }),
    (nr::__NR_getdents, |a| {
        let f = real_file(a.int(0))?;
        let range = user_range(a.get(1), u64::from(a.uint(2)))?;
        Ok(read_entries(&f, &mut IoBuf::User(range), dirent::pack_old)? as u64)
    }),
    (nr::__NR_getcwd, getcwd),
    (nr::__NR_chdir, chdir),
    (nr::__NR_fchdir, fchdir),
    (nr::__NR_chroot, chroot),
    (nr::__NR_umask, |a| {
        let old = proc::with_fs(|fs| fs.set_umask(a.uint(0)));
        Ok(u64::from(old.ok_or(Errno::ENOENT)?))
    }),
];

/// getcwd(2): returns the length with the NUL. As on Linux, "(unreachable)" comes first if the directory is not below the root.
fn getcwd(a: &mut Args) -> Result<u64, Errno> {
    let (out, size) = (a.get(0), a.size(1));
    let (root, cwd) = fs(|fs| Ok((fs.root()?, fs.cwd()?)))?;
    if cwd.dentry.is_dead() {
        return Err(Errno::ENOENT);
    }
    let (name, reached) = full_name(&root, &cwd)?;
    let prefix: &[u8] = if reached { b"" } else { b"(unreachable)" };
    let len = prefix.len() + name.len() + 1;
    if len > PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if len > size {
        return Err(Errno::ERANGE);
    }
    let mut buf = IoBuf::user(out, len);
    for piece in [prefix, &name, b"\0"] {
        if buf.put(piece).map_err(fault)? < piece.len() {
            return Err(Errno::EFAULT);
        }
    }
    Ok(len as u64)
}

fn enter(caller: &Caller, place: Path) -> Result<u64, Errno> {
    permitted(&caller.cred, &place.dentry.inode, perm::EXEC)?;
    proc::with_fs(|fs| fs.set_cwd(place)).ok_or(Errno::ENOENT)?;
    Ok(0)
}

fn chdir(a: &mut Args) -> Result<u64, Errno> {
    let path = user_path(a.get(0))?;
    let caller = Caller::now();
    let place = caller.find(at::FDCWD, &path, 0, Want::DIRECTORY)?;
    enter(&caller, place)
}

fn fchdir(a: &mut Args) -> Result<u64, Errno> {
    let f = file(a.int(0))?;
    let place = f
        .path
        .as_ref()
        .filter(|p| p.dentry.inode.is_dir())
        .ok_or(FsError::NotDir)?;
    enter(&Caller::now(), place.clone())
}

fn chroot(a: &mut Args) -> Result<u64, Errno> {
    let path = user_path(a.get(0))?;
    let caller = Caller::now();
    let place = caller.find(at::FDCWD, &path, 0, Want::DIRECTORY)?;
    permitted(&caller.cred, &place.dentry.inode, perm::EXEC)?;
    require(&caller.cred, Cap::SysChroot)?;
    proc::with_fs(|fs| fs.set_root(place)).ok_or(Errno::ENOENT)?;
    Ok(0)
}
