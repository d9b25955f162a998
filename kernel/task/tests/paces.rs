//! Work that threads share: how often it is done, and that each caller gets a round of its time.
#![cfg(not(shuttle))]

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use processes::{MS, US, on, spawn, wait_for_ends};
use task::pace::Pace;
use task::time::monotonic_ns;

const PAUSE: u64 = 200 * US;

#[test]
fn one_caller_waits_between_rounds() {
    on(1, || {
        let (pace, mut rounds) = (Pace::new(), 0);
        let begin = monotonic_ns();
        for _ in 0..20 {
            pace.share(PAUSE, || rounds += 1);
        }
        assert_eq!(rounds, 20);
        let took = monotonic_ns() - begin;
        assert!((19 * PAUSE..25 * PAUSE).contains(&took), "{took}");
        // After a pause there is nothing to wait for.
        hal::time::spin_ns(PAUSE);
        let begin = monotonic_ns();
        pace.share(PAUSE, || rounds += 1);
        assert!(monotonic_ns() - begin < PAUSE / 4);
    });
}

/// The work notes when it began; a caller finds a time after its call.
#[test]
fn many_callers_share_rounds_that_begin_after_their_calls() {
    on(4, || {
        let shared = Arc::new((Pace::new(), AtomicU64::new(0), AtomicU64::new(0)));
        let begin = monotonic_ns();
        for _ in 0..12 {
            let shared = shared.clone();
            spawn(None, move || {
                let (pace, rounds, seen) = &*shared;
                let (mut calls, mut last) = (0, 0);
                while monotonic_ns() < begin + 10 * MS {
                    // A count that only this thread's calls order: the round reads what came before the call.
                    let before = rounds.load(SeqCst);
                    pace.share(PAUSE, || {
                        seen.store(rounds.fetch_add(1, SeqCst) + 1, SeqCst);
                    });
                    let now = seen.load(SeqCst);
                    assert!(now > before, "no round since the call");
                    assert!(now >= last);
                    (calls, last) = (calls + 1, now);
                }
                assert!(calls > 10);
            });
        }
        wait_for_ends(12);
        let (took, rounds) = (monotonic_ns() - begin, shared.1.load(SeqCst));
        assert!(rounds <= took / PAUSE + 1, "{rounds} rounds in {took} ns");
        assert!(rounds > 25);
    });
}
