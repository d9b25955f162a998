//! Flags, commands and options of calls on processes, rights, limits and the system.

use super::{NOBODY, apart, beside, nobody};
use crate::harness::*;
use user::sys;

/// A page that parent and child share.
fn shared_page() -> Result<u64, i32> {
    sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0)
}

/// The status of a child made with `flags` that runs `f`.
fn child(flags: i32, f: impl FnOnce() -> i32) -> Result<i32, i32> {
    let pid = sc!(SYS_clone, flags | libc::SIGCHLD, 0, 0, 0, 0)?;
    if pid == 0 {
        sys::exit(f());
    }
    Ok(sys::wait(pid as i64, libc::__WALL)?.1)
}

/// Waits for a child with waitid; returns the code and the status.
fn news(kind: u32, id: u64, options: i32) -> Result<(i32, i32), i32> {
    let mut info = [0i32; 32];
    sc!(SYS_waitid, kind, id, info.as_mut_ptr(), options, 0)?;
    Ok((info[2], info[6]))
}

/// A zombie child with exit status 3.
fn ended() -> Result<u64, i32> {
    let pid = sys::fork()?;
    if pid == 0 {
        sys::exit(3);
    }
    Ok(pid)
}

/// Reads a limit, and sets it to the same value.
fn limit(resource: u32) -> Result<u64, i32> {
    let mut now = [0u64; 2];
    sc!(SYS_getrlimit, resource, now.as_mut_ptr())?;
    sc!(SYS_prlimit64, 0, resource, now.as_ptr(), 0)
}

/// Sets a scheduling policy and reads it back.
fn policy(policy: i32, priority: u32) -> Result<u64, i32> {
    apart(|| {
        sc!(SYS_sched_setscheduler, 0, policy, [priority].as_ptr())?;
        let mut now = 9u32;
        sc!(SYS_sched_getparam, 0, &raw mut now)?;
        Ok(sc!(SYS_sched_getscheduler, 0)? == policy as u64 && now == priority)
    })
}

