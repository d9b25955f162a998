//! System V semaphores.

use std::thread::{self, JoinHandle};

use crate::harness::*;
use user::sys;

const CREATE: i32 = libc::IPC_CREAT;
const NO_WAIT: i16 = libc::IPC_NOWAIT as i16;
const UNDO: i16 = 0x1000;
const MS: u64 = 1_000_000;

fn get(key: i32, len: i32, flags: i32) -> Result<i32, i32> {
    sc!(SYS_semget, key, len, flags).map(|id| id as i32)
}

fn private(len: i32) -> Result<i32, i32> {
    get(libc::IPC_PRIVATE, len, 0o600)
}

/// semop(2): number, what is added, flags.
fn op(id: i32, ops: &[(u16, i16, i16)]) -> Result<u64, i32> {
    let raw: Vec<[u16; 3]> = ops.iter().map(|o| [o.0, o.1 as u16, o.2 as u16]).collect();
    sc!(SYS_semop, id, raw.as_ptr(), raw.len())
}

/// semtimedop(2) with one operation.
fn timed(id: i32, (number, by, flags): (u16, i16, i16), ns: u64) -> Result<u64, i32> {
    let time = [ns / 1_000_000_000, ns % 1_000_000_000];
    let raw = [number, by as u16, flags as u16];
    sc!(SYS_semtimedop, id, raw.as_ptr(), 1, time.as_ptr())
}

fn control(id: i32, number: i32, cmd: i32, arg: u64) -> Result<u64, i32> {
    sc!(SYS_semctl, id, number, cmd, arg)
}

fn value(id: i32, number: i32) -> Result<u64, i32> {
    control(id, number, libc::GETVAL, 0)
}

fn set(id: i32, number: i32, value: i32) -> Result<u64, i32> {
    control(id, number, libc::SETVAL, value as u64)
}

fn waiters(id: i32, number: i32) -> Result<(u64, u64), i32> {
    let more = control(id, number, libc::GETNCNT, 0)?;
    Ok((more, control(id, number, libc::GETZCNT, 0)?))
}

fn remove(id: i32) -> Result<u64, i32> {
    control(id, 0, libc::IPC_RMID, 0)
}

fn stat(id: i32) -> Result<[u64; 13], i32> {
    let mut ds = [0u64; 13];
    control(id, 0, libc::IPC_STAT, ds.as_mut_ptr() as u64).map(|_| ds)
}

fn key() -> i32 {
    0x5b00_0000 | std::process::id() as i32
}

/// A thread that does one semop, and the result of that.
fn waits(id: i32, ops: &'static [(u16, i16, i16)]) -> JoinHandle<Result<u64, i32>> {
    thread::spawn(move || op(id, ops))
}

/// Waits until so many threads wait for more, and for zero.
fn until(id: i32, number: i32, counts: (u64, u64)) -> Result<(), i32> {
    while waiters(id, number)? != counts {
        sys::nap(MS);
    }
    Ok(())
}

fn end(thread: JoinHandle<Result<u64, i32>>) -> Result<u64, i32> {
    thread.join().unwrap_or(Err(0))
}

/// Runs `f` in a child; returns what the child's exit status is.
fn in_child(f: impl FnOnce() -> i32) -> Result<i32, i32> {
    match sys::fork()? {
        0 => sys::exit(f()),
        pid => sys::wait(pid as i64, 0).map(|(_, status)| status >> 8),
    }
}

extern "C" fn nothing(_: i32) {}

