//! Run queues: affinities, yields, and the balance between CPUs.
#![cfg(not(shuttle))]

mod processes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use processes::{MS, compute, ended, nap, on, spawn, wait_for_ends};
use task::park::{self, Deadline, Interruptible, Step};
use task::sched::{self, CpuMask, Entity, Policy, Setting};
use task::time::{SECOND, monotonic_ns};
use task::wait::{WaitQueue, Waiter};
use task::{current, ids};
use vm_host::random::Random;

const IDLE: Setting = Setting::ordinary(Policy::Idle);

#[test]
fn settings_of_a_thread_are_clamped_and_inherited() {
    on(1, || {
        let entity = Entity::new(0, 3, Policy::Batch, &CpuMask::one(0));
        assert_eq!((entity.nice(), entity.policy()), (3, Policy::Batch));
        for (set, nice) in [(-128, -20), (-20, -20), (19, 19), (127, 19), (0, 0)] {
            entity.set_nice(set);
            assert_eq!(entity.nice(), nice);
        }
        entity.set_nice(-5);
        let child = entity.forked(0);
        assert_eq!((child.nice(), child.policy()), (-5, Policy::Batch));
        assert!(child.affinity().has(0) && !child.affinity().has(1));
        entity.set_nice(7);
        assert_eq!(entity.forked(0).nice(), 7, "a positive value stays");
        let me = current();
        me.set_nice(-5);
        me.set_policy(Policy::Idle, true);
        assert!(me.setting().reset_on_fork);
        let child = me.sched.forked(0);
        assert_eq!((child.nice(), child.setting()), (0, IDLE));
        me.set_nice(7);
        assert_eq!(me.sched.forked(0).nice(), 7);
    });
}

/// PR_SET_TIMERSLACK: a thread begins with its creator's slack, which 0 restores.
#[test]
fn a_timer_slack_of_0_restores_the_creators() {
    on(1, || {
        let entity = Entity::new(0, 0, Policy::Other, &CpuMask::all());
        assert_eq!(entity.slack(), 50_000);
        entity.set_slack(7);
        let child = entity.forked(0);
        assert_eq!(child.slack(), 7);
        child.set_slack(9);
        child.set_slack(0);
        assert_eq!(child.slack(), 7);
        entity.set_slack(0);
        assert_eq!(entity.slack(), 50_000);
    });
}

#[test]
fn a_mask_does_what_a_set_does() {
    let cpus = hal::MAX_CPUS;
    let mut random = Random(0x3a5c);
    for _ in 0..200 {
        let set: BTreeSet<usize> = (0..random.below_u64(9))
            .map(|_| random.below(cpus))
            .collect();
        let mut words = CpuMask::all().words().map(|_| 0);
        set.iter()
            .for_each(|cpu| words[cpu / 64] |= 1 << (cpu % 64));
        let mask = CpuMask::from_words(words);
        assert!((0..cpus).all(|cpu| mask.has(cpu) == set.contains(&cpu)));
        let most = 1 + random.below(cpus);
        assert_eq!(mask.first(most), set.range(..most).next().copied());
        let other = CpuMask::one(random.below(cpus));
        other.assign(&mask);
        assert_eq!((other.words(), mask.copy().words()), (words, words));
    }
    assert!((0..cpus).all(|cpu| CpuMask::all().has(cpu)));
    let one = CpuMask::one(cpus - 1);
    assert_eq!(
        (one.first(cpus), one.first(cpus - 1)),
        (Some(cpus - 1), None)
    );
}

#[test]
fn a_mask_without_a_cpu_of_the_machine_changes_nothing() {
    on(2, || {
        let me = current();
        assert!(sched::set_affinity(&me, &CpuMask::one(1)));
        for words in [[0; 2].to_vec(), [0b1100].to_vec()] {
            let mut mask = CpuMask::all().words().map(|_| 0);
            mask[..words.len().min(1)].copy_from_slice(&words[..1]);
            assert!(!sched::set_affinity(&me, &CpuMask::from_words(mask)));
            assert_eq!(me.affinity().words(), CpuMask::one(1).words());
        }
        // The CPUs that do not exist are kept beside one that does.
        let mut mask = me.affinity().words();
        mask[0] = 0b1001;
        assert!(sched::set_affinity(&me, &CpuMask::from_words(mask)));
        assert_eq!(hal::cpu::id(), 0);
        assert_eq!(me.affinity().words(), mask);
    });
}

