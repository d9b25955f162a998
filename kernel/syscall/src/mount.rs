//! mount(2), umount2(2), statfs(2), fstatfs(2), ustat(2).

use alloc::string::String;
use alloc::vec::Vec;

use abi::raw::general as nr;
use cred::Cap;
use fs::{devpts, procfs, sysfs};
use hal::uaccess::UserPtr;
use proc::ids;
use tty::pts::{self, Options};
use vfs::error::FsError;
use vfs::mount;
use vfs::place::{Mount, Path, flag};
use vfs::quota;
use vfs::superblock::FsKind;
use vfs::tmpfs::{self, Settings};
use vfs::walk::Want;
use vm::Quota;

use super::credentials::require;
use super::errno::Errno;
use super::fsutil::{Caller, at, fault, file, user_path};
use crate::call::{Args, Handler};

/// The calls of this file.
pub const HANDLERS: &[(u32, Handler)] = &[
    (nr::__NR_mount, mount),
    (nr::__NR_umount2, umount),
    (nr::__NR_statfs, |a| {
        let path = user_path(a.get(0))?;
        let place = Caller::now().find(at::FDCWD, &path, 0, Want::FOLLOW)?;
        statfs(Some(&place), a.get(1))
    }),
    (nr::__NR_fstatfs, |a| {
        let f = file(a.int(0))?;
        statfs(f.path.as_ref(), a.get(1))
    }),
    (nr::__NR_ustat, ustat),
];

fn optional(addr: u64) -> Result<Vec<u8>, Errno> {
    if addr == 0 {
        Ok(Vec::new())
    } else {
        user_path(addr)
    }
}

/// The text of a path from user memory, for the mount tables. Bytes that are no UTF-8 are left out.
fn text(bytes: &[u8]) -> Result<String, Errno> {
    let mut text = String::new();
    text.try_reserve_exact(bytes.len())
        .map_err(|_| Errno::ENOMEM)?;
    bytes
        .utf8_chunks()
        .for_each(|chunk| text.push_str(chunk.valid()));
    Ok(text)
}

/// mount(2), for callers with CAP_SYS_ADMIN. There is no MS_MOVE.
fn mount(a: &mut Args) -> Result<u64, Errno> {
    const MAGIC: u32 = 0xc0ed_0000;
    let mut flags = a.get(3) as u32;
    // Programs from before Linux 2.4 put this number into the upper half.
    if flags & 0xffff_0000 == MAGIC {
        flags &= 0xffff;
    }
    let target = user_path(a.get(1))?;
    let caller = Caller::now();
    require(&caller.cred, Cap::SysAdmin)?;
    let want = if flags & flag::BIND != 0 {
        Want::FOLLOW
    } else {
        Want::DIRECTORY
    };
    if flags & (flag::SHARED | flag::PRIVATE | flag::SLAVE | flag::UNBINDABLE) != 0 {
        // There is one namespace and mounts do not propagate: every mount is private, and can become neither shared
        // nor slave.
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
        return remount(&place.mount, flags, a.get(4));
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
        b"tmpfs" => {
            let usual = Some(quota::default_limit());
            tmpfs::new_super(FsKind::Tmpfs, tmpfs_settings(&options, usual)?)?
        }
        b"ramfs" => tmpfs::new_super(FsKind::Tmpfs, tmpfs_settings(&options, None)?)?,
        b"devtmpfs" => vfs::devices::nodes()?,
        b"devpts" => devpts::new_super(devpts_options(&options)?)?,
        b"proc" => procfs::new_super()?,
        b"sysfs" => sysfs::new_super()?,
        _ => return Err(Errno::ENODEV),
    };
    let top = fs.root.clone();
    mount::attach(fs, top, Some(over), text(&source)?, flags)?;
    Ok(0)
}