tests! { "sem";
    a_key_leads_to_one_set {
        let id = ok!(get(key(), 3, CREATE | 0o600));
        is!(ok!(get(key(), 0, 0)), id);
        is!(ok!(get(key(), 3, CREATE)), id);
        fails!(get(key(), 4, 0), EINVAL);
        fails!(get(key(), 1, CREATE | libc::IPC_EXCL), EEXIST);
        ok!(remove(id));
        fails!(get(key(), 1, 0), ENOENT);
        fails!(value(id, 0), EINVAL);
    }

    arguments_have_bounds {
        fails!(private(0), EINVAL);
        fails!(private(-1), EINVAL);
        fails!(private(32001), EINVAL);
        let id = ok!(private(2));
        fails!(op(id, &[]), EINVAL);
        fails!(sc!(SYS_semop, id, 8, 501), E2BIG);
        fails!(sc!(SYS_semop, id, 8, 1), EFAULT);
        fails!(op(id, &[(2, 1, 0)]), EFBIG);
        fails!(op(-1, &[(0, 1, 0)]), EINVAL);
        fails!(set(id, 0, -1), ERANGE);
        fails!(set(id, 0, 32768), ERANGE);
        fails!(set(id, 2, 1), EINVAL);
        fails!(value(id, -1), EINVAL);
        fails!(control(id, 0, 99, 0), EINVAL);
        ok!(set(id, 0, 32767));
        fails!(op(id, &[(0, 1, 0)]), ERANGE);
        fails!(op(id, &[(1, 1, 0), (0, 1, 0)]), ERANGE);
        is!(ok!(value(id, 1)), 0);
        ok!(remove(id));
    }

    operations_of_a_call_are_done_all_or_none {
        let id = ok!(private(3));
        ok!(op(id, &[(0, 5, 0), (1, 2, 0)]));
        fails!(op(id, &[(0, -1, 0), (1, -3, NO_WAIT)]), EAGAIN);
        is!((ok!(value(id, 0)), ok!(value(id, 1))), (5, 2));
        ok!(op(id, &[(0, -5, 0), (0, 0, 0), (0, 1, 0), (1, -2, 0), (2, 7, 0)]));
        let mut all = [0u16; 3];
        ok!(control(id, 0, libc::GETALL, all.as_mut_ptr() as u64));
        is!(all, [1, 0, 7]);
        fails!(op(id, &[(0, -1, 0), (0, -1, NO_WAIT)]), EAGAIN);
        is!(ok!(value(id, 0)), 1);
        ok!(remove(id));
    }

    the_record_says_what_was_done {
        let id = ok!(get(libc::IPC_PRIVATE, 2, 0o640));
        let ds = ok!(stat(id));
        is!(((ds[2] >> 32) as u32, ds[6], ds[10]), (0o640, 0, 2));
        holds!(ds[8] > 1_000_000_000);
        is!(ok!(control(id, 1, libc::GETPID, 0)), 0);
        ok!(op(id, &[(1, 1, 0), (0, 0, 0)]));
        let me = u64::from(std::process::id());
        is!(ok!(control(id, 1, libc::GETPID, 0)), me);
        is!(ok!(control(id, 0, libc::GETPID, 0)), me);
        holds!(ok!(stat(id))[6] >= ds[8]);
        ok!(remove(id));
    }

    all_values_are_set_at_once {
        let id = ok!(private(3));
        ok!(control(id, 0, libc::SETALL, [4u16, 5, 6].as_ptr() as u64));
        is!((ok!(value(id, 0)), ok!(value(id, 2))), (4, 6));
        fails!(control(id, 0, libc::SETALL, [1u16, 40000, 1].as_ptr() as u64), ERANGE);
        fails!(control(id, 0, libc::SETALL, 8), EFAULT);
        fails!(control(id, 0, libc::GETALL, 8), EFAULT);
        is!(ok!(value(id, 0)), 4);
        ok!(remove(id));
    }

    a_thread_waits_for_more {
        let id = ok!(private(1));
        let t = waits(id, &[(0, -2, 0)]);
        ok!(until(id, 0, (1, 0)));
        ok!(op(id, &[(0, 1, 0)]));
        sys::nap(10 * MS);
        is!(ok!(waiters(id, 0)), (1, 0));
        ok!(op(id, &[(0, 1, 0)]));
        ok!(end(t));
        is!((ok!(value(id, 0)), ok!(waiters(id, 0))), (0, (0, 0)));
        let t = waits(id, &[(0, -3, 0)]);
        ok!(until(id, 0, (1, 0)));
        ok!(set(id, 0, 5));
        ok!(end(t));
        is!(ok!(value(id, 0)), 2);
        ok!(remove(id));
    }

    a_thread_waits_for_zero {
        let id = ok!(private(1));
        ok!(set(id, 0, 2));
        let t = waits(id, &[(0, 0, 0), (0, 4, 0)]);
        ok!(until(id, 0, (0, 1)));
        ok!(op(id, &[(0, -1, 0)]));
        ok!(op(id, &[(0, -1, 0)]));
        ok!(end(t));
        is!(ok!(value(id, 0)), 4);
        ok!(remove(id));
    }

    threads_are_served_in_the_order_in_which_they_came {
        let id = ok!(private(2));
        let first = waits(id, &[(0, -1, 0), (1, 1, 0)]);
        ok!(until(id, 0, (1, 0)));
        let second = waits(id, &[(0, -1, 0), (1, -1, 0), (1, 10, 0)]);
        ok!(until(id, 0, (2, 0)));
        ok!(op(id, &[(0, 2, 0)]));
        ok!(end(first));
        ok!(end(second));
        is!((ok!(value(id, 0)), ok!(value(id, 1))), (0, 10));
        ok!(remove(id));
    }

    what_one_thread_does_serves_the_next {
        let id = ok!(private(3));
        let first = waits(id, &[(0, -1, 0), (1, 1, 0)]);
        let second = waits(id, &[(1, -1, 0), (2, 1, 0)]);
        let third = waits(id, &[(2, -1, 0)]);
        ok!(until(id, 0, (1, 0)));
        ok!(until(id, 1, (1, 0)));
        ok!(until(id, 2, (1, 0)));
        ok!(op(id, &[(0, 1, 0)]));
        for t in [first, second, third] {
            ok!(end(t));
        }
        let sum = ok!(value(id, 0)) + ok!(value(id, 1)) + ok!(value(id, 2));
        is!(sum, 0);
        ok!(remove(id));
    }

    a_removal_ends_waits {
        let id = ok!(private(1));
        ok!(set(id, 0, 1));
        let (more, zero) = (waits(id, &[(0, -2, 0)]), waits(id, &[(0, 0, 0)]));
        ok!(until(id, 0, (1, 1)));
        ok!(remove(id));
        fails!(end(more), EIDRM);
        fails!(end(zero), EIDRM);
        fails!(op(id, &[(0, 1, 0)]), EINVAL);
    }

    a_wait_has_a_time_limit {
        let id = ok!(private(1));
        let begin = sys::now_ns();
        fails!(timed(id, (0, -1, 0), 20 * MS), EAGAIN);
        holds!(sys::now_ns() - begin >= 20 * MS);
        fails!(timed(id, (0, -1, 0), 0), EAGAIN);
        is!(ok!(waiters(id, 0)), (0, 0));
        ok!(timed(id, (0, 1, 0), 0));
        let bad = [0u64, 1_000_000_000];
        fails!(sc!(SYS_semtimedop, id, [0u16, 1, 0].as_ptr(), 1, bad.as_ptr()), EINVAL);
        ok!(remove(id));
    }

    a_signal_ends_a_wait {
        let id = ok!(private(1));
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, libc::SA_RESTART));
        let timer = [0u64, 0, 0, 20_000];
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        fails!(op(id, &[(0, -1, 0)]), EINTR);
        is!(ok!(waiters(id, 0)), (0, 0));
        ok!(remove(id));
    }

    the_end_of_a_process_undoes {
        let id = ok!(private(2));
        ok!(set(id, 0, 5));
        is!(ok!(in_child(|| {
            let done = op(id, &[(0, -3, UNDO), (1, 2, UNDO), (0, 1, 0)]);
            let again = op(id, &[(0, -1, UNDO)]);
            i32::from(done.is_err() || again.is_err() || value(id, 0) != Ok(2))
        })), 0);
        is!((ok!(value(id, 0)), ok!(value(id, 1))), (6, 0));
        // A value below zero would come out: it is zero.
        is!(ok!(in_child(|| i32::from(op(id, &[(1, 2, UNDO)]).and(op(id, &[(1, -1, 0)])).is_err()))), 0);
        is!(ok!(value(id, 1)), 0);
        is!(ok!(in_child(|| i32::from(op(id, &[(0, -3, UNDO)]).and(set(id, 0, 9)).is_err()))), 0);
        is!(ok!(value(id, 0)), 9);
        ok!(remove(id));
    }

    an_undo_serves_those_that_wait {
        let id = ok!(private(1));
        ok!(set(id, 0, 1));
        let (from, to) = ok!(sys::pipe(0));
        let child = ok!(sys::fork());
        if child == 0 {
            let _ = op(id, &[(0, -1, UNDO)]);
            let _ = sys::write(to, b"x");
            sys::nap(1_000_000_000);
            sys::exit(0);
        }
        ok!(sys::read(from, &mut [0]));
        let t = waits(id, &[(0, -1, 0)]);
        ok!(until(id, 0, (1, 0)));
        ok!(sc!(SYS_kill, child, libc::SIGKILL));
        ok!(end(t));
        ok!(sys::wait(child as i64, 0));
        is!(ok!(value(id, 0)), 0);
        ok!(remove(id));
    }

    threads_share_what_they_undo {
        let id = ok!(private(1));
        is!(ok!(in_child(|| {
            let thread = thread::spawn(move || op(id, &[(0, 3, UNDO)]));
            let done = end(thread).is_ok();
            // The thread has ended, its process has not.
            i32::from(!done || value(id, 0) != Ok(3))
        })), 0);
        is!(ok!(value(id, 0)), 0);
        ok!(remove(id));
    }

    a_child_does_not_share_it {
        let id = ok!(private(1));
        is!(ok!(in_child(|| {
            let done = op(id, &[(0, 3, UNDO)]);
            let inner = in_child(|| 0);
            i32::from(done.is_err() || inner != Ok(0) || value(id, 0) != Ok(3))
        })), 0);
        is!(ok!(value(id, 0)), 0);
        ok!(remove(id));
    }

    unshare_undoes_what_only_the_caller_has {
        let id = ok!(private(1));
        is!(ok!(in_child(|| {
            let done = op(id, &[(0, 3, UNDO)]).and_then(|_| sc!(SYS_unshare, libc::CLONE_SYSVSEM));
            i32::from(done.is_err() || value(id, 0) != Ok(0))
        })), 0);
        ok!(remove(id));
    }

    execve_keeps_what_is_undone {
        let id = ok!(private(1));
        let argv = [path("/bin/true"), 0];
        is!(ok!(in_child(|| {
            let _ = op(id, &[(0, 3, UNDO)]);
            let _ = sc!(SYS_execve, path("/bin/true"), argv.as_ptr(), 0);
            9
        })), 0);
        is!(ok!(value(id, 0)), 0);
        ok!(remove(id));
    }

    others_may_what_the_mode_says {
        let key = key();
        let id = ok!(get(key, 1, CREATE | 0o604));
        ok!(set(id, 0, 1));
        is!(ok!(in_child(|| {
            if sys::become_user(1234, &[]).is_err() {
                return 1;
            }
            let checks = [
                op(id, &[(0, -1, 0)]) == Err(libc::EACCES),
                op(id, &[(0, 0, NO_WAIT)]) == Err(libc::EAGAIN),
                value(id, 0) == Ok(1),
                set(id, 0, 3) == Err(libc::EACCES),
                stat(id).is_ok(),
                get(key, 1, 0o400) == Ok(id),
                get(key, 1, 0o600) == Err(libc::EACCES),
                remove(id) == Err(libc::EPERM),
            ];
            checks.iter().position(|ok| !ok).map_or(0, |at| at as i32 + 2)
        })), 0);
        ok!(remove(id));
    }

    totals_and_indices {
        let id = ok!(private(7));
        let mut info = [0i32; 10];
        let highest = ok!(control(0, 0, libc::IPC_INFO, info.as_mut_ptr() as u64));
        is!((info[1], info[4], info[5], info[8]), (32000, 32000, 500, 32767));
        is!(ok!(control(0, 0, 19, info.as_mut_ptr() as u64)), highest);
        holds!(info[7] >= 1 && info[9] >= 7);
        let mut ds = [0u64; 13];
        let index = id & 0x7fff;
        for cmd in [18, 20] {
            is!(ok!(control(index, 0, cmd, ds.as_mut_ptr() as u64)), id as u64);
            is!(ds[10], 7);
        }
        let text = ok!(std::fs::read_to_string("/proc/sysvipc/sem").map_err(|_| 0));
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(&id.to_string()));
        let words: Vec<&str> = line.unwrap_or("").split_whitespace().collect();
        is!((words.len(), words.get(3)), (10, Some(&"7")));
        ok!(remove(id));
    }

    processes_take_turns {
        let id = ok!(private(2));
        ok!(set(id, 0, 1));
        let at = ok!(sys::mmap(0, PAGE, 3, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        let mut children = Vec::new();
        for _ in 0..4 {
            let child = ok!(sys::fork());
            if child == 0 {
                for _ in 0..100 {
                    if op(id, &[(0, -1, UNDO)]).is_err() {
                        sys::exit(1);
                    }
                    sys::poke64(at, sys::peek64(at) + 1);
                    if op(id, &[(0, 1, UNDO)]).is_err() {
                        sys::exit(2);
                    }
                }
                sys::exit(0);
            }
            children.push(child);
        }
        for child in children {
            is!(ok!(sys::wait(child as i64, 0)).1, 0);
        }
        is!((sys::peek64(at), ok!(value(id, 0))), (400, 1));
        ok!(remove(id));
    }
}
