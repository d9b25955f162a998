//! POSIX timers and sleeps by clocks of CPU time.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use proc::itimer::Setting;
use proc::signal::{SigFields, SigInfo, SigSet};
use proc::timers::{self, MOST, Measured, Notify, Part, SleepError, Spec, TimerError};
use proc::wait4::Children;
use proc::{SignalExt, ids};
use programs::{MS, catch, count, is_pending, join, thread, until, until_asleep, with_memory};
use support::{fork, kill, me, nap, user_mode, wait};
use task::current::current;

const SIGNAL: u8 = 40;

fn spec(notify: Notify) -> Spec {
    Spec {
        notify,
        signo: SIGNAL,
        value: Some(7),
        real: false,
        clock: -6,
    }
}

fn take() -> Option<SigInfo> {
    proc::signal::take(&current(), SigSet::one(SIGNAL))
}

fn own() -> Measured {
    Measured::process(me(), Part::All)
}

fn create(measured: &Measured) -> u32 {
    timers::create(&me(), spec(Notify::Process), Some(measured)).expect("memory")
}

/// Sets a timer, in milliseconds of CPU time from now.
fn set(id: u32, measured: &Measured, value: u64, interval: u64) -> Setting {
    let at = measured.time().expect("a clock") + value * MS;
    timers::set(&me(), id, Some(at), interval * MS).expect("a timer")
}

/// Uses so many milliseconds of CPU time, as a program that ticks interrupt.
fn compute(ms: u64) {
    for _ in 0..ms * 10 {
        hal::time::spin_ns(MS / 10);
        user_mode();
    }
}

fn with_signal(cpus: usize, body: impl Fn() + Send + Sync + 'static) {
    with_memory(cpus, move || {
        catch(SIGNAL);
        current().set_blocked(SigSet::of(&[SIGNAL]));
        body();
    });
}

fn overrun(info: SigInfo) -> u32 {
    let SigFields::Timer { overrun, .. } = info.fields else {
        panic!("no timer's: {info:?}");
    };
    overrun
}

#[test]
fn a_timer_waits_for_cpu_time_alone() {
    with_signal(1, || {
        for measured in [own(), Measured::thread(&current(), Part::All)] {
            let id = create(&measured);
            assert_eq!(set(id, &measured, 30, 0), Setting::default());
            nap(100);
            user_mode();
            assert_eq!(take(), None);
            compute(20);
            let left = timers::get(&me(), id).expect("a timer").value;
            assert!(left > 0 && left <= 10 * MS, "{left}");
            assert_eq!(take(), None);
            compute(30);
            assert_eq!(take().map(overrun), Some(0));
            assert_eq!(timers::get(&me(), id), Ok(Setting::default()));
            timers::delete(&me(), id).expect("a timer");
        }
    });
}

#[test]
fn an_interval_goes_on_when_its_signal_is_taken() {
    with_signal(1, || {
        let (clock, id) = (own(), create(&own()));
        set(id, &clock, 5, 5);
        compute(60);
        let missed = overrun(take().expect("a signal"));
        assert!((8..=12).contains(&missed), "{missed}");
        assert_eq!(take(), None);
        let left = timers::get(&me(), id).expect("a timer");
        assert!(left.value > 0 && left.value <= 5 * MS && left.interval == 5 * MS);
        compute(20);
        assert!(take().is_some());
        // A deletion takes the signal along.
        compute(20);
        timers::delete(&me(), id).expect("a timer");
        assert_eq!(take(), None);
        compute(20);
        assert_eq!(take(), None);
    });
}

#[test]
fn a_time_that_has_passed_comes_at_once() {
    with_signal(1, || {
        compute(2);
        let id = create(&own());
        timers::set(&me(), id, Some(1), 0).expect("a timer");
        assert!(take().is_some());
        assert_eq!(timers::get(&me(), id), Ok(Setting::default()));
    });
}

