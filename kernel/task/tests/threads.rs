//! Threads on the simulated machine: made, run, put to sleep, woken, ended.
#![cfg(not(shuttle))]

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use support::{MS, compute, nap, on, spawn};
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use task::thread::flag;
use task::wait::WaitQueue;
use task::{current, ids, sched, time};

/// A flag with a queue of those that wait for it.
#[derive(Default)]
struct Gate {
    open: AtomicU32,
    queue: WaitQueue,
}

/// Waits until the gate lets the caller pass: each pass lowers `open` by one.
fn pass(gate: &Gate, deadline: Deadline, interruptible: Interruptible) -> Result<(), ParkError> {
    park::park(&mut &*gate, deadline, interruptible, |gate, waiter| {
        waiter.listen(&gate.queue);
        let lower = |open: u32| open.checked_sub(1);
        match gate.open.fetch_update(SeqCst, SeqCst, lower) {
            Ok(_) => Step::Done(()),
            Err(_) => Step::Wait,
        }
    })
}

#[test]
fn threads_run_and_end() {
    on(2, || {
        let ran = Arc::new(AtomicU32::new(0));
        for _ in 0..10 {
            let ran = ran.clone();
            spawn(None, move || {
                ran.fetch_add(1, SeqCst);
            });
        }
        support::wait_for_ends(10);
        assert_eq!(ran.load(SeqCst), 10);
    });
}

#[test]
#[should_panic = "a wake-up was lost"]
fn a_lost_wake_up_is_noticed() {
    on(2, || {
        let _ = park::sleep_until(Deadline::Never, Interruptible::No);
    });
}

#[test]
fn a_sleep_ends_at_its_deadline() {
    on(1, || {
        let before = time::monotonic_ns();
        let until = before + 7 * MS;
        assert_eq!(
            park::sleep_until(Deadline::At(until), Interruptible::No),
            Ok(())
        );
        let after = time::monotonic_ns();
        assert!(
            (until..until + MS).contains(&after),
            "{before} {until} {after}"
        );
    });
}

#[test]
fn a_deadline_in_the_past_runs_the_step_once() {
    on(1, || {
        let mut runs = 0;
        let result = park::park(&mut runs, Deadline::now(), Interruptible::No, |runs, _| {
            *runs += 1;
            Step::<()>::Wait
        });
        assert_eq!((result, runs), (Err(ParkError::Timeout), 1));
    });
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines() {
    on(1, || {
        let order = Arc::new(Mutex::new(Vec::new()));
        for ms in [30, 10, 20, 5, 25] {
            let order = order.clone();
            spawn(None, move || {
                nap(ms);
                order.lock().expect("not poisoned").push(ms);
            });
        }
        support::wait_for_ends(5);
        assert_eq!(*order.lock().expect("not poisoned"), [5, 10, 20, 25, 30]);
    });
}

#[test]
fn the_thread_that_waits_longest_is_woken_first() {
    on(1, || {
        let gate = Arc::new(Gate::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        for n in 0..3 {
            let (theirs, order) = (gate.clone(), order.clone());
            spawn(None, move || {
                assert_eq!(pass(&theirs, Deadline::Never, Interruptible::No), Ok(()));
                order.lock().expect("not poisoned").push(n);
            });
            nap(1);
        }
        for passed in 1..=3 {
            gate.open.fetch_add(1, SeqCst);
            assert!(gate.queue.wake_one());
            support::wait_for_ends(passed);
        }
        assert!(!gate.queue.wake_one(), "nobody waits any more");
        assert_eq!(*order.lock().expect("not poisoned"), [0, 1, 2]);
    });
}

#[test]
fn a_wake_up_that_is_not_needed_is_passed_on() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        for _ in 0..2 {
            let theirs = gate.clone();
            spawn(None, move || {
                let step = |gate: &mut Arc<Gate>, waiter: &mut _| {
                    task::wait::Waiter::listen(waiter, &gate.queue);
                    match gate.open.load(SeqCst) {
                        0 => Step::Wait,
                        _ => Step::Done(()),
                    }
                };
                let pass_on = |gate: &mut Arc<Gate>| {
                    gate.queue.wake_one();
                };
                let mut state = theirs;
                let passed = park::park_and_pass_on(
                    &mut state,
                    Deadline::Never,
                    Interruptible::No,
                    step,
                    pass_on,
                );
                assert_eq!(passed, Ok(()));
                // This thread is done, and wakes the next one as the holder of a lock would.
                state.queue.wake_one();
            });
        }
        nap(1);
        gate.open.store(1, SeqCst);
        gate.queue.wake_one();
        support::wait_for_ends(2);
    });
}

