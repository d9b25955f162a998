//! Bugs found by comparing random programs with Linux: which errno has precedence, the effects of a call before it
//! fails, and effects that only other calls show.

use crate::harness::*;
use user::sys;

const MOVED: i32 = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
const SHARED: i32 = libc::MAP_SHARED | libc::MAP_ANONYMOUS;

fn shared(pages: u64) -> Result<u64, i32> {
    sys::mmap(0, pages * PAGE, RW, SHARED, -1, 0)
}

fn is_mapped(at: u64) -> bool {
    sc!(SYS_mincore, at, PAGE, [0u8].as_mut_ptr()) == Ok(0)
}

fn blocks(fd: i32) -> i64 {
    let mut stat = sys::zeroed_stat();
    let _ = sc!(SYS_fstat, fd, &raw mut stat);
    std::hint::black_box(stat).st_blocks
}

fn seek(fd: i32, to: u64, whence: i32) -> Result<u64, i32> {
    sc!(SYS_lseek, fd, to, whence)
}

/// Waits until a child has ended, without reaping it.
fn ends(pid: u64) -> Result<u64, i32> {
    sc!(
        SYS_waitid,
        libc::P_PID,
        pid,
        0,
        libc::WEXITED | libc::WNOWAIT,
        0
    )
}

/// Whether a child cannot execute `file` because that can be written to.
fn is_busy(file: &str) -> Result<bool, String> {
    let status = in_child(
        || match sc!(SYS_execve, path(file), [path(file), 0].as_ptr(), 0) {
            Err(libc::ETXTBSY) => 7,
            _ => 99,
        },
    )?;
    Ok(status == 7 << 8)
}