/// A timer on a thread goes by that thread's time; once the thread has ended it can be deleted only.
#[test]
fn a_thread_is_measured_alone() {
    with_signal(2, || {
        let (step, other) = (count(), count());
        let (go, done) = (step.clone(), other.clone());
        let tid = thread(move || {
            current().set_blocked(SigSet::of(&[SIGNAL]));
            while go.load(SeqCst) == 0 {
                nap(1);
            }
            compute(40);
            done.store(1, SeqCst);
            while go.load(SeqCst) == 1 {
                nap(1);
            }
        });
        let measured = Measured::thread(&ids::find_thread(tid).expect("a thread"), Part::All);
        let id = create(&measured);
        set(id, &measured, 20, 0);
        compute(60);
        assert_eq!(take(), None);
        step.store(1, SeqCst);
        while other.load(SeqCst) == 0 {
            nap(1);
        }
        assert!(take().is_some());
        set(id, &measured, 1000, 0);
        step.store(2, SeqCst);
        while me().thread_count() > 1 {
            nap(1);
        }
        nap(5);
        assert_eq!(timers::set(&me(), id, Some(1), 0), Err(TimerError::Gone));
        assert_eq!(timers::get(&me(), id), Ok(Setting::default()));
        assert_eq!(measured.time(), None);
        timers::delete(&me(), id).expect("a timer");
    });
}

/// What is left of a child that is measured keeps the timer from doing harm, and the timer does not keep the child.
#[test]
fn another_process_is_measured_until_it_is_reaped() {
    with_signal(2, || {
        let stop = count();
        let see = stop.clone();
        let child = fork(move || {
            while see.load(SeqCst) == 0 {
                compute(1);
            }
            0
        });
        let measure = || {
            let child = ids::find_process(child).expect("a child");
            Measured::process(child, Part::All)
        };
        let (measured, again) = (measure(), measure());
        let id = create(&measured);
        set(id, &measured, 20, 20);
        while take().is_none() {
            nap(1);
        }
        assert!(measured.time().is_some_and(|time| time >= 20 * MS));
        let slept = measure().sleep_until(measured.time().expect("a clock") + 10 * MS);
        assert_eq!(slept, Ok(()));
        stop.store(1, SeqCst);
        wait(Children::Pid(child)).expect("a child");
        assert_eq!(measured.time(), None);
        assert_eq!(again.sleep_until(u64::MAX), Err(SleepError::Gone));
        assert_eq!(timers::base(&me(), id), Err(TimerError::Gone));
        assert_eq!(timers::get(&me(), id), Ok(Setting::default()));
        let _ = take();
        timers::delete(&me(), id).expect("a timer");
    });
}

/// The owner's end takes its timers off the process that they measure.
#[test]
fn an_owner_that_ends_leaves_nothing() {
    with_signal(2, || {
        let parent = me().pid();
        for _ in 0..3 {
            let child = fork(move || {
                let parent = ids::find_process(parent).expect("the parent");
                let measured = Measured::process(parent, Part::All);
                for _ in 0..MOST {
                    let id = create(&measured);
                    set(id, &measured, 1000, 0);
                }
                let more = timers::create(&me(), spec(Notify::Process), Some(&measured));
                assert_eq!(more, Err(TimerError::Again));
                0
            });
            // All others together have no more than so many, and the process itself has its own.
            wait(Children::Pid(child)).expect("a child");
        }
        compute(10);
        let id = create(&own());
        set(id, &own(), 5, 0);
        compute(20);
        assert!(take().is_some());
    });
}

