//! Stopping and continuing: races between signals of job control, and processes of several threads.

use crate::harness::*;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use user::sys;

/// A child that runs `f`; it is killed when the value is dropped.
struct Child(u64);

impl Child {
    fn new(f: impl FnOnce()) -> Result<Child, i32> {
        let pid = sys::fork()?;
        if pid == 0 {
            f();
            sys::exit(0);
        }
        Ok(Child(pid))
    }

    fn send(&self, signal: i32) -> Result<u64, i32> {
        sc!(SYS_kill, self.0, signal)
    }

    /// Waits until the child reports a stop or a continuation; returns the raw status.
    fn report(&self, options: i32) -> Result<i32, i32> {
        Ok(sys::wait(self.0 as i64, options)?.1)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.send(libc::SIGKILL);
        let _ = sys::wait(self.0 as i64, 0);
    }
}

const STOPPED: i32 = libc::SIGSTOP << 8 | 0x7f;
const CONTINUED: i32 = 0xffff;

/// Sleeps in the kernel until it is killed.
fn sleep_for_ever() {
    loop {
        nap_us(1_000_000_000);
    }
}

/// Runs in user mode until it is killed.
fn spin_for_ever() {
    static SPINS: AtomicU32 = AtomicU32::new(0);
    loop {
        SPINS.fetch_add(1, SeqCst);
    }
}

