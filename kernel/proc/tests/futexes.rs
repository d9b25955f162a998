//! Waits on words of memory and their wake-ups, as futex(2) describes them.
#![cfg(not(shuttle))]

mod futex_waiters;
mod programs;
mod support;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use futex_waiters::{Results, names, waiter, waiter_until, waiting_child, wake};
use mem::vm;
use proc::futex::{self, ANY, FutexError};
use proc::signal::{SigInfo, SigSet, send_thread, sig};
use proc::wait4::Children;
use proc::{SignalExt, ids, with_space};
use programs::{
    MEMORY, MS, PAGE, SHARED, catch, in_child, is_asleep, join, load, map_shared, share_memory,
    store, take, thread, until_asleep, with_memory,
};
use support::{exited, fork, kill, me, nap, on, wait};
use task::current::current;
use task::park::Deadline;
use task::time::monotonic_ns;
use vm::{MapProt, ObjectRef};

/// FUTEX_WAIT without a timeout, on a private word.
fn wait_on(addr: u64, value: u32) -> Result<(), FutexError> {
    futex::wait(addr, false, value, ANY, Deadline::Never)
}

/// FUTEX_WAKE of a shared word.
fn wake_shared(addr: u64, count: u32) -> u32 {
    futex::wake(addr, true, count, ANY).expect("a word")
}

#[test]
fn a_wait_on_a_word_that_has_changed_fails_at_once() {
    with_memory(1, || {
        store(MEMORY, 7);
        for other in [0, 6, 8, u32::MAX] {
            assert_eq!(wait_on(MEMORY, other), Err(FutexError::Changed));
        }
        let in_time = Deadline::after(MS);
        let result = futex::wait(MEMORY, false, 7, ANY, in_time);
        assert_eq!(result, Err(FutexError::Timeout));
    });
}

#[test]
fn a_word_that_was_never_touched_holds_zero() {
    with_memory(1, || {
        let word = MEMORY + 5 * PAGE;
        assert_eq!(wait_on(word, 1), Err(FutexError::Changed));
        let result = futex::wait(word + PAGE, false, 0, ANY, Deadline::after(MS));
        assert_eq!(result, Err(FutexError::Timeout));
    });
}

#[test]
fn a_wake_without_waiters_wakes_none_and_is_not_kept() {
    with_memory(2, || {
        assert_eq!(wake(MEMORY, u32::MAX), 0);
        let result = futex::wait(MEMORY, false, 0, ANY, Deadline::after(MS));
        assert_eq!(result, Err(FutexError::Timeout));
    });
}

#[test]
fn waiters_are_woken_in_the_order_in_which_they_came() {
    with_memory(2, || {
        let woken = Results::default();
        for name in 0..6 {
            waiter(MEMORY, name, &woken);
        }
        for n in 1..=6u32 {
            assert_eq!(wake(MEMORY, 1), 1);
            let expected: Vec<u32> = (0..n).collect();
            assert_eq!(names(&woken, n as usize), expected);
        }
        assert_eq!(wake(MEMORY, 1), 0);
    });
}

#[test]
fn a_wake_wakes_as_many_as_it_says() {
    with_memory(2, || {
        let woken = Results::default();
        for name in 0..7 {
            waiter(MEMORY, name, &woken);
        }
        assert_eq!(wake(MEMORY, 3), 3);
        assert_eq!(names(&woken, 3).len(), 3);
        assert_eq!(wake(MEMORY, 0), 0);
        assert_eq!(names(&woken, 3).len(), 3);
        assert_eq!(wake(MEMORY, u32::MAX), 4);
        assert_eq!(names(&woken, 7).len(), 7);
    });
}

/// More than are woken in one hold of the lock.
#[test]
fn a_wake_of_many_counts_each_waiter_once() {
    with_memory(2, || {
        let woken = Results::default();
        for name in 0..100 {
            waiter(MEMORY, name, &woken);
        }
        assert_eq!(wake(MEMORY, 70), 70);
        assert_eq!(names(&woken, 70).len(), 70);
        assert_eq!(wake(MEMORY, 70), 30);
        assert_eq!(names(&woken, 100).len(), 100);
    });
}

#[test]
fn a_wake_leaves_the_waiters_of_other_words_asleep() {
    with_memory(2, || {
        let woken = Results::default();
        let words: Vec<u64> = (0..200).map(|n| MEMORY + 4 * n).collect();
        let (middle, rest) = (words[100], [&words[..100], &words[101..]].concat());
        let tid = waiter(middle, 1, &woken);
        for word in rest {
            assert_eq!(wake(word, u32::MAX), 0);
        }
        assert!(is_asleep(tid));
        assert_eq!(wake(middle, u32::MAX), 1);
        join(tid);
        assert_eq!(names(&woken, 1), [1]);
    });
}

