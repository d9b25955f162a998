//! The newer calls on names and descriptors: statx, faccessat2, renameat2, openat2, close_range and others.

use crate::harness::*;
use user::sys;

const CWD: i32 = libc::AT_FDCWD;
const CREATE: i32 = libc::O_RDWR | libc::O_CREAT;

/// The words of a statx structure.
type Statx = [u64; 32];

fn statx(dir: i32, name: &str, flags: i32, mask: u32) -> Result<Statx, i32> {
    let mut buf = [0; 32];
    sc!(SYS_statx, dir, path(name), flags, mask, buf.as_mut_ptr())?;
    Ok(buf)
}

fn create(name: &str, bytes: &[u8]) -> Result<(), i32> {
    let fd = sys::open(name, CREATE | libc::O_TRUNC, 0o640)?;
    sys::write(fd, bytes)?;
    sys::close(fd).map(drop)
}

fn contents(name: &str) -> Vec<u8> {
    std::fs::read(name).unwrap_or_default()
}

fn inode(name: &str) -> u64 {
    statx(CWD, name, 0, libc::STATX_INO).map_or(0, |buf| buf[4])
}

tests! { "names";
    statx_tells_what_stat_tells {
        let f = format!("{}/f", scratch());
        ok!(create(&f, b"12345"));
        let buf = ok!(statx(CWD, &f, 0, libc::STATX_BASIC_STATS));
        holds!(buf[0] as u32 & libc::STATX_BASIC_STATS == libc::STATX_BASIC_STATS);
        let mut stat = [0u64; 18];
        ok!(sc!(SYS_stat, path(&f), stat.as_mut_ptr()));
        // Number of links and owner; group and mode; inode number; size.
        is!([buf[2] as u32, (buf[2] >> 32) as u32], [1, 0]);
        is!((buf[3] >> 32) & 0xffff, u64::from(libc::S_IFREG | 0o640));
        is!([buf[4], buf[5]], [stat[1], 5]);
        // Seconds of the last change of the data.
        is!(buf[14], stat[11]);
    }
    statx_arguments {
        let f = format!("{}/f", scratch());
        ok!(create(&f, b""));
        let dir = ok!(sys::open(&scratch(), libc::O_DIRECTORY, 0));
        fails!(statx(CWD, "/none/x", 0, 0), ENOENT);
        fails!(statx(dir, "none", 0, 0), ENOENT);
        fails!(statx(9999, "x", 0, 0), EBADF);
        fails!(statx(CWD, &f, 0x4000_0000, 0), EINVAL);
        fails!(statx(CWD, &f, 0, 0x8000_0000), EINVAL);
        fails!(statx(CWD, &f, 0x6000, 0), EINVAL);
        fails!(statx(CWD, "", 0, 0), ENOENT);
        let empty = ok!(statx(dir, "", libc::AT_EMPTY_PATH, libc::STATX_TYPE));
        is!((empty[3] >> 32) as u32 & libc::S_IFMT, libc::S_IFDIR);
        fails!(sc!(SYS_statx, CWD, path("/"), 0, 0, 8), EFAULT);
        fails!(sc!(SYS_statx, CWD, 8, 0, 0, [0u64; 32].as_mut_ptr()), EFAULT);
    }
    statx_of_a_link {
        let d = scratch();
        ok!(sc!(SYS_symlinkat, path("none"), CWD, path(&format!("{d}/l"))));
        let buf = ok!(statx(CWD, &format!("{d}/l"), libc::AT_SYMLINK_NOFOLLOW, libc::STATX_TYPE));
        is!((buf[3] >> 32) as u32 & libc::S_IFMT, libc::S_IFLNK);
        fails!(statx(CWD, &format!("{d}/l"), 0, 0), ENOENT);
    }
    faccessat2_flags {
        let d = scratch();
        ok!(create(&format!("{d}/f"), b""));
        let at = |name: &str, mode: i32, flags: i32| sc!(SYS_faccessat2, CWD, path(name), mode, flags);
        ok!(at(&format!("{d}/f"), libc::R_OK | libc::W_OK, libc::AT_EACCESS));
        fails!(at(&format!("{d}/f"), libc::X_OK, 0), EACCES);
        fails!(at(&format!("{d}/f"), 8, 0), EINVAL);
        fails!(at(&format!("{d}/f"), 0, 0x4000_0000), EINVAL);
        ok!(sc!(SYS_symlink, path("none"), path(&format!("{d}/l"))));
        fails!(at(&format!("{d}/l"), 0, 0), ENOENT);
        ok!(at(&format!("{d}/l"), 0, libc::AT_SYMLINK_NOFOLLOW));
        let fd = ok!(sys::open(&d, libc::O_PATH, 0));
        ok!(sc!(SYS_faccessat2, fd, path(""), libc::R_OK, libc::AT_EMPTY_PATH));
        fails!(sc!(SYS_faccessat2, 9999, path("x"), 0, 0), EBADF);
    }
    faccessat2_asks_for_real_or_effective_ids {
        let f = format!("{}/f", scratch());
        ok!(create(&f, b""));
        ok!(sc!(SYS_chmod, path(&f), 0o600));
        is!(in_child(|| {
            let _ = sc!(SYS_setresuid, 65534, 0, 0);
            let real = sc!(SYS_faccessat2, CWD, path(&f), libc::W_OK, 0);
            let effective = sc!(SYS_faccessat2, CWD, path(&f), libc::W_OK, libc::AT_EACCESS);
            i32::from(real != Err(libc::EACCES)) | i32::from(effective.is_err()) << 1
        })?, 0);
    }
    renameat2_does_not_replace {
        let d = scratch();
        let (a, b) = (format!("{d}/a"), format!("{d}/b"));
        ok!(create(&a, b"a"));
        ok!(create(&b, b"b"));
        fails!(sc!(SYS_renameat2, CWD, path(&a), CWD, path(&b), libc::RENAME_NOREPLACE), EEXIST);
        is!(contents(&b), b"b");
        ok!(sc!(SYS_renameat2, CWD, path(&a), CWD, path(&format!("{d}/c")), libc::RENAME_NOREPLACE));
        is!(contents(&format!("{d}/c")), b"a");
        fails!(sc!(SYS_renameat2, CWD, path(&b), CWD, path(&a), 0x100), EINVAL);
        let both = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE;
        fails!(sc!(SYS_renameat2, CWD, path(&b), CWD, path(&a), both), EINVAL);
    }
    renameat2_exchanges {
        let d = scratch();
        let (a, b) = (format!("{d}/a"), format!("{d}/b"));
        ok!(create(&a, b"a"));
        ok!(sc!(SYS_mkdir, path(&b), 0o755));
        let (ia, ib) = (inode(&a), inode(&b));
        fails!(sc!(SYS_renameat2, CWD, path(&a), CWD, path(&format!("{d}/none")), libc::RENAME_EXCHANGE), ENOENT);
        ok!(sc!(SYS_renameat2, CWD, path(&a), CWD, path(&b), libc::RENAME_EXCHANGE));
        is!([inode(&a), inode(&b)], [ib, ia]);
    }
    openat2_arguments {
        let f = format!("{}/f", scratch());
        let open = |how: [u64; 3], size: u64| sc!(SYS_openat2, CWD, path(&f), how.as_ptr(), size);
        let fd = ok!(open([CREATE as u64, 0o600, 0], 24));
        is!(ok!(sys::write(fd as i32, b"x")), 1);
        fails!(open([0, 0o600, 0], 24), EINVAL);
        fails!(open([1 << 40, 0, 0], 24), EINVAL);
        fails!(open([0, 0, 1 << 40], 24), EINVAL);
        fails!(open([0, 0, 0], 8), EINVAL);
        fails!(sc!(SYS_openat2, CWD, path(&f), 8, 24), EFAULT);
        fails!(open([(libc::O_PATH | libc::O_RDWR) as u64, 0, 0], 24), EINVAL);
        let plain = ok!(open([0, 0, 0], 24));
        is!(ok!(sc!(SYS_fcntl, plain, libc::F_GETFL)), 0);
        fails!(sc!(SYS_openat2, CWD, 8, [1u64 << 40, 0, 0].as_ptr(), 24), EINVAL);
    }
    openat2_takes_a_larger_structure_whose_rest_is_zero {
        let f = format!("{}/f", scratch());
        ok!(create(&f, b"x"));
        let mut how = [0u64; 600];
        let open = |how: &[u64], size: u64| sc!(SYS_openat2, CWD, path(&f), how.as_ptr(), size);
        ok!(open(&how, 25));
        ok!(open(&how, 4096));
        fails!(open(&how, 4097), E2BIG);
        how[511] = 1;
        fails!(open(&how, 4096), E2BIG);
        ok!(open(&how, 4088));
        how[511] = 1 << 56;
        ok!(open(&how, 4095));
        fails!(open(&how, 4096), E2BIG);
    }
    openat2_fails_where_there_is_no_name {
        fails!(sc!(SYS_openat2, CWD, path("/none/x"), [0u64; 3].as_ptr(), 24), ENOENT);
    }
    close_range_closes_and_marks {
        let first = ok!(sys::open("/dev/null", 0, 0));
        for _ in 0..4 { ok!(sys::open("/dev/null", 0, 0)); }
        fails!(sc!(SYS_close_range, 5, 4, 0), EINVAL);
        fails!(sc!(SYS_close_range, first, first, 0x100), EINVAL);
        ok!(sc!(SYS_close_range, first, first + 1, libc::CLOSE_RANGE_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, first + 1, libc::F_GETFD)), 1);
        is!(ok!(sc!(SYS_fcntl, first + 2, libc::F_GETFD)), 0);
        ok!(sc!(SYS_close_range, first + 1, u32::MAX, 0));
        fails!(sc!(SYS_fcntl, first + 1, libc::F_GETFD), EBADF);
        ok!(sc!(SYS_fcntl, first, libc::F_GETFD));
    }
    dup3_arguments {
        let fd = ok!(sys::open("/dev/null", 0, 0));
        fails!(sc!(SYS_dup3, fd, fd, 0), EINVAL);
        fails!(sc!(SYS_dup3, fd, 50, libc::O_APPEND), EINVAL);
        fails!(sc!(SYS_dup3, 9999, 50, 0), EBADF);
        fails!(sc!(SYS_dup3, fd, -1i64, 0), EBADF);
        is!(ok!(sc!(SYS_dup3, fd, 50, libc::O_CLOEXEC)), 50);
        is!(ok!(sc!(SYS_fcntl, 50, libc::F_GETFD)), 1);
    }
    vectors_at_positions {
        let fd = file_with(b"0123456789")?;
        let (mut a, mut b) = ([0u8; 3], [0u8; 4]);
        let to = [[a.as_mut_ptr() as u64, 3], [b.as_mut_ptr() as u64, 4]];
        is!(ok!(sc!(SYS_preadv, fd, to.as_ptr(), 2, 2, 0)), 7);
        is!((&a, &b), (b"234", b"5678"));
        is!(ok!(sc!(SYS_preadv2, fd, to.as_ptr(), 2, 8, 0, 0)), 2);
        is!(&a[..2], b"89");
        ok!(sc!(SYS_lseek, fd, 4, libc::SEEK_SET));
        is!(ok!(sc!(SYS_preadv2, fd, to.as_ptr(), 1, -1i64, -1i64, 0)), 3);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), 7);
        let from = [[b"xy".as_ptr() as u64, 2], [b"z".as_ptr() as u64, 1]];
        is!(ok!(sc!(SYS_pwritev, fd, from.as_ptr(), 2, 9, 0)), 3);
        is!(ok!(sc!(SYS_pwritev2, fd, from.as_ptr(), 2, -1i64, -1i64, libc::RWF_DSYNC)), 3);
        is!(ok!(sc!(SYS_pread64, fd, a.as_mut_ptr(), 3, 7)), 3);
        is!(&a, b"xyz");
        fails!(sc!(SYS_preadv, fd, to.as_ptr(), 2, -1i64, -1i64), EINVAL);
        fails!(sc!(SYS_preadv, fd, to.as_ptr(), 2000, 0, 0), EINVAL);
        fails!(sc!(SYS_preadv2, fd, to.as_ptr(), 2, 0, 0, 0x4000_0000), EOPNOTSUPP);
        fails!(sc!(SYS_pwritev, fd, 8, 2, 0, 0), EFAULT);
        fails!(sc!(SYS_preadv, 9999, to.as_ptr(), 2, 0, 0), EBADF);
    }
    copy_file_range_copies {
        let (from, to) = (file_with(b"0123456789")?, file_with(b"")?);
        let mut at = 3u64;
        is!(ok!(sc!(SYS_copy_file_range, from, &raw mut at, to, 0, 4, 0)), 4);
        is!(at, 7);
        let mut buf = [0; 8];
        is!(ok!(sc!(SYS_pread64, to, buf.as_mut_ptr(), 8, 0)), 4);
        is!(&buf[..4], b"3456");
        at = 10;
        is!(ok!(sc!(SYS_copy_file_range, from, &raw mut at, to, 0, 4, 0)), 0);
        fails!(sc!(SYS_copy_file_range, from, 0, to, 0, 4, 1), EINVAL);
        fails!(sc!(SYS_copy_file_range, 9999, 0, to, 0, 4, 0), EBADF);
        let (end, _) = ok!(sys::pipe(0));
        fails!(sc!(SYS_copy_file_range, end, 0, to, 0, 4, 0), EINVAL);
    }
    fallocate_makes_and_punches {
        let fd = file_with(&[7; 12288])?;
        ok!(sc!(SYS_fallocate, fd, libc::FALLOC_FL_KEEP_SIZE, 0, 65536));
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_END)), 12288);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        ok!(sc!(SYS_fallocate, fd, punch, 4096, 4096));
        let mut bytes = [1u8; 3];
        for at in [4095, 4096, 8192] {
            is!(ok!(sc!(SYS_pread64, fd, bytes.as_mut_ptr() , 1, at)), 1);
            is!(bytes[0], if at == 4096 { 0 } else { 7 });
        }
        ok!(sc!(SYS_fallocate, fd, 0, 0, 20000));
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_END)), 20000);
        fails!(sc!(SYS_fallocate, fd, 0, -1i64, 10), EINVAL);
        fails!(sc!(SYS_fallocate, fd, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_fallocate, fd, 0x4000, 0, 10), EOPNOTSUPP);
        fails!(sc!(SYS_fallocate, 9999, 0, 0, 10), EBADF);
        let (_, end) = ok!(sys::pipe(0));
        fails!(sc!(SYS_fallocate, end, 0, 0, 10), ESPIPE);
    }
    a_pipe_is_opened_again_through_proc {
        let (from, to) = ok!(sys::pipe(0));
        ok!(sys::write(to, b"x"));
        // The only writer is closed first: opening a fifo would wait for another writer.
        ok!(sys::close(to));
        let again = ok!(sys::open(&format!("/proc/self/fd/{from}"), libc::O_RDONLY, 0));
        let mut buf = [0; 2];
        is!(ok!(sys::read(again, &mut buf)), 1);
        is!(ok!(sys::read(again, &mut buf)), 0);
        let mut text = [0u8; 64];
        let n = ok!(sc!(SYS_readlink, path(&format!("/proc/self/fd/{again}")), text.as_mut_ptr(), 64));
        holds!(text[..n as usize].starts_with(b"pipe:["));
    }
    a_pipe_is_opened_again_only_by_whom_it_belongs_to {
        let (from, _to) = ok!(sys::pipe(0));
        let writes = |fd: i32| sys::open(&format!("/proc/self/fd/{fd}"), libc::O_WRONLY, 0);
        is!(in_child(|| {
            if sc!(SYS_setresgid, 1000, 1000, 1000).is_err() || sc!(SYS_setresuid, 1000, 1000, 1000).is_err() {
                return 1;
            }
            // The right to look at the descriptor does not include the right to open the pipe's other end.
            let _ = sc!(SYS_prctl, libc::PR_SET_DUMPABLE, 1);
            if writes(from) != Err(libc::EACCES) {
                return 2;
            }
            let Ok((own, _)) = sys::pipe(0) else { return 3 };
            let mut stat = [0u32; 36];
            if sc!(SYS_fstat, own, stat.as_mut_ptr()).is_err() || stat[7..9] != [1000, 1000] {
                return 4;
            }
            if writes(own).is_err() { 5 } else { 0 }
        }), Ok(0));
    }
    extended_attributes_of_a_file_without {
        let f = format!("{}/f", scratch());
        ok!(create(&f, b""));
        let fd = ok!(sys::open(&f, libc::O_RDWR, 0));
        let mut buf = [0u8; 64];
        let (name, out) = (path("user.none"), buf.as_mut_ptr());
        fails!(sc!(SYS_getxattr, path(&f), name, out, 64), EOPNOTSUPP | ENODATA);
        fails!(sc!(SYS_lgetxattr, path(&f), name, out, 64), EOPNOTSUPP | ENODATA);
        fails!(sc!(SYS_fgetxattr, fd, name, out, 64), EOPNOTSUPP | ENODATA);
        fails!(sc!(SYS_removexattr, path(&f), name), EOPNOTSUPP | ENODATA);
        is!(ok!(sc!(SYS_listxattr, path(&f), out, 64)), 0);
        is!(ok!(sc!(SYS_llistxattr, path(&f), out, 64)), 0);
        is!(ok!(sc!(SYS_flistxattr, fd, out, 64)), 0);
        let acl = path("system.posix_acl_access");
        fails!(sc!(SYS_getxattr, path(&f), acl, out, 64), EOPNOTSUPP | ENODATA);
    }
    extended_attribute_arguments {
        let f = format!("{}/f", scratch());
        ok!(create(&f, b""));
        let out = [0u8; 64].as_mut_ptr();
        fails!(sc!(SYS_getxattr, path("/none/x"), path("user.a"), out, 64), ENOENT);
        fails!(sc!(SYS_fgetxattr, 9999, path("user.a"), out, 64), EBADF);
        fails!(sc!(SYS_getxattr, path(&f), path(""), out, 64), ERANGE);
        fails!(sc!(SYS_getxattr, path(&f), path(&"x".repeat(300)), out, 64), ERANGE);
        fails!(sc!(SYS_getxattr, path(&f), 8, out, 64), EFAULT);
        fails!(sc!(SYS_setxattr, path(&f), path("user.a"), out, 1, 8), EINVAL);
        fails!(sc!(SYS_setxattr, path(&f), path("user.a"), out, 1 << 20, 0), E2BIG);
        fails!(sc!(SYS_listxattr, path("/none/x"), out, 64), ENOENT);
    }
}