flags! {
    arch_prctl ARCH_GET_FS |_| { let mut base = 0u64; sc!(SYS_arch_prctl, 0x1003, &raw mut base)?; Ok(base != 0) };
    arch_prctl ARCH_GET_GS |_| apart(|| { let mut base = 0u64; sc!(SYS_arch_prctl, 0x1001, 0x1234_5000)?; sc!(SYS_arch_prctl, 0x1004, &raw mut base)?; Ok(base == 0x1234_5000) });
    arch_prctl ARCH_SET_FS |_| apart(|| { let mut base = 0u64; sc!(SYS_arch_prctl, 0x1003, &raw mut base)?; sc!(SYS_arch_prctl, 0x1002, base) });
    arch_prctl ARCH_SET_GS |_| apart(|| sc!(SYS_arch_prctl, 0x1001, 0));
    clone CLONE_FILES |_| apart(|| { let fd = sys::open("/", 0, 0)?; child(libc::CLONE_FILES, || i32::from(sys::close(fd).is_err()))?; Ok(sys::close(fd) == Err(libc::EBADF)) });
    clone CLONE_FS |_| apart(|| { child(libc::CLONE_FS, || i32::from(sc!(SYS_umask, 0o123).is_err()))?; Ok(sc!(SYS_umask, 0)? == 0o123) });
    clone CLONE_IO |_| Ok(child(libc::CLONE_IO, || 3)? == 3 << 8);
    clone CLONE_PARENT |_| apart(|| { let (parent, mine) = (sc!(SYS_getppid)?, shared_page()?); let made = sys::fork()?; if made == 0 { let _ = sc!(SYS_clone, libc::CLONE_PARENT | libc::SIGCHLD, 0, 0, 0, 0).map(|pid| if pid == 0 { sys::poke64(mine, sc!(SYS_getppid).unwrap_or(0)); sys::exit(0) }); sys::exit(0) } sys::wait(-1, 0)?; sys::wait(-1, 0)?; Ok(parent != 0 && sys::peek64(mine) == sc!(SYS_getpid)?) });
    clone CLONE_PTRACE |_| Ok(child(libc::CLONE_PTRACE, || 3)? == 3 << 8);
    clone CLONE_SYSVSEM |_| Ok(child(libc::CLONE_SYSVSEM, || 3)? == 3 << 8);
    clone CLONE_UNTRACED |_| Ok(child(libc::CLONE_UNTRACED, || 3)? == 3 << 8);
    personality ADDR_NO_RANDOMIZE |_| apart(|| { let old = sc!(SYS_personality, 0xffff_ffffu32)?; sc!(SYS_personality, 0x004_0000)?; Ok(sc!(SYS_personality, 0xffff_ffffu32)? == 0x004_0000 && old & 0x004_0000 == 0) });
    prctl PR_CAPBSET_READ |_| Ok(sc!(SYS_prctl, libc::PR_CAPBSET_READ, 0)? == 1);
    prctl PR_CAP_AMBIENT |_| Ok(sc!(SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET, 0, 0, 0)? == 0);
    prctl PR_GET_DUMPABLE |_| Ok(sc!(SYS_prctl, libc::PR_GET_DUMPABLE)? == 1);
    prctl PR_GET_KEEPCAPS |_| Ok(sc!(SYS_prctl, libc::PR_GET_KEEPCAPS)? == 0);
    prctl PR_GET_SECCOMP |_| Ok(sc!(SYS_prctl, libc::PR_GET_SECCOMP)? == 0);
    prctl PR_GET_SECUREBITS |_| Ok(sc!(SYS_prctl, libc::PR_GET_SECUREBITS)? == 0);
    prctl PR_GET_THP_DISABLE |_| Ok(sc!(SYS_prctl, libc::PR_GET_THP_DISABLE, 0, 0, 0, 0)? == 0);
    prctl PR_GET_TIMERSLACK |_| Ok(sc!(SYS_prctl, libc::PR_GET_TIMERSLACK)? == 50_000);
    prctl PR_GET_TIMING |_| Ok(sc!(SYS_prctl, libc::PR_GET_TIMING)? == 0);
    prctl PR_SET_CHILD_SUBREAPER |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1)?; let mut now = 0u32; sc!(SYS_prctl, libc::PR_GET_CHILD_SUBREAPER, &raw mut now)?; Ok(now == 1) });
    prctl PR_SET_DUMPABLE |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_DUMPABLE, 0)?; Ok(sc!(SYS_prctl, libc::PR_GET_DUMPABLE)? == 0) });
    prctl PR_SET_KEEPCAPS |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_KEEPCAPS, 1)?; Ok(sc!(SYS_prctl, libc::PR_GET_KEEPCAPS)? == 1) });
    prctl PR_SET_NAME |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_NAME, path("abc"))?; let mut name = [9u8; 16]; sc!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr())?; Ok(name == *b"abc\0\0\0\0\0\0\0\0\0\0\0\0\0") });
    prctl PR_SET_NO_NEW_PRIVS |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)?; Ok(sc!(SYS_prctl, libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)? == 1) });
    prctl PR_SET_PDEATHSIG |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_PDEATHSIG, 9)?; let mut now = 0u32; sc!(SYS_prctl, libc::PR_GET_PDEATHSIG, &raw mut now)?; Ok(now == 9) });
    prctl PR_SET_THP_DISABLE |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_THP_DISABLE, 1, 0, 0, 0)?; Ok(sc!(SYS_prctl, libc::PR_GET_THP_DISABLE, 0, 0, 0, 0)? == 1) });
    prctl PR_SET_TIMERSLACK |_| apart(|| { sc!(SYS_prctl, libc::PR_SET_TIMERSLACK, 1000)?; Ok(sc!(SYS_prctl, libc::PR_GET_TIMERSLACK)? == 1000) });
    prlimit64 RLIMIT_AS |_| limit(libc::RLIMIT_AS);
    prlimit64 RLIMIT_CORE |_| limit(libc::RLIMIT_CORE);
    prlimit64 RLIMIT_CPU |_| limit(libc::RLIMIT_CPU);
    prlimit64 RLIMIT_DATA |_| limit(libc::RLIMIT_DATA);
    prlimit64 RLIMIT_FSIZE |_| limit(libc::RLIMIT_FSIZE);
    prlimit64 RLIMIT_LOCKS |_| limit(libc::RLIMIT_LOCKS);
    prlimit64 RLIMIT_MEMLOCK |_| limit(libc::RLIMIT_MEMLOCK);
    prlimit64 RLIMIT_MSGQUEUE |_| limit(libc::RLIMIT_MSGQUEUE);
    prlimit64 RLIMIT_NICE |_| limit(libc::RLIMIT_NICE);
    prlimit64 RLIMIT_NOFILE |_| limit(libc::RLIMIT_NOFILE);
    prlimit64 RLIMIT_NPROC |_| limit(libc::RLIMIT_NPROC);
    prlimit64 RLIMIT_RSS |_| limit(libc::RLIMIT_RSS);
    prlimit64 RLIMIT_RTPRIO |_| limit(libc::RLIMIT_RTPRIO);
    prlimit64 RLIMIT_RTTIME |_| limit(libc::RLIMIT_RTTIME);
    prlimit64 RLIMIT_SIGPENDING |_| limit(libc::RLIMIT_SIGPENDING);
    prlimit64 RLIMIT_STACK |_| limit(libc::RLIMIT_STACK);
    sched_setscheduler SCHED_BATCH |_| policy(libc::SCHED_BATCH, 0);
    sched_setscheduler SCHED_FIFO |_| policy(libc::SCHED_FIFO, 5);
    sched_setscheduler SCHED_IDLE |_| policy(libc::SCHED_IDLE, 0);
    sched_setscheduler SCHED_OTHER |_| policy(libc::SCHED_OTHER, 0);
    sched_setscheduler SCHED_RESET_ON_FORK |_| apart(|| { sc!(SYS_sched_setscheduler, 0, libc::SCHED_BATCH | 0x4000_0000, [0u32].as_ptr())?; Ok(sc!(SYS_sched_getscheduler, 0)? == libc::SCHED_BATCH as u64 | 0x4000_0000) });
    sched_setscheduler SCHED_RR |_| policy(libc::SCHED_RR, 5);
    setresuid KEEP |_| nobody(|| sc!(SYS_setresuid, -1i64, -1i64, -1i64));
    unshare CLONE_FILES |_| apart(|| sc!(SYS_unshare, libc::CLONE_FILES));
    unshare CLONE_FS |_| apart(|| sc!(SYS_unshare, libc::CLONE_FS));
    unshare CLONE_SYSVSEM |_| apart(|| sc!(SYS_unshare, libc::CLONE_SYSVSEM));
    wait4 WCONTINUED |_| beside(|pid| { sc!(SYS_kill, pid, libc::SIGSTOP)?; sys::wait(pid as i64, libc::WUNTRACED)?; sc!(SYS_kill, pid, libc::SIGCONT)?; Ok(sys::wait(pid as i64, libc::WCONTINUED)? == (pid, 0xffff)) });
    wait4 WNOHANG |_| beside(|pid| Ok(sc!(SYS_wait4, pid, 0, libc::WNOHANG, 0)? == 0));
    wait4 WUNTRACED |_| beside(|pid| { sc!(SYS_kill, pid, libc::SIGSTOP)?; Ok(sys::wait(pid as i64, libc::WUNTRACED)? == (pid, libc::SIGSTOP << 8 | 0x7f)) });
    wait4 __WALL |_| { let pid = ended()?; Ok(sys::wait(pid as i64, libc::__WALL)?.0 == pid) };
    wait4 __WCLONE |_| { let pid = sc!(SYS_clone, 0, 0, 0, 0, 0)?; if pid == 0 { sys::exit(3) } let usual = sys::wait(pid as i64, 0); Ok(usual == Err(libc::ECHILD) && sys::wait(pid as i64, libc::__WCLONE)? == (pid, 3 << 8)) };
    wait4 __WNOTHREAD |_| { let pid = ended()?; Ok(sys::wait(pid as i64, libc::__WNOTHREAD)?.0 == pid) };
    waitid P_ALL |_| { ended()?; Ok(news(libc::P_ALL, NOBODY, libc::WEXITED)? == (libc::CLD_EXITED, 3)) };
    waitid P_PGID |_| { ended()?; Ok(news(libc::P_PGID, 0, libc::WEXITED)? == (libc::CLD_EXITED, 3)) };
    waitid P_PID |_| { let pid = ended()?; Ok(news(libc::P_PID, pid, libc::WEXITED)? == (libc::CLD_EXITED, 3)) };
    waitid WCONTINUED |_| beside(|pid| { sc!(SYS_kill, pid, libc::SIGSTOP)?; news(libc::P_PID, pid, libc::WSTOPPED)?; sc!(SYS_kill, pid, libc::SIGCONT)?; Ok(news(libc::P_PID, pid, libc::WCONTINUED)? == (libc::CLD_CONTINUED, libc::SIGCONT)) });
    waitid WEXITED |_| { let pid = ended()?; Ok(news(libc::P_PID, pid, libc::WEXITED)? == (libc::CLD_EXITED, 3)) };
    waitid WNOHANG |_| beside(|pid| Ok(news(libc::P_PID, pid, libc::WEXITED | libc::WNOHANG)? == (0, 0)));
    waitid WNOWAIT |_| { let pid = ended()?; news(libc::P_PID, pid, libc::WEXITED | libc::WNOWAIT)?; Ok(news(libc::P_PID, pid, libc::WEXITED)? == (libc::CLD_EXITED, 3)) };
    waitid WSTOPPED |_| beside(|pid| { sc!(SYS_kill, pid, libc::SIGSTOP)?; Ok(news(libc::P_PID, pid, libc::WSTOPPED)? == (libc::CLD_STOPPED, libc::SIGSTOP)) });
}