#[test]
fn a_wake_with_a_bitset_passes_waiters_that_share_no_bit() {
    with_memory(2, || {
        let woken = Results::default();
        for (name, bits) in [(1, 0b001), (2, 0b010), (3, 0b110), (4, ANY), (5, 0b001)] {
            waiter_until(MEMORY, name, bits, Deadline::Never, &woken);
        }
        let wake_bits = |bits, count| futex::wake(MEMORY, false, count, bits);
        assert_eq!(wake_bits(0b100, 1), Ok(1));
        assert_eq!(names(&woken, 1), [3]);
        assert_eq!(wake_bits(0b1000, u32::MAX), Ok(1));
        assert_eq!(names(&woken, 2), [3, 4]);
        assert_eq!(wake_bits(0b1100, u32::MAX), Ok(0));
        assert_eq!(wake_bits(0b011, 1), Ok(1));
        assert_eq!(names(&woken, 3), [3, 4, 1]);
        assert_eq!(wake_bits(0b011, 1), Ok(1));
        assert_eq!(names(&woken, 4), [3, 4, 1, 2]);
        assert_eq!(wake_bits(ANY, u32::MAX), Ok(1));
        assert_eq!(names(&woken, 5), [3, 4, 1, 2, 5]);
    });
}

#[test]
fn an_empty_bitset_is_refused() {
    with_memory(1, || {
        let result = futex::wait(MEMORY, false, 0, 0, Deadline::Never);
        assert_eq!(result, Err(FutexError::Invalid));
        assert_eq!(futex::wake(MEMORY, false, 1, 0), Err(FutexError::Invalid));
    });
}

#[test]
fn a_word_must_be_aligned() {
    with_memory(1, || {
        for at in 1..4 {
            for shared in [false, true] {
                let addr = MEMORY + at;
                let result = futex::wait(addr, shared, 0, ANY, Deadline::Never);
                assert_eq!(result, Err(FutexError::Invalid));
                let result = futex::wake(addr, shared, 1, ANY);
                assert_eq!(result, Err(FutexError::Invalid));
                for (from, to) in [(addr, MEMORY), (MEMORY, addr)] {
                    let result = futex::requeue(from, to, shared, 1, 1, None);
                    assert_eq!(result, Err(FutexError::Invalid));
                }
            }
        }
    });
}

#[test]
fn a_wait_outside_of_the_memory_fails() {
    with_memory(1, || {
        for shared in [false, true] {
            for addr in [0, MEMORY - 4, MEMORY + 16 * PAGE, hal::USER_END, !3] {
                let result = futex::wait(addr, shared, 0, ANY, Deadline::Never);
                assert_eq!(result, Err(FutexError::Fault), "{addr:#x}");
            }
        }
        // A wake of a private word does not look at the memory.
        assert_eq!(wake(MEMORY - 4, 1), 0);
        let shared = futex::wake(MEMORY - 4, true, 1, ANY);
        assert_eq!(shared, Err(FutexError::Fault));
        assert_eq!(futex::wake(!3, false, 1, ANY), Err(FutexError::Fault));
    });
}

#[test]
fn a_wait_on_memory_that_may_not_be_read_fails() {
    with_memory(1, || {
        store(MEMORY, 1);
        let forbid = |prot| with_space(|space| space.protect(vm(), MEMORY, PAGE, prot));
        assert_eq!(forbid(MapProt::empty()), Some(Ok(())));
        assert_eq!(wait_on(MEMORY, 1), Err(FutexError::Fault));
        assert_eq!(forbid(MapProt::READ), Some(Ok(())));
        let result = futex::wait(MEMORY, false, 1, ANY, Deadline::after(MS));
        assert_eq!(result, Err(FutexError::Timeout));
    });
}

#[test]
fn a_process_without_memory_has_no_words() {
    on(1, || {
        assert_eq!(wait_on(MEMORY, 0), Err(FutexError::Fault));
        let result = futex::wake(MEMORY, false, 1, ANY);
        assert_eq!(result, Err(FutexError::Fault));
    });
}

#[test]
fn a_wait_ends_at_its_time_and_not_before() {
    with_memory(2, || {
        let until = monotonic_ns() + 40 * MS;
        let result = futex::wait(MEMORY, false, 0, ANY, Deadline::At(until));
        assert_eq!(result, Err(FutexError::Timeout));
        assert!(monotonic_ns() >= until);
        assert!(monotonic_ns() < until + 40 * MS);
        assert_eq!(wake(MEMORY, 1), 0);
    });
}

