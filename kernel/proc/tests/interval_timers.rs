//! Interval timers: setitimer(2), getitimer(2) and alarm(2).
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

use proc::SignalExt;
use proc::itimer::{self, Setting, Which};
use proc::signal::{Action, SigSet, set_action, sig};
use proc::wait4::Children;
use programs::{
    MS, catch, count, in_child, is_pending, join, next, seeded, take, take_memory, thread,
    with_memory,
};
use support::{exited, fork, me, nap, on, user_mode, wait};
use task::current::current;
use task::time::monotonic_ns;

/// setitimer(2) for the calling process; times in milliseconds.
fn set(which: Which, value: u64, interval: u64) -> Setting {
    let new = Setting {
        value: value * MS,
        interval: interval * MS,
    };
    itimer::set(&me(), which, new)
}

/// getitimer(2) for the calling process.
fn get(which: Which) -> Setting {
    itimer::get(&me(), which)
}

/// Runs `body` in a process that blocks the signals of the timers: they stay pending until they are taken.
fn with_signals(cpus: usize, body: impl Fn() + Send + Sync + 'static) {
    with_memory(cpus, move || {
        for signo in [sig::ALRM, sig::VTALRM, sig::PROF] {
            catch(signo);
        }
        current().set_blocked(SigSet::of(&[sig::ALRM, sig::VTALRM, sig::PROF]));
        body();
    });
}

/// Naps until the signal is pending, and takes it. Returns when that was.
fn expiry(signo: u8) -> u64 {
    for _ in 0..10_000 {
        if take(signo).is_some() {
            return monotonic_ns();
        }
        nap(1);
    }
    panic!("signal {signo} does not come");
}

/// Uses so many milliseconds of CPU time, and looks at the timers as a program that ticks interrupt.
fn compute(ms: u64) {
    for _ in 0..ms * 10 {
        hal::time::spin_ns(MS / 10);
        user_mode();
    }
}

#[test]
fn a_timer_that_was_never_set_is_off() {
    with_signals(1, || {
        for which in [Which::Real, Which::Virtual, Which::Prof] {
            assert_eq!(get(which), Setting::default());
            assert_eq!(set(which, 0, 0), Setting::default());
            assert_eq!(get(which), Setting::default());
        }
    });
}

#[test]
fn a_timer_expires_at_its_time_and_not_before() {
    with_signals(2, || {
        let began = monotonic_ns();
        set(Which::Real, 50, 0);
        let at = expiry(sig::ALRM);
        assert!(at >= began + 50 * MS && at < began + 60 * MS);
    });
}

#[test]
fn a_timer_without_an_interval_expires_once() {
    with_signals(2, || {
        set(Which::Real, 5, 0);
        expiry(sig::ALRM);
        assert_eq!(get(Which::Real), Setting::default());
        nap(100);
        assert!(!is_pending(sig::ALRM));
    });
}

#[test]
fn a_timer_tells_what_is_left() {
    with_signals(1, || {
        set(Which::Real, 100, 7);
        let left = get(Which::Real);
        assert!(left.value <= 100 * MS && left.value > 99 * MS);
        nap(30);
        let left = get(Which::Real);
        assert!(left.value <= 70 * MS && left.value > 60 * MS);
        assert_eq!(left.interval, 7 * MS);
    });
}

/// alarm(2) returns what is left of the alarm before.
#[test]
fn setting_a_timer_returns_the_old_setting() {
    with_signals(1, || {
        assert_eq!(set(Which::Real, 100, 0), Setting::default());
        nap(40);
        let old = set(Which::Real, 500, 20);
        assert!(old.value <= 60 * MS && old.value > 50 * MS);
        assert_eq!(old.interval, 0);
        let old = set(Which::Real, 0, 0);
        assert!(old.value <= 500 * MS && old.value > 490 * MS);
        assert_eq!(old.interval, 20 * MS);
    });
}

