//! mount, umount2, statfs.

use alloc::string::String;
use alloc::vec::Vec;

use abi::Errno;
use abi::raw::general as nr;

use super::fsutil::{Caller, at, fault, file, user_path};
use super::{Args, Handler};
use crate::fs::error::FsError;
use crate::fs::mount::{self, FsKind, Path, flag};
use crate::fs::walk::Want;
use crate::fs::{procfs, setup, sysfs, tmpfs};
use crate::uaccess::UserPtr;

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_mount, mount),
    (nr::__NR_umount2, umount),
    (nr::__NR_statfs, |a| {
        let path = user_path(a.get(0))?;
        let place = Caller::now()?.find(at::FDCWD, &path, 0, Want::FOLLOW)?;
        statfs(Some(&place), a.get(1))
    }),
    (nr::__NR_fstatfs, |a| {
        let f = file(a.int(0))?;
        statfs(f.path.as_ref(), a.get(1))
    }),
    (nr::__NR_ustat, |_| Err(Errno::EINVAL)),
];

fn optional(addr: u64) -> Result<Vec<u8>, Errno> {
    if addr == 0 {
        Ok(Vec::new())
    } else {
        user_path(addr)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn mount(a: &mut Args) -> Result<u64, Errno> {
    const MAGIC: u32 = 0xc0ed_0000;
    let mut flags = a.get(3) as u32;
    if flags & 0xffff_0000 == MAGIC {
        flags &= 0xffff;
    }
    let target = user_path(a.get(1))?;
    let caller = Caller::now()?;
    if !caller.cred.privileged() {
        return Err(Errno::EPERM);
    }
    let want = if flags & flag::BIND != 0 {
        Want::FOLLOW
    } else {
        Want::DIRECTORY
    };
    if flags & (flag::SHARED | flag::PRIVATE | flag::SLAVE | flag::UNBINDABLE) != 0 {
        // There is one namespace and no propagation, so every mount is private.
        let place = caller.find(at::FDCWD, &target, 0, Want::FOLLOW)?;
        let private = flags & (flag::SHARED | flag::SLAVE) == 0;
        return if is_root(&place) && private {
            Ok(0)
        } else {
            Err(Errno::EINVAL)
        };
    }
    if flags & flag::REMOUNT != 0 {
        let place = caller.find(at::FDCWD, &target, 0, Want::FOLLOW)?;
        if !is_root(&place) {
            return Err(Errno::EINVAL);
        }
        mount::remount(&place.mount, flags);
        return Ok(0);
    }
    if flags & flag::MOVE != 0 {
        return Err(Errno::EINVAL);
    }
    let source = optional(a.get(0))?;
    if flags & flag::BIND != 0 {
        return bind(&caller, &source, &target, flags);
    }
    let kind = optional(a.get(2))?;
    let over = caller.find(at::FDCWD, &target, 0, want)?;
    let options = optional(a.get(4))?;
    let fs = match &kind[..] {
        b"tmpfs" | b"ramfs" => tmpfs::new_super(FsKind::Tmpfs, root_mode(&options)?)?,
        b"devtmpfs" => setup::devices()?,
        b"proc" => procfs::new_super()?,
        b"sysfs" => sysfs::new_super()?,
        _ => return Err(Errno::ENODEV),
    };
    let top = fs.root.clone();
    mount::attach(fs, top, Some(over), text(&source), flags)?;
    Ok(0)
}

fn is_root(place: &Path) -> bool {
    alloc::sync::Arc::ptr_eq(&place.mount.root, &place.dentry)
}

/// The permissions of a new tmpfs's root; other options of tmpfs set limits, which are accepted
/// and have no effect, for memory is the only limit.
fn root_mode(options: &[u8]) -> Result<u32, Errno> {
    let mut mode = 0o1777;
    for option in options.split(|&b| b == b',') {
        if let Some(digits) = option.strip_prefix(b"mode=") {
            let digits = core::str::from_utf8(digits).map_err(|_| Errno::EINVAL)?;
            mode = u32::from_str_radix(digits, 8).map_err(|_| Errno::EINVAL)?;
        }
    }
    if mode > 0o7777 {
        Err(Errno::EINVAL)
    } else {
        Ok(mode)
    }
}

fn bind(caller: &Caller, source: &[u8], target: &[u8], flags: u32) -> Result<u64, Errno> {
    let from = caller.find(at::FDCWD, source, 0, Want::FOLLOW)?;
    let over = caller.find(at::FDCWD, target, 0, Want::FOLLOW)?;
    if from.dentry.inode.is_dir() != over.dentry.inode.is_dir() {
        return Err(Errno::ENOTDIR);
    }
    let _ = flags;
    let (fs, source) = (from.mount.fs.clone(), from.mount.source.clone());
    mount::attach(
        fs,
        from.dentry.clone(),
        Some(over),
        source,
        from.mount.flags(),
    )?;
    Ok(0)
}

fn umount(a: &mut Args) -> Result<u64, Errno> {
    const FORCE: u32 = 1;
    const DETACH: u32 = 2;
    const EXPIRE: u32 = 4;
    const NOFOLLOW: u32 = 8;
    let flags = a.uint(1);
    let bad = flags & !(FORCE | DETACH | EXPIRE | NOFOLLOW) != 0;
    if bad || flags & EXPIRE != 0 && flags & (FORCE | DETACH) != 0 {
        return Err(Errno::EINVAL);
    }
    let path = user_path(a.get(0))?;
    let caller = Caller::now()?;
    if !caller.cred.privileged() {
        return Err(Errno::EPERM);
    }
    let follow = flags & NOFOLLOW == 0;
    let place = caller.find(
        at::FDCWD,
        &path,
        0,
        Want {
            follow,
            directory: false,
        },
    )?;
    if !is_root(&place) {
        return Err(Errno::EINVAL);
    }
    if flags & EXPIRE != 0 {
        // Nothing marks mounts as unused yet, so the first of the two calls never ends.
        return Err(Errno::EAGAIN);
    }
    // A working directory in the mount holds it; `place` itself is one more reference.
    let detach = || mount::detach(&place.mount, 1, flags & DETACH != 0);
    if detach() == Err(FsError::Busy) {
        // Old tables and mounts that have just gone may hold it until readers have left them.
        crate::fs::epoch().drain();
        detach()?;
    }
    Ok(0)
}

/// Writes struct statfs.
fn statfs(place: Option<&Path>, out: u64) -> Result<u64, Errno> {
    const PIPEFS: u64 = 0x5049_5045;
    let (magic, dev, flags) = match place {
        Some(p) => (p.mount.fs.kind.magic(), p.mount.fs.dev, p.mount.flags()),
        None => (PIPEFS, 1, 0),
    };
    let (mut blocks, mut free) = (0, 0);
    if place.is_some_and(|p| matches!(p.mount.fs.kind, FsKind::Tmpfs | FsKind::Devtmpfs)) {
        let alloc = &crate::mm::vm().alloc;
        (blocks, free) = (alloc.total_pages() as u64, alloc.free_pages() as u64);
    }
    const VALID: u64 = 0x20;
    // mount(2) and statfs(2) number these alike, but for relatime.
    let shown = u64::from(flags & (flag::RDONLY | flag::NOSUID | flag::NODEV | flag::NOEXEC));
    let raw: [u64; 15] = [
        magic,
        4096,
        blocks,
        free,
        free,
        0,
        0,
        dev,
        255,
        4096,
        VALID | shown,
        0,
        0,
        0,
        0,
    ];
    UserPtr::<[u64; 15]>::new(out).write(&raw).map_err(fault)?;
    Ok(0)
}
