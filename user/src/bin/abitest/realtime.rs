//! Real-time policies: settings, permissions, order, limits, and the bound on their time.

use std::sync::atomic::Ordering::SeqCst;

use crate::harness::*;
use crate::privileges::{as_child, become_user, become_user_with, cap};
use user::sys;

const RESET: i32 = 0x4000_0000;
const MS: u64 = 1_000_000;

fn set(pid: u64, policy: i32, priority: u32) -> Result<u64, i32> {
    sc!(SYS_sched_setscheduler, pid, policy, [priority].as_ptr())
}

fn set_priority(pid: u64, priority: u32) -> Result<u64, i32> {
    sc!(SYS_sched_setparam, pid, [priority].as_ptr())
}

/// Policy and priority.
fn get(pid: u64) -> Result<(i32, u32), i32> {
    let mut priority = 999;
    sc!(SYS_sched_getparam, pid, &raw mut priority)?;
    Ok((sc!(SYS_sched_getscheduler, pid)? as i32, priority))
}

fn setattr(policy: i32, flags: u64, nice: i32, priority: u32) -> Result<u64, i32> {
    let what = u64::from(nice as u32) | u64::from(priority) << 32;
    let words = [48 | (policy as u64) << 32, flags, what, 0, 0, 0];
    sc!(SYS_sched_setattr, 0, words.as_ptr(), 0)
}

/// Nanoseconds of a time slice.
fn slice(pid: u64) -> Result<u64, i32> {
    let mut time = [0u64; 2];
    sc!(SYS_sched_rr_get_interval, pid, time.as_mut_ptr())?;
    Ok(time[0] * 1000 * MS + time[1])
}

/// The fields priority, nice, rt_priority and policy of /proc/PID/stat.
fn shown(stat: &str) -> Option<[i64; 4]> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let field = |n: usize| fields.get(n)?.parse().ok();
    Some([field(15)?, field(16)?, field(37)?, field(38)?])
}

fn own_stat() -> Option<[i64; 4]> {
    shown(&std::fs::read_to_string("/proc/thread-self/stat").ok()?)
}

/// A page that children share, as a counter.
fn shared() -> Result<&'static std::sync::atomic::AtomicU64, String> {
    let how = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let at = ok!(sys::mmap(
        0,
        4096,
        libc::PROT_READ | libc::PROT_WRITE,
        how,
        -1,
        0
    ));
    Ok(sys::atomic(at))
}

fn compute(ns: u64) {
    let until = sys::now_ns() + ns;
    while sys::now_ns() < until {}
}

/// Runs a child on one CPU with SCHED_FIFO under that RLIMIT_RTTIME, in microseconds; the status with which it ends.
fn limited(limit: [u64; 2], body: impl FnOnce()) -> Result<i32, String> {
    in_child(|| {
        let _ = sys::default_signal(libc::SIGXCPU);
        let done = sc!(SYS_prlimit64, 0, libc::RLIMIT_CORE, [0u64; 2].as_ptr(), 0)
            .and_then(|_| sc!(SYS_prlimit64, 0, libc::RLIMIT_RTTIME, limit.as_ptr(), 0))
            .and_then(|_| set(0, libc::SCHED_FIFO, 1));
        match done {
            Ok(_) => body(),
            Err(_) => return 99,
        }
        0
    })
}

