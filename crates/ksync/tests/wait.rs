//! Wait queues: which thread a wake-up reaches, and what becomes of void registrations.
#![cfg(not(any(loom, shuttle)))]

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU32, AtomicUsize, Ordering::*},
};

use ksync::{CpuPin, Registration, Round, Run, RunState, Sleepers, WaitQueue, lock_class};

lock_class!(QueueLock, "test wait queue", rank = 100);

/// Threads that exist one after the other; `BEARER` says which of them has a tid.
static ROUNDS: [Round; 8] = [const { Round::after(0) }; 8];
static HEIRS: [Round; 2] = [Round::after(1), Round::after(2)];
static BEARER: AtomicUsize = AtomicUsize::new(0);
static WOKEN: AtomicU32 = AtomicU32::new(0);

/// Times that a thread begins to sleep, fewer under an interpreter.
const SLEEPS: usize = if cfg!(miri) { 100 } else { 10_000 };

enum Threads {}

impl Sleepers for Threads {
    fn round(_: &CpuPin, tid: u32) -> Option<&Round> {
        match (tid, BEARER.load(Relaxed)) {
            (1, n @ 1..) => HEIRS.get(n - 1),
            (tid, _) => ROUNDS.get(tid as usize),
        }
    }

    fn wake(_: &CpuPin, tid: u32) {
        WOKEN.store(tid, Relaxed);
    }
}

type Queue = WaitQueue<Threads, QueueLock>;

/// The tests share the tids.
fn alone() -> MutexGuard<'static, ()> {
    static TESTS: Mutex<()> = Mutex::new(());
    let guard = TESTS.lock().unwrap_or_else(|e| e.into_inner());
    BEARER.store(0, Relaxed);
    guard
}

fn sleep_on(queue: &Queue, tid: u32) -> u64 {
    let round = ROUNDS[tid as usize].begin();
    assert!(queue.add(Registration::new(tid, round)));
    round
}

fn wakes(queue: &Queue) -> Option<u32> {
    queue.wake_one().then(|| WOKEN.load(Relaxed))
}

#[test]
fn sleepers_are_woken_in_order() {
    let _alone = alone();
    let queue = Queue::new();
    assert!(queue.is_empty());
    for tid in 1..6 {
        sleep_on(&queue, tid);
    }
    assert_eq!(
        [1, 2, 3].map(|_| wakes(&queue)),
        [Some(1), Some(2), Some(3)]
    );
    assert_eq!(queue.wake_all(), 2);
    assert_eq!(wakes(&queue), None);
}

#[test]
fn who_has_given_up_or_been_notified_is_passed_over() {
    let _alone = alone();
    let (first, second) = (Queue::new(), Queue::new());
    let round = ROUNDS[1].begin();
    let me = Registration::new(1, round);
    assert!(first.add(me) && second.add(me));
    sleep_on(&first, 2);
    sleep_on(&second, 3);
    assert_eq!(wakes(&second), Some(1));
    assert!(ROUNDS[1].notified() && ROUNDS[1].goes_on(round) && !ROUNDS[1].is(round));
    assert_eq!(wakes(&first), Some(2));
    assert!(ROUNDS[1].end(), "the wake-up must show at the round's end");
    assert!(!ROUNDS[3].end());
    assert_eq!(wakes(&second), None);
}

#[test]
fn the_heir_of_a_number_is_not_woken_for_the_dead() {
    let _alone = alone();
    let queue = Queue::new();
    let rounds = [sleep_on(&queue, 1), sleep_on(&queue, 2)];
    ROUNDS[1].end();
    for (bearer, last) in [&ROUNDS[1], &HEIRS[0]].into_iter().enumerate() {
        let heir = Round::after(last.heir());
        BEARER.store(bearer + 1, Relaxed);
        // None of the new thread's rounds is one of the dead thread's, however many it begins.
        let mut begun = heir.begin();
        assert!(begun > rounds[0]);
        assert_eq!(begun, HEIRS[bearer].begin());
        for _ in 0..SLEEPS / 10 {
            begun = heir.begin();
            assert!(begun > rounds[0]);
        }
    }
    assert_eq!(wakes(&queue), Some(2));
    // A thread that uses up its own share of rounds continues into that of its successors, which begin behind it.
    let old = Round::after(7);
    let first = old.begin();
    assert!(Round::after(old.heir()).begin() > first + u64::from(u32::MAX));
}

#[test]
fn void_registrations_are_swept_when_the_queue_would_grow() {
    let _alone = alone();
    let queue = Queue::new();
    for _ in 0..SLEEPS {
        for tid in 1..6 {
            sleep_on(&queue, tid);
        }
    }
    // Each thread counts once, whatever registrations it left behind.
    assert_eq!(queue.wake_all(), 5);
    let mut left = 0;
    while queue.wake_one() {
        left += 1;
    }
    assert_eq!(left, 0);
}

#[test]
fn the_dead_stay_dead() {
    let state = RunState::new();
    assert!(!state.wake());
    state.declare_waiting();
    assert!(!state.wake(), "it is on its CPU still");
    assert_eq!(state.get(), Run::Running);
    state.declare_dead();
    assert!(!state.wake());
    assert_eq!(state.get(), Run::Dead);
}