#[test]
fn a_wait_whose_time_has_passed_looks_at_the_word_first() {
    with_memory(1, || {
        let result = |value| futex::wait(MEMORY, false, value, ANY, Deadline::now());
        assert_eq!(result(1), Err(FutexError::Changed));
        assert_eq!(result(0), Err(FutexError::Timeout));
        assert_eq!(wake(MEMORY, 1), 0);
    });
}

#[test]
fn a_wait_that_timed_out_leaves_the_others_in_their_order() {
    with_memory(2, || {
        let woken = Results::default();
        waiter(MEMORY, 1, &woken);
        let impatient = thread(|| {
            let result = futex::wait(MEMORY, false, 0, ANY, Deadline::after(30 * MS));
            assert_eq!(result, Err(FutexError::Timeout));
        });
        until_asleep(impatient);
        waiter(MEMORY, 2, &woken);
        join(impatient);
        assert_eq!(wake(MEMORY, 1), 1);
        assert_eq!(names(&woken, 1), [1]);
        assert_eq!(wake(MEMORY, 1), 1);
        assert_eq!(names(&woken, 2), [1, 2]);
        assert_eq!(wake(MEMORY, 1), 0);
    });
}

#[test]
fn a_signal_with_a_handler_ends_a_wait() {
    with_memory(2, || {
        catch(sig::INT);
        let child = me().pid();
        let sender = thread(move || {
            // Otherwise this thread could take the signal.
            current().set_blocked(SigSet::one(sig::INT));
            nap(10);
            assert!(kill(child, sig::INT));
        });
        assert_eq!(wait_on(MEMORY, 0), Err(FutexError::Signal));
        assert_eq!(wake(MEMORY, 1), 0);
        assert!(take(sig::INT).is_some());
        join(sender);
    });
}

#[test]
fn a_signal_that_is_ignored_does_not_end_a_wait() {
    with_memory(2, || {
        let woken = Results::default();
        let tid = waiter(MEMORY, 1, &woken);
        // SIGCHLD's default is to be ignored.
        assert!(kill(me().pid(), sig::CHLD));
        nap(10);
        assert!(is_asleep(tid));
        assert_eq!(wake(MEMORY, 1), 1);
        join(tid);
        assert_eq!(names(&woken, 1), [1]);
    });
}

#[test]
fn a_killed_waiter_leaves_no_trace() {
    with_memory(2, || {
        share_memory();
        let child = fork(|| {
            let _ = futex::wait(SHARED, true, 0, ANY, Deadline::Never);
            1
        });
        until_asleep(child);
        assert!(kill(child, sig::KILL));
        let killed = u32::from(sig::KILL);
        assert_eq!(wait(Children::Pid(child)), Ok((child, killed)));
        assert_eq!(wake_shared(SHARED, u32::MAX), 0);
    });
}

#[test]
fn a_private_word_is_not_that_of_a_forked_child() {
    with_memory(2, || {
        share_memory();
        let child = fork(|| {
            let result = futex::wait(MEMORY, false, 0, ANY, Deadline::after(50 * MS));
            u8::from(result == Err(FutexError::Timeout))
        });
        until_asleep(child);
        assert_eq!(wake(MEMORY, u32::MAX), 0);
        assert_eq!(wake_shared(MEMORY, u32::MAX), 0);
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
    });
}

#[test]
fn a_shared_word_is_that_of_a_forked_child() {
    with_memory(2, || {
        share_memory();
        let child = waiting_child();
        until_asleep(child);
        assert_eq!(wake_shared(SHARED + 4, u32::MAX), 0);
        assert_eq!(wake_shared(SHARED, u32::MAX), 1);
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
    });
}

#[test]
fn a_shared_word_is_the_same_at_two_addresses() {
    with_memory(2, || {
        let object = ObjectRef::new_shared(vm(), PAGE).expect("memory");
        map_shared(&object, SHARED);
        map_shared(&object, SHARED + 8 * PAGE);
        object.release(vm());
        let tid = thread(|| {
            let result = futex::wait(SHARED + 12, true, 0, ANY, Deadline::Never);
            assert_eq!(result, Ok(()));
        });
        until_asleep(tid);
        // As private words they are two.
        assert_eq!(wake(SHARED + 8 * PAGE + 12, 1), 0);
        assert_eq!(wake_shared(SHARED + 8 * PAGE + 12, 1), 1);
        join(tid);
    });
}

#[test]
fn words_of_two_objects_are_two() {
    with_memory(2, || {
        for addr in [SHARED, SHARED + PAGE] {
            let object = ObjectRef::new_shared(vm(), PAGE).expect("memory");
            map_shared(&object, addr);
            object.release(vm());
        }
        let tid = thread(|| {
            let result = futex::wait(SHARED, true, 0, ANY, Deadline::Never);
            assert_eq!(result, Ok(()));
        });
        until_asleep(tid);
        assert_eq!(wake_shared(SHARED + PAGE, u32::MAX), 0);
        assert_eq!(wake_shared(SHARED, u32::MAX), 1);
        join(tid);
    });
}

