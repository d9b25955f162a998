//! Threads that exit while others of their process live, and groups whose members fork meanwhile.

use crate::harness::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use user::sys;

/// Entries in the list of robust futexes of a thread whose exit takes long.
const ENTRIES: u64 = 2000;

/// Ends the calling thread, which has a list of robust futexes that the kernel walks first; sets `leaving` before.
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

/// A process whose leader blocks `signal` or does not, and exits. Then its other thread, which blocks the signal, sends
/// it to the process, waits for it with sigwait, and ends the process with the signal's number. Returns the process's
/// status.
fn wait_for_signal_of_leader(signal: i32, held_back: bool) -> Result<i32, i32> {
    let pid = sys::fork()?;
    if pid == 0 {
        let set = [1u64 << (signal - 1)];
        let mask = |how: i32| sc!(SYS_rt_sigprocmask, how, set.as_ptr(), 0, 8);
        let word: &'static AtomicU64 = Box::leak(Box::new(AtomicU64::new(1)));
        let _ = mask(libc::SIG_BLOCK);
        std::thread::spawn(move || {
            while word.load(SeqCst) != 0 {
                std::hint::spin_loop();
            }
            // If the leader must have exited before, the signal is not sent at once.
            if held_back {
                nap_us(10_000);
            }
            let _ = sc!(SYS_kill, std::process::id(), signal);
            let got = sc!(SYS_rt_sigtimedwait, set.as_ptr(), 0, [1u64, 0].as_ptr(), 8);
            sys::exit(got.unwrap_or(99) as i32)
        });
        if !held_back {
            let _ = mask(libc::SIG_UNBLOCK);
        }
        let _ = sc!(SYS_set_tid_address, word.as_ptr());
        loop {
            let _ = sc!(SYS_exit, 0);
        }
    }
    Ok(sys::wait(pid as i64, 0)?.1)
}

/// Creates children, one after the other, that end at once.
fn fork_for_ever() -> ! {
    loop {
        match sys::fork() {
            Ok(0) => sys::exit(0),
            Ok(child) => {
                let _ = sys::wait(child as i64, 0);
            }
            Err(_) => {}
        }
    }
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
    // The kernel tries the first thread first for a signal to the process; that thread is exiting and takes none.
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
    a_thread_made_by_vfork_keeps_only_its_maker_until_it_ends {
        let end = sys::now_ns() + 2_000_000_000;
        let at: &'static _ = Box::leak(Box::new(libc::timespec { tv_sec: (end / 1_000_000_000) as i64, tv_nsec: (end % 1_000_000_000) as i64 }));
        let thread = libc::CLONE_SIGHAND | libc::CLONE_THREAD | libc::CLONE_VFORK;
        let maker = std::thread::spawn(move || sys::clone_asleep(thread, at).map(|_| sys::now_ns()));
        // The process's other threads go on meanwhile, and so do threads that it makes without vfork.
        holds!(std::thread::spawn(|| ()).join().is_ok());
        holds!(sys::now_ns() < end);
        let over = within(10, || maker.is_finished());
        holds!(over);
        holds!(matches!(maker.join(), Ok(Ok(then)) if then >= end));
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
    // The leader does not block the signal, but exits and takes no signal any more; the other thread blocks it, and
    // waits for it.
    a_signal_that_only_a_leaving_thread_lets_in_ends_nothing {
        for _ in 0..100 {
            is!(ok!(wait_for_signal_of_leader(libc::SIGTERM, false)), libc::SIGTERM << 8);
        }
    }
    what_a_leader_held_back_is_kept_when_it_has_gone {
        for signal in [libc::SIGURG, libc::SIGWINCH, libc::SIGCONT, libc::SIGCHLD] {
            is!(ok!(wait_for_signal_of_leader(signal, true)), signal << 8);
        }
    }
    // Later ticks change how time is divided between user and system.
    neither_part_of_cpu_time_gets_less {
        let began = sys::now_ns();
        let mut last = [0u64; 2];
        while sys::now_ns() - began < 500_000_000 {
            for _ in 0..200 { std::hint::spin_loop(); }
            let mut usage = [0u64; 18];
            ok!(sc!(SYS_getrusage, libc::RUSAGE_THREAD, usage.as_mut_ptr()));
            let now = [usage[0] * 1_000_000 + usage[1], usage[2] * 1_000_000 + usage[3]];
            holds!(now[0] >= last[0] && now[1] >= last[1]);
            last = now;
        }
    }
    // Forking processes have always run only for a short time.
    who_computes_is_not_starved_by_those_who_fork {
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        for _ in 0..4 {
            if ok!(sys::fork()) != 0 { continue; }
            fork_for_ever();
        }
        let began = sys::now_ns();
        let (before, mut longest, mut last) = (cpu_ns(), 0, began);
        while last - began < 3_000_000_000 {
            let now = sys::now_ns();
            longest = longest.max(now - last);
            last = now;
        }
        let share = (cpu_ns() - before) * 100 / (last - began);
        if share < 4 { return Err(format!("{share} % of a CPU, without it for {longest} ns")); }
    }
    what_was_waited_for_is_gone_at_once {
        // By polling, the parent finds the zombie before the child has left its CPU. A shell that waits until a pid no
        // longer exists would sleep for ever if the pid existed still after the wait.
        let mask = [0u64; 16];
        for _ in 0..100 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                sys::exit(0);
            }
            while ok!(sys::wait(pid as i64, libc::WNOHANG)).0 == 0 {}
            fails!(sc!(SYS_kill, pid, 0), ESRCH);
            fails!(sc!(SYS_tkill, pid, 0), ESRCH);
            fails!(sc!(SYS_getpgid, pid), ESRCH);
            fails!(sc!(SYS_sched_getaffinity, pid, 128, mask.as_ptr()), ESRCH);
            fails!(sc!(SYS_access, path(&format!("/proc/{pid}")), 0), ENOENT);
        }
    }
    // Children forked by members that have already got the signal do not count as missed.
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
                fork_for_ever();
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
