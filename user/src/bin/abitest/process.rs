//! fork, clone, vfork, execve, exit, wait4, waitid, identities, limits, process groups.

use crate::harness::*;
use user::sys;

fn exec(file: &str, args: &[&str]) -> Result<u64, i32> {
    let list =
        |words: &mut dyn Iterator<Item = &str>| words.map(path).chain([0]).collect::<Vec<u64>>();
    let argv = list(&mut std::iter::once(file).chain(args.iter().copied()));
    sc!(SYS_execve, path(file), argv.as_ptr(), [0u64].as_ptr())
}

fn script(name: &str, text: &str, mode: u32) -> String {
    let file = format!("{}/{name}", scratch());
    let fd = sys::open(&file, libc::O_WRONLY | libc::O_CREAT, mode).unwrap_or(-1);
    let _ = sys::write(fd, text.as_bytes());
    let _ = sys::close(fd);
    file
}

/// Forks a child that reads a byte from `from` and exits with that byte as its status.
fn reader(from: i32, to: i32) -> Result<u64, i32> {
    match sys::fork()? {
        0 => {
            let _ = sys::close(to);
            let got = sys::read(from, &mut [0]);
            sys::exit(got.unwrap_or(99) as i32)
        }
        pid => Ok(pid),
    }
}

/// Consumes a tid without creating a thread: the clone fails because its thread-local storage cannot lie at the given
/// address.
pub fn burn_number() {
    let flags = libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_SETTLS;
    let _ = sc!(SYS_clone, flags, 0, 0, 0, 1u64 << 63);
}

/// Whether this thread is its process's leader, as after exec: exit status 0.
pub fn leader() -> i32 {
    let (pid, tid) = (sc!(SYS_getpid), sc!(SYS_gettid));
    let listed = |dir: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|e| e.file_name()).collect();
        (names.pop(), names.len())
    };
    let name = pid.map(|pid| pid.to_string().into()).ok();
    if pid != tid || listed("/proc/self/task") != (name, 0) {
        return 1;
    }
    // The thread sleeps, is woken and gets signals under that tid.
    let woken = std::thread::spawn(|| nap_us(1000)).join();
    let held_back = 1u64 << (libc::SIGUSR1 - 1);
    let _ = sc!(
        SYS_rt_sigprocmask,
        libc::SIG_BLOCK,
        &raw const held_back,
        0,
        8
    );
    let sent = sc!(SYS_tkill, pid.unwrap_or(0), libc::SIGUSR1);
    let got = sc!(SYS_rt_sigtimedwait, &raw const held_back, 0, 0, 8);
    i32::from(woken.is_err() || sent.is_err() || got != Ok(libc::SIGUSR1 as u64))
}

/// Whether no signal action is left that a test set before exec: exit status 0.
pub fn actions() -> i32 {
    let action = |signal: i32| {
        let mut now = [9u64; 4];
        let got = sc!(SYS_rt_sigaction, signal, 0, now.as_mut_ptr(), 8);
        got.map(|_| std::hint::black_box(now))
    };
    let plain = [libc::SIGCHLD, libc::SIGUSR2].map(action) == [Ok([0; 4]); 2];
    let ignored = action(libc::SIGUSR1) == Ok([libc::SIG_IGN as u64, 0, 0, 0]);
    let waited = in_child(|| 7);
    i32::from(!plain) + 2 * i32::from(!ignored) + 4 * i32::from(waited != Ok(7 << 8))
}

