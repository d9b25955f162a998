//! A thread that sleeps or runs while others wake it, lend it a real-time priority and set its policy, with a switch possible at every
//! access to an atomic: it runs with what is in force, and its CPU knows.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p task --release --test shuttle_real_time`
#![cfg(shuttle)]

mod gate;
mod support;

use std::sync::Arc;

use gate::Gate;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use support::{MS, everywhere, explore, on, spawn, wait_for_ends};
use task::park::{Deadline, Interruptible};
use task::sched::{self, CpuMask, Policy, Setting};
use task::thread::flag;
use task::time::monotonic_ns;
use task::{Thread, current, ids};

const FIFO: Setting = Setting {
    policy: Policy::Fifo,
    priority: 10,
    reset_on_fork: false,
};

/// What the threads beside the one that is changed have done.
#[derive(Default)]
struct State {
    gate: Gate,
    done: AtomicU32,
}

fn with(tid: u32, act: impl FnOnce(&ksync::CpuPin, &Thread)) {
    let pin = ksync::pin();
    act(&pin, ids::thread(&pin, tid).expect("it has not ended"));
}

/// Waits, for less than a tick, until this CPU has the caller's real-time priority for that of the thread that it runs.
fn cpu_knows() {
    let until = monotonic_ns() + MS;
    loop {
        let pin = ksync::pin();
        let known = sched::urgency(pin.cpu()) == u32::from(current().priority());
        drop(pin);
        if known {
            return;
        }
        assert!(
            monotonic_ns() < until,
            "the CPU does not know of the change"
        );
        hal::cpu::relax();
    }
}

/// The body passes a gate, which another thread opens, while that one or a third does `changes`. Then it has the priority `priority`.
fn changed_beside_a_wake_up(changes: [fn(&ksync::CpuPin, &Thread); 2], priority: u8) {
    on(2, move || {
        // Those that make the changes are not behind this thread.
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        let state = Arc::new(State::default());
        let me = current().tid();
        let theirs = state.clone();
        spawn(Some(1), move || {
            theirs.gate.admit();
            with(me, changes[0]);
            theirs.done.fetch_add(1, SeqCst);
        });
        let theirs = state.clone();
        spawn(Some(1), move || {
            with(me, changes[1]);
            theirs.done.fetch_add(1, SeqCst);
        });
        let passed = state.gate.pass(Deadline::Never, Interruptible::No);
        assert_eq!(passed, Ok(()));
        while state.done.load(SeqCst) < 2 {
            hal::cpu::relax();
        }
        assert_eq!(current().priority(), priority);
        cpu_knows();
        current().set_policy(Policy::Other, false);
        sched::lend_priority(&ksync::pin(), &current(), 0);
        wait_for_ends(2);
        assert_eq!([sched::urgency(0), sched::urgency(1)], [0, 0]);
    });
}

#[test]
fn a_loan_beside_a_wake_up_and_a_new_policy() {
    everywhere(|| {
        changed_beside_a_wake_up(
            [
                |pin, t| sched::lend_priority(pin, t, 20),
                |_, t| t.set_setting(FIFO),
            ],
            20,
        );
    });
}

#[test]
fn a_loan_that_is_taken_back_beside_a_wake_up_and_a_new_policy() {
    everywhere(|| {
        changed_beside_a_wake_up(
            [
                |pin, t| {
                    sched::lend_priority(pin, t, 20);
                    sched::lend_priority(pin, t, 0);
                },
                |_, t| t.set_setting(FIFO),
            ],
            10,
        );
    });
}

/// Another thread lends the body a priority for the first of these locks, while the body is lent a higher one for the second, and hands over the
/// one at 64 if it `hands_over`. Returns its priority then.
fn lent_for_locks([first, second]: [usize; 2], hands_over: bool) -> u8 {
    let me = current();
    me.clear(flag::KERNEL);
    let state = Arc::new(State::default());
    let (theirs, tid) = (state.clone(), me.tid());
    spawn(Some(1), move || {
        with(tid, |pin, t| sched::lend_for_lock(pin, t, 10, first));
        theirs.done.fetch_add(1, SeqCst);
    });
    sched::lend_for_lock(&ksync::pin(), &me, 20, second);
    if hands_over {
        sched::lock_released(&ksync::pin(), &me, 64);
    }
    while state.done.load(SeqCst) < 1 {
        hal::cpu::relax();
    }
    let lent = me.priority();
    cpu_knows();
    sched::give_back(&me);
    assert_eq!(me.priority(), 0);
    me.set(flag::KERNEL);
    wait_for_ends(1);
    lent
}

#[test]
fn loans_for_locks_beside_one_another_and_their_ends() {
    // In the second turn the loans are for two locks, so none ends with the one that is handed over.
    for (locks, hands_over) in [([64, 64], false), ([64, 128], true)] {
        everywhere(move || {
            on(2, move || {
                assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
                assert_eq!(lent_for_locks(locks, hands_over), 20);
            });
        });
    }
}

/// Two threads change the setting of a third one, and each judges by what it has seen.
#[test]
fn of_two_settings_judged_by_the_same_one_is_refused() {
    explore(|| {
        on(2, || {
            let me: Arc<Thread> = ids::hold_thread(current().tid()).expect("it runs");
            let theirs = me.clone();
            let taken = Arc::new(AtomicU32::new(0));
            let also = taken.clone();
            let seen = me.setting();
            spawn(None, move || {
                let set = sched::replace_setting(&theirs, seen, FIFO);
                also.fetch_add(set.into(), SeqCst);
            });
            let high = Setting {
                priority: 30,
                ..FIFO
            };
            let set = sched::replace_setting(&me, seen, high);
            taken.fetch_add(set.into(), SeqCst);
            wait_for_ends(1);
            assert_eq!(taken.load(SeqCst), 1);
            assert_eq!(me.priority(), if set { 30 } else { 10 });
        });
    });
}