#[test]
fn an_ignored_signal_does_not_end_a_timer_and_silence_does() {
    with_signal(1, || {
        let (clock, id) = (own(), create(&own()));
        let chld = Spec {
            signo: proc::signal::sig::CHLD,
            ..spec(Notify::Process)
        };
        let ignored = timers::create(&me(), chld, Some(&clock)).expect("memory");
        let silent = timers::create(&me(), spec(Notify::Nobody), Some(&clock)).expect("memory");
        for id in [id, ignored, silent] {
            set(id, &clock, 5, 7);
        }
        compute(30);
        assert!(timers::get(&me(), ignored).is_ok_and(|s| s.value > 0));
        // As on Linux 6.1.
        let expected = Setting {
            value: 0,
            interval: 7 * MS,
        };
        assert_eq!(timers::get(&me(), silent), Ok(expected));
        assert!(take().is_some());
    });
}

/// The number of sleeps of the caller.
fn sleeps() -> u32 {
    current().usage.voluntary.load(SeqCst)
}

/// Sleepers do not run where the time of another one has come.
#[test]
fn a_sleeper_is_woken_by_its_own_time_alone() {
    const SLEEPERS: u64 = 12;
    with_memory(1, || {
        let (woken, most) = (count(), count());
        let begin = own().time().expect("a clock");
        for n in 0..SLEEPERS {
            // Not in the order in which they begin.
            let at = begin + (n * 5 % SLEEPERS + 2) * 10 * MS;
            let (woken, most) = (woken.clone(), most.clone());
            let tid = thread(move || {
                let before = sleeps();
                assert_eq!(own().sleep_until(at), Ok(()));
                assert!(own().time().is_some_and(|now| now >= at));
                most.fetch_max(sleeps() - before, SeqCst);
                woken.fetch_add(1, SeqCst);
            });
            until_asleep(tid);
        }
        for n in 0..SLEEPERS + 2 {
            while own()
                .time()
                .is_some_and(|now| now < begin + (n * 10 + 8) * MS)
            {
                compute(1);
            }
            nap(1);
            assert_eq!(
                u64::from(woken.load(SeqCst)),
                n.saturating_sub(1).min(SLEEPERS)
            );
        }
        assert_eq!(most.load(SeqCst), 1);
    });
}

/// However many timers of other processes measure a process, it has its own in time, and so has a third process.
#[test]
fn timers_of_others_neither_refuse_nor_delay_more() {
    with_signal(2, || {
        let (parent, ready) = (me().pid(), count());
        let clock = move || {
            let parent = ids::find_process(parent).expect("the parent");
            Measured::process(parent, Part::All)
        };
        let at = own().time().expect("a clock") + 400 * MS;
        let theirs = ready.clone();
        let stranger = fork(move || {
            for _ in 0..MOST {
                let id = create(&clock());
                timers::set(&me(), id, Some(at), 0).expect("a timer");
            }
            theirs.store(1, SeqCst);
            until(|| false);
            0
        });
        until(|| ready.load(SeqCst) == 1);
        let theirs = ready.clone();
        let third = fork(move || {
            let made = timers::create(&me(), spec(Notify::Process), Some(&clock()));
            theirs.store(2 + u32::from(made.is_ok()), SeqCst);
            let slept = clock().sleep_until(at);
            u8::from(slept != Ok(()))
        });
        until(|| ready.load(SeqCst) >= 2);
        assert_eq!(ready.load(SeqCst), 3, "a third process has a timer");
        let id = create(&own());
        timers::set(&me(), id, Some(at + MS), 0).expect("a timer");
        while own().time().is_some_and(|now| now < at) {
            compute(1);
            assert!(!is_pending(SIGNAL));
        }
        compute(12);
        assert!(take().is_some());
        // Those that are due come later.
        compute(400);
        assert!(wait(Children::Pid(third)).is_ok_and(|(_, status)| status == 0));
        assert!(kill(stranger, proc::signal::sig::KILL));
        wait(Children::Pid(stranger)).expect("a child");
    });
}

