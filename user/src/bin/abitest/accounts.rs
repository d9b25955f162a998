//! The limits of one user are independent of other users: processes, pages of pipes, queued signals.

use crate::harness::*;
use crate::privileges::{become_user_with, cap, first_wrong};
use user::sys;

/// Users without any process, one for each test.
mod uid {
    pub const COUNTED: u32 = 42_001;
    pub const ALONE: u32 = 42_002;
    pub const BEYOND: u32 = 42_003;
    pub const LATE: u32 = 42_004;
    pub const THREADS: u32 = 42_005;
    pub const BELOW: u32 = 42_006;
    pub const MOVES: u32 = 42_007;
    pub const PIPES: u32 = 42_008;
    pub const SIGNALS: u32 = 42_009;
    pub const EXECUTES: u32 = 42_010;
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

/// Queues signals that the caller blocks until a call fails; returns their number and the errno.
fn queue_signals() -> (u64, i32) {
    let (signo, held_back) = (libc::SIGRTMAX(), 1u64 << (libc::SIGRTMAX() - 1));
    let _ = sc!(
        SYS_rt_sigprocmask,
        libc::SIG_BLOCK,
        &raw const held_back,
        0,
        8
    );
    let me = sc!(SYS_getpid).unwrap_or(0);
    let mut info = [0u64; 16];
    info[0] = signo as u64;
    info[1] = u64::from(libc::SI_QUEUE as u32);
    for had in 0.. {
        if let Err(errno) = sc!(SYS_rt_sigqueueinfo, me, signo, info.as_ptr()) {
            return (had, errno);
        }
    }
    unreachable!("there is an end of all signals")
}

/// Changes the user of the calling thread alone.
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

/// Kills a child and waits for it.
fn end(pid: Result<u64, i32>) -> bool {
    pid.is_ok_and(|pid| {
        sc!(SYS_kill, pid, libc::SIGKILL).is_ok() && sys::wait(pid as i64, 0).is_ok()
    })
}

/// Waits until a child is a zombie, without reaping it.
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

/// execve(2) of a program that exits with 0; returns the result if the call failed.
fn exec_true() -> Result<u64, i32> {
    sc!(
        SYS_execve,
        path("/bin/true"),
        [path("true"), 0].as_ptr(),
        [0u64].as_ptr()
    )
}

/// Calls execve with a program that does not exist and with 4 MiB of arguments, for ever.
fn exec_nothing() -> ! {
    let stack = [64u64 << 20; 2];
    let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_STACK, stack.as_ptr(), 0);
    let word = path(&"x".repeat(100_000));
    let mut words = vec![word; 40];
    words.push(0);
    let missing = path("/missing");
    loop {
        let _ = sc!(SYS_execve, missing, words.as_ptr(), 0);
    }
}

