//! Shares of a CPU: by nice value and policy, and for threads that sleep.
#![cfg(not(shuttle))]

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use processes::{MS, compute, ended, nap, nap_until, on, spawn, wait_for_ends};
use task::sched::{self, CpuMask, Policy};
use task::time::{SECOND, monotonic_ns};
use task::{current, ids, kthread};

/// The nice value and the policy of a thread that computes.
#[derive(Clone, Copy)]
struct Kind(i8, Policy);

/// Runs such threads beside one another on one CPU for so many milliseconds. Returns the milliseconds that each has got.
fn shares(kinds: &[Kind], ms: u64) -> Vec<u64> {
    let got: Arc<Vec<AtomicU64>> = Arc::new(kinds.iter().map(|_| AtomicU64::new(0)).collect());
    let (before, until) = (ended(), monotonic_ns() + ms * MS);
    for (n, &Kind(nice, policy)) in kinds.iter().enumerate() {
        let got = got.clone();
        let body = move || {
            current().set_policy(policy, false);
            while monotonic_ns() < until {
                compute(MS / 20);
            }
            got[n].store(current().charge_now() / MS, SeqCst);
        };
        kthread::spawn("worker", Some(0), nice, body).expect("memory for a thread");
    }
    // A thread that wakes often would let none run for more than a tick.
    nap(ms);
    wait_for_ends(before + kinds.len() as u32);
    got.iter().map(|ms| ms.load(SeqCst)).collect()
}

fn other(nice: i8) -> Kind {
    Kind(nice, Policy::Other)
}

/// Whether `a` is about `times` as much as `b`, within a fifth.
fn about(a: u64, b: u64, times: f64) -> bool {
    let ratio = a as f64 / b as f64;
    (times * 0.8..times * 1.25).contains(&ratio)
}

#[test]
fn a_step_of_the_nice_value_is_a_factor_of_one_and_a_quarter() {
    on(1, || {
        let got = shares(&[other(0), other(1)], 4000);
        assert!(about(got[0], got[1], 1.25), "{got:?}");
        assert!(got[0] > got[1]);
    });
}

#[test]
fn ten_steps_of_the_nice_value_are_a_factor_of_nine() {
    on(1, || {
        let got = shares(&[other(5), other(-5)], 8000);
        assert!(about(got[1], got[0], 9.3), "{got:?}");
    });
}

#[test]
fn three_nice_values_share_in_proportion() {
    on(1, || {
        let got = shares(&[other(-3), other(0), other(3)], 8000);
        assert!(about(got[0], got[1], 1.95), "{got:?}");
        assert!(about(got[1], got[2], 1.95), "{got:?}");
    });
}

#[test]
fn threads_of_one_nice_value_share_equally_beside_others() {
    on(1, || {
        let kinds = [other(2), other(-4), other(2), other(2)];
        let got = shares(&kinds, 8000);
        assert!(about(got[0], got[2], 1.0), "{got:?}");
        assert!(about(got[0], got[3], 1.0), "{got:?}");
    });
}

#[test]
fn the_nicest_thread_does_not_starve() {
    on(1, || {
        let got = shares(&[other(-20), other(19)], 60_000);
        // By the weights, 60 s / 5919.
        assert!(got[1] >= 4, "{got:?}");
        assert!(got[0] > 59_000, "{got:?}");
    });
}

/// sched(7): SCHED_IDLE is "lower even than a +19 nice value".
#[test]
fn an_idle_policy_gets_less_than_any_nice_value() {
    on(1, || {
        let got = shares(&[other(19), Kind(-20, Policy::Idle)], 20_000);
        assert!(about(got[0], got[1], 15.0 / 3.0), "{got:?}");
    });
}

/// A thread that is to end may have what others wait for.
#[test]
fn a_hurried_thread_runs_as_one_of_nice_0_whatever_its_policy() {
    on(1, || {
        let until = monotonic_ns() + 4 * SECOND;
        let tids = [Policy::Idle, Policy::Other].map(|policy| {
            spawn(None, move || {
                current().set_policy(policy, false);
                while monotonic_ns() < until {
                    compute(MS / 20);
                }
            })
        });
        nap(100);
        let idle = ids::hold_thread(tids[0]).expect("it computes");
        let before = idle.sched.runtime_ns();
        sched::hurry(&ksync::pin(), &idle);
        idle.set_policy(Policy::Idle, false);
        nap(100);
        let ran = idle.sched.runtime_ns() - before;
        assert!(ran > 40 * MS, "{ran}");
        wait_for_ends(2);
    });
}

