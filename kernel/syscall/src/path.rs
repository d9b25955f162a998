//! Calls on paths: making, linking, renaming and removing files, and changing their attributes.

use abi::raw::general as nr;
use cred::Cap;
use fscore::perm;
use hal::uaccess::UserPtr;
use hal::uio::IoBuf;
use vfs::attr::{Nanos, now};
use vfs::dynamic::{Dynamic, Text};
use vfs::error::FsError;
use vfs::inode::{Node, mode};
use vfs::notify::event::ev;
use vfs::notify::told;
use vfs::open::{self, writable_dir};
use vfs::place::{Path, flag as mount};
use vfs::rename::{self, RenameMode, Side};
use vfs::rights::{may_rename, owns, permitted};
use vfs::setattr::{self, NewMode};
use vfs::tmpfs::{self, What};
use vfs::walk::{Last, Walk, Want, child};

use super::errno::Errno;
use super::fsutil::{Caller, at, fault, user_path};
use crate::call::{Args, Handler};

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

fn set_mode(place: Option<&Path>, perm: u32) -> Result<u64, Errno> {
    // A file without a path, such as an anonymous pipe, keeps its mode: the call succeeds without effect.
    let Some(place) = place else {
        return Ok(0);
    };
    writable_dir(place)?;
    setattr::chmod(&Caller::now().cred, &place.dentry.inode, perm)?;
    told::tell(&place.dentry, ev::ATTRIB, false);
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
    writable_dir(place)?;
    let given = |id: u32| (id != u32::MAX).then_some(id);
    let cred = Caller::now().cred;
    let (uid, gid) = (given(uid), given(gid));
    setattr::chown(&cred, &place.dentry.inode, uid, gid)?;
    if uid.is_some() || gid.is_some() {
        told::tell(&place.dentry, ev::ATTRIB, false);
    }
    Ok(0)
}

/// Looks up the path of a call that changes attributes and takes the flags of fchownat(2).
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

/// A time stamp to be set. `Invalid` fails with EINVAL, but only once the file has been found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stamp {
    Omit,
    Now,
    At(Nanos),
    Invalid,
}

fn nanos(sec: i64, nsec: i64) -> Nanos {
    sec.saturating_mul(1_000_000_000).saturating_add(nsec)
}

/// Sets the times of a file. The owner may set any; another one that may write to the file may set both to the present time.
///
/// # Errors
/// EINVAL, EROFS; EACCES for the present times, EPERM for others.
fn set_times(place: &Path, stamps: [Stamp; 2]) -> Result<u64, Errno> {
    let cred = Caller::now().cred;
    let inode = &place.dentry.inode;
    if stamps.contains(&Stamp::Invalid) {
        return Err(Errno::EINVAL);
    }
    writable_dir(place)?;
    let own = owns(&cred, inode);
    if stamps == [Stamp::Now; 2] {
        if !own {
            permitted(&cred, inode, perm::WRITE)?;
        }
    } else if !own {
        return Err(Errno::EPERM);
    }
    let present = now();
    let [a, m] = stamps.map(|s| match s {
        Stamp::Omit | Stamp::Invalid => None,
        Stamp::Now => Some(present),
        Stamp::At(t) => Some(t),
    });
    inode.set_times(a, m);
    // As in Linux, to set one of the times looks like an access, or a write.
    let what = match (a, m) {
        (Some(_), Some(_)) => ev::ATTRIB,
        (Some(_), None) => ev::ACCESS,
        (None, _) => ev::MODIFY,
    };
    told::tell(&place.dentry, what, false);
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
                _ => Stamp::Invalid,
            };
        }
    }
    if stamps == [Stamp::Omit; 2] {
        // As on Linux, the call succeeds without looking the path up.
        return Ok(0);
    }
    stamp_at(dirfd, path, stamps, flags)
}

