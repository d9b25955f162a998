//! Clocks, sleeps and interval timers.

use crate::harness::*;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Instant, SystemTime};
use user::sys;

static TICKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn tick(_: i32) {
    TICKS.fetch_add(1, SeqCst);
}

fn clock(id: i32) -> Result<u64, i32> {
    let mut ts = [0u64; 2];
    sc!(SYS_clock_gettime, id, ts.as_mut_ptr())?;
    Ok(ts[0] * 1_000_000_000 + ts[1])
}

/// Real time, as the C library reads it: by the object that the kernel maps.
fn library_time() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

/// What the auxiliary vector says.
fn in_vector(tag: u64) -> Option<u64> {
    let bytes = std::fs::read("/proc/self/auxv").ok()?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
        .collect();
    words
        .chunks_exact(2)
        .find(|pair| pair[0] == tag)
        .map(|pair| pair[1])
}

tests! { "time";
    the_library_reads_the_clock_that_the_kernel_reads {
        for _ in 0..2000 {
            let before = ok!(clock(libc::CLOCK_REALTIME));
            let read = library_time();
            let after = ok!(clock(libc::CLOCK_REALTIME));
            holds!(before <= read && read <= after);
        }
    }
    the_library_reads_monotonic_time_on_every_cpu {
        let mut last = Instant::now();
        for _ in 0..50 {
            for cpu in sys::cpus() {
                ok!(sys::tie_to_cpu(cpu));
                let now = Instant::now();
                holds!(now >= last);
                last = now;
            }
        }
    }
    the_library_finds_that_real_time_was_set {
        let set = |ns: u64| {
            let ts = [ns / 1_000_000_000, ns % 1_000_000_000];
            sc!(SYS_clock_settime, libc::CLOCK_REALTIME, ts.as_ptr())
        };
        let ahead = 5_000_000_000;
        let to = ok!(clock(libc::CLOCK_REALTIME)) + ahead;
        // Only root may.
        if set(to) == Err(libc::EPERM) { return Ok(()); }
        let read = library_time();
        ok!(set(ok!(clock(libc::CLOCK_REALTIME)) - ahead));
        holds!(read >= to);
        holds!(library_time() < read);
    }
    the_kernels_object_is_mapped_where_the_vector_says {
        let at = in_vector(33).unwrap_or(0);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap_or_default();
        holds!(at != 0 && line.starts_with(&format!("{at:x}-")) && line.contains(" r-xp "));
        is!(sys::peek64(at) as u32, u32::from_le_bytes(*b"\x7fELF"));
        // A child has it, too, and may take it away.
        is!(in_child(|| i32::from(library_time() == 0))?, 0);
        is!(in_child(move || i32::from(sc!(SYS_munmap, at, 8192).is_err()))?, 0);
    }
    clocks_advance {
        for id in [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME, libc::CLOCK_MONOTONIC_RAW] {
            let before = ok!(clock(id));
            nap_us(2000);
            let after = ok!(clock(id));
            holds!(after - before >= 2_000_000);
            holds!(after - before < 5_000_000_000);
        }
        ok!(clock(libc::CLOCK_PROCESS_CPUTIME_ID));
        ok!(clock(libc::CLOCK_THREAD_CPUTIME_ID));
        ok!(clock(libc::CLOCK_MONOTONIC_COARSE));
    }
    monotonic_on_every_cpu {
        let mut last = 0;
        for _ in 0..50 {
            for cpu in sys::cpus() {
                ok!(sys::tie_to_cpu(cpu));
                let now = ok!(clock(libc::CLOCK_MONOTONIC));
                holds!(now >= last);
                last = now;
            }
        }
    }
    the_year_is_plausible { holds!(ok!(clock(libc::CLOCK_REALTIME)) / 1_000_000_000 > 1_600_000_000); }
    clock_arguments {
        fails!(clock(99), EINVAL);
        fails!(sc!(SYS_clock_gettime, libc::CLOCK_MONOTONIC, 8), EFAULT);
        let mut ts = [9u64; 2];
        ok!(sc!(SYS_clock_getres, libc::CLOCK_MONOTONIC, ts.as_mut_ptr()));
        is!(ts[0], 0);
        holds!(ts[1] > 0 && ts[1] < 100_000_000);
    }
    gettimeofday_agrees {
        let mut tv = [0u64; 2];
        ok!(sc!(SYS_gettimeofday, tv.as_mut_ptr(), 0));
        let real = ok!(clock(libc::CLOCK_REALTIME));
        holds!(real / 1_000_000_000 - tv[0] < 5);
        let seconds = ok!(sc!(SYS_time, 0));
        holds!(seconds - tv[0] < 5);
    }
    sleeps_are_not_short {
        for ns in [0u64, 1, 100_000, 3_000_000, 20_000_000] {
            let began = sys::now_ns();
            ok!(sc!(SYS_nanosleep, [0, ns].as_ptr(), 0));
            holds!(sys::now_ns() - began >= ns);
        }
    }
    sleep_until {
        let end = sys::now_ns() + 10_000_000;
        let time = [end / 1_000_000_000, end % 1_000_000_000];
        ok!(sc!(SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, time.as_ptr(), 0));
        holds!(sys::now_ns() >= end);
        ok!(sc!(SYS_clock_nanosleep, libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, [1u64, 0].as_ptr(), 0));
    }
    sleep_arguments {
        fails!(sc!(SYS_nanosleep, [0u64, 1_000_000_000].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_nanosleep, [-1i64 as u64, 0].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_nanosleep, 8, 0), EFAULT);
        fails!(sc!(SYS_clock_nanosleep, 99, 0, [0u64, 1].as_ptr(), 0), EINVAL);
    }
    interval_timer_repeats {
        ok!(sys::on_signal(libc::SIGALRM, tick as *const () as usize, 0));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 5000, 0, 5000].as_ptr(), 0));
        holds!(soon(|| TICKS.load(SeqCst) >= 5));
        let mut left = [0u64; 4];
        ok!(sc!(SYS_getitimer, libc::ITIMER_REAL, left.as_mut_ptr()));
        is!([left[0], left[1], left[2]], [0, 5000, 0]);
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64; 4].as_ptr(), 0));
        fails!(sc!(SYS_setitimer, 99, [0u64; 4].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 0, 0, 1_000_000].as_ptr(), 0), EINVAL);
    }
    interval_timer_is_set_by_all_threads {
        ok!(sys::on_signal(libc::SIGALRM, tick as *const () as usize, libc::SA_RESTART));
        let threads: Vec<_> = (0..4u64).map(|i| std::thread::spawn(move || for turn in 0..5000u64 {
            let us = (turn * 7 + i * 13) % 60;
            let _ = sc!(SYS_setitimer, libc::ITIMER_REAL, [0, us % 40, 0, us].as_ptr(), 0);
        })).collect();
        for thread in threads { holds!(thread.join().is_ok()); }
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64; 4].as_ptr(), 0));
        // A timer set to zero does not fire any more.
        nap_us(2000);
        let before = TICKS.load(SeqCst);
        nap_us(10_000);
        is!(TICKS.load(SeqCst), before);
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 0, 0, 3000].as_ptr(), 0));
        holds!(soon(|| TICKS.load(SeqCst) == before + 1));
    }
    interval_timer_starts_again_when_its_signal_is_taken {
        ok!(sys::on_signal(libc::SIGALRM, tick as *const () as usize, 0));
        let alarm = 1u64 << (libc::SIGALRM - 1);
        ok!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const alarm, 0, 8));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 1000, 0, 1000].as_ptr(), 0));
        nap_us(20_000);
        let mut left = [9u64; 4];
        ok!(sc!(SYS_getitimer, libc::ITIMER_REAL, left.as_mut_ptr()));
        is!(left, [0, 1000, 0, 0]);
        is!(TICKS.load(SeqCst), 0);
        ok!(sc!(SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const alarm, 0, 8));
        holds!(soon(|| TICKS.load(SeqCst) >= 3));
    }
    short_interval_timers_leave_the_cpus_to_others {
        ok!(sys::default_signal(libc::SIGALRM));
        let alarm = 1u64 << (libc::SIGALRM - 1);
        ok!(sc!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const alarm, 0, 8));
        ok!(sys::tie_to_cpu(sys::cpus()[0]));
        let mut pids = Vec::new();
        for _ in 0..100 {
            let pid = ok!(sys::fork());
            if pid == 0 {
                let _ = sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 1, 0, 1].as_ptr(), 0);
                loop { nap_us(1_000_000); }
            }
            pids.push(pid);
        }
        let began = sys::now_ns();
        for _ in 0..20 { nap_us(1000); }
        holds!(sys::now_ns() - began < 5_000_000_000);
        for pid in pids {
            ok!(sc!(SYS_kill, pid, libc::SIGKILL));
            is!(ok!(sys::wait(pid as i64, 0)), (pid, libc::SIGKILL));
        }
    }
    the_longest_times {
        const LAST: u64 = i64::MAX as u64;
        let fd = file_with(b"x")?;
        for end in [LAST, i64::MIN as u64] {
            ok!(sc!(SYS_utimensat, fd, 0, [end, 0, end, 0].as_ptr(), 0));
            is!(ok!(sc!(SYS_pread64, fd, [0u8; 1].as_mut_ptr(), 1, 0)), 1);
            ok!(sc!(SYS_fstat, fd, [0u64; 32].as_mut_ptr()));
        }
        fails!(sc!(SYS_clock_settime, libc::CLOCK_REALTIME, [LAST, 0].as_ptr()), EINVAL);
        fails!(sc!(SYS_clock_settime, libc::CLOCK_REALTIME, [0u64, 0].as_ptr()), EINVAL);
        ok!(sys::on_signal(libc::SIGALRM, tick as *const () as usize, 0));
        // Again and again, as the first one may come before the call that it is to end.
        let soon = || sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 20_000, 0, 5000].as_ptr(), 0);
        ok!(soon());
        fails!(sc!(SYS_nanosleep, [LAST, 0].as_ptr(), 0), EINTR);
        for clock in [libc::CLOCK_REALTIME, libc::CLOCK_MONOTONIC] {
            ok!(soon());
            fails!(sc!(SYS_clock_nanosleep, clock, libc::TIMER_ABSTIME, [LAST, 999_999_999].as_ptr(), 0), EINTR);
        }
        ok!(soon());
        let word = ok!(anon(1));
        fails!(sc!(SYS_futex, word, libc::FUTEX_WAIT, 0, [LAST, 0].as_ptr()), EINTR);
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [LAST, 0, LAST, 0].as_ptr(), 0));
        ok!(sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64; 4].as_ptr(), 0));
    }
    alarm_is_replaced {
        is!(ok!(sc!(SYS_alarm, 100)), 0);
        holds!(matches!(ok!(sc!(SYS_alarm, 0)), 99 | 100));
        is!(ok!(sc!(SYS_alarm, 0)), 0);
        is!(in_child(|| {
            let _ = sys::default_signal(libc::SIGALRM);
            let _ = sc!(SYS_setitimer, libc::ITIMER_REAL, [0u64, 0, 0, 1000].as_ptr(), 0);
            nap_us(5_000_000);
            0
        })?, libc::SIGALRM);
    }
    cpu_time_counts_work {
        let before = ok!(clock(libc::CLOCK_PROCESS_CPUTIME_ID));
        let began = sys::now_ns();
        while sys::now_ns() - began < 60_000_000 { std::hint::spin_loop(); }
        holds!(ok!(clock(libc::CLOCK_PROCESS_CPUTIME_ID)) > before);
    }
}
