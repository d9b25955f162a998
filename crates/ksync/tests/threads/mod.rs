//! What tests of locks use: threads that play CPUs, and threads that panic.

#[cfg(debug_assertions)]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use ksync::host;

/// Threads of a test, each on a CPU of its own.
pub const THREADS: usize = 4;
/// What each of them does, so many times; fewer under an interpreter.
pub const ROUNDS: usize = if cfg!(miri) { 40 } else { 2000 };

/// Runs `work` in all threads; then they hold no lock.
pub fn on_cpus(work: impl Fn(usize) + Sync) {
    thread::scope(|s| {
        for cpu in 0..THREADS {
            let work = &work;
            s.spawn(move || {
                host::set_cpu(cpu);
                work(cpu);
                assert_eq!(host::preempt_count(), 0);
                assert!(host::holds_nothing());
            });
        }
    });
}

/// The message with which `f` panics.
#[cfg(debug_assertions)]
pub fn complaint(f: impl FnOnce() + Send) -> String {
    // In a thread of its own: the locks that it holds when it panics are lost with it.
    thread::scope(|s| {
        let result = s
            .spawn(move || catch_unwind(AssertUnwindSafe(f)))
            .join()
            .unwrap();
        *result.expect_err("no panic").downcast::<String>().unwrap()
    })
}
