//! POSIX timers: timer_create(2) and its kin.
#![cfg(not(shuttle))]

mod programs;
mod support;

use proc::SignalExt;
use proc::itimer::Setting;
use proc::signal::{SigFields, SigInfo, SigSet, code, sig};
use proc::timers::{self, MOST, Notify, Spec, TimerError};
use programs::{MS, catch, with_memory};
use support::{me, nap};
use task::current::current;
use task::time::monotonic_ns;

const SIGNAL: u8 = 40;
const USR1: u8 = 10;

fn spec(notify: Notify, signo: u8, value: u64) -> Spec {
    Spec {
        notify,
        signo,
        value: Some(value),
        real: false,
    }
}

fn create(signo: u8, value: u64) -> u32 {
    timers::create(&me(), spec(Notify::Process, signo, value)).expect("memory")
}

/// Times in milliseconds from now.
fn set(id: u32, value: u64, interval: u64) -> Setting {
    let at = (value > 0).then(|| monotonic_ns() + value * MS);
    timers::set(&me(), id, at, interval * MS).expect("a timer")
}

fn take(signo: u8) -> Option<SigInfo> {
    proc::signal::take(&current(), SigSet::one(signo))
}

/// Runs `body` in a process that blocks two signals.
fn with_signals(cpus: usize, body: impl Fn() + Send + Sync + 'static) {
    with_memory(cpus, move || {
        for signo in [SIGNAL, USR1] {
            catch(signo);
        }
        current().set_blocked(SigSet::of(&[SIGNAL, USR1]));
        body();
    });
}

fn fields(id: u32, overrun: u32, value: u64) -> SigFields {
    SigFields::Timer { id, overrun, value }
}

#[test]
fn a_signal_comes_once_with_its_value() {
    with_signals(2, || {
        let id = create(SIGNAL, 77);
        assert_eq!(set(id, 5, 0), Setting::default());
        nap(3);
        assert_eq!(take(SIGNAL), None);
        let left = timers::get(&me(), id).expect("a timer");
        assert!(left.value > 0 && left.value <= 2 * MS && left.interval == 0);
        nap(4);
        let info = take(SIGNAL).expect("a signal");
        assert_eq!((info.code, info.fields), (code::TIMER, fields(id, 0, 77)));
        assert_eq!(timers::get(&me(), id), Ok(Setting::default()));
        nap(10);
        assert_eq!(take(SIGNAL), None);
    });
}

#[test]
fn expiries_while_the_signal_is_pending_are_counted() {
    with_signals(2, || {
        let id = create(SIGNAL, 1);
        set(id, 2, 2);
        nap(21);
        let info = take(SIGNAL).expect("a signal");
        let SigFields::Timer { overrun, .. } = info.fields else {
            panic!("no timer's");
        };
        assert!((8..=10).contains(&overrun), "{overrun}");
        assert_eq!(timers::overrun(&me(), id), Ok(overrun));
        assert_eq!(take(SIGNAL), None);
        nap(3);
        // Again after one interval or two.
        let next = take(SIGNAL).map(|info| info.fields);
        assert!(next == Some(fields(id, 0, 1)) || next == Some(fields(id, 1, 1)));
    });
}

#[test]
fn a_new_setting_and_a_deletion_keep_the_old_signal_away() {
    with_signals(1, || {
        let id = create(SIGNAL, 1);
        set(id, 3, 0);
        let old = set(id, 8, 0);
        assert!(old.value > 0 && old.value <= 3 * MS);
        nap(5);
        assert_eq!(take(SIGNAL), None);
        timers::delete(&me(), id).expect("a timer");
        nap(10);
        assert_eq!(take(SIGNAL), None);
        assert_eq!(timers::delete(&me(), id), Err(TimerError::NoTimer));
        assert_eq!(timers::get(&me(), id), Err(TimerError::NoTimer));
        assert_eq!(timers::set(&me(), id, None, 0), Err(TimerError::NoTimer));
    });
}

#[test]
fn two_timers_of_one_standard_signal_both_go_on() {
    with_signals(1, || {
        let ids = [create(USR1, 1), create(USR1, 2)];
        for id in ids {
            set(id, 2, 2);
        }
        nap(5);
        assert!(take(USR1).is_some());
        nap(3);
        // Both are armed again by the one signal; so both stand behind the next.
        assert!(take(USR1).is_some());
        for id in ids {
            assert!(timers::get(&me(), id).is_ok_and(|s| s.value > 0));
        }
    });
}

/// Taking the real-time signal of one timer says nothing about another's.
#[test]
fn two_timers_of_one_real_time_signal_have_one_each() {
    with_signals(1, || {
        let ids = [create(SIGNAL, 1), create(SIGNAL, 2)];
        for id in ids {
            set(id, 2, 2);
        }
        nap(5);
        let first = take(SIGNAL).expect("one timer's").fields;
        // The other's is pending still, and comes once.
        nap(5);
        let rest: Vec<_> = std::iter::from_fn(|| take(SIGNAL)).collect();
        let of = |n: usize| {
            let is =
                |fields: &SigFields| matches!(fields, SigFields::Timer { id, .. } if *id == ids[n]);
            rest.iter().filter(|info| is(&info.fields)).count() + usize::from(is(&first))
        };
        assert!(
            of(0) <= 2 && of(1) <= 2 && rest.len() <= 2,
            "{first:?} {rest:?}"
        );
    });
}

#[test]
fn an_ignored_signal_does_not_end_a_timer() {
    with_signals(1, || {
        let id = create(sig::CHLD, 1);
        set(id, 1, 1);
        nap(10);
        let left = timers::get(&me(), id).expect("a timer");
        assert!(left.value > 0 && left.interval == MS);
        assert_eq!(take(sig::CHLD), None);
    });
}

#[test]
fn a_timer_that_tells_nobody_goes_on() {
    with_signals(1, || {
        let id = timers::create(&me(), spec(Notify::Nobody, 0, 0)).expect("memory");
        set(id, 2, 7);
        nap(4);
        let left = timers::get(&me(), id).expect("a timer");
        assert!(left.value > 0 && left.value <= 7 * MS && left.interval == 7 * MS);
        let once = timers::create(&me(), spec(Notify::Nobody, 0, 0)).expect("memory");
        set(once, 2, 0);
        nap(4);
        assert_eq!(timers::get(&me(), once), Ok(Setting::default()));
    });
}

#[test]
fn a_process_has_so_many_timers_and_no_more() {
    with_signals(1, || {
        let ids: Vec<u32> = (0..MOST).map(|_| create(SIGNAL, 0)).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        let one_more = timers::create(&me(), spec(Notify::Process, SIGNAL, 0));
        assert_eq!(one_more, Err(TimerError::Again));
        timers::delete(&me(), ids[5]).expect("a timer");
        create(SIGNAL, 0);
    });
}
