//! Descriptors: open, read, write, seek, truncate, dup, fcntl, stat and friends.

use crate::harness::*;
use user::sys;

const CREATE: i32 = libc::O_RDWR | libc::O_CREAT;

fn stat(fd: i32) -> Result<libc::stat, i32> {
    let mut buf = [0u64; 18];
    sc!(SYS_fstat, fd, buf.as_mut_ptr())?;
    Ok(as_stat(&buf))
}

/// The fields of a stat structure that the tests check, by the ABI's offsets.
fn as_stat(words: &[u64; 18]) -> libc::stat {
    let mut stat = sys::zeroed_stat();
    (stat.st_dev, stat.st_ino, stat.st_nlink) = (words[0], words[1], words[2]);
    (stat.st_mode, stat.st_uid) = (words[3] as u32, (words[3] >> 32) as u32);
    (stat.st_gid, stat.st_rdev) = (words[4] as u32, words[5]);
    (stat.st_size, stat.st_blksize, stat.st_blocks) =
        (words[6] as i64, words[7] as i64, words[8] as i64);
    (stat.st_atime, stat.st_mtime) = (words[9] as i64, words[11] as i64);
    stat
}

/// The times of the last change of the contents (mtime) and of the inode (ctime), in seconds and nanoseconds.
fn stamps(fd: i32) -> Result<[(u64, u64); 2], i32> {
    let mut words = [0u64; 18];
    sc!(SYS_fstat, fd, words.as_mut_ptr())?;
    Ok([(words[11], words[12]), (words[13], words[14])])
}

fn contents(fd: i32) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let n = sc!(SYS_pread64, fd, bytes.as_mut_ptr(), bytes.len(), 0).unwrap_or(0);
    bytes.truncate(n as usize);
    bytes
}