tests! { "realtime";
    policies_and_priorities_are_set_and_shown {
        is!(ok!(get(0)), (libc::SCHED_OTHER, 0));
        ok!(set(0, libc::SCHED_FIFO, 1));
        is!(ok!(get(0)), (libc::SCHED_FIFO, 1));
        is!(own_stat(), Some([-2, 0, 1, 1]));
        is!(ok!(slice(0)), 0);
        ok!(set(0, libc::SCHED_RR, 99));
        is!(ok!(get(0)), (libc::SCHED_RR, 99));
        is!(own_stat(), Some([-100, 0, 99, 2]));
        is!(ok!(slice(0)), 100 * MS);
        ok!(set_priority(0, 50));
        is!(ok!(get(0)), (libc::SCHED_RR, 50));
        fails!(set_priority(0, 0), EINVAL);
        fails!(set_priority(0, 100), EINVAL);
        fails!(set(0, libc::SCHED_FIFO, 0), EINVAL);
        fails!(set(0, libc::SCHED_FIFO, 100), EINVAL);
        fails!(set(0, libc::SCHED_OTHER, 1), EINVAL);
        is!(ok!(get(0)), (libc::SCHED_RR, 50));
        // A nice value is kept, and shows once the policy has a use for it.
        ok!(sc!(SYS_setpriority, 0, 0, 7));
        is!(own_stat(), Some([-51, 7, 50, 2]));
        ok!(set(0, libc::SCHED_BATCH, 0));
        is!(own_stat(), Some([27, 7, 0, 3]));
        ok!(set(0, libc::SCHED_OTHER, 0));
    }
    attributes_of_a_real_time_policy {
        const KEEP_POLICY: u64 = 8;
        const KEEP_PARAMS: u64 = 16;
        let attr = || {
            let mut words = [0u64; 6];
            ok!(sc!(SYS_sched_getattr, 0, words.as_mut_ptr(), 48, 0));
            Ok::<_, String>([words[0] >> 32, words[1], words[2] & 0xffff_ffff, words[2] >> 32])
        };
        ok!(setattr(libc::SCHED_FIFO, 1, 5, 20));
        is!(attr()?, [1, 1, 0, 20]);
        ok!(setattr(libc::SCHED_OTHER, KEEP_POLICY, 0, 30));
        is!(attr()?, [1, 1, 0, 30]);
        fails!(setattr(libc::SCHED_OTHER, KEEP_POLICY, 0, 0), EINVAL);
        // Without new parameters the policy stays, too.
        ok!(setattr(libc::SCHED_RR, KEEP_PARAMS, 0, 0));
        is!(attr()?, [1, 0, 0, 30]);
        fails!(setattr(libc::SCHED_OTHER, KEEP_PARAMS, 0, 0), EINVAL);
        ok!(setattr(libc::SCHED_OTHER, 0, 3, 0));
        is!(attr()?, [0, 0, 3, 0]);
        ok!(setattr(libc::SCHED_FIFO, KEEP_PARAMS | 1, 0, 4));
        is!(attr()?, [0, 1, 3, 0]);
        ok!(set(0, libc::SCHED_FIFO, 4));
        is!(attr()?, [1, 0, 0, 4]);
        ok!(set(0, libc::SCHED_OTHER, 0));
        is!(attr()?, [0, 0, 3, 0]);
    }
    a_child_and_a_program_inherit_a_policy {
        ok!(set(0, libc::SCHED_FIFO, 9));
        let out = std::process::Command::new("/bin/cat").arg("/proc/self/stat").output();
        let stat = out.map_err(|e| e.to_string())?.stdout;
        is!(shown(&String::from_utf8_lossy(&stat)), Some([-10, 0, 9, 1]));
        ok!(sc!(SYS_setpriority, 0, 0, -4i64));
        ok!(set(0, libc::SCHED_RR | RESET, 9));
        is!(ok!(get(0)), (libc::SCHED_RR | RESET, 9));
        is!(in_child(|| i32::from(own_stat() != Some([20, 0, 0, 0]) || get(0) != Ok((0, 0))))?, 0);
    }
    rights_to_real_time_priorities {
        let may_raise = sc!(SYS_prlimit64, 0, libc::RLIMIT_RTPRIO, [50u64, 50].as_ptr(), 0).is_ok();
        // A user whose limit and setting root has set.
        let user = |limit: u64, policy: i32, priority: u32| move || {
            sc!(SYS_prlimit64, 0, libc::RLIMIT_RTPRIO, [limit, limit].as_ptr(), 0)?;
            set(0, policy, priority)?;
            become_user()
        };
        let (other, fifo, rr) = (libc::SCHED_OTHER, libc::SCHED_FIFO, libc::SCHED_RR);
        for (limit, before, change, answer) in [
            (0, (other, 0), (fifo, 1), Err(libc::EPERM)),
            (10, (other, 0), (fifo, 10), Ok(0)),
            (10, (other, 0), (fifo, 11), Err(libc::EPERM)),
            // With more than the limit: it may be kept or lowered.
            (0, (fifo, 20), (fifo, 20), Ok(0)),
            (0, (fifo, 20), (fifo, 5), Ok(0)),
            (0, (fifo, 20), (fifo, 21), Err(libc::EPERM)),
            (0, (fifo, 20), (rr, 5), Err(libc::EPERM)),
            (1, (fifo, 20), (rr, 20), Ok(0)),
            (1, (fifo, 20), (rr, 21), Err(libc::EPERM)),
            (0, (fifo, 20), (other, 0), Ok(0)),
            (0, (fifo | RESET, 20), (fifo | RESET, 3), Ok(0)),
            (0, (fifo | RESET, 20), (fifo, 3), Err(libc::EPERM)),
        ] {
            if limit > 0 && !may_raise { continue }
            let got = as_child(user(limit, before.0, before.1), || set(0, change.0, change.1));
            is!((limit, before, change, got), (limit, before, change, answer));
        }
        is!(as_child(user(0, fifo, 20), || set_priority(0, 20)), Ok(0));
        is!(as_child(user(0, fifo, 20), || set_priority(0, 21)), Err(libc::EPERM));
        is!(as_child(user(0, fifo, 20), || setattr(fifo, 0, 0, 21)), Err(libc::EPERM));
        let privileged = || {
            sc!(SYS_prlimit64, 0, libc::RLIMIT_RTPRIO, [0u64, 0].as_ptr(), 0)?;
            become_user_with(&[cap::SYS_NICE])
        };
        is!(as_child(privileged, || set(0, fifo, 99)), Ok(0));
    }
    on_one_cpu_priorities_decide {
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let (ran, child) = (shared()?, shared()?);
        ok!(set(0, libc::SCHED_FIFO, 30));
        let pid = ok!(sys::fork());
        if pid == 0 {
            ran.fetch_add(1, SeqCst);
            let _ = sc!(SYS_sched_yield);
            ran.fetch_add(1, SeqCst);
            child.store(1, SeqCst);
            let _ = sc!(SYS_sched_yield);
            ran.fetch_add(1, SeqCst);
            sys::exit(0);
        }
        compute(30 * MS);
        is!(ran.load(SeqCst), 0);
        // A lower one has no turn by a yield, an equal one has.
        ok!(set_priority(pid, 29));
        ok!(sc!(SYS_sched_yield));
        is!(ran.load(SeqCst), 0);
        ok!(set(pid, libc::SCHED_RR, 30));
        is!(ran.load(SeqCst), 0);
        ok!(sc!(SYS_sched_yield));
        is!(ran.load(SeqCst), 1);
        // A higher one runs at once, to its end.
        ok!(set_priority(pid, 31));
        is!((ran.load(SeqCst), child.load(SeqCst)), (3, 1));
        ok!(sys::wait(pid as i64, 0));
    }
    the_limit_on_time_without_a_sleep {
        const NONE: u64 = u64::MAX;
        is!(limited([200_000, NONE], || compute(3000 * MS))? & 0x7f, libc::SIGXCPU);
        is!(limited([0, 0], || compute(3000 * MS))? & 0x7f, libc::SIGKILL);
        let ignoring = || {
            let _ = sys::on_signal(libc::SIGXCPU, libc::SIG_IGN, 0);
            compute(3000 * MS);
        };
        is!(limited([100_000, 400_000], ignoring)? & 0x7f, libc::SIGKILL);
        // Each excess moves the soft limit on by a second.
        let moved = limited([100_000, NONE], || {
            let _ = sys::on_signal(libc::SIGXCPU, libc::SIG_IGN, 0);
            compute(300 * MS);
            let mut now = [0u64; 2];
            let _ = sc!(SYS_prlimit64, 0, libc::RLIMIT_RTTIME, 0, now.as_mut_ptr());
            sys::exit(i32::from(now != [1_100_000, NONE]));
        });
        is!(moved?, 0);
        // Sleeps begin anew, and other policies do not count.
        let sleeps = || (0..8).for_each(|_| { compute(60 * MS); nap_us(1000) });
        is!(limited([200_000, 200_000], sleeps)?, 0);
        let ordinary = || {
            let _ = set(0, libc::SCHED_OTHER, 0);
            compute(400 * MS);
        };
        is!(limited([200_000, 200_000], ordinary)?, 0);
    }
    one_that_spins_leaves_others_a_part {
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let stop = shared()?;
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = set(0, libc::SCHED_FIFO, 50);
            stop.store(1, SeqCst);
            let until = sys::now_ns() + 5000 * MS;
            while sys::now_ns() < until && stop.load(SeqCst) == 1 {}
            sys::exit(i32::from(stop.load(SeqCst) == 1));
        }
        while stop.load(SeqCst) == 0 { nap_us(1000) }
        compute(5 * MS);
        stop.store(2, SeqCst);
        is!(ok!(sys::wait(pid as i64, 0)).1, 0);
    }
    the_bound_is_a_setting_of_root {
        let file = |name: &str| format!("/proc/sys/kernel/sched_rt_{name}_us");
        let read = |name| std::fs::read_to_string(file(name)).map_err(|e| e.to_string());
        let write = |name, text: &str| std::fs::write(file(name), text).map_err(|e| e.raw_os_error());
        let (runtime, period) = (read("runtime")?, read("period")?);
        is!((runtime.as_str(), period.as_str()), ("950000\n", "1000000\n"));
        is!(write("runtime", "1000001"), Err(Some(libc::EINVAL)));
        is!(write("period", "0"), Err(Some(libc::EINVAL)));
        is!(write("period", "949999"), Err(Some(libc::EINVAL)));
        is!(write("runtime", "950000\n"), Ok(()));
        is!(write("period", "1000000"), Ok(()));
        is!((read("runtime")?, read("period")?), (runtime, period));
        let opened = as_child(become_user, || sys::open(&file("runtime"), libc::O_WRONLY, 0).map(|_| 0));
        is!(opened, Err(libc::EACCES));
        is!(as_child(become_user, || sys::open(&file("runtime"), libc::O_RDONLY, 0).map(|_| 0)), Ok(0));
    }
}