#[test]
fn a_sleeping_thread_wakes_on_a_cpu_of_its_new_mask() {
    on(3, || {
        for cpu in [2, 0, 1] {
            let woke_on = Arc::new(AtomicUsize::new(9));
            let theirs = woke_on.clone();
            let before = ended();
            let tid = spawn(Some((cpu + 1) % 3), move || {
                nap(5);
                theirs.store(hal::cpu::id(), SeqCst);
            });
            nap(2);
            let thread = ids::hold_thread(tid).expect("it sleeps");
            assert!(sched::set_affinity(&thread, &CpuMask::one(cpu)));
            drop(thread);
            wait_for_ends(before + 1);
            assert_eq!(woke_on.load(SeqCst), cpu);
        }
    });
}

/// sched_setaffinity(2): "If the process specified by pid is not currently running on one of the CPUs specified in mask, then
/// that process is migrated".
#[test]
fn a_thread_that_runs_elsewhere_moves_without_waiting_for_a_tick() {
    on(2, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        let (on_cpu, stop) = (
            Arc::new(AtomicUsize::new(9)),
            Arc::new(AtomicBool::new(false)),
        );
        let (theirs, until) = (on_cpu.clone(), stop.clone());
        let tid = spawn(Some(1), move || {
            while !until.load(SeqCst) {
                compute(MS / 50);
                theirs.store(hal::cpu::id(), SeqCst);
            }
        });
        let thread = ids::hold_thread(tid).expect("it runs");
        // A host that is busy elsewhere holds a simulated CPU up, too. A move that waits for the tick is quick by chance: in one round
        // of eight.
        let (rounds, mut quick) = (24, 0);
        for n in 0..rounds {
            assert!(sched::set_affinity(&thread, &CpuMask::one(1)));
            nap(20);
            assert_eq!(on_cpu.load(SeqCst), 1);
            // At another time between two ticks of that CPU.
            compute(n % 8 * MS / 2);
            let begun = monotonic_ns();
            assert!(sched::set_affinity(&thread, &CpuMask::one(0)));
            // Its new CPU is this one, which it shares.
            while sched::running(1) != 0 {
                hal::cpu::relax();
            }
            quick += u64::from(monotonic_ns() - begun < MS / 2);
        }
        assert!(quick >= rounds / 3, "{quick} of {rounds}");
        nap(5);
        assert_eq!(on_cpu.load(SeqCst), 0);
        stop.store(true, SeqCst);
        drop(thread);
        wait_for_ends(1);
    });
}

/// Threads compute and sleep while others change where they may run. Each thread is where its mask says, at the latest after
/// two ticks.
#[test]
fn random_masks_are_obeyed() {
    on(4, || {
        let stop = Arc::new(AtomicBool::new(false));
        let tids: Vec<u32> = (0..6)
            .map(|n| {
                let stop = stop.clone();
                spawn(None, move || {
                    let mut random = Random(0x600 + n);
                    let mut strayed = 0;
                    while !stop.load(SeqCst) {
                        compute(MS / 10);
                        let pin = ksync::pin();
                        let astray = !current().affinity().has(pin.cpu());
                        drop(pin);
                        strayed = if astray { strayed + 1 } else { 0 };
                        assert!(strayed < 100, "it runs where it may not");
                        if random.one_in(5) {
                            nap(1);
                        }
                    }
                })
            })
            .collect();
        let mut random = Random(0xaff1);
        for _ in 0..300 {
            let tid = tids[random.below(tids.len())];
            let mut words = CpuMask::one(0).words();
            words[0] = random.below_u64(16);
            let thread = ids::hold_thread(tid).expect("it runs");
            let set = sched::set_affinity(&thread, &CpuMask::from_words(words));
            assert_eq!(set, words[0] != 0);
            drop(thread);
            nap(1);
        }
        stop.store(true, SeqCst);
        wait_for_ends(6);
    });
}

#[test]
fn a_yield_lets_all_queued_threads_run_first() {
    on(1, || {
        for threads in 1..8 {
            let before = ended();
            let pin = ksync::pin();
            (0..threads).for_each(|_| {
                spawn(None, || ());
            });
            assert_eq!(ended(), before);
            drop(pin);
            sched::yield_now();
            assert_eq!(ended(), before + threads);
        }
    });
}

