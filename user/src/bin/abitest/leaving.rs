//! Threads that leave while others of their process stay, and groups whose members fork meanwhile.

use crate::harness::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

/// Entries of the list of robust futexes of a thread that takes long to leave.
const ENTRIES: u64 = 2000;

/// Ends the calling thread, with a list of robust futexes that the kernel has to go through first; says so in `leaving`.
fn leave_slowly(leaving: u64) -> ! {
    let list = anon(ENTRIES).unwrap_or(0);
    let words = anon(ENTRIES).unwrap_or(0);
    let head = Box::leak(Box::new([list, words.wrapping_sub(list), 0u64]));
    let first = head.as_ptr() as u64;
    for n in 0..ENTRIES {
        let next = if n + 1 < ENTRIES {
            list + (n + 1) * PAGE
        } else {
            first
        };
        sys::poke64(list + n * PAGE, next);
    }
    let _ = sc!(SYS_set_robust_list, first, 24);
    sys::poke64(leaving, 1);
    loop {
        let _ = sc!(SYS_exit, 0);
    }
}

extern "C" fn woken(_: i32) {
    sys::exit(0);
}

static LEFT: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicU64 = AtomicU64::new(0);

fn cpu_ns() -> u64 {
    let mut time = [0u64; 2];
    let _ = sc!(
        SYS_clock_gettime,
        libc::CLOCK_PROCESS_CPUTIME_ID,
        time.as_mut_ptr()
    );
    time[0] * 1_000_000_000 + time[1]
}

tests! { "leaving";
    // The first thread is asked first for a signal to the process; it is on its way out and takes none.
    a_signal_that_comes_while_a_thread_leaves_reaches_another {
        let word = ok!(sys::mmap(0, PAGE, RW, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0));
        for _ in 0..6 {
            sys::poke64(word, 0);
            let pid = ok!(sys::fork());
            if pid == 0 {
                let _ = sys::on_signal(libc::SIGUSR1, woken as *const () as usize, 0);
                std::thread::spawn(|| loop { let _ = sc!(SYS_pause); });
                nap_us(20_000);
                leave_slowly(word);
            }
            while sys::peek64(word) == 0 { std::hint::spin_loop(); }
            ok!(sc!(SYS_kill, pid, libc::SIGUSR1));
            let over = within(10, || matches!(sys::wait(pid as i64, libc::WNOHANG), Ok((got, 0)) if got == pid));
            let _ = sc!(SYS_kill, pid, libc::SIGKILL);
            holds!(over);
        }
    }
    the_time_of_a_process_grows_while_its_threads_end {
        const THREADS: u64 = 60;
        for _ in 0..6 {
            LEFT.store(THREADS, SeqCst);
            STOP.store(0, SeqCst);
            for n in 0..THREADS {
                std::thread::spawn(move || {
                    while STOP.load(SeqCst) == 0 { nap_us(1000 + 10 * n); }
                    LEFT.fetch_sub(1, SeqCst);
                });
            }
            let burner = std::thread::spawn(|| while LEFT.load(SeqCst) > 0 { std::hint::spin_loop(); });
            STOP.store(1, SeqCst);
            let mut last = cpu_ns();
            while LEFT.load(SeqCst) > 0 {
                let now = cpu_ns();
                holds!(now >= last);
                last = now;
            }
            holds!(burner.join().is_ok());
        }
    }
    // Children of members that have got it do not count as missed.
    a_signal_to_a_group_that_forks_has_an_end {
        const IDLE: u64 = 200;
        const FORKING: u64 = 3;
        let pid = ok!(sys::fork());
        if pid == 0 {
            let _ = sc!(SYS_setpgid, 0, 0);
            for n in 0..IDLE + FORKING {
                if sys::fork() != Ok(0) { continue; }
                if n < IDLE {
                    loop { let _ = sc!(SYS_pause); }
                }
                loop {
                    match sys::fork() {
                        Ok(0) => sys::exit(0),
                        Ok(child) => { let _ = sys::wait(child as i64, 0); }
                        Err(_) => {}
                    }
                }
            }
            loop { let _ = sc!(SYS_pause); }
        }
        let group = (pid as i64).wrapping_neg();
        let _ = sc!(SYS_setpgid, pid, pid);
        nap_us(50_000);
        for _ in 0..50 { ok!(sc!(SYS_kill, group, libc::SIGWINCH)); }
        ok!(sc!(SYS_kill, group, libc::SIGKILL));
        is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL));
    }
}
