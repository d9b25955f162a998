//! Robust futexes: locks whose owner ends.
#![cfg(not(shuttle))]

mod programs;
mod support;

use proc::UserThreadExt;
use proc::futex::{self, ANY};
use programs::{
    MEMORY, PAGE, is_asleep, join, load, store, store_long, thread, until, with_memory,
};
use support::nap;
use task::current::current;
use task::park::Deadline;

/// The words of a robust list: the head, and the list's entries with the words of two locks.
const HEAD: u64 = MEMORY + 0x100;
const FIRST: u64 = MEMORY + 0x200;
const SECOND: u64 = MEMORY + 0x300;
/// From an entry to its lock.
const TO_LOCK: u64 = 16;

/// Writes the list that [`HEAD`] begins: `entries`, and an entry that is being locked or unlocked.
fn robust_list(entries: &[u64], pending: u64) {
    let next = [entries, &[HEAD]].concat();
    store_long(HEAD, next[0]);
    for pair in next.windows(2) {
        store_long(pair[0], pair[1]);
    }
    store_long(HEAD + 8, TO_LOCK);
    store_long(HEAD + 16, pending);
    current().set_robust_list(HEAD);
}

/// Bits of a lock's word.
const WAITERS: u32 = 0x8000_0000;
const OWNER_DIED: u32 = 0x4000_0000;

#[test]
fn a_lock_whose_owner_dies_is_marked_and_a_waiter_is_woken() {
    with_memory(2, || {
        let owner = thread(|| {
            let tid = current().tid();
            store(FIRST + TO_LOCK, tid | WAITERS);
            store(SECOND + TO_LOCK, tid);
            robust_list(&[FIRST, SECOND], 0);
            nap(20);
        });
        until(|| is_asleep(owner));
        let value = owner | WAITERS;
        let result = futex::wait(FIRST + TO_LOCK, false, value, ANY, Deadline::Never);
        assert_eq!(result, Ok(()));
        join(owner);
        assert_eq!(load(FIRST + TO_LOCK), Some(WAITERS | OWNER_DIED));
        assert_eq!(load(SECOND + TO_LOCK), Some(OWNER_DIED));
    });
}

#[test]
fn a_lock_of_another_thread_stays_as_it_is() {
    with_memory(2, || {
        let mine = current().tid() | WAITERS;
        store(FIRST + TO_LOCK, mine);
        store(SECOND + TO_LOCK, 0);
        let other = thread(|| robust_list(&[FIRST, SECOND], 0));
        join(other);
        assert_eq!(load(FIRST + TO_LOCK), Some(mine));
        assert_eq!(load(SECOND + TO_LOCK), Some(0));
    });
}

#[test]
fn a_lock_that_its_owner_was_taking_is_marked() {
    with_memory(2, || {
        let owner = thread(|| {
            store(SECOND + TO_LOCK, current().tid());
            robust_list(&[], SECOND);
        });
        join(owner);
        assert_eq!(load(SECOND + TO_LOCK), Some(OWNER_DIED));
    });
}

#[test]
fn a_waiter_of_a_lock_that_its_owner_was_releasing_is_woken() {
    with_memory(2, || {
        // The word is free, but the owner has not woken a waiter yet.
        let owner = thread(|| {
            nap(20);
            robust_list(&[], SECOND);
        });
        let result = futex::wait(SECOND + TO_LOCK, false, 0, ANY, Deadline::Never);
        assert_eq!(result, Ok(()));
        join(owner);
        assert_eq!(load(SECOND + TO_LOCK), Some(0));
    });
}

#[test]
fn a_ring_of_robust_locks_has_an_end() {
    with_memory(2, || {
        let owner = thread(|| {
            store(FIRST + TO_LOCK, current().tid());
            robust_list(&[FIRST, SECOND], 0);
            // The second entry leads to the first, and not to the head.
            store_long(SECOND, FIRST);
        });
        join(owner);
        assert_eq!(load(FIRST + TO_LOCK), Some(OWNER_DIED));
    });
}

#[test]
fn a_robust_list_outside_of_the_memory_does_no_harm() {
    with_memory(2, || {
        for head in [8, MEMORY + 16 * PAGE - 8, u64::MAX - 7] {
            let tid = thread(move || current().set_robust_list(head));
            join(tid);
        }
        let tid = thread(|| {
            store(FIRST + TO_LOCK, current().tid());
            robust_list(&[FIRST, SECOND], 0);
            store_long(FIRST, 64);
        });
        join(tid);
        assert_eq!(load(FIRST + TO_LOCK), Some(OWNER_DIED));
    });
}

#[test]
fn the_head_of_a_robust_list_is_no_lock() {
    with_memory(2, || {
        // The locks are further from the entries, so that the head would have one, too.
        const FURTHER: u64 = 32;
        let owner = thread(|| {
            let tid = current().tid();
            for entry in [HEAD, FIRST, SECOND] {
                store(entry + FURTHER, tid);
            }
            robust_list(&[FIRST, SECOND], 0);
            store_long(HEAD + 8, FURTHER);
        });
        join(owner);
        assert_eq!(load(FIRST + FURTHER), Some(OWNER_DIED));
        assert_eq!(load(SECOND + FURTHER), Some(OWNER_DIED));
        assert_eq!(load(HEAD + FURTHER), Some(owner));
    });
}

#[test]
fn a_lock_that_is_not_aligned_ends_the_list() {
    with_memory(2, || {
        let odd = FIRST + 2;
        let owner = thread(move || {
            let tid = current().tid();
            robust_list(&[odd, SECOND], 0);
            for entry in [odd, SECOND] {
                store(entry + TO_LOCK, tid);
            }
        });
        join(owner);
        assert_eq!(load(odd + TO_LOCK), Some(owner));
        assert_eq!(load(SECOND + TO_LOCK), Some(owner));
    });
}
