//! Flags, commands and options of calls on open files and on mounts.

use super::{Here, apart, limited};
use crate::harness::*;
use user::sys;

fn size(fd: i32) -> Result<i64, i32> {
    let mut stat = sys::zeroed_stat();
    sc!(SYS_fstat, fd, &raw mut stat)?;
    Ok(stat.st_size)
}

/// Whether `flag` can be set and is then reported by F_GETFL.
fn status(fd: i32, flag: i32) -> Result<bool, i32> {
    sc!(SYS_fcntl, fd, libc::F_SETFL, flag)?;
    let on = sc!(SYS_fcntl, fd, libc::F_GETFL)? as i32 & flag == flag;
    sc!(SYS_fcntl, fd, libc::F_SETFL, 0)?;
    Ok(on && sc!(SYS_fcntl, fd, libc::F_GETFL)? as i32 & flag == 0)
}

/// Whether a fresh pipe has both flags on both ends.
fn pipe_with(flags: i32, command: i32, seen: u64) -> Result<bool, i32> {
    let (from, to) = sys::pipe(flags)?;
    let both = [from, to].map(|fd| sc!(SYS_fcntl, fd, command));
    sys::close(from)?;
    sys::close(to)?;
    Ok(both
        .iter()
        .all(|got| got.is_ok_and(|bits| bits & seen == seen)))
}

/// Whether a lock of kind `mine` lets another process or open file take one of kind `theirs`.
fn lets(h: &Here, set: i32, mine: i32, theirs: i32) -> Result<u64, i32> {
    let lock = |fd: i32, kind: i32| sc!(SYS_fcntl, fd, set, [kind as u64, 0, 0, 0].as_mut_ptr());
    lock(h.fd, mine)?;
    apart(|| {
        let other = h.open("f", libc::O_RDWR)?;
        lock(other, theirs).map(|_| ()).map_or_else(
            |e| if e == libc::EAGAIN { Ok(false) } else { Err(e) },
            |()| Ok(true),
        )
    })
}

/// The result of a call on a mount with a flag.
fn mount_flag(
    h: &Here,
    flag: u64,
    errno: i32,
    f: impl FnOnce() -> Result<u64, i32>,
) -> Result<bool, i32> {
    h.mounted(flag, || Ok(u64::from(f() == Err(errno))))
        .map(|same| same == 1)
}

/// Whether an advice or a mode is accepted.
fn advice(h: &Here, advice: i32) -> Result<u64, i32> {
    sc!(SYS_fadvise64, h.fd, 0, 0, advice)
}

