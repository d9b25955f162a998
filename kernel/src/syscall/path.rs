//! Calls on names and attributes.

use abi::Errno;
use abi::raw::general as nr;
use fscore::perm;

use super::fsutil::{Caller, at, fault, user_path};
use super::{Args, Handler};
use crate::fs::dentry::{self, RenameMode, Side};
use crate::fs::dynamic::{Dynamic, Text};
use crate::fs::error::FsError;
use crate::fs::inode::{Nanos, Node, mode, now};
use crate::fs::mount::Path;
use crate::fs::open::{self, writable_dir};
use crate::fs::tmpfs::{self, What};
use crate::fs::walk::{Last, Walk, Want, in_group, may_remove, permitted};
use crate::kern::cred::Cred;
use crate::uaccess::UserPtr;
use crate::uio::IoBuf;

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_chmod, |a| {
        chmod_at(at::FDCWD, a.get(0), a.uint(1), 0)
    }),
    (nr::__NR_fchmodat, |a| {
        chmod_at(a.int(0), a.get(1), a.uint(2), 0)
    }),
    (nr::__NR_fchmod, |a| {
        let f = super::fsutil::real_file(a.int(0))?;
        set_mode(f.path.as_ref(), a.uint(1))
    }),
    (nr::__NR_chown, |a| {
        chown_at(at::FDCWD, a.get(0), a.uint(1), a.uint(2), 0)
    }),
    (nr::__NR_lchown, |a| {
        chown_at(
            at::FDCWD,
            a.get(0),
            a.uint(1),
            a.uint(2),
            at::SYMLINK_NOFOLLOW,
        )
    }),
    (nr::__NR_fchownat, |a| {
        chown_at(a.int(0), a.get(1), a.uint(2), a.uint(3), a.uint(4))
    }),
    (nr::__NR_fchown, |a| {
        let f = super::fsutil::real_file(a.int(0))?;
        set_owner(f.path.as_ref(), a.uint(1), a.uint(2))
    }),
    (nr::__NR_utimensat, utimensat),
    (nr::__NR_utimes, |a| {
        times_at(at::FDCWD, a.get(0), a.get(1), 1000)
    }),
    (nr::__NR_futimesat, |a| {
        times_at(a.int(0), a.get(1), a.get(2), 1000)
    }),
    (nr::__NR_utime, utime),
    (nr::__NR_mkdir, |a| mkdir_at(at::FDCWD, a.get(0), a.uint(1))),
    (nr::__NR_mkdirat, |a| {
        mkdir_at(a.int(0), a.get(1), a.uint(2))
    }),
    (nr::__NR_mknod, |a| {
        mknod_at(at::FDCWD, a.get(0), a.uint(1), a.get(2))
    }),
    (nr::__NR_mknodat, |a| {
        mknod_at(a.int(0), a.get(1), a.uint(2), a.get(3))
    }),
    (nr::__NR_symlink, |a| {
        symlink_at(a.get(0), at::FDCWD, a.get(1))
    }),
    (nr::__NR_symlinkat, |a| {
        symlink_at(a.get(0), a.int(1), a.get(2))
    }),
    (nr::__NR_link, |a| {
        link_at(at::FDCWD, a.get(0), at::FDCWD, a.get(1), 0)
    }),
    (nr::__NR_linkat, |a| {
        link_at(a.int(0), a.get(1), a.int(2), a.get(3), a.uint(4))
    }),
    (nr::__NR_unlink, |a| unlink_at(at::FDCWD, a.get(0), 0)),
    (nr::__NR_unlinkat, |a| {
        unlink_at(a.int(0), a.get(1), a.uint(2))
    }),
    (nr::__NR_rmdir, |a| {
        unlink_at(at::FDCWD, a.get(0), at::REMOVEDIR)
    }),
    (nr::__NR_rename, |a| {
        rename_at(at::FDCWD, a.get(0), at::FDCWD, a.get(1), 0)
    }),
    (nr::__NR_renameat, |a| {
        rename_at(a.int(0), a.get(1), a.int(2), a.get(3), 0)
    }),
    (nr::__NR_renameat2, |a| {
        rename_at(a.int(0), a.get(1), a.int(2), a.get(3), a.uint(4))
    }),
    (nr::__NR_readlink, |a| {
        readlink_at(at::FDCWD, a.get(0), a.get(1), a.int(2))
    }),
    (nr::__NR_readlinkat, |a| {
        readlink_at(a.int(0), a.get(1), a.get(2), a.int(3))
    }),
];

