//! Waits for words that meet wake-ups and moves, with a switch possible at every access to an atomic.
#![cfg(shuttle)]

mod models;
mod programs;
mod support;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use models::{Body, Model, at_random, everywhere};
use proc::futex::{self, ANY, FutexError};
use programs::{MEMORY, store, take_word};
use support::{exited, nap};
use task::park::Deadline;

/// Two words.
const A: u64 = MEMORY;
const B: u64 = MEMORY + 64;

/// What a waiter's call has returned.
const OK: u32 = 1;
const CHANGED: u32 = 2;
const TIMEOUT: u32 = 3;

/// Half of the time that a nap of one millisecond takes.
const SHORT_NS: u64 = 500_000;

/// Counts and results of a model.
#[derive(Clone, Default)]
struct Seen {
    result: Arc<AtomicU32>,
    woken: Arc<AtomicU32>,
    moved: Arc<AtomicU32>,
}

impl Seen {
    /// A thread that waits for the first word to change.
    fn waiter(&self, timeout: Option<u64>) -> Body {
        let seen = self.clone();
        Arc::new(move || {
            let deadline = timeout.map_or(Deadline::Never, Deadline::after);
            let result = match futex::wait(A, false, 0, ANY, deadline) {
                Ok(()) => OK,
                Err(FutexError::Changed) => CHANGED,
                Err(FutexError::Timeout) => TIMEOUT,
                Err(error) => panic!("{error:?}"),
            };
            assert_eq!(seen.result.swap(result, SeqCst), 0);
        })
    }

    fn wake(&self, word: u64) {
        let woken = futex::wake(word, false, 5, ANY).expect("a word");
        self.woken.fetch_add(woken, SeqCst);
    }

    fn requeue(&self) {
        let (woken, moved) = futex::requeue(A, B, false, 0, 5, None).expect("two words");
        self.woken.fetch_add(woken, SeqCst);
        self.moved.fetch_add(moved, SeqCst);
    }

    fn model(&self, threads: Vec<Body>, check: fn(u32, u32, u32)) -> Model {
        let seen = self.clone();
        Model {
            begin: Arc::new(take_word),
            threads,
            check: Box::new(move |status| {
                assert_eq!(status, exited(0));
                let of = |count: &AtomicU32| count.load(SeqCst);
                check(of(&seen.result), of(&seen.woken), of(&seen.moved));
            }),
        }
    }
}

/// A wait either sees the change or is woken.
fn wait_and_wake() -> Model {
    let seen = Seen::default();
    let waker = seen.clone();
    let wake: Body = Arc::new(move || {
        store(A, 1);
        waker.wake(A);
    });
    seen.model(vec![seen.waiter(None), wake], |result, woken, _| {
        assert_eq!(result, if woken == 1 { OK } else { CHANGED });
    })
}

#[test]
fn no_wake_is_lost_between_the_look_at_the_word_and_the_sleep() {
    everywhere(wait_and_wake);
    at_random(wait_and_wake);
}

/// A waiter whose time is over may be woken at the last moment, and the waker waits then: each has its own place.
fn time_out_and_wait() -> Model {
    let seen = Seen::default();
    let waker = seen.clone();
    let wake: Body = Arc::new(move || {
        waker.wake(A);
        if waker.woken.load(SeqCst) == 1 {
            let result = futex::wait(A, false, 0, ANY, Deadline::after(SHORT_NS));
            assert_eq!(result, Err(FutexError::Timeout));
        }
    });
    seen.model(vec![seen.waiter(Some(0)), wake], |result, woken, _| {
        assert_eq!(result, if woken == 1 { OK } else { TIMEOUT });
    })
}

#[test]
fn a_waiter_that_is_woken_as_its_time_ends_leaves_the_next_one_in_its_place() {
    everywhere(time_out_and_wait);
    at_random(time_out_and_wait);
}

/// A waiter is moved, or sees the change; one that was moved is woken at its new word.
fn wait_and_requeue() -> Model {
    let seen = Seen::default();
    let mover = seen.clone();
    let requeue: Body = Arc::new(move || {
        store(A, 1);
        mover.requeue();
        mover.wake(A);
        mover.wake(B);
    });
    seen.model(vec![seen.waiter(None), requeue], |result, woken, moved| {
        assert_eq!(woken, moved);
        assert_eq!(result, if moved == 1 { OK } else { CHANGED });
    })
}

#[test]
fn no_waiter_is_lost_in_a_requeue() {
    everywhere(wait_and_requeue);
    at_random(wait_and_requeue);
}

/// The wake comes when the wait times out: either counts.
fn timeout_and_wake() -> Model {
    let seen = Seen::default();
    let waker = seen.clone();
    let wake: Body = Arc::new(move || {
        nap(1);
        waker.wake(A);
    });
    let waiter = seen.waiter(Some(SHORT_NS));
    seen.model(vec![waiter, wake], |result, woken, _| {
        assert_eq!(result, if woken == 1 { OK } else { TIMEOUT });
    })
}

#[test]
fn a_waiter_that_times_out_beside_a_wake_counts_once() {
    everywhere(timeout_and_wake);
}

/// The waiter times out while it is moved: it leaves the word at which it is then.
fn timeout_and_requeue() -> Model {
    let seen = Seen::default();
    let mover = seen.clone();
    let requeue: Body = Arc::new(move || {
        nap(1);
        mover.requeue();
        mover.wake(B);
    });
    let waiter = seen.waiter(Some(SHORT_NS));
    seen.model(vec![waiter, requeue], |result, woken, moved| {
        assert!(woken <= moved);
        assert_eq!(result, if woken == 1 { OK } else { TIMEOUT });
    })
}

#[test]
fn a_waiter_that_times_out_beside_a_requeue_counts_once() {
    everywhere(timeout_and_requeue);
}

/// Two wakers, and one that moves: the waiter is woken once.
fn wake_and_requeue() -> Model {
    let seen = Seen::default();
    let (waker, mover) = (seen.clone(), seen.clone());
    let wake: Body = Arc::new(move || {
        store(A, 1);
        waker.wake(A);
        waker.wake(B);
    });
    let requeue: Body = Arc::new(move || {
        store(A, 1);
        mover.requeue();
        mover.wake(B);
    });
    seen.model(
        vec![seen.waiter(None), wake, requeue],
        |result, woken, _| {
            assert!(woken <= 1);
            assert_eq!(result, if woken == 1 { OK } else { CHANGED });
        },
    )
}

#[test]
fn a_waiter_that_is_moved_beside_a_wake_is_woken_once() {
    everywhere(wake_and_requeue);
    at_random(wake_and_requeue);
}
