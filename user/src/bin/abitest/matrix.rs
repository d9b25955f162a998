//! The matrix of calls and errnos: a row for each errno of a call that one line can provoke.
//!
//! What takes more than a line (signals, waits, other processes) stands in the file of its subject. `--matrix` prints the
//! rows, a line for each call.

use crate::harness::*;
use user::sys;

/// What the rows work on: everything fresh for each.
pub struct Here {
    dir: String,
    /// A file of ten bytes, open for both.
    fd: i32,
    /// The same, open for reading and for writing alone, and as a place.
    reader: i32,
    writer: i32,
    place: i32,
    /// The ends of a pipe.
    from: i32,
    to: i32,
    /// The directory, open.
    at: i32,
}

impl Here {
    fn new() -> Result<Here, i32> {
        let dir = scratch();
        let file = format!("{dir}/f");
        let fd = sys::open(&file, libc::O_RDWR | libc::O_CREAT, 0o600)?;
        sys::write(fd, b"0123456789")?;
        let (from, to) = sys::pipe(0)?;
        let _ = std::fs::create_dir(format!("{dir}/d"));
        let _ = std::fs::create_dir_all(format!("{dir}/full/x"));
        let _ = std::os::unix::fs::symlink("loop", format!("{dir}/loop"));
        Ok(Here {
            reader: sys::open(&file, libc::O_RDONLY, 0)?,
            writer: sys::open(&file, libc::O_WRONLY, 0)?,
            place: sys::open(&file, libc::O_PATH, 0)?,
            at: sys::open(&dir, libc::O_RDONLY | libc::O_DIRECTORY, 0)?,
            dir,
            fd,
            from,
            to,
        })
    }

    /// The path of a name in the directory.
    fn p(&self, name: &str) -> u64 {
        path(&format!("{}/{name}", self.dir))
    }
}

/// Call, errno by name and number, and how to get it.
pub type Row = (
    &'static str,
    &'static str,
    i32,
    fn(&Here) -> Result<u64, i32>,
);

/// No descriptor.
const NONE: i32 = 9999;
/// Nobody's number.
const NOBODY: u64 = 3_999_999;
/// An address that is not mapped.
const BAD: u64 = 8;
const CWD: i32 = libc::AT_FDCWD;

fn long() -> u64 {
    path(&"x".repeat(300))
}

macro_rules! rows {
    ($($call:ident $errno:ident |$here:pat_param| $do:expr;)*) => {
        /// All rows.
        pub const ROWS: &[Row] = &[$((stringify!($call), stringify!($errno), libc::$errno, |$here| $do)),*];
    };
}

