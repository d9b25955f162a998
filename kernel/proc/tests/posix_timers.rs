//! POSIX timers: timer_create(2) and its kin.
#![cfg(not(shuttle))]

mod programs;
mod support;

use proc::SignalExt;
use proc::itimer::Setting;
use proc::signal::{SigFields, SigInfo, SigSet, code, sig};
use proc::timers::{self, ENOUGH_NS, MOST, Notify, Spec, TimerError};
use programs::{MS, catch, count, thread, with_memory};
use std::sync::atomic::Ordering::SeqCst;
use support::{me, nap};
use task::current::current;
use task::park::{self, Deadline, Interruptible};
use task::time::monotonic_ns;

const SIGNAL: u8 = 40;
const USR1: u8 = 10;

fn spec(notify: Notify, signo: u8, value: u64) -> Spec {
    Spec {
        notify,
        signo,
        value: Some(value),
        real: false,
        clock: 1,
    }
}

fn create(signo: u8, value: u64) -> u32 {
    timers::create(&me(), spec(Notify::Process, signo, value), None).expect("memory")
}

/// Times in milliseconds from now.
fn set(id: u32, value: u64, interval: u64) -> Setting {
    let at = (value > 0).then(|| monotonic_ns() + value * MS);
    timers::set(&me(), id, at, interval * MS).expect("a timer")
}

fn value(info: SigInfo) -> u64 {
    let SigFields::Timer { value, .. } = info.fields else {
        panic!("no timer's: {info:?}");
    };
    value
}

/// Sends a signal to the process as kill(2) does.
fn kill(signo: u8) {
    let info = SigInfo::user(signo, code::USER, 1, 0);
    proc::signal::queue_process(&me(), info).expect("room");
}

fn nap_until(at: u64) {
    let _ = park::sleep_until(Deadline::At(at), Interruptible::Kill);
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
    SigFields::Timer {
        id,
        setting: 1,
        overrun,
        value,
    }
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

/// As in Linux, where kill(2) adds none to them.
#[test]
fn two_timers_of_one_standard_signal_have_one_each() {
    with_signals(1, || {
        let ids = [create(USR1, 1), create(USR1, 2)];
        for id in ids {
            set(id, 2, 2);
        }
        nap(5);
        kill(USR1);
        let mut values: Vec<u64> = std::iter::from_fn(|| take(USR1)).map(value).collect();
        values.sort_unstable();
        assert_eq!(values, [1, 2]);
        for id in ids {
            assert!(timers::get(&me(), id).is_ok_and(|s| s.value > 0));
        }
    });
}

/// A signal of kill(2) stands behind that of a timer, whichever came first, and stays when that is dropped.
#[test]
fn a_signal_that_is_no_timers_survives_the_timer() {
    with_signals(1, || {
        for kill_first in [false, true] {
            let id = create(USR1, 1);
            set(id, 1, 0);
            if kill_first {
                kill(USR1);
            }
            nap(2);
            if !kill_first {
                kill(USR1);
            }
            timers::delete(&me(), id).expect("a timer");
            // What came second has lost its information, as where there is no timer.
            let code = if kill_first { code::USER } else { code::KERNEL };
            assert_eq!(take(USR1).map(|info| info.code), Some(code));
            assert_eq!(take(USR1), None);
        }
    });
}

/// Of a timer, one signal at most is pending, and it is of the present setting.
#[test]
fn a_setting_and_a_deletion_drop_the_pending_signal() {
    with_signals(1, || {
        let pid = me().pid();
        let here =
            timers::create(&me(), spec(Notify::Thread(pid), SIGNAL, 1), None).expect("memory");
        for id in [create(SIGNAL, 1), here] {
            for _ in 0..100 {
                set(id, 1, 0);
                nap(2);
            }
            assert!(take(SIGNAL).is_some());
            assert_eq!(take(SIGNAL), None);
            set(id, 1, 0);
            nap(2);
            set(id, 0, 0);
            assert_eq!(take(SIGNAL), None);
            timers::delete(&me(), id).expect("a timer");
        }
        for _ in 0..100 {
            let id = create(SIGNAL, 1);
            set(id, 1, 0);
            nap(2);
            timers::delete(&me(), id).expect("a timer");
        }
        assert_eq!(take(SIGNAL), None);
    });
}

/// However few a queue has room for otherwise: timers that are set when others' signals are pending have room all the same.
#[test]
fn each_of_many_timers_has_room_for_its_signal() {
    with_signals(1, || {
        let ids: Vec<u32> = (0..50).map(|n| create(SIGNAL, n)).collect();
        for &id in &ids {
            set(id, 1, 0);
        }
        // Takes no room that is promised.
        for _ in 0..200 {
            proc::signal::send_process(&me(), SigInfo::user(SIGNAL, code::USER, 1, 0));
        }
        nap(2);
        let all = std::iter::from_fn(|| take(SIGNAL));
        let timers = all.filter(|info| info.code == code::TIMER);
        assert!(timers.map(value).eq(0..50));
    });
}

/// One interrupt sends 64 signals; the others follow, in turn.
#[test]
fn many_expiries_take_several_interrupts() {
    with_signals(2, || {
        let ids: Vec<u32> = (0..MOST as u64).map(|n| create(SIGNAL, n)).collect();
        let at = monotonic_ns() + 10 * MS;
        for &id in &ids {
            timers::set(&me(), id, Some(at), MS).expect("a timer");
        }
        let (mut values, mut after) = (Vec::new(), at);
        while values.len() < MOST {
            nap_until(after);
            let begin = values.len();
            values.extend(std::iter::from_fn(|| take(SIGNAL)).map(value));
            let got = values.len() - begin;
            // The look itself takes time, in which two more interrupts may come.
            assert!(got <= 200, "{got} in one interrupt");
            after = monotonic_ns() + ENOUGH_NS;
        }
        // Timers that are taken expire again, but none comes twice before the last has come once.
        values.truncate(MOST);
        values.sort_unstable();
        assert_eq!(values, Vec::from_iter(0..MOST as u64));
    });
}

/// A timer whose thread has ended tells nobody, and may be set and deleted.
#[test]
fn a_timer_outlives_its_thread() {
    with_signals(2, || {
        let done = count();
        let other = done.clone();
        let tid = thread(move || {
            while other.load(SeqCst) == 0 {
                nap(1);
            }
        });
        let id = timers::create(&me(), spec(Notify::Thread(tid), SIGNAL, 1), None).expect("memory");
        set(id, 1, 1);
        nap(3);
        done.store(1, SeqCst);
        while me().thread_count() > 1 {
            nap(1);
        }
        nap(5);
        set(id, 1, 1);
        nap(5);
        assert!(timers::get(&me(), id).is_ok_and(|s| s.value > 0));
        timers::delete(&me(), id).expect("a timer");
        assert_eq!(take(SIGNAL), None);
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
        let id = timers::create(&me(), spec(Notify::Nobody, 0, 0), None).expect("memory");
        set(id, 2, 7);
        nap(4);
        let left = timers::get(&me(), id).expect("a timer");
        assert!(left.value > 0 && left.value <= 7 * MS && left.interval == 7 * MS);
        let once = timers::create(&me(), spec(Notify::Nobody, 0, 0), None).expect("memory");
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
        let one_more = timers::create(&me(), spec(Notify::Process, SIGNAL, 0), None);
        assert_eq!(one_more, Err(TimerError::Again));
        timers::delete(&me(), ids[5]).expect("a timer");
        create(SIGNAL, 0);
    });
}
