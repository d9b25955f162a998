//! Threads on all CPUs that call on the same objects at once.
#![allow(dead_code, reason = "no test uses all of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use vm_host::Random;

use crate::support::threads::{ended, nap, spawn, wait_for_ends};

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
            while ready.load(SeqCst) < cpus {
                nap(1);
            }
            let mut random = Random(0x0570_4d00 + n as u64);
            (0..rounds).for_each(|_| act(n, &mut random));
        });
    }
    wait_for_ends(before + cpus as u32);
}