tests! { "process";
    exit_status_is_eight_bits {
        is!(in_child(|| 0)?, 0);
        is!(in_child(|| 255)?, 0xff00);
        is!(in_child(|| 0x1234)?, 0x3400);
    }
    fork_gives_distinct_pids {
        let me = ok!(sc!(SYS_getpid));
        let base = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            sys::poke64(base, sc!(SYS_getpid).unwrap_or(0));
            sys::poke64(base + 8, sc!(SYS_getppid).unwrap_or(0));
            sys::exit(0);
        }
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        is!([sys::peek64(base), sys::peek64(base + 8)], [pid, me]);
    }
    a_thread_that_calls_execve_becomes_the_leader {
        // The path is read beforehand: Linux has no /proc/self/exe for a process whose leader has ended.
        let exe = std::env::current_exe().map_err(|e| e.to_string())?;
        let exe = exe.to_string_lossy();
        for leader_stays in [true, false] {
            let status = in_child(|| {
                let exe = exe.clone().into_owned();
                std::thread::spawn(move || {
                    nap_us(20_000);
                    let _ = exec(&exe, &["--leader"]);
                    sys::exit(99);
                });
                if leader_stays {
                    nap_us(100_000_000);
                }
                let _ = sc!(SYS_exit, 0);
                98
            })?;
            is!((leader_stays, status), (leader_stays, 0));
        }
    }
    a_leader_that_has_ended_counts_among_the_threads {
        let status = in_child(|| {
            std::thread::spawn(|| {
                let threads = |text: String| {
                    let line = text.lines().find_map(|line| line.strip_prefix("Threads:"));
                    line.is_some_and(|n| n.trim() == "2")
                };
                // The leader may still be on its way out.
                nap_us(50_000);
                let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
                sys::exit(i32::from(!threads(text)));
            });
            let _ = sc!(SYS_exit, 0);
            98
        })?;
        is!(status, 0);
    }
    a_number_that_comes_back_inherits_no_wait {
        // Readers are killed asleep. Threads that get their tids sleep elsewhere; a writer must wake a living reader.
        const READERS: usize = 32;
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let (pipe, other) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        let mut dead = Vec::new();
        for _ in 0..READERS { dead.push(ok!(reader(pipe.0, pipe.1))); }
        nap_us(20_000);
        for &pid in &dead { ok!(sc!(SYS_kill, pid, libc::SIGKILL)); }
        for &pid in &dead { is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL)); }
        // Pids wrap at a power of two, 32768 or more.
        for _ in 0..32_768 - 4 * READERS { burn_number(); }
        let mut heirs = Vec::new();
        for _ in 0..8 * READERS {
            let pid = ok!(reader(other.0, other.1));
            if dead.contains(&pid) { heirs.push(pid); continue; }
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            ok!(sys::wait(pid as i64, 0));
        }
        let living = ok!(reader(pipe.0, pipe.1));
        nap_us(20_000);
        ok!(sys::write(pipe.1, &[1]));
        holds!(soon(|| sys::wait(living as i64, libc::WNOHANG) == Ok((living, 1 << 8))));
        ok!(sys::close(other.1));
        for pid in heirs { is!(ok!(sys::wait(pid as i64, 0)), (pid, 0)); }
    }
    wait4_without_children { fails!(sys::wait(-1, 0), ECHILD); }
    wait4_for_a_stranger { fails!(sys::wait(1, 0), ECHILD); }
    wait4_bad_options { fails!(sys::wait(-1, 0x100), EINVAL); }
    wait4_wnohang {
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = sys::close(to);
            let _ = sys::read(from, &mut [0]);
            sys::exit(3);
        }
        is!(ok!(sys::wait(-1, libc::WNOHANG)).0, 0);
        ok!(sys::close(to));
        is!(ok!(sys::wait(-1, 0)), (pid, 3 << 8));
    }
    wait4_bad_status_pointer {
        let pid = ok!(sys::fork());
        if pid == 0 { sys::exit(0); }
        fails!(sc!(SYS_wait4, pid, 8, 0, 0), EFAULT);
    }
    setpgid_moves_a_zombie {
        let pid = ok!(sys::fork());
        if pid == 0 { sys::exit(6); }
        ok!(sc!(SYS_waitid, libc::P_PID, pid, 0, libc::WEXITED | libc::WNOWAIT, 0));
        ok!(sc!(SYS_setpgid, pid, pid));
        is!(ok!(sys::wait(-(pid as i64), 0)), (pid, 6 << 8));
        fails!(sc!(SYS_setpgid, pid, pid), ESRCH);
    }
    setpgid_by_parent_and_child_at_once {
        let sleeper = || -> Result<u64, String> {
            let pid = ok!(sys::fork());
            if pid == 0 { loop { nap_us(1_000_000); } }
            ok!(sc!(SYS_setpgid, pid, pid));
            Ok(pid)
        };
        let groups = [sleeper()?, sleeper()?];
        let pid = ok!(sys::fork());
        let moves = |pid: u64| (0..400).all(|i| sc!(SYS_setpgid, pid, groups[i % 2]).is_ok());
        if pid == 0 { sys::exit(i32::from(!moves(0))); }
        // The child may exit and stay a zombie meanwhile; setpgid works on a zombie, too.
        holds!(moves(pid));
        let last = ok!(sc!(SYS_getpgid, pid));
        holds!(groups.contains(&last));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        for group in groups {
            ok!(sc!(SYS_kill, -(group as i64), libc::SIGKILL));
            is!(ok!(sys::wait(-(group as i64), 0)), (group, libc::SIGKILL));
            fails!(sc!(SYS_kill, -(group as i64), 0), ESRCH);
        }
    }
    wait4_by_process_group {
        let pid = ok!(sys::fork());
        if pid == 0 { sys::exit(5); }
        ok!(sc!(SYS_setpgid, pid, pid).or_else(|e| if e == libc::EACCES { Ok(0) } else { Err(e) }));
        is!(ok!(sys::wait(-(pid as i64), 0)), (pid, 5 << 8));
    }
    wait4_tells_the_signal {
        let pid = ok!(sys::fork());
        if pid == 0 { loop { nap_us(1_000_000); } }
        ok!(sc!(SYS_kill, pid, libc::SIGTERM));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGTERM));
    }
    no_core_is_told_of_where_none_is_dumped {
        for signal in [libc::SIGQUIT, libc::SIGABRT, libc::SIGSEGV, libc::SIGSYS, libc::SIGXCPU, libc::SIGTRAP] {
            let pid = ok!(sys::fork());
            if pid == 0 {
                let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_CORE, [0u64, 0].as_ptr(), 0);
                let _ = sys::default_signal(signal);
                let _ = sc!(SYS_kill, sc!(SYS_getpid).unwrap_or(0), signal);
                sys::exit(1);
            }
            let mut info = [0i32; 32];
            ok!(sc!(SYS_waitid, libc::P_PID, pid, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT, 0));
            is!((info[2], info[6]), (libc::CLD_KILLED, signal));
            is!(ok!(sys::wait(pid as i64, 0)).1, signal);
        }
    }
    wait4_stop_and_continue {
        let pid = ok!(sys::fork());
        if pid == 0 { loop { nap_us(1_000_000); } }
        ok!(sc!(SYS_kill, pid, libc::SIGSTOP));
        is!(ok!(sys::wait(pid as i64, libc::WUNTRACED)), (pid, libc::SIGSTOP << 8 | 0x7f));
        ok!(sc!(SYS_kill, pid, libc::SIGCONT));
        is!(ok!(sys::wait(pid as i64, libc::WCONTINUED)), (pid, 0xffff));
        ok!(sc!(SYS_kill, pid, libc::SIGKILL));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL));
    }
    of_threads_that_wait_for_one_child_one_gets_it {
        let end = sys::now_ns() + 1_000_000_000;
        while sys::now_ns() < end {
            let (from, to) = ok!(sys::pipe(0));
            let pid = ok!(reader(from, to));
            let waiters: Vec<_> = (0..3).map(|_| std::thread::spawn(|| sys::wait(-1, 0))).collect();
            nap_us(2_000);
            ok!(sys::close(to));
            let answers: Vec<_> = waiters.into_iter().filter_map(|waiter| waiter.join().ok()).collect();
            is!(answers.iter().filter(|&answer| *answer == Ok((pid, 0))).count(), 1);
            is!(answers.iter().filter(|&answer| *answer == Err(libc::ECHILD)).count(), 2);
            ok!(sys::close(from));
        }
    }
    threads_that_are_born_meanwhile_do_not_outlive_an_exec {
        for n in 0..10 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                std::thread::spawn(|| for _ in 0..20 { let _ = std::thread::Builder::new().spawn(|| loop { nap_us(1_000_000); }); });
                nap_us(n * 600);
                let _ = exec("/bin/true", &[]);
                sys::exit(99);
            }
            holds!(soon(|| sys::wait(pid as i64, libc::WNOHANG) == Ok((pid, 0))));
        }
    }
    waitid_nowait_and_reap {
        let pid = ok!(sys::fork());
        if pid == 0 { sys::exit(9); }
        let mut info = [0i32; 32];
        ok!(sc!(SYS_waitid, libc::P_PID, pid, info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT, 0));
        // si_signo, si_errno, si_code, then pid, uid and status of SIGCHLD.
        is!([info[0], info[2], info[4], info[6]], [libc::SIGCHLD, libc::CLD_EXITED, pid as i32, 9]);
        ok!(sc!(SYS_waitid, libc::P_ALL, 0, info.as_mut_ptr(), libc::WEXITED, 0));
        fails!(sc!(SYS_waitid, libc::P_ALL, 0, info.as_mut_ptr(), libc::WEXITED, 0), ECHILD);
    }
    waitid_arguments {
        fails!(sc!(SYS_waitid, libc::P_ALL, 0, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_waitid, 77, 0, 0, libc::WEXITED, 0), EINVAL);
    }
    a_large_group_is_hung_up_when_it_is_orphaned {
        // The members' parent ends, the only process that could have continued the stopped member.
        const MEMBERS: usize = 40;
        let (from, to) = ok!(sys::pipe(0));
        let parent = ok!(sys::fork());
        if parent == 0 {
            let _ = sys::close(from);
            let (mut group, mut last) = (0, 0);
            for _ in 0..MEMBERS {
                last = sys::fork().unwrap_or(0);
                if last == 0 { loop { nap_us(1_000_000); } }
                if group == 0 { group = last; }
                if sc!(SYS_setpgid, last, group).is_err() { sys::exit(1); }
            }
            let _ = sc!(SYS_kill, last, libc::SIGSTOP);
            let stopped = sys::wait(last as i64, libc::WUNTRACED);
            sys::exit(i32::from(!stopped.is_ok_and(|(_, status)| libc::WIFSTOPPED(status))));
        }
        ok!(sys::close(to));
        is!(ok!(sys::wait(parent as i64, 0)), (parent, 0));
        // All members hold the pipe's write end.
        let mut set = [libc::pollfd { fd: from, events: libc::POLLIN, revents: 0 }];
        is!(ok!(sc!(SYS_poll, set.as_mut_ptr(), 1, 10_000)), 1);
        is!(set[0].revents, libc::POLLHUP);
    }
    a_group_that_nobody_controlled_before_is_left_alone {
        // Only the leader has a parent outside of the group, and that parent is in another session. A member's parent
        // ends that was itself a member.
        let leader = ok!(sys::fork());
        if leader == 0 {
            let _ = sc!(SYS_setsid);
            let Ok((from, to)) = sys::pipe(0) else { sys::exit(1) };
            let until_the_leader_ends = || {
                let _ = sys::close(to);
                let _ = sys::read(from, &mut [0]);
                sys::exit(0)
            };
            let stopped = sys::fork().unwrap_or(0);
            if stopped == 0 { until_the_leader_ends(); }
            let _ = sc!(SYS_kill, stopped, libc::SIGSTOP);
            if !sys::wait(stopped as i64, libc::WUNTRACED).is_ok_and(|(_, status)| libc::WIFSTOPPED(status)) { sys::exit(2); }
            let parent = sys::fork().unwrap_or(0);
            if parent == 0 {
                if sys::fork() == Ok(0) { until_the_leader_ends(); }
                sys::exit(0);
            }
            let _ = sys::wait(parent as i64, 0);
            nap_us(20_000);
            let _ = sc!(SYS_kill, stopped, libc::SIGKILL);
            sys::exit(7);
        }
        is!(ok!(sys::wait(leader as i64, 0)), (leader, 7 << 8));
    }
    orphans_get_a_new_parent {
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            if sys::fork() == Ok(0) {
                let old = sc!(SYS_getppid);
                let moved = soon(|| sc!(SYS_getppid) != old || old == Ok(1));
                let _ = sys::write(to, &[u8::from(moved)]);
            }
            sys::exit(0);
        }
        ok!(sys::wait(pid as i64, 0));
        let mut byte = [9];
        is!(ok!(sys::read(from, &mut byte)), 1);
        is!(byte, [1]);
    }
    zombies_are_reaped_in_any_order {
        let pids: Vec<u64> = (0..20).filter_map(|i| match sys::fork() { Ok(0) => sys::exit(i), other => other.ok() }).collect();
        is!(pids.len(), 20);
        for (i, &pid) in pids.iter().enumerate().rev() { is!(ok!(sys::wait(pid as i64, 0)), (pid, (i as i32) << 8)); }
    }
    vfork_and_exit {
        let pid = ok!(sys::vfork_exit());
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    vfork_and_exec {
        let argv = [c"/bin/sh".as_ptr(), c"-c".as_ptr(), c"exit 6".as_ptr(), std::ptr::null()];
        let pid = ok!(sys::vfork_exec(c"/bin/sh", &argv, &[std::ptr::null()]));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 6 << 8));
    }
    clone_bad_flags {
        let thread = libc::CLONE_THREAD;
        fails!(sc!(SYS_clone, thread, 0, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_clone, libc::CLONE_SIGHAND, 0, 0, 0, 0), EINVAL);
        fails!(sc!(SYS_clone, libc::CLONE_FS | libc::CLONE_NEWNS, 0, 0, 0, 0), EINVAL);
    }
    clone_settid_and_cleartid {
        let base = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        let flags = libc::CLONE_CHILD_SETTID | libc::CLONE_PARENT_SETTID | libc::SIGCHLD;
        let pid = ok!(sc!(SYS_clone, flags, 0, base, base + 8, 0));
        if pid == 0 { sys::exit(i32::from(Ok(sys::peek64(base + 8)) != sc!(SYS_gettid))); }
        is!(sys::peek64(base), pid);
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    threads_share_memory_and_end {
        let total = std::sync::Arc::new(std::sync::Mutex::new(0u64));
        let threads: Vec<_> = (0..8u64).map(|i| {
            let total = total.clone();
            std::thread::spawn(move || for _ in 0..500 { *total.lock().unwrap() += i; })
        }).collect();
        for thread in threads { holds!(thread.join().is_ok()); }
        is!(*total.lock().unwrap(), 28 * 500);
    }
    exit_group_ends_all_threads {
        let status = in_child(|| {
            std::thread::spawn(|| loop { nap_us(100_000); });
            std::thread::spawn(|| { nap_us(20_000); sys::exit(8) });
            loop { nap_us(100_000); }
        })?;
        is!(status, 8 << 8);
    }
    exec_ends_other_threads {
        let status = in_child(|| {
            for _ in 0..3 { std::thread::spawn(|| loop { nap_us(100_000); }); }
            let _ = exec("/bin/sh", &["-c", "exit 4"]);
            1
        })?;
        is!(status, 4 << 8);
    }
    execve_makes_the_usual_signal_tell_of_the_end {
        let both = 1u64 << (libc::SIGUSR1 - 1) | 1 << (libc::SIGCHLD - 1);
        ok!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const both, 0, 8));
        let pid = ok!(sc!(SYS_clone, libc::SIGUSR1, 0, 0, 0, 0));
        if pid == 0 {
            let _ = exec("/bin/sh", &["-c", "exit 3"]);
            sys::exit(99);
        }
        // A child with another exit signal than SIGCHLD could only be waited for with __WCLONE.
        is!(ok!(sc!(SYS_waitid, libc::P_PID, pid, 0, libc::WEXITED | libc::__WALL, 0)), 0);
        let mut pending = 0u64;
        ok!(sc!(SYS_rt_sigpending, &raw mut pending, 8));
        is!(pending, 1 << (libc::SIGCHLD - 1));
    }
    a_program_gets_no_signal_that_the_one_before_agreed_to {
        // A child whose exit signal is SIGUSR1 is created; then its parent executes another program.
        let pipes = [ok!(sys::pipe(libc::O_CLOEXEC)), ok!(sys::pipe(libc::O_CLOEXEC)), ok!(sys::pipe(0))];
        let [go, gone, input] = pipes;
        let pid = ok!(sys::fork());
        if pid == 0 {
            if sc!(SYS_clone, libc::SIGUSR1, 0, 0, 0, 0) == Ok(0) {
                // Until the program has started: exec closes its copy of `go`.
                let _ = sys::close(go.1);
                let _ = sys::read(go.0, &mut [0]);
                nap_us(5000);
                sys::exit(0);
            }
            let _ = sc!(SYS_dup2, input.0, 0);
            let _ = sys::close(input.1);
            let _ = exec("/proc/self/exe", &["--wait"]);
            sys::exit(99);
        }
        for end in [go.1, gone.1, input.0] { ok!(sys::close(end)); }
        is!(ok!(sys::read(gone.0, &mut [0])), 0);
        nap_us(20_000);
        ok!(sys::close(input.1));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
    }
    a_sibling_is_told_of_as_its_maker_is {
        let all = !0u64;
        ok!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const all, 0, 8));
        let pid = ok!(sys::fork());
        if pid == 0 {
            match sc!(SYS_clone, libc::CLONE_PARENT | libc::SIGUSR1, 0, 0, 0, 0) {
                Ok(0) => sys::exit(5),
                other => sys::exit(i32::from(other.is_err())),
            }
        }
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        is!(ok!(sys::wait(-1, 0)).1, 5 << 8);
        let mut pending = 0u64;
        ok!(sc!(SYS_rt_sigpending, &raw mut pending, 8));
        is!(pending, 1 << (libc::SIGCHLD - 1));
        // Nor may the exit signal be one that cannot be blocked.
        let status = in_child(|| {
            let maker = sys::fork();
            if maker == Ok(0) {
                if sc!(SYS_clone, libc::CLONE_PARENT | libc::SIGKILL, 0, 0, 0, 0) == Ok(0) { sys::exit(0); }
                sys::exit(0);
            }
            i32::from(sys::wait(-1, 0).is_err() || sys::wait(-1, 0).is_err())
        })?;
        is!(status, 0);
    }
    rusage_has_the_children_that_were_waited_for {
        let pid = ok!(sys::fork());
        if pid == 0 {
            let burnt = in_child(|| {
                let mut ts = [0u64; 2];
                while ts[0] == 0 && ts[1] < 120_000_000 {
                    let _ = sc!(SYS_clock_gettime, libc::CLOCK_PROCESS_CPUTIME_ID, ts.as_mut_ptr());
                }
                0
            });
            sys::exit(i32::from(burnt != Ok(0)));
        }
        let mut usage = [0u64; 18];
        let us = |usage: &[u64; 18]| (usage[0] + usage[2]) * 1_000_000 + usage[1] + usage[3];
        let mut status = 9i32;
        is!(ok!(sc!(SYS_wait4, pid, &raw mut status, 0, usage.as_mut_ptr())), pid);
        is!(status, 0);
        holds!(us(&usage) >= 100_000);
        ok!(sc!(SYS_getrusage, libc::RUSAGE_CHILDREN, usage.as_mut_ptr()));
        holds!(us(&usage) >= 100_000);
        holds!(us(&usage) < 5_000_000);
    }
    timer_slack_is_inherited {
        let slack = || sc!(SYS_prctl, libc::PR_GET_TIMERSLACK, 0, 0, 0, 0);
        let set = |ns: u64| sc!(SYS_prctl, libc::PR_SET_TIMERSLACK, ns, 0, 0, 0);
        let usual = ok!(slack());
        ok!(set(123_456));
        is!(in_child(|| {
            let mut wrong = i32::from(slack() != Ok(123_456));
            // The creator's value at the time of the fork is the default here.
            let _ = set(99);
            wrong += i32::from(slack() != Ok(99)) * 2;
            let _ = set(0);
            wrong + i32::from(slack() != Ok(123_456)) * 4
        })?, 0);
        ok!(set(1 << 33));
        is!(slack(), Ok(1 << 33));
        ok!(set(u64::MAX));
        is!(slack(), Err(1)); // All ones, which is -1, and looks like EPERM.
        ok!(set(0));
        is!(ok!(slack()), usual);
    }
    execve_errors {
        fails!(exec("/nonexistent", &[]), ENOENT);
        fails!(exec("/nonexistent/x", &[]), ENOENT);
        fails!(exec("/dev/null/x", &[]), ENOTDIR);
        fails!(exec("/tmp", &[]), EACCES);
        fails!(exec("", &[]), ENOENT);
        fails!(sc!(SYS_execve, 8, 0, 0), EFAULT);
        fails!(sc!(SYS_execve, path("/bin/sh"), 8, 0), EFAULT);
        fails!(exec(&"x".repeat(5000), &[]), ENAMETOOLONG);
        let file = script("noexec", "#!/bin/sh\n", 0o600);
        fails!(exec(&file, &[]), EACCES);
        let file = script("garbage", "\x7fELFgarbage", 0o700);
        fails!(exec(&file, &[]), ENOEXEC);
        let file = script("empty", "", 0o700);
        fails!(exec(&file, &[]), ENOEXEC);
        let file = script("interp", "#!/nonexistent/sh\n", 0o700);
        fails!(exec(&file, &[]), ENOENT);
    }
    execve_keeps_of_actions_only_that_signals_are_ignored {
        let set = |signal: i32, handler: usize, flags: i32| {
            let action = [handler as u64, flags as u64, 0, 1 << (libc::SIGTERM - 1)];
            sc!(SYS_rt_sigaction, signal, action.as_ptr(), 0, 8)
        };
        for caught in [false, true] {
            is!(in_child(|| {
                // The actions set by Rust's runtime, too.
                for signal in 1..=64 {
                    let _ = sc!(SYS_rt_sigaction, signal, [0u64; 4].as_ptr(), 0, 8);
                }
                let _ = set(libc::SIGCHLD, libc::SIG_DFL, libc::SA_NOCLDWAIT | libc::SA_RESTART);
                let _ = set(libc::SIGUSR1, libc::SIG_IGN, libc::SA_NODEFER);
                if caught {
                    let _ = sys::on_signal(libc::SIGUSR2, on_nothing as *const () as usize, libc::SA_NODEFER);
                }
                let _ = exec("/proc/self/exe", &["--actions"]);
                99
            })?, 0);
        }
    }
    execve_of_a_file_open_for_writing {
        let file = script("busy", "#!/bin/sh\nexit 0\n", 0o700);
        let fd = ok!(sys::open(&file, libc::O_WRONLY, 0));
        fails!(exec(&file, &[]), ETXTBSY);
        ok!(sys::close(fd));
        is!(in_child(|| { let _ = exec(&file, &[]); 99 })?, 0);
    }
    opening_a_running_program_for_writing {
        let copy = format!("{}/program", scratch());
        holds!(std::fs::copy("/proc/self/exe", &copy).is_ok());
        // The kernel caches a program that is executed several times.
        for _ in 0..9 {
            let null = ok!(sys::open("/dev/null", libc::O_RDONLY, 0));
            is!(in_child(|| { let _ = sc!(SYS_dup2, null, 0); let _ = exec(&copy, &["--wait"]); 99 })?, 0);
            ok!(sys::close(null));
        }
        let (from, to) = ok!(sys::pipe(0));
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = (sc!(SYS_dup2, from, 0), sys::close(to));
            let _ = exec(&copy, &["--wait"]);
            sys::exit(99);
        }
        let exe = format!("/proc/{pid}/exe");
        holds!(soon(|| std::fs::read_link(&exe).is_ok_and(|to| to.ends_with("program"))));
        fails!(sys::open(&copy, libc::O_WRONLY, 0), ETXTBSY);
        fails!(sys::open(&copy, libc::O_RDWR, 0), ETXTBSY);
        fails!(sys::open(&copy, libc::O_RDONLY | libc::O_TRUNC, 0), ETXTBSY);
        fails!(sc!(SYS_truncate, path(&copy), 0), ETXTBSY);
        ok!(sys::open(&copy, libc::O_RDONLY, 0));
        ok!(sys::close(to));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        ok!(sys::open(&copy, libc::O_WRONLY, 0));
    }
    a_program_run_often_can_be_written_and_replaced {
        let (file, new) = (format!("{}/often", scratch()), format!("{}/new", scratch()));
        for to in [&file, &new] { holds!(std::fs::copy("/proc/self/exe", to).is_ok()); }
        let null = ok!(sys::open("/dev/null", libc::O_RDONLY, 0));
        let run = || in_child(|| { let _ = sc!(SYS_dup2, null, 0); let _ = exec(&file, &["--wait"]); 99 });
        for _ in 0..9 { is!(run()?, 0); }
        let fd = ok!(sys::open(&file, libc::O_WRONLY | libc::O_APPEND, 0));
        fails!(exec(&file, &[]), ETXTBSY);
        ok!(sys::write(fd, b"x"));
        ok!(sys::close(fd));
        for _ in 0..9 { is!(run()?, 0); }
        ok!(sc!(SYS_rename, path(&new), path(&file)));
        for _ in 0..9 { is!(run()?, 0); }
        ok!(sc!(SYS_chmod, path(&file), 0o600));
        fails!(exec(&file, &[]), EACCES);
        ok!(sc!(SYS_unlink, path(&file)));
        fails!(exec(&file, &[]), ENOENT);
    }
    execve_arguments_too_long {
        let huge = "x".repeat(200_000);
        fails!(exec("/bin/sh", &[&huge]), E2BIG);
        // Arguments and environment share a quarter of the stack, two megabytes.
        let long = path(&"x".repeat(100_000));
        let (file, with) = (path("/bin/false"), |n: usize| [vec![long; n], vec![0]].concat());
        let run = |argc: usize, envc: usize| in_child(|| {
            let failed = sc!(SYS_execve, file, with(argc).as_ptr(), with(envc).as_ptr());
            if failed == Err(libc::E2BIG) { 7 } else { 99 }
        });
        is!(run(14, 14)?, 7 << 8);
        is!(run(1, 27)?, 7 << 8);
        is!(run(10, 9)?, 1 << 8);
    }
    execve_follows_five_scripts {
        let dir = scratch();
        let write = |n: u32, text: &str| std::fs::write(format!("{dir}/s{n}"), text).and_then(|()| {
            std::fs::set_permissions(format!("{dir}/s{n}"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        });
        holds!(write(1, "#!/bin/sh\nexit 6\n").is_ok());
        for n in 2..=6 { holds!(write(n, &format!("#!{dir}/s{}\n", n - 1)).is_ok()); }
        is!(in_child(|| { let _ = exec(&format!("{dir}/s5"), &[]); 99 })?, 6 << 8);
        fails!(exec(&format!("{dir}/s6"), &[]), ELOOP);
    }
    execve_script_gets_its_arguments {
        let file = script("s", "#!/bin/sh -e\n[ \"$1\" = one ] && [ \"$2\" = two ] && exit 11\nexit 1\n", 0o700);
        is!(in_child(|| { let _ = exec(&file, &["one", "two"]); 99 })?, 11 << 8);
    }
    execve_closes_descriptors_on_exec {
        let keep = ok!(sys::open("/dev/null", libc::O_RDONLY, 0));
        let gone = ok!(sys::open("/dev/null", libc::O_RDONLY | libc::O_CLOEXEC, 0));
        let test = format!("[ -e /proc/self/fd/{keep} ] && [ ! -e /proc/self/fd/{gone} ]");
        is!(in_child(|| { let _ = exec("/bin/sh", &["-c", &test]); 99 })?, 0);
    }
    execve_resets_handlers_keeps_ignored {
        let test = "kill -USR1 $$; kill -USR2 $$; exit 1";
        let status = in_child(|| {
            let _ = sys::on_signal(libc::SIGUSR1, libc::SIG_IGN, 0);
            let _ = sys::on_signal(libc::SIGUSR2, on_nothing as *const () as usize, 0);
            let _ = exec("/bin/sh", &["-c", test]);
            99
        })?;
        is!(status & 0x7f, libc::SIGUSR2);
    }
    of_threads_that_exec_at_once_one_wins {
        // The threads that lose have already built a new address space; the final accounting of memory shows whether it
        // was freed.
        for _ in 0..30 {
            is!(in_child(|| {
                for _ in 0..3 {
                    std::thread::spawn(|| exec("/bin/true", &[]));
                }
                let _ = exec("/bin/true", &[]);
                99
            })?, 0);
        }
    }
    a_program_may_be_killed_while_it_execs {
        let long = "x".repeat(100_000);
        for n in 0..60 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                let _ = exec("/bin/true", &[&long, &long]);
                sys::exit(99);
            }
            nap_us(n * 40);
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            let status = ok!(sys::wait(pid as i64, 0)).1;
            holds!(status == 0 || status == libc::SIGKILL);
        }
    }
    getpid_gettid_agree_in_the_first_thread { is!(ok!(sc!(SYS_getpid)), ok!(sc!(SYS_gettid))); }
    setpgid_and_getpgid {
        let me = ok!(sc!(SYS_getpid));
        is!(ok!(sc!(SYS_getpgid, 0)), me);
        is!(ok!(sc!(SYS_getpgrp)), me);
        fails!(sc!(SYS_setpgid, 0, -1i64), EINVAL);
        fails!(sc!(SYS_setpgid, 1, 0), ESRCH | EPERM);
        fails!(sc!(SYS_getpgid, 3_999_999), ESRCH);
        fails!(sc!(SYS_setpgid, 0, 3_999_999), EPERM);
    }
    a_thread_number_stands_for_its_process_but_in_setpgid {
        let (from, to) = ok!(sys::pipe(0));
        let (told, tell) = ok!(sys::pipe(0));
        let thread = std::thread::spawn(move || {
            let _ = sys::write(tell, &sc!(SYS_gettid).unwrap_or(0).to_ne_bytes());
            while sys::read(from, &mut [0]).is_err() {}
        });
        let mut tid = [0; 8];
        is!(ok!(sys::read(told, &mut tid)), 8);
        let tid = u64::from_ne_bytes(tid);
        is!(sc!(SYS_getpgid, tid), sc!(SYS_getpgid, 0));
        is!(sc!(SYS_getsid, tid), sc!(SYS_getsid, 0));
        let (mut own, mut its) = ([0u64; 2], [1u64; 2]);
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, own.as_mut_ptr()));
        ok!(sc!(SYS_prlimit64, tid, libc::RLIMIT_NOFILE, 0, its.as_mut_ptr()));
        is!(std::hint::black_box(its), std::hint::black_box(own));
        fails!(sc!(SYS_setpgid, tid, 0), EINVAL);
        ok!(sys::close(to));
        holds!(thread.join().is_ok());
    }
    setsid_twice {
        fails!(sc!(SYS_setsid), EPERM);
        is!(in_child(|| {
            let first = sc!(SYS_setsid);
            i32::from(first != sc!(SYS_getpid) || sc!(SYS_setsid) != Err(libc::EPERM) || sc!(SYS_getsid, 0) != first)
        })?, 0);
    }
    setuid_gives_rights_up {
        is!(in_child(|| {
            let steps = [
                sc!(SYS_setresgid, 1000, 1000, 1000).is_ok(),
                sc!(SYS_setresuid, 1000, 1000, 1000).is_ok(),
                sc!(SYS_getuid) == Ok(1000),
                sc!(SYS_geteuid) == Ok(1000),
                sc!(SYS_getegid) == Ok(1000),
                sc!(SYS_setuid, 0) == Err(libc::EPERM),
                sc!(SYS_kill, 1, 0) == Err(libc::EPERM),
                sys::open("/etc/passwd", libc::O_WRONLY, 0) == Err(libc::EACCES),
            ];
            steps.iter().position(|&right| !right).map_or(0, |i| i as i32 + 1)
        })?, 0);
    }
    setgroups_and_getgroups {
        is!(in_child(|| {
            let groups = [5u32, 7];
            let mut got = [0u32; 4];
            let set = sc!(SYS_setgroups, 2, groups.as_ptr());
            let right = set == Ok(0) && sc!(SYS_getgroups, 0, 0) == Ok(2)
                && sc!(SYS_getgroups, 4, got.as_mut_ptr()) == Ok(2) && got[..2] == groups
                && sc!(SYS_getgroups, 1, got.as_mut_ptr()) == Err(libc::EINVAL);
            i32::from(!right)
        })?, 0);
    }
    rlimits {
        let mut old = [0u64; 2];
        ok!(sc!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, 0, old.as_mut_ptr()));
        let new = [20u64, old[1]];
        ok!(sc!(SYS_setrlimit, libc::RLIMIT_NOFILE, new.as_ptr()));
        let mut got = [0u64; 2];
        ok!(sc!(SYS_getrlimit, libc::RLIMIT_NOFILE, got.as_mut_ptr()));
        is!(got, new);
        let fails_with = (0..40).find_map(|_| sys::open("/dev/null", 0, 0).err());
        is!(fails_with, Some(libc::EMFILE));
        fails!(sc!(SYS_prlimit64, 0, 99, 0, 0), EINVAL);
        fails!(sc!(SYS_setrlimit, libc::RLIMIT_NOFILE, [9u64, 3].as_ptr()), EINVAL);
        fails!(sc!(SYS_getrlimit, libc::RLIMIT_NOFILE, 8), EFAULT);
    }
    prctl_name {
        ok!(sc!(SYS_prctl, libc::PR_SET_NAME, path("a-name-that-is-too-long")));
        let mut name = [0u8; 16];
        ok!(sc!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr()));
        is!(&name, b"a-name-that-is-\0");
        fails!(sc!(SYS_prctl, 123_456, 0), EINVAL);
    }
    arch_prctl_arguments {
        fails!(sc!(SYS_arch_prctl, 0x9999, 0), EINVAL);
        fails!(sc!(SYS_arch_prctl, 0x1002, 0xffff_8000_0000_0000u64), EPERM);
    }
    uname_and_sysinfo {
        let mut name = [0u8; 390];
        ok!(sc!(SYS_uname, name.as_mut_ptr()));
        is!(&name[4 * 65..4 * 65 + 7], b"x86_64\0");
        fails!(sc!(SYS_uname, 8), EFAULT);
        let mut info = [0u64; 16];
        ok!(sc!(SYS_sysinfo, info.as_mut_ptr()));
        holds!(info[4] > 0 && info[5] > 0 && info[5] <= info[4]);
    }
    getrusage_and_times {
        let mut usage = [0u64; 18];
        ok!(sc!(SYS_getrusage, 0, usage.as_mut_ptr()));
        fails!(sc!(SYS_getrusage, 99, usage.as_mut_ptr()), EINVAL);
        ok!(sc!(SYS_times, usage.as_mut_ptr()));
    }
    getrandom_and_its_flags {
        let mut bytes = [0u8; 64];
        is!(ok!(sc!(SYS_getrandom, bytes.as_mut_ptr(), 64, 0)), 64);
        holds!(bytes.iter().any(|&b| b != 0));
        fails!(sc!(SYS_getrandom, bytes.as_mut_ptr(), 64, 0x80), EINVAL);
        fails!(sc!(SYS_getrandom, 8, 64, 0), EFAULT);
    }
    oom_score_adj_is_inherited_and_bounded {
        let file = "/proc/self/oom_score_adj";
        let now = || std::fs::read_to_string(file).unwrap_or_default();
        let set = |adj: &str| std::fs::write(file, adj).map_err(|e| e.raw_os_error().unwrap_or(0));
        ok!(set("500"));
        is!(now(), "500\n");
        is!(in_child(|| i32::from(now() != "500\n"))?, 0);
        let score: u64 = std::fs::read_to_string("/proc/self/oom_score").unwrap_or_default().trim().parse().unwrap_or(0);
        holds!(score >= 300);
        fails!(set("1001"), EINVAL);
        fails!(set("x"), EINVAL);
        let as_nobody = in_child(|| {
            let fd = sys::open(file, libc::O_WRONLY, 0).unwrap_or(-1);
            let _ = sc!(SYS_setresuid, 65534, 65534, 65534);
            i32::from(sys::write(fd, b"-1") != Err(libc::EACCES))
        })?;
        is!(as_nobody, 0);
        ok!(set("0"));
    }
    unknown_call { fails!(user::sys::call(999, &[]), ENOSYS); fails!(user::sys::call(-1, &[]), ENOSYS); }
    sockets_refuse_politely {
        if let Ok(fd) = sc!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) {
            let mut address = [0u8; 110];
            address[0] = 1;
            address[2..8].copy_from_slice(b"/nope!");
            fails!(sc!(SYS_connect, fd, address.as_ptr(), 110), ENOENT);
        }
    }
}

extern "C" fn on_nothing(_: i32) {}