/// The one that yields has used less, and would run before the others.
#[test]
fn a_yield_lets_a_thread_run_that_has_used_more() {
    on(1, || {
        let (steps, stop) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (theirs, until) = (steps.clone(), stop.clone());
        spawn(None, move || {
            while !until.load(SeqCst) {
                compute(MS / 20);
                theirs.fetch_add(1, SeqCst);
            }
        });
        for n in 0..20 {
            nap(30 + n);
            let before = steps.load(SeqCst);
            sched::yield_now();
            assert!(steps.load(SeqCst) > before, "the other does not run");
        }
        stop.store(true, SeqCst);
        wait_for_ends(1);
    });
}

#[test]
fn a_yield_with_nobody_else_returns_at_once() {
    on(2, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(1)));
        let switches = switches(1);
        // More than once, for the host may be busy elsewhere.
        let quick = (0..50).any(|_| {
            let begun = monotonic_ns();
            (0..10).for_each(|_| sched::yield_now());
            monotonic_ns() - begun < MS / 10
        });
        assert!(quick);
        assert_eq!(self::switches(1), switches);
    });
}

fn switches(cpu: usize) -> u64 {
    let stats = sched::stats(cpu).expect("a CPU");
    stats.switches.load(SeqCst)
}

#[test]
fn an_idle_cpu_takes_a_queued_thread() {
    on(2, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        let stolen = || sched::stats(1).expect("a CPU").steals.load(SeqCst);
        let before = stolen();
        let used = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let pin = ksync::pin();
        let tids = [0, 1].map(|_| {
            let used = used.clone();
            // Queued on this CPU, and then free to move.
            spawn(Some(0), move || {
                for _ in 0..100 {
                    compute(MS / 2);
                    used[hal::cpu::id()].fetch_add(1, SeqCst);
                }
            })
        });
        for tid in tids {
            let thread = ids::thread(&pin, tid).expect("it is queued");
            assert!(sched::set_affinity(thread, &CpuMask::all()));
            assert_eq!(thread.cpu(), 0);
        }
        drop(pin);
        // CPU 1 looks for work whenever it has had some, and may find the other's queue locked.
        spawn(Some(1), || (0..10).for_each(|_| nap(1)));
        wait_for_ends(3);
        let used = [used[0].load(SeqCst), used[1].load(SeqCst)];
        assert!(used[0] >= 50 && used[1] >= 50, "{used:?}");
        assert!(stolen() > before);
    });
}

/// Four threads that begin on one CPU, beside a CPU with one: each CPU gets its part of them.
#[test]
fn busy_cpus_share_their_threads() {
    on(2, || {
        let until = monotonic_ns() + 2 * SECOND;
        let got = Arc::new([const { AtomicU64::new(0) }; 5]);
        for n in 0..5 {
            let got = got.clone();
            let tid = spawn(Some(usize::from(n == 4)), move || {
                while monotonic_ns() < until {
                    compute(MS / 10);
                }
                got[n].store(current().charge_now() / MS, SeqCst);
            });
            let thread = ids::hold_thread(tid).expect("it is new");
            assert!(sched::set_affinity(&thread, &CpuMask::all()));
        }
        wait_for_ends(5);
        // Four seconds of CPU time for five.
        let got: Vec<u64> = got.iter().map(|ms| ms.load(SeqCst)).collect();
        assert!(got.iter().all(|ms| (500..1300).contains(ms)), "{got:?}");
        assert!(got.iter().sum::<u64>() > 3900, "{got:?}");
    });
}

#[test]
fn a_thread_that_may_not_leave_is_not_taken() {
    on(2, || {
        let pinned = Arc::new(AtomicU32::new(0));
        for _ in 0..3 {
            let pinned = pinned.clone();
            spawn(Some(0), move || {
                for _ in 0..100 {
                    compute(MS / 5);
                    assert_eq!(hal::cpu::id(), 0);
                }
                pinned.fetch_add(1, SeqCst);
            });
        }
        spawn(Some(1), || compute(10 * MS));
        wait_for_ends(4);
        assert_eq!(pinned.load(SeqCst), 3);
    });
}