/// MS_REMOUNT: new flags, for a tmpfs new limits, and for a devpts new options. `options` is an address of the program, or 0. Nothing has changed if it
/// fails.
///
/// # Errors
/// EINVAL for options that are wrong or leave no room for what is there; EBUSY if the mount is to be read-only, and a file is
/// open for writing.
fn remount(on: &Mount, flags: u32, options: u64) -> Result<u64, Errno> {
    let fs = &on.fs;
    let settings = if fs.kind == FsKind::Tmpfs {
        Some(tmpfs_settings(&optional(options)?, None)?)
    } else {
        None
    };
    let of_terminals = match devpts::terminals(fs) {
        Some(terminals) => Some((terminals, devpts_options(&optional(options)?)?)),
        None => None,
    };
    if flags & flag::RDONLY != 0 && is_written(on) {
        return Err(Errno::EBUSY);
    }
    if let Some(settings) = settings {
        resize(fs.quota, settings.limit, fs.inodes, settings.inodes)?;
    }
    if let Some((terminals, options)) = of_terminals {
        terminals.set_options(options);
    }
    mount::remount(on, flags);
    Ok(0)
}

/// Whether a process has a file of a mount open for writing. A file that is opened during the search may be missed.
fn is_written(on: &Mount) -> bool {
    let mut found = false;
    ids::each_process(1, |p| {
        let mut from = 0;
        while let Some((at, file)) = p.next_open_file(from) {
            let here = file
                .path
                .as_ref()
                .is_some_and(|path| path.mount.id == on.id);
            found |= here && file.writable();
            from = at + 1;
        }
        !found
    });
    found
}

fn is_root(place: &Path) -> bool {
    alloc::sync::Arc::ptr_eq(&place.mount.root, &place.dentry)
}

/// Changes the limits of a file system to those given, in pages and in inodes. On failure neither changes, unless
/// files have grown beyond the old limit of pages meanwhile.
fn resize(
    pages: Option<&'static Quota>,
    page_limit: Option<u64>,
    inodes: Option<&'static Quota>,
    inode_limit: Option<u64>,
) -> Result<(), FsError> {
    let before = pages.map(Quota::limit);
    if let (Some(pages), Some(limit)) = (pages, page_limit) {
        quota::resize(pages, limit)?;
    }
    if let (Some(inodes), Some(limit)) = (inodes, inode_limit)
        && let Err(error) = quota::resize(inodes, limit)
    {
        if let (Some(pages), Some(before)) = (pages, before) {
            // Fails if more pages are in use by now than the old limit allows; then the new limit stays.
            let _ = quota::resize(pages, before);
        }
        return Err(error);
    }
    Ok(())
}

/// The mount options: names and values, which are empty for those without one.
fn each_option(options: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let options = options.split(|&b| b == b',');
    options.map(|option| match option.iter().position(|&b| b == b'=') {
        Some(at) => (&option[..at], &option[at + 1..]),
        None => (option, &[][..]),
    })
}

/// The number that the value of an option is. EINVAL if it is none.
fn number(value: &[u8], radix: u32) -> Result<u32, Errno> {
    let digits = core::str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
    u32::from_str_radix(digits, radix).map_err(|_| Errno::EINVAL)
}

