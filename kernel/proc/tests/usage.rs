//! What processes have used, as getrusage(2), times(2) and wait4(2) report it.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::{Arc, Mutex};

use proc::signal::{Action, set_action, sig};
use proc::wait4::{self, Children, Options};
use programs::{MEMORY, MS, PAGE, join, seeded, store, take_memory, thread, with_memory};
use support::{exited, fork, kill, me, nap, on, user_mode, wait};
use task::current::current;
use task::usage::Times;

/// Uses so many milliseconds of CPU time.
fn compute(ms: u64) {
    for _ in 0..ms {
        hal::time::spin_ns(MS);
    }
}

/// All CPU time, in milliseconds.
fn cpu_ms(times: &Times) -> u64 {
    (times.user_ns + times.sys_ns) / MS
}

/// CPU time of the children that the caller has waited for, in milliseconds.
fn of_children() -> u64 {
    cpu_ms(&me().child_times())
}

/// CPU time of the caller's process, in milliseconds.
fn own() -> u64 {
    current().charge_now();
    cpu_ms(&me().times())
}

/// Waits for any child, and returns what it has used, in milliseconds.
fn waited_ms() -> u64 {
    let options = Options {
        exited: true,
        ..Options::default()
    };
    let report = wait4::wait(Children::Any, options).expect("a child");
    cpu_ms(&report.expect("the call waits").times)
}

#[test]
fn a_process_uses_what_it_computes_and_nothing_asleep() {
    on(1, || {
        let before = own();
        compute(30);
        let after = own();
        assert!((30..35).contains(&(after - before)), "{before} {after}");
        nap(500);
        assert!(own() - after < 5);
    });
}

#[test]
fn the_time_of_all_threads_counts_also_of_those_that_have_ended() {
    with_memory(2, || {
        let before = own();
        let tids = [10, 20].map(|ms| thread(move || compute(ms)));
        tids.into_iter().for_each(join);
        assert_eq!(me().thread_count(), 1);
        let used = own() - before;
        assert!((30..45).contains(&used), "{used}");
    });
}

#[test]
fn a_child_counts_once_it_has_been_waited_for() {
    on(2, || {
        fork(|| {
            compute(40);
            0
        });
        nap(100);
        assert_eq!(of_children(), 0);
        let reported = waited_ms();
        assert!((40..50).contains(&reported), "{reported}");
        assert_eq!(of_children(), reported);
    });
}

/// "It includes the resources of descendants, if all of them waited for their children."
#[test]
fn a_childs_children_count_where_the_child_has_waited_for_them() {
    on(2, || {
        for (waits, least, most) in [(true, 60, 75), (false, 20, 30)] {
            let before = of_children();
            let child = fork(move || {
                fork(|| {
                    compute(40);
                    0
                });
                compute(20);
                if waits {
                    assert!(wait(Children::Any).is_ok());
                }
                0
            });
            assert!(wait(Children::Pid(child)).is_ok());
            let used = of_children() - before;
            assert!((least..most).contains(&used), "{used}");
            if !waits {
                // The orphan is a child of this process by now.
                assert!((40..50).contains(&waited_ms()));
            }
        }
    });
}

#[test]
fn a_report_has_the_usage_of_the_childs_children_too() {
    on(2, || {
        fork(|| {
            fork(|| {
                compute(30);
                0
            });
            u8::from(wait(Children::Any).is_err())
        });
        let reported = waited_ms();
        assert!((30..40).contains(&reported), "{reported}");
    });
}

#[test]
fn a_report_that_is_kept_does_not_count() {
    on(2, || {
        let child = fork(|| {
            compute(20);
            0
        });
        let keep = Options {
            exited: true,
            keep: true,
            ..Options::default()
        };
        for _ in 0..3 {
            let report = wait4::wait(Children::Any, keep).expect("a child");
            assert!(cpu_ms(&report.expect("a report").times) >= 20);
            assert_eq!(of_children(), 0);
        }
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert!((20..30).contains(&of_children()));
    });
}

/// POSIX: their times are not those of children that were waited for.
#[test]
fn children_that_are_discarded_do_not_count() {
    on(2, || {
        let ignore = Action {
            handler: 1,
            ..Action::default()
        };
        set_action(&me(), sig::CHLD, ignore);
        fork(|| {
            compute(20);
            0
        });
        assert!(wait(Children::Any).is_err());
        assert_eq!(of_children(), 0);
    });
}

