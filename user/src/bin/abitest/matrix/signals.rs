//! Signals, time, and waiting for several descriptors.

use super::{BAD, NOBODY, NONE, apart, interrupted, nobody};
use crate::harness::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

/// How often the handler has run, and its state.
static RUNS: AtomicU64 = AtomicU64::new(0);
static NESTED: AtomicU64 = AtomicU64::new(0);
static STACK: AtomicU64 = AtomicU64::new(0);
static INFO: AtomicU64 = AtomicU64::new(0);

/// A handler that records the stack it runs on, its arguments, and how often it is nested: it sends the signal once
/// more.
extern "C" fn note(signal: i32, info: u64, _: u64) {
    let here = 0u8;
    STACK.store(&raw const here as u64, SeqCst);
    INFO.store(info, SeqCst);
    let depth = NESTED.fetch_add(1, SeqCst) + 1;
    if RUNS.fetch_max(depth, SeqCst) == 0 {
        let _ = to_me(signal);
    }
    NESTED.fetch_sub(1, SeqCst);
}

fn to_me(signal: i32) -> Result<u64, i32> {
    sc!(SYS_kill, sc!(SYS_getpid)?, signal)
}

/// In a child: the handler runs with `flags`; then `f` runs.
fn handled<T: super::Answer>(flags: i32, f: impl FnOnce() -> Result<T, i32>) -> Result<u64, i32> {
    apart(|| {
        sys::on_signal(libc::SIGUSR1, note as *const () as usize, flags)?;
        to_me(libc::SIGUSR1)?;
        f()
    })
}

/// A set of one signal.
fn set(signal: i32) -> [u64; 1] {
    [1 << (signal - 1)]
}

fn mask(how: i32, signal: i32) -> Result<u64, i32> {
    let mut old = 0u64;
    sc!(
        SYS_rt_sigprocmask,
        how,
        set(signal).as_ptr(),
        &raw mut old,
        8
    )
    .map(|_| old)
}

/// A word of memory that holds zero.
fn word() -> Result<u64, i32> {
    anon(1)
}

const SHORT: [u64; 2] = [0, 1_000_000];
const WAIT: i32 = libc::FUTEX_WAIT;
const PRIVATE: i32 = libc::FUTEX_PRIVATE_FLAG;

/// Whether a clock advances, and can be read and queried for its resolution.
fn clock(clock: i32) -> Result<bool, i32> {
    let (mut first, mut then) = ([0u64; 2], [0u64; 2]);
    sc!(SYS_clock_getres, clock, first.as_mut_ptr())?;
    sc!(SYS_clock_gettime, clock, first.as_mut_ptr())?;
    sc!(SYS_clock_gettime, clock, then.as_mut_ptr())?;
    Ok(then >= first)
}

/// The events that poll returns.
fn poll(fd: i32, events: i16) -> Result<i16, i32> {
    let mut list = [libc::pollfd {
        fd,
        events,
        revents: 0,
    }];
    sc!(SYS_poll, list.as_mut_ptr(), 1, 0)?;
    Ok(list[0].revents)
}

/// Counts the signals of an interval timer in a child that computes.
fn timer(which: i32, signal: i32) -> Result<u64, i32> {
    apart(|| {
        sys::on_signal(signal, note as *const () as usize, libc::SA_NODEFER)?;
        RUNS.store(9, SeqCst);
        INFO.store(1, SeqCst);
        sc!(SYS_setitimer, which, [0u64, 1000, 0, 1000].as_ptr(), 0)?;
        while INFO.load(SeqCst) == 1 {
            sc!(SYS_getppid)?;
        }
        let mut now = [0u64; 4];
        sc!(SYS_getitimer, which, now.as_mut_ptr())?;
        Ok(now[1] == 1000)
    })
}

