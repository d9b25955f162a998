//! Threads with real-time priorities: which of them runs.
#![cfg(not(shuttle))]

mod priorities;
mod processes;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use priorities::{OTHER, Spinner, fifo, give, lend, round_robin, setting, start, with};
use processes::{MS, compute, ended, nap, nap_until, on, spawn, wait_for_ends};
use task::sched::{self, CpuMask, Policy, RR_NS, Setting};
use task::thread::flag;
use task::time::monotonic_ns;
use task::{current, ids};
use vm_host::random::Random;

/// What threads have noted, in order.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<usize>>>);

impl Notes {
    fn add(&self, n: usize) {
        self.0.lock().expect("not poisoned").push(n);
    }

    fn all(&self) -> Vec<usize> {
        self.0.lock().expect("not poisoned").clone()
    }
}

/// Queues so many threads on CPU 0, which does not give way, and does `act` to their tids. Returns the order in which they run, beside
/// the body, which is ordinary.
fn order(threads: usize, act: impl FnOnce(&[u32])) -> Vec<usize> {
    let (notes, before) = (Notes::default(), ended());
    let pin = ksync::pin();
    let queue = |n| {
        let notes = notes.clone();
        spawn(Some(0), move || notes.add(n))
    };
    let tids: Vec<u32> = (0..threads).map(queue).collect();
    act(&tids);
    drop(pin);
    wait_for_ends(before + threads as u32);
    notes.all()
}

#[test]
fn threads_run_by_priority_and_in_order_of_arrival_within_one() {
    on(1, || {
        let got = order(7, |tids| {
            for (n, priority) in [5, 0, 99, 5, 1, 99, 5].into_iter().enumerate() {
                if priority > 0 {
                    give(tids[n], fifo(priority));
                }
            }
        });
        assert_eq!(got, [2, 5, 0, 3, 6, 4, 1]);
    });
}

/// sched(7): a raised thread goes to the end of its new list, a lowered one to the front; with the same priority it stays.
#[test]
fn a_change_places_a_thread_by_its_direction() {
    on(1, || {
        let all_at = |tids: &[u32], priority| {
            tids.iter().for_each(|&tid| give(tid, fifo(priority)));
        };
        let raised = order(3, |tids| {
            all_at(tids, 20);
            give(tids[0], fifo(10));
            give(tids[0], fifo(20));
        });
        assert_eq!(raised, [1, 2, 0]);
        let lowered = order(3, |tids| {
            all_at(tids, 20);
            give(tids[2], fifo(30));
            give(tids[2], fifo(20));
        });
        assert_eq!(lowered, [2, 0, 1]);
        let same = order(3, |tids| {
            all_at(tids, 20);
            give(tids[1], fifo(20));
            give(tids[0], round_robin(20));
        });
        assert_eq!(same, [0, 1, 2]);
        let ordinary = order(3, |tids| {
            all_at(tids, 20);
            give(tids[0], OTHER);
        });
        assert_eq!(ordinary, [1, 2, 0]);
    });
}

/// Queued threads whose own and lent priorities change at random, against lists.
#[test]
fn random_changes_do_what_lists_do() {
    on(1, || {
        let mut random = Random(0x4e41);
        for _ in 0..200 {
            let threads = 2 + random.below(6);
            let mut lists = vec![Vec::new(); 100];
            lists[0] = (0..threads).collect();
            let mut own = vec![[0u8; 2]; threads];
            let got = order(threads, |tids| {
                for _ in 0..random.below(20) {
                    let n = random.below(threads);
                    let before = own[n][0].max(own[n][1]);
                    let new = [0, 1, 50, 51, 99][random.below(5)];
                    if random.one_in(2) {
                        own[n][0] = new;
                        let policy = [Policy::Fifo, Policy::RoundRobin][random.below(2)];
                        give(
                            tids[n],
                            if new == 0 {
                                OTHER
                            } else {
                                setting(policy, new)
                            },
                        );
                    } else {
                        own[n][1] = new;
                        lend(tids[n], new);
                    }
                    let after = own[n][0].max(own[n][1]);
                    assert_eq!(with(tids[n], |_, t| t.priority()), after);
                    if after == before {
                        continue;
                    }
                    lists[usize::from(before)].retain(|&other| other != n);
                    let list = &mut lists[usize::from(after)];
                    if 0 < after && after < before {
                        list.insert(0, n);
                    } else {
                        list.push(n);
                    }
                }
            });
            let expected: Vec<usize> = lists.into_iter().rev().flatten().collect();
            assert_eq!(got, expected);
        }
    });
}

