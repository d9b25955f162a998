//! Signals that meet the making of processes.

use crate::harness::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

/// Waits for `pid`, at most two seconds; its raw status.
fn status_soon(pid: u64) -> Option<i32> {
    let mut status = None;
    for _ in 0..2000 {
        match sys::wait(pid as i64, libc::WNOHANG) {
            Ok((0, _)) => nap_us(1000),
            Ok((_, got)) => status = Some(got),
            Err(_) => break,
        }
    }
    status
}

tests! { "births";
    // Two threads guess the id of the next child, and kill it while it is being made.
    a_child_that_is_killed_while_it_is_made_ends {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // The test's own threads.
        static OWN: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
        OWN[0].store(ok!(sc!(SYS_gettid)), SeqCst);
        // An id that is not guessed right belongs to no process that this user may kill.
        ok!(sys::become_user(4321, &[]));
        for n in 1..3 {
            let cpus = sys::cpus();
            let cpu = cpus[n % cpus.len()];
            std::thread::spawn(move || {
                let _ = sys::tie_to_cpu(cpu);
                OWN[n].store(sc!(SYS_gettid).unwrap_or(0), SeqCst);
                loop {
                    let next = LAST.load(SeqCst) + 1;
                    if next > 1 && OWN.iter().all(|own| own.load(SeqCst) != next) {
                        let _ = sc!(SYS_kill, next, libc::SIGKILL);
                    }
                }
            });
        }
        // Each CPU gives ids of its own.
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let began = sys::now_ns();
        while sys::now_ns() - began < 700_000_000 {
            let pid = ok!(sys::fork());
            if pid == 0 { loop { let _ = sc!(SYS_pause); } }
            LAST.store(pid, SeqCst);
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            is!(status_soon(pid), Some(libc::SIGKILL));
        }
    }
}
