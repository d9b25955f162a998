//! Files in memory: the memory that they take, their holes, and the limit on their number.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::harness::*;
use user::sys;

const CWD: i32 = libc::AT_FDCWD;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

fn seek(fd: i32, to: u64, whence: i32) -> Result<u64, i32> {
    sc!(SYS_lseek, fd, to, whence)
}

fn put(fd: i32, at: u64) -> Result<u64, i32> {
    sc!(SYS_pwrite64, fd, b"x".as_ptr(), 1, at)
}

fn blocks(fd: i32) -> i64 {
    let mut stat = sys::zeroed_stat();
    let _ = sc!(SYS_fstat, fd, &raw mut stat);
    stat.st_blocks
}

/// Runs `f` in a directory that is a separate tmpfs with these options.
pub fn mounted(options: &str, f: impl FnOnce(&str) -> Result<(), String>) -> Result<(), String> {
    let dir = scratch();
    let kind = path("tmpfs");
    ok!(sc!(SYS_mount, kind, path(&dir), kind, 0, path(options)));
    let result = f(&dir);
    ok!(sc!(SYS_umount2, path(&dir), libc::MNT_DETACH));
    result
}

/// What statfs(2) says.
fn room(dir: &str) -> [u64; 15] {
    let mut raw = [0u64; 15];
    let _ = sc!(SYS_statfs, path(dir), raw.as_mut_ptr());
    raw
}

/// The limit on the number of files, and how many are free.
fn files(dir: &str) -> [u64; 2] {
    let raw = room(dir);
    [raw[5], raw[6]]
}

/// Bytes that take long to write.
const LARGE: u64 = 64 * MIB;

/// `fill` makes [`LARGE`] bytes of a file; a kill meanwhile ends it before all are there.
fn ends_with_a_kill(fill: impl Fn(i32) -> Result<u64, i32>) -> Result<(), String> {
    mounted("mode=755", |dir| {
        let name = format!("{dir}/f");
        // The kill may come too late once or twice, but not always.
        for _ in 0..10 {
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
            let fd = ok!(sys::open(&name, flags, 0o600));
            let pid = ok!(sys::fork());
            if pid == 0 {
                sys::exit(i32::from(fill(fd).is_err()));
            }
            let began = sys::now_ns();
            while blocks(fd) == 0 && sys::now_ns() - began < 2_000_000_000 {
                std::hint::spin_loop();
            }
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            let (_, status) = ok!(sys::wait(pid as i64, 0));
            let left = blocks(fd);
            ok!(sys::close(fd));
            if status == libc::SIGKILL && left < (LARGE / 512) as i64 {
                return Ok(());
            }
        }
        Err("each call went on to its end".to_owned())
    })
}

fn make(name: &str) -> Result<u64, i32> {
    sc!(SYS_mknod, path(name), libc::S_IFREG | 0o600, 0)
}