/// The nanoseconds by which a thread with the setting `new` on CPU 0 runs late that sleeps beside one that computes with `busy`.
fn lateness(new: Setting, busy: Setting) -> u64 {
    let before = ended();
    let late = Arc::new(AtomicU64::new(0));
    let (most, until) = (late.clone(), monotonic_ns() + 60 * MS);
    start(0, new, move || {
        for n in 1..6 {
            let at = until - 60 * MS + n * 7 * MS + n * MS / 3;
            nap_until(at);
            most.fetch_max(monotonic_ns() - at, SeqCst);
        }
    });
    start(0, busy, move || {
        while monotonic_ns() < until {
            compute(MS / 20);
        }
    });
    wait_for_ends(before + 2);
    late.load(SeqCst)
}

#[test]
fn a_wake_up_preempts_what_is_lower_at_once() {
    on(1, || {
        assert!(lateness(fifo(1), OTHER) < MS / 2);
        assert!(lateness(fifo(2), fifo(1)) < MS / 2);
        assert!(lateness(round_robin(99), round_robin(98)) < MS / 2);
        assert!(lateness(fifo(1), fifo(1)) > 20 * MS);
        assert!(lateness(fifo(1), fifo(2)) > 20 * MS);
        assert!(lateness(OTHER, fifo(1)) > 20 * MS);
    });
}

/// Two threads of one priority that compute for 450 ms each beside one another: how often the CPU changed between them.
fn turns(new: Setting) -> usize {
    let (notes, before) = (Notes::default(), ended());
    let pin = ksync::pin();
    for n in 0..2 {
        let notes = notes.clone();
        start(0, new, move || {
            for _ in 0..450 {
                compute(MS);
                notes.add(n);
            }
        });
    }
    drop(pin);
    wait_for_ends(before + 2);
    let all = notes.all();
    all.windows(2).filter(|pair| pair[0] != pair[1]).count()
}

#[test]
fn round_robin_changes_by_slices_and_fifo_does_not() {
    on(1, || {
        assert_eq!(turns(fifo(7)), 1);
        let changes = turns(round_robin(7));
        assert!((7..=9).contains(&changes), "{changes} in 900 ms by {RR_NS}");
    });
}

#[test]
fn a_yield_goes_to_the_end_of_its_priority() {
    on(1, || {
        let (notes, before) = (Notes::default(), ended());
        let pin = ksync::pin();
        for (n, priority) in [(0, 8), (1, 8), (2, 8), (3, 7)] {
            let notes = notes.clone();
            start(0, fifo(priority), move || {
                for _ in 0..3 {
                    notes.add(n);
                    sched::yield_turn();
                }
            });
        }
        drop(pin);
        wait_for_ends(before + 4);
        assert_eq!(notes.all(), [0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 3, 3]);
    });
}

/// A loop of the kernel that yields until another thread has done something.
#[test]
fn the_kernels_own_yield_lets_ordinary_threads_run() {
    on(1, || {
        let done = Arc::new(AtomicBool::new(false));
        let until = done.clone();
        start(0, fifo(50), move || {
            while !until.load(SeqCst) {
                sched::yield_now();
            }
        });
        let begun = monotonic_ns();
        spawn(Some(0), move || done.store(true, SeqCst));
        wait_for_ends(2);
        assert!(monotonic_ns() - begun < 100 * MS);
    });
}

#[test]
fn a_running_thread_that_is_lowered_gives_way() {
    on(1, || {
        let notes = Notes::default();
        let theirs = notes.clone();
        start(0, fifo(10), move || {
            let ours = theirs.clone();
            start(0, fifo(5), move || ours.add(1));
            compute(10 * MS);
            theirs.add(0);
            current().set_setting(fifo(5));
            theirs.add(2);
            current().set_setting(fifo(4));
            theirs.add(3);
        });
        wait_for_ends(2);
        // As the first of its new list it goes on, until it is lower.
        assert_eq!(notes.all(), [0, 2, 1, 3]);
    });
}

/// Whether a thread that is queued on CPU 1 begins to run within two milliseconds.
fn begins(flag: &AtomicBool) -> bool {
    let until = monotonic_ns() + 2 * MS;
    while monotonic_ns() < until && !flag.load(SeqCst) {
        hal::time::spin_ns(MS / 50);
        std::thread::yield_now();
    }
    flag.load(SeqCst)
}

/// The caller stays on CPU 0; an ordinary or real-time thread runs on CPU 1, and another one is queued there. `act` makes the latter run.
fn makes_run(busy: Setting, queued: Setting, act: impl FnOnce(&Spinner, u32)) -> bool {
    assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
    let before = ended();
    let spinner = Spinner::new(1, busy);
    let ran = Arc::new(AtomicBool::new(false));
    let theirs = ran.clone();
    let tid = start(1, queued, move || theirs.store(true, SeqCst));
    act(&spinner, tid);
    let begun = begins(&ran);
    spinner.lets_go();
    wait_for_ends(before + 2);
    begun
}

