//! Open files: reading, writing, duplicating, locks, mounts.

use super::{BAD, Here, NONE, apart, interrupted, limited, long, no_descriptors, nobody};
use crate::harness::*;
use user::sys;

/// A full nonblocking pipe.
fn full(h: &Here) -> Result<i32, i32> {
    sc!(SYS_fcntl, h.to, libc::F_SETFL, libc::O_NONBLOCK)?;
    while sys::write(h.to, &[0; 4096]).is_ok() {}
    Ok(h.to)
}

/// An eventfd.
fn counter() -> Result<u64, i32> {
    sc!(SYS_eventfd2, 0, libc::EFD_NONBLOCK)
}

/// Ranges for reading and writing.
fn ranges() -> Vec<u64> {
    let byte = Box::leak(Box::new([0u8]));
    vec![byte.as_mut_ptr() as u64, 1]
}

/// Runs `f` in a child with a file size limit of five bytes, and with SIGXFSZ ignored.
fn small<T: super::Answer>(f: impl FnOnce() -> Result<T, i32>) -> Result<u64, i32> {
    limited(libc::RLIMIT_FSIZE, 5, || {
        sys::on_signal(libc::SIGXFSZ, libc::SIG_IGN, 0)?;
        f()
    })
}

/// fcntl's locks: a struct flock on the whole file.
fn lock(fd: i32, command: i32, kind: i32) -> Result<u64, i32> {
    sc!(SYS_fcntl, fd, command, [kind as u64, 0, 0, 0].as_mut_ptr())
}

/// Runs `f` in a child while the parent has a lock.
fn locked(h: &Here, f: impl FnOnce() -> Result<u64, i32>) -> Result<u64, i32> {
    lock(h.fd, libc::F_SETLK, libc::F_WRLCK)?;
    apart(f)
}

/// The parent waits for the child's byte while the child waits for the parent's.
fn deadlock(h: &Here) -> Result<u64, i32> {
    let byte = |command: i32, at: u64| {
        sc!(
            SYS_fcntl,
            h.fd,
            command,
            [libc::F_WRLCK as u64, at, 1, 0].as_mut_ptr()
        )
    };
    byte(libc::F_SETLK, 0)?;
    super::beside_doing(
        || {
            byte(libc::F_SETLK, 1)?;
            sys::write(h.to, b"x")?;
            byte(libc::F_SETLKW, 0)
        },
        |pid| {
            sys::read(h.from, &mut [0])?;
            let wait = format!("/proc/{pid}/stat");
            soon(|| std::fs::read_to_string(&wait).is_ok_and(|stat| stat.contains(") S ")));
            byte(libc::F_SETLKW, 1)
        },
    )
}

