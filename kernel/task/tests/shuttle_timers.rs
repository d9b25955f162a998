//! Timers that are set, cancelled and expire at once on two CPUs, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p task --release --test shuttle_timers`; `PANTALA_SCHEDULES` says how many schedules
//! each test tries.
#![cfg(shuttle)]

mod processes;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use processes::{MS, Stopped, alarm, everywhere, explore, nap, on, spawn, stop_everywhere};
use task::current;
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use task::time::monotonic_ns;
use task::wait::{WaitQueue, Waiter};

/// Nanoseconds after which an alarm expires while the threads still run: a look at the clock takes 50.
const SOON: u64 = 400;

/// Two threads set one alarm while it expires. Each setting ends once: it expires, or the other one replaces it.
fn two_set_one_alarm() {
    on(2, || {
        let replaced = Arc::new(AtomicU32::new(0));
        let theirs = replaced.clone();
        alarm(1).set(1, Some(monotonic_ns() + SOON));
        let set = |replaced: &AtomicU32| {
            for ahead in [SOON / 2, SOON] {
                let was = alarm(1).set(1, Some(monotonic_ns() + ahead));
                replaced.fetch_add(u32::from(was), SeqCst);
            }
        };
        let tid = spawn(None, move || set(&theirs));
        set(&replaced);
        ended(tid);
        nap(1);
        let rings = alarm(1).rings().len() as u32;
        assert_eq!(rings + replaced.load(SeqCst), 5);
        assert!(!alarm(1).node().armed());
    });
}

/// Sleeps until the thread is gone.
fn ended(tid: u32) {
    while task::ids::hold_thread(tid).is_some() {
        nap(1);
    }
}

#[test]
fn each_setting_of_an_alarm_ends_once() {
    everywhere(two_set_one_alarm);
}

#[test]
#[should_panic]
fn settings_without_a_common_lock_meet() {
    stop_everywhere(Stopped::Body, || {
        on(2, || {
            let set = || alarm(1).set_without_lock(1, monotonic_ns() + MS);
            let tid = spawn(None, move || {
                set();
                set();
            });
            set();
            set();
            ended(tid);
            nap(5);
            assert!(!alarm(1).node().armed());
        });
    });
}

/// Three alarms share a list of the wheel of one CPU. The other CPU cancels the one in the middle while they expire.
#[test]
fn the_neighbours_of_an_alarm_that_is_cancelled_expire() {
    everywhere(|| {
        on(2, || {
            let due = monotonic_ns() + SOON;
            (1..4).for_each(|pid| {
                alarm(pid).set(pid, Some(due));
            });
            let cancelled = Arc::new(AtomicU32::new(0));
            let theirs = cancelled.clone();
            let tid = spawn(None, move || {
                let was = alarm(2).set(2, None);
                theirs.store(u32::from(was), SeqCst);
            });
            ended(tid);
            nap(1);
            let rings = [1, 2, 3].map(|pid| alarm(pid).rings().len() as u32);
            assert_eq!(rings, [1, 1 - cancelled.load(SeqCst), 1]);
        });
    });
}

/// A cancelled alarm does not expire later: what is to come has come before the call returns, or finds the alarm off.
#[test]
fn no_alarm_expires_after_it_has_been_cancelled() {
    everywhere(|| {
        on(2, || {
            alarm(1).set(1, Some(monotonic_ns() + SOON));
            let tid = spawn(None, || {
                let was = alarm(1).set(1, None);
                let rings = alarm(1).rings().len();
                assert_eq!(rings, usize::from(!was));
                nap(1);
                assert_eq!(alarm(1).rings().len(), rings);
                assert!(!alarm(1).node().armed());
            });
            ended(tid);
        });
    });
}

/// Permissions to pass, and a queue of those that wait for one.
#[derive(Default)]
struct Gate {
    open: AtomicU32,
    queue: WaitQueue,
}

impl Gate {
    fn pass(&self, deadline: Deadline) -> Result<(), ParkError> {
        let step = |gate: &mut &Gate, waiter: &mut Waiter| {
            waiter.listen(&gate.queue);
            let lower = |open: u32| open.checked_sub(1);
            match gate.open.fetch_update(SeqCst, SeqCst, lower) {
                Ok(_) => Step::Done(()),
                Err(_) => Step::Wait,
            }
        };
        park::park(&mut &*self, deadline, Interruptible::No, step)
    }
}

/// The sleep ends in time or with the permission; its timer is off the wheel then, wherever the thread runs.
#[test]
fn a_timeout_beside_a_wake_up_leaves_no_timer() {
    everywhere(|| {
        on(2, || {
            let gate = Arc::new(Gate::default());
            let theirs = gate.clone();
            let tid = spawn(None, move || {
                let passed = theirs.pass(Deadline::after(SOON));
                assert!(!current().timer.armed());
                if passed.is_err() {
                    // The permission is still there, or comes.
                    assert_eq!(passed, Err(ParkError::Timeout));
                    assert_eq!(theirs.pass(Deadline::Never), Ok(()));
                }
            });
            gate.open.fetch_add(1, SeqCst);
            gate.queue.wake_one();
            ended(tid);
            assert_eq!(gate.open.load(SeqCst), 0);
        });
    });
}

#[test]
fn two_sleeps_of_one_length_both_end() {
    explore(|| {
        on(2, || {
            let tids = [0, 1].map(|_| {
                spawn(None, || {
                    let slept = park::sleep_until(Deadline::after(SOON), Interruptible::No);
                    assert_eq!(slept, Ok(()));
                })
            });
            tids.into_iter().for_each(ended);
        });
    });
}
