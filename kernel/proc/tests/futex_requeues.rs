//! Waiters that are moved from one word to another: FUTEX_REQUEUE and FUTEX_CMP_REQUEUE.
#![cfg(not(shuttle))]

mod futex_waiters;
mod programs;
mod support;

use futex_waiters::{Results, names, waiter, waiter_until, waiting_child, wake};
use proc::futex::{self, ANY, FutexError};
use proc::signal::{SigInfo, send_thread, sig};
use proc::wait4::Children;
use proc::{exit, ids};
use programs::{
    MEMORY, MS, PAGE, SHARED, catch, is_asleep, join, share_memory, store, thread, until_asleep,
    with_memory,
};
use support::{exited, fork, kill, wait};
use task::park::Deadline;

/// Two words.
const A: u64 = MEMORY;
const B: u64 = MEMORY + 3 * PAGE + 8;

/// Those that a requeue moves at most, where it moves all.
const ALL: u32 = i32::MAX as u32;

/// FUTEX_REQUEUE of private words: how many were woken, and how many moved.
fn requeue(from: u64, to: u64, wake: u32, moves: u32) -> (u32, u32) {
    futex::requeue(from, to, false, wake, moves, None).expect("two words")
}

#[test]
fn a_requeue_wakes_the_first_and_moves_the_rest() {
    with_memory(2, || {
        let results = Results::default();
        for name in 0..6 {
            waiter(A, name, &results);
        }
        assert_eq!(requeue(A, B, 2, ALL), (2, 4));
        let mut first = names(&results, 2);
        first.sort_unstable();
        assert_eq!(first, [0, 1]);
        assert_eq!(wake(A, ALL), 0);
        for n in 3..=6 {
            assert_eq!(wake(B, 1), 1);
            assert_eq!(names(&results, n).last(), Some(&(n as u32 - 1)));
        }
        assert_eq!(wake(B, ALL), 0);
    });
}

#[test]
fn a_requeue_moves_as_many_as_it_says() {
    with_memory(2, || {
        let results = Results::default();
        for name in 0..6 {
            waiter(A, name, &results);
        }
        assert_eq!(requeue(A, B, 1, 2), (1, 2));
        assert_eq!(names(&results, 1), [0]);
        assert_eq!(wake(A, 1), 1);
        assert_eq!(names(&results, 2), [0, 3]);
        assert_eq!(wake(B, 1), 1);
        assert_eq!(names(&results, 3), [0, 3, 1]);
        assert_eq!(requeue(A, B, 0, 0), (0, 0));
        assert_eq!(wake(A, ALL), 2);
        assert_eq!(wake(B, ALL), 1);
        assert_eq!(names(&results, 6).len(), 6);
    });
}

#[test]
fn a_requeue_may_wake_none() {
    with_memory(2, || {
        let results = Results::default();
        for name in 0..3 {
            waiter(A, name, &results);
        }
        assert_eq!(requeue(A, B, 0, ALL), (0, 3));
        assert_eq!(names(&results, 0), [] as [u32; 0]);
        assert_eq!(wake(A, ALL), 0);
        assert_eq!(wake(B, ALL), 3);
        assert_eq!(names(&results, 3).len(), 3);
    });
}

#[test]
fn a_requeue_of_more_than_there_are_counts_those_that_there_are() {
    with_memory(2, || {
        let results = Results::default();
        assert_eq!(requeue(A, B, ALL, ALL), (0, 0));
        waiter(A, 1, &results);
        waiter(A, 2, &results);
        assert_eq!(requeue(A, B, ALL, ALL), (2, 0));
        assert_eq!(names(&results, 2).len(), 2);
        assert_eq!(wake(B, ALL), 0);
    });
}

#[test]
fn waiters_that_are_moved_stand_behind_those_that_are_there() {
    with_memory(2, || {
        let results = Results::default();
        waiter(B, 1, &results);
        waiter(A, 2, &results);
        waiter(B, 3, &results);
        waiter(A, 4, &results);
        assert_eq!(requeue(A, B, 0, ALL), (0, 2));
        waiter(B, 5, &results);
        for n in 1..=5 {
            assert_eq!(wake(B, 1), 1);
            assert_eq!(names(&results, n).len(), n);
        }
        assert_eq!(names(&results, 5), [1, 3, 2, 4, 5]);
    });
}