#[test]
fn a_kill_ends_a_sleep_that_allows_it() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let woken = Arc::new(AtomicBool::new(false));
        let (theirs, woke) = (gate.clone(), woken.clone());
        let tid = spawn(None, move || {
            let ended = pass(&theirs, Deadline::Never, Interruptible::Kill);
            woke.store(ended == Err(ParkError::Signal), SeqCst);
        });
        nap(1);
        let victim = ids::hold_thread(tid).expect("it sleeps");
        victim.set(flag::KILLED);
        sched::wake(&ksync::pin(), &victim);
        support::wait_for_ends(1);
        assert!(woken.load(SeqCst));
    });
}

#[test]
fn a_spurious_wake_up_ends_no_sleep() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let theirs = gate.clone();
        let tid = spawn(None, move || {
            assert_eq!(pass(&theirs, Deadline::Never, Interruptible::No), Ok(()));
        });
        for _ in 0..20 {
            nap(1);
            let sleeper = ids::hold_thread(tid).expect("it sleeps");
            sched::wake(&ksync::pin(), &sleeper);
        }
        assert_eq!(support::ended(), 0);
        gate.open.store(1, SeqCst);
        gate.queue.wake_all();
        support::wait_for_ends(1);
    });
}

#[test]
fn a_timeout_and_a_wake_up_are_told_apart() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let soon = Deadline::after(2 * MS);
        assert_eq!(
            pass(&gate, soon, Interruptible::No),
            Err(ParkError::Timeout)
        );
        gate.open.store(1, SeqCst);
        let soon = Deadline::after(2 * MS);
        assert_eq!(pass(&gate, soon, Interruptible::No), Ok(()));
        assert!(!current().timer.armed(), "the sleep's timer is taken back");
    });
}

#[test]
fn a_sleep_within_a_step_does_not_end_the_outer_one() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let theirs = gate.clone();
        spawn(None, move || {
            nap(5);
            theirs.open.store(1, SeqCst);
            theirs.queue.wake_all();
        });
        let until = Deadline::after(50 * MS);
        let passed = park::park(&mut &*gate, until, Interruptible::No, |gate, waiter| {
            waiter.listen(&gate.queue);
            nap(1);
            match gate.open.load(SeqCst) {
                0 => Step::Wait,
                n => Step::Done(n),
            }
        });
        assert_eq!(passed, Ok(1));
    });
}

#[test]
fn sleeping_locks_exclude_and_wake() {
    ksync::lock_class!(TestLock, "test mutex", rank = 1);
    on(4, || {
        let total = Arc::new(ksync::Mutex::<u32, TestLock>::new(0));
        for _ in 0..6 {
            let total = total.clone();
            spawn(None, move || {
                for _ in 0..20 {
                    let mut held = total.lock();
                    let before = *held;
                    nap(1);
                    *held = before + 1;
                }
            });
        }
        support::wait_for_ends(6);
        assert_eq!(*total.lock(), 120);
    });
}

#[test]
fn a_pinned_thread_is_not_preempted() {
    on(1, || {
        let other_ran = Arc::new(AtomicBool::new(false));
        let theirs = other_ran.clone();
        let pin = ksync::pin();
        spawn(None, move || theirs.store(true, SeqCst));
        compute(20 * MS);
        assert!(!other_ran.load(SeqCst), "preemption is off");
        drop(pin);
        compute(20 * MS);
        assert!(other_ran.load(SeqCst), "its time slice is over");
    });
}
