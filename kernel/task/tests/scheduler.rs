//! Which thread runs where, and for how long.
#![cfg(not(shuttle))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use support::{MS, compute, nap, on, spawn};
use task::sched::{self, CpuMask};
use task::{current, ids, time};

/// Starts a thread that computes until `until` and then stores its run time.
fn worker(nice: i8, cpu: Option<usize>, until: u64) -> Arc<AtomicU64> {
    let ran = Arc::new(AtomicU64::new(0));
    let to = ran.clone();
    let body = move || {
        while time::monotonic_ns() < until {
            compute(MS / 20);
        }
        current().charge_now();
        to.store(current().sched.runtime_ns(), SeqCst);
    };
    task::kthread::spawn("worker", cpu, nice, body).expect("memory for a thread");
    ran
}

#[test]
fn equal_threads_get_equal_shares() {
    on(1, || {
        let until = time::monotonic_ns() + 600 * MS;
        let ran: Vec<_> = (0..3).map(|_| worker(0, None, until)).collect();
        support::wait_for_ends(3);
        let ran: Vec<u64> = ran.iter().map(|ns| ns.load(SeqCst) / MS).collect();
        for ms in &ran {
            assert!((150..=250).contains(ms), "{ran:?}");
        }
    });
}

#[test]
fn a_nice_thread_gets_less_but_does_not_starve() {
    on(1, || {
        let until = time::monotonic_ns() + 1200 * MS;
        let (normal, nice) = (worker(0, None, until), worker(5, None, until));
        support::wait_for_ends(2);
        let (normal, nice) = (normal.load(SeqCst), nice.load(SeqCst));
        // By the weights, 1024 to 335.
        let ratio = normal as f64 / nice as f64;
        assert!((2.0..4.5).contains(&ratio), "{normal} to {nice}");
    });
}

#[test]
fn all_cpus_are_used() {
    on(4, || {
        let used = Arc::new([const { AtomicU32::new(0) }; 4]);
        for _ in 0..8 {
            let used = used.clone();
            spawn(None, move || {
                for _ in 0..100 {
                    compute(MS);
                    used[hal::cpu::id()].fetch_add(1, SeqCst);
                }
            });
        }
        support::wait_for_ends(8);
        let used: Vec<u32> = used.iter().map(|n| n.load(SeqCst)).collect();
        assert!(used.iter().all(|&n| n > 20), "{used:?}");
    });
}

#[test]
fn a_thread_runs_only_where_it_may() {
    on(4, || {
        for cpu in 0..4 {
            spawn(Some(cpu), move || {
                for _ in 0..50 {
                    assert_eq!(hal::cpu::id(), cpu);
                    nap(1);
                }
            });
        }
        support::wait_for_ends(4);
    });
}

#[test]
fn a_running_thread_moves_when_its_affinity_changes() {
    on(2, || {
        for _ in 0..20 {
            for cpu in [1, 0] {
                assert!(sched::set_affinity(&current(), &CpuMask::one(cpu)));
                assert_eq!(hal::cpu::id(), cpu);
            }
        }
        assert!(
            !sched::set_affinity(&current(), &CpuMask::one(7)),
            "no such CPU"
        );
    });
}

#[test]
fn a_queued_thread_moves_when_its_affinity_changes() {
    on(2, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        let pin = ksync::pin();
        // Queued on this CPU, which does not give way.
        let tids: Vec<u32> = (0..10).map(|_| spawn(Some(0), || ())).collect();
        for &tid in &tids {
            let queued = ids::thread(&pin, tid).expect("it has not run");
            assert_eq!(queued.cpu(), 0);
            assert!(sched::set_affinity(queued, &CpuMask::one(1)));
            assert_eq!(queued.cpu(), 1);
        }
        drop(pin);
        support::wait_for_ends(10);
    });
}

#[test]
fn yielding_lets_the_others_run() {
    on(1, || {
        let turns = Arc::new(AtomicU32::new(0));
        for _ in 0..2 {
            let turns = turns.clone();
            spawn(None, move || {
                for _ in 0..10 {
                    turns.fetch_add(1, SeqCst);
                    sched::yield_now();
                }
            });
        }
        let mut yields = 0;
        while support::ended() < 2 {
            sched::yield_now();
            yields += 1;
            assert!(yields < 1000, "the others do not run");
        }
        assert_eq!(turns.load(SeqCst), 20);
    });
}

#[test]
fn a_woken_thread_waits_for_one_slice_at_most() {
    on(1, || {
        let since = Arc::new(AtomicU64::new(0));
        let woke = since.clone();
        let until = time::monotonic_ns() + 100 * MS;
        let _busy = worker(0, None, until);
        spawn(None, move || {
            for _ in 0..10 {
                let at = time::monotonic_ns() + 5 * MS;
                let _ = task::park::sleep_until(
                    task::park::Deadline::At(at),
                    task::park::Interruptible::No,
                );
                woke.fetch_max(time::monotonic_ns() - at, SeqCst);
            }
        });
        support::wait_for_ends(2);
        let late = since.load(SeqCst);
        assert!(
            late <= sched::TICK_NS + MS,
            "a thread that sleeps most of the time waits {late} ns for the CPU"
        );
    });
}

#[test]
fn the_load_average_follows_the_load() {
    on(2, || {
        let until = time::monotonic_ns() + 30 * time::SECOND;
        for _ in 0..2 {
            spawn(None, move || {
                while time::monotonic_ns() < until {
                    compute(10 * MS);
                }
            });
        }
        support::wait_for_ends(2);
        let busy = sched::load_average();
        assert!(busy[0] > 500 && busy[0] < 2000, "{busy:?}");
        assert!(busy[0] > busy[1] && busy[1] > busy[2], "{busy:?}");
        let tid = current().tid();
        assert_eq!(ids::hold_thread(tid).map(|t| t.tid()), Some(tid));
    });
}