/// Bytes of the kernel's memory that are charged to a user.
fn charged(uid: u32) -> u64 {
    let text = std::fs::read_to_string("/proc/pantala/accounts").unwrap_or_default();
    let start = format!("user={uid} ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    let mut words = line.unwrap_or_default().split_whitespace();
    let memory = words.find_map(|word| word.strip_prefix("memory="));
    memory.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// clone(2)'s flags for a thread.
const THREAD: i32 =
    libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
const AGAIN: Result<u64, i32> = Err(libc::EAGAIN);

type Pipe = Result<(i32, i32), i32>;

fn size(pipe: Pipe) -> Result<u64, i32> {
    sc!(SYS_fcntl, pipe?.0, libc::F_GETPIPE_SZ)
}

fn resize(pipe: Pipe, bytes: u64) -> Result<u64, i32> {
    sc!(SYS_fcntl, pipe?.1, libc::F_SETPIPE_SZ, bytes)
}

fn close(pipe: Pipe) {
    if let Ok((from, to)) = pipe {
        let _ = (sys::close(from), sys::close(to));
    }
}

/// Runs `f` while settings of /proc/sys/fs have these values, and restores them afterwards.
fn with_settings<T>(
    settings: &[(&str, u64)],
    f: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    let at = |name: &str| format!("/proc/sys/fs/{name}");
    let mut old = Vec::new();
    for (name, value) in settings {
        let before = std::fs::read_to_string(at(name)).map_err(|e| format!("{name}: {e}"))?;
        if let Err(e) = std::fs::write(at(name), value.to_string()) {
            return Err(format!("skip: {name}: {e}"));
        }
        old.push((name, before));
    }
    let result = f();
    for (name, before) in old {
        std::fs::write(at(name), before).map_err(|e| format!("{name}: {e}"))?;
    }
    result
}

tests! { "accounts";
    what_execve_copies_is_charged {
        if std::fs::metadata("/proc/pantala/accounts").is_err() {
            return Err("skip: no such accounts".into());
        }
        let pids: Vec<_> = (0..2).map(|_| sys::fork().inspect(|&pid| {
            if pid == 0 {
                if become_uid(uid::EXECUTES) {
                    exec_nothing();
                }
                sys::exit(1);
            }
        })).collect();
        let seen = soon(|| charged(uid::EXECUTES) >= 2 << 20);
        for pid in pids {
            holds!(end(pid));
        }
        holds!(seen);
        holds!(soon(|| charged(uid::EXECUTES) < 2 << 20));
    }
    signals_of_a_user_are_limited_together {
        let status = in_child(|| {
            let most = [64u64; 2];
            let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_SIGPENDING, most.as_ptr(), 0);
            if !become_uid(uid::SIGNALS) || queue_signals() != (64, libc::EAGAIN) {
                return 1;
            }
            // Another process of the user, whose own queue is empty, can queue none; afterwards the freed ones can be
            // queued.
            if in_child(|| i32::from(queue_signals() != (0, libc::EAGAIN))) != Ok(0) {
                return 2;
            }
            let set = 1u64 << (libc::SIGRTMAX() - 1);
            for _ in 0..10 {
                let _ = sc!(SYS_rt_sigtimedwait, &raw const set, 0, 0, 8);
            }
            if in_child(|| i32::from(queue_signals() != (10, libc::EAGAIN))) != Ok(0) {
                return 3;
            }
            // The signals of a dead process are no longer charged.
            i32::from(in_child(|| i32::from(queue_signals() != (10, libc::EAGAIN))) != Ok(0)) * 4
        })?;
        is!(status, 0);
    }
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
        // A program that repeatedly creates and joins threads leaves none charged.
        is!(in_child(|| {
            if limit(3).is_err() || sys::set_uid_of_all(uid::THREADS).is_err() {
                return 1;
            }
            for _ in 0..20 {
                // The count of threads falls only a moment after a join.
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
            // With another real user, and with all capabilities kept.
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
            // Two processes of the user exist already, and the limit is one.
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
                // By now there is room.
                let _ = exec_true();
                sys::exit(2);
            }
            let tried = sys::read(from, &mut [0]) == Ok(1);
            let gone = theirs.into_iter().all(end);
            let _ = sys::write(open, b"g");
            let ran = late.and_then(|pid| sys::wait(pid as i64, 0)).is_ok_and(|(_, status)| status == 0);
            first_wrong(&[there, tried, gone, ran])
        })?, 0);
        // A process within the limit when it changed its user may call execve though it exceeds the limit now.
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
    pipes_beyond_the_soft_limit_are_small {
        let status = with_settings(&[("pipe-user-pages-soft", 64)], || in_child(|| {
            let started = become_uid(uid::PIPES);
            let full: Vec<_> = (0..4).map(|_| sys::pipe(libc::O_NONBLOCK)).collect();
            let usual = full.iter().all(|&pipe| size(pipe) == Ok(65536));
            let small = sys::pipe(libc::O_NONBLOCK);
            let least = size(small) == Ok(8192) && size(sys::pipe(0)) == Ok(8192);
            let holds = small.is_ok_and(|(_, to)| {
                (0..2).all(|_| sys::write(to, &[1; 4096]) == Ok(4096)) && sys::write(to, &[1]) == Err(libc::EAGAIN)
            });
            let no_more = resize(small, 16384) == Err(libc::EPERM) && size(small) == Ok(8192);
            let less = resize(full[0], 4096) == Ok(4096) && resize(full[1], 4096) == Ok(4096);
            // 4 pages and 34 others are charged to the user by now.
            let room = size(sys::pipe(0)) == Ok(65536) && size(sys::pipe(0)) == Ok(8192);
            let sums = resize(full[0], 8192) == Ok(8192) && resize(full[0], 1 << 20) == Err(libc::EPERM);
            for pipe in full { close(pipe); }
            let after = size(sys::pipe(0)) == Ok(65536);
            first_wrong(&[started, usual, least, holds, no_more, less, room, sums, after])
        }));
        is!(status?, 0);
    }
    nobody_without_privileges_makes_pipes_beyond_the_hard_limit {
        let settings = [("pipe-user-pages-soft", 0), ("pipe-user-pages-hard", 80)];
        let status = with_settings(&settings, || in_child(|| {
            let root = (0..8).all(|_| size(sys::pipe(0)) == Ok(65536));
            let started = become_uid(uid::PIPES);
            let full: Vec<_> = (0..5).map(|_| sys::pipe(0)).collect();
            let usual = full.iter().all(|&pipe| size(pipe) == Ok(65536));
            let refused = sys::pipe(0) == Err(libc::ENFILE);
            let no_more = resize(full[0], 1 << 17) == Err(libc::EPERM);
            let less = resize(full[0], 4096) == Ok(4096);
            let still = sys::pipe(0) == Err(libc::ENFILE);
            close(full[1]);
            let room = size(sys::pipe(0)) == Ok(65536);
            first_wrong(&[root, started, usual, refused, no_more, less, still, room])
        }));
        is!(status?, 0);
    }
    a_pipe_is_its_makers_whoever_has_it {
        let settings = [("pipe-user-pages-soft", 32)];
        let status = with_settings(&settings, || in_child(|| {
            let (a, b) = (sys::pipe(0), sys::pipe(0));
            let started = become_uid(uid::PIPES);
            // Root's two pipes are charged to root alone.
            let own = sys::pipe(0);
            let usual = size(own) == Ok(65536);
            let roots = resize(a, 1 << 17) == Ok(1 << 17) || resize(a, 1 << 17) == Err(libc::EPERM);
            let second = size(sys::pipe(0)) == Ok(65536) && size(sys::pipe(0)) == Ok(8192);
            let kept = size(b) == Ok(65536);
            first_wrong(&[started, usual, roots, second, kept])
        }));
        is!(status?, 0);
    }
    new_pipes_are_not_larger_than_the_largest_size {
        let status = with_settings(&[("pipe-max-size", 16384)], || in_child(|| {
            let started = become_uid(uid::PIPES);
            let pipe = sys::pipe(0);
            let small = size(pipe) == Ok(16384) && resize(pipe, 32768) == Err(libc::EPERM);
            first_wrong(&[started, small, resize(pipe, 5000) == Ok(8192), resize(pipe, 0) == Ok(4096)])
        }));
        is!(status?, 0);
    }
    a_fifo_counts_from_its_first_opening_to_its_last_close {
        let dir = scratch();
        let name = format!("{dir}/fifo");
        ok!(sc!(SYS_chmod, path(&dir), 0o777));
        ok!(sc!(SYS_mknod, path(&name), libc::S_IFIFO | 0o666, 0));
        ok!(sc!(SYS_chmod, path(&name), 0o666));
        let status = with_settings(&[("pipe-user-pages-soft", 16)], || in_child(|| {
            let started = become_uid(uid::PIPES);
            let mut steps = vec![started];
            for _ in 0..3 {
                let fifo = sys::open(&name, libc::O_RDWR, 0);
                steps.push(size(fifo.map(|fd| (fd, fd))) == Ok(65536));
                let pipe = sys::pipe(0);
                steps.push(size(pipe) == Ok(8192));
                close(pipe);
                steps.push(fifo.is_ok_and(|fd| sys::close(fd).is_ok()));
                let pipe = sys::pipe(0);
                steps.push(size(pipe) == Ok(65536));
                close(pipe);
            }
            first_wrong(&steps)
        }));
        is!(status?, 0);
    }
    init_may_have_half_of_the_threads_that_memory_is_for_in_a_user_and_nobody_may_raise_that {
        let text = std::fs::read_to_string("/proc/sys/kernel/threads-max").unwrap_or_default();
        let most: u64 = text.trim().parse().unwrap_or(0);
        let mut now = [0u64; 2];
        ok!(sc!(SYS_prlimit64, 1, libc::RLIMIT_NPROC, 0, now.as_mut_ptr()));
        is!(now, [most / 2; 2]);
        let status = in_child(|| {
            let (set, user) = (limit(most / 2).is_ok(), become_uid(uid::BEYOND));
            first_wrong(&[set, user, limit(most / 2 + 1) == Err(libc::EPERM), limit(most / 2 - 1).is_ok()])
        });
        is!(status?, 0);
    }
}
