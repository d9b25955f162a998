//! Timers that are files, set and read beside their expiry and beside changes of the clock, with a switch possible at every access to
//! an atomic.
#![cfg(shuttle)]

mod epolls;

use epolls::pipe_users::threads::everywhere;
use epolls::*;
use ipc::timerfd::{self, Mode, Setting, clock_was_set};
use task::park::Deadline;
use task::time::{realtime_ns, set_realtime};
use vfs::error::FsError;
use vfs::file::{FileRef, o};

/// An hour: a time that does not come.
const LONG: u64 = 3_600_000 * MS;

fn timer(real: bool, flags: u32) -> FileRef {
    timerfd::make(real, flags).expect("memory for a timer")
}

fn set(file: &FileRef, value: u64, interval: u64) -> Setting {
    let new = Setting { value, interval };
    timerfd::set(file, new, Mode::default()).expect("a timer").0
}

/// A read sleeps while the timer expires.
#[test]
fn a_read_sees_the_expiry() {
    everywhere(|| {
        on(2, || {
            let t = timer(false, 0);
            let sets = t.clone();
            spawn(None, move || {
                set(&sets, 1000, 0);
                nap(1);
            });
            assert_eq!(take(&t), Ok(1));
            wait_for_ends(1);
        });
    });
}

/// A timer is turned off beside its expiry: nothing comes afterwards.
#[test]
fn a_timer_that_is_off_does_not_expire() {
    everywhere(|| {
        on(2, || {
            let t = timer(false, o::NONBLOCK);
            set(&t, 100_000, 0);
            spawn(None, || hal::time::spin_ns(200_000));
            set(&t, 0, 0);
            nap(1);
            assert_eq!(take(&t), Err(FsError::WouldBlock));
            wait_for_ends(1);
        });
    });
}

/// A periodic timer is set anew by one thread while another reads it, which arms it again.
#[test]
fn a_new_setting_stays_beside_a_read() {
    everywhere(|| {
        on(2, || {
            let t = timer(false, o::NONBLOCK);
            set(&t, 1000, 1000);
            nap(1);
            let reads = t.clone();
            spawn(None, move || {
                let _ = take(&reads);
            });
            set(&t, LONG, 0);
            wait_for_ends(1);
            nap(1);
            assert_eq!(take(&t), Err(FsError::WouldBlock));
            let now = timerfd::get(&t).expect("a timer");
            assert!(now.value > LONG / 2 && now.interval == 0, "{now:?}");
        });
    });
}

/// The clock is set beside a setting to a time of it: the timer expires by the new clock.
#[test]
fn a_setting_beside_a_change_of_the_clock_is_by_the_new_one() {
    everywhere(|| {
        on(2, || {
            let t = timer(true, 0);
            let at = realtime_ns() + LONG;
            spawn(None, || {
                set_realtime(realtime_ns() + 2 * LONG);
                clock_was_set();
                nap(1);
            });
            let new = Setting {
                value: at,
                interval: 0,
            };
            let mode = Mode {
                absolute: true,
                cancel_on_set: false,
            };
            assert!(timerfd::set(&t, new, mode).is_ok());
            assert_eq!(take(&t), Ok(1));
            wait_for_ends(1);
        });
    });
}

/// A timer is closed beside its expiry, and beside the look of an epoll.
#[test]
fn a_timer_is_closed_beside_its_expiry() {
    everywhere(|| {
        on(2, || {
            let (t, e) = (timer(false, 0), epoll());
            assert_eq!(add(&e, &t, 3, IN), Ok(()));
            set(&t, 100_000, 100_000);
            spawn(None, move || {
                hal::time::spin_ns(150_000);
                drop(t);
            });
            let _ = wait_until(&e, 1, Deadline::after(MS));
            wait_for_ends(1);
            assert_eq!(ready(&e), []);
        });
    });
}
