//! Credentials: user and group identities, thread by thread.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use crate::harness::*;
use user::sys;

/// Runs `f` in a second thread while this one lives, and returns its result.
fn elsewhere(f: impl FnOnce() -> u64 + Send + 'static) -> u64 {
    std::thread::spawn(f).join().unwrap_or(u64::MAX)
}

fn euid() -> u64 {
    sc!(SYS_geteuid).unwrap_or(u64::MAX)
}

/// The number of the first step that is false, from one, as an exit status; 0 if all are true.
fn first_wrong(steps: &[bool]) -> i32 {
    steps
        .iter()
        .position(|&right| !right)
        .map_or(0, |i| i as i32 + 1)
}

fn ids(nr: i64) -> [u32; 3] {
    let mut ids = [0u32; 3];
    let base = ids.as_mut_ptr();
    let at = |n: usize| base.wrapping_add(n) as u64;
    let _ = sys::call(nr, &[at(0), at(1), at(2)]);
    ids
}

/// Makes the calling thread, and no other one, an unprivileged user.
fn drop_own() -> bool {
    sc!(SYS_setgroups, 0, 0).is_ok()
        && sc!(SYS_setresgid, 1000, 1000, 1000).is_ok()
        && sc!(SYS_setresuid, 1000, 1000, 1000).is_ok()
}

/// A process of two threads of which one alone has dropped its privileges; returns its number and that of its second thread.
fn mixed(first_drops: bool) -> Result<(u64, u64), String> {
    let (from, to) = ok!(sys::pipe(0));
    let pid = ok!(sys::fork());
    if pid == 0 {
        let tid = elsewhere_for_good(!first_drops);
        if first_drops {
            drop_own();
        }
        let _ = sys::write(to, &tid.to_ne_bytes());
        loop {
            nap_us(1_000_000);
        }
    }
    let mut tid = [0; 8];
    ok!(sys::read(from, &mut tid));
    Ok((pid, u64::from_ne_bytes(tid)))
}

/// Starts a thread that stays, and returns its number when it is what it is to be.
fn elsewhere_for_good(drops: bool) -> u64 {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        if drops {
            drop_own();
        }
        let _ = tell.send(sc!(SYS_gettid).unwrap_or(0));
        loop {
            nap_us(1_000_000);
        }
    });
    told.recv().unwrap_or(0)
}

/// Whether each call that names a thread and asks for permission gives `answer` for thread `tid` of `pid`.
fn each_gives(pid: u64, tid: u64, answer: Result<(), i32>) -> Vec<bool> {
    let (mut cpus, mut limit, zero) = ([0u64; 128], [0u64; 2], 0u32);
    let _ = sc!(
        SYS_sched_getaffinity,
        0,
        size_of_val(&cpus),
        cpus.as_mut_ptr()
    );
    let mut info = [0i32; 32];
    info[2] = -1;
    [
        sc!(SYS_kill, tid, 0),
        sc!(SYS_tkill, tid, 0),
        sc!(SYS_tgkill, pid, tid, 0),
        sc!(SYS_rt_sigqueueinfo, tid, 0, info.as_ptr()),
        sc!(SYS_rt_tgsigqueueinfo, pid, tid, 0, info.as_ptr()),
        sc!(
            SYS_prlimit64,
            tid,
            libc::RLIMIT_NOFILE,
            0,
            limit.as_mut_ptr()
        ),
        sc!(SYS_setpriority, libc::PRIO_PROCESS, tid, 1),
        sc!(
            SYS_sched_setaffinity,
            tid,
            size_of_val(&cpus),
            cpus.as_ptr()
        ),
        sc!(
            SYS_sched_setscheduler,
            tid,
            libc::SCHED_OTHER,
            &raw const zero
        ),
        sc!(SYS_sched_setparam, tid, &raw const zero),
    ]
    .map(|got| got.map(|_| ()) == answer)
    .to_vec()
}

/// What a child as `child` learns from PR_SET_PDEATHSIG when its parent ends as `parent`: the user that the signal names.
fn told_of_death(parent: u32, child: u32) -> Result<Option<u32>, String> {
    const NONE: u32 = 12345;
    let (ready, tell_ready) = ok!(sys::pipe(0));
    let (from, to) = ok!(sys::pipe(0));
    in_child(|| {
        let between = sc!(SYS_getpid);
        if sys::fork() == Ok(0) {
            let mask = 1u64 << (libc::SIGUSR1 - 1);
            let _ = sc!(SYS_setresuid, child, child, child);
            let _ = sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const mask, 0, 8);
            let _ = sc!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGUSR1);
            let _ = sys::write(tell_ready, b"x");
            soon(|| sc!(SYS_getppid) != between);
            let (wait, mut info) = ([0u64, 200_000_000], [0u32; 32]);
            let got = sc!(
                SYS_rt_sigtimedwait,
                &raw const mask,
                info.as_mut_ptr(),
                wait.as_ptr(),
                8
            );
            let uid = if got.is_ok() { info[5] } else { NONE };
            let _ = sys::write(to, &uid.to_ne_bytes());
            return 0;
        }
        let _ = sys::read(ready, &mut [0]);
        let _ = sc!(SYS_setresuid, parent, parent, parent);
        0
    })?;
    let mut uid = [0; 4];
    ok!(sys::read(from, &mut uid));
    Ok(Some(u32::from_ne_bytes(uid)).filter(|&uid| uid != NONE))
}

