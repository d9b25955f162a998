//! Waits for conditions whose waiters are moved to a lock with priority inheritance, as futex(2) describes them.
#![cfg(not(shuttle))]

mod futex_waiters;
mod programs;
mod support;

use futex_waiters::locks::{Order, WAITERS, lock, priority, set_priority, unlock};
use futex_waiters::{Results, waiter, wake};
use proc::futex::{self, ANY, FutexError, pi};
use proc::ids;
use proc::signal::{SigInfo, send_thread, sig};
use programs::{
    MEMORY, MS, catch, is_asleep, join, load, store, take, thread, until, until_asleep, with_memory,
};
use task::current::current;
use task::park::Deadline;

/// Words of locks.
const A: u64 = MEMORY;
const B: u64 = MEMORY + 64;
const C: u64 = MEMORY + 128;
/// A condition.
const COND: u64 = MEMORY + 192;

/// Starts a thread that waits for the condition, and unlocks what it has then.
fn conditional(name: u32, priority: u32, order: &Order) -> u32 {
    let order = order.clone();
    let tid = thread(move || {
        set_priority(&current(), priority);
        let end = pi::wait_requeue(COND, 0, A, false, Deadline::Never);
        assert_eq!(end, Ok(()));
        assert_eq!(load(A).map(|word| word & !WAITERS), Some(current().tid()));
        order.lock().unwrap().push(name);
        assert_eq!(unlock(A), Ok(()));
    });
    until_asleep(tid);
    tid
}

fn requeue(moves: u32) -> Result<u32, FutexError> {
    pi::requeue(COND, A, false, 1, moves, 0)
}

#[test]
fn waiters_of_a_condition_are_moved_to_its_lock() {
    with_memory(2, || {
        let order = Order::default();
        assert_eq!(requeue(5), Ok(0));
        let all = [(0, 0), (1, 9), (2, 4), (3, 0)].map(|(name, p)| conditional(name, p, &order));
        assert_eq!(lock(A), Ok(()));
        // One, though none of them gets the lock.
        assert_eq!(requeue(0), Ok(1));
        assert_eq!(priority(current().tid()), 9);
        assert_eq!(requeue(u32::MAX >> 1), Ok(3));
        assert_eq!(requeue(5), Ok(0));
        assert!(all.iter().all(|&tid| is_asleep(tid)));
        assert_eq!(unlock(A), Ok(()));
        all.into_iter().for_each(join);
        assert_eq!(*order.lock().unwrap(), [1, 2, 0, 3]);
        assert_eq!(load(A), Some(0));
    });
}

#[test]
fn a_free_lock_goes_to_the_first_waiter_of_the_condition() {
    with_memory(2, || {
        let order = Order::default();
        let first = conditional(0, 0, &order);
        assert_eq!(requeue(0), Ok(1));
        join(first);
        let all = [1, 2, 3].map(|name| conditional(name, 0, &order));
        assert_eq!(requeue(1), Ok(2));
        assert_eq!(requeue(1), Ok(1));
        all.into_iter().for_each(join);
        assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3]);
    });
}

#[test]
fn a_requeue_that_does_not_fit_moves_none() {
    with_memory(2, || {
        let order = Order::default();
        let call = |from, to, wake, value| pi::requeue(from, to, false, wake, 3, value);
        assert_eq!(call(COND, COND, 1, 0), Err(FutexError::Invalid));
        assert_eq!(call(COND, A, 0, 0), Err(FutexError::Invalid));
        assert_eq!(call(COND, A, 2, 0), Err(FutexError::Invalid));
        assert_eq!(call(COND + 1, A, 1, 0), Err(FutexError::Invalid));
        assert_eq!(call(COND, A, 1, 7), Err(FutexError::Changed));
        let tid = conditional(0, 0, &order);
        // Another lock than it said; and a wait for a lock, or for a wake-up, is none for a condition.
        assert_eq!(call(COND, B, 1, 0), Err(FutexError::Invalid));
        assert_eq!(futex::wake(COND, false, 1, ANY), Err(FutexError::Invalid));
        let plain = futex::requeue(COND, A, false, 1, 1, None);
        assert_eq!(plain, Err(FutexError::Invalid));
        let woken = Results::default();
        let other = waiter(C, 1, &woken);
        assert_eq!(call(C, A, 1, 0), Err(FutexError::Invalid));
        assert_eq!(wake(C, 1), 1);
        assert!(is_asleep(tid));
        assert_eq!(requeue(0), Ok(1));
        [tid, other].into_iter().for_each(join);
    });
}