/// sigaltstack(2), called on the alternate stack that it would change.
fn sigaltstack_within() -> Result<u64, i32> {
    extern "C" fn change(_: i32) {
        let got = sc!(SYS_sigaltstack, [0u64, 2, 0].as_ptr(), 0);
        RUNS.store(got.map_or_else(|errno| errno as u64, |_| 0), SeqCst);
    }
    apart(|| {
        sc!(SYS_sigaltstack, [anon(16)?, 0, 16 * PAGE].as_ptr(), 0)?;
        sys::on_signal(
            libc::SIGUSR1,
            change as *const () as usize,
            libc::SA_ONSTACK,
        )?;
        to_me(libc::SIGUSR1)?;
        match RUNS.load(SeqCst) {
            0 => Ok(0),
            errno => Err(errno as i32),
        }
    })
}

/// Reads the state of an alternate stack set up with `flags`.
fn alternate(flags: u32, f: impl FnOnce([u64; 3]) -> bool) -> Result<u64, i32> {
    apart(|| {
        let mut now = [0u64; 3];
        sc!(
            SYS_sigaltstack,
            [anon(16)?, flags.into(), 16 * PAGE].as_ptr(),
            0
        )?;
        sc!(SYS_sigaltstack, 0, now.as_mut_ptr())?;
        Ok(f(now))
    })
}