/// The CPUs on which a thread runs that has slept on `home`, and that CPU 0 wakes each time. CPU 0 computes, and so does CPU
/// `home` if it is to be `busy`.
fn wakes(home: usize, busy: bool) -> Vec<usize> {
    let woke_on = Arc::new(Mutex::new(Vec::new()));
    let queue = Arc::new(WaitQueue::new());
    for round in 1..=20 {
        let (theirs, sleeps, before) = (woke_on.clone(), queue.clone(), ended());
        spawn(Some(home), move || {
            assert!(sched::set_affinity(&current(), &CpuMask::all()));
            let step = |state: &mut (Arc<WaitQueue>, bool), waiter: &mut Waiter| {
                waiter.listen(&state.0);
                match core::mem::replace(&mut state.1, true) {
                    false => Step::Wait,
                    true => Step::Done(()),
                }
            };
            let kind = Interruptible::No;
            let slept = park::park(&mut (sleeps, false), Deadline::Never, kind, step);
            assert_eq!(slept, Ok(()));
            theirs.lock().expect("not poisoned").push(hal::cpu::id());
        });
        nap(2);
        if busy {
            spawn(Some(home), || compute(10 * MS));
        }
        compute(2 * MS);
        assert!(queue.wake_one());
        // While this CPU computes it takes no thread. The one that was chosen may be slow to begin on a busy host.
        for _ in 0..5000 {
            if woke_on.lock().expect("not poisoned").len() == round {
                break;
            }
            std::thread::yield_now();
            hal::time::spin_ns(MS / 1000);
        }
        wait_for_ends(before + 1 + u32::from(busy));
    }
    let woke_on = woke_on.lock().expect("not poisoned");
    woke_on.clone()
}

/// Idle CPUs are busy for a moment now and then, so not each wake-up finds one.
fn most_are(cpus: &[usize], cpu: usize) {
    let there = cpus.iter().filter(|&&woke_on| woke_on == cpu).count();
    assert!(there * 3 > cpus.len() * 2, "not on CPU {cpu}: {cpus:?}");
}

#[test]
fn a_woken_thread_goes_to_its_last_cpu_if_that_is_idle() {
    on(4, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        for home in [3, 1, 2] {
            most_are(&wakes(home, false), home);
        }
    });
}

#[test]
fn a_woken_thread_goes_to_an_idle_cpu_if_its_last_one_is_busy() {
    on(3, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        most_are(&wakes(1, true), 2);
    });
}

#[test]
fn the_threads_of_a_cpu_are_counted() {
    on(2, || {
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        nap(1);
        assert_eq!((sched::load(0), sched::load(1)), (1, 0));
        assert_eq!(sched::running(0), current().tid());
        assert_eq!(sched::running(1), 0);
        let forks = || sched::stats(0).expect("a CPU").forks.load(SeqCst);
        let before = forks();
        let pin = ksync::pin();
        let tids: Vec<u32> = (0..3).map(|_| spawn(Some(0), || ())).collect();
        assert_eq!((sched::load(0), sched::runnable()), (4, 4));
        assert_eq!(forks(), before + 3);
        let moved = ids::thread(&pin, tids[1]).expect("it is queued");
        assert!(sched::set_affinity(moved, &CpuMask::one(1)));
        assert_eq!(sched::load(0), 3);
        drop(pin);
        wait_for_ends(3);
        assert_eq!((sched::load(0), sched::load(1)), (1, 0));
        assert!(sched::stats(2).is_none(), "no such CPU");
    });
}

#[test]
fn idle_time_and_run_time_add_up() {
    on(2, || {
        let before = [sched::idle_ns(0), sched::idle_ns(1)];
        let begun = monotonic_ns();
        spawn(Some(1), || compute(300 * MS));
        nap(1000);
        let passed = monotonic_ns() - begun;
        let idle = [sched::idle_ns(0) - before[0], sched::idle_ns(1) - before[1]];
        assert!(passed.abs_diff(idle[0]) < MS / 10, "{idle:?}");
        let busy = passed - idle[1];
        assert!((300 * MS..303 * MS).contains(&busy), "{busy}");
        assert_eq!(sched::idle_ns(7), 0);
    });
}

/// So many threads compute for so many seconds. The averages must then be those of the formula, which are in `expected`.
fn load(threads: u32, seconds: u64, expected: &mut [f64; 3]) {
    let before = ended();
    let until = monotonic_ns() + seconds * SECOND;
    for _ in 0..threads {
        spawn(None, move || {
            while monotonic_ns() < until {
                hal::time::spin_ns(MS);
            }
        });
    }
    nap(seconds * 1000);
    wait_for_ends(before + threads);
    let now = sched::load_average();
    for (n, minutes) in [1.0f64, 5.0, 15.0].into_iter().enumerate() {
        for _ in 0..seconds / 5 {
            let decay = (-5.0 / 60.0 / minutes).exp();
            expected[n] = expected[n] * decay + f64::from(threads) * (1.0 - decay);
        }
        let off = (now[n] as f64 / 1000.0 - expected[n]).abs();
        assert!(off < 0.15 + expected[n] / 20.0, "{now:?}: {expected:?}");
    }
}