/// What a thread of SCHED_IDLE has used must not make it wait once it is to end.
#[test]
fn a_hurried_thread_that_sleeps_runs_soon_after_it_wakes() {
    on(1, || {
        computes(monotonic_ns() + 6 * SECOND);
        let slept = Arc::new(AtomicU64::new(0));
        let late = Arc::new(AtomicU64::new(0));
        let (at, most) = (slept.clone(), late.clone());
        let idle = spawn(None, move || {
            current().set_policy(Policy::Idle, false);
            compute(2 * MS);
            // It sleeps so far ahead of the other: 2 ms of its time count as 680.
            let until = monotonic_ns() + 50 * MS;
            at.store(until, SeqCst);
            nap_until(until);
            most.store(monotonic_ns() - until, SeqCst);
        });
        while slept.load(SeqCst) == 0 {
            nap(1);
        }
        let idle = ids::hold_thread(idle).expect("it sleeps");
        sched::hurry(&ksync::pin(), &idle);
        wait_for_ends(2);
        let late = late.load(SeqCst);
        assert!(late <= 3 * sched::TICK_NS, "{late}");
    });
}

/// A process may lower the weight of a thread of another one that has been killed.
#[test]
fn a_hurried_thread_stays_one_of_nice_0_whatever_its_policy_becomes() {
    on(1, || {
        let until = monotonic_ns() + 4 * SECOND;
        let tids = [0, 1].map(|_| {
            spawn(None, move || {
                while monotonic_ns() < until {
                    compute(MS / 20);
                }
            })
        });
        nap(100);
        let hurried = ids::hold_thread(tids[0]).expect("it computes");
        sched::hurry(&ksync::pin(), &hurried);
        hurried.set_policy(Policy::Idle, false);
        let before = hurried.sched.runtime_ns();
        nap(1000);
        let ran = hurried.sched.runtime_ns() - before;
        wait_for_ends(2);
        assert!(ran > 400 * MS, "{ran}");
    });
}

#[test]
fn an_idle_policy_gets_little_and_does_not_starve() {
    on(1, || {
        let got = shares(&[other(0), Kind(-20, Policy::Idle)], 4000);
        assert!((8..100).contains(&got[1]), "{got:?}");
        let got = shares(&[other(-20), Kind(0, Policy::Idle)], 60_000);
        assert!((4..100).contains(&got[1]), "{got:?}");
    });
}

#[test]
fn a_batch_policy_has_the_weight_of_its_nice_value() {
    on(1, || {
        let got = shares(&[other(0), Kind(0, Policy::Batch)], 2000);
        assert!(about(got[0], got[1], 1.0), "{got:?}");
    });
}

#[test]
fn a_new_nice_value_changes_the_share_of_a_running_thread() {
    on(1, || {
        let until = monotonic_ns() + 4 * SECOND;
        let got = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let mut tids = Vec::new();
        for n in 0..2 {
            let got = got.clone();
            tids.push(spawn(None, move || {
                while monotonic_ns() < until {
                    compute(MS / 20);
                }
                got[n].store(current().charge_now() / MS, SeqCst);
            }));
        }
        nap(2000);
        let first = ids::hold_thread(tids[0]).expect("it runs");
        first.set_nice(10);
        assert_eq!(first.nice(), 10);
        drop(first);
        wait_for_ends(2);
        // Half of two seconds, and a tenth or nine tenths of the other two.
        let got = [got[0].load(SeqCst), got[1].load(SeqCst)];
        assert!((1000..1500).contains(&got[0]), "{got:?}");
        assert!(got[1] > 2500, "{got:?}");
    });
}

/// Starts a thread that computes until `until`. Returns where it puts the milliseconds that it got.
fn computes(until: u64) -> Arc<AtomicU64> {
    let got = Arc::new(AtomicU64::new(0));
    let theirs = got.clone();
    spawn(None, move || {
        while monotonic_ns() < until {
            compute(MS / 20);
        }
        theirs.store(current().charge_now() / MS, SeqCst);
    });
    got
}

/// What a nice thread has used counts less the longer it sleeps: it does not wait for long when it wakes.
#[test]
fn a_nice_thread_that_has_slept_waits_for_a_tick_or_two() {
    on(1, || {
        let late = Arc::new(AtomicU64::new(0));
        let most = late.clone();
        computes(monotonic_ns() + 5 * SECOND);
        let body = move || {
            for _ in 0..8 {
                // It costs 68 times as much, of which nothing is left after the sleep.
                compute(2 * MS);
                let at = monotonic_ns() + 400 * MS;
                nap_until(at);
                most.fetch_max(monotonic_ns() - at, SeqCst);
            }
        };
        kthread::spawn("nice", None, 19, body).expect("memory for a thread");
        wait_for_ends(2);
        let late = late.load(SeqCst);
        assert!(late <= 2 * sched::TICK_NS + MS, "{late}");
    });
}

