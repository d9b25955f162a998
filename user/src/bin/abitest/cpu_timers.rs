//! POSIX timers and sleeps by clocks of CPU time.

use crate::harness::*;
use crate::timers::{MS, SIGNAL, TIMER, block, create, get, nothing, set, take};
use user::sys;

const PROCESS: i32 = libc::CLOCK_PROCESS_CPUTIME_ID;
const THREAD: i32 = libc::CLOCK_THREAD_CPUTIME_ID;
/// Kinds of clocks that have the id of a process in their numbers, and the bit for a thread's.
const PROF: i32 = 0;
const VIRT: i32 = 1;
const SCHED: i32 = 2;
const PER_THREAD: i32 = 4;

fn clock_of(id: u64, kind: i32) -> i32 {
    !(id as i32) << 3 | kind
}

/// What a clock shows, in nanoseconds.
fn clock(number: i32) -> Result<i64, i32> {
    let mut now = [0i64; 2];
    sc!(SYS_clock_gettime, number, now.as_mut_ptr())?;
    Ok(now[0] * 1000 * MS + now[1])
}

/// Uses CPU time of the calling thread until its clock has gone on by that.
fn use_time(ns: i64) -> Result<(), i32> {
    let end = clock(THREAD)? + ns;
    while clock(THREAD)? < end {}
    Ok(())
}

