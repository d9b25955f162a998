//! timerfd and signalfd.

use crate::harness::*;
use user::sys;

const MS: i64 = 1_000_000;
const SECOND: i64 = 1_000_000_000;
const ABSOLUTE: i32 = libc::TFD_TIMER_ABSTIME;

fn timer(clock: i32, flags: i32) -> Result<i32, i32> {
    sc!(SYS_timerfd_create, clock, flags).map(|fd| fd as i32)
}

/// Interval and value, in nanoseconds.
fn spec(interval: i64, value: i64) -> [i64; 4] {
    [
        interval / SECOND,
        interval % SECOND,
        value / SECOND,
        value % SECOND,
    ]
}

fn set(fd: i32, flags: i32, interval: i64, value: i64) -> Result<u64, i32> {
    sc!(
        SYS_timerfd_settime,
        fd,
        flags,
        spec(interval, value).as_ptr(),
        0
    )
}

/// The interval, and the time left.
fn get(fd: i32) -> Result<(i64, i64), i32> {
    let mut old = [0i64; 4];
    sc!(SYS_timerfd_gettime, fd, old.as_mut_ptr())?;
    Ok((old[0] * SECOND + old[1], old[2] * SECOND + old[3]))
}

/// The expiries that a read returns.
fn take(fd: i32) -> Result<u64, i32> {
    let mut word = [0; 8];
    sys::read(fd, &mut word)?;
    Ok(u64::from_le_bytes(word))
}

fn ready(fd: i32, ms: i64) -> Result<bool, i32> {
    let mut list = [u64::from(fd as u32) | (libc::POLLIN as u64) << 32];
    sc!(SYS_poll, list.as_mut_ptr(), 1, ms).map(|n| n == 1 && list[0] >> 48 == libc::POLLIN as u64)
}

fn now(clock: i32) -> Result<i64, i32> {
    let mut at = [0i64; 2];
    sc!(SYS_clock_gettime, clock, at.as_mut_ptr())?;
    Ok(at[0] * SECOND + at[1])
}

/// Sets real time that much ahead.
fn step(ns: i64) -> Result<u64, i32> {
    let to = now(libc::CLOCK_REALTIME)? + ns;
    sc!(
        SYS_clock_settime,
        libc::CLOCK_REALTIME,
        [to / SECOND, to % SECOND].as_ptr()
    )
}

fn signals(of: &[i32]) -> u64 {
    of.iter().map(|s| 1 << (s - 1)).sum()
}

fn block(set: u64) -> Result<u64, i32> {
    sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, [set].as_ptr(), 0, 8)
}

fn signal_file(fd: i32, set: u64, flags: i32) -> Result<i32, i32> {
    sc!(SYS_signalfd4, fd as i64, [set].as_ptr(), 8, flags).map(|fd| fd as i32)
}

/// A field of a struct signalfd_siginfo.
fn field(bytes: &[u8], at: usize) -> i32 {
    bytes[at..at + 4].try_into().map_or(0, i32::from_le_bytes)
}

/// What /proc/self/fd has for a descriptor.
fn link(fd: i32) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    link.map(|to| to.display().to_string()).unwrap_or_default()
}

/// Starts a child that sends this process SIGUSR1 after a while.
fn signal_soon() -> Result<u64, i32> {
    let me = std::process::id();
    let child = sys::fork()?;
    if child == 0 {
        nap_us(30_000);
        let _ = sc!(SYS_kill, me, libc::SIGUSR1);
        sys::exit(0);
    }
    Ok(child)
}

extern "C" fn nothing(_: i32) {}