flags! {
    close_range CLOSE_RANGE_CLOEXEC |h| { sc!(SYS_close_range, h.fd, h.fd, 4)?; Ok(sc!(SYS_fcntl, h.fd, libc::F_GETFD)? == 1) };
    close_range CLOSE_RANGE_UNSHARE |h| apart(|| { sc!(SYS_close_range, h.fd, h.fd, 2)?; Ok(sys::close(h.fd) == Err(libc::EBADF)) });
    dup3 O_CLOEXEC |h| { let fd = sc!(SYS_dup3, h.fd, 77, libc::O_CLOEXEC)?; Ok(sc!(SYS_fcntl, fd, libc::F_GETFD)? == 1 && sys::close(77).is_ok()) };
    eventfd2 EFD_CLOEXEC |_| { let fd = sc!(SYS_eventfd2, 0, libc::EFD_CLOEXEC)?; Ok(sc!(SYS_fcntl, fd, libc::F_GETFD)? == 1 && sys::close(fd as i32).is_ok()) };
    eventfd2 EFD_NONBLOCK |_| { let fd = sc!(SYS_eventfd2, 0, libc::EFD_NONBLOCK)? as i32; let got = sys::read(fd, &mut [0; 8]); sys::close(fd)?; Ok(got == Err(libc::EAGAIN)) };
    eventfd2 EFD_SEMAPHORE |_| { let fd = sc!(SYS_eventfd2, 5, libc::EFD_SEMAPHORE)? as i32; let mut one = [0; 8]; sys::read(fd, &mut one)?; sys::close(fd)?; Ok(one[0] == 1) };
    fadvise64 POSIX_FADV_DONTNEED |h| advice(h, libc::POSIX_FADV_DONTNEED);
    fadvise64 POSIX_FADV_NOREUSE |h| advice(h, libc::POSIX_FADV_NOREUSE);
    fadvise64 POSIX_FADV_NORMAL |h| advice(h, libc::POSIX_FADV_NORMAL);
    fadvise64 POSIX_FADV_RANDOM |h| advice(h, libc::POSIX_FADV_RANDOM);
    fadvise64 POSIX_FADV_SEQUENTIAL |h| advice(h, libc::POSIX_FADV_SEQUENTIAL);
    fadvise64 POSIX_FADV_WILLNEED |h| advice(h, libc::POSIX_FADV_WILLNEED);
    fallocate FALLOC_FL_KEEP_SIZE |h| { sc!(SYS_fallocate, h.fd, libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 14)?; Ok(size(h.fd)? == 10) };
    fallocate FALLOC_FL_PUNCH_HOLE |h| { sc!(SYS_fallocate, h.fd, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 5)?; let mut bytes = [9; 6]; sc!(SYS_pread64, h.fd, bytes.as_mut_ptr(), 6, 0)?; Ok(bytes == *b"\0\0\0\0\x005") };
    fcntl F_DUPFD |h| { let fd = sc!(SYS_fcntl, h.fd, libc::F_DUPFD, 70)?; Ok(fd >= 70 && sc!(SYS_fcntl, fd, libc::F_GETFD)? == 0 && sys::close(fd as i32).is_ok()) };
    fcntl F_DUPFD_CLOEXEC |h| { let fd = sc!(SYS_fcntl, h.fd, libc::F_DUPFD_CLOEXEC, 70)?; Ok(sc!(SYS_fcntl, fd, libc::F_GETFD)? == 1 && sys::close(fd as i32).is_ok()) };
    fcntl F_GETFL |h| Ok(sc!(SYS_fcntl, h.reader, libc::F_GETFL)? & 3 == libc::O_RDONLY as u64 && sc!(SYS_fcntl, h.fd, libc::F_GETFL)? & 3 == libc::O_RDWR as u64);
    fcntl F_GETLK |h| { let mut raw = [1u64, 0, 0, 0]; sc!(SYS_fcntl, h.fd, libc::F_GETLK, raw.as_mut_ptr())?; Ok(raw[0] as u16 == libc::F_UNLCK as u16) };
    fcntl F_GETPIPE_SZ |h| Ok(sc!(SYS_fcntl, h.to, libc::F_GETPIPE_SZ)? == 65_536);
    fcntl F_OFD_GETLK |h| { let mut raw = [1u64, 0, 0, 0]; sc!(SYS_fcntl, h.fd, libc::F_OFD_GETLK, raw.as_mut_ptr())?; Ok(raw[0] as u16 == libc::F_UNLCK as u16) };
    fcntl F_OFD_SETLK |h| lets(h, libc::F_OFD_SETLK, libc::F_WRLCK, libc::F_RDLCK).map_or_else(|e| Ok(e == super::UNTRUE), |_| Ok(false));
    fcntl F_OFD_SETLKW |h| lets(h, libc::F_OFD_SETLKW, libc::F_RDLCK, libc::F_RDLCK);
    fcntl F_SETFD |h| { sc!(SYS_fcntl, h.fd, libc::F_SETFD, 1)?; Ok(sc!(SYS_fcntl, h.fd, libc::F_GETFD)? == 1) };
    fcntl F_SETLK |h| lets(h, libc::F_SETLK, libc::F_RDLCK, libc::F_WRLCK).map_or_else(|e| Ok(e == super::UNTRUE), |_| Ok(false));
    fcntl F_SETLKW |h| lets(h, libc::F_SETLKW, libc::F_RDLCK, libc::F_RDLCK);
    fcntl F_SETPIPE_SZ |h| Ok(sc!(SYS_fcntl, h.to, libc::F_SETPIPE_SZ, 5000)? == 8192 && sc!(SYS_fcntl, h.from, libc::F_GETPIPE_SZ)? == 8192);
    fcntl F_UNLCK |h| { sc!(SYS_fcntl, h.fd, libc::F_SETLK, [1u64, 0, 0, 0].as_ptr())?; lets(h, libc::F_SETLK, libc::F_UNLCK, libc::F_WRLCK) };
    fcntl O_APPEND |h| status(h.fd, libc::O_APPEND);
    fcntl O_ASYNC |h| status(h.from, libc::O_ASYNC);
    fcntl O_NOATIME |h| status(h.fd, libc::O_NOATIME);
    fcntl O_NONBLOCK |h| status(h.from, libc::O_NONBLOCK);
    flock LOCK_EX |h| { sc!(SYS_flock, h.fd, libc::LOCK_EX)?; Ok(sc!(SYS_flock, h.reader, libc::LOCK_EX | libc::LOCK_NB) == Err(libc::EAGAIN)) };
    flock LOCK_NB |h| sc!(SYS_flock, h.fd, libc::LOCK_EX | libc::LOCK_NB);
    flock LOCK_SH |h| { sc!(SYS_flock, h.fd, libc::LOCK_SH)?; sc!(SYS_flock, h.reader, libc::LOCK_SH | libc::LOCK_NB) };
    flock LOCK_UN |h| { sc!(SYS_flock, h.fd, libc::LOCK_EX)?; sc!(SYS_flock, h.fd, libc::LOCK_UN)?; sc!(SYS_flock, h.reader, libc::LOCK_EX | libc::LOCK_NB) };
    getrandom GRND_INSECURE |_| Ok(sc!(SYS_getrandom, [0u8; 8].as_mut_ptr(), 8, libc::GRND_INSECURE)? == 8);
    getrandom GRND_NONBLOCK |_| Ok(sc!(SYS_getrandom, [0u8; 8].as_mut_ptr(), 8, libc::GRND_NONBLOCK)? == 8);
    getrandom GRND_RANDOM |_| Ok(sc!(SYS_getrandom, [0u8; 8].as_mut_ptr(), 8, libc::GRND_RANDOM)? == 8);
    ioctl FIOASYNC |h| sc!(SYS_ioctl, h.from, libc::FIOASYNC, [0u32].as_ptr());
    ioctl FIOCLEX |h| { sc!(SYS_ioctl, h.fd, libc::FIOCLEX)?; Ok(sc!(SYS_fcntl, h.fd, libc::F_GETFD)? == 1) };
    ioctl FIONBIO |h| { sc!(SYS_ioctl, h.from, libc::FIONBIO, [1u32].as_ptr())?; Ok(sys::read(h.from, &mut [0]) == Err(libc::EAGAIN)) };
    ioctl FIONCLEX |h| { sc!(SYS_ioctl, h.fd, libc::FIOCLEX)?; sc!(SYS_ioctl, h.fd, libc::FIONCLEX)?; Ok(sc!(SYS_fcntl, h.fd, libc::F_GETFD)? == 0) };
    ioctl FIONREAD |h| { sys::write(h.to, b"abc")?; let mut n = 0u32; sc!(SYS_ioctl, h.from, libc::FIONREAD, &raw mut n)?; Ok(n == 3) };
    lseek SEEK_CUR |h| { sc!(SYS_lseek, h.fd, 4, libc::SEEK_SET)?; Ok(sc!(SYS_lseek, h.fd, -1i64, libc::SEEK_CUR)? == 3) };
    lseek SEEK_DATA |h| Ok(sc!(SYS_lseek, h.fd, 3, libc::SEEK_DATA)? == 3);
    lseek SEEK_END |h| Ok(sc!(SYS_lseek, h.fd, -1i64, libc::SEEK_END)? == 9);
    lseek SEEK_HOLE |h| Ok(sc!(SYS_lseek, h.fd, 3, libc::SEEK_HOLE)? == 10);
    lseek SEEK_SET |h| Ok(sc!(SYS_lseek, h.fd, 20, libc::SEEK_SET)? == 20);
    mount MS_BIND |h| { sc!(SYS_mount, h.p("full"), h.p("m"), 0, libc::MS_BIND, 0)?; let seen = sc!(SYS_access, h.p("m/x"), 0); sc!(SYS_umount2, h.p("m"), 0)?; seen };
    mount MS_NODEV |h| mount_flag(h, libc::MS_NODEV, libc::EACCES, || { sc!(SYS_mknod, h.p("m/null"), libc::S_IFCHR | 0o666, 0x103)?; sc!(SYS_open, h.p("m/null"), 0, 0) });
    mount MS_NOEXEC |h| mount_flag(h, libc::MS_NOEXEC, libc::EACCES, || { sc!(SYS_chmod, h.p("m/f"), 0o755)?; sc!(SYS_access, h.p("m/f"), libc::X_OK) });
    mount MS_NOSUID |h| h.mounted(libc::MS_NOSUID, || { let mut raw = [0u64; 15]; sc!(SYS_statfs, h.p("m"), raw.as_mut_ptr())?; Ok(u64::from(raw[10] & 2 == 2)) }).map(|set| set == 1);
    mount MS_RDONLY |h| mount_flag(h, libc::MS_RDONLY, libc::EROFS, || sc!(SYS_open, h.p("m/f"), libc::O_WRONLY, 0));
    mount MS_REMOUNT |h| mount_flag(h, libc::MS_RDONLY, libc::EROFS, || { sc!(SYS_mount, 0, h.p("m"), 0, libc::MS_REMOUNT, 0)?; sc!(SYS_mkdir, h.p("m/x"), 0o700)?; Err(libc::EROFS) });
    pipe2 O_CLOEXEC |_| pipe_with(libc::O_CLOEXEC, libc::F_GETFD, 1);
    pipe2 O_NONBLOCK |_| pipe_with(libc::O_NONBLOCK, libc::F_GETFL, libc::O_NONBLOCK as u64);
    preadv2 OFFSET_MINUS_ONE |h| { let byte = [0u8]; sc!(SYS_lseek, h.fd, 3, 0)?; sc!(SYS_preadv2, h.fd, [byte.as_ptr() as u64, 1].as_ptr(), 1, -1i64, 0, 0)?; Ok(sc!(SYS_lseek, h.fd, 0, libc::SEEK_CUR)? == 4) };
    preadv2 RWF_HIPRI |h| { let byte = [0u8]; sc!(SYS_preadv2, h.fd, [byte.as_ptr() as u64, 1].as_ptr(), 1, 0, 0, 1) };
    pwritev2 RWF_APPEND |h| { sc!(SYS_pwritev2, h.fd, [b"x".as_ptr() as u64, 1].as_ptr(), 1, 0, 0, 16)?; Ok(size(h.fd)? == 11) };
    pwritev2 RWF_DSYNC |h| sc!(SYS_pwritev2, h.fd, [b"x".as_ptr() as u64, 1].as_ptr(), 1, 0, 0, 2);
    pwritev2 RWF_SYNC |h| sc!(SYS_pwritev2, h.fd, [b"x".as_ptr() as u64, 1].as_ptr(), 1, 0, 0, 4);
    sync_file_range SYNC_FILE_RANGE_WAIT_AFTER |h| sc!(SYS_sync_file_range, h.fd, 0, 0, 4);
    sync_file_range SYNC_FILE_RANGE_WAIT_BEFORE |h| sc!(SYS_sync_file_range, h.fd, 0, 0, 1);
    sync_file_range SYNC_FILE_RANGE_WRITE |h| sc!(SYS_sync_file_range, h.fd, 0, 0, 2);
    umount2 MNT_DETACH |h| h.mounted(0, || { let fd = h.open("m/f", 0)?; sc!(SYS_umount2, h.p("m"), libc::MNT_DETACH)?; let kind = path("tmpfs"); sc!(SYS_mount, kind, h.p("m"), kind, 0, 0)?; sys::close(fd) });
    umount2 MNT_FORCE |h| h.mounted(0, || { sc!(SYS_umount2, h.p("m"), libc::MNT_FORCE)?; let kind = path("tmpfs"); sc!(SYS_mount, kind, h.p("m"), kind, 0, 0) });
    umount2 UMOUNT_NOFOLLOW |h| Ok(sc!(SYS_umount2, h.p("loop"), libc::UMOUNT_NOFOLLOW) == Err(libc::EINVAL));
    write RLIMIT_FSIZE |h| limited(libc::RLIMIT_FSIZE, 5, || { sc!(SYS_lseek, h.fd, 0, 0)?; Ok(sys::write(h.fd, b"0123456789")? == 5) });
}