#[test]
fn a_requeue_compares_the_word_first() {
    with_memory(2, || {
        let results = Results::default();
        let tid = waiter(A, 1, &results);
        store(A, 5);
        for (value, other) in [(5, 4), (5, 6), (5, 0)] {
            store(A, value);
            let result = futex::requeue(A, B, false, 1, 1, Some(other));
            assert_eq!(result, Err(FutexError::Changed));
        }
        assert!(is_asleep(tid));
        // It is the first word that counts.
        store(B, 9);
        let result = futex::requeue(A, B, false, 1, 1, Some(9));
        assert_eq!(result, Err(FutexError::Changed));
        let result = futex::requeue(A, B, false, 0, 1, Some(5));
        assert_eq!(result, Ok((0, 1)));
        assert_eq!(wake(B, 1), 1);
        join(tid);
    });
}

#[test]
fn a_comparison_brings_the_page_of_the_word_in() {
    with_memory(1, || {
        let untouched = MEMORY + 7 * PAGE;
        let result = futex::requeue(untouched, B, false, 1, 1, Some(0));
        assert_eq!(result, Ok((0, 0)));
        let result = futex::requeue(MEMORY - PAGE, B, false, 1, 1, Some(0));
        assert_eq!(result, Err(FutexError::Fault));
    });
}

#[test]
fn a_requeue_to_the_same_word_keeps_the_waiters() {
    with_memory(2, || {
        let results = Results::default();
        for name in 0..4 {
            waiter(A, name, &results);
        }
        assert_eq!(requeue(A, A, 1, 2), (1, 2));
        assert_eq!(names(&results, 1), [0]);
        assert_eq!(wake(A, ALL), 3);
        assert_eq!(names(&results, 4).len(), 4);
    });
}

#[test]
fn a_moved_waiter_keeps_its_bitset() {
    with_memory(2, || {
        let results = Results::default();
        let tid = waiter_until(A, 1, 0b10, Deadline::Never, &results);
        assert_eq!(requeue(A, B, 0, ALL), (0, 1));
        assert_eq!(futex::wake(B, false, 1, 0b101), Ok(0));
        assert!(is_asleep(tid));
        assert_eq!(futex::wake(B, false, 1, 0b111), Ok(1));
        join(tid);
    });
}

#[test]
fn a_moved_waiter_times_out_and_is_gone_from_its_new_word() {
    with_memory(2, || {
        let results = Results::default();
        let until = Deadline::after(40 * MS);
        let tid = waiter_until(A, 1, ANY, until, &results);
        let other = waiter(A, 2, &results);
        assert_eq!(requeue(A, B, 0, ALL), (0, 2));
        join(tid);
        assert_eq!(*results.lock().unwrap(), [(1, Err(FutexError::Timeout))]);
        assert_eq!(wake(A, ALL), 0);
        assert_eq!(wake(B, ALL), 1);
        join(other);
        assert_eq!(results.lock().unwrap()[1], (2, Ok(())));
    });
}

#[test]
fn a_moved_waiter_is_interrupted_and_is_gone_from_its_new_word() {
    with_memory(2, || {
        catch(sig::INT);
        let results = Results::default();
        let tid = waiter(A, 1, &results);
        assert_eq!(requeue(A, B, 0, ALL), (0, 1));
        let t = ids::find_thread(tid).expect("the waiter");
        assert_eq!(send_thread(&t, SigInfo::kernel(sig::INT)), Ok(()));
        drop(t);
        join(tid);
        assert_eq!(*results.lock().unwrap(), [(1, Err(FutexError::Signal))]);
        assert_eq!(wake(B, ALL), 0);
    });
}

#[test]
fn a_moved_waiter_that_is_killed_is_gone_from_its_new_word() {
    with_memory(2, || {
        share_memory();
        let child = fork(|| {
            let _ = futex::wait(SHARED, true, 0, ANY, Deadline::Never);
            1
        });
        until_asleep(child);
        let moved = futex::requeue(SHARED, SHARED + 64, true, 0, 1, None);
        assert_eq!(moved, Ok((0, 1)));
        assert!(kill(child, sig::KILL));
        let killed = u32::from(sig::KILL);
        assert_eq!(wait(Children::Pid(child)), Ok((child, killed)));
        for word in [SHARED, SHARED + 64] {
            assert_eq!(futex::wake(word, true, ALL, ANY), Ok(0));
        }
    });
}