tests! { "timerfd";
    a_timer_expires_once_or_again_and_again {
        let fd = ok!(timer(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK));
        fails!(take(fd), EAGAIN);
        is!(ok!(get(fd)), (0, 0));
        let begun = sys::now_ns();
        ok!(set(fd, 0, 0, 30 * MS));
        let (interval, left) = ok!(get(fd));
        holds!(interval == 0 && left > 0 && left <= 30 * MS);
        is!(ok!(ready(fd, 0)), false);
        is!(ok!(ready(fd, 5000)), true);
        holds!(sys::now_ns() - begun >= 30 * MS as u64);
        is!(ok!(take(fd)), 1);
        fails!(take(fd), EAGAIN);
        is!(ok!(get(fd)), (0, 0));
        ok!(set(fd, 0, 10 * MS, 10 * MS));
        nap_us(105_000);
        holds!(ok!(take(fd)) >= 10);
        holds!(ok!(get(fd)).1 <= 10 * MS);
        nap_us(25_000);
        holds!(ok!(take(fd)) >= 2);
        ok!(set(fd, 0, 10 * MS, 0));
        nap_us(25_000);
        fails!(take(fd), EAGAIN);
    }
    a_blocking_read_waits_for_the_time {
        for clock in [libc::CLOCK_MONOTONIC, libc::CLOCK_BOOTTIME, libc::CLOCK_REALTIME] {
            let fd = ok!(timer(clock, 0));
            let until = ok!(now(clock)) + 20 * MS;
            ok!(set(fd, ABSOLUTE, 0, until));
            is!(ok!(take(fd)), 1);
            holds!(ok!(now(clock)) >= until);
            // A time that has passed expires at once.
            ok!(set(fd, ABSOLUTE, 0, 1));
            is!(ok!(take(fd)), 1);
        }
    }
    a_look_at_an_interval_counts_what_has_passed {
        let fd = ok!(timer(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK));
        ok!(set(fd, 0, 10 * MS, 10 * MS));
        nap_us(55_000);
        let (interval, left) = ok!(get(fd));
        holds!(interval == 10 * MS && left > 0 && left <= 10 * MS);
        holds!(ok!(take(fd)) >= 5);
        let mut old = [0i64; 4];
        ok!(sc!(SYS_timerfd_settime, fd, 0, spec(0, 0).as_ptr(), old.as_mut_ptr()));
        holds!(old[1] == 10 * MS && old[3] > 0 && old[3] <= 10 * MS);
    }
    setting_the_clock_cancels_and_moves_timers {
        let fd = ok!(timer(libc::CLOCK_REALTIME, libc::TFD_NONBLOCK));
        let other = ok!(timer(libc::CLOCK_REALTIME, libc::TFD_NONBLOCK));
        let until = ok!(now(libc::CLOCK_REALTIME)) + 100 * SECOND;
        ok!(set(fd, ABSOLUTE | libc::TFD_TIMER_CANCEL_ON_SET, 0, until));
        ok!(set(other, ABSOLUTE, 0, until));
        fails!(take(fd), EAGAIN);
        ok!(step(200 * SECOND));
        is!(ok!(ready(fd, 0)), true);
        fails!(take(fd), ECANCELED);
        is!(ok!(ready(other, 1000)), true);
        is!(ok!(take(other)), 1);
        // A relative time stays.
        ok!(set(other, 0, 0, 100 * SECOND));
        ok!(step(-200 * SECOND));
        fails!(take(other), EAGAIN);
    }
    arguments_of_timers {
        fails!(timer(libc::CLOCK_PROCESS_CPUTIME_ID, 0), EINVAL);
        fails!(timer(99, 0), EINVAL);
        fails!(timer(libc::CLOCK_MONOTONIC, 1), EINVAL);
        let fd = ok!(timer(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), 1);
        fails!(set(fd, 4, 0, 1), EINVAL);
        fails!(sc!(SYS_timerfd_settime, fd, 0, [0i64, 0, 0, SECOND].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_timerfd_settime, fd, 0, [0i64, 0, -1, 0].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_timerfd_settime, fd, 0, 8, 0), EFAULT);
        fails!(sc!(SYS_timerfd_gettime, fd, 8), EFAULT);
        fails!(set(-1, 0, 0, 1), EBADF);
        fails!(get(-1), EBADF);
        let (from, _) = ok!(sys::pipe(0));
        fails!(set(from, 0, 0, 1), EINVAL);
        fails!(get(from), EINVAL);
        fails!(sys::read(fd, &mut [0; 7]), EINVAL);
        fails!(sys::write(fd, &[0; 8]), EINVAL);
        is!(link(fd), "anon_inode:[timerfd]");
    }
    an_epoll_waits_for_timers {
        let e = ok!(sc!(SYS_epoll_create1, 0));
        let fd = ok!(timer(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK));
        let event = [libc::EPOLLIN as u32 | libc::EPOLLET as u32, 7, 0];
        ok!(sc!(SYS_epoll_ctl, e, libc::EPOLL_CTL_ADD, fd, event.as_ptr()));
        let mut found = [0u32; 3];
        for _ in 0..3 {
            ok!(set(fd, 0, 0, 10 * MS));
            is!(ok!(sc!(SYS_epoll_wait, e, found.as_mut_ptr(), 1, 5000)), 1);
            is!(found[1], 7);
            is!(ok!(sc!(SYS_epoll_wait, e, found.as_mut_ptr(), 1, 0)), 0);
            is!(ok!(take(fd)), 1);
        }
    }
    signals_are_read_in_their_order {
        let set = signals(&[libc::SIGUSR1, libc::SIGUSR2]);
        ok!(block(set));
        let fd = ok!(signal_file(-1, set, libc::SFD_NONBLOCK));
        let mut bytes = [0u8; 300];
        fails!(sys::read(fd, &mut bytes), EAGAIN);
        is!(ok!(ready(fd, 0)), false);
        let me = std::process::id();
        ok!(sc!(SYS_kill, me, libc::SIGUSR2));
        ok!(sc!(SYS_kill, me, libc::SIGUSR1));
        is!(ok!(ready(fd, 0)), true);
        is!(ok!(sys::read(fd, &mut bytes)), 256);
        is!(field(&bytes, 0), libc::SIGUSR1);
        is!(field(&bytes, 128), libc::SIGUSR2);
        is!([field(&bytes, 8), field(&bytes, 12)], [0, me as i32]);
        fails!(sys::read(fd, &mut bytes), EAGAIN);
        // What is not in the set stays.
        is!(ok!(signal_file(fd, signals(&[libc::SIGUSR2]), 0)), fd);
        ok!(sc!(SYS_kill, me, libc::SIGUSR1));
        fails!(sys::read(fd, &mut bytes), EAGAIN);
        is!(ok!(signal_file(fd, set, 0)), fd);
        is!(ok!(sys::read(fd, &mut bytes)), 128);
    }
    a_value_and_a_child_are_reported {
        let set = signals(&[libc::SIGCHLD, 40]);
        ok!(block(set));
        let fd = ok!(signal_file(-1, set, 0));
        let me = std::process::id();
        let mut info = [0u64; 16];
        info[0] = 40;
        info[1] = u64::from(-1i32 as u32);
        info[2] = u64::from(me);
        info[3] = 0x1234_5678_9abc;
        for _ in 0..2 {
            ok!(sc!(SYS_rt_sigqueueinfo, me, 40, info.as_ptr()));
        }
        let mut bytes = [0u8; 512];
        is!(ok!(sys::read(fd, &mut bytes)), 256);
        is!([field(&bytes, 0), field(&bytes, 8), field(&bytes, 44)], [40, -1, 0x5678_9abc]);
        let child = ok!(sys::fork());
        if child == 0 {
            nap_us(20_000);
            sys::exit(5);
        }
        is!(ok!(sys::read(fd, &mut bytes)), 128);
        is!([field(&bytes, 0), field(&bytes, 8)], [libc::SIGCHLD, 1]);
        is!([field(&bytes, 12), field(&bytes, 40)], [child as i32, 5]);
        is!(ok!(sys::wait(child as i64, 0)), (child, 5 << 8));
    }
    polls_and_reads_wait_for_signals {
        let set = signals(&[libc::SIGUSR1]);
        ok!(block(set));
        let fd = ok!(signal_file(-1, set, 0));
        let e = ok!(sc!(SYS_epoll_create1, 0));
        let event = [libc::EPOLLIN as u32, 7, 0];
        ok!(sc!(SYS_epoll_ctl, e, libc::EPOLL_CTL_ADD, fd, event.as_ptr()));
        let mut bytes = [0u8; 128];
        let child = ok!(signal_soon());
        is!(ok!(ready(fd, 5000)), true);
        is!(ok!(sys::read(fd, &mut bytes)), 128);
        ok!(sys::wait(child as i64, 0));
        let child = ok!(signal_soon());
        is!(ok!(sc!(SYS_epoll_wait, e, [0u32; 3].as_mut_ptr(), 1, 5000)), 1);
        is!(ok!(sys::read(fd, &mut bytes)), 128);
        ok!(sys::wait(child as i64, 0));
        let child = ok!(signal_soon());
        is!(ok!(sys::read(fd, &mut bytes)), 128);
        ok!(sys::wait(child as i64, 0));
        // Another signal interrupts the read.
        ok!(sys::on_signal(libc::SIGALRM, nothing as *const () as usize, 0));
        let timer = [0i64, 0, 0, 20_000];
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, timer.as_ptr(), 0));
        fails!(sys::read(fd, &mut bytes), EINTR);
    }
    arguments_of_signal_files {
        let set = signals(&[libc::SIGUSR1, libc::SIGKILL]);
        fails!(signal_file(-1, set, 1), EINVAL);
        fails!(sc!(SYS_signalfd4, -1i64, [set].as_ptr(), 4, 0), EINVAL);
        fails!(sc!(SYS_signalfd4, -1i64, 8, 8, 0), EFAULT);
        fails!(signal_file(999, set, 0), EBADF);
        let (from, _) = ok!(sys::pipe(0));
        fails!(signal_file(from, set, 0), EINVAL);
        let fd = ok!(signal_file(-1, set, libc::SFD_CLOEXEC));
        is!(ok!(sc!(SYS_fcntl, fd, libc::F_GETFD)), 1);
        fails!(sys::read(fd, &mut [0; 127]), EINVAL);
        fails!(sys::write(fd, &[0; 128]), EINVAL);
        is!(ok!(sc!(SYS_signalfd, -1i64, [set].as_ptr(), 8)), fd as u64 + 1);
        is!(link(fd), "anon_inode:[signalfd]");
    }
}