/// A thread whose time has come, and that sleeps before it has looked, is looked at by the others of its process.
#[test]
fn all_threads_of_a_process_look_at_the_clocks_of_all() {
    const THREADS: usize = 20;
    with_signal(1, || {
        let (go, done) = (count(), count());
        let tids: Vec<u32> = (0..THREADS)
            .map(|_| {
                let (go, done) = (go.clone(), done.clone());
                thread(move || {
                    current().set_blocked(SigSet::of(&[SIGNAL]));
                    while go.load(SeqCst) == 0 {
                        nap(1);
                    }
                    hal::time::spin_ns(3 * MS);
                    done.fetch_add(1, SeqCst);
                    while go.load(SeqCst) == 1 {
                        nap(1000);
                    }
                })
            })
            .collect();
        for &tid in &tids {
            let t = ids::find_thread(tid).expect("a thread");
            let measured = Measured::thread(&t, Part::All);
            set(create(&measured), &measured, 2, 0);
        }
        go.store(1, SeqCst);
        while done.load(SeqCst) < THREADS as u32 {
            nap(1);
        }
        compute(40);
        let fired = std::iter::from_fn(take).count();
        assert_eq!(fired, THREADS);
        go.store(2, SeqCst);
        tids.into_iter().for_each(join);
    });
}

#[test]
fn a_sleep_by_the_clock_of_a_thread_that_ends_goes_on() {
    with_signal(2, || {
        let (go, result) = (count(), count());
        let see = go.clone();
        let measured = thread(move || {
            while see.load(SeqCst) == 0 {
                nap(1);
            }
            compute(5);
        });
        // More than one hold of the lock changes.
        let ids: Vec<u32> = (0..100)
            .map(|n| {
                let t = ids::find_thread(measured).expect("a thread");
                let clock = Measured::thread(&t, Part::All);
                let id = create(&clock);
                set(id, &clock, 100 + n, 0);
                id
            })
            .collect();
        let theirs = result.clone();
        let sleeper = thread(move || {
            current().set_blocked(SigSet::of(&[]));
            let t = ids::find_thread(measured).expect("a thread");
            let clock = Measured::thread(&t, Part::All);
            drop(t);
            let slept = clock.sleep_until(50 * MS);
            assert_eq!(slept, Err(SleepError::Signal(0)));
            current().set_blocked(SigSet::of(&[SIGNAL]));
            theirs.store(1, SeqCst);
        });
        until_asleep(sleeper);
        go.store(1, SeqCst);
        join(measured);
        // Others come and go, and are woken.
        for _ in 0..300 {
            let id = create(&own());
            set(id, &own(), 1000, 0);
            timers::delete(&me(), id).expect("a timer");
        }
        compute(60);
        assert_eq!((result.load(SeqCst), take()), (0, None));
        for id in ids {
            assert_eq!(timers::set(&me(), id, Some(1), 0), Err(TimerError::Gone));
            timers::delete(&me(), id).expect("a timer");
        }
        let t = ids::find_thread(sleeper).expect("a thread");
        let info = SigInfo::user(SIGNAL, proc::signal::code::USER, 1, 0);
        proc::signal::send_thread(&t, info).expect("room");
        drop(t);
        until(|| result.load(SeqCst) == 1);
        join(sleeper);
    });
}

/// A sleeper would else keep the memory of each process by whose clock it sleeps after its end.
#[test]
fn a_sleep_does_not_keep_the_process() {
    with_memory(2, || {
        let child = fork(|| {
            nap(20);
            0
        });
        let sleeper = thread(move || {
            let process = ids::find_process(child).expect("a child");
            let _ = Measured::process(process, Part::All).sleep_until(u64::MAX);
        });
        until_asleep(sleeper);
        let process = Arc::downgrade(&ids::find_process(child).expect("a child"));
        wait(Children::Pid(child)).expect("a child");
        let mut looks = 0;
        while process.upgrade().is_some() {
            looks += 1;
            assert!(looks < 200, "the process is kept");
            nap(1);
            user_mode();
        }
    });
}
