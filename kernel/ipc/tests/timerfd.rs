//! Timers that are files: expiries, settings beside them, changes of the clock.
#![cfg(not(shuttle))]

mod epolls;

use epolls::pipe_users::call;
use epolls::*;
use ipc::timerfd::{self, Mode, Setting, clock_was_set};
use task::park::Deadline;
use task::time::{monotonic_ns, realtime_ns, set_realtime};
use vfs::error::FsError;
use vfs::file::{FileRef, o};
use vfs::poll::PollMask;

const REAL: Mode = Mode {
    absolute: true,
    cancel_on_set: false,
};
const CANCELS: Mode = Mode {
    absolute: true,
    cancel_on_set: true,
};

fn timer(real: bool) -> FileRef {
    timerfd::make(real, o::NONBLOCK).expect("memory for a timer")
}

fn set(file: &FileRef, value: u64, interval: u64, mode: Mode) -> (Setting, bool) {
    timerfd::set(file, Setting { value, interval }, mode).expect("a timer")
}

/// Sets real time that much ahead, as clock_settime(2).
fn step(ns: i64) {
    set_realtime(realtime_ns().saturating_add_signed(ns));
    clock_was_set();
}

#[test]
fn expiries_are_counted_until_they_are_read() {
    on(2, || {
        let t = timer(false);
        assert_eq!(take(&t), Err(FsError::WouldBlock));
        assert_eq!(timerfd::get(&t), Ok(Setting::default()));
        set(&t, 3 * MS, 0, Mode::default());
        let left = timerfd::get(&t).expect("a timer").value;
        assert!(0 < left && left <= 3 * MS, "{left}");
        assert_eq!(
            (t.poll(None), take(&t)),
            (PollMask::NONE, Err(FsError::WouldBlock))
        );
        nap(4);
        assert_eq!(t.poll(None), PollMask::READ);
        assert_eq!(timerfd::get(&t), Ok(Setting::default()));
        assert_eq!(take(&t), Ok(1));
        assert_eq!(
            (t.poll(None), take(&t)),
            (PollMask::NONE, Err(FsError::WouldBlock))
        );
        // With an interval.
        set(&t, MS, 2 * MS, Mode::default());
        nap(10);
        let n = take(&t).expect("expiries");
        assert!((5..7).contains(&n), "{n}");
        assert_eq!(take(&t), Err(FsError::WouldBlock));
        nap(2);
        assert_eq!(take(&t), Ok(1));
        // A look at the setting counts, too.
        nap(5);
        let now = timerfd::get(&t).expect("a timer");
        assert!(
            now.interval == 2 * MS && 0 < now.value && now.value <= 2 * MS,
            "{now:?}"
        );
        assert!((2..4).contains(&take(&t).expect("expiries")));
        let (old, _) = set(&t, 0, 0, Mode::default());
        assert!(
            old.interval == 2 * MS && 0 < old.value && old.value <= 2 * MS,
            "{old:?}"
        );
        nap(5);
        assert_eq!(take(&t), Err(FsError::WouldBlock));
        assert_eq!(timerfd::get(&counter(0)), Err(FsError::Invalid));
    });
}

#[test]
fn a_new_setting_drops_what_was_not_read() {
    on(1, || {
        let t = timer(false);
        set(&t, MS, 0, Mode::default());
        nap(2);
        set(&t, 50 * MS, 0, Mode::default());
        assert_eq!(take(&t), Err(FsError::WouldBlock));
        set(&t, monotonic_ns() - 1, 0, REAL);
        nap(1);
        assert_eq!(take(&t), Ok(1), "a time that has passed");
    });
}

#[test]
fn reads_and_epolls_wait_for_an_expiry() {
    on(2, || {
        let (t, e) = (timer(false), epoll());
        assert_eq!(add(&e, &t, 3, IN | ET), Ok(()));
        for _ in 0..2 {
            let until = monotonic_ns() + 2 * MS;
            set(&t, until, 0, REAL);
            let found = wait_until(&e, 1, Deadline::Never);
            assert_eq!(found, Ok(vec![event(IN, 3)]));
            assert!(monotonic_ns() >= until);
            assert_eq!((ready(&e), take(&t)), (vec![], Ok(1)));
        }
        let blocking = timerfd::make(false, 0).expect("memory for a timer");
        let reads = blocking.clone();
        let (_, read) = call(move || take(&reads));
        assert!(read.waits());
        set(&blocking, MS, 0, Mode::default());
        assert_eq!(read.get(), Ok(1));
        // The epoll's entry goes with the timer, and the timer leaves its wheel.
        set(&t, MS, MS, Mode::default());
        drop(t);
        nap(3);
        assert_eq!(ready(&e), []);
    });
}

#[test]
fn setting_the_clock_moves_and_cancels_timers_on_it() {
    on(2, || {
        let (moved, cancelled, relative) = (timer(true), timer(true), timer(true));
        let later = realtime_ns() + 1000 * MS;
        set(&moved, later, 0, REAL);
        assert!(!set(&cancelled, later, 0, CANCELS).1);
        set(&relative, 1000 * MS, 0, Mode::default());
        step(2000 * MS as i64);
        nap(1);
        assert_eq!(take(&moved), Ok(1));
        assert_eq!(cancelled.poll(None), PollMask::READ);
        assert_eq!(take(&cancelled), Err(FsError::Cancelled));
        assert_eq!(take(&cancelled), Err(FsError::WouldBlock), "once");
        assert_eq!(take(&relative), Err(FsError::WouldBlock));
        // A setting after a change that the timer has not seen is cancelled at once.
        let fresh = timer(true);
        step(MS as i64);
        assert!(set(&fresh, realtime_ns() + 1000 * MS, 0, CANCELS).1);
        assert!(!set(&fresh, realtime_ns() + 1000 * MS, 0, CANCELS).1);
        // Back: it comes later.
        let soon = timer(true);
        set(&soon, realtime_ns() + 2 * MS, 0, REAL);
        step(-20 * MS as i64);
        nap(5);
        assert_eq!(take(&soon), Err(FsError::WouldBlock));
        nap(20);
        assert_eq!(take(&soon), Ok(1));
        // Back, with an interval: no interval has passed.
        set(&soon, realtime_ns() + MS, 10 * MS, REAL);
        nap(2);
        step(-100 * MS as i64);
        assert_eq!(take(&soon), Ok(1));
        // A reader that sleeps is woken.
        let blocking = timerfd::make(true, 0).expect("memory for a timer");
        set(&blocking, realtime_ns() + 1000 * MS, 0, CANCELS);
        let reads = blocking.clone();
        let (_, read) = call(move || take(&reads));
        assert!(read.waits());
        step(MS as i64);
        assert_eq!(read.get(), Err(FsError::Cancelled));
    });
}

#[test]
fn many_timers_are_on_the_wheels_at_once() {
    on(4, || {
        let timers: Vec<_> = (0..300).map(|_| timer(false)).collect();
        let e = epoll();
        for (fd, t) in timers.iter().enumerate() {
            assert_eq!(add(&e, t, fd as i32, IN | ET), Ok(()));
            set(t, MS + fd as u64 * 10_000, 0, Mode::default());
        }
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < timers.len() {
            let found = wait_until(&e, 50, Deadline::after(50 * MS)).expect("no signal");
            assert!(!found.is_empty(), "{} of them", seen.len());
            for event in found {
                assert!(seen.insert(event.data), "twice");
                assert_eq!(take(&timers[event.data as usize]), Ok(1));
            }
        }
    });
}