tests! { "details";
    a_file_that_a_mapping_may_change_is_not_executed {
        let file = format!("{}/mapped", scratch());
        let fd = ok!(sys::open(&file, libc::O_RDWR | libc::O_CREAT, 0o700));
        ok!(sys::write(fd, b"#!/bin/sh\nexit 0\n"));
        // What cannot write to the file does not count, nor does what could only have written to it once.
        let reader = ok!(sys::open(&file, libc::O_RDONLY, 0));
        ok!(sys::mmap(0, PAGE, libc::PROT_READ, libc::MAP_SHARED, reader, 0));
        let at = ok!(sys::mmap(0, 2 * PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0));
        ok!(sys::close(fd));
        holds!(is_busy(&file)?);
        let (end, ended) = ok!(sys::pipe(0));
        let child = ok!(sys::fork());
        if child == 0 {
            let _ = (sys::close(ended), sys::read(end, &mut [0]));
            sys::exit(0);
        }
        ok!(sys::munmap(at, PAGE));
        let moved = ok!(sc!(SYS_mremap, at + PAGE, PAGE, 3 * PAGE, libc::MREMAP_MAYMOVE));
        holds!(is_busy(&file)?);
        ok!(sys::munmap(moved, 3 * PAGE));
        // The child has its copy of the mapping.
        holds!(is_busy(&file)?);
        ok!(sys::close(ended));
        is!(ok!(sys::wait(child as i64, 0)), (child, 0));
        // Its end, once seen, is the end of its mapping.
        is!(in_child(|| { let _ = sc!(SYS_execve, path(&file), [path(&file), 0].as_ptr(), 0); 99 })?, 0);
    }
    no_other_text_names_a_cpu {
        let at = |name: &str| std::fs::metadata(format!("/sys/devices/system/cpu/{name}")).is_ok();
        is!(["cpu0", "cpu00", "cpu+0", "cpu-0", "cpu", "cpu0x"].map(at), [true, false, false, false, false, false]);
    }
    who_has_ended_is_there_until_waited_for {
        let pid = ok!(sys::fork());
        if pid == 0 {
            sys::exit(0);
        }
        ok!(ends(pid));
        for signal in [0, libc::SIGUSR1] {
            ok!(sc!(SYS_kill, pid, signal));
            ok!(sc!(SYS_tkill, pid, signal));
            ok!(sc!(SYS_tgkill, pid, pid, signal));
        }
        fails!(sc!(SYS_tgkill, 1, pid, 0), ESRCH);
        is!(sc!(SYS_getsid, pid), sc!(SYS_getsid, 0));
        is!(sc!(SYS_getpgid, pid), sc!(SYS_getpgid, 0));
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/stat")).unwrap_or_default();
        holds!(stat.contains(") Z "));
        is!(std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count), 1);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        fails!(sc!(SYS_tkill, pid, 0), ESRCH);
    }
    a_fatal_signal_ends_the_sender_before_its_next_call {
        for _ in 0..20 {
            let status = in_child(|| {
                let (from, to) = sys::pipe(0).unwrap_or((0, 0));
                std::thread::spawn(move || {
                    let tid = sc!(SYS_gettid).unwrap_or(0).to_ne_bytes();
                    let _ = sys::write(to, &tid);
                    loop { nap_us(100_000); }
                });
                let mut tid = [0; 8];
                let _ = sys::read(from, &mut tid);
                let _ = sc!(SYS_tkill, u64::from_ne_bytes(tid), libc::SIGUSR1);
                3
            })?;
            is!(status, libc::SIGUSR1);
        }
    }
    a_thread_may_wait_for_its_own_children_alone {
        let (pid, of_others, own) = std::thread::spawn(|| {
            let pid = sys::fork().unwrap_or(0);
            if pid == 0 {
                sys::exit(5);
            }
            let alone = libc::__WNOTHREAD;
            let of_others = std::thread::spawn(move || sys::wait(pid as i64, alone)).join();
            (pid, of_others.ok(), sys::wait(pid as i64, alone))
        }).join().map_err(|_| "a thread has failed")?;
        is!(of_others, Some(Err(libc::ECHILD)));
        is!(own, Ok((pid, 5 << 8)));
        let orphan = ok!(std::thread::spawn(|| sys::fork().inspect(|pid| if *pid == 0 { sys::exit(6) })).join().unwrap_or(Err(0)));
        holds!(soon(|| std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) == 1));
        is!(ok!(sys::wait(orphan as i64, libc::__WNOTHREAD)), (orphan, 6 << 8));
    }
    what_was_allocated_is_a_hole_until_it_is_used {
        let (data, hole) = (libc::SEEK_DATA, libc::SEEK_HOLE);
        let fd = file_with(b"")?;
        ok!(sc!(SYS_fallocate, fd, 0, 0, 4 * PAGE));
        is!(blocks(fd), 32);
        fails!(seek(fd, 0, data), ENXIO);
        is!(ok!(seek(fd, 1, hole)), 1);
        // Written to, mapped and read, written to through a private mapping, allocated again; only read.
        ok!(sc!(SYS_pwrite64, fd, b"x".as_ptr(), 1, PAGE));
        is!(ok!(seek(fd, 0, data)), PAGE);
        is!(ok!(seek(fd, PAGE, hole)), 2 * PAGE);
        let at = ok!(sys::mmap(0, 4 * PAGE, RW, libc::MAP_SHARED, fd, 0));
        let mut there = [0u8; 4];
        ok!(sc!(SYS_mincore, at, 4 * PAGE, there.as_mut_ptr()));
        is!(std::hint::black_box(there).map(|byte| byte & 1), [0, 1, 0, 0]);
        is!(sys::peek(at + 3 * PAGE), 0);
        is!(ok!(seek(fd, 2 * PAGE, data)), 3 * PAGE);
        let own = ok!(sys::mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 2 * PAGE));
        sys::poke(own, 7);
        is!(ok!(seek(fd, 2 * PAGE, data)), 2 * PAGE);
        is!(ok!(sc!(SYS_pread64, fd, [0u8].as_mut_ptr(), 1, 0)), 1);
        is!(ok!(seek(fd, 0, hole)), 0);
        ok!(sc!(SYS_fallocate, fd, 0, 0, PAGE));
        is!(ok!(seek(fd, 0, hole)), 4 * PAGE);
        is!(blocks(fd), 32);
    }
    a_private_store_fills_the_hole_behind_it {
        let fd = file_with(b"")?;
        ok!(sc!(SYS_ftruncate, fd, 2 * PAGE));
        let at = ok!(sys::mmap(0, 2 * PAGE, RW, libc::MAP_PRIVATE, fd, 0));
        sys::poke(at + PAGE, 9);
        is!(blocks(fd), 8);
        is!(ok!(seek(fd, 0, libc::SEEK_DATA)), PAGE);
        let mut byte = [1];
        ok!(sc!(SYS_pread64, fd, byte.as_mut_ptr(), 1, PAGE));
        is!((std::hint::black_box(byte), sys::peek(at + PAGE)), ([0], 9));
    }
    a_write_of_nothing_that_can_be_read_stamps_and_makes_no_page {
        let fd = file_with(b"0123456789")?;
        ok!(sc!(SYS_utimensat, fd, 0, [5u64, 0, 5, 0].as_ptr(), 0));
        fails!(sc!(SYS_pwrite64, fd, 8, 10, 5 * PAGE), EFAULT);
        is!(blocks(fd), 8);
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, fd, &raw mut stat));
        let stat = std::hint::black_box(stat);
        holds!(stat.st_mtime > 5);
        is!(stat.st_size, 10);
        // Pages allocated before stay allocated.
        ok!(sc!(SYS_fallocate, fd, libc::FALLOC_FL_KEEP_SIZE, 5 * PAGE, PAGE));
        fails!(sc!(SYS_pwrite64, fd, 8, 10, 5 * PAGE), EFAULT);
        is!(blocks(fd), 16);
    }
    a_move_that_fails_has_cleared_its_way {
        let at = ok!(anon(9));
        let (first, second, to) = (at, at + PAGE, at + 6 * PAGE);
        for place in [first, second] {
            ok!(sys::mmap(place, PAGE, RW, SHARED | libc::MAP_FIXED, -1, 0));
        }
        // Two adjacent mappings of different objects cannot be moved together, nor can one of them grow beyond its end.
        fails!(sc!(SYS_mremap, first, 2 * PAGE, 2 * PAGE, MOVED, to), EFAULT);
        is!((is_mapped(to), is_mapped(to + PAGE), is_mapped(to + 2 * PAGE)), (false, false, true));
        fails!(sc!(SYS_mremap, first, 2 * PAGE, 3 * PAGE, 0), EFAULT);
        holds!(is_mapped(to - PAGE));
        fails!(sc!(SYS_mremap, to - PAGE, 0, PAGE, MOVED, to + 2 * PAGE), EINVAL);
        holds!(!is_mapped(to + 2 * PAGE));
        // EFAULT for an unmapped source precedes the check of the target.
        fails!(sc!(SYS_mremap, to, 2 * PAGE, 2 * PAGE, MOVED, to + PAGE), EFAULT);
    }
    what_lies_before_a_gap_is_changed {
        let gap = || anon(3).and_then(|at| sys::munmap(at + PAGE, PAGE).map(|_| at));
        let at = ok!(gap());
        fails!(sc!(SYS_mprotect, at, 3 * PAGE, libc::PROT_READ), ENOMEM);
        holds!(sys::catch(|| sys::poke(at, 1)).is_some());
        sys::poke(at + 2 * PAGE, 1);
        let at = ok!(gap());
        fails!(sc!(SYS_mlock, at, 3 * PAGE), ENOMEM);
        fails!(sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED), EINVAL);
        ok!(sc!(SYS_madvise, at + 2 * PAGE, PAGE, libc::MADV_DONTNEED));
        fails!(sc!(SYS_munlock, at, 3 * PAGE), ENOMEM);
        ok!(sc!(SYS_madvise, at, PAGE, libc::MADV_DONTNEED));
        let at = ok!(gap());
        fails!(sc!(SYS_madvise, at, 3 * PAGE, libc::MADV_POPULATE_WRITE), ENOMEM);
        let mut there = [0u8];
        ok!(sc!(SYS_mincore, at, PAGE, there.as_mut_ptr()));
        is!(std::hint::black_box(there)[0] & 1, 1);
        let at = ok!(anon(2));
        sys::poke(at, 7);
        ok!(sc!(SYS_mlock, at + PAGE, PAGE));
        fails!(sc!(SYS_madvise, at, 2 * PAGE, libc::MADV_DONTNEED), EINVAL);
        is!(sys::peek(at), 0);
    }
    removal_asks_what_is_mapped_first {
        let remove = |at: u64| sc!(SYS_madvise, at, PAGE, libc::MADV_REMOVE);
        fails!(remove(ok!(anon(1))), EINVAL);
        let at = ok!(shared(1));
        ok!(sc!(SYS_mprotect, at, PAGE, libc::PROT_READ));
        ok!(remove(at));
        let fd = file_with(b"0123456789")?;
        fails!(remove(ok!(sys::mmap(0, PAGE, RW, libc::MAP_PRIVATE, fd, 0))), EACCES);
        let at = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0));
        ok!(sc!(SYS_utimensat, fd, 0, [5u64, 0, 5, 0].as_ptr(), 0));
        ok!(remove(at));
        let mut stat = sys::zeroed_stat();
        ok!(sc!(SYS_fstat, fd, &raw mut stat));
        holds!(std::hint::black_box(stat).st_mtime > 5);
        ok!(sc!(SYS_mlock, at, PAGE));
        fails!(remove(at), EINVAL);
    }
    removal_takes_set_user_id_bits_away {
        let mode = |fd: i32| {
            let mut stat = sys::zeroed_stat();
            let _ = sc!(SYS_fstat, fd, &raw mut stat);
            std::hint::black_box(stat).st_mode & 0o7777
        };
        let remove = |at: u64| sc!(SYS_madvise, at, PAGE, libc::MADV_REMOVE);
        let (kept, here) = (file_with(b"0123456789")?, file_with(b"0123456789")?);
        // One file has lost the name by which it was mapped, and its descriptor, but has another name.
        let (first, second) = (format!("{}/first", scratch()), format!("{}/second", scratch()));
        let there = ok!(sys::open(&first, libc::O_RDWR | libc::O_CREAT, 0o600));
        let at = [kept, here, there].map(|fd| sys::mmap(0, PAGE, RW, libc::MAP_SHARED, fd, 0).unwrap_or(0));
        for fd in [kept, here, there] {
            ok!(sc!(SYS_fchmod, fd, 0o6755));
        }
        ok!(sys::close(there));
        holds!(std::fs::hard_link(&first, &second).is_ok() && std::fs::remove_file(&first).is_ok());
        ok!(remove(at[0]));
        is!(mode(kept), 0o6755);
        let there = ok!(sys::open(&second, libc::O_RDONLY, 0));
        ok!(sc!(SYS_setresgid, 1000, 1000, 1000));
        ok!(sc!(SYS_setresuid, 1000, 1000, 1000));
        ok!(remove(at[1]));
        ok!(remove(at[2]));
        is!((mode(here), mode(there)), (0o755, 0o755));
    }
    pages_beyond_the_end_stay_when_a_file_grows {
        let fd = file_with(b"0123456789")?;
        ok!(sc!(SYS_fallocate, fd, libc::FALLOC_FL_KEEP_SIZE, 0, 4 * PAGE));
        ok!(sc!(SYS_ftruncate, fd, PAGE + 1));
        is!(blocks(fd), 32);
        let mut bytes = [1u8; 4];
        is!(sc!(SYS_pread64, fd, bytes.as_mut_ptr(), 4, PAGE - 2), Ok(3));
        is!(std::hint::black_box(bytes), [0, 0, 0, 1]);
        ok!(sc!(SYS_ftruncate, fd, PAGE + 1));
        is!(blocks(fd), 16);
    }
    what_counts_as_an_access_and_what_does_not {
        let stat = |fd: i32| {
            let mut stat = sys::zeroed_stat();
            let _ = sc!(SYS_fstat, fd, &raw mut stat);
            let stat = std::hint::black_box(stat);
            (stat.st_atime > 5, stat.st_mtime > 5)
        };
        let old = |fd: i32| sc!(SYS_utimensat, fd, 0, [5u64, 0, 5, 0].as_ptr(), 0);
        let fd = file_with(b"0123456789")?;
        let bytes = [0u8; 8];
        ok!(old(fd));
        is!(sc!(SYS_readv, fd, [bytes.as_ptr() as u64, 0].as_ptr(), 1), Ok(0));
        is!(stat(fd), (false, false));
        // At the end, and of no length.
        is!(sc!(SYS_pread64, fd, bytes.as_ptr(), 8, 100), Ok(0));
        is!(stat(fd), (true, false));
        ok!(old(fd));
        is!(sc!(SYS_pread64, fd, bytes.as_ptr(), 0, 0), Ok(0));
        is!(stat(fd), (true, false));
        // A shared mapping is populated and locked without a store.
        ok!(old(fd));
        let populated = libc::MAP_SHARED | libc::MAP_POPULATE;
        let at = ok!(sys::mmap(0, PAGE, RW, populated, fd, 0));
        ok!(sc!(SYS_mlock, at, PAGE));
        is!(stat(fd).1, false);
        let dir = ok!(sys::open(&scratch(), libc::O_RDONLY | libc::O_DIRECTORY, 0));
        ok!(old(dir));
        let entries = [0u8; 512];
        ok!(sc!(SYS_getdents64, dir, entries.as_ptr(), 512));
        is!(stat(dir), (true, false));
        let link = format!("{}/link\0", scratch());
        ok!(sc!(SYS_symlink, c"nowhere".as_ptr(), link.as_ptr()));
        ok!(sc!(SYS_utimensat, libc::AT_FDCWD, link.as_ptr(), [5u64, 0, 5, 0].as_ptr(), libc::AT_SYMLINK_NOFOLLOW));
        ok!(sc!(SYS_readlink, link.as_ptr(), bytes.as_ptr(), 8));
        let named = ok!(sys::open(&link[..link.len() - 1], libc::O_PATH | libc::O_NOFOLLOW, 0));
        is!(stat(named), (true, false));
    }
    a_place_that_is_taken_counts_before_the_file {
        let at = ok!(anon(1));
        let name = format!("{}/reader", scratch());
        let fd = ok!(sys::open(&name, libc::O_RDONLY | libc::O_CREAT, 0o600));
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        fails!(sys::mmap(at, PAGE, RW, flags, fd, 0), EEXIST);
        ok!(sys::munmap(at, PAGE));
        fails!(sys::mmap(at, PAGE, RW, flags, fd, 0), EACCES);
    }
    what_is_a_pipe_counts_before_its_direction {
        let (from, to) = ok!(sys::pipe(0));
        let byte = [0u8];
        fails!(sc!(SYS_pwrite64, from, byte.as_ptr(), 1, 0), ESPIPE);
        fails!(sc!(SYS_pread64, to, byte.as_ptr(), 1, 0), ESPIPE);
        fails!(sc!(SYS_pwrite64, 1000, byte.as_ptr(), 1, -1i64), EINVAL);
        let lock = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
        ok!(sc!(SYS_fcntl, from, libc::F_GETLK, &raw const lock));
        fails!(sc!(SYS_fallocate, 1000, 0, 0, 0), EBADF);
        fails!(sc!(SYS_fallocate, from, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_fallocate, from, 0x8000, 0, 1), EOPNOTSUPP);
    }
    positions_that_mean_nothing {
        let counter = ok!(sc!(SYS_eventfd2, 0, 0)) as i32;
        is!(ok!(seek(counter, 77, libc::SEEK_SET)), 0);
        is!(ok!(seek(counter, 0, libc::SEEK_CUR)), 0);
        fails!(seek(counter, 0, 9), EINVAL);
        for name in ["null", "zero", "full", "random", "urandom"] {
            let fd = ok!(sys::open(&format!("/dev/{name}"), libc::O_RDONLY, 0));
            ok!(sys::read(fd, &mut [0; 8]));
            for (offset, whence) in [(0, libc::SEEK_CUR), (77, libc::SEEK_SET), (i64::MIN, libc::SEEK_SET), (-1, libc::SEEK_END)] {
                is!((name, offset, ok!(seek(fd, offset as u64, whence))), (name, offset, 0));
            }
            is!(ok!(seek(fd, 3, libc::SEEK_DATA)), 0);
            fails!(seek(fd, 0, 9), EINVAL);
        }
        let dir = ok!(sys::open("/", libc::O_RDONLY | libc::O_DIRECTORY, 0));
        fails!(seek(dir, 1 << 40, libc::SEEK_DATA), EINVAL);
        fails!(seek(dir, 0, libc::SEEK_HOLE), EINVAL);
    }
    a_file_that_is_sent_to_itself_moves_once {
        let fd = file_with(b"0123456789")?;
        ok!(seek(fd, 2, libc::SEEK_SET));
        is!(ok!(sc!(SYS_sendfile, fd, fd, 0, 3)), 3);
        is!(ok!(seek(fd, 0, libc::SEEK_CUR)), 5);
    }
    flags_of_open_are_told_as_they_were_given {
        let dir = scratch();
        let told = |name: &str, flags: i32| {
            let fd = sys::open(&format!("{dir}{name}"), flags, 0o600)?;
            sc!(SYS_fcntl, fd, libc::F_GETFL)
        };
        let large = 0o100_000;
        is!(told("/new", libc::O_RDWR | libc::O_CREAT | libc::O_EXCL), Ok(libc::O_RDWR as u64 | large));
        is!(told("/new", libc::O_RDWR | libc::O_NOFOLLOW), Ok((libc::O_RDWR | libc::O_NOFOLLOW) as u64 | large));
        is!(told("", libc::O_RDWR | libc::O_TMPFILE), Ok((libc::O_RDWR | libc::O_TMPFILE) as u64 | large));
    }
}