/// Parses the mount options of a devpts. Each mount is a new instance, so `newinstance` asks for what is done anyway.
///
/// # Errors
/// EINVAL for other options, and for values out of bounds.
fn devpts_options(options: &[u8]) -> Result<Options, Errno> {
    let mut found = Options::default();
    for (name, value) in each_option(options) {
        match name {
            b"uid" => found.uid = Some(number(value, 10)?),
            b"gid" => found.gid = Some(number(value, 10)?),
            b"mode" => found.mode = number(value, 8)? & 0o7777,
            b"ptmxmode" => found.ptmx_mode = number(value, 8)? & 0o7777,
            b"max" => found.max = number(value, 10)?,
            b"" | b"newinstance" => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    match found.max {
        0..=pts::MOST => Ok(found),
        _ => Err(Errno::EINVAL),
    }
}

/// Parses the mount options of a tmpfs. `limit` is the limit of pages, and of inodes, where the options give none.
/// Options of Linux that make no difference in this kernel are accepted and ignored.
///
/// # Errors
/// EINVAL for other options, and for values out of bounds.
fn tmpfs_settings(options: &[u8], limit: Option<u64>) -> Result<Settings, Errno> {
    let mut settings = Settings {
        limit,
        inodes: limit,
        ..Settings::new(0o1777)
    };
    let suffixed = |value: &[u8]| {
        let text = core::str::from_utf8(value).ok();
        text.and_then(quota::parse_number).ok_or(Errno::EINVAL)
    };
    for (name, value) in each_option(options) {
        match name {
            b"mode" => settings.root.perm = number(value, 8)?,
            b"uid" => settings.root.uid = number(value, 10)?,
            b"gid" => settings.root.gid = number(value, 10)?,
            b"size" => settings.limit = Some(quota::parse_size(value).ok_or(Errno::EINVAL)?),
            b"nr_blocks" => settings.limit = Some(suffixed(value)?),
            b"nr_inodes" => settings.inodes = Some(suffixed(value)?),
            b"" | b"inode32" | b"inode64" | b"huge" | b"mpol" => {}
            _ => return Err(Errno::EINVAL),
        }
    }
    // A limit of zero means that there is none.
    settings.limit = settings.limit.filter(|&pages| pages != 0);
    settings.inodes = settings.inodes.filter(|&files| files != 0);
    if settings.root.perm > 0o7777 {
        Err(Errno::EINVAL)
    } else {
        Ok(settings)
    }
}

/// MS_BIND: mounts what `source` names at `target`, with the flags of its own mount: as on Linux, those of the call have no
/// effect. Mounts below it are not bound, also with MS_REC.
///
/// # Errors
/// ENOTDIR if one is a directory and the other is not; those of the lookups, and of the mount.
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

/// umount2(2), for callers with CAP_SYS_ADMIN. MNT_FORCE has no effect. EBUSY only if the mount is still in use after a
/// grace period, for which it sleeps.
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
    let caller = Caller::now();
    require(&caller.cred, Cap::SysAdmin)?;
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
        // MNT_EXPIRE needs two calls: the first marks an unused mount and fails with EAGAIN. Mounts cannot be marked,
        // so each call fails as the first one does.
        return Err(Errno::EAGAIN);
    }
    // A reference to the mount, such as that of a working directory, makes it busy; `place` is one reference that
    // does not count.
    let detach = || mount::detach(&place.mount, 1, flags & DETACH != 0);
    if detach() == Err(FsError::Busy) {
        // Tables and mounts that were just freed keep references until the end of a grace period.
        mem::epoch().drain();
        detach()?;
    }
    Ok(0)
}

/// Writes the struct statfs of the file system of `place`, or of an anonymous pipe or socket, to user memory at
/// `out`.
fn statfs(place: Option<&Path>, out: u64) -> Result<u64, Errno> {
    const PIPEFS: u64 = 0x5049_5045;
    let (magic, dev, flags) = match place {
        Some(p) => (p.mount.fs.kind.magic(), p.mount.fs.dev, p.mount.flags()),
        None => (PIPEFS, 1, 0),
    };
    // As on Linux, a file system without a limit shows a size of zero.
    let (blocks, free) = place
        .and_then(|p| p.mount.fs.quota)
        .map_or((0, 0), |quota| (quota.limit(), quota.left()));
    let (files, files_free) = place
        .and_then(|p| p.mount.fs.inodes)
        .map_or((0, 0), |quota| (quota.limit(), quota.left()));
    const VALID: u64 = 0x20;
    // These flags have the same bits in mount(2) and statfs(2).
    let shown = u64::from(flags & (flag::RDONLY | flag::NOSUID | flag::NODEV | flag::NOEXEC));
    let raw: [u64; 15] = [
        magic,
        4096,
        blocks,
        free,
        free,
        files,
        files_free,
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

/// ustat(2): free blocks and inodes of the mounted file system with a device number.
fn ustat(a: &mut Args) -> Result<u64, Errno> {
    let mut free = None;
    mount::for_each(|m| {
        if m.fs.dev == u64::from(a.uint(0)) {
            free = Some([m.fs.quota, m.fs.inodes].map(|quota| quota.map_or(0, Quota::left)));
        }
        Ok(())
    })?;
    // Free blocks, free inodes, and two names, which Linux leaves empty.
    let [blocks, inodes] = free.ok_or(Errno::EINVAL)?;
    let raw = [blocks, inodes, 0, 0];
    UserPtr::<[u64; 4]>::new(a.get(1))
        .write(&raw)
        .map_err(fault)?;
    Ok(0)
}