#[test]
fn setting_a_timer_anew_cancels_the_old_setting() {
    with_signals(1, || {
        let began = monotonic_ns();
        set(Which::Real, 10, 0);
        set(Which::Real, 80, 0);
        nap(40);
        assert!(!is_pending(sig::ALRM));
        assert!(expiry(sig::ALRM) >= began + 80 * MS);
        nap(100);
        assert!(!is_pending(sig::ALRM));
    });
}

#[test]
fn a_timer_that_is_turned_off_does_not_expire() {
    with_signals(1, || {
        set(Which::Real, 10, 10);
        nap(4);
        // The interval does not matter where the value is zero.
        set(Which::Real, 0, 10);
        assert_eq!(get(Which::Real), Setting::default());
        nap(50);
        assert!(!is_pending(sig::ALRM));
    });
}

#[test]
fn a_periodic_timer_expires_after_each_interval() {
    with_signals(1, || {
        let began = monotonic_ns();
        set(Which::Real, 20, 30);
        for n in 0..5 {
            let due = began + (20 + 30 * n) * MS;
            let at = expiry(sig::ALRM);
            assert!(at >= due && at < due + 5 * MS, "expiry {n}");
        }
    });
}

#[test]
fn expiries_that_nobody_takes_are_one_signal() {
    with_signals(1, || {
        let began = monotonic_ns();
        set(Which::Real, 10, 10);
        nap(95);
        // It waits to be taken.
        let fired = get(Which::Real);
        assert_eq!((fired.value, fired.interval), (0, 10 * MS));
        assert!(take(sig::ALRM).is_some());
        assert!(take(sig::ALRM).is_none());
        // The next one is at a multiple of the interval.
        let left = get(Which::Real);
        assert!(left.value > 0 && left.value <= 10 * MS);
        let at = expiry(sig::ALRM) - began;
        assert!((100 * MS..105 * MS).contains(&at));
    });
}

#[test]
fn a_tiny_interval_does_not_keep_the_machine_busy() {
    with_signals(1, || {
        let tiny = Setting {
            value: 1,
            interval: 1,
        };
        itimer::set(&me(), Which::Real, tiny);
        nap(50);
        let before = monotonic_ns();
        // The signal was not taken, so nothing is armed.
        assert_eq!(get(Which::Real).value, 0);
        for _ in 0..20 {
            assert!(take(sig::ALRM).is_some());
            nap(1);
        }
        assert!(monotonic_ns() - before < 100 * MS);
    });
}

#[test]
fn a_long_interval_is_no_overflow() {
    with_signals(1, || {
        let long = Setting {
            value: u64::MAX,
            interval: u64::MAX,
        };
        itimer::set(&me(), Which::Real, long);
        let left = get(Which::Real);
        assert!(left.value > 1 << 62 && left.interval > 1 << 62);
        let soon = Setting {
            value: MS,
            interval: u64::MAX,
        };
        itimer::set(&me(), Which::Real, soon);
        expiry(sig::ALRM);
        let left = get(Which::Real);
        assert!(left.value > 1 << 62 && left.interval > 1 << 62);
        nap(100);
        assert!(!is_pending(sig::ALRM));
    });
}

#[test]
fn a_signal_that_is_ignored_takes_the_timer_no_further() {
    with_signals(1, || {
        let ignore = Action {
            handler: 1,
            ..Action::default()
        };
        current().set_blocked(SigSet::default());
        set_action(&me(), sig::ALRM, ignore);
        set(Which::Real, 5, 0);
        nap(20);
        assert!(!is_pending(sig::ALRM));
        assert_eq!(get(Which::Real), Setting::default());
    });
}

#[test]
fn a_timer_without_a_handler_ends_the_process() {
    on(2, || {
        let child = fork(|| {
            set(Which::Real, 5, 0);
            loop {
                nap(1000);
                user_mode();
            }
        });
        let ended = u32::from(sig::ALRM);
        assert_eq!(wait(Children::Any), Ok((child, ended)));
    });
}

