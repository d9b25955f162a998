//! Interval timers set by two threads, and ITIMER_REAL beside its expiry and beside the taking of its signal, with a switch possible at every access
//! to an atomic.
#![cfg(shuttle)]

mod models;
mod programs;
mod support;

use std::sync::Arc;

use ksync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use models::{Body, Model, at_random, everywhere};
use proc::SignalExt;
use proc::itimer::{self, Setting, Which};
use proc::signal::{SigSet, sig};
use programs::{catch, is_pending, take};
use support::{exited, me, nap};
use task::current::current;

/// An hour, in nanoseconds: a time that does not come.
const LONG: u64 = 3_600_000_000_000;

fn set(value: u64, interval: u64) -> Setting {
    itimer::set(&me(), Which::Real, Setting { value, interval })
}

/// SIGALRM stays pending until it is taken.
fn block() {
    catch(sig::ALRM);
    current().set_blocked(SigSet::one(sig::ALRM));
}

/// Each of two threads sets the timer: one of them gets what the other has set, whose value and interval belong together.
fn two_settings(which: Which) -> Model {
    let set = move |name: u64| {
        let (value, interval) = (name * LONG, name);
        itimer::set(&me(), which, Setting { value, interval })
    };
    let returned = Arc::new(AtomicU64::new(0));
    let setter = |name: u64| -> Body {
        let returned = returned.clone();
        Arc::new(move || {
            let old = set(name);
            assert_eq!((old.value + LONG / 2) / LONG, old.interval, "{old:?}");
            returned.fetch_add(old.interval, SeqCst);
        })
    };
    let sum = returned.clone();
    Model {
        begin: Arc::new(move || {
            set(1);
        }),
        threads: vec![setter(10), setter(100)],
        check: Box::new(move |status| {
            assert_eq!(status, exited(0));
            let sum = sum.load(SeqCst);
            assert!(sum == 11 || sum == 101, "{sum}");
        }),
    }
}

#[test]
fn of_two_settings_one_replaces_the_other() {
    everywhere(|| two_settings(Which::Real));
    at_random(|| two_settings(Which::Real));
    everywhere(|| two_settings(Which::Virtual));
}

/// One thread turns the timer off, while the other lets the time pass to its expiry.
fn off_and_expiry() -> Model {
    let pass: Body = Arc::new(|| hal::time::spin_ns(400_000));
    let turn_off: Body = Arc::new(|| {
        let old = set(0, 0);
        let came = take(sig::ALRM).is_some();
        assert!(old.value == 0 || !came, "{old:?} and a signal");
        // From here on nothing may come.
        nap(1);
        assert!(!is_pending(sig::ALRM), "a signal of a timer that is off");
    });
    Model {
        begin: Arc::new(|| {
            block();
            set(200_000, 0);
        }),
        threads: vec![pass, turn_off],
        check: Box::new(|status| assert_eq!(status, exited(0))),
    }
}

#[test]
fn a_timer_that_is_turned_off_sends_no_signal_afterwards() {
    everywhere(off_and_expiry);
    at_random(off_and_expiry);
}

/// One thread takes the signal of a periodic timer, by which the timer is armed again, while the other turns it off.
fn off_and_taking() -> Model {
    let left = Arc::new(AtomicBool::new(false));
    let theirs = left.clone();
    let taker: Body = Arc::new(|| {
        take(sig::ALRM);
    });
    let turn_off: Body = Arc::new(move || {
        let old = set(0, 0);
        assert!(old.interval == LONG, "{old:?}");
        let now = itimer::get(&me(), Which::Real);
        theirs.fetch_or(now != Setting::default(), SeqCst);
        nap(1);
        let now = itimer::get(&me(), Which::Real);
        theirs.fetch_or(now != Setting::default(), SeqCst);
    });
    Model {
        begin: Arc::new(|| {
            block();
            set(1000, LONG);
            hal::time::spin_ns(100_000);
            nap(1);
            assert!(is_pending(sig::ALRM));
        }),
        threads: vec![taker, turn_off],
        check: Box::new(move |status| {
            assert_eq!(status, exited(0));
            assert!(!left.load(SeqCst), "a timer that is off is armed again");
        }),
    }
}

#[test]
fn a_timer_that_is_turned_off_is_not_armed_by_its_last_signal() {
    everywhere(off_and_taking);
    at_random(off_and_taking);
}
