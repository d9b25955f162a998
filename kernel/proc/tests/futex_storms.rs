//! Threads that wait on words, wake one another and move waiters, on several CPUs at once.
#![cfg(not(shuttle))]

mod programs;
#[path = "support/signals.rs"]
mod signals;
#[path = "support/storm.rs"]
mod storms;
mod support;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::futex::{self, ANY, FutexError};
use programs::{MEMORY, count, join, thread, with_memory};
use storms::{CPUS, Storm};
use task::park::Deadline;
use vm_host::random::Random;

/// Turns that each part of a storm takes at least.
const TURNS: u32 = 300;
/// The longest wait, in nanoseconds.
const PATIENCE: u64 = 20_000;

/// One of the words that the threads wait on; each holds 0.
fn any_word(random: &mut Random) -> u64 {
    MEMORY + 4 * random.below_u64(3)
}

/// Waits for a short time.
fn wait(random: &mut Random, woken: &AtomicU32) {
    let deadline = Deadline::after(random.below_u64(PATIENCE));
    match futex::wait(any_word(random), false, 0, ANY, deadline) {
        Ok(()) => drop(woken.fetch_add(1, SeqCst)),
        other => assert_eq!(other, Err(FutexError::Timeout)),
    }
}

/// Wakes some waiters, and moves some. Returns how many it has woken.
fn wake(random: &mut Random) -> u32 {
    let (word, some) = (any_word(random), random.below(3) as u32);
    match random.below(3) {
        0 => {
            let to = any_word(random);
            let moved = futex::requeue(word, to, false, some, 2, Some(0));
            moved.expect("memory for waiters").0
        }
        1 => {
            futex::drain();
            0
        }
        _ => futex::wake(word, false, some, ANY).expect("a word"),
    }
}

#[test]
fn each_waiter_that_is_woken_has_been_woken_by_one_call() {
    with_memory(CPUS, || {
        let (woken, calls) = (count(), count());
        let storm = Storm::of(6);
        let tids: Vec<u32> = (0..6)
            .map(|n| {
                let (storm, woken, calls) = (storm.clone(), woken.clone(), calls.clone());
                thread(move || {
                    storm.part(n, TURNS, |random| match n {
                        0..4 => wait(random, &woken),
                        _ => drop(calls.fetch_add(wake(random), SeqCst)),
                    })
                })
            })
            .collect();
        tids.into_iter().for_each(join);
        assert_eq!(woken.load(SeqCst), calls.load(SeqCst));
        assert!(woken.load(SeqCst) > 0);
        let left = (0..3).map(|n| futex::wake(MEMORY + 4 * n, false, 10, ANY));
        assert!(left.into_iter().all(|woken| woken == Ok(0)));
    });
}