#[test]
fn a_forked_child_has_no_timers() {
    with_signals(2, || {
        set(Which::Real, 30, 30);
        set(Which::Prof, 500, 500);
        let child = fork(|| {
            for which in [Which::Real, Which::Virtual, Which::Prof] {
                assert_eq!(get(which), Setting::default());
            }
            nap(60);
            u8::from(is_pending(sig::ALRM))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
        expiry(sig::ALRM);
    });
}

#[test]
fn an_execve_keeps_the_timers() {
    with_signals(1, || {
        let began = monotonic_ns();
        set(Which::Real, 50, 20);
        set(Which::Prof, 5000, 7);
        take_memory();
        let left = get(Which::Real);
        assert!(left.value > 40 * MS && left.value <= 50 * MS);
        assert_eq!(left.interval, 20 * MS);
        assert_eq!(get(Which::Prof).interval, 7 * MS);
        assert!(expiry(sig::ALRM) >= began + 50 * MS);
        expiry(sig::ALRM);
    });
}

#[test]
fn a_process_that_has_ended_gets_no_expiry() {
    on(2, || {
        let child = fork(|| {
            set(Which::Real, 20, 20);
            3
        });
        nap(10);
        // A zombie's timer is off, and so is that of the next process with its pid.
        let zombie = proc::ids::find_process(child).expect("a zombie");
        assert_eq!(itimer::get(&zombie, Which::Real), Setting::default());
        nap(50);
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(3))));
    });
}

#[test]
fn the_threads_of_a_process_share_its_timers() {
    with_signals(2, || {
        let tid = thread(|| {
            set(Which::Real, 200, 9);
        });
        join(tid);
        let left = get(Which::Real);
        assert!(left.value > 150 * MS);
        assert_eq!(left.interval, 9 * MS);
    });
}

/// Each call returns what one other call has set.
#[test]
fn settings_by_several_threads_replace_one_another_one_by_one() {
    with_signals(4, || {
        const THREADS: u64 = 4;
        const CALLS: u64 = 50;
        let returned = Arc::new(Mutex::new(Vec::new()));
        let tids: Vec<u32> = (0..THREADS)
            .map(|n| {
                let returned = returned.clone();
                thread(move || {
                    for call in 0..CALLS {
                        // The interval tells which call it was.
                        let name = 1 + n * CALLS + call;
                        let old = set(Which::Real, 100_000, name);
                        returned.lock().unwrap().push(old.interval / MS);
                    }
                })
            })
            .collect();
        tids.into_iter().for_each(join);
        let mut all = returned.lock().unwrap().clone();
        all.push(get(Which::Real).interval / MS);
        all.sort_unstable();
        let expected: Vec<u64> = (0..=THREADS * CALLS).collect();
        assert_eq!(all, expected);
    });
}

#[test]
fn a_timer_that_is_set_beside_its_expiry_sends_no_signal_of_the_old_setting() {
    with_signals(2, || {
        let setter = thread(|| {
            for n in 0..200 {
                let soon = Setting {
                    value: 100_000 + n * 731,
                    interval: 0,
                };
                itimer::set(&me(), Which::Real, soon);
                hal::time::spin_ns(150_000);
                itimer::set(&me(), Which::Real, Setting::default());
                take(sig::ALRM);
                // From here on nothing may come.
                hal::time::spin_ns(100_000);
                assert!(!is_pending(sig::ALRM), "setting {n}");
            }
        });
        join(setter);
    });
}

#[test]
fn a_timer_of_cpu_time_does_not_run_while_the_process_sleeps() {
    with_signals(1, || {
        set(Which::Prof, 10, 0);
        nap(500);
        user_mode();
        assert!(!is_pending(sig::PROF));
        let left = get(Which::Prof).value;
        assert!(left > 5 * MS, "{left}");
        compute(20);
        assert!(is_pending(sig::PROF));
        assert_eq!(get(Which::Prof), Setting::default());
    });
}