/// In each order of two buckets, and within one.
#[test]
fn a_waiter_moves_through_many_words() {
    with_memory(2, || {
        let results = Results::default();
        let words: Vec<u64> = (0..600).map(|n| MEMORY + n * 52).collect();
        let tid = waiter(words[0], 1, &results);
        for pair in words.windows(2) {
            assert_eq!(requeue(pair[0], pair[1], 0, 1), (0, 1));
            assert_eq!(wake(pair[0], 1), 0);
        }
        assert_eq!(wake(words[599], 1), 1);
        join(tid);
        assert_eq!(*results.lock().unwrap(), [(1, Ok(()))]);
    });
}

/// More than are moved in one hold of the locks.
#[test]
fn many_waiters_are_moved_in_their_order() {
    with_memory(2, || {
        const MANY: u32 = 530;
        let results = Results::default();
        let tids: Vec<u32> = (0..MANY)
            .map(|name| {
                let results = results.clone();
                thread(move || {
                    let result = futex::wait(A, false, 0, ANY, Deadline::Never);
                    results.lock().unwrap().push((name, result));
                })
            })
            .collect();
        tids.iter().for_each(|&tid| until_asleep(tid));
        assert_eq!(requeue(A, B, 3, MANY - 5), (3, MANY - 5));
        assert_eq!(wake(A, ALL), 2);
        assert_eq!(wake(B, ALL), MANY - 5);
        tids.into_iter().for_each(join);
        assert_eq!(results.lock().unwrap().len(), MANY as usize);
    });
}

#[test]
fn a_shared_word_hands_its_waiters_to_another_of_its_processes() {
    with_memory(2, || {
        share_memory();
        let children = [waiting_child(), waiting_child(), waiting_child()];
        children.iter().for_each(|&child| until_asleep(child));
        let mover = fork(|| {
            let moved = futex::requeue(SHARED, SHARED + 4, true, 1, ALL, Some(0));
            assert_eq!(moved, Ok((1, 2)));
            exit::exit_group(2)
        });
        assert_eq!(wait(Children::Pid(mover)), Ok((mover, exited(2))));
        assert_eq!(futex::wake(SHARED, true, ALL, ANY), Ok(0));
        assert_eq!(futex::wake(SHARED + 4, true, ALL, ANY), Ok(2));
        for child in children {
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
        }
    });
}

#[test]
fn a_waiter_can_be_moved_to_a_word_of_another_object() {
    with_memory(2, || {
        share_memory();
        let child = waiting_child();
        until_asleep(child);
        // The child does not map the private word that it waits for from now on.
        let moved = futex::requeue(SHARED, A, true, 0, 1, None);
        assert_eq!(moved, Ok((0, 1)));
        assert_eq!(futex::wake(SHARED, true, 1, ANY), Ok(0));
        assert_eq!(futex::wake(A, true, 1, ANY), Ok(1));
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
    });
}

#[test]
fn a_waiter_that_is_moved_back_waits_at_its_first_word() {
    with_memory(2, || {
        let results = Results::default();
        waiter(A, 1, &results);
        waiter(A, 2, &results);
        assert_eq!(requeue(A, B, 0, 1), (0, 1));
        assert_eq!(requeue(B, A, 0, 1), (0, 1));
        assert_eq!(wake(B, ALL), 0);
        assert_eq!(wake(A, 1), 1);
        assert_eq!(names(&results, 1), [2]);
        assert_eq!(wake(A, 1), 1);
        assert_eq!(names(&results, 2), [2, 1]);
    });
}

#[test]
fn a_requeue_leaves_the_waiters_of_all_other_words() {
    with_memory(1, || {
        let results = Results::default();
        waiter(MEMORY, 1, &results);
        // Some of so many words are listed with the first one.
        for word in 1..1000 {
            assert_eq!(requeue(MEMORY + 4 * word, MEMORY + PAGE, 0, 1), (0, 0));
        }
        assert_eq!(wake(MEMORY, 1), 1);
        assert_eq!(names(&results, 1), [1]);
    });
}