rows! {
    access EACCES |h| sc!(SYS_access, h.p("f"), libc::X_OK);
    access EINVAL |h| sc!(SYS_access, h.p("f"), 8);
    access ELOOP |h| sc!(SYS_access, h.p("loop"), 0);
    access ENOTDIR |h| sc!(SYS_access, h.p("f/x"), 0);
    access ENAMETOOLONG |_| sc!(SYS_access, long(), 0);
    access EFAULT |_| sc!(SYS_access, BAD, 0);
    chdir ENOENT |h| sc!(SYS_chdir, h.p("none"));
    chdir ENOTDIR |h| sc!(SYS_chdir, h.p("f"));
    chdir ELOOP |h| sc!(SYS_chdir, h.p("loop"));
    chdir EFAULT |_| sc!(SYS_chdir, BAD);
    chmod ELOOP |h| sc!(SYS_chmod, h.p("loop"), 0o600);
    chmod ENOTDIR |h| sc!(SYS_chmod, h.p("f/x"), 0o600);
    chmod EFAULT |_| sc!(SYS_chmod, BAD, 0);
    chown ENOENT |h| sc!(SYS_chown, h.p("none"), 0, 0);
    chown EFAULT |_| sc!(SYS_chown, BAD, 0, 0);
    chroot ENOENT |h| sc!(SYS_chroot, h.p("none"));
    chroot ENOTDIR |h| sc!(SYS_chroot, h.p("f"));
    chroot EFAULT |_| sc!(SYS_chroot, BAD);
    clock_getres EINVAL |_| sc!(SYS_clock_getres, 99, 0);
    clock_gettime EINVAL |_| sc!(SYS_clock_gettime, 99, 0);
    clock_gettime EFAULT |_| sc!(SYS_clock_gettime, 0, BAD);
    clock_nanosleep EINVAL |_| sc!(SYS_clock_nanosleep, 99, 0, 0, 0);
    clock_nanosleep EFAULT |_| sc!(SYS_clock_nanosleep, 0, 0, BAD, 0);
    close EBADF |_| sc!(SYS_close, NONE);
    close_range EINVAL |_| sc!(SYS_close_range, 5, 4, 0);
    close_range EINVAL |_| sc!(SYS_close_range, 5, 6, 0x80);
    copy_file_range EBADF |h| sc!(SYS_copy_file_range, h.fd, 0, NONE, 0, 1, 0);
    copy_file_range EINVAL |h| sc!(SYS_copy_file_range, h.fd, 0, h.fd, 0, 1, 7);
    copy_file_range EISDIR |h| sc!(SYS_copy_file_range, h.at, 0, h.fd, 0, 1, 0);
    creat EISDIR |h| sc!(SYS_creat, h.p("d"), 0o600);
    creat ENOENT |h| sc!(SYS_creat, h.p("none/x"), 0o600);
    creat EFAULT |_| sc!(SYS_creat, BAD, 0o600);
    dup EBADF |_| sc!(SYS_dup, NONE);
    dup2 EBADF |_| sc!(SYS_dup2, NONE, 5);
    dup3 EINVAL |h| sc!(SYS_dup3, h.fd, h.fd, 0);
    dup3 EBADF |h| sc!(SYS_dup3, h.fd, -1i64, 0);
    execve EACCES |h| sc!(SYS_execve, h.p("f"), 0, 0);
    execve ELOOP |h| sc!(SYS_execve, h.p("loop"), 0, 0);
    faccessat EBADF |_| sc!(SYS_faccessat, NONE, path("x"), 0);
    faccessat ENOTDIR |h| sc!(SYS_faccessat, h.fd, path("x"), 0);
    faccessat2 EINVAL |h| sc!(SYS_faccessat2, CWD, h.p("f"), 0, 0x8000_0000u64);
    fadvise64 EBADF |_| sc!(SYS_fadvise64, NONE, 0, 0, 0);
    fadvise64 EINVAL |h| sc!(SYS_fadvise64, h.fd, 0, 0, 99);
    fadvise64 ESPIPE |h| sc!(SYS_fadvise64, h.from, 0, 0, 0);
    fallocate EBADF |h| sc!(SYS_fallocate, h.reader, 0, 0, 1);
    fallocate EINVAL |h| sc!(SYS_fallocate, h.fd, 0, 0, 0);
    fallocate ESPIPE |h| sc!(SYS_fallocate, h.to, 0, 0, 1);
    fallocate EFBIG |h| sc!(SYS_fallocate, h.fd, 0, i64::MAX, 1);
    fchdir EBADF |_| sc!(SYS_fchdir, NONE);
    fchdir ENOTDIR |h| sc!(SYS_fchdir, h.fd);
    fchmod EBADF |h| sc!(SYS_fchmod, h.place, 0o600);
    fchmodat EBADF |_| sc!(SYS_fchmodat, NONE, path("x"), 0);
    fchmodat ENOENT |h| sc!(SYS_fchmodat, h.at, path("none"), 0);
    fchown EBADF |_| sc!(SYS_fchown, NONE, 0, 0);
    fchownat EBADF |_| sc!(SYS_fchownat, NONE, path("x"), 0, 0, 0);
    fchownat EINVAL |h| sc!(SYS_fchownat, h.at, path("f"), 0, 0, 0x80);
    fchownat ENOENT |h| sc!(SYS_fchownat, h.at, path("none"), 0, 0, 0);
    fcntl EBADF |h| sc!(SYS_fcntl, h.place, libc::F_SETFL, 0);
    fcntl EBADF |h| sc!(SYS_fcntl, h.fd, libc::F_GETPIPE_SZ);
    fcntl EINVAL |h| sc!(SYS_fcntl, h.fd, 9999);
    fdatasync EBADF |_| sc!(SYS_fdatasync, NONE);
    fdatasync EINVAL |h| sc!(SYS_fdatasync, h.from);
    fgetxattr EBADF |_| sc!(SYS_fgetxattr, NONE, path("user.x"), 0, 0);
    flock EBADF |_| sc!(SYS_flock, NONE, libc::LOCK_SH);
    flock EINVAL |h| sc!(SYS_flock, h.fd, 16);
    fstat EBADF |_| sc!(SYS_fstat, NONE, 0);
    fstat EFAULT |h| sc!(SYS_fstat, h.fd, BAD);
    fstatfs EBADF |_| sc!(SYS_fstatfs, NONE, 0);
    fstatfs EFAULT |h| sc!(SYS_fstatfs, h.fd, BAD);
    fsync EBADF |_| sc!(SYS_fsync, NONE);
    ftruncate EBADF |_| sc!(SYS_ftruncate, NONE, 0);
    ftruncate EINVAL |h| sc!(SYS_ftruncate, h.fd, -1i64);
    ftruncate EINVAL |h| sc!(SYS_ftruncate, h.reader, 0);
    ftruncate EINVAL |h| sc!(SYS_ftruncate, h.to, 0);
    futex EINVAL |_| sc!(SYS_futex, 3, libc::FUTEX_WAIT, 0, 0);
    futex EFAULT |_| sc!(SYS_futex, BAD, libc::FUTEX_WAIT, 0, 0);
    futex ENOSYS |h| sc!(SYS_futex, &raw const h.fd, 99, 0, 0);
    getcwd ERANGE |_| sc!(SYS_getcwd, [0u8; 1].as_mut_ptr(), 1);
    getcwd EFAULT |_| sc!(SYS_getcwd, BAD, 4096);
    getdents64 EBADF |_| sc!(SYS_getdents64, NONE, 0, 0);
    getdents64 ENOTDIR |h| sc!(SYS_getdents64, h.fd, [0u8; 64].as_mut_ptr(), 64);
    getdents64 EINVAL |h| sc!(SYS_getdents64, h.at, [0u8; 4].as_mut_ptr(), 4);
    getdents64 EFAULT |h| sc!(SYS_getdents64, h.at, BAD, 400);
    getgroups EINVAL |_| sc!(SYS_getgroups, -1i64, 0);
    getitimer EINVAL |_| sc!(SYS_getitimer, 9, BAD);
    getitimer EFAULT |_| sc!(SYS_getitimer, 0, BAD);
    getpgid ESRCH |_| sc!(SYS_getpgid, NOBODY);
    getpriority EINVAL |_| sc!(SYS_getpriority, 9, 0);
    getpriority ESRCH |_| sc!(SYS_getpriority, 0, NOBODY);
    getrandom EFAULT |_| sc!(SYS_getrandom, BAD, 8, 0);
    getrandom EINVAL |_| sc!(SYS_getrandom, BAD, 8, 0x80);
    getrlimit EINVAL |_| sc!(SYS_getrlimit, 99, 0);
    getrlimit EFAULT |_| sc!(SYS_getrlimit, 0, BAD);
    getrusage EINVAL |_| sc!(SYS_getrusage, 99, 0);
    getrusage EFAULT |_| sc!(SYS_getrusage, 0, BAD);
    getsid ESRCH |_| sc!(SYS_getsid, NOBODY);
    gettimeofday EFAULT |_| sc!(SYS_gettimeofday, BAD, 0);
    getxattr ENOENT |h| sc!(SYS_getxattr, h.p("none"), path("user.x"), 0, 0);
    ioctl EBADF |_| sc!(SYS_ioctl, NONE, libc::TCGETS, 0);
    ioctl ENOTTY |h| sc!(SYS_ioctl, h.fd, libc::TCGETS, 0);
    ioctl EFAULT |h| sc!(SYS_ioctl, h.from, libc::FIONREAD, BAD);
    kill EINVAL |_| sc!(SYS_kill, 0, 99);
    kill ESRCH |_| sc!(SYS_kill, NOBODY, 0);
    link EEXIST |h| sc!(SYS_link, h.p("f"), h.p("d"));
    link ENOENT |h| sc!(SYS_link, h.p("none"), h.p("g"));
    link EPERM |h| sc!(SYS_link, h.p("d"), h.p("g"));
    link EFAULT |h| sc!(SYS_link, h.p("f"), BAD);
    linkat EINVAL |h| sc!(SYS_linkat, h.at, path("f"), h.at, path("g"), 0x8000);
    linkat EBADF |_| sc!(SYS_linkat, NONE, path("f"), NONE, path("g"), 0);
    lseek EBADF |_| sc!(SYS_lseek, NONE, 0, 0);
    lseek EINVAL |h| sc!(SYS_lseek, h.fd, -1i64, 0);
    lseek ENXIO |h| sc!(SYS_lseek, h.fd, 100, libc::SEEK_DATA);
    lseek ESPIPE |h| sc!(SYS_lseek, h.from, 0, 0);
    lstat ENOENT |h| sc!(SYS_lstat, h.p("none"), 0);
    lstat EFAULT |h| sc!(SYS_lstat, h.p("f"), BAD);
    madvise EINVAL |_| sc!(SYS_madvise, 1, PAGE, 0);
    madvise EINVAL |_| sc!(SYS_madvise, PAGE, PAGE, 9999);
    madvise ENOMEM |_| sc!(SYS_madvise, PAGE, PAGE, 0);
    mincore EINVAL |_| sc!(SYS_mincore, 1, PAGE, 0);
    mincore ENOMEM |_| sc!(SYS_mincore, PAGE, PAGE, [0u8; 1].as_mut_ptr());
    mkdir EEXIST |h| sc!(SYS_mkdir, h.p("d"), 0o700);
    mkdir ENOENT |h| sc!(SYS_mkdir, h.p("none/x"), 0o700);
    mkdir ENOTDIR |h| sc!(SYS_mkdir, h.p("f/x"), 0o700);
    mkdir ENAMETOOLONG |h| sc!(SYS_mkdir, h.p(&"x".repeat(300)), 0o700);
    mkdir EFAULT |_| sc!(SYS_mkdir, BAD, 0);
    mkdirat EBADF |_| sc!(SYS_mkdirat, NONE, path("x"), 0o700);
    mkdirat ENOTDIR |h| sc!(SYS_mkdirat, h.fd, path("x"), 0o700);
    mknod EEXIST |h| sc!(SYS_mknod, h.p("f"), libc::S_IFREG | 0o600, 0);
    mknod EINVAL |h| sc!(SYS_mknod, h.p("n"), libc::S_IFLNK | 0o600, 0);
    mknod EPERM |h| sc!(SYS_mknod, h.p("n"), libc::S_IFDIR | 0o600, 0);
    mknodat EBADF |_| sc!(SYS_mknodat, NONE, path("x"), libc::S_IFREG, 0);
    mlock ENOMEM |_| sc!(SYS_mlock, PAGE, PAGE);
    mlock2 EINVAL |_| sc!(SYS_mlock2, PAGE, PAGE, 0x80);
    mlockall EINVAL |_| sc!(SYS_mlockall, 0);
    mprotect EINVAL |_| sc!(SYS_mprotect, 1, PAGE, 0);
    mprotect ENOMEM |_| sc!(SYS_mprotect, PAGE, PAGE, 0);
    mremap EINVAL |_| sc!(SYS_mremap, 1, PAGE, PAGE, 0);
    mremap EFAULT |_| sc!(SYS_mremap, PAGE, PAGE, 2 * PAGE, 1);
    msync EINVAL |_| sc!(SYS_msync, PAGE, PAGE, 0x80);
    msync EINVAL |_| sc!(SYS_msync, PAGE, PAGE, libc::MS_SYNC | libc::MS_ASYNC);
    msync ENOMEM |_| sc!(SYS_msync, PAGE, PAGE, libc::MS_SYNC);
    munlock ENOMEM |_| sc!(SYS_munlock, PAGE, PAGE);
    munmap EINVAL |_| sc!(SYS_munmap, 1, PAGE);
    munmap EINVAL |_| sc!(SYS_munmap, PAGE, 0);
    nanosleep EINVAL |_| sc!(SYS_nanosleep, [0u64, 1 << 40].as_ptr(), 0);
    nanosleep EFAULT |_| sc!(SYS_nanosleep, BAD, 0);
    newfstatat EBADF |_| sc!(SYS_newfstatat, NONE, path("x"), 0, 0);
    newfstatat ENOTDIR |h| sc!(SYS_newfstatat, h.fd, path("x"), 0, 0);
    open ELOOP |h| sc!(SYS_open, h.p("loop"), 0, 0);
    open EINVAL |h| sc!(SYS_open, h.p("d"), libc::O_TMPFILE, 0o600);
    open ENOTDIR |h| sc!(SYS_open, h.p("f"), libc::O_DIRECTORY, 0);
    open EEXIST |h| sc!(SYS_open, h.p("f"), libc::O_CREAT | libc::O_EXCL, 0o600);
    open EISDIR |h| sc!(SYS_open, h.p("d"), libc::O_WRONLY, 0);
    open ENXIO |h| { sc!(SYS_mknod, h.p("fifo"), libc::S_IFIFO | 0o600, 0)?; sc!(SYS_open, h.p("fifo"), libc::O_WRONLY | libc::O_NONBLOCK, 0) };
    pipe EFAULT |_| sc!(SYS_pipe, BAD);
    pipe2 EINVAL |_| sc!(SYS_pipe2, BAD, 1);
    poll EFAULT |_| sc!(SYS_poll, BAD, 1, 0);
    poll EINVAL |_| sc!(SYS_poll, BAD, 1 << 30, 0);
    ppoll EINVAL |_| sc!(SYS_ppoll, 0, 0, [0u64, 1 << 40].as_ptr(), 0, 8);
    ppoll EINVAL |_| sc!(SYS_ppoll, 0, 0, 0, BAD, 4);
    pread64 EBADF |h| sc!(SYS_pread64, h.writer, [0u8; 1].as_mut_ptr(), 1, 0);
    pread64 EINVAL |h| sc!(SYS_pread64, h.fd, [0u8; 1].as_mut_ptr(), 1, -1i64);
    pread64 ESPIPE |h| sc!(SYS_pread64, h.from, [0u8; 1].as_mut_ptr(), 1, 0);
    preadv EINVAL |h| sc!(SYS_preadv, h.fd, BAD, -1i64, 0);
    preadv EFAULT |h| sc!(SYS_preadv, h.fd, BAD, 1, 0);
    prlimit64 ESRCH |_| sc!(SYS_prlimit64, NOBODY, 0, 0, 0);
    prlimit64 EINVAL |_| sc!(SYS_prlimit64, 0, 99, 0, 0);
    prlimit64 EFAULT |_| sc!(SYS_prlimit64, 0, 0, BAD, 0);
    pselect6 EINVAL |_| sc!(SYS_pselect6, -1i64, 0, 0, 0, 0, 0);
    pselect6 EFAULT |_| sc!(SYS_pselect6, 1, BAD, 0, 0, 0, 0);
    pwrite64 EBADF |h| sc!(SYS_pwrite64, h.reader, b"x".as_ptr(), 1, 0);
    pwrite64 EINVAL |h| sc!(SYS_pwrite64, h.fd, b"x".as_ptr(), 1, -1i64);
    pwrite64 ESPIPE |h| sc!(SYS_pwrite64, h.to, b"x".as_ptr(), 1, 0);
    pwritev EBADF |h| sc!(SYS_pwritev, h.reader, 0, 0, 0);
    read EBADF |h| sc!(SYS_read, h.writer, BAD, 1);
    read EFAULT |h| { sc!(SYS_lseek, h.fd, 0, 0)?; sc!(SYS_read, h.fd, BAD, 1) };
    read EISDIR |h| sc!(SYS_read, h.at, [0u8; 1].as_mut_ptr(), 1);
    read EBADF |h| sc!(SYS_read, h.place, [0u8; 1].as_mut_ptr(), 1);
    readlink EINVAL |h| sc!(SYS_readlink, h.p("f"), [0u8; 9].as_mut_ptr(), 9);
    readlink ENOENT |h| sc!(SYS_readlink, h.p("none"), [0u8; 9].as_mut_ptr(), 9);
    readlink EINVAL |h| sc!(SYS_readlink, h.p("loop"), [0u8; 9].as_mut_ptr(), 0);
    readlink EFAULT |h| sc!(SYS_readlink, h.p("loop"), BAD, 9);
    readlinkat EBADF |_| sc!(SYS_readlinkat, NONE, path("x"), [0u8; 9].as_mut_ptr(), 9);
    readv EINVAL |h| sc!(SYS_readv, h.fd, BAD, -1i64);
    rename ENOENT |h| sc!(SYS_rename, h.p("none"), h.p("g"));
    rename EISDIR |h| sc!(SYS_rename, h.p("f"), h.p("d"));
    rename ENOTDIR |h| sc!(SYS_rename, h.p("d"), h.p("f"));
    rename ENOTEMPTY |h| sc!(SYS_rename, h.p("d"), h.p("full"));
    rename EINVAL |h| sc!(SYS_rename, h.p("full"), h.p("full/x/y"));
    rename EFAULT |h| sc!(SYS_rename, h.p("f"), BAD);
    renameat EBADF |_| sc!(SYS_renameat, NONE, path("f"), NONE, path("g"));
    renameat2 EINVAL |h| sc!(SYS_renameat2, h.at, path("f"), h.at, path("g"), 0x80);
    renameat2 EEXIST |h| sc!(SYS_renameat2, h.at, path("f"), h.at, path("d"), 1);
    rmdir ENOTEMPTY |h| sc!(SYS_rmdir, h.p("full"));
    rmdir ENOTDIR |h| sc!(SYS_rmdir, h.p("f"));
    rmdir ENOENT |h| sc!(SYS_rmdir, h.p("none"));
    rmdir EINVAL |h| sc!(SYS_rmdir, h.p("d/."));
    rt_sigaction EINVAL |_| sc!(SYS_rt_sigaction, 99, 0, 0, 8);
    rt_sigaction EINVAL |_| sc!(SYS_rt_sigaction, 1, 0, 0, 4);
    rt_sigaction EFAULT |_| sc!(SYS_rt_sigaction, 1, BAD, 0, 8);
    rt_sigpending EINVAL |_| sc!(SYS_rt_sigpending, BAD, 99);
    rt_sigpending EFAULT |_| sc!(SYS_rt_sigpending, BAD, 8);
    rt_sigprocmask EINVAL |_| sc!(SYS_rt_sigprocmask, 9, [0u64].as_ptr(), 0, 8);
    rt_sigprocmask EFAULT |_| sc!(SYS_rt_sigprocmask, 0, BAD, 0, 8);
    rt_sigsuspend EINVAL |_| sc!(SYS_rt_sigsuspend, BAD, 4);
    rt_sigsuspend EFAULT |_| sc!(SYS_rt_sigsuspend, BAD, 8);
    rt_sigtimedwait EAGAIN |_| sc!(SYS_rt_sigtimedwait, [0u64].as_ptr(), 0, [0u64; 2].as_ptr(), 8);
    rt_sigtimedwait EINVAL |_| sc!(SYS_rt_sigtimedwait, [0u64].as_ptr(), 0, [0u64, 1 << 40].as_ptr(), 8);
    rt_sigtimedwait EFAULT |_| sc!(SYS_rt_sigtimedwait, BAD, 0, 0, 8);
    sched_get_priority_min EINVAL |_| sc!(SYS_sched_get_priority_min, 99);
    sched_getparam EINVAL |_| sc!(SYS_sched_getparam, 0, 0);
    sched_getparam ESRCH |_| sc!(SYS_sched_getparam, NOBODY, [0u32].as_mut_ptr());
    sched_rr_get_interval ESRCH |_| sc!(SYS_sched_rr_get_interval, NOBODY, 0);
    sched_setaffinity ESRCH |_| sc!(SYS_sched_setaffinity, NOBODY, 8, [1u64].as_ptr());
    sched_setaffinity EFAULT |_| sc!(SYS_sched_setaffinity, 0, 8, BAD);
    sched_setparam EINVAL |_| sc!(SYS_sched_setparam, 0, 0);
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, 0, 0);
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, 99, [0u32].as_ptr());
    sched_setscheduler EFAULT |_| sc!(SYS_sched_setscheduler, 0, 0, BAD);
    select EBADF |_| sc!(SYS_select, 41, [1u64 << 40].as_ptr(), 0, 0, [0u64; 2].as_ptr());
    select EINVAL |_| sc!(SYS_select, 0, 0, 0, 0, [-1i64, 0].as_ptr());
    sendfile EBADF |h| sc!(SYS_sendfile, h.reader, h.fd, 0, 1);
    sendfile EINVAL |h| sc!(SYS_sendfile, h.fd, h.from, [0u64].as_mut_ptr(), 1) .or_else(|e| Err(if e == libc::ESPIPE { libc::EINVAL } else { e }));
    set_robust_list EINVAL |_| sc!(SYS_set_robust_list, BAD, 7);
    setgid EINVAL |_| sc!(SYS_setgid, -1i64);
    setitimer EINVAL |_| sc!(SYS_setitimer, 9, 0, 0);
    setitimer EFAULT |_| sc!(SYS_setitimer, 0, BAD, 0);
    setpgid EINVAL |_| sc!(SYS_setpgid, 0, -1i64);
    setpgid ESRCH |_| sc!(SYS_setpgid, NOBODY, 0);
    setpriority EINVAL |_| sc!(SYS_setpriority, 9, 0, 0);
    setpriority ESRCH |_| sc!(SYS_setpriority, 0, NOBODY, 0);
    setrlimit EINVAL |_| sc!(SYS_setrlimit, 99, [0u64; 2].as_ptr());
    setrlimit EFAULT |_| sc!(SYS_setrlimit, 0, BAD);
    setuid EINVAL |_| sc!(SYS_setuid, -1i64);
    sigaltstack EFAULT |_| sc!(SYS_sigaltstack, BAD, 0);
    sigaltstack EINVAL |_| sc!(SYS_sigaltstack, [0u64, 0x80, 1 << 20].as_ptr(), 0);
    sigaltstack ENOMEM |_| sc!(SYS_sigaltstack, [PAGE, 0, 1].as_ptr(), 0);
    stat EFAULT |h| sc!(SYS_stat, h.p("f"), BAD);
    stat ELOOP |h| sc!(SYS_stat, h.p("loop"), 0);
    stat ENOTDIR |h| sc!(SYS_stat, h.p("f/x"), 0);
    stat ENAMETOOLONG |_| sc!(SYS_stat, long(), 0);
    statfs EFAULT |_| sc!(SYS_statfs, path("/"), BAD);
    statfs ENOENT |h| sc!(SYS_statfs, h.p("none"), 0);
    statfs ENOTDIR |h| sc!(SYS_statfs, h.p("f/x"), 0);
    statx EINVAL |h| sc!(SYS_statx, h.at, path("f"), 0x4000_0000, 0, BAD);
    statx EFAULT |h| sc!(SYS_statx, h.at, path("f"), 0, 0x7ff, BAD);
    symlink EEXIST |h| sc!(SYS_symlink, path("x"), h.p("f"));
    symlink ENOENT |h| sc!(SYS_symlink, path(""), h.p("s"));
    symlink ENOTDIR |h| sc!(SYS_symlink, path("x"), h.p("f/s"));
    symlinkat EBADF |_| sc!(SYS_symlinkat, path("x"), NONE, path("s"));
    sysinfo EFAULT |_| sc!(SYS_sysinfo, BAD);
    tgkill EINVAL |_| sc!(SYS_tgkill, 0, 1, 0);
    tgkill ESRCH |_| sc!(SYS_tgkill, NOBODY, NOBODY, 0);
    times EFAULT |_| sc!(SYS_times, BAD);
    tkill EINVAL |_| sc!(SYS_tkill, 0, 0);
    tkill ESRCH |_| sc!(SYS_tkill, NOBODY, 0);
    truncate EINVAL |h| sc!(SYS_truncate, h.p("f"), -1i64);
    truncate EISDIR |h| sc!(SYS_truncate, h.p("d"), 0);
    truncate ENOTDIR |h| sc!(SYS_truncate, h.p("f/x"), 0);
    truncate EFAULT |_| sc!(SYS_truncate, BAD, 0);
    uname EFAULT |_| sc!(SYS_uname, BAD);
    unlink ENOENT |h| sc!(SYS_unlink, h.p("none"));
    unlink EISDIR |h| sc!(SYS_unlink, h.p("d"));
    unlink ENOTDIR |h| sc!(SYS_unlink, h.p("f/x"));
    unlink EFAULT |_| sc!(SYS_unlink, BAD);
    unlinkat EBADF |_| sc!(SYS_unlinkat, NONE, path("x"), 0);
    unlinkat EINVAL |h| sc!(SYS_unlinkat, h.at, path("f"), 0x80);
    unlinkat ENOTDIR |h| sc!(SYS_unlinkat, h.at, path("f"), libc::AT_REMOVEDIR);
    utimensat EBADF |_| sc!(SYS_utimensat, NONE, path("x"), 0, 0);
    utimensat ENOENT |h| sc!(SYS_utimensat, h.at, path("none"), 0, 0);
    utimensat EINVAL |h| sc!(SYS_utimensat, h.at, path("f"), 0, 0x80);
    utimensat EFAULT |h| sc!(SYS_utimensat, h.at, path("f"), BAD, 0);
    wait4 ECHILD |_| sc!(SYS_wait4, -1i64, 0, 0, 0);
    wait4 EINVAL |_| sc!(SYS_wait4, -1i64, 0, 0x100, 0);
    waitid ECHILD |_| sc!(SYS_waitid, libc::P_ALL, 0, 0, libc::WEXITED, 0);
    waitid EINVAL |_| sc!(SYS_waitid, libc::P_ALL, 0, 0, 0, 0);
    write EBADF |h| sc!(SYS_write, h.reader, BAD, 1);
    write EFAULT |h| sc!(SYS_write, h.fd, BAD, 1);
    write EBADF |h| sc!(SYS_write, h.place, b"x".as_ptr(), 1);
    writev EINVAL |h| sc!(SYS_writev, h.fd, BAD, 1025);
    writev EFAULT |h| sc!(SYS_writev, h.fd, BAD, 1);
}

