//! Counts what an operation uses: the locks that it takes, and the blocks of memory that it asks for.
//!
//! Locks are counted for the whole program, so tests that count them run one at a time: each does all its work in
//! [`alone`].

use std::sync::{Mutex, PoisonError};

use ksync::{for_each_class, profile};

static ONE: Mutex<()> = Mutex::new(());

/// Runs `act` while no other call of this function runs.
pub fn alone<R>(act: impl FnOnce() -> R) -> R {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    act()
}

/// How often locks of the class with this name are taken while `act` runs, by any thread.
pub fn locks(class: &str, act: impl FnOnce()) -> u64 {
    let taken = || {
        let mut sum = 0;
        for_each_class(|report| {
            if report.name == class {
                sum += report.acquired;
            }
        });
        sum
    };
    profile::switch(true);
    let before = taken();
    act();
    let after = taken();
    profile::switch(false);
    after - before
}
