//! Threads that sleep, are woken and move between CPUs, on the kernel's own scheduler, with a switch possible at every access to
//! an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p task --release --test shuttle_park`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod gate;
mod support;

use std::sync::Arc;

use gate::Gate;
use ksync::atomic::{AtomicBool, Ordering::SeqCst};
use support::{
    MS, Stopped, compute, everywhere, explore, nap, on, spawn, stop_everywhere, wait_for_ends,
};
use task::park::{self, Deadline, Interruptible, ParkError};
use task::sched::{self, CpuMask};
use task::thread::flag;
use task::wait::Waiter;
use task::{current, ids};

fn one_sleeps_and_one_wakes() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let theirs = gate.clone();
        spawn(None, move || {
            theirs.admit();
        });
        assert_eq!(gate.pass(Deadline::Never, Interruptible::No), Ok(()));
    });
}

#[test]
fn no_wake_up_is_lost() {
    explore(one_sleeps_and_one_wakes);
}

#[test]
fn no_wake_up_is_lost_wherever_one_of_the_two_is_stopped() {
    stop_everywhere(Stopped::Body, one_sleeps_and_one_wakes);
    stop_everywhere(Stopped::Other, one_sleeps_and_one_wakes);
}

#[test]
#[should_panic = "a wake-up was lost"]
fn a_step_that_tests_before_it_listens_loses_one() {
    stop_everywhere(Stopped::Body, || {
        on(2, || {
            let gate = Arc::new(Gate::default());
            let theirs = gate.clone();
            spawn(None, move || {
                theirs.admit();
            });
            let step = |gate: &mut &Gate, waiter: &mut Waiter| {
                let taken = gate.take();
                waiter.listen(&gate.queue);
                taken
            };
            let _ = park::park(&mut &*gate, Deadline::Never, Interruptible::No, step);
        });
    });
}

/// A thread that waits for a lock is given it before it sleeps, or while it goes to sleep.
#[test]
fn a_lock_that_comes_at_any_moment_ends_the_wait() {
    ksync::lock_class!(TestLock, "test mutex", rank = 1);
    everywhere(|| {
        on(2, || {
            let lock = Arc::new(ksync::Mutex::<u32, TestLock>::new(0));
            let comes = Arc::new(AtomicBool::new(false));
            let held = lock.lock();
            let (theirs, begun) = (lock.clone(), comes.clone());
            spawn(Some(1), move || {
                begun.store(true, SeqCst);
                *theirs.lock() += 1;
                assert_eq!(current().state_letter(), b'R');
            });
            while !comes.load(SeqCst) {
                hal::cpu::relax();
            }
            drop(held);
            wait_for_ends(1);
            assert_eq!(*lock.lock(), 1);
        });
    });
}

#[test]
fn a_timeout_swallows_no_wake_up() {
    explore(|| {
        on(2, || {
            let gate = Arc::new(Gate::default());
            let theirs = gate.clone();
            spawn(None, move || {
                if theirs
                    .pass(Deadline::after(1000), Interruptible::No)
                    .is_ok()
                {
                    // The permission was meant for either of the two.
                    theirs.admit();
                }
            });
            let theirs = gate.clone();
            spawn(None, move || {
                theirs.admit();
            });
            assert_eq!(gate.pass(Deadline::Never, Interruptible::No), Ok(()));
        });
    });
}

#[test]
fn a_kill_ends_the_sleep_that_begins_beside_it() {
    explore(|| {
        on(2, || {
            let gate = Arc::new(Gate::default());
            let tid = spawn(None, move || {
                let ended = gate.pass(Deadline::Never, Interruptible::Kill);
                assert_eq!(ended, Err(ParkError::Signal));
            });
            let pin = ksync::pin();
            if let Some(victim) = ids::thread(&pin, tid) {
                victim.set(flag::KILLED);
                sched::wake(&pin, victim);
            }
            drop(pin);
        });
    });
}

#[test]
fn a_thread_whose_affinity_changes_while_it_is_woken_is_not_lost() {
    explore(|| {
        on(2, || {
            let gate = Arc::new(Gate::default());
            let theirs = gate.clone();
            let tid = spawn(None, move || {
                for _ in 0..2 {
                    let passed = theirs.pass(Deadline::Never, Interruptible::No);
                    assert_eq!(passed, Ok(()));
                    sched::yield_now();
                }
                theirs.queue.wake_all();
            });
            let theirs = gate.clone();
            spawn(None, move || {
                theirs.admit();
                theirs.admit();
            });
            for cpu in [1, 0] {
                let pin = ksync::pin();
                let moved =
                    ids::thread(&pin, tid).map(|t| sched::set_affinity(t, &CpuMask::one(cpu)));
                assert_ne!(moved, Some(false));
                drop(pin);
            }
            assert!(current().affinity().has(0));
        });
    });
}

#[test]
fn a_thread_whose_affinity_changes_while_it_is_switched_to_moves() {
    stop_everywhere(Stopped::Idle, || {
        on(2, || {
            sched::set_affinity(&current(), &CpuMask::one(0));
            sched::yield_now();
            let moved = Arc::new(AtomicBool::new(false));
            let theirs = moved.clone();
            let tid = spawn(Some(1), move || {
                while ksync::pin().cpu() == 1 {
                    compute(MS);
                }
                theirs.store(true, SeqCst);
            });
            let pin = ksync::pin();
            ids::thread(&pin, tid).map(|t| sched::set_affinity(t, &CpuMask::one(0)));
            drop(pin);
            // Nothing but its tick makes CPU 1 look for another thread.
            nap(50);
            assert!(moved.load(SeqCst));
        });
    });
}
