//! Locks with priority inheritance that are handed over beside waits that end, owners that end, and words that programs change, with a switch
//! possible at every access to an atomic.
#![cfg(shuttle)]

mod models;
mod programs;
mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hal::user;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use models::{Body, Model, at_random, everywhere};
use proc::futex::{FutexError, pi};
use proc::{UserThreadExt, exit};
use programs::{MEMORY, load, store, store_long, take_word};
use support::exited;
use task::current::current;
use task::park::Deadline;

/// Two locks, and a condition.
const A: u64 = MEMORY;
const B: u64 = MEMORY + 64;
const COND: u64 = MEMORY + 128;
/// A robust list with one entry, whose lock is 32 bytes behind it.
const HEAD: u64 = MEMORY + 256;
const ENTRY: u64 = MEMORY + 480;
const ROBUST: u64 = ENTRY + 32;

const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;

/// Half of the time that a nap of one millisecond takes.
const SHORT_NS: u64 = 500_000;

/// What a model's threads count. Those that the model checker does not switch at have no part in what is tested.
#[derive(Clone, Default)]
struct Seen {
    inside: Arc<AtomicU32>,
    done: Arc<std::sync::atomic::AtomicU32>,
    heirs: Arc<std::sync::atomic::AtomicU32>,
    rings: Arc<std::sync::atomic::AtomicU32>,
    moved: Arc<std::sync::atomic::AtomicU32>,
}

impl Seen {
    /// The caller has the lock: no other thread has, and the word says so.
    fn owns(&self, addr: u64) {
        assert_eq!(self.inside.fetch_add(1, SeqCst), 0);
        let word = load(addr).expect("memory");
        assert_eq!(word & !WAITERS & !OWNER_DIED, current().tid());
        if word & OWNER_DIED != 0 {
            self.heirs.fetch_add(1, Relaxed);
        }
    }

    fn unlock(&self, addr: u64) {
        self.inside.fetch_sub(1, SeqCst);
        assert_eq!(pi::unlock(addr, false), Ok(()));
    }

    fn turn(&self, addr: u64) {
        self.owns(addr);
        self.unlock(addr);
    }

    /// The last of `of` threads finds the lock free.
    fn ends(&self, of: u32, addr: u64) {
        if self.done.fetch_add(1, Relaxed) + 1 == of {
            assert_eq!(load(addr), Some(0));
        }
    }

    /// A thread that locks, and unlocks if it could.
    fn locker(&self, addr: u64, deadline: Option<u64>, of: u32) -> Body {
        let seen = self.clone();
        Arc::new(move || {
            let until = deadline.map_or(Deadline::Never, Deadline::after);
            match pi::lock(addr, false, until) {
                Ok(()) => seen.turn(addr),
                Err(why) => assert_eq!((why, deadline.is_some()), (FutexError::Timeout, true)),
            }
            seen.ends(of, addr);
        })
    }

    fn model(&self, threads: Vec<Body>, check: impl FnOnce(&Seen) + Send + 'static) -> Model {
        let seen = self.clone();
        Model {
            begin: Arc::new(take_word),
            threads,
            check: Box::new(move |status| {
                assert_eq!(status, exited(0));
                check(&seen);
            }),
        }
    }
}

/// Three lock, one of which gives up after some time.
fn hand_over() -> Model {
    let seen = Seen::default();
    let threads = vec![
        seen.locker(A, None, 3),
        seen.locker(A, Some(SHORT_NS), 3),
        seen.locker(A, None, 3),
    ];
    seen.model(threads, |seen| {
        assert_eq!(seen.done.load(Relaxed), 3);
        assert_eq!(seen.heirs.load(Relaxed), 0);
    })
}

#[test]
fn a_lock_is_handed_over_beside_a_wait_that_ends() {
    everywhere(hand_over);
    at_random(hand_over);
}

/// A program locks and unlocks by itself as long as it can, as C libraries do.
fn words_change() -> Model {
    let seen = Seen::default();
    let quick = seen.clone();
    let quick: Body = Arc::new(move || {
        let tid = current().tid();
        let swap = |old, new| user::atomic_cmpxchg_u32(A, old, new) == Ok(old);
        if !swap(0, tid) {
            assert_eq!(pi::lock(A, false, Deadline::Never), Ok(()));
        }
        quick.owns(A);
        quick.inside.fetch_sub(1, SeqCst);
        if !swap(tid, 0) {
            assert_eq!(pi::unlock(A, false), Ok(()));
        }
        quick.ends(3, A);
    });
    let tries = seen.clone();
    let tries: Body = Arc::new(move || {
        match pi::try_lock(A, false) {
            Ok(()) => tries.turn(A),
            Err(why) => assert_eq!(why, FutexError::Changed),
        }
        tries.ends(3, A);
    });
    let threads = vec![quick, seen.locker(A, None, 3), tries];
    seen.model(threads, |seen| assert_eq!(seen.done.load(Relaxed), 3))
}

#[test]
fn a_lock_is_handed_over_while_programs_change_its_word() {
    everywhere(words_change);
    at_random(words_change);
}