/// A child that uses CPU time until it is killed.
fn busy_child() -> Result<u64, i32> {
    let child = sys::fork()?;
    if child == 0 {
        let _ = sc!(SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        loop {
            std::hint::spin_loop();
        }
    }
    Ok(child)
}

fn end_child(child: u64) -> Result<(), i32> {
    sc!(SYS_kill, child, libc::SIGKILL)?;
    sys::wait(child as i64, 0)?;
    Ok(())
}

fn sleep(number: i32, flags: i32, ns: i64, left: &mut [i64; 2]) -> Result<u64, i32> {
    let time = [ns / (1000 * MS), ns % (1000 * MS)];
    sc!(
        SYS_clock_nanosleep,
        number,
        flags,
        time.as_ptr(),
        left.as_mut_ptr()
    )
}

tests! { "cputimer";
    a_timer_waits_for_the_time_of_its_process {
        ok!(block(SIGNAL));
        for number in [PROCESS, THREAD, clock_of(ok!(sc!(SYS_getpid)), SCHED)] {
            let id = ok!(create(number, libc::SIGEV_SIGNAL, SIGNAL, 77, 0));
            is!(ok!(get(id)), [0; 4]);
            let began = ok!(clock(number));
            is!(ok!(set(id, 0, 60 * MS, 0)), [0; 4]);
            // A sleep uses none of it.
            fails!(take(SIGNAL, 150), EAGAIN);
            let left = ok!(get(id));
            holds!(left[..3] == [0; 3] && left[3] > 0 && left[3] <= 60 * MS);
            ok!(use_time(20 * MS));
            holds!(ok!(get(id))[3] <= 40 * MS);
            if take(SIGNAL, 0).is_ok() {
                // On a machine that is stopped now and then, more time may have gone by.
                holds!(ok!(clock(number)) - began >= 60 * MS);
                ok!(sc!(SYS_timer_delete, id));
                continue;
            }
            ok!(use_time(80 * MS));
            is!(ok!(take(SIGNAL, 1000)), [SIGNAL as u64, TIMER, id.into(), 0, 77]);
            holds!(ok!(clock(number)) - began >= 60 * MS);
            is!(ok!(get(id)), [0; 4]);
            ok!(use_time(20 * MS));
            fails!(take(SIGNAL, 0), EAGAIN);
            ok!(sc!(SYS_timer_delete, id));
        }
    }
    an_interval_goes_on_and_counts_what_is_missed {
        ok!(block(SIGNAL));
        let id = ok!(create(PROCESS, libc::SIGEV_SIGNAL, SIGNAL, 1, 0));
        ok!(set(id, 0, 10 * MS, 10 * MS));
        ok!(use_time(120 * MS));
        let first = ok!(take(SIGNAL, 1000));
        holds!(first[3] >= 8);
        is!(ok!(sc!(SYS_timer_getoverrun, id)), first[3]);
        // Taking it has armed it again.
        let left = ok!(get(id));
        holds!(left[1] == 10 * MS && left[3] > 0 && left[3] <= 10 * MS);
        ok!(use_time(40 * MS));
        is!(ok!(take(SIGNAL, 1000))[..3], [SIGNAL as u64, TIMER, id.into()]);
        // A new setting and a deletion drop the signal.
        ok!(use_time(40 * MS));
        let old = ok!(set(id, 0, 5000 * MS, 0));
        holds!(old[1] == 10 * MS && old[3] > 0 && old[3] <= 10 * MS);
        fails!(take(SIGNAL, 0), EAGAIN);
        ok!(set(id, 0, 10 * MS, 0));
        ok!(use_time(40 * MS));
        ok!(sc!(SYS_timer_delete, id));
        fails!(take(SIGNAL, 0), EAGAIN);
        fails!(get(id), EINVAL);
    }
    a_time_that_has_passed_comes_at_once {
        ok!(block(SIGNAL));
        ok!(use_time(MS));
        for number in [PROCESS, THREAD] {
            let id = ok!(create(number, libc::SIGEV_SIGNAL, SIGNAL, 2, 0));
            ok!(set(id, libc::TIMER_ABSTIME, 1, 0));
            is!(ok!(take(SIGNAL, 0))[2], u64::from(id));
            let at = ok!(clock(number)) + 200 * MS;
            ok!(set(id, libc::TIMER_ABSTIME, at, 0));
            fails!(take(SIGNAL, 0), EAGAIN);
            holds!(ok!(get(id))[3] <= 200 * MS);
            ok!(use_time(250 * MS));
            is!(ok!(take(SIGNAL, 1000))[2], u64::from(id));
            ok!(sc!(SYS_timer_delete, id));
        }
    }
    a_handler_runs_while_the_program_computes {
        use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        extern "C" fn count(_: i32) { COUNT.fetch_add(1, SeqCst); }
        ok!(sys::on_signal(SIGNAL, count as *const () as usize, 0));
        let me = ok!(sc!(SYS_gettid));
        let id = ok!(create(THREAD, libc::SIGEV_THREAD_ID, SIGNAL, 0, me));
        ok!(set(id, 0, 20 * MS, 20 * MS));
        let end = ok!(clock(THREAD)) + 5000 * MS;
        while COUNT.load(SeqCst) < 4 && ok!(clock(THREAD)) < end {}
        is!(COUNT.load(SeqCst).min(4), 4);
    }
    a_thread_is_measured_alone {
        ok!(block(SIGNAL));
        let (tx, rx) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let _ = tx.send(sc!(SYS_gettid));
            let _ = wait.recv();
            let done = use_time(60 * MS);
            let _ = wait.recv();
            done
        });
        let tid = ok!(rx.recv().map_err(|_| libc::EIO).and_then(|tid| tid));
        let number = clock_of(tid, SCHED | PER_THREAD);
        let id = ok!(create(number, libc::SIGEV_SIGNAL, SIGNAL, 3, 0));
        ok!(set(id, 0, 30 * MS, 0));
        ok!(use_time(60 * MS));
        fails!(take(SIGNAL, 0), EAGAIN);
        let _ = go.send(());
        is!(ok!(take(SIGNAL, 5000))[4], 3);
        // The sum has both.
        holds!(ok!(clock(number)) >= 30 * MS);
        holds!(ok!(clock(PROCESS)) >= 90 * MS);
        let _ = go.send(());
        is!(other.join().ok(), Some(Ok(())));
        // The thread may be gone a little later.
        holds!(soon(|| clock(number) == Err(libc::EINVAL)));
        fails!(set(id, 0, MS, 0), ESRCH);
        is!(ok!(get(id)), [0; 4]);
        fails!(create(number, libc::SIGEV_SIGNAL, SIGNAL, 3, 0), EINVAL);
        ok!(sc!(SYS_timer_delete, id));
    }
    another_process_may_be_measured {
        ok!(block(SIGNAL));
        let child = ok!(busy_child());
        let number = clock_of(child, SCHED);
        let id = ok!(create(number, libc::SIGEV_SIGNAL, SIGNAL, 4, 0));
        let at = ok!(clock(number)) + 40 * MS;
        ok!(set(id, libc::TIMER_ABSTIME, at, 20 * MS));
        is!(ok!(take(SIGNAL, 5000))[4], 4);
        holds!(ok!(clock(number)) >= at);
        is!(ok!(take(SIGNAL, 5000))[4], 4);
        ok!(sc!(SYS_kill, child, libc::SIGKILL));
        // A zombie still is what it was; once it is reaped it is not.
        holds!(soon(|| std::fs::read_to_string(format!("/proc/{child}/stat")).is_ok_and(|s| s.contains(") Z"))));
        let _ = take(SIGNAL, 0);
        let used = ok!(clock(number));
        ok!(set(id, 0, 50 * MS, 0));
        let left = ok!(get(id));
        holds!(left[2] == 0 && left[3] == 50 * MS);
        is!(ok!(clock(number)), used);
        ok!(sys::wait(child as i64, 0));
        fails!(clock(number), EINVAL);
        fails!(set(id, 0, MS, 0), ESRCH);
        is!(ok!(get(id)), [0; 4]);
        ok!(sc!(SYS_timer_delete, id));
        fails!(create(number, libc::SIGEV_SIGNAL, SIGNAL, 4, 0), EINVAL);
    }
    time_in_user_mode_has_a_clock {
        ok!(block(SIGNAL));
        let me = ok!(sc!(SYS_getpid));
        let (all, user) = (clock_of(me, PROF), clock_of(me, VIRT));
        let id = ok!(create(user, libc::SIGEV_SIGNAL, SIGNAL, 5, 0));
        ok!(set(id, 0, 30 * MS, 0));
        let began = ok!(clock(user));
        let end = sys::now_ns() + 20_000_000_000;
        while ok!(clock(user)) - began < 60 * MS && sys::now_ns() < end {
            for _ in 0..100_000 { std::hint::spin_loop(); }
        }
        is!(ok!(take(SIGNAL, 0))[4], 5);
        holds!(ok!(clock(user)) <= ok!(clock(all)));
    }
    an_ignored_signal_does_not_end_a_timer {
        ok!(sys::on_signal(SIGNAL, libc::SIG_IGN, 0));
        let id = ok!(create(PROCESS, libc::SIGEV_SIGNAL, SIGNAL, 6, 0));
        ok!(set(id, 0, 5 * MS, 5 * MS));
        ok!(use_time(40 * MS));
        ok!(block(SIGNAL));
        ok!(sys::on_signal(SIGNAL, nothing as *const () as usize, 0));
        ok!(use_time(40 * MS));
        is!(ok!(take(SIGNAL, 1000))[4], 6);
        // One that tells nobody.
        let silent = ok!(create(PROCESS, libc::SIGEV_NONE, 0, 0, 0));
        ok!(set(silent, 0, 5 * MS, 0));
        ok!(use_time(20 * MS));
        is!(ok!(get(silent)), [0; 4]);
    }
    a_sleep_waits_for_the_time_of_others {
        let child = ok!(busy_child());
        let (number, mut left) = (clock_of(child, SCHED), [-1; 2]);
        let began = ok!(clock(number));
        ok!(sleep(number, 0, 40 * MS, &mut left));
        let now = ok!(clock(number));
        holds!(now - began >= 40 * MS);
        ok!(sleep(number, libc::TIMER_ABSTIME, now + 20 * MS, &mut left));
        holds!(ok!(clock(number)) >= now + 20 * MS);
        ok!(sleep(number, libc::TIMER_ABSTIME, 1, &mut left));
        is!(left, [-1; 2]);
        ok!(end_child(child));
        fails!(sleep(number, 0, MS, &mut left), EINVAL);
        // By that of another thread of the process.
        let busy = std::thread::spawn(|| use_time(100 * MS));
        let began = ok!(clock(PROCESS));
        ok!(sleep(PROCESS, 0, 30 * MS, &mut left));
        holds!(ok!(clock(PROCESS)) - began >= 30 * MS);
        is!(busy.join().ok(), Some(Ok(())));
    }
    timers_that_are_always_due_keep_no_other_from_its_time {
        ok!(sys::on_signal(SIGNAL, libc::SIG_IGN, 0));
        let child = ok!(busy_child());
        let (user, all) = (clock_of(child, VIRT), clock_of(child, SCHED));
        // More than one look serves, on the clock that is looked at first.
        for _ in 0..24 {
            let id = ok!(create(user, libc::SIGEV_SIGNAL, SIGNAL, 0, 0));
            ok!(set(id, 0, 1, 1));
        }
        let began = ok!(clock(all));
        let (mut left, asked) = ([0; 2], 50 * MS);
        let sleeper = ok!(sys::fork());
        if sleeper == 0 {
            sys::exit(i32::from(sleep(all, 0, asked, &mut left).is_err()));
        }
        let mut status = (0, 0);
        while status.0 == 0 && ok!(clock(all)) - began < 3000 * MS {
            nap_us(10_000);
            status = ok!(sys::wait(sleeper as i64, libc::WNOHANG));
        }
        is!(status, (sleeper, 0));
        ok!(end_child(child));
    }
    a_signal_ends_a_sleep {
        ok!(sys::on_signal(SIGNAL, nothing as *const () as usize, 0));
        let id = ok!(create(libc::CLOCK_MONOTONIC, libc::SIGEV_SIGNAL, SIGNAL, 0, 0));
        let mut left = [-1; 2];
        for (flags, told) in [(0, true), (libc::TIMER_ABSTIME, false)] {
            ok!(set(id, 0, 30 * MS, 0));
            fails!(sleep(PROCESS, flags, 5000 * MS, &mut left), EINTR);
            holds!(!told || left[0] == 4 && left[1] > 0);
            left = [-1; 2];
        }
        is!(left, [-1; 2]);
        // One without a handler does not: the sleep goes on.
        ok!(sc!(SYS_timer_delete, id));
        let child = ok!(busy_child());
        let number = clock_of(child, SCHED);
        let (me, began) = (ok!(sc!(SYS_getpid)), ok!(clock(number)));
        let stopper = ok!(sys::fork());
        if stopper == 0 {
            nap_us(20_000);
            let _ = sc!(SYS_kill, me, libc::SIGSTOP);
            nap_us(20_000);
            let _ = sc!(SYS_kill, me, libc::SIGCONT);
            sys::exit(0);
        }
        ok!(sleep(number, 0, 200 * MS, &mut left));
        holds!(ok!(clock(number)) - began >= 200 * MS);
        ok!(end_child(child));
        ok!(sys::wait(stopper as i64, 0));
    }
    arguments {
        let (me, mut left) = (ok!(sc!(SYS_getpid)), [0; 2]);
        let own = clock_of(me, SCHED | PER_THREAD);
        for number in [clock_of(0x03ff_ffff, SCHED), clock_of(1, SCHED | PER_THREAD), clock_of(me, 7)] {
            fails!(create(number, libc::SIGEV_SIGNAL, SIGNAL, 0, 0), EINVAL);
            fails!(clock(number), EINVAL);
            fails!(sc!(SYS_clock_getres, number, 0), EINVAL);
            fails!(sleep(number, 0, MS, &mut left), EINVAL);
            fails!(sc!(SYS_clock_settime, number, [0i64; 2].as_ptr()), EINVAL);
        }
        // Of a device, by a descriptor.
        fails!(create(clock_of(0, 3), libc::SIGEV_SIGNAL, SIGNAL, 0, 0), EOPNOTSUPP);
        fails!(sleep(clock_of(0, 3), 0, MS, &mut left), EOPNOTSUPP);
        fails!(sleep(THREAD, 0, MS, &mut left), EOPNOTSUPP);
        fails!(sleep(own, 0, MS, &mut left), EINVAL);
        fails!(sleep(clock_of(0, SCHED | PER_THREAD), 0, MS, &mut left), EINVAL);
        fails!(sc!(SYS_clock_nanosleep, PROCESS, 0, [0i64, 1000 * MS].as_ptr(), 0), EINVAL);
        fails!(sc!(SYS_clock_nanosleep, PROCESS, 0, 8, 0), EFAULT);
        ok!(sleep(PROCESS, 0, 0, &mut left));
        for (kind, least) in [(SCHED, 1), (PROF, 1_000_000), (VIRT, 1_000_000)] {
            let mut fine = [-1i64; 2];
            ok!(sc!(SYS_clock_getres, clock_of(me, kind), fine.as_mut_ptr()));
            holds!(fine[0] == 0 && fine[1] >= least && (kind != SCHED || fine[1] == 1));
        }
        fails!(sc!(SYS_clock_settime, clock_of(me, SCHED), [0i64; 2].as_ptr()), EPERM);
        fails!(sc!(SYS_clock_settime, PROCESS, [0i64; 2].as_ptr()), EINVAL);
        fails!(sc!(SYS_clock_settime, clock_of(me, SCHED), 8), EFAULT);
        // The numbers of zero stand for the caller.
        for (number, zero) in [(PROCESS, clock_of(0, SCHED)), (THREAD, clock_of(0, SCHED | PER_THREAD))] {
            let (before, same, after) = (ok!(clock(number)), ok!(clock(zero)), ok!(clock(number)));
            holds!(before <= same && same <= after);
        }
    }
}