#[test]
fn an_address_that_is_mapped_anew_is_another_word() {
    with_memory(2, || {
        share_memory();
        let tid = thread(|| {
            let result = futex::wait(SHARED, true, 0, ANY, Deadline::after(50 * MS));
            assert_eq!(result, Err(FutexError::Timeout));
        });
        until_asleep(tid);
        for _ in 0..20 {
            share_memory();
            assert_eq!(wake_shared(SHARED, u32::MAX), 0);
        }
        join(tid);
    });
}

#[test]
fn two_processes_that_run_one_program_after_another_share_no_private_word() {
    on(2, || {
        // The second may get the first one's space structure.
        for _ in 0..4 {
            in_child(|| {
                assert_eq!(wake(MEMORY, u32::MAX), 0);
                let result = futex::wait(MEMORY, false, 0, ANY, Deadline::after(MS));
                assert_eq!(result, Err(FutexError::Timeout));
            });
        }
    });
}

#[test]
fn a_wake_op_changes_the_word_and_wakes_both() {
    with_memory(2, || {
        let (first, second) = (MEMORY, MEMORY + 400);
        let woken = Results::default();
        for name in 0..3 {
            waiter(first, name, &woken);
            waiter(second, 10 + name, &woken);
        }
        let op = |then: bool, counts: (u32, u32)| {
            let change = |old: u32| old + 5;
            let was = load(second);
            let test = |old: u32| {
                assert_eq!(Some(old), was);
                then
            };
            futex::wake_op((first, counts.0), (second, counts.1), false, change, test)
        };
        assert_eq!(op(false, (1, 3)), Ok(1));
        assert_eq!(load(second), Some(5));
        assert_eq!(names(&woken, 1), [0]);
        assert_eq!(op(true, (1, 2)), Ok(3));
        assert_eq!(load(second), Some(10));
        let mut all = names(&woken, 4);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 10, 11]);
        assert_eq!(op(true, (9, 9)), Ok(2));
    });
}

#[test]
fn a_wake_op_on_memory_that_may_not_be_written_changes_and_wakes_nothing() {
    with_memory(2, || {
        let woken = Results::default();
        let tid = waiter(MEMORY, 1, &woken);
        let second = MEMORY + PAGE;
        let forbid = with_space(|space| space.protect(vm(), second, PAGE, MapProt::READ));
        assert_eq!(forbid, Some(Ok(())));
        let result = futex::wake_op((MEMORY, 1), (second, 1), false, |old| old + 1, |_| true);
        assert_eq!(result, Err(FutexError::Fault));
        assert!(is_asleep(tid));
        assert_eq!(load(second), Some(0));
        assert_eq!(wake(MEMORY, 1), 1);
        assert_eq!(names(&woken, 1), [1]);
    });
}

#[test]
fn each_step_of_a_turn_taking_pair_is_woken() {
    with_memory(2, || {
        const ROUNDS: u32 = 300;
        let turns = Arc::new(AtomicU64::new(0));
        let play = |mine: u32, turns: &AtomicU64| {
            for round in 0..ROUNDS {
                let goal = 2 * round + mine;
                while let Some(now) = load(MEMORY).filter(|&now| now != goal) {
                    let result = wait_on(MEMORY, now);
                    assert!(matches!(result, Ok(()) | Err(FutexError::Changed)));
                }
                turns.fetch_add(1, SeqCst);
                store(MEMORY, goal + 1);
                wake(MEMORY, 1);
            }
        };
        let theirs = turns.clone();
        let other = thread(move || play(1, &theirs));
        play(0, &turns);
        join(other);
        assert_eq!(turns.load(SeqCst), u64::from(2 * ROUNDS));
    });
}

#[test]
fn a_waiter_that_a_wake_counts_has_not_been_interrupted() {
    with_memory(1, || {
        catch(sig::INT);
        let results = Arc::new(Mutex::new(Vec::new()));
        let theirs = results.clone();
        let tid = thread(move || {
            theirs.lock().unwrap().push(wait_on(MEMORY, 0));
            assert!(take(sig::INT).is_some());
        });
        until_asleep(tid);
        let waiter = ids::find_thread(tid).expect("the waiter");
        {
            // The waiter does not run in between.
            let _pin = ksync::pin();
            assert_eq!(send_thread(&waiter, SigInfo::kernel(sig::INT)), Ok(()));
            assert_eq!(wake(MEMORY, 1), 1);
        }
        drop(waiter);
        join(tid);
        assert_eq!(*results.lock().unwrap(), [Ok(())]);
    });
}