errnos! {
    close EBADF |_| sc!(SYS_close, NONE);
    close_range EINVAL |_| sc!(SYS_close_range, 5, 4, 0);
    close_range EINVAL |_| sc!(SYS_close_range, 5, 6, 0x80);
    copy_file_range EBADF |h| sc!(SYS_copy_file_range, h.fd, 0, NONE, 0, 1, 0);
    copy_file_range EINVAL |h| sc!(SYS_copy_file_range, h.fd, 0, h.fd, 0, 1, 7);
    copy_file_range EISDIR |h| sc!(SYS_copy_file_range, h.at, 0, h.fd, 0, 1, 0);
    copy_file_range EBADF |h| sc!(SYS_copy_file_range, h.writer, 0, h.fd, 0, 1, 0);
    copy_file_range EBADF |h| sc!(SYS_copy_file_range, h.reader, 0, h.open("new", libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND)?, 0, 1, 0);
    copy_file_range EFAULT |h| sc!(SYS_copy_file_range, h.reader, BAD, h.open("new", libc::O_CREAT | libc::O_WRONLY)?, 0, 1, 0);
    copy_file_range EFBIG |h| small(|| sc!(SYS_copy_file_range, h.reader, 0, h.open("new", libc::O_CREAT | libc::O_WRONLY)?, [9u64].as_mut_ptr(), 1, 0));
    copy_file_range EINVAL |h| sc!(SYS_copy_file_range, h.fd, [0u64].as_mut_ptr(), h.fd, [5u64].as_mut_ptr(), 9, 0);
    copy_file_range EINVAL |h| sc!(SYS_copy_file_range, h.from, 0, h.fd, 0, 1, 0);
    copy_file_range EOVERFLOW |h| sc!(SYS_copy_file_range, h.reader, [5u64].as_mut_ptr(), h.open("new", libc::O_CREAT | libc::O_WRONLY)?, 0, -1i64, 0);
    dup EBADF |_| sc!(SYS_dup, NONE);
    dup EMFILE |_| no_descriptors(|| sc!(SYS_dup, 0));
    dup2 EBADF |_| sc!(SYS_dup2, NONE, 5);
    dup2 EBADF |_| sc!(SYS_dup2, 0, -1i64);
    dup2 EBADF |_| no_descriptors(|| sc!(SYS_dup2, 0, 5));
    dup3 EINVAL |h| sc!(SYS_dup3, h.fd, h.fd, 0);
    dup3 EBADF |h| sc!(SYS_dup3, h.fd, -1i64, 0);
    dup3 EBADF |_| no_descriptors(|| sc!(SYS_dup3, 0, 5, 0));
    dup3 EBADF |_| sc!(SYS_dup3, NONE, 5, 0);
    dup3 EINVAL |_| sc!(SYS_dup3, 0, 5, 1);
    eventfd EMFILE |_| no_descriptors(|| sc!(SYS_eventfd, 0));
    eventfd2 EINVAL |_| sc!(SYS_eventfd2, 0, 2);
    eventfd2 EMFILE |_| no_descriptors(|| sc!(SYS_eventfd2, 0, 0));
    fadvise64 EBADF |_| sc!(SYS_fadvise64, NONE, 0, 0, 0);
    fadvise64 EINVAL |h| sc!(SYS_fadvise64, h.fd, 0, 0, 99);
    fadvise64 ESPIPE |h| sc!(SYS_fadvise64, h.from, 0, 0, 0);
    fadvise64 EBADF |h| sc!(SYS_fadvise64, h.place, 0, 0, 0);
    fadvise64 EINVAL |h| sc!(SYS_fadvise64, h.fd, 0, -1i64, 0);
    fallocate EBADF |h| sc!(SYS_fallocate, h.reader, 0, 0, 1);
    fallocate EINVAL |h| sc!(SYS_fallocate, h.fd, 0, 0, 0);
    fallocate ESPIPE |h| sc!(SYS_fallocate, h.to, 0, 0, 1);
    fallocate EFBIG |h| sc!(SYS_fallocate, h.fd, 0, i64::MAX, 1);
    fallocate EFBIG |h| small(|| sc!(SYS_fallocate, h.fd, 0, 0, 100));
    fallocate EINVAL |h| sc!(SYS_fallocate, h.fd, 0, -1i64, 1);
    fallocate ENODEV |_| sc!(SYS_fallocate, sys::open("/dev/null", libc::O_RDWR, 0)?, 0, 0, 1);
    fallocate ENOSPC |h| h.mounted(0, || { let fd = h.open("m/f", libc::O_RDWR)?; let got = sc!(SYS_fallocate, fd, 0, 0, 1 << 20); sys::close(fd)?; got });
    fallocate EOPNOTSUPP |h| sc!(SYS_fallocate, h.fd, libc::FALLOC_FL_COLLAPSE_RANGE, 0, PAGE);
    fallocate EOPNOTSUPP |h| sc!(SYS_fallocate, h.fd, libc::FALLOC_FL_PUNCH_HOLE, 0, PAGE);
    fallocate EOPNOTSUPP |h| sc!(SYS_fallocate, h.fd, 0x8000, 0, PAGE);
    fchmod EBADF |h| sc!(SYS_fchmod, h.place, 0o600);
    fchmod EBADF |_| sc!(SYS_fchmod, NONE, 0);
    fchmod EPERM |h| nobody(|| sc!(SYS_fchmod, h.fd, 0o777));
    fchmod EROFS |h| h.mounted(libc::MS_RDONLY, || { let fd = h.open("m/f", 0)?; let got = sc!(SYS_fchmod, fd, 0o777); sys::close(fd)?; got });
    fchown EBADF |_| sc!(SYS_fchown, NONE, 0, 0);
    fchown EBADF |h| sc!(SYS_fchown, h.place, 0, 0);
    fchown EPERM |h| nobody(|| sc!(SYS_fchown, h.fd, 65534, -1i64));
    fchown EROFS |h| h.mounted(libc::MS_RDONLY, || { let fd = h.open("m/f", 0)?; let got = sc!(SYS_fchown, fd, 0, 0); sys::close(fd)?; got });
    fcntl EBADF |h| sc!(SYS_fcntl, h.place, libc::F_SETFL, 0);
    fcntl EBADF |h| sc!(SYS_fcntl, h.fd, libc::F_GETPIPE_SZ);
    fcntl EINVAL |h| sc!(SYS_fcntl, h.fd, 9999);
    fcntl EAGAIN |h| locked(h, || lock(h.fd, libc::F_SETLK, libc::F_RDLCK));
    fcntl EBADF |_| sc!(SYS_fcntl, NONE, libc::F_GETFD);
    fcntl EBADF |h| lock(h.writer, libc::F_SETLK, libc::F_RDLCK);
    fcntl EBADF |h| lock(h.reader, libc::F_SETLK, libc::F_WRLCK);
    fcntl EBUSY |h| { sc!(SYS_write, h.to, vec![0u8; 5000].as_ptr(), 5000)?; sc!(SYS_fcntl, h.to, libc::F_SETPIPE_SZ, 4096) };
    fcntl EDEADLK |h| deadlock(h);
    fcntl EFAULT |h| sc!(SYS_fcntl, h.fd, libc::F_GETLK, BAD);
    fcntl EINTR |h| locked(h, || interrupted(|| lock(h.fd, libc::F_SETLKW, libc::F_WRLCK)));
    fcntl EINVAL |h| lock(h.fd, libc::F_SETLK, 9);
    fcntl EINVAL |h| lock(h.fd, libc::F_GETLK, libc::F_UNLCK);
    fcntl EINVAL |h| sc!(SYS_fcntl, h.fd, libc::F_SETLK, [1u64 | 9 << 16, 0, 0, 0].as_ptr());
    fcntl EINVAL |h| sc!(SYS_fcntl, h.fd, libc::F_SETLK, [1u64, -1i64 as u64, 0, 0].as_ptr());
    fcntl EINVAL |h| sc!(SYS_fcntl, h.fd, libc::F_OFD_SETLK, [1u64, 0, 0, 1].as_ptr());
    fcntl EINVAL |_| limited(libc::RLIMIT_NOFILE, 10, || sc!(SYS_fcntl, 0, libc::F_DUPFD, 10));
    fcntl EINVAL |h| sc!(SYS_fcntl, h.from, libc::F_SETPIPE_SZ, u32::MAX);
    fcntl EMFILE |_| no_descriptors(|| sc!(SYS_fcntl, 0, libc::F_DUPFD, 0));
    fcntl EOVERFLOW |h| sc!(SYS_fcntl, h.fd, libc::F_SETLK, [1u64, i64::MAX as u64, i64::MAX as u64, 0].as_ptr());
    fcntl EPERM |h| { sc!(SYS_fchmod, h.fd, 0o644)?; nobody(|| sc!(SYS_fcntl, h.fd, libc::F_SETFL, libc::O_NOATIME)) };
    fcntl EPERM |h| nobody(|| sc!(SYS_fcntl, h.from, libc::F_SETPIPE_SZ, 1 << 24));
    fdatasync EBADF |_| sc!(SYS_fdatasync, NONE);
    fdatasync EINVAL |h| sc!(SYS_fdatasync, h.from);
    fdatasync EBADF |h| sc!(SYS_fdatasync, h.place);
    fgetxattr EBADF |_| sc!(SYS_fgetxattr, NONE, path("user.x"), 0, 0);
    fgetxattr EFAULT |h| sc!(SYS_fgetxattr, h.fd, BAD, 0, 0);
    fgetxattr EOPNOTSUPP |h| sc!(SYS_fgetxattr, h.fd, path("user.x"), 0, 0).map_err(|e| if e == libc::ENODATA { libc::EOPNOTSUPP } else { e });
    fgetxattr ERANGE |h| sc!(SYS_fgetxattr, h.fd, path(""), 0, 0);
    fgetxattr ERANGE |h| sc!(SYS_fgetxattr, h.fd, long(), 0, 0);
    flistxattr EBADF |_| sc!(SYS_flistxattr, NONE, 0, 0);
    flock EBADF |_| sc!(SYS_flock, NONE, libc::LOCK_SH);
    flock EINVAL |h| sc!(SYS_flock, h.fd, 16);
    flock EAGAIN |h| { sc!(SYS_flock, h.fd, libc::LOCK_EX)?; sc!(SYS_flock, h.reader, libc::LOCK_SH | libc::LOCK_NB) };
    flock EINTR |h| { sc!(SYS_flock, h.fd, libc::LOCK_EX)?; interrupted(|| sc!(SYS_flock, h.reader, libc::LOCK_SH)) };
    flock EINVAL |h| sc!(SYS_flock, h.fd, 0);
    fremovexattr EBADF |_| sc!(SYS_fremovexattr, NONE, path("user.x"));
    fsetxattr E2BIG |h| sc!(SYS_fsetxattr, h.fd, path("user.x"), BAD, 65_537, 0);
    fsetxattr EBADF |_| sc!(SYS_fsetxattr, NONE, path("user.x"), [0u8].as_ptr(), 1, 0);
    fsetxattr EINVAL |h| sc!(SYS_fsetxattr, h.fd, path("user.x"), [0u8].as_ptr(), 1, 4);
    fstat EBADF |_| sc!(SYS_fstat, NONE, 0);
    fstat EFAULT |h| sc!(SYS_fstat, h.fd, BAD);
    fstatfs EBADF |_| sc!(SYS_fstatfs, NONE, 0);
    fstatfs EFAULT |h| sc!(SYS_fstatfs, h.fd, BAD);
    fstatfs EBADF |_| sc!(SYS_fstatfs, -1i64, 0);
    fsync EBADF |_| sc!(SYS_fsync, NONE);
    fsync EBADF |h| sc!(SYS_fsync, h.place);
    fsync EINVAL |h| sc!(SYS_fsync, h.from);
    ftruncate EBADF |_| sc!(SYS_ftruncate, NONE, 0);
    ftruncate EINVAL |h| sc!(SYS_ftruncate, h.fd, -1i64);
    ftruncate EINVAL |h| sc!(SYS_ftruncate, h.reader, 0);
    ftruncate EINVAL |h| sc!(SYS_ftruncate, h.to, 0);
    ftruncate EBADF |h| sc!(SYS_ftruncate, h.place, 0);
    ftruncate EFBIG |h| small(|| sc!(SYS_ftruncate, h.fd, 100));
    getdents EBADF |_| sc!(SYS_getdents, NONE, 0, 0);
    getdents EFAULT |h| sc!(SYS_getdents, h.at, BAD, 400);
    getdents EINVAL |h| sc!(SYS_getdents, h.at, [0u8; 4].as_mut_ptr(), 4);
    getdents ENOTDIR |h| sc!(SYS_getdents, h.fd, [0u8; 64].as_mut_ptr(), 64);
    getdents64 EBADF |_| sc!(SYS_getdents64, NONE, 0, 0);
    getdents64 ENOTDIR |h| sc!(SYS_getdents64, h.fd, [0u8; 64].as_mut_ptr(), 64);
    getdents64 EINVAL |h| sc!(SYS_getdents64, h.at, [0u8; 4].as_mut_ptr(), 4);
    getdents64 EFAULT |h| sc!(SYS_getdents64, h.at, BAD, 400);
    getdents64 ENOENT |h| { let fd = h.open("d", 0)?; sc!(SYS_rmdir, h.p("d"))?; let got = sc!(SYS_getdents64, fd, [0u8; 400].as_mut_ptr(), 400); sys::close(fd)?; got };
    getrandom EINVAL |_| sc!(SYS_getrandom, BAD, 8, libc::GRND_RANDOM | libc::GRND_INSECURE);
    ioctl EBADF |_| sc!(SYS_ioctl, NONE, libc::TCGETS, 0);
    ioctl ENOTTY |h| sc!(SYS_ioctl, h.fd, libc::TCGETS, 0);
    ioctl EFAULT |h| sc!(SYS_ioctl, h.from, libc::FIONREAD, BAD);
    ioctl EBADF |h| sc!(SYS_ioctl, h.place, libc::FIONREAD, 0);
    ioctl EFAULT |h| sc!(SYS_ioctl, h.from, libc::FIONBIO, BAD);
    ioctl ENOTTY |h| sc!(SYS_ioctl, h.from, libc::TIOCGWINSZ, 0);
    lseek EBADF |_| sc!(SYS_lseek, NONE, 0, 0);
    lseek EINVAL |h| sc!(SYS_lseek, h.fd, -1i64, 0);
    lseek ENXIO |h| sc!(SYS_lseek, h.fd, 100, libc::SEEK_DATA);
    lseek ESPIPE |h| sc!(SYS_lseek, h.from, 0, 0);
    lseek EINVAL |h| sc!(SYS_lseek, h.fd, 0, 9);
    lseek ENXIO |h| sc!(SYS_lseek, h.fd, 100, libc::SEEK_HOLE);
    mount EBUSY |h| h.mounted(0, || { let fd = h.open("m/f", libc::O_WRONLY)?; let got = sc!(SYS_mount, 0, h.p("m"), 0, libc::MS_REMOUNT | libc::MS_RDONLY, 0); sys::close(fd)?; got });
    mount EFAULT |h| sc!(SYS_mount, path("none"), h.p("d"), BAD, 0, 0);
    mount EFAULT |h| sc!(SYS_mount, BAD, h.p("d"), path("tmpfs"), 0, 0);
    mount EINVAL |h| sc!(SYS_mount, path("none"), h.p("d"), path("tmpfs"), 0, path("size=x"));
    mount EINVAL |h| sc!(SYS_mount, path("none"), h.p("d"), path("tmpfs"), libc::MS_REMOUNT, 0);
    mount EINVAL |h| sc!(SYS_mount, path("none"), h.p("d"), path("tmpfs"), 0, path("bogus=1"));
    mount EINVAL |h| sc!(SYS_mount, path("none"), h.p("d"), path("tmpfs"), libc::MS_SHARED | libc::MS_PRIVATE, 0);
    mount ENODEV |h| sc!(SYS_mount, path("none"), h.p("d"), path("nofs"), 0, 0);
    mount ENOENT |h| sc!(SYS_mount, h.p("none"), h.p("d"), 0, libc::MS_BIND, 0);
    mount ENOTDIR |h| sc!(SYS_mount, path("none"), h.p("f"), path("tmpfs"), 0, 0);
    mount ENOTDIR |h| sc!(SYS_mount, h.p("f"), h.p("d"), 0, libc::MS_BIND, 0);
    mount EPERM |h| nobody(|| sc!(SYS_mount, path("none"), h.p("d"), path("tmpfs"), 0, 0));
    pipe EFAULT |_| sc!(SYS_pipe, BAD);
    pipe EMFILE |_| no_descriptors(|| sc!(SYS_pipe, [0u32; 2].as_mut_ptr()));
    pipe2 EINVAL |_| sc!(SYS_pipe2, BAD, 1);
    pipe2 EFAULT |_| sc!(SYS_pipe2, BAD, 0);
    pipe2 EMFILE |_| no_descriptors(|| sc!(SYS_pipe2, [0u32; 2].as_mut_ptr(), 0));
    pread64 EBADF |h| sc!(SYS_pread64, h.writer, [0u8; 1].as_mut_ptr(), 1, 0);
    pread64 EINVAL |h| sc!(SYS_pread64, h.fd, [0u8; 1].as_mut_ptr(), 1, -1i64);
    pread64 ESPIPE |h| sc!(SYS_pread64, h.from, [0u8; 1].as_mut_ptr(), 1, 0);
    pread64 EFAULT |h| sc!(SYS_pread64, h.fd, BAD, 1, 0);
    preadv EINVAL |h| sc!(SYS_preadv, h.fd, BAD, -1i64, 0);
    preadv EFAULT |h| sc!(SYS_preadv, h.fd, BAD, 1, 0);
    preadv EBADF |h| sc!(SYS_preadv, h.writer, ranges().as_ptr(), 1, 0);
    preadv EINVAL |h| sc!(SYS_preadv, h.fd, ranges().as_ptr(), 1, -1i64);
    preadv ESPIPE |h| sc!(SYS_preadv, h.from, ranges().as_ptr(), 1, 0);
    preadv2 EBADF |h| sc!(SYS_preadv2, h.writer, ranges().as_ptr(), 1, 0, 0, 0);
    preadv2 EFAULT |h| sc!(SYS_preadv2, h.fd, BAD, 1, 0, 0, 0);
    preadv2 EINVAL |h| sc!(SYS_preadv2, h.fd, ranges().as_ptr(), 1, -2i64, 0, 0);
    preadv2 EOPNOTSUPP |h| sc!(SYS_preadv2, h.fd, ranges().as_ptr(), 1, 0, 0, 0x8000);
    pwrite64 EBADF |h| sc!(SYS_pwrite64, h.reader, b"x".as_ptr(), 1, 0);
    pwrite64 EINVAL |h| sc!(SYS_pwrite64, h.fd, b"x".as_ptr(), 1, -1i64);
    pwrite64 ESPIPE |h| sc!(SYS_pwrite64, h.to, b"x".as_ptr(), 1, 0);
    pwrite64 EFAULT |h| sc!(SYS_pwrite64, h.fd, BAD, 1, 0);
    pwrite64 EFBIG |h| small(|| sc!(SYS_pwrite64, h.fd, b"x".as_ptr(), 1, 9));
    pwritev EBADF |h| sc!(SYS_pwritev, h.reader, 0, 0, 0);
    pwritev EFAULT |h| sc!(SYS_pwritev, h.fd, BAD, 1, 0, 0);
    pwritev EINVAL |h| sc!(SYS_pwritev, h.fd, ranges().as_ptr(), 1, -1i64);
    pwritev ESPIPE |h| sc!(SYS_pwritev, h.to, ranges().as_ptr(), 1, 0);
    pwritev2 EBADF |h| sc!(SYS_pwritev2, h.reader, ranges().as_ptr(), 1, 0, 0, 0);
    pwritev2 EFAULT |h| sc!(SYS_pwritev2, h.fd, BAD, 1, 0, 0, 0);
    pwritev2 EINVAL |h| sc!(SYS_pwritev2, h.fd, ranges().as_ptr(), 1, -2i64, 0, 0);
    pwritev2 EOPNOTSUPP |h| sc!(SYS_pwritev2, h.fd, ranges().as_ptr(), 1, 0, 0, 0x8000);
    read EBADF |h| sc!(SYS_read, h.writer, BAD, 1);
    read EFAULT |h| { sc!(SYS_lseek, h.fd, 0, 0)?; sc!(SYS_read, h.fd, BAD, 1) };
    read EISDIR |h| sc!(SYS_read, h.at, [0u8; 1].as_mut_ptr(), 1);
    read EBADF |h| sc!(SYS_read, h.place, [0u8; 1].as_mut_ptr(), 1);
    read EAGAIN |h| { sc!(SYS_fcntl, h.from, libc::F_SETFL, libc::O_NONBLOCK)?; sc!(SYS_read, h.from, [0u8].as_mut_ptr(), 1) };
    read EINTR |h| interrupted(|| sc!(SYS_read, h.from, [0u8].as_mut_ptr(), 1));
    read EINVAL |_| { let fd = counter()?; let got = sc!(SYS_read, fd, [0u64].as_mut_ptr(), 7); sys::close(fd as i32)?; got };
    readahead EBADF |h| sc!(SYS_readahead, h.writer, 0, 1);
    readahead EINVAL |h| sc!(SYS_readahead, h.from, 0, 1);
    readv EINVAL |h| sc!(SYS_readv, h.fd, BAD, -1i64);
    readv EBADF |h| sc!(SYS_readv, h.writer, ranges().as_ptr(), 1);
    readv EFAULT |h| sc!(SYS_readv, h.fd, BAD, 1);
    readv EINVAL |h| sc!(SYS_readv, h.fd, ranges().as_ptr(), 1025);
    readv EINVAL |h| sc!(SYS_readv, h.fd, [0u64, 1 << 63].as_ptr(), 1);
    sendfile EBADF |h| sc!(SYS_sendfile, h.reader, h.fd, 0, 1);
    sendfile EAGAIN |h| sc!(SYS_sendfile, full(h)?, h.reader, [0u64].as_mut_ptr(), 1);
    sendfile EFAULT |h| sc!(SYS_sendfile, h.to, h.reader, BAD, 1);
    sendfile EINVAL |h| sc!(SYS_sendfile, h.open("new", libc::O_CREAT | libc::O_WRONLY | libc::O_APPEND)?, h.reader, 0, 1);
    sendfile EINVAL |h| sc!(SYS_sendfile, h.to, h.reader, [-1i64].as_mut_ptr(), 1);
    sendfile ESPIPE |h| sc!(SYS_sendfile, h.fd, h.from, [0u64].as_mut_ptr(), 1);
    sync_file_range EBADF |_| sc!(SYS_sync_file_range, NONE, 0, 0, 0);
    sync_file_range EINVAL |h| sc!(SYS_sync_file_range, h.fd, 0, 0, 8);
    sync_file_range EINVAL |h| sc!(SYS_sync_file_range, h.fd, -1i64, 0, 0);
    sync_file_range ESPIPE |h| sc!(SYS_sync_file_range, h.from, 0, 0, 0);
    syncfs EBADF |h| sc!(SYS_syncfs, h.place);
    umount2 EAGAIN |h| h.mounted(0, || sc!(SYS_umount2, h.p("m"), libc::MNT_EXPIRE));
    umount2 EBUSY |h| h.mounted(0, || { let fd = h.open("m/f", 0)?; let got = sc!(SYS_umount2, h.p("m"), 0); sys::close(fd)?; got });
    umount2 EINVAL |h| sc!(SYS_umount2, h.p("d"), 0);
    umount2 EINVAL |h| sc!(SYS_umount2, h.p("d"), 0x80);
    umount2 EINVAL |h| sc!(SYS_umount2, h.p("d"), libc::MNT_EXPIRE | libc::MNT_DETACH);
    umount2 EPERM |h| nobody(|| sc!(SYS_umount2, h.p("d"), 0));
    ustat EFAULT |h| { let mut s = sys::zeroed_stat(); sc!(SYS_fstat, h.fd, &raw mut s)?; sc!(SYS_ustat, s.st_dev, BAD) };
    ustat EINVAL |_| sc!(SYS_ustat, 0xfff_fff, [0u64; 4].as_mut_ptr());
    write EBADF |h| sc!(SYS_write, h.reader, BAD, 1);
    write EFAULT |h| sc!(SYS_write, h.fd, BAD, 1);
    write EBADF |h| sc!(SYS_write, h.place, b"x".as_ptr(), 1);
    write EAGAIN |h| sys::write(full(h)?, b"x").map(|n| n as u64);
    write EFBIG |h| small(|| { sc!(SYS_lseek, h.fd, 9, 0)?; sc!(SYS_write, h.fd, b"x".as_ptr(), 1) });
    write EINTR |h| { let to = full(h)?; sc!(SYS_fcntl, to, libc::F_SETFL, 0)?; interrupted(|| sc!(SYS_write, to, b"x".as_ptr(), 1)) };
    write EINVAL |_| { let fd = counter()?; let got = sc!(SYS_write, fd, [u64::MAX].as_ptr(), 8); sys::close(fd as i32)?; got };
    write ENOSPC |_| { let fd = sys::open("/dev/full", libc::O_WRONLY, 0)?; let got = sc!(SYS_write, fd, b"x".as_ptr(), 1); sys::close(fd)?; got };
    write EPIPE |_| apart(|| { sys::on_signal(libc::SIGPIPE, libc::SIG_IGN, 0)?; let (from, to) = sys::pipe(0)?; sys::close(from)?; sc!(SYS_write, to, b"x".as_ptr(), 1) });
    writev EINVAL |h| sc!(SYS_writev, h.fd, BAD, 1025);
    writev EFAULT |h| sc!(SYS_writev, h.fd, BAD, 1);
    writev EBADF |h| sc!(SYS_writev, h.reader, ranges().as_ptr(), 1);
    writev EINVAL |h| sc!(SYS_writev, h.fd, [0u64, 1 << 63].as_ptr(), 1);
}