#[test]
fn a_child_that_was_killed_counts_like_any_other() {
    on(2, || {
        let child = fork(|| {
            compute(20);
            loop {
                nap(1000);
                user_mode();
            }
        });
        nap(50);
        assert!(kill(child, sig::KILL));
        assert!((20..30).contains(&waited_ms()));
        assert!((20..30).contains(&of_children()));
    });
}

#[test]
fn an_execve_keeps_what_was_used() {
    on(2, || {
        let child = fork(|| {
            fork(|| {
                compute(15);
                0
            });
            assert!(wait(Children::Any).is_ok());
            compute(20);
            let before = own();
            take_memory();
            assert!(own() >= before);
            assert!((15..25).contains(&of_children()));
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert!((35..50).contains(&of_children()));
    });
}

#[test]
fn a_forked_child_begins_with_nothing() {
    on(2, || {
        compute(30);
        let child = fork(|| {
            assert!(own() < 5);
            assert_eq!(of_children(), 0);
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
    });
}

#[test]
fn each_first_touch_of_a_page_is_a_fault() {
    with_memory(1, || {
        let faults = || me().times().minor_faults;
        let before = faults();
        for page in 0..10 {
            store(MEMORY + page * PAGE, 1);
        }
        assert_eq!(faults(), before + 10);
        for page in 0..10 {
            store(MEMORY + page * PAGE, 2);
        }
        assert_eq!(faults(), before + 10);
    });
}

#[test]
fn the_resident_set_of_children_is_that_of_the_largest() {
    with_memory(1, || {
        let touch = |pages: u64| {
            fork(move || {
                (0..pages).for_each(|page| store(MEMORY + page * PAGE, 1));
                0
            });
            assert!(wait(Children::Any).is_ok());
            me().child_times().max_rss_kib
        };
        assert_eq!(touch(3), 12);
        assert_eq!(touch(12), 48);
        assert_eq!(touch(5), 48);
    });
}

#[test]
fn a_sleep_is_a_voluntary_switch() {
    on(1, || {
        let before = me().times().voluntary;
        (0..10).for_each(|_| nap(1));
        assert_eq!(me().times().voluntary, before + 10);
    });
}

#[test]
fn the_sum_never_decreases_while_threads_come_and_go() {
    with_memory(4, || {
        let left = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..6 {
            let left = left.clone();
            thread(move || {
                for _ in 0..8 {
                    let tid = thread(|| compute(1));
                    join(tid);
                }
                left.lock().unwrap().push(());
            });
        }
        let mut last = 0;
        while left.lock().unwrap().len() < 6 {
            let now = own();
            assert!(now >= last, "{now} after {last}");
            last = now;
            hal::time::spin_ns(20_000);
        }
        assert!(last >= 40, "{last}");
    });
}

#[test]
fn a_random_family_uses_what_its_members_compute() {
    fn live(seed: u64, depth: usize) -> u64 {
        let mut random = seeded(seed);
        let mut sum = 0;
        for n in 0..random.below(3) as u64 {
            let used = random.below(10) as u64;
            if depth < 4 && random.below(3) > 0 {
                let seed = seed * 7 + n;
                fork(move || {
                    live(seed, depth + 1);
                    0
                });
                // The child reports by what the kernel counts; the reference is what the same seed computes.
                assert!(wait(Children::Any).is_ok());
                sum += computed(seed, depth + 1);
            }
            compute(used);
            sum += used;
        }
        sum
    }
    fn computed(seed: u64, depth: usize) -> u64 {
        let mut random = seeded(seed);
        let mut sum = 0;
        for n in 0..random.below(3) as u64 {
            let used = random.below(10) as u64;
            if depth < 4 && random.below(3) > 0 {
                sum += computed(seed * 7 + n, depth + 1);
            }
            sum += used;
        }
        sum
    }
    on(2, || {
        for seed in 1..30 {
            let before = of_children();
            fork(move || {
                live(seed, 0);
                0
            });
            assert!(wait(Children::Any).is_ok());
            let (used, right) = (of_children() - before, computed(seed, 0));
            assert!(used >= right && used <= right + 10, "{used} for {right}");
        }
    });
}
