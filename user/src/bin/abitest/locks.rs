//! File locks: fcntl's for processes and for open files, flock.

use crate::harness::*;
use user::sys;

const CREATE: i32 = libc::O_RDWR | libc::O_CREAT;
const READ: i32 = libc::F_RDLCK;
const WRITE: i32 = libc::F_WRLCK;
const UNLOCK: i32 = libc::F_UNLCK;

/// A struct flock.
fn flock(kind: i32, whence: i32, start: i64, len: i64) -> [u64; 4] {
    [
        kind as u64 | (whence as u64) << 16,
        start as u64,
        len as u64,
        0,
    ]
}

fn lock(fd: i32, cmd: i32, kind: i32, start: i64, len: i64) -> Result<u64, i32> {
    let mut raw = flock(kind, libc::SEEK_SET, start, len);
    sc!(SYS_fcntl, fd, cmd, raw.as_mut_ptr())
}

/// The result of F_GETLK: a lock's kind, start, length and process.
fn query(fd: i32, cmd: i32, kind: i32, start: i64, len: i64) -> Result<(i32, i64, i64, i32), i32> {
    let mut raw = flock(kind, libc::SEEK_SET, start, len);
    sc!(SYS_fcntl, fd, cmd, raw.as_mut_ptr())?;
    Ok((
        raw[0] as u16 as i32,
        raw[1] as i64,
        raw[2] as i64,
        raw[3] as i32,
    ))
}

/// The number of the first step that is false, from one, as an exit status; 0 if all are true.
fn first_wrong(steps: &[bool]) -> i32 {
    steps
        .iter()
        .position(|&right| !right)
        .map_or(0, |i| i as i32 + 1)
}

fn named() -> Result<(String, i32), String> {
    let name = format!("{}/f", scratch());
    let fd = sys::open(&name, CREATE, 0o600).map_err(errno_name)?;
    Ok((name, fd))
}

/// Executes this program so many times, then writes a byte to `to` and waits for a signal. Returns only on failure.
pub fn exec_again(to: i32, times: u32) -> i32 {
    if times == 0 {
        let _ = sys::write(to, b"x");
        let _ = sc!(SYS_pause);
        return 1;
    }
    let words = [
        "abitest",
        "--again",
        &to.to_string(),
        &(times - 1).to_string(),
    ]
    .map(path);
    let args = [words[0], words[1], words[2], words[3], 0];
    let _ = sc!(SYS_execve, path("/proc/self/exe"), args.as_ptr(), 0);
    2
}

