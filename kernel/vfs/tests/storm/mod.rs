//! Threads on all CPUs that call on the same objects at once.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vm_host::Random;

use crate::support::threads::{ended, nap, spawn, wait_for_ends};

/// Calls of a thread between two sleeps.
const TOGETHER: usize = 16;

/// Has a thread on each CPU call `act` so many times, with its number and random numbers of its own. The threads begin
/// together; returns when all have ended.
pub fn storm(rounds: usize, act: impl Fn(usize, &mut Random) + Send + Sync + 'static) {
    let cpus = hal::cpu::count();
    let before = ended();
    let (act, ready) = (Arc::new(act), Arc::new(AtomicUsize::new(0)));
    for n in 0..cpus {
        let (act, ready) = (act.clone(), ready.clone());
        spawn(Some(n), move || {
            ready.fetch_add(1, SeqCst);
            // A sleep would end late: time passes with the calls of the threads that have begun.
            while ready.load(SeqCst) < cpus {
                std::thread::yield_now();
            }
            let mut random = Random(0x0570_4d00 + n as u64);
            for round in 0..rounds {
                act(n, &mut random);
                // Time passes, and what was freed can be had again.
                if round % TOGETHER == TOGETHER - 1 {
                    nap(1);
                }
            }
        });
    }
    wait_for_ends(before + cpus as u32);
}