/// A waiter of the lock leaves, and a thread that waits there as for a condition would be on the list of its owner.
#[test]
fn a_lock_with_waiters_is_no_condition() {
    with_memory(2, || {
        assert_eq!(lock(A), Ok(()));
        let tid = thread(|| {
            assert_eq!(lock(A), Ok(()));
            assert_eq!(unlock(A), Ok(()));
        });
        until_asleep(tid);
        let word = load(A).unwrap();
        let end = pi::wait_requeue(A, word, B, false, Deadline::At(0));
        assert_eq!(end, Err(FutexError::Invalid));
        assert_eq!(unlock(A), Ok(()));
        join(tid);
    });
}

#[test]
fn a_wait_for_a_condition_looks_at_its_arguments() {
    with_memory(1, || {
        let call = |addr, value, lock| pi::wait_requeue(addr, value, lock, false, Deadline::now());
        assert_eq!(call(COND, 0, COND), Err(FutexError::Invalid));
        assert_eq!(call(COND, 1, A), Err(FutexError::Changed));
        assert_eq!(call(COND, 0, A + 1), Err(FutexError::Invalid));
        assert_eq!(call(0, 0, A), Err(FutexError::Fault));
        assert_eq!(call(COND, 0, A), Err(FutexError::Timeout));
        assert_eq!(requeue(5), Ok(0));
    });
}

#[test]
fn a_moved_waiter_is_not_begun_again_after_a_signal() {
    with_memory(2, || {
        catch(sig::INT);
        let interrupted = |why| {
            let tid = thread(move || {
                let end = pi::wait_requeue(COND, 0, A, false, Deadline::Never);
                assert_eq!(end, Err(why));
                assert!(take(sig::INT).is_some());
            });
            until_asleep(tid);
            tid
        };
        let signal = |tid| {
            let target = ids::find_thread(tid).unwrap();
            assert_eq!(send_thread(&target, SigInfo::kernel(sig::INT)), Ok(()));
            drop(target);
            join(tid);
        };
        signal(interrupted(FutexError::Signal));
        assert_eq!(lock(A), Ok(()));
        let tid = interrupted(FutexError::Changed);
        assert_eq!(requeue(0), Ok(1));
        signal(tid);
        let late = thread(|| {
            let end = pi::wait_requeue(COND, 0, A, false, Deadline::after(30 * MS));
            assert_eq!(end, Err(FutexError::Timeout));
        });
        until_asleep(late);
        assert_eq!(requeue(0), Ok(1));
        join(late);
        assert_eq!(unlock(A), Ok(()));
        assert_eq!(load(A), Some(0));
    });
}

#[test]
fn a_waiter_that_would_wait_for_itself_stays_with_its_condition() {
    with_memory(2, || {
        // The waiter owns B, for which the owner of A waits.
        let holder = thread(|| {
            assert_eq!(lock(B), Ok(()));
            let end = pi::wait_requeue(COND, 0, A, false, Deadline::after(200 * MS));
            assert_eq!(end, Err(FutexError::Timeout));
            assert_eq!(unlock(B), Ok(()));
        });
        until_asleep(holder);
        let owner = thread(|| {
            assert_eq!((lock(A), lock(B)), (Ok(()), Ok(())));
            assert_eq!((unlock(A), unlock(B)), (Ok(()), Ok(())));
        });
        until(|| load(B) == Some(holder | WAITERS));
        assert_eq!(requeue(3), Err(FutexError::Deadlock));
        assert_eq!(requeue(3), Err(FutexError::Deadlock));
        // One that owns the lock itself is refused, too.
        [holder, owner].into_iter().for_each(join);
        store(COND, 0);
        let greedy = thread(|| {
            assert_eq!(lock(A), Ok(()));
            let end = pi::wait_requeue(COND, 0, A, false, Deadline::after(100 * MS));
            assert_eq!(end, Err(FutexError::Timeout));
            assert_eq!(unlock(A), Ok(()));
        });
        until_asleep(greedy);
        assert_eq!(requeue(3), Err(FutexError::Deadlock));
        join(greedy);
    });
}