tests! { "lock";
    ranges_keep_other_processes_out {
        let (_, fd) = named()?;
        let me = ok!(sc!(SYS_getpid)) as i32;
        ok!(lock(fd, libc::F_SETLK, WRITE, 10, 10));
        ok!(lock(fd, libc::F_SETLK, READ, 100, 0));
        is!(in_child(|| first_wrong(&[
            lock(fd, libc::F_SETLK, READ, 19, 1) == Err(libc::EAGAIN),
            lock(fd, libc::F_SETLK, READ, 20, 10).is_ok(),
            lock(fd, libc::F_SETLK, READ, 100, 1).is_ok(),
            lock(fd, libc::F_SETLK, WRITE, 1 << 40, 1) == Err(libc::EAGAIN),
            query(fd, libc::F_GETLK, READ, 0, 0) == Ok((WRITE, 10, 10, me)),
            query(fd, libc::F_GETLK, WRITE, 500, 1) == Ok((READ, 100, 0, me)),
            query(fd, libc::F_GETLK, READ, 500, 1) == Ok((UNLOCK, 500, 1, 0)),
        ]))?, 0);
        is!(ok!(query(fd, libc::F_GETLK, WRITE, 0, 0)), (UNLOCK, 0, 0, 0));
    }
    unlocking_splits_and_kinds_change {
        let (_, fd) = named()?;
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 100));
        ok!(lock(fd, libc::F_SETLK, UNLOCK, 40, 20));
        ok!(lock(fd, libc::F_SETLK, READ, 0, 10));
        is!(in_child(|| first_wrong(&[
            lock(fd, libc::F_SETLK, WRITE, 40, 20).is_ok(),
            lock(fd, libc::F_SETLK, READ, 0, 10).is_ok(),
            lock(fd, libc::F_SETLK, WRITE, 0, 10) == Err(libc::EAGAIN),
            lock(fd, libc::F_SETLK, READ, 39, 1) == Err(libc::EAGAIN),
            lock(fd, libc::F_SETLK, READ, 60, 1) == Err(libc::EAGAIN),
        ]))?, 0);
        // The child has ended, and its locks with it.
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 0));
    }
    origins_and_negative_lengths {
        let (_, fd) = named()?;
        ok!(sys::write(fd, &[0; 100]));
        ok!(sc!(SYS_lseek, fd, 50, libc::SEEK_SET));
        let mut raw = flock(WRITE, libc::SEEK_CUR, -10, 5);
        ok!(sc!(SYS_fcntl, fd, libc::F_SETLK, raw.as_mut_ptr()));
        let mut raw = flock(WRITE, libc::SEEK_END, 0, -20);
        ok!(sc!(SYS_fcntl, fd, libc::F_SETLK, raw.as_mut_ptr()));
        is!(in_child(|| first_wrong(&[
            query(fd, libc::F_GETLK, READ, 0, 60).map(|l| (l.1, l.2)) == Ok((40, 5)),
            query(fd, libc::F_GETLK, READ, 60, 0).map(|l| (l.1, l.2)) == Ok((80, 20)),
        ]))?, 0);
    }
    range_arguments {
        let (name, fd) = named()?;
        fails!(lock(fd, libc::F_SETLK, WRITE, -1, 1), EINVAL);
        fails!(lock(fd, libc::F_SETLK, WRITE, 5, -6), EINVAL);
        fails!(lock(fd, libc::F_SETLK, 77, 0, 1), EINVAL);
        fails!(lock(fd, libc::F_GETLK, UNLOCK, 0, 1), EINVAL);
        fails!(lock(fd, libc::F_SETLK, WRITE, i64::MAX, 2), EOVERFLOW);
        let mut raw = flock(WRITE, 9, 0, 1);
        fails!(sc!(SYS_fcntl, fd, libc::F_SETLK, raw.as_mut_ptr()), EINVAL);
        fails!(sc!(SYS_fcntl, fd, libc::F_SETLK, 8), EFAULT);
        fails!(lock(9999, libc::F_SETLK, WRITE, 0, 1), EBADF);
        let reader = ok!(sys::open(&name, libc::O_RDONLY, 0));
        fails!(lock(reader, libc::F_SETLK, WRITE, 0, 1), EBADF);
        ok!(lock(reader, libc::F_SETLK, READ, 0, 1));
        let writer = ok!(sys::open(&name, libc::O_WRONLY, 0));
        fails!(lock(writer, libc::F_SETLK, READ, 0, 1), EBADF);
        let place = ok!(sys::open(&name, libc::O_PATH, 0));
        fails!(lock(place, libc::F_SETLK, READ, 0, 1), EBADF);
    }
    closing_any_descriptor_ends_a_processs_locks {
        let (name, fd) = named()?;
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 0));
        let other = ok!(sys::open(&name, libc::O_RDONLY, 0));
        is!(in_child(|| i32::from(lock(fd, libc::F_SETLK, READ, 0, 1) != Err(libc::EAGAIN)))?, 0);
        ok!(sys::close(other));
        is!(in_child(|| i32::from(lock(fd, libc::F_SETLK, READ, 0, 1).is_err()))?, 0);
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 0));
        let other = ok!(sys::open(&name, libc::O_RDONLY, 0));
        ok!(sc!(SYS_dup2, 2, other));
        is!(in_child(|| i32::from(lock(fd, libc::F_SETLK, READ, 0, 1).is_err()))?, 0);
    }
    a_wait_ends_with_the_lock {
        let (_, fd) = named()?;
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 0));
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = sys::write(to, b"a");
            let got = lock(fd, libc::F_SETLKW, WRITE, 0, 0);
            let _ = sys::write(to, b"b");
            sys::exit(i32::from(got.is_err()));
        }
        let mut byte = [0];
        is!(ok!(sys::read(from, &mut byte)), 1);
        nap_us(30_000);
        let mut poll = [from as u64 as u32 as u64 | 1 << 32];
        is!(ok!(sc!(SYS_poll, poll.as_mut_ptr(), 1, 0)), 0);
        ok!(lock(fd, libc::F_SETLK, UNLOCK, 0, 0));
        is!(ok!(sys::read(from, &mut byte)), 1);
        is!(byte, *b"b");
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    a_signal_ends_a_wait {
        let (_, fd) = named()?;
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 0));
        is!(in_child(|| {
            let _ = sys::on_signal(libc::SIGALRM, on_nothing as *const () as usize, 0);
            let timer = [0u64, 20_000, 0, 20_000];
            let _ = sc!(SYS_setitimer, 0, timer.as_ptr(), 0);
            first_wrong(&[
                lock(fd, libc::F_SETLKW, READ, 0, 0) == Err(libc::EINTR),
                sc!(SYS_flock, fd, libc::LOCK_EX).is_ok(),
            ])
        })?, 0);
    }
    circles_of_waits_are_refused {
        let (_, fd) = named()?;
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 1));
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            let held = lock(fd, libc::F_SETLK, WRITE, 1, 1).is_ok();
            let _ = sys::write(to, b"a");
            let got = lock(fd, libc::F_SETLKW, WRITE, 0, 1);
            sys::exit(i32::from(!held || got.is_err()));
        }
        is!(ok!(sys::read(from, &mut [0])), 1);
        // The child must wait first; otherwise this call would just wait for the child's lock.
        nap_us(200_000);
        fails!(lock(fd, libc::F_SETLKW, WRITE, 1, 1), EDEADLK);
        ok!(lock(fd, libc::F_SETLK, UNLOCK, 0, 1));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    open_files_have_locks_of_their_own {
        let (name, fd) = named()?;
        let other = ok!(sys::open(&name, libc::O_RDWR, 0));
        ok!(lock(fd, libc::F_OFD_SETLK, WRITE, 0, 10));
        fails!(lock(other, libc::F_OFD_SETLK, READ, 5, 1), EAGAIN);
        fails!(lock(other, libc::F_SETLK, READ, 5, 1), EAGAIN);
        is!(ok!(query(other, libc::F_OFD_GETLK, READ, 0, 0)), (WRITE, 0, 10, -1));
        let copy = ok!(sc!(SYS_dup, fd)) as i32;
        ok!(lock(copy, libc::F_OFD_SETLK, READ, 0, 10));
        ok!(sys::close(fd));
        fails!(lock(other, libc::F_OFD_SETLK, WRITE, 5, 1), EAGAIN);
        ok!(sys::close(copy));
        ok!(lock(other, libc::F_OFD_SETLK, WRITE, 5, 1));
        let mut raw = flock(WRITE, libc::SEEK_SET, 0, 1);
        raw[3] = 7;
        fails!(sc!(SYS_fcntl, other, libc::F_OFD_SETLK, raw.as_mut_ptr()), EINVAL);
    }
    whole_files {
        let (name, fd) = named()?;
        let other = ok!(sys::open(&name, libc::O_RDONLY, 0));
        ok!(sc!(SYS_flock, fd, libc::LOCK_SH));
        ok!(sc!(SYS_flock, other, libc::LOCK_SH | libc::LOCK_NB));
        fails!(sc!(SYS_flock, fd, libc::LOCK_EX | libc::LOCK_NB), EAGAIN);
        ok!(sc!(SYS_flock, other, libc::LOCK_UN));
        ok!(sc!(SYS_flock, fd, libc::LOCK_EX | libc::LOCK_NB));
        fails!(sc!(SYS_flock, other, libc::LOCK_SH | libc::LOCK_NB), EAGAIN);
        // flock's locks and fcntl's are independent.
        is!(in_child(|| i32::from(lock(fd, libc::F_SETLK, WRITE, 0, 0).is_err()))?, 0);
        // A duplicate of the descriptor keeps the lock; closing the last one releases it.
        let copy = ok!(sc!(SYS_dup, fd)) as i32;
        ok!(sys::close(fd));
        fails!(sc!(SYS_flock, other, libc::LOCK_EX | libc::LOCK_NB), EAGAIN);
        ok!(sys::close(copy));
        ok!(sc!(SYS_flock, other, libc::LOCK_EX | libc::LOCK_NB));
        fails!(sc!(SYS_flock, other, 16), EINVAL);
        fails!(sc!(SYS_flock, 9999, libc::LOCK_SH), EBADF);
    }
    what_flock_asks_first {
        let (name, fd) = named()?;
        // A request for a mandatory lock has no effect, whatever it is for.
        for how in [libc::LOCK_SH, libc::LOCK_EX | libc::LOCK_NB, 16] {
            for fd in [fd, 9999] {
                ok!(sc!(SYS_flock, fd, how | 32));
            }
        }
        fails!(sc!(SYS_flock, 9999, 16), EINVAL);
        let place = ok!(sys::open(&name, libc::O_PATH, 0));
        fails!(sc!(SYS_flock, place, 0), EINVAL);
        fails!(sc!(SYS_flock, place, libc::LOCK_SH), EBADF);
    }
    the_end_of_an_o_path_descriptor_releases_no_locks {
        let (name, fd) = named()?;
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 10));
        let other = ok!(sys::open(&name, libc::O_RDWR, 0));
        let place = ok!(sys::open(&name, libc::O_PATH, 0));
        ok!(sys::close(place as i32));
        is!(ok!(query(other, libc::F_OFD_GETLK, WRITE, 0, 10)).0, WRITE);
        ok!(sys::close(ok!(sys::open(&name, libc::O_RDONLY, 0)) as i32));
        is!(ok!(query(other, libc::F_OFD_GETLK, WRITE, 0, 10)).0, UNLOCK);
    }
    an_open_file_can_ask_for_its_own_locks {
        let (name, fd) = named()?;
        let other = ok!(sys::open(&name, libc::O_RDWR, 0));
        ok!(lock(fd, libc::F_OFD_SETLK, READ, 30, 10));
        ok!(lock(fd, libc::F_OFD_SETLK, WRITE, 10, 10));
        ok!(lock(other, libc::F_OFD_SETLK, READ, 35, 20));
        let own = |fd: i32, start: i64| query(fd, libc::F_OFD_GETLK, UNLOCK, start, 0);
        is!(ok!(own(fd, 0)), (WRITE, 10, 10, -1));
        is!(ok!(own(fd, 20)), (READ, 30, 10, -1));
        is!(ok!(own(fd, 40)), (UNLOCK, 40, 0, 0));
        is!(ok!(own(other, 0)), (READ, 35, 20, -1));
        fails!(query(fd, libc::F_OFD_GETLK, 77, 0, 1), EINVAL);
        fails!(query(fd, libc::F_GETLK, UNLOCK, i64::MAX, 2), EINVAL);
    }
    a_child_shares_the_file_and_its_lock {
        let (name, fd) = named()?;
        ok!(sc!(SYS_flock, fd, libc::LOCK_EX));
        is!(in_child(|| first_wrong(&[
            sc!(SYS_flock, fd, libc::LOCK_EX | libc::LOCK_NB).is_ok(),
            sys::open(&name, libc::O_RDONLY, 0).and_then(|own| sc!(SYS_flock, own, libc::LOCK_SH | libc::LOCK_NB))
                == Err(libc::EAGAIN),
            sc!(SYS_flock, fd, libc::LOCK_UN).is_ok(),
        ]))?, 0);
        let other = ok!(sys::open(&name, libc::O_RDONLY, 0));
        ok!(sc!(SYS_flock, other, libc::LOCK_EX | libc::LOCK_NB));
    }
    a_process_keeps_its_locks_when_it_unshares_what_is_its_own {
        let (_, fd) = named()?;
        ok!(lock(fd, libc::F_SETLK, WRITE, 0, 0));
        let kept = || in_child(|| i32::from(lock(fd, libc::F_SETLK, READ, 0, 1) != Err(libc::EAGAIN)));
        ok!(sc!(SYS_unshare, libc::CLONE_FILES));
        is!(kept()?, 0);
        ok!(sc!(SYS_close_range, 9999, 9999, libc::CLOSE_RANGE_UNSHARE));
        is!(kept()?, 0);
    }
    a_process_keeps_its_locks_when_others_look_at_it {
        let (_, fd) = named()?;
        let (from, to) = ok!(sys::pipe(0));
        let holder = ok!(sys::fork());
        if holder == 0 {
            let _ = lock(fd, libc::F_SETLK, WRITE, 0, 0);
            sys::exit(exec_again(to, 100));
        }
        for _ in 0..2 {
            if ok!(sys::fork()) == 0 {
                let look = || {
                    let _ = std::fs::read(format!("/proc/{holder}/status"));
                    std::fs::read_dir(format!("/proc/{holder}/fd")).map(Iterator::count)
                };
                while look().is_ok() {}
                sys::exit(0);
            }
        }
        is!(ok!(sys::read(from, &mut [0])), 1);
        is!(ok!(query(fd, libc::F_GETLK, READ, 0, 0)), (WRITE, 0, 0, holder as i32));
        ok!(sc!(SYS_kill, holder, libc::SIGKILL));
    }
    a_user_does_not_lock_out_root {
        let (name, fd) = named()?;
        ok!(sc!(SYS_fchmod, fd, 0o644));
        let (from, to) = ok!(sys::pipe(0));
        let user = ok!(sys::fork());
        if user == 0 {
            let all = sc!(SYS_setresuid, 1000, 1000, 1000).and_then(|_| {
                let own = sys::open(&name, libc::O_RDONLY, 0)?;
                let refused = (0..10_000).find_map(|n| lock(own, libc::F_SETLK, READ, 2 * n, 1).err());
                Ok(refused == Some(libc::ENOLCK))
            });
            let _ = (sys::write(to, &[u8::from(all == Ok(true))]), sc!(SYS_pause));
            sys::exit(1);
        }
        let mut all = [9];
        is!(ok!(sys::read(from, &mut all)), 1);
        is!(all, [1]);
        ok!(lock(fd, libc::F_SETLK, WRITE, 100_000, 10));
        ok!(lock(fd, libc::F_SETLK, UNLOCK, 100_004, 1));
        ok!(lock(fd, libc::F_SETLK, READ, 0, 10));
        ok!(sc!(SYS_flock, fd, libc::LOCK_SH));
        ok!(sc!(SYS_kill, user, libc::SIGKILL));
    }
    what_has_no_name_can_be_locked {
        let (from, to) = ok!(sys::pipe(0));
        let events = ok!(sc!(SYS_eventfd2, 0, 0)) as i32;
        for fd in [to, events] {
            ok!(lock(fd, libc::F_SETLKW, WRITE, 0, 1));
            let refused = || [lock(fd, libc::F_SETLK, WRITE, 0, 1), lock(fd, libc::F_SETLK, WRITE, 1, 1)];
            is!(in_child(|| first_wrong(&[refused() == [Err(libc::EAGAIN), Ok(0)]]))?, 0);
            ok!(lock(fd, libc::F_SETLKW, UNLOCK, 0, 1));
            ok!(sc!(SYS_flock, fd, libc::LOCK_EX));
        }
        fails!(lock(from, libc::F_SETLK, WRITE, 0, 1), EBADF);
        fails!(sc!(SYS_flock, from, libc::LOCK_SH | libc::LOCK_NB), EWOULDBLOCK);
        ok!(lock(from, libc::F_SETLK, READ, 0, 1));
        is!(ok!(query(to, libc::F_OFD_GETLK, WRITE, 0, 0)).0, READ);
    }
    many_processes_count_under_a_lock {
        let (_, fd) = named()?;
        ok!(sys::write(fd, &0u64.to_le_bytes()));
        let add = || {
            for _ in 0..20 {
                let mut word = [0u8; 8];
                if lock(fd, libc::F_SETLKW, WRITE, 0, 8).is_err() { return 1; }
                let _ = sc!(SYS_pread64, fd, word.as_mut_ptr(), 8, 0);
                let next = u64::from_le_bytes(word) + 1;
                let _ = sc!(SYS_pwrite64, fd, next.to_le_bytes().as_ptr(), 8, 0);
                if lock(fd, libc::F_SETLK, UNLOCK, 0, 8).is_err() { return 2; }
            }
            0
        };
        let pids: Vec<u64> = (0..4).filter_map(|_| match sys::fork() { Ok(0) => sys::exit(add()), other => other.ok() }).collect();
        for pid in &pids { is!(ok!(sys::wait(*pid as i64, 0)), (*pid, 0)); }
        let mut word = [0u8; 8];
        ok!(sc!(SYS_pread64, fd, word.as_mut_ptr(), 8, 0));
        is!(u64::from_le_bytes(word), 80);
    }
}

extern "C" fn on_nothing(_: i32) {}