/// Sets the times of the file at a path, or of the open file `dirfd` where the path is a null pointer.
fn stamp_at(dirfd: i32, path: u64, stamps: [Stamp; 2], flags: u32) -> Result<u64, Errno> {
    if flags & !(at::SYMLINK_NOFOLLOW | at::EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    if path != 0 || dirfd == at::FDCWD {
        return set_times(&place_at(dirfd, path, flags)?, stamps);
    }
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let f = super::fsutil::real_file(dirfd)?;
    f.path
        .as_ref()
        .map_or(Ok(0), |place| set_times(place, stamps))
}

/// utimes and futimesat. `scale` is the number of nanoseconds in a unit of their second field.
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
    stamp_at(dirfd, path, stamps, 0)
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

/// Checks that no slash follows a name at which a file other than a directory is to be made.
///
/// # Errors
/// `Exists` if the name exists, `NotFound` if it does not.
fn no_slash(dir: &Path, name: &[u8], slash: bool) -> Result<(), FsError> {
    match slash {
        false => Ok(()),
        true => child(dir, name).and(Err(FsError::Exists)),
    }
}

/// Makes a file at a path whose last component does not exist yet.
///
/// # Errors
/// Those of the lookup; `Exists`.
fn make(walk: &Walk, text: &[u8], what: &What, new: NewMode) -> Result<(), FsError> {
    let (dir, last) = walk.parent(text)?;
    let Last::Name(name, slash) = last else {
        return Err(FsError::Exists);
    };
    no_slash(&dir, name, slash && !matches!(what, What::Dir))?;
    tmpfs::create(walk.cred, &dir, name, what, new).map(|_| ())
}

fn mkdir_at(dirfd: i32, path: u64, perm: u32) -> Result<u64, Errno> {
    let path = user_path(path)?;
    let caller = Caller::now();
    let new = caller.new_mode(perm & (0o777 | mode::STICKY));
    caller.walk(dirfd, &path, |w| make(w, &path, &What::Dir, new))?;
    Ok(0)
}

fn mknod_at(dirfd: i32, path: u64, bits: u32, rdev: u64) -> Result<u64, Errno> {
    let path = user_path(path)?;
    let caller = Caller::now();
    let what = match bits & mode::FMT {
        0 | mode::REG => What::File,
        mode::FIFO => What::Fifo,
        mode::SOCK => What::Socket,
        kind @ (mode::CHR | mode::BLK) if caller.cred.capable(Cap::Mknod) => {
            What::Device(kind, rdev)
        }
        mode::CHR | mode::BLK | mode::DIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    let new = caller.new_mode(bits);
    caller.walk(dirfd, &path, |w| make(w, &path, &what, new))?;
    Ok(0)
}

fn symlink_at(target: u64, dirfd: i32, path: u64) -> Result<u64, Errno> {
    let (target, path) = (user_path(target)?, user_path(path)?);
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let caller = Caller::now();
    caller.walk(dirfd, &path, |w| {
        make(w, &path, &What::Link(&target), NewMode::exact(0o777))
    })?;
    Ok(0)
}

fn link_at(from_fd: i32, from: u64, to_fd: i32, to: u64, flags: u32) -> Result<u64, Errno> {
    if flags & !(at::SYMLINK_FOLLOW | at::EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let caller = Caller::now();
    if flags & at::EMPTY_PATH != 0 && !caller.cred.capable(Cap::DacReadSearch) {
        // A descriptor alone must not give a name to a file that the caller cannot reach. Linux checks the capability
        // even if the path is not empty.
        return Err(Errno::ENOENT);
    }
    let from = user_path(from)?;
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
    let to = user_path(to)?;
    caller.walk(to_fd, &to, |w| {
        let (dir, last) = w.parent(&to)?;
        let Last::Name(name, slash) = last else {
            return Err(FsError::Exists);
        };
        no_slash(&dir, name, slash)?;
        let same = dir.mount.id == source.mount.id;
        tmpfs::link(w.cred, &source.dentry.inode, &dir, name, same)
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

/// renameat2(2). There is no RENAME_WHITEOUT. The errors are in Linux's order: lookups, EXDEV for two mounts, EBUSY or EEXIST
/// for a last component that is no name, EROFS, those of the names.
fn rename_at(from_fd: i32, from: u64, to_fd: i32, to: u64, flags: u32) -> Result<u64, Errno> {
    let how = match flags {
        0 => RenameMode::Replace,
        1 => RenameMode::NoReplace,
        2 => RenameMode::Exchange,
        _ => return Err(Errno::EINVAL),
    };
    let from = user_path(from)?;
    let caller = Caller::now();
    let (from_dir, from_last) = caller.walk(from_fd, &from, |w| w.parent(&from))?;
    let to = user_path(to)?;
    let (to_dir, to_last) = caller.walk(to_fd, &to, |w| w.parent(&to))?;
    if from_dir.mount.id != to_dir.mount.id {
        return Err(Errno::EXDEV);
    }
    let Last::Name(from_name, from_slash) = from_last else {
        return Err(Errno::EBUSY);
    };
    let (to_name, to_slash) = match to_last {
        Last::Name(name, slash) => (name, slash),
        _ if how == RenameMode::NoReplace => return Err(Errno::EEXIST),
        _ => return Err(Errno::EBUSY),
    };
    writable_dir(&from_dir)?;
    let gone = rename::rename(
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
        &|step| may_rename(&caller.cred, step),
    )?;
    if let Some(gone) = gone {
        gone.inode.unlinked();
    }
    Ok(0)
}

/// readlinkat(2). An empty path names the link that `dirfd` has been opened for (O_PATH). A text that is longer than `size` is
/// cut.
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
        Node::Link(text) => {
            if place.mount.flags() & mount::NOATIME == 0 {
                place.dentry.inode.touch_atime();
            }
            Ok(buf.put(text).map_err(fault)? as u64)
        }
        Node::Dynamic(Dynamic::Link(link)) => {
            let mut text = Text::new();
            link.text(&mut text)?;
            Ok(buf.put(&text.finish()?).map_err(fault)? as u64)
        }
        _ => Err(Errno::EINVAL),
    }
}