tests! { "cred";
    a_thread_is_judged_by_its_own {
        for first_drops in [false, true] {
            let (pid, tid) = mixed(first_drops)?;
            let (root, user) = if first_drops { (tid, pid) } else { (pid, tid) };
            is!(in_child(|| {
                drop_own();
                let refused = each_gives(pid, root, Err(libc::EPERM));
                first_wrong(&[refused, each_gives(pid, user, Ok(()))].concat())
            })?, 0);
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
        }
    }
    threads_of_a_process_may_signal_each_other {
        is!(in_child(|| {
            let pid = sc!(SYS_getpid).unwrap_or(0);
            elsewhere(move || {
                drop_own();
                let limit = sc!(SYS_prlimit64, pid, libc::RLIMIT_NOFILE, 0, 0);
                first_wrong(&[sc!(SYS_kill, pid, 0).is_ok(), sc!(SYS_tkill, pid, 0).is_ok(), limit == Err(libc::EPERM)]) as u64
            }) as i32
        })?, 0);
    }
    users_are_those_of_threads {
        is!(in_child(|| elsewhere(|| {
            let before = sc!(SYS_getpriority, libc::PRIO_USER, 4321) == Err(libc::ESRCH);
            let _ = sc!(SYS_setresuid, 4321, 4321, 4321);
            first_wrong(&[before, sc!(SYS_getpriority, libc::PRIO_USER, 4321).is_ok(), sc!(SYS_getpriority, libc::PRIO_USER, 0).is_ok()]) as u64
        }) as i32)?, 0);
    }
    signals_name_the_user_of_their_thread {
        is!(in_child(|| {
            let mask = 1u64 << (libc::SIGUSR1 - 1);
            let _ = sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const mask, 0, 8);
            let pid = sc!(SYS_getpid).unwrap_or(0);
            let sent = elsewhere(move || { drop_own(); u64::from(sc!(SYS_kill, pid, libc::SIGUSR1).is_ok()) });
            let mut info = [0u32; 32];
            let got = sc!(SYS_rt_sigtimedwait, &raw const mask, info.as_mut_ptr(), [2u64, 0].as_ptr(), 8);
            first_wrong(&[sent == 1, got.is_ok(), info[5] == 1000])
        })?, 0);
    }
    death_signals_have_the_rights_of_the_parent {
        is!(told_of_death(1000, 1000)?, Some(1000));
        is!(told_of_death(0, 1000)?, Some(0));
        is!(told_of_death(1000, 1001)?, None);
        is!(told_of_death(1000, 0)?, None);
    }
    threads_change_their_own {
        is!(in_child(|| first_wrong(&[
            elsewhere(|| { let _ = sc!(SYS_setresuid, 1000, 1000, 1000); euid() }) == 1000,
            euid() == 0,
            elsewhere(euid) == 0,
            sc!(SYS_setresuid, -1i64, 7, -1i64).is_ok(),
            elsewhere(euid) == 7,
        ]))?, 0);
    }
    rights_are_the_threads_own {
        let dir = scratch();
        ok!(sc!(SYS_chmod, path(&dir), 0o700));
        let name = format!("{dir}/new");
        is!(in_child(|| {
            let theirs = name.clone();
            first_wrong(&[
                elsewhere(move || {
                    let _ = (sc!(SYS_setresgid, 1000, 1000, 1000), sc!(SYS_setresuid, 1000, 1000, 1000));
                    u64::from(sys::open(&theirs, libc::O_CREAT, 0o600) == Err(libc::EACCES))
                }) == 1,
                sys::open(&name, libc::O_CREAT, 0o600).is_ok(),
            ])
        })?, 0);
    }
    others_see_the_first_thread {
        is!(in_child(|| {
            let me = sc!(SYS_getpid).unwrap_or(0);
            let line = |pid: u64| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
                .lines().find(|l| l.starts_with("Uid:")).map(str::to_owned).unwrap_or_default();
            let _ = elsewhere(|| sc!(SYS_setresuid, 1000, 1000, 1000).unwrap_or(1));
            let before = line(me) == "Uid:\t0\t0\t0\t0";
            let _ = sc!(SYS_setresuid, 1, 2, 3);
            first_wrong(&[before, line(me) == "Uid:\t1\t2\t3\t2"])
        })?, 0);
    }
    the_c_library_changes_all_threads {
        static SEEN: AtomicU32 = AtomicU32::new(0);
        is!(in_child(|| {
            let other = std::thread::spawn(|| {
                SEEN.store(1, SeqCst);
                let reached = soon(|| euid() == 1000);
                u64::from(reached)
            });
            if !soon(|| SEEN.load(SeqCst) == 1) { return 50; }
            first_wrong(&[sys::set_uid_of_all(1000).is_ok(), euid() == 1000, other.join().unwrap_or(0) == 1])
        })?, 0);
    }
    children_inherit_from_the_thread_that_forks {
        is!(in_child(|| i32::from(elsewhere(|| {
            let _ = sc!(SYS_setresuid, 1000, 1000, 1000);
            let status = in_child(|| first_wrong(&[euid() == 1000, sc!(SYS_setuid, 0) == Err(libc::EPERM)]));
            u64::from(status == Ok(0))
        }) != 1))?, 0);
    }
    set_and_keep {
        is!(in_child(|| first_wrong(&[
            sc!(SYS_setresuid, 1, 2, 3).is_ok(),
            ids(libc::SYS_getresuid) == [1, 2, 3],
            sc!(SYS_setresuid, -1i64, 3, -1i64).is_ok(),
            ids(libc::SYS_getresuid) == [1, 3, 3],
            sc!(SYS_setresuid, 9, -1i64, -1i64) == Err(libc::EPERM),
            sc!(SYS_setreuid, 3, 1).is_ok(),
            ids(libc::SYS_getresuid) == [3, 1, 1],
            sc!(SYS_setuid, 0) == Err(libc::EPERM),
            sc!(SYS_setuid, 3).is_ok(),
            sc!(SYS_setfsuid, 0) == Ok(3),
            sc!(SYS_setfsuid, -1i64) == Ok(3),
            sc!(SYS_setgroups, 0, 0) == Err(libc::EPERM),
            sc!(SYS_setresgid, 5, 5, 5) == Err(libc::EPERM),
        ]))?, 0);
        is!(in_child(|| first_wrong(&[
            sc!(SYS_setresgid, 1, 2, 3).is_ok(),
            ids(libc::SYS_getresgid) == [1, 2, 3],
            sc!(SYS_setregid, 2, 1).is_ok(),
            sc!(SYS_setgid, 9).is_ok(),
            ids(libc::SYS_getresgid) == [9, 9, 9],
            sc!(SYS_setfsgid, 4) == Ok(9),
            sc!(SYS_setfsgid, -1i64) == Ok(4),
        ]))?, 0);
        fails!(sc!(SYS_setuid, -1i64), EINVAL);
        fails!(sc!(SYS_setgid, -1i64), EINVAL);
        fails!(sc!(SYS_getresuid, 8, 8, 8), EFAULT);
        fails!(sc!(SYS_getresgid, 8, 8, 8), EFAULT);
    }
    groups {
        fails!(sc!(SYS_setgroups, 65537, 8), EINVAL);
        fails!(sc!(SYS_setgroups, 1, 8), EFAULT);
        fails!(sc!(SYS_getgroups, -1i64, 0), EINVAL);
    }
    capabilities {
        let mut header = [0x2008_0522u32, 0];
        let mut data = [0u32; 6];
        ok!(sc!(SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()));
        holds!(data[0] != 0);
        header[0] = 1;
        fails!(sc!(SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()), EINVAL);
        is!(header[0], 0x2008_0522);
        header[1] = 3_999_999;
        fails!(sc!(SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()), ESRCH);
        fails!(sc!(SYS_capget, 8, data.as_mut_ptr()), EFAULT);
        let mut other = [0x2008_0522u32, 1];
        fails!(sc!(SYS_capset, other.as_mut_ptr(), data.as_ptr()), EPERM);
        is!(in_child(|| {
            let _ = sc!(SYS_setresuid, 1000, 1000, 1000);
            let mut header = [0x2008_0522u32, 0];
            let mut got = [0u32; 6];
            let all = [u32::MAX; 6];
            first_wrong(&[
                sc!(SYS_capget, header.as_mut_ptr(), got.as_mut_ptr()).is_ok() && got[0] == 0,
                sc!(SYS_capset, header.as_mut_ptr(), all.as_ptr()) == Err(libc::EPERM),
            ])
        })?, 0);
    }
}