/// A CPU that halted while none could be moved to it is asked to look again.
#[test]
fn an_idle_cpu_gets_a_queued_thread_whose_affinity_grows() {
    on(2, || {
        let until = monotonic_ns() + 1500 * MS;
        let seen = Arc::new(AtomicUsize::new(0));
        let tids = [(); 2].map(|()| {
            let seen = seen.clone();
            spawn(Some(0), move || {
                while monotonic_ns() < until && seen.load(SeqCst) != 3 {
                    compute(MS / 20);
                    seen.fetch_or(1 << hal::cpu::id(), SeqCst);
                }
            })
        });
        assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
        nap(30);
        assert_eq!(seen.load(SeqCst), 1, "both may run on one CPU only");
        for tid in tids {
            let thread = ids::hold_thread(tid).expect("it computes");
            assert!(sched::set_affinity(&thread, &CpuMask::all()));
        }
        wait_for_ends(2);
        assert_eq!(seen.load(SeqCst), 3);
    });
}

/// Runs two threads that compute on CPU 0, of which one may run on CPU `other`, too, until it has. Whether that comes soon.
fn one_of_two_moves(movable: usize, other: usize) -> bool {
    assert!(sched::set_affinity(&current(), &CpuMask::one(0)));
    let ends = ended() + 2;
    let until = monotonic_ns() + 1500 * MS;
    let moved = Arc::new(AtomicBool::new(false));
    let tids = [(); 2].map(|()| {
        let moved = moved.clone();
        spawn(Some(0), move || {
            while monotonic_ns() < until && !moved.load(SeqCst) {
                compute(MS / 20);
                if hal::cpu::id() == other {
                    moved.store(true, SeqCst);
                }
            }
        })
    });
    // Until the idle CPUs have nothing left to free, for which they would look at the queues at each tick.
    nap(200);
    let mut mask = CpuMask::one(0).words();
    mask[0] |= 1 << other;
    let thread = ids::hold_thread(tids[movable]).expect("it computes");
    assert!(sched::set_affinity(&thread, &CpuMask::from_words(mask)));
    drop(thread);
    wait_for_ends(ends);
    moved.load(SeqCst)
}

/// The two threads take turns, so one of them is always the one that runs at each second tick.
#[test]
fn an_idle_cpu_gets_the_one_queued_thread_that_may_run_on_it() {
    on(2, || {
        assert!(one_of_two_moves(0, 1));
        assert!(one_of_two_moves(1, 1));
    });
}

#[test]
fn each_idle_cpu_may_get_a_queued_thread() {
    on(3, || {
        assert!(one_of_two_moves(0, 1));
        assert!(one_of_two_moves(0, 2));
    });
}

/// getloadavg(3): over 1, 5 and 15 minutes, each an exponential average of samples that are five seconds apart.
#[test]
fn load_averages_rise_and_fall_as_their_formula_says() {
    on(1, || {
        let mut expected = [0.0; 3];
        load(3, 60, &mut expected);
        load(1, 120, &mut expected);
    });
}

#[test]
fn load_averages_fall_while_the_machine_is_idle() {
    on(1, || {
        let mut expected = [0.0; 3];
        load(3, 60, &mut expected);
        load(0, 120, &mut expected);
    });
}

/// The clocks of two CPUs are not exactly equal: one has taken a sample that is not due yet on the other.
#[test]
fn a_sample_of_the_load_is_taken_once_by_cpus_whose_clocks_differ() {
    on(2, || {
        for cpu in 0..2 {
            spawn(Some(cpu), || {
                for due in (1..=6).map(|n| n * 5 * SECOND) {
                    processes::nap_until(due - MS);
                    while monotonic_ns() < due + MS {
                        sched::load_average();
                    }
                }
            });
        }
        wait_for_ends(2);
        let mut expected = 0;
        for _ in 0..6 {
            expected = (expected * 1884 + 2 * 2048 * (2048 - 1884)) / 2048;
        }
        assert_eq!(sched::load_average()[0], expected * 1000 / 2048);
    });
}