#[test]
fn a_periodic_timer_of_cpu_time_expires_again_and_again() {
    with_signals(1, || {
        set(Which::Prof, 20, 20);
        let mut expiries = 0;
        for _ in 0..200 {
            compute(1);
            expiries += u32::from(take(sig::PROF).is_some());
        }
        assert!((8..=10).contains(&expiries), "{expiries} expiries");
        assert_eq!(get(Which::Prof).interval, 20 * MS);
    });
}

#[test]
fn the_cpu_time_of_all_threads_counts() {
    with_signals(2, || {
        set(Which::Prof, 40, 0);
        let worker = thread(|| compute(30));
        compute(5);
        join(worker);
        assert!(!is_pending(sig::PROF));
        let left = get(Which::Prof).value;
        assert!(left < 10 * MS, "{left} left");
        compute(20);
        assert!(is_pending(sig::PROF));
    });
}

/// As the tick of the timer does that finds the thread in user mode.
fn tick_in_user_mode() {
    next_tick(&current().usage.user_ticks);
}

fn next_tick(ticks: &ksync::atomic::AtomicU32) {
    ticks.fetch_add(1, ksync::atomic::Ordering::Relaxed);
}

#[test]
fn the_virtual_timer_counts_time_in_user_mode_alone() {
    with_signals(1, || {
        set(Which::Virtual, 10, 0);
        compute(40);
        assert!(!is_pending(sig::VTALRM));
        // Now nearly all of the time is found to be the program's.
        (0..1000).for_each(|_| tick_in_user_mode());
        compute(60);
        assert!(is_pending(sig::VTALRM));
        assert!(!is_pending(sig::PROF));
    });
}

#[test]
fn a_random_series_of_settings_agrees_with_a_reference() {
    with_signals(1, || {
        let mut random = seeded(3);
        // When the timer expires next, and its interval; in nanoseconds.
        let mut model: Option<(u64, u64)> = None;
        for step in 0..300 {
            let (value, interval) = (random.below(40) as u64, random.below(3) as u64 * 15);
            if random.below(3) == 0 {
                let old = set(Which::Real, value, interval);
                let now = monotonic_ns();
                let left = model.map_or(0, |(at, _)| at.saturating_sub(now));
                let slack = old.value.abs_diff(left);
                assert!(slack < MS, "step {step}: {} but {left}", old.value);
                model = (value > 0).then_some((now + value * MS, interval * MS));
            }
            nap(random.below(25) as u64);
            let came = take(sig::ALRM).is_some();
            let now = monotonic_ns();
            match model {
                Some((at, interval)) if at + MS < now => {
                    assert!(came, "step {step}");
                    let missed = (now - at).checked_div(interval);
                    model = missed.map(|n| (at + (n + 1) * interval, interval));
                }
                Some((at, _)) if at > now => assert!(!came, "step {step}"),
                None => assert!(!came, "step {step}"),
                // Too close to tell.
                Some(_) => {
                    set(Which::Real, 0, 0);
                    take(sig::ALRM);
                    model = None;
                }
            }
        }
    });
}

#[test]
fn timers_of_many_processes_expire_each_by_itself() {
    on(2, || {
        in_child(|| {
            let all = count();
            let children: Vec<u32> = (0..20)
                .map(|n| {
                    let all = all.clone();
                    fork(move || {
                        current().set_blocked(SigSet::one(sig::ALRM));
                        let began = monotonic_ns();
                        set(Which::Real, 10 + n, 0);
                        let at = expiry(sig::ALRM) - began;
                        assert!(at >= (10 + n) * MS && at < (20 + n) * MS);
                        next(&all);
                        0
                    })
                })
                .collect();
            for child in children {
                assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
            }
            assert_eq!(all.load(SeqCst), 20);
        });
    });
}
