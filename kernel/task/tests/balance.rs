//! Shares among CPUs: threads that may run anywhere get their shares of all CPUs, by weight.
#![cfg(not(shuttle))]

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use processes::{MS, compute, nap, on, spawn, wait_for_ends};
use task::sched::{self, CpuMask, Policy};
use task::time::{SECOND, monotonic_ns};
use task::{current, ids, kthread};

/// Threads that compute: nice value, policy, and the CPU on which each begins.
type Kinds<'a> = &'a [(i8, Policy, usize)];

/// Runs such threads for so many seconds. Each may run on every CPU once all have begun. Returns the milliseconds that each
/// has got.
fn shares(kinds: Kinds, seconds: u64) -> Vec<u64> {
    let got: Arc<Vec<AtomicU64>> = Arc::new(kinds.iter().map(|_| AtomicU64::new(0)).collect());
    let until = monotonic_ns() + seconds * SECOND;
    let tids: Vec<u32> = (kinds.iter().enumerate())
        .map(|(n, &(nice, policy, cpu))| {
            let got = got.clone();
            let body = move || {
                current().set_policy(policy, false);
                while monotonic_ns() < until {
                    compute(MS / 10);
                }
                got[n].store(current().charge_now() / MS, SeqCst);
            };
            kthread::spawn("worker", Some(cpu), nice, body).expect("memory for a thread")
        })
        .collect();
    nap(20);
    for tid in tids {
        let thread = ids::hold_thread(tid).expect("it computes");
        assert!(sched::set_affinity(&thread, &CpuMask::all()));
    }
    nap(seconds * 1000);
    wait_for_ends(kinds.len() as u32);
    got.iter().map(|ms| ms.load(SeqCst)).collect()
}

const fn other(nice: i8, cpu: usize) -> (i8, Policy, usize) {
    (nice, Policy::Other, cpu)
}

/// As many threads on each CPU, and one CPU has those of little weight.
#[test]
fn nice_threads_do_not_keep_a_cpu_for_which_others_wait() {
    on(2, || {
        let got = shares(&[other(0, 0), other(0, 0), other(19, 1), other(19, 1)], 1);
        assert!(got[0] > 800 && got[1] > 800, "{got:?}");
    });
}

#[test]
fn a_thread_of_the_idle_policy_does_not_keep_a_cpu_for_which_others_wait() {
    on(2, || {
        let got = shares(&[other(0, 0), other(0, 0), (0, Policy::Idle, 1)], 1);
        assert!(got[0] > 800 && got[1] > 800, "{got:?}");
    });
}

/// Where the CPUs cannot have equally much to do, the threads take turns on the CPU that has less.
#[test]
fn three_threads_take_turns_on_two_cpus() {
    on(2, || {
        let got = shares(&[other(0, 0), other(0, 0), other(0, 1)], 4);
        // Without turns one would have 4000 and the others half of that.
        assert!(got.iter().all(|&ms| ms < 3700), "{got:?}");
    });
}

#[test]
fn five_threads_take_turns_on_four_cpus() {
    on(4, || {
        let kinds = [
            other(0, 0),
            other(0, 0),
            other(0, 1),
            other(0, 2),
            other(0, 3),
        ];
        let got = shares(&kinds, 4);
        // Without turns two would have 2000 each.
        assert!(got.iter().all(|&ms| ms > 2100), "{got:?}");
    });
}

/// The threads of the busiest CPU are bound to it.
#[test]
fn a_cpu_to_which_threads_are_bound_does_not_keep_others_from_being_balanced() {
    on(3, || {
        let until = monotonic_ns() + 5 * SECOND;
        for _ in 0..8 {
            spawn(Some(0), move || {
                while monotonic_ns() < until {
                    compute(MS / 10);
                }
            });
        }
        let kinds = [1, 1, 1, 1, 2].map(|cpu| other(0, cpu));
        let got = shares(&kinds, 4);
        // Without balance one would have 4000 and each of the others a fourth of that.
        assert!(got.iter().all(|&ms| ms < 3000), "{got:?}");
        wait_for_ends(13);
    });
}
