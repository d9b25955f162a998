//! Storms: threads and processes that do things at once, each until all have done enough.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use vm_host::random::Random;

use crate::programs::seeded;
use crate::support::user_mode;

/// CPUs of a storm's machine.
pub const CPUS: usize = 4;
/// The simulated time of a turn besides its calls, in nanoseconds.
const TURN_NS: u64 = 2000;

/// The parts of a storm.
pub struct Storm {
    parts: u32,
    ready: AtomicU32,
    finished: AtomicU32,
}

impl Storm {
    /// A storm of so many parts.
    pub fn of(parts: u32) -> Arc<Storm> {
        Arc::new(Storm {
            parts,
            ready: AtomicU32::new(0),
            finished: AtomicU32::new(0),
        })
    }

    /// Whether all parts have taken enough turns.
    pub fn is_over(&self) -> bool {
        self.finished.load(SeqCst) >= self.parts
    }

    /// One part, in the calling thread: begins when all others do, and takes at least so many turns.
    pub fn part(&self, seed: u64, turns: u32, mut turn: impl FnMut(&mut Random)) {
        let mut random = seeded(seed);
        self.ready.fetch_add(1, SeqCst);
        pass_time_until(|| self.ready.load(SeqCst) >= self.parts);
        for _ in 0..turns {
            turn(&mut random);
            pass_time();
        }
        self.finished.fetch_add(1, SeqCst);
        while !self.is_over() {
            turn(&mut random);
            pass_time();
        }
    }
}

/// Computes for a short time, in user mode.
pub fn pass_time() {
    hal::time::spin_ns(TURN_NS);
    user_mode();
}

/// Computes until `done`. A sleep would take long where other CPUs are busy: the time passes as they compute.
pub fn pass_time_until(done: impl Fn() -> bool) {
    while !done() {
        pass_time();
    }
}
