//! What one user may have at a time, whoever else has how much: processes, pages of pipes.

use crate::harness::*;
use crate::privileges::{become_user_with, cap, first_wrong};
use user::sys;

/// Users who have nothing, one for each test.
mod uid {
    pub const COUNTED: u32 = 42_001;
    pub const ALONE: u32 = 42_002;
    pub const BEYOND: u32 = 42_003;
    pub const LATE: u32 = 42_004;
    pub const THREADS: u32 = 42_005;
    pub const BELOW: u32 = 42_006;
    pub const MOVES: u32 = 42_007;
}

/// Sets RLIMIT_NPROC.
fn limit(most: u64) -> Result<u64, i32> {
    sc!(
        SYS_prlimit64,
        0,
        libc::RLIMIT_NPROC,
        [most, most].as_ptr(),
        0
    )
}

/// The calling thread alone becomes a user's.
fn become_uid(uid: u32) -> bool {
    sc!(SYS_setresuid, uid, uid, uid).is_ok()
}

/// A child that sleeps until it is killed.
fn sleeper() -> Result<u64, i32> {
    let pid = sys::fork()?;
    if pid == 0 {
        loop {
            let _ = sc!(SYS_pause);
        }
    }
    Ok(pid)
}

/// Ends a child for good.
fn end(pid: Result<u64, i32>) -> bool {
    pid.is_ok_and(|pid| {
        sc!(SYS_kill, pid, libc::SIGKILL).is_ok() && sys::wait(pid as i64, 0).is_ok()
    })
}

/// Waits until a child is a zombie, and leaves it so.
fn ended(pid: u64) -> bool {
    let mut info = [0u64; 16];
    sc!(
        SYS_waitid,
        libc::P_PID,
        pid,
        info.as_mut_ptr(),
        libc::WEXITED | libc::WNOWAIT,
        0
    )
    .is_ok()
}

/// execve(2) of something that ends well; what it gave if it failed.
fn exec_true() -> Result<u64, i32> {
    sc!(
        SYS_execve,
        path("/bin/true"),
        [path("true"), 0].as_ptr(),
        [0u64].as_ptr()
    )
}

/// clone(2)'s flags for a thread.
const THREAD: i32 =
    libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
const AGAIN: Result<u64, i32> = Err(libc::EAGAIN);

