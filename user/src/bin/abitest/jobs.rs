//! Stopping and continuing: races between signals of job control, and processes of several threads.

use crate::harness::*;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use user::sys;

/// A child that runs `f`; dead when the value goes.
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

    /// Waits until it reports a stop or a continuation; the raw status.
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
    // SIGCONT comes when the child has taken SIGSTOP off its queue and has not stopped yet.
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
    // Of threads that are told to go on and to stop again, none runs on in user mode.
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
    // A thread that is killed while it is stopped is not counted among those that have stopped.
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
}