tests! { "tmpfs";
    a_kill_ends_an_allocation {
        ends_with_a_kill(|fd| sc!(SYS_fallocate, fd, 0, 0, LARGE))?;
    }
    a_kill_ends_a_write {
        let bytes = vec![1u8; MIB as usize];
        let parts = vec![[bytes.as_ptr() as u64, MIB]; (LARGE / MIB) as usize];
        ends_with_a_kill(|fd| sc!(SYS_writev, fd, parts.as_ptr(), parts.len()))?;
    }
    a_failed_allocation_takes_back_only_its_own_pages {
        mounted("mode=755,size=64k", |dir| {
            let fd = ok!(sys::open(&format!("{dir}/f"), libc::O_RDWR | libc::O_CREAT, 0o600));
            ok!(put(fd, 3 * 4096));
            ok!(sc!(SYS_fallocate, fd, 0, 40 * 4096, 4096));
            fails!(sc!(SYS_fallocate, fd, 0, 0, MIB), ENOSPC);
            is!(blocks(fd), 16);
            is!(ok!(seek(fd, 0, libc::SEEK_DATA)), 3 * 4096);
            ok!(sys::close(fd));
            Ok(())
        })?;
    }
    a_failed_allocation_keeps_what_was_stored_meanwhile {
        const LEN: u64 = 32 * MIB;
        mounted("mode=755,size=16m", |dir| {
            let fd = ok!(sys::open(&format!("{dir}/f"), libc::O_RDWR | libc::O_CREAT, 0o600));
            ok!(sc!(SYS_ftruncate, fd, LEN));
            let (both, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let at = ok!(sys::mmap(0, 4096, both, shared, fd, 0));
            let over = ok!(sys::mmap(0, 4096, both, shared | libc::MAP_ANONYMOUS, -1, 0));
            // The other process may come too late once or twice.
            for _ in 0..10 {
                sys::poke(over, 0);
                let pid = ok!(sys::fork());
                if pid == 0 {
                    while blocks(fd) == 0 {
                        if sys::peek(over) != 0 { sys::exit(1); }
                    }
                    sys::poke(at, 7);
                    sys::exit(0);
                }
                fails!(sc!(SYS_fallocate, fd, 0, 0, LEN), ENOSPC);
                sys::poke(over, 1);
                let (_, status) = ok!(sys::wait(pid as i64, 0));
                if status == 0 {
                    is!(sys::peek(at), 7);
                    is!(blocks(fd), 8);
                    break;
                }
            }
            ok!(sys::munmap(at, 4096));
            ok!(sys::munmap(over, 4096));
            ok!(sys::close(fd));
            Ok(())
        })?;
    }
    a_program_that_lost_its_name_is_freed {
        let bytes = std::fs::read("/bin/true").unwrap_or_default();
        mounted("mode=755", |dir| {
            let free = || room(dir)[3];
            let before = free();
            let name = format!("{dir}/program");
            let fd = ok!(sys::open(&name, libc::O_WRONLY | libc::O_CREAT, 0o700));
            is!(ok!(sys::write(fd, &bytes)), bytes.len());
            ok!(sys::close(fd));
            let fd = ok!(sys::open(&name, libc::O_RDONLY, 0));
            ok!(sc!(SYS_unlink, path(&name)));
            let program = path(&format!("/proc/self/fd/{fd}"));
            for _ in 0..20 {
                let pid = ok!(sys::fork());
                if pid == 0 {
                    let _ = sc!(SYS_execve, program, [program, 0].as_ptr(), [0u64].as_ptr());
                    sys::exit(9);
                }
                is!(ok!(sys::wait(pid as i64, 0)).1, 0);
            }
            holds!(free() < before);
            ok!(sys::close(fd));
            holds!(soon(|| free() == before));
            Ok(())
        })?;
    }
    a_renamed_file_has_one_of_its_names {
        let dir = scratch();
        // So many that two names are seldom in one leaf of the directory's table.
        for n in 0..100 { ok!(make(&format!("{dir}/{n}"))); }
        let name = |n: u32| format!("{dir}/moves.{n}");
        ok!(make(&name(0)));
        let (missed, end) = (AtomicU32::new(0), sys::now_ns() + 1_000_000_000);
        let late = || sys::now_ns() > end;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0.. {
                    while missed.load(Ordering::SeqCst) < n {
                        if late() { return; }
                        let _ = sc!(SYS_sched_yield);
                    }
                    let _ = sc!(SYS_rename, path(&name(n)), path(&name(n + 1)));
                }
            });
            for n in 0.. {
                let [old, new] = [path(&name(n)), path(&name(n + 1))];
                let mut stat = sys::zeroed_stat();
                while sc!(SYS_stat, old, &raw mut stat).is_ok() {
                    if late() { return Ok(()); }
                    if n % 2 == 0 { let _ = sc!(SYS_sched_yield); }
                }
                ok!(sc!(SYS_stat, new, &raw mut stat));
                missed.store(n + 1, Ordering::SeqCst);
            }
            Ok(())
        })?;
    }
    a_hole_takes_no_blocks {
        let fd = file_with(b"")?;
        is!(blocks(fd), 0);
        ok!(put(fd, 5 * MIB));
        is!(blocks(fd), 8);
        ok!(put(fd, 300 * MIB));
        ok!(put(fd, 0));
        is!(blocks(fd), 24);
        ok!(sc!(SYS_ftruncate, fd, TIB));
        is!(blocks(fd), 24);
        ok!(put(fd, TIB - 1));
        is!(blocks(fd), 32);
        ok!(sc!(SYS_ftruncate, fd, 6 * MIB));
        is!(blocks(fd), 16);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        ok!(sc!(SYS_fallocate, fd, punch, 0, 5 * MIB));
        is!(blocks(fd), 8);
        let whole = file_with(&vec![1; 5 * MIB as usize])?;
        is!(blocks(whole), 5 * 2048);
    }
    data_and_holes_are_found {
        let fd = file_with(b"")?;
        let (data, hole) = (libc::SEEK_DATA, libc::SEEK_HOLE);
        fails!(seek(fd, 0, data), ENXIO);
        fails!(seek(fd, 0, hole), ENXIO);
        ok!(put(fd, 5 * MIB));
        is!(ok!(seek(fd, 0, data)), 5 * MIB);
        is!(ok!(seek(fd, 0, libc::SEEK_CUR)), 5 * MIB);
        is!(ok!(seek(fd, 0, hole)), 0);
        is!(ok!(seek(fd, 77, hole)), 77);
        is!(ok!(seek(fd, 5 * MIB - 1, hole)), 5 * MIB - 1);
        is!(ok!(seek(fd, 5 * MIB, hole)), 5 * MIB + 1);
        is!(ok!(seek(fd, 5 * MIB, data)), 5 * MIB);
        fails!(seek(fd, 5 * MIB + 1, data), ENXIO);
        fails!(seek(fd, 5 * MIB + 1, hole), ENXIO);
        fails!(seek(fd, u64::MAX, data), ENXIO);
        // Pages 1280 and 1281, and one far away, in a longer file.
        ok!(put(fd, 5 * MIB + 4096));
        ok!(put(fd, TIB));
        ok!(sc!(SYS_ftruncate, fd, TIB + MIB));
        is!(ok!(seek(fd, 5 * MIB + 5, data)), 5 * MIB + 5);
        is!(ok!(seek(fd, 5 * MIB + 5, hole)), 5 * MIB + 8192);
        is!(ok!(seek(fd, 5 * MIB + 8192, data)), TIB);
        is!(ok!(seek(fd, TIB, hole)), TIB + 4096);
        is!(ok!(seek(fd, TIB + 5000, hole)), TIB + 5000);
        fails!(seek(fd, TIB + 4096, data), ENXIO);
        // Many full nodes of the index, next to each other.
        let full = file_with(&vec![1; MIB as usize])?;
        is!(ok!(seek(full, 1, hole)), MIB);
        ok!(sc!(SYS_ftruncate, full, 2 * MIB));
        is!(ok!(seek(full, 1, hole)), MIB);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        ok!(sc!(SYS_fallocate, full, punch, 64 * 4096, 4096));
        is!(ok!(seek(full, 1, hole)), 64 * 4096);
        is!(ok!(seek(full, 64 * 4096 + 1, data)), 65 * 4096);
    }
    positions_end_where_they_fit {
        let fd = file_with(b"0123456789")?;
        let (end, buf) = (i64::MAX as u64, [0u8; 8].as_mut_ptr());
        fails!(sc!(SYS_pwrite64, fd, buf, 1, end), EINVAL);
        fails!(sc!(SYS_pwrite64, fd, buf, 8, end - 7), EINVAL);
        fails!(sc!(SYS_pread64, fd, buf, 1, end), EINVAL);
        is!(ok!(sc!(SYS_pread64, fd, buf, 7, end - 7)), 0);
        is!(ok!(sc!(SYS_pwrite64, fd, buf, 0, end)), 0);
        let both = [[buf as u64, 4], [buf as u64, 4]];
        fails!(sc!(SYS_pwritev, fd, both.as_ptr(), 2, end - 7, 0), EINVAL);
        is!(ok!(sc!(SYS_preadv, fd, both.as_ptr(), 2, end - 8, 0)), 0);
        is!(ok!(seek(fd, end, libc::SEEK_SET)), end);
        fails!(sys::read(fd, &mut [0]), EINVAL);
        fails!(sys::write(fd, &[0]), EINVAL);
    }
    files_and_names_are_counted {
        mounted("size=64k,nr_inodes=6", |dir| {
            let at = |name: &str| format!("{dir}/{name}");
            is!(files(dir), [6, 5]);
            ok!(make(&at("a")));
            ok!(sc!(SYS_mkdir, path(&at("d")), 0o700));
            ok!(sc!(SYS_symlink, path("a"), path(&at("l"))));
            ok!(sc!(SYS_link, path(&at("a")), path(&at("b"))));
            is!(files(dir), [6, 1]);
            ok!(sc!(SYS_link, path(&at("a")), path(&at("c"))));
            is!(files(dir), [6, 0]);
            fails!(make(&at("x")), ENOSPC);
            fails!(sc!(SYS_link, path(&at("a")), path(&at("x"))), ENOSPC);
            fails!(sc!(SYS_mkdir, path(&at("x")), 0o700), ENOSPC);
            fails!(sc!(SYS_symlink, path("a"), path(&at("x"))), ENOSPC);
            fails!(sys::open(dir, libc::O_TMPFILE | libc::O_RDWR, 0o600), ENOSPC);
            // A rename frees the name that it replaces.
            ok!(sc!(SYS_rename, path(&at("l")), path(&at("c"))));
            is!(files(dir), [6, 1]);
            ok!(sc!(SYS_unlink, path(&at("a"))));
            is!(files(dir), [6, 2]);
            // The last name is removed; the file is freed with its last descriptor.
            let fd = ok!(sys::open(&at("b"), libc::O_RDONLY, 0));
            ok!(sc!(SYS_unlink, path(&at("b"))));
            is!(files(dir), [6, 2]);
            ok!(sys::close(fd));
            holds!(soon(|| files(dir) == [6, 3]));
            let fd = ok!(sys::open(dir, libc::O_TMPFILE | libc::O_RDWR, 0o600));
            is!(files(dir), [6, 2]);
            let from = path(&format!("/proc/self/fd/{fd}"));
            ok!(sc!(SYS_linkat, CWD, from, CWD, path(&at("n")), libc::AT_SYMLINK_FOLLOW));
            is!(files(dir), [6, 2]);
            ok!(sys::close(fd));
            ok!(sc!(SYS_unlink, path(&at("n"))));
            ok!(sc!(SYS_unlink, path(&at("c"))));
            ok!(sc!(SYS_rmdir, path(&at("d"))));
            holds!(soon(|| files(dir) == [6, 5]));
            Ok(())
        })?;
    }
    the_number_of_files_changes_by_remounting {
        mounted("nr_inodes=1k", |dir| {
            let set = |options: &str| sc!(SYS_mount, 0, path(dir), 0, libc::MS_REMOUNT, path(options));
            is!(files(dir), [1024, 1023]);
            for name in ["a", "b", "c"] { ok!(make(&format!("{dir}/{name}"))); }
            fails!(set("nr_inodes=3"), EINVAL);
            fails!(set("size=128k,nr_inodes=3"), EINVAL);
            fails!(set("nr_inodes=x"), EINVAL);
            is!(files(dir), [1024, 1020]);
            ok!(set("nr_inodes=4"));
            is!(files(dir), [4, 0]);
            fails!(make(&format!("{dir}/d")), ENOSPC);
            ok!(set("nr_inodes=5"));
            ok!(make(&format!("{dir}/d")));
            let shown = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
            holds!(shown.lines().any(|line| line.contains(dir) && line.contains("nr_inodes=5")));
            Ok(())
        })?;
        mounted("nr_inodes=0", |dir| {
            is!(files(dir), [0, 0]);
            ok!(make(&format!("{dir}/a")));
            Ok(())
        })?;
        mounted("", |dir| {
            let raw = room(dir);
            // The default limits: half of memory in pages, and as many files.
            is!(raw[5], raw[2]);
            Ok(())
        })?;
    }
    long_texts_of_links_take_room {
        mounted("size=8k", |dir| {
            let link = |name: &str, len: usize| {
                sc!(SYS_symlink, path(&"t".repeat(len)), path(&format!("{dir}/{name}")))
            };
            let free = || room(dir)[3];
            let taken = |name: &str| {
                let mut stat = sys::zeroed_stat();
                let _ = sc!(SYS_lstat, path(&format!("{dir}/{name}")), &raw mut stat);
                (stat.st_blocks, stat.st_size)
            };
            ok!(link("short", 127));
            is!((taken("short"), free()), ((0, 127), 2));
            ok!(link("long", 128));
            is!((taken("long"), free()), ((8, 128), 1));
            ok!(link("longest", 4095));
            is!((taken("longest"), free()), ((8, 4095), 0));
            fails!(link("more", 128), ENOSPC);
            ok!(link("still", 127));
            ok!(sc!(SYS_unlink, path(&format!("{dir}/long"))));
            holds!(soon(|| free() == 1));
            ok!(link("more", 200));
            fails!(link("too", 4096), ENAMETOOLONG);
            Ok(())
        })?;
    }
    names_in_a_directory_of_all_sizes {
        let dir = scratch();
        let name = |n: u32| format!("{dir}/{}", n.wrapping_mul(2_654_435_761));
        let mut most = 0;
        for (up, down) in [(7, 0), (40, 5), (700, 300), (3000, 0)] {
            for n in most..up { ok!(make(&name(n))); }
            for n in 0..up + 3 { is!((n, std::fs::symlink_metadata(name(n)).is_ok()), (n, n < up)); }
            // A name moved within the directory is found only under its new name.
            for n in (0..up).step_by(7) {
                ok!(sc!(SYS_rename, path(&name(n)), path(&name(n + 1_000_000))));
                holds!(std::fs::symlink_metadata(name(n)).is_err());
                ok!(sc!(SYS_renameat2, CWD, path(&name(n + 1_000_000)), CWD, path(&name(n)), libc::RENAME_NOREPLACE));
            }
            for n in down..up { ok!(sc!(SYS_unlink, path(&name(n)))); }
            most = down;
            is!(std::fs::read_dir(&dir).map_or(0, Iterator::count), down as usize);
        }
    }
}