tests! { "accounts";
    processes_count_until_they_have_been_waited_for {
        is!(in_child(|| {
            let started = limit(3).is_ok() && become_uid(uid::COUNTED);
            let (a, b) = (sleeper(), sleeper());
            let full = sleeper() == AGAIN && sleeper() == AGAIN;
            let zombie = a.is_ok_and(|pid| sc!(SYS_kill, pid, libc::SIGKILL).is_ok() && ended(pid));
            let still = sleeper() == AGAIN;
            let reaped = end(a);
            let more = sleeper();
            let full_again = sleeper() == AGAIN;
            first_wrong(&[started, full, zombie, still, reaped, end(more), full_again || end(b), end(b) || full_again])
        })?, 0);
    }
    threads_count_and_go_with_their_ends {
        is!(in_child(|| {
            let stack = sys::mmap(0, 16 * PAGE, RW, ANON, -1, 0).unwrap_or(0);
            let started = stack != 0 && limit(4).is_ok() && become_uid(uid::THREADS);
            let pids: Vec<_> = (0..3).map(|_| sleeper()).collect();
            let refused = sc!(SYS_clone, THREAD, stack + 16 * PAGE, 0, 0, 0) == AGAIN;
            let ends = pids.into_iter().all(end);
            first_wrong(&[started, refused, ends])
        })?, 0);
        // A program whose threads come and go leaves nothing behind.
        is!(in_child(|| {
            if limit(3).is_err() || sys::set_uid_of_all(uid::THREADS).is_err() {
                return 1;
            }
            for _ in 0..20 {
                // The number of threads falls a moment after a join.
                let begun = (0..400).find_map(|_| {
                    let thread = std::thread::Builder::new().spawn(|| {}).ok();
                    if thread.is_none() { nap_us(5000); }
                    thread
                });
                if begun.is_none_or(|thread| thread.join().is_err()) {
                    return 2;
                }
            }
            0
        })?, 0);
    }
    others_processes_do_not_count {
        is!(in_child(|| {
            let theirs: Vec<_> = (0..4).map(|_| sleeper()).collect();
            let status = in_child(|| {
                let started = limit(2).is_ok() && become_uid(uid::ALONE);
                let one = sleeper();
                let full = sleeper() == AGAIN;
                first_wrong(&[started, end(one), full])
            });
            let ends = theirs.into_iter().all(end);
            first_wrong(&[status == Ok(0), ends])
        })?, 0);
    }
    the_real_users_count_and_root_has_no_limit {
        is!(in_child(|| {
            let started = limit(0).is_ok();
            let as_root = end(sleeper());
            let effective = sc!(SYS_setresuid, 0, uid::BEYOND, 0).is_ok();
            let still_root = end(sleeper());
            let back = sc!(SYS_setresuid, -1i32, 0, -1i32).is_ok();
            // Another real user, and no capability given up.
            let other = sc!(SYS_setresuid, uid::BEYOND, 0, 0).is_ok();
            let capable = end(sleeper());
            let dropped = sc!(SYS_setresuid, -1i32, uid::BEYOND, uid::BEYOND).is_ok();
            let limited = sleeper() == AGAIN;
            first_wrong(&[started, as_root, effective, still_root, back, other, capable, dropped, limited])
        })?, 0);
        for beyond in [cap::SYS_RESOURCE, cap::SYS_ADMIN] {
            is!(in_child(|| {
                let started = limit(0).is_ok() && become_user_with(&[beyond]).is_ok();
                first_wrong(&[started, end(sleeper())])
            })?, 0);
        }
        is!(in_child(|| {
            let started = limit(0).is_ok() && become_user_with(&[cap::KILL]).is_ok();
            first_wrong(&[started, sleeper() == AGAIN])
        })?, 0);
    }
    a_process_that_changes_its_user_counts_for_the_new_one {
        is!(in_child(|| {
            let started = limit(2).is_ok();
            let moves = sys::fork();
            if moves == Ok(0) {
                let _ = become_uid(uid::MOVES);
                let _ = sc!(SYS_kill, sc!(SYS_getpid).unwrap_or(0), libc::SIGSTOP);
                sys::exit(0);
            }
            let stopped = moves.is_ok_and(|pid| sys::wait(pid as i64, libc::WUNTRACED).is_ok());
            let became = become_uid(uid::MOVES);
            let full = sleeper() == AGAIN;
            let went = moves.is_ok_and(|pid| sc!(SYS_kill, pid, libc::SIGKILL).is_ok() && sys::wait(pid as i64, 0).is_ok());
            let room = end(sleeper());
            first_wrong(&[started, stopped, became, full, went, room])
        })?, 0);
    }
    a_change_of_user_does_not_fail_but_execve_then_does {
        is!(in_child(|| {
            let (from, to) = sys::pipe(0).unwrap_or((-1, -1));
            let (gate, open) = sys::pipe(0).unwrap_or((-1, -1));
            // Two who are there already, where one may be.
            let theirs: Vec<_> = (0..2).map(|_| {
                let pid = sys::fork();
                if pid == Ok(0) {
                    let _ = become_uid(uid::LATE);
                    let _ = sys::write(to, b"t");
                    loop { let _ = sc!(SYS_pause); }
                }
                pid
            }).collect();
            let there = theirs.iter().all(|_| sys::read(from, &mut [0]) == Ok(1));
            let late = sys::fork();
            if late == Ok(0) {
                let became = limit(1).is_ok() && become_uid(uid::LATE);
                let refused = exec_true() == AGAIN && exec_true() == AGAIN;
                let _ = sys::write(to, b"r");
                if !became || !refused || sys::read(gate, &mut [0]) != Ok(1) {
                    sys::exit(1);
                }
                // There is room by now.
                let _ = exec_true();
                sys::exit(2);
            }
            let tried = sys::read(from, &mut [0]) == Ok(1);
            let gone = theirs.into_iter().all(end);
            let _ = sys::write(open, b"g");
            let ran = late.and_then(|pid| sys::wait(pid as i64, 0)).is_ok_and(|(_, status)| status == 0);
            first_wrong(&[there, tried, gone, ran])
        })?, 0);
        // Who was within the limit when he came may call execve though he is not any more.
        is!(in_child(|| {
            let other = sys::fork();
            if other == Ok(0) {
                let _ = become_uid(uid::BELOW);
                let _ = sc!(SYS_kill, sc!(SYS_getpid).unwrap_or(0), libc::SIGSTOP);
                sys::exit(0);
            }
            let stopped = other.is_ok_and(|pid| sys::wait(pid as i64, libc::WUNTRACED).is_ok());
            let status = in_child(|| {
                let crowded = limit(2).is_ok() && become_uid(uid::BELOW) && limit(1).is_ok() && sleeper() == AGAIN;
                if crowded { let _ = exec_true(); }
                1
            });
            first_wrong(&[stopped, status == Ok(0), end(other)])
        })?, 0);
    }
}