errnos! {
    clock_getres EINVAL |_| sc!(SYS_clock_getres, 99, 0);
    clock_getres EFAULT |_| sc!(SYS_clock_getres, 0, BAD);
    clock_gettime EINVAL |_| sc!(SYS_clock_gettime, 99, 0);
    clock_gettime EFAULT |_| sc!(SYS_clock_gettime, 0, BAD);
    clock_nanosleep EINVAL |_| sc!(SYS_clock_nanosleep, 99, 0, 0, 0);
    clock_nanosleep EFAULT |_| sc!(SYS_clock_nanosleep, 0, 0, BAD, 0);
    clock_nanosleep EINTR |_| interrupted(|| sc!(SYS_clock_nanosleep, 1, 0, [100u64, 0].as_ptr(), 0));
    clock_nanosleep EINTR |_| interrupted(|| sc!(SYS_clock_nanosleep, 1, libc::TIMER_ABSTIME, [1u64 << 40, 0].as_ptr(), 0));
    clock_nanosleep EINVAL |_| sc!(SYS_clock_nanosleep, 1, 0, [0u64, 1_000_000_000].as_ptr(), 0);
    clock_nanosleep EOPNOTSUPP |_| sc!(SYS_clock_nanosleep, libc::CLOCK_THREAD_CPUTIME_ID, 0, SHORT.as_ptr(), 0);
    clock_nanosleep EOPNOTSUPP |_| sc!(SYS_clock_nanosleep, libc::CLOCK_MONOTONIC_COARSE, 0, SHORT.as_ptr(), 0);
    clock_settime EFAULT |_| sc!(SYS_clock_settime, 0, BAD);
    clock_settime EINVAL |_| sc!(SYS_clock_settime, libc::CLOCK_MONOTONIC, SHORT.as_ptr());
    clock_settime EINVAL |_| sc!(SYS_clock_settime, 99, SHORT.as_ptr());
    clock_settime EINVAL |_| sc!(SYS_clock_settime, 0, [0u64, 1 << 40].as_ptr());
    clock_settime EPERM |_| nobody(|| sc!(SYS_clock_settime, 0, SHORT.as_ptr()));
    futex EINVAL |_| sc!(SYS_futex, 3, libc::FUTEX_WAIT, 0, 0);
    futex EFAULT |_| sc!(SYS_futex, BAD, libc::FUTEX_WAIT, 0, 0);
    futex ENOSYS |h| sc!(SYS_futex, &raw const h.fd, 99, 0, 0);
    futex EAGAIN |_| sc!(SYS_futex, word()?, WAIT, 1, 0);
    futex EAGAIN |_| sc!(SYS_futex, word()?, libc::FUTEX_CMP_REQUEUE, 1, 1, word()?, 1);
    futex EFAULT |_| sc!(SYS_futex, word()?, WAIT, 0, BAD);
    futex EFAULT |_| sc!(SYS_futex, word()?, libc::FUTEX_CMP_REQUEUE, 1, 1, BAD, 0);
    futex EINTR |_| interrupted(|| sc!(SYS_futex, word()?, WAIT, 0, 0));
    futex EINTR |_| interrupted(|| sc!(SYS_futex, word()?, WAIT | PRIVATE, 0, [100u64, 0].as_ptr()));
    futex EINVAL |_| sc!(SYS_futex, word()?, libc::FUTEX_WAIT_BITSET, 0, 0, 0, 0);
    futex EINVAL |_| sc!(SYS_futex, word()?, libc::FUTEX_WAKE_BITSET, 1, 0, 0, 0);
    futex EINVAL |_| sc!(SYS_futex, word()? + 1, libc::FUTEX_WAKE, 1);
    futex EINVAL |_| sc!(SYS_futex, word()?, libc::FUTEX_REQUEUE, 1, 1, 3, 0);
    futex EINVAL |_| sc!(SYS_futex, word()?, libc::FUTEX_REQUEUE, -1i64, 1, word()?, 0);
    futex EINVAL |_| sc!(SYS_futex, word()?, WAIT, 0, [0u64, 1 << 40].as_ptr());
    futex ENOSYS |_| sc!(SYS_futex, word()?, libc::FUTEX_FD, 0);
    futex ENOSYS |_| sc!(SYS_futex, word()?, libc::FUTEX_WAKE | libc::FUTEX_CLOCK_REALTIME, 0);
    futex ETIMEDOUT |_| sc!(SYS_futex, word()?, WAIT, 0, SHORT.as_ptr());
    getitimer EINVAL |_| sc!(SYS_getitimer, 9, BAD);
    getitimer EFAULT |_| sc!(SYS_getitimer, 0, BAD);
    getitimer EINVAL |_| sc!(SYS_getitimer, -1i64, [0u64; 4].as_mut_ptr());
    gettimeofday EFAULT |_| sc!(SYS_gettimeofday, BAD, 0);
    gettimeofday EFAULT |_| sc!(SYS_gettimeofday, 0, BAD);
    nanosleep EINVAL |_| sc!(SYS_nanosleep, [0u64, 1 << 40].as_ptr(), 0);
    nanosleep EFAULT |_| sc!(SYS_nanosleep, BAD, 0);
    nanosleep EINTR |_| interrupted(|| sc!(SYS_nanosleep, [100u64, 0].as_ptr(), 0));
    nanosleep EINVAL |_| sc!(SYS_nanosleep, [-1i64, 0].as_ptr(), 0);
    pause EINTR |_| interrupted(|| sc!(SYS_pause));
    poll EFAULT |_| sc!(SYS_poll, BAD, 1, 0);
    poll EINVAL |_| sc!(SYS_poll, BAD, 1 << 30, 0);
    poll EINTR |h| interrupted(|| sc!(SYS_poll, [libc::pollfd { fd: h.from, events: libc::POLLIN, revents: 0 }].as_mut_ptr(), 1, -1i64));
    ppoll EINVAL |_| sc!(SYS_ppoll, 0, 0, [0u64, 1 << 40].as_ptr(), 0, 8);
    ppoll EINVAL |_| sc!(SYS_ppoll, 0, 0, 0, BAD, 4);
    ppoll EFAULT |_| sc!(SYS_ppoll, BAD, 1, 0, 0, 8);
    ppoll EFAULT |_| sc!(SYS_ppoll, 0, 0, BAD, 0, 8);
    ppoll EFAULT |_| sc!(SYS_ppoll, 0, 0, 0, BAD, 8);
    ppoll EINTR |_| interrupted(|| sc!(SYS_ppoll, 0, 0, 0, 0, 8));
    pselect6 EINVAL |_| sc!(SYS_pselect6, -1i64, 0, 0, 0, 0, 0);
    pselect6 EFAULT |_| sc!(SYS_pselect6, 1, BAD, 0, 0, 0, 0);
    pselect6 EBADF |_| sc!(SYS_pselect6, 41, [1u64 << 40].as_ptr(), 0, 0, SHORT.as_ptr(), 0);
    pselect6 EFAULT |_| sc!(SYS_pselect6, 0, 0, 0, 0, BAD, 0);
    pselect6 EFAULT |_| sc!(SYS_pselect6, 0, 0, 0, 0, 0, BAD);
    pselect6 EINTR |_| interrupted(|| sc!(SYS_pselect6, 0, 0, 0, 0, 0, 0));
    pselect6 EINVAL |_| sc!(SYS_pselect6, 0, 0, 0, 0, [0u64, 1 << 40].as_ptr(), 0);
    pselect6 EINVAL |_| sc!(SYS_pselect6, 0, 0, 0, 0, SHORT.as_ptr(), [set(1).as_ptr() as u64, 4].as_ptr());
    rt_sigaction EINVAL |_| sc!(SYS_rt_sigaction, 99, 0, 0, 8);
    rt_sigaction EINVAL |_| sc!(SYS_rt_sigaction, 1, 0, 0, 4);
    rt_sigaction EFAULT |_| sc!(SYS_rt_sigaction, 1, BAD, 0, 8);
    rt_sigaction EFAULT |_| sc!(SYS_rt_sigaction, 10, 0, BAD, 8);
    rt_sigaction EINVAL |_| sc!(SYS_rt_sigaction, 0, 0, 0, 8);
    rt_sigaction EINVAL |_| sc!(SYS_rt_sigaction, libc::SIGKILL, [0u64; 4].as_ptr(), 0, 8);
    rt_sigaction EINVAL |_| sc!(SYS_rt_sigaction, libc::SIGSTOP, [0u64; 4].as_ptr(), 0, 8);
    rt_sigpending EINVAL |_| sc!(SYS_rt_sigpending, BAD, 99);
    rt_sigpending EFAULT |_| sc!(SYS_rt_sigpending, BAD, 8);
    rt_sigprocmask EINVAL |_| sc!(SYS_rt_sigprocmask, 9, [0u64].as_ptr(), 0, 8);
    rt_sigprocmask EFAULT |_| sc!(SYS_rt_sigprocmask, 0, BAD, 0, 8);
    rt_sigprocmask EFAULT |_| sc!(SYS_rt_sigprocmask, 0, 0, BAD, 8);
    rt_sigprocmask EINVAL |_| sc!(SYS_rt_sigprocmask, 0, 0, 0, 4);
    rt_sigsuspend EINVAL |_| sc!(SYS_rt_sigsuspend, BAD, 4);
    rt_sigsuspend EFAULT |_| sc!(SYS_rt_sigsuspend, BAD, 8);
    rt_sigsuspend EINTR |_| interrupted(|| sc!(SYS_rt_sigsuspend, [0u64].as_ptr(), 8));
    rt_sigtimedwait EAGAIN |_| sc!(SYS_rt_sigtimedwait, [0u64].as_ptr(), 0, [0u64; 2].as_ptr(), 8);
    rt_sigtimedwait EINVAL |_| sc!(SYS_rt_sigtimedwait, [0u64].as_ptr(), 0, [0u64, 1 << 40].as_ptr(), 8);
    rt_sigtimedwait EFAULT |_| sc!(SYS_rt_sigtimedwait, BAD, 0, 0, 8);
    rt_sigtimedwait EFAULT |_| sc!(SYS_rt_sigtimedwait, set(10).as_ptr(), 0, BAD, 8);
    rt_sigtimedwait EINTR |_| interrupted(|| sc!(SYS_rt_sigtimedwait, set(10).as_ptr(), 0, 0, 8));
    rt_sigtimedwait EINVAL |_| sc!(SYS_rt_sigtimedwait, set(10).as_ptr(), 0, 0, 4);
    select EBADF |_| sc!(SYS_select, 41, [1u64 << 40].as_ptr(), 0, 0, [0u64; 2].as_ptr());
    select EINVAL |_| sc!(SYS_select, 0, 0, 0, 0, [-1i64, 0].as_ptr());
    select EFAULT |_| sc!(SYS_select, 1, BAD, 0, 0, 0);
    select EFAULT |_| sc!(SYS_select, 0, 0, 0, 0, BAD);
    select EINTR |_| interrupted(|| sc!(SYS_select, 0, 0, 0, 0, 0));
    select EINVAL |_| sc!(SYS_select, -1i64, 0, 0, 0, 0);
    set_robust_list EINVAL |_| sc!(SYS_set_robust_list, BAD, 7);
    setitimer EINVAL |_| sc!(SYS_setitimer, 9, 0, 0);
    setitimer EFAULT |_| sc!(SYS_setitimer, 0, BAD, 0);
    setitimer EFAULT |_| sc!(SYS_setitimer, 0, [0u64; 4].as_ptr(), BAD);
    setitimer EINVAL |_| sc!(SYS_setitimer, 0, [0u64, 1 << 40, 0, 0].as_ptr(), 0);
    setitimer EINVAL |_| sc!(SYS_setitimer, 0, [0i64, 0, -1, 0].as_ptr(), 0);
    settimeofday EFAULT |_| sc!(SYS_settimeofday, BAD, 0);
    settimeofday EINVAL |_| sc!(SYS_settimeofday, [0u64, 1 << 40].as_ptr(), 0);
    settimeofday EPERM |_| nobody(|| sc!(SYS_settimeofday, [1u64, 0].as_ptr(), 0));
    settimeofday EPERM |_| nobody(|| sc!(SYS_settimeofday, 0, 0));
    settimeofday EFAULT |_| nobody(|| sc!(SYS_settimeofday, 0, BAD));
    settimeofday EINVAL |_| sc!(SYS_settimeofday, 0, [901u32, 0].as_ptr());
    sigaltstack EFAULT |_| sc!(SYS_sigaltstack, BAD, 0);
    sigaltstack EINVAL |_| sc!(SYS_sigaltstack, [0u64, 0x80, 1 << 20].as_ptr(), 0);
    sigaltstack ENOMEM |_| sc!(SYS_sigaltstack, [PAGE, 0, 1].as_ptr(), 0);
    sigaltstack EFAULT |_| sc!(SYS_sigaltstack, 0, BAD);
    sigaltstack EPERM |_| sigaltstack_within();
    tgkill EINVAL |_| sc!(SYS_tgkill, 0, 1, 0);
    tgkill ESRCH |_| sc!(SYS_tgkill, NOBODY, NOBODY, 0);
    time EFAULT |_| sc!(SYS_time, BAD);
    tkill EINVAL |_| sc!(SYS_tkill, 0, 0);
    tkill ESRCH |_| sc!(SYS_tkill, NOBODY, 0);
}

