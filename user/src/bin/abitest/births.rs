//! Signals that meet the making of processes.

use crate::harness::*;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use user::sys;

static TAKEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn take(_: i32) {
    TAKEN.fetch_add(1, SeqCst);
}

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

/// Forks until a signal to the group has been taken. False if a child did not get the signal although it was made before.
fn children_get_it_too() -> bool {
    let mut children = Vec::new();
    while TAKEN.load(SeqCst) == 0 && children.len() < 100 {
        match sys::fork() {
            // The child has taken it itself, or has a copy of the count from after its parent had.
            Ok(0) => sys::exit(i32::from(!soon(|| TAKEN.load(SeqCst) > 0))),
            Ok(pid) => children.push(pid),
            Err(_) => return false,
        }
    }
    children
        .iter()
        .all(|&pid| sys::wait(pid as i64, 0) == Ok((pid, 0)))
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
    // A process that has a signal to its group and has not taken it makes no child that misses it.
    a_child_made_when_a_signal_to_the_group_comes_gets_it {
        for round in 0..20u64 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                let _ = sys::on_signal(libc::SIGUSR1, take as *const () as usize, 0);
                let _ = sc!(SYS_setpgid, 0, 0);
                sys::exit(i32::from(!children_get_it_too()));
            }
            holds!(soon(|| sc!(SYS_getpgid, pid) == Ok(pid)));
            nap_us(500 + round * 170);
            ok!(sc!(SYS_kill, -(pid as i64), libc::SIGUSR1));
            is!(ok!(sys::wait(pid as i64, 0)), (pid, 0));
        }
    }
}