/// Threads that sleep often have used less than their share, but all of them together want more than the CPU.
#[test]
fn a_thread_that_computes_does_not_starve_beside_many_that_sleep() {
    on(1, || {
        let until = monotonic_ns() + 2 * SECOND;
        let got = computes(until);
        for _ in 0..6 {
            spawn(None, move || {
                while monotonic_ns() < until {
                    compute(MS);
                    nap(2);
                }
            });
        }
        nap(2000);
        wait_for_ends(7);
        // An equal share is 2000 / 7.
        let got = got.load(SeqCst);
        assert!(got > 140, "{got} ms");
    });
}

/// Starts a thread that computes until `until` on `cpu`, at first at least. Returns its tid.
fn computes_on(cpu: usize, until: u64) -> u32 {
    spawn(Some(cpu), move || {
        while monotonic_ns() < until {
            compute(MS / 20);
        }
    })
}

/// The thread is moved to and fro between two CPUs, each of which runs another, and stays on neither for a time slice.
#[test]
fn a_thread_whose_affinity_changes_each_millisecond_gets_its_share() {
    on(3, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(2)));
        let until = monotonic_ns() + 550 * MS;
        let rivals = [0, 1].map(|cpu| computes_on(cpu, until));
        let moved = computes_on(0, until);
        let threads = [rivals[0], rivals[1], moved];
        let threads = threads.map(|tid| ids::hold_thread(tid).expect("it computes"));
        for cpu in [0, 1] {
            assert!(sched::set_affinity(&threads[cpu], &CpuMask::one(cpu)));
        }
        for ms in 0..500 {
            assert!(sched::set_affinity(&threads[2], &CpuMask::one(ms % 2)));
            nap(1);
        }
        let got = threads.each_ref().map(|t| t.sched.runtime_ns() / MS);
        drop(threads);
        wait_for_ends(3);
        // Two thirds of a CPU for each, on CPUs of one pace: those of a busy host are not.
        let share = 2 * 500 / 3;
        assert!(got[2] > share / 2, "{got:?}");
    });
}

/// However many threads compute, those of another user say, a shell answers.
#[test]
fn a_thread_that_hardly_computes_runs_soon_after_it_wakes_beside_many_that_compute() {
    on(1, || {
        let until = monotonic_ns() + 4 * SECOND;
        for _ in 0..50 {
            computes(until);
        }
        let late = Arc::new(AtomicU64::new(0));
        let most = late.clone();
        spawn(None, move || {
            nap(500);
            for _ in 0..100 {
                let at = monotonic_ns() + 10 * MS;
                nap_until(at);
                most.fetch_max(monotonic_ns() - at, SeqCst);
                compute(MS / 100);
            }
        });
        wait_for_ends(51);
        let late = late.load(SeqCst);
        assert!(late <= 2 * sched::TICK_NS, "{late}");
    });
}

/// A thread that sleeps as long as it computes wants half of the CPU; its share beside 20 that compute is a part of 21.
#[test]
fn a_thread_that_sleeps_often_gets_no_more_than_its_share() {
    on(1, || {
        let until = monotonic_ns() + 4 * SECOND;
        let theirs = computes(until);
        for _ in 1..20 {
            computes(until);
        }
        let got = Arc::new(AtomicU64::new(0));
        let mine = got.clone();
        spawn(None, move || {
            while monotonic_ns() < until {
                compute(MS);
                nap(1);
            }
            mine.store(current().charge_now() / MS, SeqCst);
        });
        wait_for_ends(21);
        let (mine, theirs) = (got.load(SeqCst), theirs.load(SeqCst));
        assert!(mine <= 2 * theirs && theirs > 130, "{mine} ms, {theirs} ms");
    });
}

ksync::lock_class!(Held, "held by an idle policy", rank = 40);

/// Threads of SCHED_IDLE that take a lock one after another, beside threads that compute: one of nice 0 that wants the lock does not
/// wait until there is CPU time for the others.
#[test]
fn a_thread_that_waits_for_a_lock_lends_its_weight() {
    on(1, || {
        let until = monotonic_ns() + 4 * SECOND;
        let lock = Arc::new(ksync::Mutex::<u32, Held>::new(0));
        for _ in 0..3 {
            let lock = lock.clone();
            spawn(None, move || {
                current().set_policy(Policy::Idle, false);
                let mut held = lock.lock();
                compute(6 * MS);
                *held += 1;
            });
        }
        nap(5);
        for _ in 0..4 {
            computes(until);
        }
        nap(20);
        let at = monotonic_ns();
        let others = *lock.lock();
        let waited = monotonic_ns() - at;
        wait_for_ends(7);
        assert!(waited <= 300 * MS, "{waited} after {others}");
    });
}