fn owner_only(cred: &Cred, place: &Path) -> Result<(), FsError> {
    if place.mount.is_read_only() {
        return Err(FsError::ReadOnly);
    }
    if cred.fsuid != 0 && cred.fsuid != place.dentry.inode.uid() {
        return Err(FsError::Perm);
    }
    Ok(())
}

fn set_mode(place: Option<&Path>, perm: u32) -> Result<u64, Errno> {
    // A nameless file (a pipe) keeps its permissions; nobody can open it by them.
    let Some(place) = place else {
        return Ok(0);
    };
    let cred = Caller::now().cred;
    owner_only(&cred, place)?;
    let inode = &place.dentry.inode;
    let mut perm = perm & mode::PERM;
    if cred.fsuid != 0 && !in_group(&cred, inode.gid()) && !inode.is_dir() {
        perm &= !mode::SGID;
    }
    inode.set_permissions(perm);
    Ok(0)
}

fn chmod_at(dirfd: i32, path: u64, perm: u32, flags: u32) -> Result<u64, Errno> {
    let path = user_path(path)?;
    let place = Caller::now().find(dirfd, &path, flags, Want::FOLLOW)?;
    set_mode(Some(&place), perm)
}

fn set_owner(place: Option<&Path>, uid: u32, gid: u32) -> Result<u64, Errno> {
    let Some(place) = place else {
        return Ok(0);
    };
    let cred = Caller::now().cred;
    let inode = &place.dentry.inode;
    if place.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    let (uid, gid) = (
        (uid != u32::MAX).then_some(uid),
        (gid != u32::MAX).then_some(gid),
    );
    if cred.fsuid != 0 {
        // The owner may give the file to a group of his; nobody may give it away.
        let own = cred.fsuid == inode.uid();
        let uid_ok = uid.is_none_or(|u| own && u == inode.uid());
        let gid_ok = gid.is_none_or(|g| own && (g == inode.gid() || in_group(&cred, g)));
        if !uid_ok || !gid_ok {
            return Err(Errno::EPERM);
        }
    }
    inode.set_owner(uid, gid);
    let m = inode.mode();
    if !inode.is_dir() && m & (mode::SUID | mode::SGID) != 0 {
        let group = if m & 0o010 != 0 { mode::SGID } else { 0 };
        inode.set_permissions(m & !(mode::SUID | group));
    }
    Ok(0)
}

/// The place whose attributes a call with the flags of fchownat is to change.
fn place_at(dirfd: i32, path: u64, flags: u32) -> Result<Path, Errno> {
    if flags & !(at::SYMLINK_NOFOLLOW | at::EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_path(path)?;
    let want = Want {
        follow: flags & at::SYMLINK_NOFOLLOW == 0,
        directory: false,
    };
    Ok(Caller::now().find(dirfd, &path, flags, want)?)
}

fn chown_at(dirfd: i32, path: u64, uid: u32, gid: u32, flags: u32) -> Result<u64, Errno> {
    set_owner(Some(&place_at(dirfd, path, flags)?), uid, gid)
}

/// A time to be set: none, now, or given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Omit,
    Now,
    At(Nanos),
}

fn nanos(sec: i64, nsec: i64) -> Nanos {
    sec.saturating_mul(1_000_000_000).saturating_add(nsec)
}

fn set_times(place: &Path, stamps: [Stamp; 2]) -> Result<u64, Errno> {
    let cred = Caller::now().cred;
    let inode = &place.dentry.inode;
    if stamps == [Stamp::Omit; 2] {
        return Ok(0);
    }
    if place.mount.is_read_only() {
        return Err(Errno::EROFS);
    }
    let own = cred.fsuid == 0 || cred.fsuid == inode.uid();
    if stamps == [Stamp::Now; 2] {
        if !own {
            permitted(&cred, inode, perm::WRITE)?;
        }
    } else if !own {
        return Err(Errno::EPERM);
    }
    let [a, m] = stamps.map(|s| match s {
        Stamp::Omit => None,
        Stamp::Now => Some(now()),
        Stamp::At(t) => Some(t),
    });
    inode.set_times(a, m);
    Ok(0)
}

