//! How long threads with real-time priorities run beside others, and on which CPUs.
#![cfg(not(shuttle))]

mod priorities;
mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use priorities::{OTHER, Spinner, fifo, give, round_robin, start, with};
use processes::{MS, compute, ended, nap, nap_until, on, wait_for_ends};
use task::current;
use task::sched::{self, CpuMask, Setting, bound};
use task::time::{SECOND, monotonic_ns};

/// The milliseconds of CPU 0 that a thread with the setting `new` and an ordinary one get that compute beside each other for three seconds.
fn shares(new: Setting) -> [u64; 2] {
    let before = ended();
    let begun = monotonic_ns().next_multiple_of(SECOND);
    nap_until(begun);
    let got = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    for (n, new) in [new, OTHER].into_iter().enumerate() {
        let got = got.clone();
        start(0, new, move || {
            while monotonic_ns() < begun + 3 * SECOND {
                compute(MS / 20);
            }
            got[n].store(current().charge_now() / MS, SeqCst);
        });
    }
    nap_until(begun + 3 * SECOND);
    wait_for_ends(before + 2);
    [got[0].load(SeqCst), got[1].load(SeqCst)]
}

fn set_runtime(runtime_us: Option<u32>) {
    bound::set_bound(|bound| bound::Bound {
        runtime_us,
        ..bound
    })
    .expect("a valid bound");
}

#[test]
fn others_get_what_the_bound_leaves_of_each_period() {
    on(1, || {
        let [real_time, other] = shares(fifo(50));
        assert!((2845..=2852).contains(&real_time), "{real_time}, {other}");
        assert!((145..=156).contains(&other), "{real_time}, {other}");
        let [real_time, other] = shares(round_robin(1));
        assert!((2845..=2852).contains(&real_time), "{real_time}, {other}");
        set_runtime(Some(100_000));
        let [real_time, other] = shares(fifo(50));
        assert!((298..=303).contains(&real_time), "{real_time}, {other}");
        set_runtime(Some(0));
        let [real_time, other] = shares(fifo(50));
        assert!(real_time <= 5 && other > 2990, "{real_time}, {other}");
        set_runtime(None);
        let [real_time, other] = shares(fifo(50));
        assert!(real_time > 2990 && other <= 5, "{real_time}, {other}");
    });
}

#[test]
fn nothing_is_withheld_while_no_other_thread_wants_to_run() {
    on(1, || {
        let until = monotonic_ns() + 3 * SECOND;
        start(0, fifo(50), move || {
            let mut last = monotonic_ns();
            while last < until {
                compute(MS / 100);
                let now = monotonic_ns();
                assert!(now - last < MS, "it was kept from running");
                last = now;
            }
        });
        nap(3100);
        wait_for_ends(1);
    });
}

#[test]
fn a_bound_is_a_part_of_its_period() {
    on(1, || {
        let usual = bound::bound();
        assert_eq!(
            (usual.runtime_us, usual.period_us),
            (Some(950_000), 1_000_000)
        );
        let set = |runtime_us, period_us| {
            let new = bound::Bound {
                runtime_us,
                period_us,
            };
            let set = bound::set_bound(|_| new);
            assert_eq!(set.is_ok(), bound::bound() == new);
            set.is_ok()
        };
        assert!(set(Some(1_000_000), 1_000_000));
        assert!(set(Some(0), 1));
        assert!(set(None, 5));
        assert!(!set(Some(6), 5));
        assert!(!set(None, 0));
        assert!(!set(Some(1 << 31), u32::MAX));
    });
}

#[test]
fn a_woken_thread_goes_where_something_lower_runs() {
    on(3, || {
        current().set_setting(fifo(99));
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        let spinners = [
            Spinner::new(0, fifo(1)),
            Spinner::new(1, fifo(30)),
            Spinner::new(2, fifo(20)),
        ];
        for (priority, may, cpu) in [
            (25, 0b110, 2),
            (15, 0b111, 0),
            (25, 0b010, 9),
            (30, 0b010, 9),
        ] {
            let woke_on = Arc::new(AtomicU32::new(9));
            let theirs = woke_on.clone();
            let tid = start(1, fifo(90), move || {
                nap(5);
                theirs.store(hal::cpu::id() as u32, SeqCst);
            });
            nap(1);
            let mut mask = CpuMask::one(0).words();
            mask[0] = may;
            give(tid, fifo(priority));
            with(tid, |_, t| {
                assert!(sched::set_affinity(t, &CpuMask::from_words(mask)))
            });
            nap(10);
            assert_eq!(woke_on.load(SeqCst), cpu, "{priority} on {may:b}");
            if cpu == 9 {
                give(tid, fifo(31));
                nap(3);
                assert_eq!(woke_on.load(SeqCst), 1);
            }
        }
        spinners.into_iter().for_each(Spinner::lets_go);
        wait_for_ends(7);
    });
}

/// The one that is preempted goes on elsewhere, and one that had to wait gets the CPU that becomes free for it.
#[test]
fn a_preempted_thread_goes_on_where_something_lower_runs() {
    on(2, || {
        current().set_setting(fifo(99));
        let place = Arc::new(AtomicU32::new(9));
        let (theirs, until) = (place.clone(), monotonic_ns() + 60 * MS);
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        let tid = start(1, fifo(10), move || {
            while monotonic_ns() < until {
                compute(MS / 20);
                theirs.store(hal::cpu::id() as u32, SeqCst);
            }
        });
        nap(2);
        assert_eq!(place.load(SeqCst), 1);
        with(tid, |_, t| assert!(sched::set_affinity(t, &CpuMask::all())));
        // While CPU 0 runs something higher, it waits; a tick finds that CPU 0 is free.
        let high = Spinner::new(0, fifo(40));
        let other = Spinner::new(1, fifo(40));
        place.store(9, SeqCst);
        nap(6);
        assert_eq!(place.load(SeqCst), 9);
        high.lets_go();
        nap(8);
        assert_eq!(place.load(SeqCst), 0);
        other.lets_go();
        wait_for_ends(3);
    });
}