/// An owner ends with a robust lock.
fn owner_ends() -> Model {
    let seen = Seen::default();
    let owner = seen.clone();
    let owner: Body = Arc::new(move || {
        store_long(HEAD, ENTRY | 1);
        store_long(ENTRY, HEAD);
        store_long(HEAD + 8, 32);
        store_long(HEAD + 16, 0);
        current().set_robust_list(HEAD);
        assert_eq!(pi::lock(ROBUST, false, Deadline::Never), Ok(()));
        owner.owns(ROBUST);
        owner.inside.fetch_sub(1, SeqCst);
        owner.done.fetch_add(1, Relaxed);
    });
    let threads = vec![
        owner,
        seen.locker(ROBUST, None, u32::MAX),
        seen.locker(ROBUST, Some(SHORT_NS), u32::MAX),
    ];
    // The lock was never lost, and at most the first one to have it was told.
    seen.model(threads, |seen| {
        assert_eq!(seen.done.load(Relaxed), 3);
        assert!(seen.heirs.load(Relaxed) <= 1);
    })
}

#[test]
fn a_lock_is_left_to_a_waiter_when_its_owner_ends() {
    everywhere(owner_ends);
    at_random(owner_ends);
}

/// Two lock two locks in different order, a third one waits for one of them.
fn rings() -> Model {
    let seen = Seen::default();
    let both = |first: u64, second: u64| -> Body {
        let seen = seen.clone();
        Arc::new(move || {
            let lock = |addr| pi::lock(addr, false, Deadline::Never);
            assert_eq!(lock(first), Ok(()));
            match lock(second) {
                Ok(()) => assert_eq!(pi::unlock(second, false), Ok(())),
                Err(why) => {
                    assert_eq!(why, FutexError::Deadlock);
                    seen.rings.fetch_add(1, Relaxed);
                }
            }
            assert_eq!(pi::unlock(first, false), Ok(()));
            seen.done.fetch_add(1, Relaxed);
        })
    };
    let third = seen.clone();
    let third: Body = Arc::new(move || {
        assert_eq!(pi::lock(B, false, Deadline::Never), Ok(()));
        assert_eq!(pi::unlock(B, false), Ok(()));
        third.done.fetch_add(1, Relaxed);
    });
    let threads = vec![both(A, B), both(B, A), third];
    seen.model(threads, |seen| {
        assert_eq!(seen.done.load(Relaxed), 3);
        assert!(seen.rings.load(Relaxed) <= 2);
    })
}

#[test]
fn a_ring_is_seen_by_one_of_its_threads() {
    everywhere(rings);
    at_random(rings);
}

/// Two take turns at one lock, and then at another, in the same order: there is no ring, whatever a walk sees in between.
fn no_rings() -> Model {
    let seen = Seen::default();
    let one = || -> Body {
        let seen = seen.clone();
        Arc::new(move || {
            for addr in [A, B] {
                assert_eq!(pi::lock(addr, false, Deadline::Never), Ok(()));
            }
            for addr in [A, B] {
                assert_eq!(pi::unlock(addr, false), Ok(()));
            }
            seen.ends(3, B);
        })
    };
    let threads = vec![one(), one(), one()];
    seen.model(threads, |seen| assert_eq!(seen.done.load(Relaxed), 3))
}

#[test]
fn no_ring_is_seen_where_there_is_none() {
    everywhere(no_rings);
    at_random(no_rings);
}

/// A waiter of a condition is moved beside a thread that has the lock, and its own time.
fn requeue() -> Model {
    let seen = Seen::default();
    let waits = seen.clone();
    let waits: Body = Arc::new(move || {
        let until = Deadline::after(SHORT_NS);
        match pi::wait_requeue(COND, 0, A, false, until) {
            Ok(()) => {
                waits.turn(A);
                waits.heirs.fetch_add(1, Relaxed);
            }
            Err(why) => assert!(matches!(why, FutexError::Changed | FutexError::Timeout)),
        }
        waits.ends(3, A);
    });
    let mover = seen.clone();
    let mover: Body = Arc::new(move || {
        store(COND, 1);
        let moved = pi::requeue(COND, A, false, 1, 1, 1).expect("two words");
        mover.moved.fetch_add(moved, Relaxed);
        mover.ends(3, A);
    });
    let threads = vec![waits, mover, seen.locker(A, None, 3)];
    // One that was moved may still time out.
    seen.model(threads, |seen| {
        assert!(seen.heirs.load(Relaxed) <= seen.moved.load(Relaxed));
        assert_eq!(seen.done.load(Relaxed), 3);
    })
}

#[test]
fn a_waiter_of_a_condition_is_moved_or_times_out() {
    everywhere(requeue);
    at_random(requeue);
}

/// The process ends while one of its threads has a lock and others wait for it.
fn process_ends() -> Model {
    let seen = Seen::default();
    let locks: Body = Arc::new(|| {
        let _ = pi::lock(A, false, Deadline::Never);
    });
    let ends: Body = Arc::new(|| {
        let _ = pi::lock(A, false, Deadline::Never);
        exit::exit_group(0)
    });
    seen.model(vec![locks.clone(), ends, locks], |_| ())
}

#[test]
fn a_process_ends_with_a_lock_and_waiters() {
    everywhere(process_ends);
    at_random(process_ends);
}