fn utimensat(a: &mut Args) -> Result<u64, Errno> {
    const NOW: i64 = 0x3fff_ffff;
    const OMIT: i64 = 0x3fff_fffe;
    let (dirfd, path, times, flags) = (a.int(0), a.get(1), a.get(2), a.uint(3));
    let mut stamps = [Stamp::Now; 2];
    if times != 0 {
        let raw = UserPtr::<[i64; 4]>::new(times).read().map_err(fault)?;
        for (i, stamp) in stamps.iter_mut().enumerate() {
            *stamp = match raw[2 * i + 1] {
                NOW => Stamp::Now,
                OMIT => Stamp::Omit,
                n @ 0..=999_999_999 => Stamp::At(nanos(raw[2 * i], n)),
                _ => return Err(Errno::EINVAL),
            };
        }
    }
    if flags & !(at::SYMLINK_NOFOLLOW | at::EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    if path == 0 {
        if dirfd == at::FDCWD {
            return Err(Errno::EFAULT);
        }
        let f = super::fsutil::real_file(dirfd)?;
        return f
            .path
            .as_ref()
            .map_or(Ok(0), |place| set_times(place, stamps));
    }
    set_times(&place_at(dirfd, path, flags)?, stamps)
}

/// utimes and futimesat: seconds and microseconds.
fn times_at(dirfd: i32, path: u64, times: u64, scale: i64) -> Result<u64, Errno> {
    let mut stamps = [Stamp::Now; 2];
    if times != 0 {
        let raw = UserPtr::<[i64; 4]>::new(times).read().map_err(fault)?;
        for (i, stamp) in stamps.iter_mut().enumerate() {
            if !(0..1_000_000).contains(&raw[2 * i + 1]) {
                return Err(Errno::EINVAL);
            }
            *stamp = Stamp::At(nanos(raw[2 * i], raw[2 * i + 1] * scale));
        }
    }
    let path = user_path(path)?;
    let place = Caller::now().find(dirfd, &path, 0, Want::FOLLOW)?;
    set_times(&place, stamps)
}

fn utime(a: &mut Args) -> Result<u64, Errno> {
    let mut stamps = [Stamp::Now; 2];
    if a.get(1) != 0 {
        let raw = UserPtr::<[i64; 2]>::new(a.get(1)).read().map_err(fault)?;
        stamps = raw.map(|sec| Stamp::At(nanos(sec, 0)));
    }
    let path = user_path(a.get(0))?;
    let place = Caller::now().find(at::FDCWD, &path, 0, Want::FOLLOW)?;
    set_times(&place, stamps)
}

/// Makes a node at a path whose last component must be free.
fn make(walk: &Walk, text: &[u8], what: &What, perm: u32) -> Result<(), FsError> {
    let (dir, last) = walk.parent(text)?;
    let Last::Name(name, slash) = last else {
        return Err(FsError::Exists);
    };
    if slash && !matches!(what, What::Dir) {
        let there = dir.dentry.inode.dir()?.get(name).is_some();
        return Err(if there {
            FsError::Exists
        } else {
            FsError::NotFound
        });
    }
    tmpfs::create(walk.cred, &dir, name, what, perm).map(|_| ())
}

fn mkdir_at(dirfd: i32, path: u64, perm: u32) -> Result<u64, Errno> {
    let path = user_path(path)?;
    let caller = Caller::now();
    let perm = perm & (0o777 | mode::STICKY) & !caller.umask();
    caller.walk(dirfd, &path, |w| make(w, &path, &What::Dir, perm))?;
    Ok(0)
}

fn mknod_at(dirfd: i32, path: u64, bits: u32, rdev: u64) -> Result<u64, Errno> {
    let path = user_path(path)?;
    let caller = Caller::now();
    let what = match bits & mode::FMT {
        0 | mode::REG => What::File,
        mode::FIFO => What::Fifo,
        mode::SOCK => What::Socket,
        kind @ (mode::CHR | mode::BLK) if caller.cred.privileged() => What::Device(kind, rdev),
        mode::CHR | mode::BLK | mode::DIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    let perm = bits & mode::PERM & !caller.umask();
    caller.walk(dirfd, &path, |w| make(w, &path, &what, perm))?;
    Ok(0)
}

fn symlink_at(target: u64, dirfd: i32, path: u64) -> Result<u64, Errno> {
    let (target, path) = (user_path(target)?, user_path(path)?);
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let caller = Caller::now();
    caller.walk(dirfd, &path, |w| {
        make(w, &path, &What::Link(&target), 0o777)
    })?;
    Ok(0)
}

fn link_at(from_fd: i32, from: u64, to_fd: i32, to: u64, flags: u32) -> Result<u64, Errno> {
    if flags & !(at::SYMLINK_FOLLOW | at::EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let (from, to) = (user_path(from)?, user_path(to)?);
    let caller = Caller::now();
    if from.is_empty() && flags & at::EMPTY_PATH != 0 && !crate::kern::current().cred().privileged()
    {
        // A descriptor alone must not give an unreachable file a name again.
        return Err(Errno::ENOENT);
    }
    let follow = flags & at::SYMLINK_FOLLOW != 0;
    let source = caller.find(
        from_fd,
        &from,
        flags,
        Want {
            follow,
            directory: false,
        },
    )?;
    caller.walk(to_fd, &to, |w| {
        let (dir, last) = w.parent(&to)?;
        let Last::Name(name, slash) = last else {
            return Err(FsError::Exists);
        };
        if slash {
            return Err(FsError::NotFound);
        }
        if dir.mount.id != source.mount.id {
            return Err(FsError::CrossDevice);
        }
        tmpfs::link(w.cred, &source.dentry.inode, &dir, name)
    })?;
    Ok(0)
}

fn unlink_at(dirfd: i32, path: u64, flags: u32) -> Result<u64, Errno> {
    if flags & !at::REMOVEDIR != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_path(path)?;
    let caller = Caller::now();
    caller.walk(dirfd, &path, |w| {
        if flags & at::REMOVEDIR != 0 {
            open::rmdir(w, &path)
        } else {
            open::unlink(w, &path)
        }
    })?;
    Ok(0)
}

fn rename_at(from_fd: i32, from: u64, to_fd: i32, to: u64, flags: u32) -> Result<u64, Errno> {
    let how = match flags {
        0 => RenameMode::Replace,
        1 => RenameMode::NoReplace,
        2 => RenameMode::Exchange,
        _ => return Err(Errno::EINVAL),
    };
    let (from, to) = (user_path(from)?, user_path(to)?);
    let caller = Caller::now();
    let (from_dir, from_last) = caller.walk(from_fd, &from, |w| w.parent(&from))?;
    let (to_dir, to_last) = caller.walk(to_fd, &to, |w| w.parent(&to))?;
    let (Last::Name(from_name, from_slash), Last::Name(to_name, to_slash)) = (from_last, to_last)
    else {
        return Err(Errno::EBUSY);
    };
    if from_dir.mount.id != to_dir.mount.id {
        return Err(Errno::EXDEV);
    }
    writable_dir(&from_dir)?;
    permitted(&caller.cred, &to_dir.dentry.inode, perm::WRITE | perm::EXEC)?;
    let gone = dentry::rename(
        Side {
            dir: &from_dir.dentry,
            name: from_name,
            slash: from_slash,
        },
        Side {
            dir: &to_dir.dentry,
            name: to_name,
            slash: to_slash,
        },
        how,
        &|dir, node| may_remove(&caller.cred, dir, node),
    )?;
    if let Some(gone) = gone {
        gone.inode.unlinked();
    }
    Ok(0)
}

fn readlink_at(dirfd: i32, path: u64, out: u64, size: i32) -> Result<u64, Errno> {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_path(path)?;
    let caller = Caller::now();
    let place = caller.find(dirfd, &path, at::EMPTY_PATH, Want::NOFOLLOW)?;
    if path.is_empty() && place.dentry.inode.kind() != mode::LNK {
        return Err(Errno::ENOENT);
    }
    let mut buf = IoBuf::user(out, size as usize);
    match &place.dentry.inode.node {
        Node::Link(text) => Ok(buf.put(text).map_err(fault)? as u64),
        Node::Dynamic(Dynamic::Link(link)) => {
            let mut text = Text::new();
            link.text(&mut text)?;
            Ok(buf.put(&text.finish()?).map_err(fault)? as u64)
        }
        _ => Err(Errno::EINVAL),
    }
}