flags! {
    alarm ALARM |_| apart(|| { sc!(SYS_alarm, 100)?; Ok(matches!(sc!(SYS_alarm, 0)?, 99 | 100)) });
    clock_gettime CLOCK_BOOTTIME |_| clock(libc::CLOCK_BOOTTIME);
    clock_gettime CLOCK_MONOTONIC |_| clock(libc::CLOCK_MONOTONIC);
    clock_gettime CLOCK_MONOTONIC_COARSE |_| clock(libc::CLOCK_MONOTONIC_COARSE);
    clock_gettime CLOCK_MONOTONIC_RAW |_| clock(libc::CLOCK_MONOTONIC_RAW);
    clock_gettime CLOCK_PROCESS_CPUTIME_ID |_| clock(libc::CLOCK_PROCESS_CPUTIME_ID);
    clock_gettime CLOCK_REALTIME |_| clock(libc::CLOCK_REALTIME);
    clock_gettime CLOCK_REALTIME_COARSE |_| clock(libc::CLOCK_REALTIME_COARSE);
    clock_gettime CLOCK_TAI |_| clock(libc::CLOCK_TAI);
    clock_gettime CLOCK_THREAD_CPUTIME_ID |_| clock(libc::CLOCK_THREAD_CPUTIME_ID);
    clock_nanosleep CLOCK_BOOTTIME |_| sc!(SYS_clock_nanosleep, libc::CLOCK_BOOTTIME, 0, SHORT.as_ptr(), 0);
    clock_nanosleep CLOCK_MONOTONIC |_| sc!(SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, 0, SHORT.as_ptr(), 0);
    clock_nanosleep CLOCK_REALTIME |_| sc!(SYS_clock_nanosleep, libc::CLOCK_REALTIME, 0, SHORT.as_ptr(), 0);
    clock_nanosleep CLOCK_TAI |_| sc!(SYS_clock_nanosleep, libc::CLOCK_TAI, 0, SHORT.as_ptr(), 0);
    clock_nanosleep TIMER_ABSTIME |_| sc!(SYS_clock_nanosleep, 0, libc::TIMER_ABSTIME, SHORT.as_ptr(), 0);
    futex FUTEX_CLOCK_REALTIME |_| sc!(SYS_futex, word()?, libc::FUTEX_WAIT_BITSET | libc::FUTEX_CLOCK_REALTIME, 0, SHORT.as_ptr(), 0, 1).or_else(|e| if e == libc::ETIMEDOUT { Ok(0) } else { Err(e) });
    futex FUTEX_CMP_REQUEUE |_| Ok(sc!(SYS_futex, word()?, libc::FUTEX_CMP_REQUEUE, 1, 1, word()?, 0)? == 0);
    futex FUTEX_PRIVATE_FLAG |_| Ok(sc!(SYS_futex, word()?, libc::FUTEX_WAKE | PRIVATE, 1)? == 0);
    futex FUTEX_REQUEUE |_| Ok(sc!(SYS_futex, word()?, libc::FUTEX_REQUEUE, 1, 1, word()?)? == 0);
    futex FUTEX_WAKE |_| Ok(sc!(SYS_futex, word()?, libc::FUTEX_WAKE, 1)? == 0);
    futex FUTEX_WAKE_BITSET |_| Ok(sc!(SYS_futex, word()?, libc::FUTEX_WAKE_BITSET, 1, 0, 0, 1)? == 0);
    futex FUTEX_WAKE_OP |_| { let (one, two) = (word()?, word()?); let got = sc!(SYS_futex, one, libc::FUTEX_WAKE_OP, 1, 1, two, 5 << 12)?; Ok(got == 0 && sys::peek(two) == 5) };
    poll POLLERR |h| { sc!(SYS_close, h.from)?; let got = poll(h.to, 0); sc!(SYS_dup2, h.fd, h.from)?; Ok(got? == libc::POLLERR) };
    poll POLLHUP |h| { let (from, to) = sys::pipe(0)?; sys::close(to)?; let got = poll(from, libc::POLLIN)?; sys::close(from)?; Ok(h.fd >= 0 && got == libc::POLLHUP) };
    poll POLLIN |h| { sys::write(h.to, b"x")?; Ok(poll(h.from, libc::POLLIN)? == libc::POLLIN) };
    poll POLLNVAL |_| Ok(poll(NONE, libc::POLLIN)? == libc::POLLNVAL);
    poll POLLOUT |h| Ok(poll(h.to, libc::POLLOUT)? == libc::POLLOUT);
    poll POLLPRI |h| Ok(poll(h.from, libc::POLLPRI)? == 0);
    poll POLLRDBAND |h| Ok(poll(h.from, libc::POLLRDBAND)? == 0);
    poll POLLRDHUP |h| Ok(poll(h.from, libc::POLLRDHUP)? == 0);
    poll POLLRDNORM |h| { sys::write(h.to, b"x")?; Ok(poll(h.from, libc::POLLRDNORM)? == libc::POLLRDNORM) };
    poll POLLWRNORM |h| Ok(poll(h.to, libc::POLLWRNORM)? == libc::POLLWRNORM);
    rt_sigaction SA_NOCLDSTOP |_| apart(|| { sys::on_signal(libc::SIGCHLD, note as *const () as usize, libc::SA_NOCLDSTOP)?; super::beside(|pid| { sc!(SYS_kill, pid, libc::SIGSTOP)?; sys::wait(pid as i64, libc::WUNTRACED)?; Ok(INFO.load(SeqCst) == 0) }) });
    rt_sigaction SA_NOCLDWAIT |_| apart(|| { sys::on_signal(libc::SIGCHLD, libc::SIG_DFL, libc::SA_NOCLDWAIT)?; if sys::fork()? == 0 { sys::exit(0) } Ok(sys::wait(-1, 0) == Err(libc::ECHILD)) });
    rt_sigaction SA_NODEFER |_| handled(libc::SA_NODEFER, || Ok(RUNS.load(SeqCst) == 2));
    rt_sigaction SA_ONSTACK |_| apart(|| { let at = anon(16)?; sc!(SYS_sigaltstack, [at, 0, 16 * PAGE].as_ptr(), 0)?; handled(libc::SA_ONSTACK, || Ok((at..at + 16 * PAGE).contains(&STACK.load(SeqCst)))) });
    rt_sigaction SA_RESETHAND |_| handled(libc::SA_RESETHAND, || { let mut now = [9u64; 4]; sc!(SYS_rt_sigaction, libc::SIGUSR1, 0, now.as_mut_ptr(), 8)?; Ok(now[0] == 0) }).or_else(|e| if e == super::UNTRUE { Ok(0) } else { Err(e) });
    rt_sigaction SA_SIGINFO |_| handled(libc::SA_SIGINFO, || Ok(INFO.load(SeqCst) != 0));
    rt_sigaction SIG_DFL |_| { let status = in_child(|| { let _ = sys::on_signal(libc::SIGUSR1, libc::SIG_DFL, 0).and_then(|()| to_me(libc::SIGUSR1)); 1 }); Ok(status == Ok(libc::SIGUSR1)) };
    rt_sigaction SIG_IGN |_| apart(|| { sys::on_signal(libc::SIGUSR1, libc::SIG_IGN, 0)?; to_me(libc::SIGUSR1) });
    rt_sigprocmask SIG_BLOCK |_| apart(|| { mask(libc::SIG_BLOCK, 10)?; Ok(mask(libc::SIG_BLOCK, 12)? == set(10)[0] && mask(libc::SIG_BLOCK, 12)? == set(10)[0] | set(12)[0]) });
    rt_sigprocmask SIG_SETMASK |_| apart(|| { mask(libc::SIG_BLOCK, 12)?; mask(libc::SIG_SETMASK, 10)?; Ok(mask(libc::SIG_BLOCK, 10)? == set(10)[0]) });
    rt_sigprocmask SIG_UNBLOCK |_| apart(|| { mask(libc::SIG_BLOCK, 10)?; mask(libc::SIG_UNBLOCK, 10)?; Ok(mask(libc::SIG_BLOCK, 10)? == 0) });
    setitimer ITIMER_PROF |_| timer(libc::ITIMER_PROF, libc::SIGPROF);
    setitimer ITIMER_REAL |_| timer(libc::ITIMER_REAL, libc::SIGALRM);
    setitimer ITIMER_VIRTUAL |_| timer(libc::ITIMER_VIRTUAL, libc::SIGVTALRM);
    sigaltstack SS_AUTODISARM |_| alternate(1 << 31, |now| now[1] as u32 == 1 << 31);
    sigaltstack SS_DISABLE |_| alternate(2, |now| now == [0, 2, 0]);
    sigaltstack SS_ONSTACK |_| alternate(1, |now| now[1] as u32 == 0);
}