#[test]
fn a_change_on_another_cpu_takes_effect_at_once() {
    on(2, || {
        assert!(makes_run(fifo(9), fifo(8), |spinner, _| give(
            spinner.tid,
            fifo(7)
        )));
        assert!(makes_run(fifo(9), fifo(8), |spinner, _| give(
            spinner.tid,
            OTHER
        )));
        assert!(makes_run(fifo(9), fifo(8), |_, tid| give(tid, fifo(10))));
        assert!(makes_run(fifo(9), OTHER, |_, tid| give(
            tid,
            round_robin(10)
        )));
        assert!(makes_run(OTHER, OTHER, |_, tid| give(tid, fifo(1))));
        assert!(!makes_run(fifo(9), fifo(8), |_, tid| give(tid, fifo(9))));
        assert!(!makes_run(fifo(9), fifo(8), |spinner, _| give(
            spinner.tid,
            fifo(8)
        )));
        // The present thread, raised above what is about to be queued.
        assert!(!makes_run(OTHER, OTHER, |spinner, tid| {
            give(spinner.tid, fifo(3));
            nap(1);
            give(tid, fifo(2));
        }));
    });
}

#[test]
fn a_loan_takes_effect_on_threads_that_run_are_queued_or_sleep() {
    on(2, || {
        assert!(makes_run(fifo(9), OTHER, |_, tid| lend(tid, 10)));
        assert!(!makes_run(fifo(9), fifo(8), |spinner, tid| {
            lend(spinner.tid, 50);
            give(tid, fifo(49));
        }));
        assert!(makes_run(fifo(9), fifo(12), |_, tid| {
            lend(tid, 10);
            assert_eq!(with(tid, |_, t| t.priority()), 12);
        }));
        // Taken back: what was kept waiting runs.
        assert!(makes_run(fifo(9), OTHER, |spinner, tid| {
            lend(spinner.tid, 50);
            give(tid, fifo(49));
            lend(spinner.tid, 0);
        }));
        let late = Arc::new(AtomicU64::new(0));
        let theirs = late.clone();
        let at = monotonic_ns() + 20 * MS;
        let tid = start(1, OTHER, move || {
            nap_until(at);
            theirs.store(monotonic_ns() - at, SeqCst);
        });
        nap(1);
        let before = ended();
        let spinner = Spinner::new(1, fifo(20));
        lend(tid, 21);
        nap(30);
        assert_eq!(ended(), before + 1, "the sleeper has run");
        assert!(late.load(SeqCst) < MS / 2);
        spinner.lets_go();
        wait_for_ends(before + 2);
    });
}

#[test]
fn a_child_inherits_a_policy_and_no_loan() {
    on(1, || {
        let me = current();
        me.set_setting(round_robin(12));
        sched::lend_priority(&ksync::pin(), &me, 40);
        let child = me.sched.forked(0);
        assert_eq!((child.setting(), child.priority()), (round_robin(12), 12));
        me.set_nice(-3);
        me.set_setting(Setting {
            reset_on_fork: true,
            ..fifo(12)
        });
        assert_eq!(me.priority(), 40);
        let child = me.sched.forked(0);
        let shown = (child.setting(), child.priority(), child.nice());
        assert_eq!(shown, (OTHER, 0, 0));
        sched::lend_priority(&ksync::pin(), &me, 0);
        assert_eq!(me.priority(), 12);
        me.set_setting(OTHER);
    });
}

#[test]
fn time_without_a_sleep_is_counted() {
    on(1, || {
        let seen = Arc::new([const { AtomicU64::new(0) }; 3]);
        let theirs = seen.clone();
        start(0, fifo(3), move || {
            compute(50 * MS);
            theirs[0].store(current().sched.unslept_ns(), SeqCst);
            sched::yield_turn();
            theirs[1].store(current().sched.unslept_ns(), SeqCst);
            nap(1);
            compute(MS);
            theirs[2].store(current().sched.unslept_ns(), SeqCst);
        });
        wait_for_ends(1);
        let seen = [0, 1, 2].map(|n: usize| seen[n].load(SeqCst) / MS);
        assert!(seen[0] >= 45 && seen[1] >= 49 && seen[2] <= 4, "{seen:?}");
        let me = current();
        compute(20 * MS);
        assert_eq!(me.sched.unslept_ns(), 0);
    });
}