tests! { "jobs";
    // A thread that has not run since the first stop takes part in the second.
    a_stop_right_after_a_continuation_is_reported {
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let child = ok!(Child::new(|| {
            for _ in 0..3 {
                std::thread::spawn(sleep_for_ever);
            }
            sleep_for_ever();
        }));
        for _ in 0..10 {
            ok!(child.send(libc::SIGSTOP));
            is!(ok!(child.report(libc::WUNTRACED)), STOPPED);
            ok!(child.send(libc::SIGCONT));
            ok!(child.send(libc::SIGSTOP));
            is!(ok!(child.report(libc::WUNTRACED)), STOPPED);
            ok!(child.send(libc::SIGCONT));
            is!(ok!(child.report(libc::WCONTINUED)), CONTINUED);
        }
    }
    // SIGCONT comes after the child has dequeued SIGSTOP and before it has stopped.
    a_continuation_is_never_lost {
        let (ask, asked) = (ok!(sys::pipe(0)), ok!(sys::pipe(0)));
        let child = ok!(Child::new(|| loop {
            let _ = sys::read(ask.0, &mut [0]);
            let _ = sys::write(asked.1, &[0]);
        }));
        for round in 0..300u64 {
            ok!(child.send(libc::SIGSTOP));
            for _ in 0..round % 50 * 40 {
                std::hint::spin_loop();
            }
            ok!(child.send(libc::SIGCONT));
            is!(sys::write(ask.1, &[0]), Ok(1));
            is!(sys::read(asked.0, &mut [0]), Ok(1));
        }
    }
    // If threads are continued and stopped again, none of them keeps running in user mode.
    no_thread_escapes_a_stop {
        let child = ok!(Child::new(|| {
            for _ in 0..2 {
                std::thread::spawn(spin_for_ever);
            }
            spin_for_ever();
        }));
        for round in 0..60u64 {
            ok!(child.send(libc::SIGSTOP));
            is!(ok!(child.report(libc::WUNTRACED)), STOPPED);
            ok!(child.send(libc::SIGCONT));
            for _ in 0..(round * 131) % 3000 {
                std::hint::spin_loop();
            }
        }
    }
    // A thread that is killed while it is stopped no longer counts as stopped.
    a_stopped_process_can_be_killed {
        for _ in 0..10 {
            let child = ok!(Child::new(|| {
                std::thread::spawn(sleep_for_ever);
                sleep_for_ever();
            }));
            ok!(child.send(libc::SIGSTOP));
            is!(ok!(child.report(libc::WUNTRACED)), STOPPED);
            ok!(child.send(libc::SIGKILL));
            is!(ok!(child.report(0)), libc::SIGKILL);
        }
    }
    a_new_parent_hears_of_a_stop_from_before {
        ok!(sc!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1));
        let middle = ok!(sys::fork());
        if middle == 0 {
            let child = sys::fork().unwrap_or(0);
            if child == 0 {
                // In a group of its own, which its new parent can continue.
                let _ = sc!(SYS_setpgid, 0, 0);
                let _ = sc!(SYS_kill, sc!(SYS_getpid).unwrap_or(0), libc::SIGSTOP);
                sys::exit(3);
            }
            let heard = sc!(SYS_waitid, libc::P_PID, child, 0, libc::WSTOPPED | libc::WNOWAIT, 0);
            sys::exit(i32::from(heard.is_err()));
        }
        is!(ok!(sys::wait(middle as i64, 0)), (middle, 0));
        let (mut pid, mut status) = (0, 0);
        for _ in 0..100 {
            (pid, status) = ok!(sys::wait(-1, libc::WUNTRACED | libc::WNOHANG));
            if pid != 0 { break; }
            nap_us(5_000);
        }
        is!(status, libc::SIGSTOP << 8 | 0x7f);
        ok!(sc!(SYS_kill, pid, libc::SIGCONT));
        is!(ok!(sys::wait(-1, 0)), (pid, 3 << 8));
    }
    a_stop_is_heard_of_whatever_others_do {
        let at = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        let round = sys::atomic(at);
        let still = ok!(sys::fork());
        if still == 0 { loop { nap_us(1_000_000); } }
        ok!(sc!(SYS_kill, still, libc::SIGSTOP));
        let mut info = [0i32; 32];
        ok!(sc!(SYS_waitid, libc::P_ALL, 0, info.as_mut_ptr(), libc::WSTOPPED | libc::WNOWAIT, 0));
        let other = ok!(sys::fork());
        if other == 0 {
            for n in 1.. {
                while round.load(SeqCst) < n { std::hint::spin_loop(); }
                let _ = sc!(SYS_kill, sc!(SYS_getpid).unwrap_or(0), libc::SIGSTOP);
            }
        }
        let end = sys::now_ns() + 1_000_000_000;
        while sys::now_ns() < end {
            round.fetch_add(1, SeqCst);
            while ok!(sys::wait(other as i64, libc::WUNTRACED | libc::WNOHANG)).0 != other {}
            ok!(sc!(SYS_kill, other, libc::SIGCONT));
            while ok!(sys::wait(other as i64, libc::WCONTINUED | libc::WNOHANG)).0 != other {}
            info = [0; 32];
            ok!(sc!(SYS_waitid, libc::P_ALL, 0, info.as_mut_ptr(), libc::WSTOPPED | libc::WNOWAIT | libc::WNOHANG, 0));
            is!(info[4], still as i32);
        }
        for pid in [still, other] {
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL));
        }
    }
    threads_that_are_born_meanwhile_stop_too {
        for n in 0..10 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                for _ in 0..20 { std::thread::spawn(|| loop { nap_us(1_000_000); }); }
                loop { nap_us(1_000_000); }
            }
            nap_us(n * 600);
            ok!(sc!(SYS_kill, pid, libc::SIGSTOP));
            let stopped = || sys::wait(pid as i64, libc::WUNTRACED | libc::WNOHANG) == Ok((pid, libc::SIGSTOP << 8 | 0x7f));
            holds!(soon(stopped));
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL));
        }
    }
    // Each process of the group forks another and ends, without end: the group is never at rest.
    a_group_that_forks_all_the_time_is_killed_whole {
        ok!(sc!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1));
        for round in 0..30u64 {
            let first = ok!(sys::fork());
            if first == 0 {
                let _ = sc!(SYS_setpgid, 0, 0);
                for _ in 0..3 {
                    if sys::fork() == Ok(0) { break; }
                }
                loop {
                    match sys::fork() {
                        Ok(0) => {}
                        _ => sys::exit(0),
                    }
                }
            }
            let _ = sc!(SYS_setpgid, first, first);
            nap_us(2000 + round * 100);
            ok!(sc!(SYS_kill, -(first as i64), libc::SIGKILL));
            // All of them end: none remains that could fork.
            let gone = || {
                while sys::wait(-1, libc::WNOHANG).is_ok_and(|(pid, _)| pid != 0) {}
                sc!(SYS_kill, -(first as i64), 0) == Err(libc::ESRCH)
            };
            holds!(soon(gone));
        }
    }
    // The same, for the signal that goes to all processes that a user may kill.
    all_that_fork_all_the_time_are_killed {
        ok!(sc!(SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1));
        ok!(sys::become_user(4322, &[]));
        for round in 0..20u64 {
            let first = ok!(sys::fork());
            if first == 0 {
                let _ = sc!(SYS_setpgid, 0, 0);
                for _ in 0..7 {
                    if sys::fork() == Ok(0) { break; }
                }
                while let Ok(0) = sys::fork() {}
                sys::exit(0);
            }
            let _ = sc!(SYS_setpgid, first, first);
            nap_us(2000 + round * 100);
            ok!(sc!(SYS_kill, -1i64, libc::SIGKILL));
            let gone = || {
                while sys::wait(-1, libc::WNOHANG).is_ok_and(|(pid, _)| pid != 0) {}
                sc!(SYS_kill, -(first as i64), 0) == Err(libc::ESRCH)
            };
            let whole = soon(gone);
            let _ = sc!(SYS_kill, -(first as i64), libc::SIGKILL);
            holds!(whole);
        }
    }
    // A child that a handler forks does not get the signal that the handler handles.
    a_handler_s_children_are_spared {
        extern "C" fn fork_one(_: i32) {
            let child = sys::fork().unwrap_or(0);
            if child == 0 {
                nap_us(3000);
                sys::exit(7);
            }
            let status = sys::wait(child as i64, 0).map_or(1, |(_, status)| status);
            sys::exit(if status == 7 << 8 { 0 } else { 9 });
        }
        for _ in 0..20 {
            let mut members = Vec::new();
            for _ in 0..4 {
                let group = members.first().copied().unwrap_or(0);
                let pid = ok!(sys::fork());
                if pid == 0 {
                    let _ = sys::on_signal(libc::SIGUSR1, fork_one as *const () as usize, 0);
                    let _ = sc!(SYS_setpgid, 0, group);
                    sleep_for_ever();
                }
                holds!(soon(|| sc!(SYS_getpgid, pid) == Ok(members.first().copied().unwrap_or(pid))));
                members.push(pid);
            }
            ok!(sc!(SYS_kill, -(members[0] as i64), libc::SIGUSR1));
            for pid in members {
                is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
            }
        }
    }
}