tests! { "file";
    an_open_without_a_descriptor_changes_nothing {
        let dir = scratch();
        let [old, new, fifo] = ["old", "new", "fifo"].map(|name| format!("{dir}/{name}"));
        ok!(sc!(SYS_mknod, path(&fifo), libc::S_IFIFO | 0o600, 0));
        let fd = ok!(sys::open(&old, libc::O_RDWR | libc::O_CREAT, 0o600));
        ok!(sys::write(fd, b"bytes"));
        let limit = [fd as u64 + 1, 4096];
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, limit.as_ptr(), 0));
        while sys::open("/dev/null", 0, 0).is_ok() {}
        fails!(sys::open(&old, libc::O_RDWR | libc::O_TRUNC, 0), EMFILE);
        fails!(sys::open(&new, libc::O_RDWR | libc::O_CREAT, 0o600), EMFILE);
        fails!(sys::open(&fifo, libc::O_WRONLY | libc::O_NONBLOCK, 0), EMFILE);
        is!(ok!(stat(fd)).st_size, 5);
        fails!(sc!(SYS_access, path(&new), 0), ENOENT);
        // What a failed open had reserved is free again.
        ok!(sys::close(0));
        fails!(sys::open(&format!("{dir}/missing/new"), libc::O_RDWR | libc::O_CREAT, 0o600), ENOENT);
        is!(ok!(sys::open(&new, libc::O_RDWR | libc::O_CREAT, 0o600)), 0);
    }
    a_descriptor_that_an_open_waits_for_is_busy {
        let name = format!("{}/fifo", scratch());
        ok!(sc!(SYS_mknod, path(&name), libc::S_IFIFO | 0o600, 0));
        let next = ok!(sys::open("/dev/null", 0, 0));
        ok!(sys::close(next));
        let opens = |name: String| move || sys::open(&name, libc::O_WRONLY | libc::O_CREAT, 0o600);
        let mut opener = std::thread::spawn(opens(name.clone()));
        // On a slow machine the opener comes later than the first of these calls.
        for wait in [200_000, 400_000, 800_000, 1_600_000, 3_200_000] {
            nap_us(wait);
            let second = sc!(SYS_dup2, 2, next);
            if second == Err(libc::EBUSY) { break; }
            is!(second, Ok(next as u64));
            let reader = ok!(sys::open(&name, libc::O_RDONLY, 0));
            let late = opener.join().map_err(|_| "the opener died")?;
            for fd in [next, reader, ok!(late)] { ok!(sys::close(fd)); }
            opener = std::thread::spawn(opens(name.clone()));
        }
        fails!(sc!(SYS_dup2, 2, next), EBUSY);
        fails!(sc!(SYS_fcntl, next, libc::F_GETFD), EBADF);
        fails!(sys::close(next), EBADF);
        let child = in_child(|| i32::from(sc!(SYS_dup2, 2, next) != Ok(next as u64)))?;
        is!(child, 0);
        let reader = ok!(sys::open(&name, libc::O_RDONLY, 0));
        holds!(reader != next);
        is!(opener.join().map_err(|_| "the opener died")?, Ok(next));
    }
    open_errors {
        let dir = scratch();
        let open = |name: &str, flags| sys::open(name, flags, 0o600);
        fails!(open(&format!("{dir}/none"), libc::O_RDONLY), ENOENT);
        fails!(open(&format!("{dir}/none/x"), CREATE), ENOENT);
        fails!(open("/dev/null/x", libc::O_RDONLY), ENOTDIR);
        fails!(open(&dir, libc::O_WRONLY), EISDIR);
        fails!(open(&dir, CREATE), EISDIR);
        fails!(open("", libc::O_RDONLY), ENOENT);
        fails!(open(&"x".repeat(256), libc::O_RDONLY), ENAMETOOLONG);
        fails!(open(&"x/".repeat(2100), libc::O_RDONLY), ENAMETOOLONG);
        fails!(sc!(SYS_openat, libc::AT_FDCWD, 8, 0, 0), EFAULT);
        fails!(sc!(SYS_openat, 9999, path("x"), 0, 0), EBADF);
        ok!(open(&format!("{dir}/f"), CREATE));
        fails!(open(&format!("{dir}/f"), CREATE | libc::O_EXCL), EEXIST);
        fails!(open(&format!("{dir}/f"), libc::O_DIRECTORY), ENOTDIR);
        fails!(open(&format!("{dir}/f/"), libc::O_RDONLY), ENOTDIR);
        ok!(sc!(SYS_symlink, path("f"), path(&format!("{dir}/link"))));
        fails!(open(&format!("{dir}/link"), libc::O_NOFOLLOW), ELOOP);
        fails!(open(&format!("{dir}/link"), CREATE | libc::O_EXCL), EEXIST);
        ok!(open(&format!("{dir}/link"), libc::O_RDONLY));
    }
    openat_relative_to_a_directory {
        let dir = scratch();
        let fd = ok!(sys::open(&dir, libc::O_RDONLY | libc::O_DIRECTORY, 0));
        let file = ok!(sc!(SYS_openat, fd, path("f"), CREATE, 0o640));
        is!(ok!(stat(file as i32)).st_mode & 0o777, 0o640);
        fails!(sc!(SYS_openat, file, path("x"), 0, 0), ENOTDIR);
    }
    lowest_descriptor_is_used {
        let a = ok!(sys::open("/dev/null", 0, 0));
        let b = ok!(sys::open("/dev/null", 0, 0));
        is!(b, a + 1);
        ok!(sys::close(a));
        is!(ok!(sys::open("/dev/null", 0, 0)), a);
    }
    close_twice { let fd = ok!(sys::open("/dev/null", 0, 0)); ok!(sys::close(fd)); fails!(sys::close(fd), EBADF); fails!(sys::close(-1), EBADF); }
    umask_applies {
        is!(ok!(sc!(SYS_umask, 0o027)) & !0o777, 0);
        is!(ok!(sc!(SYS_umask, 0o027)), 0o027);
        let fd = ok!(sys::open(&format!("{}/m", scratch()), CREATE, 0o666));
        is!(ok!(stat(fd)).st_mode & 0o777, 0o640);
    }
    read_write_seek {
        let fd = file_with(b"0123456789")?;
        is!(ok!(sc!(SYS_lseek, fd, 3, libc::SEEK_SET)), 3);
        let mut buf = [0; 4];
        is!(ok!(sys::read(fd, &mut buf)), 4);
        is!(&buf, b"3456");
        is!(ok!(sc!(SYS_lseek, fd, -2i64, libc::SEEK_CUR)), 5);
        is!(ok!(sc!(SYS_lseek, fd, -1i64, libc::SEEK_END)), 9);
        is!(ok!(sys::read(fd, &mut buf)), 1);
        is!(ok!(sys::read(fd, &mut buf)), 0);
        fails!(sc!(SYS_lseek, fd, -1i64, libc::SEEK_SET), EINVAL);
        fails!(sc!(SYS_lseek, fd, 0, 99), EINVAL);
        fails!(sc!(SYS_lseek, 9999, 0, 0), EBADF);
    }
    seeking_out_of_range {
        let fd = file_with(b"0123456789")?;
        fails!(sc!(SYS_lseek, fd, i64::MAX, libc::SEEK_CUR), EINVAL | EOVERFLOW);
        fails!(sc!(SYS_lseek, fd, i64::MAX, libc::SEEK_END), EINVAL | EOVERFLOW);
        fails!(sc!(SYS_lseek, fd, i64::MIN, libc::SEEK_CUR), EINVAL);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), 10);
        let (from, _to) = ok!(sys::pipe(0));
        fails!(sc!(SYS_lseek, from, 0, libc::SEEK_CUR), ESPIPE);
    }
    kernel_addresses_and_huge_lengths {
        const KERNEL: u64 = 0xffff_8880_0000_0000;
        let fd = file_with(b"x")?;
        fails!(sc!(SYS_write, fd, KERNEL, 0), EFAULT);
        fails!(sc!(SYS_read, fd, KERNEL, 0), EFAULT);
        fails!(sc!(SYS_write, fd, KERNEL, 1), EFAULT);
        fails!(sc!(SYS_write, fd, [0u8].as_ptr(), u64::MAX), EFAULT);
        fails!(sc!(SYS_read, fd, [0u8].as_mut_ptr(), u64::MAX), EFAULT);
        fails!(sc!(SYS_pread64, fd, [0u8].as_mut_ptr(), 1u64 << 63, 0), EFAULT);
        fails!(sc!(SYS_writev, fd, [[0u64, u64::MAX]].as_ptr(), 1), EINVAL);
        is!(ok!(sc!(SYS_write, fd, 8, 0)), 0);
    }
    setfl_noatime_is_for_the_owner {
        let fd = file_with(b"x")?;
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFL, libc::O_NOATIME));
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFL, 0));
        is!(in_child(|| {
            let _ = sc!(SYS_setresuid, 1000, 1000, 1000);
            let refused = sc!(SYS_fcntl, fd, libc::F_SETFL, libc::O_NOATIME) == Err(libc::EPERM);
            i32::from(!refused || sc!(SYS_fcntl, fd, libc::F_SETFL, libc::O_APPEND).is_err())
        })?, 0);
    }
    holes_read_as_zeroes {
        let fd = file_with(b"a")?;
        ok!(sc!(SYS_pwrite64, fd, c"z".as_ptr(), 1, 100_000));
        let bytes = contents(fd);
        is!(bytes.len(), 100_001);
        is!([bytes[0], bytes[1], bytes[99_999], bytes[100_000]], [b'a', 0, 0, b'z']);
    }
    append {
        let name = format!("{}/f", scratch());
        let fd = ok!(sys::open(&name, CREATE | libc::O_APPEND, 0o600));
        let other = ok!(sys::open(&name, libc::O_RDWR, 0));
        ok!(sys::write(fd, b"one"));
        ok!(sys::write(other, b"TWOO"));
        ok!(sys::write(fd, b"three"));
        is!(contents(other), b"TWOOthree");
    }
    appending_by_flag_moves_the_position_only_where_that_counts {
        let fd = file_with(b"0123456789")?;
        let list = [b"xy".as_ptr() as u64, 2];
        let append = |fd: i32, at: i64| sc!(SYS_pwritev2, fd, list.as_ptr(), 1, at, 0, libc::RWF_APPEND);
        ok!(sc!(SYS_lseek, fd, 3, 0));
        is!(ok!(append(fd, -1)), 2);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), 12);
        ok!(sc!(SYS_lseek, fd, 3, 0));
        is!(ok!(append(fd, 0)), 2);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), 3);
        is!(contents(fd), b"0123456789xyxy");
        fails!(append(fd, -2), EINVAL);
        fails!(append(9999, -2), EINVAL);
        let (from, to) = ok!(sys::pipe(0));
        is!(ok!(append(to, -1)), 2);
        fails!(append(to, 0), ESPIPE);
        fails!(append(from, 0), ESPIPE);
        fails!(append(from, -1), EBADF);
    }
    those_who_append_by_flag_lose_nothing {
        const EACH: u64 = 500;
        let fd = file_with(b"")?;
        let threads = [0i64, -1, 7].map(|at| std::thread::spawn(move || {
            let list = [b"record".as_ptr() as u64, 6];
            (0..EACH).all(|_| sc!(SYS_pwritev2, fd, list.as_ptr(), 1, at, 0, libc::RWF_APPEND) == Ok(6))
        }));
        for thread in threads {
            holds!(thread.join().unwrap_or(false));
        }
        is!(contents(fd).len() as u64, 3 * EACH * 6);
    }
    bad_buffers_and_descriptors {
        let fd = file_with(b"x")?;
        fails!(sc!(SYS_read, 9999, 8, 1), EBADF);
        fails!(sc!(SYS_write, 9999, 8, 1), EBADF);
        fails!(sc!(SYS_write, fd, 8, 1), EFAULT);
        ok!(sc!(SYS_lseek, fd, 0, 0));
        fails!(sc!(SYS_read, fd, 8, 1), EFAULT);
        is!(ok!(sc!(SYS_read, fd, 8, 0)), 0);
        let dir = ok!(sys::open("/tmp", 0, 0));
        fails!(sys::read(dir, &mut [0]), EISDIR);
        let reader = ok!(sys::open("/dev/null", libc::O_RDONLY, 0));
        fails!(sys::write(reader, b"x"), EBADF);
        fails!(sc!(SYS_pread64, fd, 8, 1, -1i64), EINVAL);
    }
    vectors {
        let fd = file_with(b"")?;
        let (a, b) = (*b"hello ", *b"world");
        let list = [a.as_ptr() as u64, 6, b.as_ptr() as u64, 5];
        is!(ok!(sc!(SYS_writev, fd, list.as_ptr(), 2)), 11);
        ok!(sc!(SYS_lseek, fd, 0, 0));
        let (mut c, mut d) = ([0u8; 3], [0u8; 8]);
        let list = [c.as_mut_ptr() as u64, 3, d.as_mut_ptr() as u64, 8];
        is!(ok!(sc!(SYS_readv, fd, list.as_ptr(), 2)), 11);
        is!([&c[..], &d[..]].concat(), b"hello world");
        fails!(sc!(SYS_readv, fd, list.as_ptr(), -1i64), EINVAL);
        fails!(sc!(SYS_readv, fd, list.as_ptr(), 1025), EINVAL);
        fails!(sc!(SYS_readv, fd, 8, 1), EFAULT);
        fails!(sc!(SYS_writev, fd, [0u64, u64::MAX].as_ptr(), 1), EINVAL);
    }
    truncate_shrinks_and_grows {
        let name = format!("{}/f", scratch());
        let fd = ok!(sys::open(&name, CREATE, 0o600));
        ok!(sys::write(fd, &[7; 9000]));
        ok!(sc!(SYS_ftruncate, fd, 5000));
        ok!(sc!(SYS_truncate, path(&name), 9000));
        let bytes = contents(fd);
        is!(bytes.len(), 9000);
        is!([bytes[4999], bytes[5000], bytes[8999]], [7, 0, 0]);
        fails!(sc!(SYS_ftruncate, fd, -1i64), EINVAL);
        fails!(sc!(SYS_ftruncate, 9999, 0), EBADF);
        fails!(sc!(SYS_truncate, path("/nonexistent"), 0), ENOENT);
        fails!(sc!(SYS_truncate, path("/tmp"), 0), EISDIR);
        let reader = ok!(sys::open(&name, libc::O_RDONLY, 0));
        fails!(sc!(SYS_ftruncate, reader, 0), EINVAL | EBADF);
        ok!(sys::open(&name, libc::O_RDWR | libc::O_TRUNC, 0));
        is!(ok!(stat(fd)).st_size, 0);
    }
    rlimit_fsize {
        let limit = [10_000u64, 10_000];
        let fd = file_with(b"")?;
        is!(in_child(|| {
            let _ = sys::on_signal(libc::SIGXFSZ, libc::SIG_IGN, 0);
            let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, limit.as_ptr(), 0);
            let short = sys::write(fd, &[1; 20_000]) == Ok(10_000);
            i32::from(!short || sys::write(fd, &[1]) != Err(libc::EFBIG))
        })?, 0);
    }
    dup_family {
        let fd = file_with(b"abc")?;
        ok!(sc!(SYS_lseek, fd, 1, 0));
        let copy = ok!(sc!(SYS_dup, fd)) as i32;
        is!(ok!(sc!(SYS_lseek, copy, 0, libc::SEEK_CUR)), 1);
        is!(ok!(sc!(SYS_dup2, fd, 77)), 77);
        is!(ok!(sc!(SYS_dup2, fd, fd)), fd as u64);
        is!(ok!(sc!(SYS_dup3, fd, 78, libc::O_CLOEXEC)), 78);
        is!([ok!(sc!(SYS_fcntl, 77, libc::F_GETFD)), ok!(sc!(SYS_fcntl, 78, libc::F_GETFD))], [0, 1]);
        fails!(sc!(SYS_dup3, fd, fd, 0), EINVAL);
        fails!(sc!(SYS_dup3, fd, 79, 0x77), EINVAL);
        fails!(sc!(SYS_dup2, 9999, 80), EBADF);
        fails!(sc!(SYS_dup2, fd, -1i64), EBADF);
        fails!(sc!(SYS_dup2, fd, 1 << 30), EBADF);
        fails!(sc!(SYS_dup, -1i64), EBADF);
    }
    fcntl_family {
        let fd = file_with(b"")?;
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFL)) & 3, libc::O_RDWR as u64);
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFL, libc::O_APPEND | libc::O_NONBLOCK));
        let both = (libc::O_APPEND | libc::O_NONBLOCK) as u64;
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFL)) & both, both);
        ok!(sc!(SYS_fcntl, fd, libc::F_SETFD, libc::FD_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), 1);
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_DUPFD, 100)), 100);
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 100)), 101);
        fails!(sc!(SYS_fcntl, fd, libc::F_DUPFD, -1i64), EINVAL);
        fails!(sc!(SYS_fcntl, 9999, libc::F_GETFD), EBADF);
        fails!(sc!(SYS_fcntl, fd, 9999), EINVAL);
    }
    no_number_is_given_out_on_two_cpus {
        // A pipe's inode number comes from the same counters as a file's, and a pipe is the cheapest to create.
        let number = || -> Result<u64, i32> {
            let (from, to) = sys::pipe(0)?;
            let ino = stat(from)?.st_ino;
            sys::close(from)?;
            sys::close(to)?;
            Ok(ino)
        };
        let cpus = sys::cpus();
        let mut first = 0;
        for &cpu in &cpus {
            ok!(sys::tie_to_cpu(cpu));
            first = first.max(ok!(number()));
        }
        // Each CPU allocates from the same range, whatever CPU the test ran on before.
        let (last, mut seen) = (first + 64 * cpus.len() as u64, std::collections::HashSet::new());
        for &cpu in &cpus {
            ok!(sys::tie_to_cpu(cpu));
            loop {
                let ino = ok!(number());
                holds!(ino <= first || seen.insert(ino));
                if ino >= last { break }
            }
        }
    }
    stat_family {
        let name = format!("{}/f", scratch());
        let fd = ok!(sys::open(&name, CREATE, 0o600));
        ok!(sys::write(fd, b"hello"));
        let st = ok!(stat(fd));
        is!((st.st_mode, st.st_nlink, st.st_size, st.st_uid), (0o100_600, 1, 5, 0));
        let mut buf = [0u64; 18];
        ok!(sc!(SYS_stat, path(&name), buf.as_mut_ptr()));
        is!(as_stat(&buf).st_ino, st.st_ino);
        ok!(sc!(SYS_newfstatat, fd, path(""), buf.as_mut_ptr(), libc::AT_EMPTY_PATH));
        is!(as_stat(&buf).st_ino, st.st_ino);
        fails!(sc!(SYS_newfstatat, fd, path(""), buf.as_mut_ptr(), 0), ENOENT);
        fails!(sc!(SYS_newfstatat, libc::AT_FDCWD, path(&name), buf.as_mut_ptr(), 0x8_0000), EINVAL);
        fails!(sc!(SYS_newfstatat, libc::AT_FDCWD, path(&name), 8, 0), EFAULT);
        fails!(sc!(SYS_stat, path("/nonexistent"), buf.as_mut_ptr()), ENOENT);
        fails!(sc!(SYS_fstat, 9999, buf.as_mut_ptr()), EBADF);
        ok!(sc!(SYS_symlink, path("f"), path(&format!("{name}.l"))));
        ok!(sc!(SYS_lstat, path(&format!("{name}.l")), buf.as_mut_ptr()));
        is!(as_stat(&buf).st_mode & libc::S_IFMT, libc::S_IFLNK);
        let null = ok!(stat(ok!(sys::open("/dev/null", 0, 0))));
        is!((null.st_mode & libc::S_IFMT, null.st_rdev), (libc::S_IFCHR, 0x103));
    }
    chmod_chown_utimens {
        let name = format!("{}/f", scratch());
        let fd = ok!(sys::open(&name, CREATE, 0o600));
        ok!(sc!(SYS_chmod, path(&name), 0o4755));
        is!(ok!(stat(fd)).st_mode & 0o7777, 0o4755);
        ok!(sc!(SYS_fchmod, fd, 0o640));
        ok!(sc!(SYS_fchown, fd, 7, 8));
        let st = ok!(stat(fd));
        is!((st.st_mode & 0o7777, st.st_uid, st.st_gid), (0o640, 7, 8));
        ok!(sc!(SYS_chown, path(&name), -1i64, 9));
        is!((ok!(stat(fd)).st_uid, ok!(stat(fd)).st_gid), (7, 9));
        let times = [1000u64, 0, 2000, 0];
        ok!(sc!(SYS_utimensat, libc::AT_FDCWD, path(&name), times.as_ptr(), 0));
        is!((ok!(stat(fd)).st_atime, ok!(stat(fd)).st_mtime), (1000, 2000));
        fails!(sc!(SYS_chmod, path("/nonexistent"), 0), ENOENT);
        fails!(sc!(SYS_fchmod, 9999, 0), EBADF);
        let wrong = [0u64, 2_000_000_000, 0, 0];
        fails!(sc!(SYS_utimensat, libc::AT_FDCWD, path(&name), wrong.as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_utimensat, libc::AT_FDCWD, path("/nonexistent"), wrong.as_ptr(), 0), ENOENT);
        holds!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFL)) & 0o100_000 != 0);
    }
    stores_through_a_shared_mapping_stamp_the_file {
        let fd = file_with(&[0; 4 * 4096])?;
        let pause = || std::thread::sleep(std::time::Duration::from_millis(30));
        let made = ok!(stamps(fd));
        let private = ok!(sys::mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        let at = ok!(sys::mmap(0, 4 * PAGE, RW, libc::MAP_SHARED, fd, 0));
        pause();
        sys::poke(private, 1);
        is!(ok!(stamps(fd)), made);
        sys::poke(at, 1);
        let stored = ok!(stamps(fd));
        holds!(stored[0] > made[0] && stored[1] > made[1]);
        pause();
        // A load does not update the times.
        is!(sys::peek(at), 1);
        is!(ok!(stamps(fd)), stored);
        sys::poke(at + PAGE, 1);
        pause();
        let older = ok!(stamps(fd));
        pause();
        is!(ok!(stamps(fd)), older);
        holds!(older[0] > stored[0]);
        // Times set explicitly stay, and a later store updates them again.
        sys::poke(at + 2 * PAGE, 1);
        ok!(sc!(SYS_utimensat, fd, 0, [1000u64, 0, 2000, 0].as_ptr(), 0));
        is!(ok!(stamps(fd))[0], (2000, 0));
        sys::poke(at + 3 * PAGE, 1);
        pause();
        // A change of mode does not count as a store.
        ok!(sc!(SYS_fchmod, fd, 0o600));
        let [modified, changed] = ok!(stamps(fd));
        holds!(modified > older[0] && modified < changed);
    }
    permissions_bind_others {
        let dir = scratch();
        let name = format!("{dir}/f");
        let fd = ok!(sys::open(&name, CREATE, 0o640));
        ok!(sc!(SYS_fchmod, fd, 0o640));
        ok!(sc!(SYS_chmod, path(&dir), 0o755));
        is!(in_child(|| {
            let _ = (sc!(SYS_setresgid, 1000, 1000, 1000), sc!(SYS_setgroups, 0, 0), sc!(SYS_setresuid, 1000, 1000, 1000));
            let steps = [
                sys::open(&name, libc::O_RDONLY, 0) == Err(libc::EACCES),
                sc!(SYS_access, path(&name), libc::R_OK) == Err(libc::EACCES),
                sc!(SYS_chmod, path(&name), 0o666) == Err(libc::EPERM),
                sc!(SYS_chown, path(&name), 1000, -1i64) == Err(libc::EPERM),
                sc!(SYS_unlink, path(&name)) == Err(libc::EACCES),
                sys::open(&format!("{dir}/new"), CREATE, 0o600) == Err(libc::EACCES),
            ];
            steps.iter().position(|&right| !right).map_or(0, |i| i as i32 + 1)
        })?, 0);
    }
    access_checks {
        let name = format!("{}/f", scratch());
        ok!(sys::open(&name, CREATE, 0o600));
        ok!(sc!(SYS_access, path(&name), libc::F_OK));
        ok!(sc!(SYS_access, path(&name), libc::R_OK | libc::W_OK));
        fails!(sc!(SYS_access, path(&name), libc::X_OK), EACCES);
        fails!(sc!(SYS_access, path(&name), 0o77), EINVAL);
        fails!(sc!(SYS_access, path("/nonexistent"), 0), ENOENT);
        ok!(sc!(SYS_faccessat, libc::AT_FDCWD, path(&name), libc::F_OK));
    }
    devices {
        let null = ok!(sys::open("/dev/null", libc::O_RDWR, 0));
        is!(ok!(sys::write(null, b"gone")), 4);
        is!(ok!(sys::read(null, &mut [1])), 0);
        let zero = ok!(sys::open("/dev/zero", libc::O_RDWR, 0));
        let mut buf = [1u8; 100];
        is!(ok!(sys::read(zero, &mut buf)), 100);
        is!(buf, [0; 100]);
        let full = ok!(sys::open("/dev/full", libc::O_RDWR, 0));
        fails!(sys::write(full, b"x"), ENOSPC);
        is!(ok!(sys::read(full, &mut buf)), 100);
        let random = ok!(sys::open("/dev/urandom", libc::O_RDONLY, 0));
        is!(ok!(sys::read(random, &mut buf)), 100);
        holds!(buf.iter().any(|&b| b != buf[0]));
        let map = ok!(sys::mmap(0, PAGE, RW, libc::MAP_PRIVATE, zero, 0));
        sys::poke(map, 1);
        is!([sys::peek(map), sys::peek(map + 1)], [1, 0]);
    }
    ioctls {
        let fd = file_with(b"")?;
        let mut termios = [0u8; 64];
        fails!(sc!(SYS_ioctl, fd, libc::TCGETS, termios.as_mut_ptr()), ENOTTY);
        fails!(sc!(SYS_ioctl, 9999, libc::TCGETS, termios.as_mut_ptr()), EBADF);
        let null = ok!(sys::open("/dev/null", 0, 0));
        fails!(sc!(SYS_ioctl, null, libc::TIOCGWINSZ, termios.as_mut_ptr()), ENOTTY);
    }
    sendfile_copies {
        let (from, to) = (file_with(b"hello world")?, file_with(b"")?);
        ok!(sc!(SYS_lseek, from, 0, 0));
        let mut at = 6u64;
        is!(ok!(sc!(SYS_sendfile, to, from, &raw mut at, 100)), 5);
        is!(at, 11);
        is!(ok!(sc!(SYS_sendfile, to, from, 0, 5)), 5);
        is!(contents(to), b"worldhello");
        fails!(sc!(SYS_sendfile, to, 9999, 0, 5), EBADF);
    }
    syncs {
        let fd = file_with(b"x")?;
        ok!(sc!(SYS_fsync, fd));
        ok!(sc!(SYS_fdatasync, fd));
        fails!(sc!(SYS_fsync, 9999), EBADF);
        let (from, _) = ok!(sys::pipe(0));
        fails!(sc!(SYS_fsync, from), EINVAL);
    }
    proc_self_fd_and_exe {
        let name = format!("{}/f", scratch());
        let fd = ok!(sys::open(&name, CREATE, 0o600));
        let mut buf = [0u8; 300];
        let n = ok!(sc!(SYS_readlink, path(&format!("/proc/self/fd/{fd}")), buf.as_mut_ptr(), 300)) as usize;
        is!(&buf[..n], name.as_bytes());
        let n = ok!(sc!(SYS_readlink, path("/proc/self/exe"), buf.as_mut_ptr(), 300)) as usize;
        holds!(buf[..n].ends_with(b"abitest"));
        let again = ok!(sys::open(&format!("/dev/fd/{fd}"), libc::O_RDWR, 0));
        ok!(sys::write(again, b"x"));
        is!(contents(fd), b"x");
    }
    statfs_family {
        let mut buf = [0u64; 15];
        ok!(sc!(SYS_statfs, path("/tmp"), buf.as_mut_ptr()));
        holds!(buf[1] > 0);
        fails!(sc!(SYS_statfs, path("/nonexistent"), buf.as_mut_ptr()), ENOENT);
        fails!(sc!(SYS_fstatfs, 9999, buf.as_mut_ptr()), EBADF);
    }
    a_copy_within_a_file_ends_where_the_file_does {
        let fd = file_with(b"abcdef")?;
        let (mut from, mut to) = (2u64, 6u64);
        is!(ok!(sc!(SYS_copy_file_range, fd, &raw mut from, fd, &raw mut to, 1000, 0)), 4);
        is!((from, to), (6, 10));
        let mut bytes = [0; 11];
        is!(ok!(sc!(SYS_pread64, fd, bytes.as_mut_ptr(), 11, 0)), 10);
        is!(&bytes[..10], b"abcdefcdef");
        (from, to) = (3, 6);
        fails!(sc!(SYS_copy_file_range, fd, &raw mut from, fd, &raw mut to, 9, 0), EINVAL);
        from = 11;
        is!(ok!(sc!(SYS_copy_file_range, fd, &raw mut from, fd, 0, 9, 0)), 0);
    }
    two_processes_share_an_offset {
        let fd = file_with(b"abcdef")?;
        ok!(sc!(SYS_lseek, fd, 0, 0));
        is!(in_child(|| i32::from(sys::read(fd, &mut [0; 2]) != Ok(2)))?, 0);
        is!(ok!(sc!(SYS_lseek, fd, 0, libc::SEEK_CUR)), 2);
    }
}
