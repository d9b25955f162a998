//! Processes, rights, limits, scheduling, the system.

use super::{BAD, Here, NOBODY, NONE, apart, beside, interrupted, limited, limited_nobody, nobody};
use crate::harness::*;
use user::sys;

/// Executes a file without arguments.
fn run(file: u64) -> Result<u64, i32> {
    sc!(SYS_execve, file, [file, 0].as_ptr(), [0u64].as_ptr())
}

/// An executable file with this content.
fn program(h: &Here, name: &str, bytes: &[u8]) -> Result<u64, i32> {
    let fd = h.open(name, libc::O_WRONLY | libc::O_CREAT)?;
    sys::write(fd, bytes)?;
    sc!(SYS_fchmod, fd, 0o755)?;
    sys::close(fd)?;
    Ok(h.p(name))
}

/// A program whose interpreter is the file `name` in the directory.
fn interpreted(h: &Here, name: &str) -> Result<u64, i32> {
    let interpreter = format!("{}/{name}\0", h.dir);
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    // Entry, offset 64 of the program headers, no section headers; sizes; two program headers.
    for word in [0x40_0000u64, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(b"\0\0\0\0\x40\0\x38\0\x02\0\x40\0\0\0\0\0");
    let header = |kind: u32, flags: u32, offset: u64, addr: u64, size: u64| {
        let words = [
            u64::from(kind) | u64::from(flags) << 32,
            offset,
            addr,
            addr,
            size,
            size,
            4096,
        ];
        words
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect::<Vec<u8>>()
    };
    bytes.extend(header(
        libc::PT_INTERP,
        4,
        176,
        0x40_00b0,
        interpreter.len() as u64,
    ));
    bytes.extend(header(libc::PT_LOAD, 5, 0, 0x40_0000, 4096));
    bytes.extend(interpreter.as_bytes());
    bytes.resize(4096, 0);
    program(h, "interpreted", &bytes)
}

/// clone(2) with only these flags; the child ends at once.
fn clone(flags: i32) -> Result<u64, i32> {
    let pid = sc!(SYS_clone, flags, 0, 0, 0, 0)?;
    if pid == 0 {
        sys::exit(0);
    }
    sys::wait(pid as i64, libc::__WALL).map(|_| 0)
}

/// The siginfo of a queued signal with `si_code` `code`, and zeroes as sender.
fn queued(code: i32) -> Vec<i32> {
    let mut info = vec![0; 32];
    info[2] = code;
    info
}

const QUEUE: i32 = -1;
const REAL_TIME: i32 = 40;

/// Queues two signals to the caller, while RLIMIT_SIGPENDING is one.
fn queue_two(send: fn(u64) -> Result<u64, i32>) -> Result<u64, i32> {
    limited(libc::RLIMIT_SIGPENDING, 1, || {
        sc!(
            SYS_rt_sigprocmask,
            libc::SIG_BLOCK,
            [1u64 << (REAL_TIME - 1)].as_ptr(),
            0,
            8
        )?;
        let me = sc!(SYS_getpid)?;
        send(me)?;
        send(me)
    })
}

/// Runs `f` on the pid of a child that has called execve.
fn after_exec(f: impl FnOnce(u64) -> Result<u64, i32>) -> Result<u64, i32> {
    let ((from, to), (wait, go)) = (sys::pipe(libc::O_CLOEXEC)?, sys::pipe(0)?);
    let pid = sys::fork()?;
    if pid == 0 {
        let _ = (sc!(SYS_dup2, wait, 0), sys::close(go));
        let me = path("/proc/self/exe");
        let _ = sc!(SYS_execve, me, [me, path("--wait"), 0].as_ptr(), 0);
        sys::exit(99);
    }
    // End of file on the pipe means that the child runs the new program.
    sys::close(to)?;
    sys::read(from, &mut [0])?;
    let got = f(pid);
    for fd in [from, wait, go] {
        sys::close(fd)?;
    }
    sys::wait(pid as i64, 0)?;
    got
}

errnos! {
    arch_prctl EFAULT |_| sc!(SYS_arch_prctl, 0x1003, BAD);
    arch_prctl EINVAL |_| sc!(SYS_arch_prctl, 0x9999, 0);
    arch_prctl EPERM |_| sc!(SYS_arch_prctl, 0x1002, 1u64 << 63);
    capget EFAULT |_| sc!(SYS_capget, BAD, 0);
    capget EINVAL |_| sc!(SYS_capget, [0u32; 2].as_mut_ptr(), [0u32; 6].as_mut_ptr());
    capget ESRCH |_| sc!(SYS_capget, [0x2008_0522u32, NOBODY as u32].as_mut_ptr(), [0u32; 6].as_mut_ptr());
    capset EFAULT |_| sc!(SYS_capset, BAD, 0);
    capset EFAULT |_| sc!(SYS_capset, [0x2008_0522u32, 0].as_mut_ptr(), BAD);
    capset EINVAL |_| sc!(SYS_capset, [0u32; 2].as_mut_ptr(), [0u32; 6].as_mut_ptr());
    capset EPERM |_| sc!(SYS_capset, [0x2008_0522u32, 1].as_mut_ptr(), [0u32; 6].as_mut_ptr());
    capset EPERM |_| nobody(|| sc!(SYS_capset, [0x2008_0522u32, 0].as_mut_ptr(), [1u32; 6].as_mut_ptr()));
    clone EAGAIN |_| limited_nobody(libc::RLIMIT_NPROC, 0, || clone(libc::SIGCHLD));
    clone EINVAL |_| clone(libc::CLONE_THREAD | libc::CLONE_VM);
    clone EINVAL |_| clone(libc::CLONE_SIGHAND);
    clone EINVAL |_| clone(libc::CLONE_FS | libc::CLONE_NEWNS);
    clone EPERM |_| sc!(SYS_clone, libc::CLONE_SETTLS | libc::SIGCHLD, 0, 0, 0, 1u64 << 63);
    execve EACCES |h| sc!(SYS_execve, h.p("f"), 0, 0);
    execve ELOOP |h| sc!(SYS_execve, h.p("loop"), 0, 0);
    execve E2BIG |_| sc!(SYS_execve, path("/proc/self/exe"), [path(&"x".repeat(200_000)), 0].as_ptr(), 0);
    execve E2BIG |_| sc!(SYS_execve, path("/proc/self/exe"), [0u64].as_ptr(), vec![path(&"x".repeat(100_000)); 90].into_iter().chain([0]).collect::<Vec<_>>().as_ptr());
    execve EACCES |h| run(h.p("d"));
    execve EACCES |h| h.mounted(libc::MS_NOEXEC, || { sc!(SYS_chmod, h.p("m/f"), 0o755)?; run(h.p("m/f")) });
    execve EACCES |h| run(interpreted(h, "f")?);
    execve EFAULT |_| sc!(SYS_execve, path("/proc/self/exe"), BAD, 0);
    execve EFAULT |_| sc!(SYS_execve, path("/proc/self/exe"), [BAD, 0].as_ptr(), 0);
    execve ELIBBAD |h| { program(h, "i", &[b'x'; 4096])?; run(interpreted(h, "i")?) };
    execve ELOOP |h| { for i in 0..9 { program(h, &format!("s{i}"), format!("#!{}/s{}\n", h.dir, i + 1).as_bytes())?; } run(h.p("s0")) };
    execve ENOENT |h| run(interpreted(h, "none")?);
    execve ENOENT |h| run(program(h, "s", b"#!/none\n")?);
    execve ENOEXEC |h| run(program(h, "s", b"")?);
    execve ENOEXEC |h| run(program(h, "s", b"\x7fELF\x02\x01\x01")?);
    execve ENOEXEC |h| run(program(h, "s", &[0; 200])?);
    execve ETXTBSY |h| { let file = program(h, "s", b"#!/bin/sh\n")?; let fd = h.open("s", libc::O_WRONLY)?; let got = run(file); sys::close(fd)?; got };
    fork EAGAIN |_| limited_nobody(libc::RLIMIT_NPROC, 0, || match sc!(SYS_fork)? { 0 => sys::exit(0), pid => Ok(pid) });
    get_robust_list EFAULT |_| sc!(SYS_get_robust_list, 0, BAD, BAD);
    get_robust_list EPERM |_| nobody(|| sc!(SYS_get_robust_list, 1, [0u64].as_mut_ptr(), [0u64].as_mut_ptr()));
    get_robust_list ESRCH |_| sc!(SYS_get_robust_list, NOBODY, [0u64].as_mut_ptr(), [0u64].as_mut_ptr());
    getcpu EFAULT |_| sc!(SYS_getcpu, BAD, 0, 0);
    getgroups EINVAL |_| sc!(SYS_getgroups, -1i64, 0);
    getgroups EFAULT |_| apart(|| { sc!(SYS_setgroups, 1, [5u32].as_ptr())?; sc!(SYS_getgroups, 1, BAD) });
    getgroups EINVAL |_| apart(|| { sc!(SYS_setgroups, 2, [5u32, 6].as_ptr())?; sc!(SYS_getgroups, 1, [0u32].as_mut_ptr()) });
    getpgid ESRCH |_| sc!(SYS_getpgid, NOBODY);
    getpriority EINVAL |_| sc!(SYS_getpriority, 9, 0);
    getpriority ESRCH |_| sc!(SYS_getpriority, 0, NOBODY);
    getrandom EFAULT |_| sc!(SYS_getrandom, BAD, 8, 0);
    getrandom EINVAL |_| sc!(SYS_getrandom, BAD, 8, 0x80);
    getresgid EFAULT |_| sc!(SYS_getresgid, BAD, BAD, BAD);
    getresuid EFAULT |_| sc!(SYS_getresuid, BAD, BAD, BAD);
    getrlimit EINVAL |_| sc!(SYS_getrlimit, 99, 0);
    getrlimit EFAULT |_| sc!(SYS_getrlimit, 0, BAD);
    getrusage EINVAL |_| sc!(SYS_getrusage, 99, 0);
    getrusage EFAULT |_| sc!(SYS_getrusage, 0, BAD);
    getsid ESRCH |_| sc!(SYS_getsid, NOBODY);
    ioprio_get EINVAL |_| sc!(SYS_ioprio_get, 9, 0);
    ioprio_get ESRCH |_| sc!(SYS_ioprio_get, 1, NOBODY);
    kill EINVAL |_| sc!(SYS_kill, 0, 99);
    kill ESRCH |_| sc!(SYS_kill, NOBODY, 0);
    kill EPERM |_| nobody(|| sc!(SYS_kill, 1, 0));
    kill ESRCH |_| sc!(SYS_kill, -(NOBODY as i64), 0);
    kill ESRCH |_| sc!(SYS_kill, i32::MIN, 0);
    prctl EFAULT |_| sc!(SYS_prctl, libc::PR_SET_NAME, BAD);
    prctl EFAULT |_| sc!(SYS_prctl, libc::PR_GET_NAME, BAD);
    prctl EFAULT |_| sc!(SYS_prctl, libc::PR_GET_PDEATHSIG, BAD);
    prctl EFAULT |_| sc!(SYS_prctl, libc::PR_GET_CHILD_SUBREAPER, BAD);
    prctl EINVAL |_| sc!(SYS_prctl, 123_456);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_SET_PDEATHSIG, 65);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_SET_DUMPABLE, 2);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_SET_KEEPCAPS, 2);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_GET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_SET_THP_DISABLE, 1, 0, 0, 1);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_GET_THP_DISABLE, 1, 0, 0, 0);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_CAPBSET_READ, 64);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_CAPBSET_DROP, 64);
    prctl EINVAL |_| sc!(SYS_prctl, libc::PR_CAP_AMBIENT, 99, 0, 0, 0);
    prctl EPERM |_| nobody(|| sc!(SYS_prctl, libc::PR_CAPBSET_DROP, 1));
    prctl EPERM |_| nobody(|| sc!(SYS_prctl, libc::PR_SET_SECUREBITS, 0));
    prlimit64 ESRCH |_| sc!(SYS_prlimit64, NOBODY, 0, 0, 0);
    prlimit64 EINVAL |_| sc!(SYS_prlimit64, 0, 99, 0, 0);
    prlimit64 EFAULT |_| sc!(SYS_prlimit64, 0, 0, BAD, 0);
    prlimit64 EINVAL |_| sc!(SYS_prlimit64, 0, libc::RLIMIT_CORE, [2u64, 1].as_ptr(), 0);
    prlimit64 EPERM |_| nobody(|| sc!(SYS_prlimit64, 1, 0, 0, 0));
    prlimit64 EPERM |_| limited_nobody(libc::RLIMIT_CORE, 0, || sc!(SYS_prlimit64, 0, libc::RLIMIT_CORE, [0u64, 1].as_ptr(), 0));
    prlimit64 EPERM |_| sc!(SYS_prlimit64, 0, libc::RLIMIT_NOFILE, [100u64, u64::MAX].as_ptr(), 0);
    reboot EINVAL |_| sc!(SYS_reboot, 0, 0, 0, 0);
    reboot EPERM |_| nobody(|| sc!(SYS_reboot, 0xfee1_deadu32, 0x2812_1969, 0, 0));
    rt_sigqueueinfo EAGAIN |_| queue_two(|me| sc!(SYS_rt_sigqueueinfo, me, REAL_TIME, queued(QUEUE).as_ptr()));
    rt_sigqueueinfo EFAULT |_| sc!(SYS_rt_sigqueueinfo, 1, 0, BAD);
    rt_sigqueueinfo EINVAL |_| apart(|| sc!(SYS_rt_sigqueueinfo, sc!(SYS_getpid)?, 99, queued(QUEUE).as_ptr()));
    rt_sigqueueinfo EPERM |_| sc!(SYS_rt_sigqueueinfo, 1, 0, queued(libc::SI_USER).as_ptr());
    rt_sigqueueinfo EPERM |_| nobody(|| sc!(SYS_rt_sigqueueinfo, 1, 0, queued(QUEUE).as_ptr()));
    rt_sigqueueinfo ESRCH |_| sc!(SYS_rt_sigqueueinfo, NOBODY, 0, queued(QUEUE).as_ptr());
    rt_tgsigqueueinfo EAGAIN |_| queue_two(|me| sc!(SYS_rt_tgsigqueueinfo, me, me, REAL_TIME, queued(QUEUE).as_ptr()));
    rt_tgsigqueueinfo EFAULT |_| sc!(SYS_rt_tgsigqueueinfo, 1, 1, 0, BAD);
    rt_tgsigqueueinfo EINVAL |_| sc!(SYS_rt_tgsigqueueinfo, 0, 1, 0, queued(QUEUE).as_ptr());
    rt_tgsigqueueinfo EPERM |_| sc!(SYS_rt_tgsigqueueinfo, 1, 1, 0, queued(libc::SI_USER).as_ptr());
    rt_tgsigqueueinfo EPERM |_| nobody(|| sc!(SYS_rt_tgsigqueueinfo, 1, 1, 0, queued(QUEUE).as_ptr()));
    rt_tgsigqueueinfo ESRCH |_| sc!(SYS_rt_tgsigqueueinfo, 1, NOBODY, 0, queued(QUEUE).as_ptr());
    sched_get_priority_max EINVAL |_| sc!(SYS_sched_get_priority_max, 99);
    sched_get_priority_min EINVAL |_| sc!(SYS_sched_get_priority_min, 99);
    sched_getaffinity EFAULT |_| sc!(SYS_sched_getaffinity, 0, 1024, BAD);
    sched_getaffinity EINVAL |_| sc!(SYS_sched_getaffinity, 0, 7, BAD);
    sched_getaffinity ESRCH |_| sc!(SYS_sched_getaffinity, -1i64, 1024, [0u64; 128].as_mut_ptr());
    sched_getaffinity ESRCH |_| sc!(SYS_sched_getaffinity, NOBODY, 1024, [0u64; 128].as_mut_ptr());
    sched_getattr EFAULT |_| sc!(SYS_sched_getattr, 0, BAD, 48, 0);
    sched_getattr EINVAL |_| sc!(SYS_sched_getattr, 0, [0u64; 7].as_mut_ptr(), 47, 0);
    sched_getattr EINVAL |_| sc!(SYS_sched_getattr, 0, [0u64; 7].as_mut_ptr(), 48, 1);
    sched_getattr ESRCH |_| sc!(SYS_sched_getattr, NOBODY, [0u64; 7].as_mut_ptr(), 56, 0);
    sched_getparam EINVAL |_| sc!(SYS_sched_getparam, 0, 0);
    sched_getparam ESRCH |_| sc!(SYS_sched_getparam, NOBODY, [0u32].as_mut_ptr());
    sched_getparam EINVAL |_| sc!(SYS_sched_getparam, -1i64, [0u32].as_mut_ptr());
    sched_getparam EFAULT |_| sc!(SYS_sched_getparam, 0, BAD);
    sched_getscheduler EINVAL |_| sc!(SYS_sched_getscheduler, -1i64);
    sched_getscheduler ESRCH |_| sc!(SYS_sched_getscheduler, NOBODY);
    sched_rr_get_interval ESRCH |_| sc!(SYS_sched_rr_get_interval, NOBODY, 0);
    sched_rr_get_interval EFAULT |_| sc!(SYS_sched_rr_get_interval, 0, BAD);
    sched_rr_get_interval EINVAL |_| sc!(SYS_sched_rr_get_interval, -1i64, [0u64; 2].as_mut_ptr());
    sched_setaffinity ESRCH |_| sc!(SYS_sched_setaffinity, -1i64, 8, [1u64].as_ptr());
    sched_setaffinity ESRCH |_| sc!(SYS_sched_setaffinity, NOBODY, 8, [1u64].as_ptr());
    sched_setaffinity EFAULT |_| sc!(SYS_sched_setaffinity, 0, 8, BAD);
    sched_setaffinity EINVAL |_| sc!(SYS_sched_setaffinity, 0, 8, [0u64].as_ptr());
    sched_setaffinity EPERM |_| nobody(|| sc!(SYS_sched_setaffinity, 1, 8, [1u64].as_ptr()));
    sched_setparam EINVAL |_| sc!(SYS_sched_setparam, 0, 0);
    sched_setparam EFAULT |_| sc!(SYS_sched_setparam, 0, BAD);
    sched_setparam EINVAL |_| sc!(SYS_sched_setparam, 0, [1u32].as_ptr());
    sched_setparam EINVAL |_| sc!(SYS_sched_setparam, -1i64, [0u32].as_ptr());
    sched_setparam EINVAL |_| sc!(SYS_sched_setparam, -1i64, BAD);
    sched_setparam EPERM |_| nobody(|| sc!(SYS_sched_setparam, 1, [0u32].as_ptr()));
    sched_setparam ESRCH |_| sc!(SYS_sched_setparam, NOBODY, [0u32].as_ptr());
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, 0, 0);
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, 99, [0u32].as_ptr());
    sched_setscheduler EFAULT |_| sc!(SYS_sched_setscheduler, 0, 0, BAD);
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, -1i64, 0, [0u32].as_ptr());
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, 0, [1u32].as_ptr());
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, libc::SCHED_FIFO, [0u32].as_ptr());
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, libc::SCHED_RR, [100u32].as_ptr());
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, -1i64, 0, BAD);
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, 0, -1i64, BAD);
    sched_setscheduler EINVAL |_| sc!(SYS_sched_setscheduler, NOBODY, -1i64, [0u32].as_ptr());
    sched_setscheduler EPERM |_| nobody(|| sc!(SYS_sched_setscheduler, 1, 0, [0u32].as_ptr()));
    sched_setscheduler EPERM |_| limited_nobody(libc::RLIMIT_RTPRIO, 0, || sc!(SYS_sched_setscheduler, 0, libc::SCHED_FIFO, [1u32].as_ptr()));
    sched_setscheduler ESRCH |_| sc!(SYS_sched_setscheduler, NOBODY, 0, [0u32].as_ptr());
    set_mempolicy EFAULT |_| sc!(SYS_set_mempolicy, 0, BAD, 64);
    set_mempolicy EINVAL |_| sc!(SYS_set_mempolicy, 99, 0, 0);
    setdomainname EFAULT |_| sc!(SYS_setdomainname, BAD, 5);
    setdomainname EINVAL |_| sc!(SYS_setdomainname, path("x"), 65);
    setdomainname EPERM |_| nobody(|| sc!(SYS_setdomainname, path("x"), 1));
    setgid EINVAL |_| sc!(SYS_setgid, -1i64);
    setgid EPERM |_| nobody(|| sc!(SYS_setgid, 0));
    setgroups EFAULT |_| sc!(SYS_setgroups, 1, BAD);
    setgroups EINVAL |_| sc!(SYS_setgroups, 65_537, BAD);
    setgroups EPERM |_| nobody(|| sc!(SYS_setgroups, 0, 0));
    sethostname EFAULT |_| sc!(SYS_sethostname, BAD, 5);
    sethostname EINVAL |_| sc!(SYS_sethostname, path("x"), 65);
    sethostname EINVAL |_| sc!(SYS_sethostname, path("x"), -1i64);
    sethostname EPERM |_| nobody(|| sc!(SYS_sethostname, path("x"), 1));
    setpgid EINVAL |_| sc!(SYS_setpgid, 0, -1i64);
    setpgid ESRCH |_| sc!(SYS_setpgid, NOBODY, 0);
    setpgid EACCES |_| after_exec(|pid| sc!(SYS_setpgid, pid, 0));
    setpgid EPERM |_| sc!(SYS_setpgid, 0, NOBODY);
    setpgid EPERM |_| apart(|| { sc!(SYS_setsid)?; sc!(SYS_setpgid, 0, 0) });
    setpriority EINVAL |_| sc!(SYS_setpriority, 9, 0, 0);
    setpriority ESRCH |_| sc!(SYS_setpriority, 0, NOBODY, 0);
    setpriority EACCES |_| limited_nobody(libc::RLIMIT_NICE, 0, || sc!(SYS_setpriority, 0, 0, -1i64));
    setpriority EPERM |_| nobody(|| sc!(SYS_setpriority, 0, 1, 0));
    setregid EPERM |_| nobody(|| sc!(SYS_setregid, 0, -1i64));
    setresgid EPERM |_| nobody(|| sc!(SYS_setresgid, -1i64, 0, -1i64));
    setresuid EPERM |_| nobody(|| sc!(SYS_setresuid, -1i64, -1i64, 0));
    setreuid EPERM |_| nobody(|| sc!(SYS_setreuid, 0, -1i64));
    setrlimit EINVAL |_| sc!(SYS_setrlimit, 99, [0u64; 2].as_ptr());
    setrlimit EFAULT |_| sc!(SYS_setrlimit, 0, BAD);
    setrlimit EINVAL |_| sc!(SYS_setrlimit, libc::RLIMIT_CORE, [2u64, 1].as_ptr());
    setrlimit EPERM |_| limited_nobody(libc::RLIMIT_CORE, 0, || sc!(SYS_setrlimit, libc::RLIMIT_CORE, [0u64, 1].as_ptr()));
    setsid EPERM |_| apart(|| { sc!(SYS_setsid)?; sc!(SYS_setsid) });
    setuid EINVAL |_| sc!(SYS_setuid, -1i64);
    setuid EPERM |_| nobody(|| sc!(SYS_setuid, 0));
    sysinfo EFAULT |_| sc!(SYS_sysinfo, BAD);
    syslog EINVAL |_| sc!(SYS_syslog, 99, 0, 0);
    syslog EINVAL |_| sc!(SYS_syslog, 3, 0, 5);
    syslog EINVAL |_| sc!(SYS_syslog, 8, 0, 9);
    syslog EPERM |_| nobody(|| sc!(SYS_syslog, 5, 0, 0));
    tgkill EAGAIN |_| queue_two(|me| sc!(SYS_tgkill, me, me, REAL_TIME));
    tgkill EPERM |_| nobody(|| sc!(SYS_tgkill, 1, 1, 0));
    times EFAULT |_| sc!(SYS_times, BAD);
    tkill EAGAIN |_| queue_two(|me| sc!(SYS_tkill, me, REAL_TIME));
    tkill EPERM |_| nobody(|| sc!(SYS_tkill, 1, 0));
    uname EFAULT |_| sc!(SYS_uname, BAD);
    unshare EINVAL |_| sc!(SYS_unshare, 1);
    wait4 ECHILD |_| sc!(SYS_wait4, -1i64, 0, 0, 0);
    wait4 EINVAL |_| sc!(SYS_wait4, -1i64, 0, 0x100, 0);
    wait4 EFAULT |_| { let pid = sys::fork()?; if pid == 0 { sys::exit(0) } sc!(SYS_wait4, pid, BAD, 0, 0) };
    wait4 EINTR |_| interrupted(|| beside(|pid| sc!(SYS_wait4, pid, 0, 0, 0)));
    wait4 ESRCH |_| sc!(SYS_wait4, i32::MIN, 0, 0, 0);
    waitid ECHILD |_| sc!(SYS_waitid, libc::P_ALL, 0, 0, libc::WEXITED, 0);
    waitid EINVAL |_| sc!(SYS_waitid, libc::P_ALL, 0, 0, 0, 0);
    waitid EBADF |_| sc!(SYS_waitid, 3, NONE, 0, libc::WEXITED, 0);
    waitid EFAULT |_| { let pid = sys::fork()?; if pid == 0 { sys::exit(0) } sc!(SYS_waitid, libc::P_PID, pid, BAD, libc::WEXITED, 0) };
    waitid EINTR |_| interrupted(|| beside(|pid| sc!(SYS_waitid, libc::P_PID, pid, 0, libc::WEXITED, 0)));
    waitid EINVAL |_| sc!(SYS_waitid, libc::P_PID, 0, 0, libc::WEXITED, 0);
    waitid EINVAL |_| sc!(SYS_waitid, 9, 0, 0, libc::WEXITED, 0);
    waitid EINVAL |_| sc!(SYS_waitid, libc::P_ALL, 0, 0, libc::WEXITED | 0x100, 0);
}