/// Short loans do not add up to what RLIMIT_RTTIME limits, whether the thread sleeps between them or not; one whose own policy is a real-time
/// one does not escape by another policy.
#[test]
fn time_with_a_loan_is_counted_until_the_loan_ends() {
    on(1, || {
        let lend = |priority| sched::lend_priority(&ksync::pin(), &current(), priority);
        let me = current();
        let mut most = 0;
        for n in 0..8 {
            lend(40);
            compute(20 * MS);
            most = most.max(me.sched.unslept_ns());
            lend(0);
            if n % 2 == 0 {
                nap(1);
            } else {
                compute(5 * MS);
            }
        }
        assert!((15 * MS..30 * MS).contains(&most), "{most}");
        // A sleep without a priority is one, too.
        me.set_setting(fifo(3));
        compute(20 * MS);
        me.set_setting(OTHER);
        assert!(me.sched.unslept_ns() >= 15 * MS);
        nap(1);
        assert_eq!(me.sched.unslept_ns(), 0);
    });
}

/// A thread with a priority does not wait for what an ordinary one makes, which it keeps from making it: it makes its own, which both see.
#[test]
fn the_maker_of_a_cell_s_value_is_not_waited_for() {
    on(1, || {
        let (cell, late) = (
            Arc::new(ksync::Once::<u64>::new()),
            Arc::new(AtomicU64::new(0)),
        );
        let (theirs, seen) = (cell.clone(), late.clone());
        let at = monotonic_ns() + 5 * MS;
        start(0, fifo(50), move || {
            nap_until(at);
            assert_eq!(*theirs.get_or_init(|| 2), 2);
            seen.store(monotonic_ns() - at, SeqCst);
        });
        nap(1);
        let made = cell.get_or_init(|| {
            compute(20 * MS);
            1
        });
        assert_eq!(*made, 2);
        wait_for_ends(1);
        assert!(late.load(SeqCst) < 10 * MS, "{}", late.load(SeqCst));
    });
}

ksync::lock_class!(TestLock, "test mutex", rank = 1);

/// A thread that waits for a lock lends its priority to the program that has it, until that hands the lock over.
#[test]
fn a_lock_of_the_kernel_lends_the_priority_of_its_waiter() {
    on(1, || {
        let lock = Arc::new(ksync::Mutex::<u32, TestLock>::new(0));
        current().set_setting(fifo(99));
        let notes = Notes::default();
        let (held, theirs) = (lock.clone(), notes.clone());
        let owner = spawn(Some(0), move || {
            // As a thread of a program.
            current().clear(flag::KERNEL);
            let guard = held.lock();
            compute(20 * MS);
            assert_eq!(current().priority(), 60);
            theirs.add(0);
            drop(guard);
            assert_eq!(current().priority(), 0);
            theirs.add(3);
            current().set(flag::KERNEL);
        });
        nap(1);
        let (waits, theirs) = (lock.clone(), notes.clone());
        start(0, fifo(60), move || {
            *waits.lock() += 1;
            theirs.add(1);
        });
        let theirs = notes.clone();
        start(0, fifo(50), move || {
            compute(50 * MS);
            theirs.add(2);
        });
        wait_for_ends(3);
        assert_eq!(notes.all(), [0, 1, 2, 3]);
        assert_eq!(ids::hold_thread(owner).map(|t| t.tid()), None);
    });
}

/// What was lent for one lock does not end with another one.
#[test]
fn a_loan_for_several_locks_of_the_kernel_lasts_until_user_mode() {
    on(1, || {
        let locks = Arc::new([const { ksync::Mutex::<u32, TestLock>::new(0) }; 3]);
        current().set_setting(fifo(99));
        let held = locks.clone();
        spawn(Some(0), move || {
            let me = current();
            me.clear(flag::KERNEL);
            let [first, second, third] = &*held;
            let guards = (first.lock(), second.lock_nested());
            compute(20 * MS);
            assert_eq!(me.priority(), 60);
            drop(guards.0);
            assert_eq!(me.priority(), 60);
            drop(guards.1);
            assert!(me.has(flag::LENT));
            sched::give_back(&me);
            assert_eq!(me.priority(), 0);
            // One that others do not wait for ends nothing.
            let guards = (first.lock(), third.lock_nested());
            me.set_setting(OTHER);
            sched::lend_for_lock(&ksync::pin(), &me, 7, 64);
            drop(guards);
            assert_eq!(me.priority(), 7);
            sched::lock_released(&ksync::pin(), &me, 64);
            assert_eq!(me.priority(), 0);
            me.set(flag::KERNEL);
        });
        nap(1);
        for (n, priority) in [(1, 50), (0, 60)] {
            let waits = locks.clone();
            start(0, fifo(priority), move || *waits[n].lock() += 1);
            nap(1);
        }
        wait_for_ends(3);
    });
}