/// Prints each call with the errnos of its rows.
pub fn print() {
    for (n, (call, ..)) in ROWS.iter().enumerate() {
        if n > 0 && ROWS[n - 1].0 == *call {
            continue;
        }
        let rows = ROWS.iter().filter(|row| row.0 == *call);
        let errnos: std::collections::BTreeSet<&str> = rows.map(|row| row.1).collect();
        println!(
            "{call}: {}",
            errnos.into_iter().collect::<Vec<_>>().join(" ")
        );
    }
}

tests! { "matrix";
    each_row_gives_its_errno {
        let wrong: Vec<String> = ROWS.iter().filter_map(|(call, _, errno, run)| {
            let here = match Here::new() {
                Ok(here) => here,
                Err(e) => return Some(format!("no place to work in: {}", errno_name(e))),
            };
            let got = run(&here);
            for fd in [here.fd, here.reader, here.writer, here.place, here.from, here.to, here.at] {
                let _ = sys::close(fd);
            }
            (got != Err(*errno)).then(|| format!("{call} gave {}, not {}", show(got), errno_name(*errno)))
        }).collect();
        if !wrong.is_empty() {
            return Err(wrong.join("; "));
        }
    }
    rows_stand_in_order {
        holds!(ROWS.is_sorted_by_key(|row| row.0));
    }
}
