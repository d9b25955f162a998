//! Threads and processes that wait on words, and what their waits returned.
#![allow(dead_code, reason = "no test uses all of it")]

pub mod locks;

use std::sync::{Arc, Mutex};

use proc::futex::{self, ANY, FutexError};
use proc::signal::sig;
use task::park::Deadline;

use crate::programs::{SHARED, take, thread, until, until_asleep};
use crate::support::{fork, nap};

/// FUTEX_WAKE of a private word.
pub fn wake(addr: u64, count: u32) -> u32 {
    futex::wake(addr, false, count, ANY).expect("a word")
}

/// What waiters got, with their names, in the order in which they went on.
pub type Results = Arc<Mutex<Vec<(u32, Result<(), FutexError>)>>>;

/// Starts a thread that waits on a private word for one of `bits`, and is asleep when this returns.
pub fn waiter_until(addr: u64, name: u32, bits: u32, deadline: Deadline, results: &Results) -> u32 {
    let results = results.clone();
    let tid = thread(move || {
        let result = futex::wait(addr, false, 0, bits, deadline);
        results.lock().unwrap().push((name, result));
        if result == Err(FutexError::Signal) {
            assert!(take(sig::INT).is_some());
        }
    });
    until_asleep(tid);
    tid
}

/// As [`waiter_until`], for any bit and without an end.
pub fn waiter(addr: u64, name: u32, results: &Results) -> u32 {
    waiter_until(addr, name, ANY, Deadline::Never, results)
}

/// The names of those that were woken, once they are so many and no other has been for some time.
pub fn names(results: &Results, n: usize) -> Vec<u32> {
    until(|| results.lock().unwrap().len() >= n);
    nap(5);
    let results = results.lock().unwrap();
    assert!(results.iter().all(|(_, result)| *result == Ok(())));
    results.iter().map(|(name, _)| *name).collect()
}

/// Forks a child that waits on the word at [`SHARED`], and exits with 1 if it was woken.
pub fn waiting_child() -> u32 {
    fork(|| {
        let result = futex::wait(SHARED, true, 0, ANY, Deadline::Never);
        u8::from(result == Ok(()))
    })
}
