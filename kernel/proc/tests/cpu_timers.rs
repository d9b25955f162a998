//! POSIX timers and sleeps by clocks of CPU time.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::atomic::Ordering::SeqCst;

use proc::itimer::Setting;
use proc::signal::{SigFields, SigInfo, SigSet};
use proc::timers::{self, MOST, Measured, Notify, Part, SleepError, Spec, TimerError};
use proc::wait4::Children;
use proc::{SignalExt, ids};
use programs::{MS, catch, count, thread, with_memory};
use support::{fork, me, nap, user_mode, wait};
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
        let measured = Measured::process(ids::find_process(child).expect("a child"), Part::All);
        let id = create(&measured);
        set(id, &measured, 20, 20);
        while take().is_none() {
            nap(1);
        }
        assert!(measured.time().is_some_and(|time| time >= 20 * MS));
        let slept = measured.sleep_until(measured.time().expect("a clock") + 10 * MS);
        assert_eq!(slept, Ok(()));
        stop.store(1, SeqCst);
        wait(Children::Pid(child)).expect("a child");
        assert_eq!(measured.time(), None);
        assert_eq!(measured.sleep_until(u64::MAX), Err(SleepError::Gone));
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
