//! Timers: each expires once and at its time, on whatever list and CPU it is, unless it has been cancelled.
#![cfg(not(shuttle))]

mod processes;

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use processes::{
    ALARMS, MS, US, alarm, compute, expiries_take, nap, nap_until, on, rung, spawn, ticks,
    wait_for_ends,
};
use task::park::{self, Deadline, Interruptible};
use task::time::{SECOND, monotonic_ns};
use task::{current, sched, timer};
use vm_host::random::Random;

/// Nanoseconds by which an expiry on an idle CPU may be late: less than half a grain of the wheel, which is 2^16 ns.
const LATE: u64 = 20 * US;

/// Sleeps until all timers that are due by `at` must have expired.
fn pass(at: u64) {
    nap_until(at + LATE);
}

/// Checks that alarm `pid` has expired once, in time for `due`.
fn rang_once(pid: u32, due: u64) {
    let rings = alarm(pid).rings();
    let [ring] = rings[..] else {
        panic!("alarm {pid}, due at {due}: {rings:?}");
    };
    assert_eq!(ring.due, due);
    assert!((due..due + LATE).contains(&ring.at), "{ring:?}");
    assert!(!alarm(pid).node().armed());
}

#[test]
fn a_timer_expires_at_its_exact_time() {
    on(1, || {
        let mut random = Random(0x71e5);
        for pid in 0..200 {
            let due = monotonic_ns() + 10 * US + random.below_u64(3 * MS);
            assert!(!alarm(pid).set(pid, Some(due)));
            pass(due);
            rang_once(pid, due);
        }
    });
}

/// From the lowest level, of which a list covers 2^16 ns, to the last but one, of which a list covers 52 days.
#[test]
fn timers_at_the_edges_of_lists_are_on_time() {
    on(1, || {
        let mut pid = 0;
        for level in 0..7 {
            let length = 1 << (16 + 6 * level);
            for lists in [1, 2] {
                let edge = (monotonic_ns() / length + lists) * length;
                let all = [edge - 30 * US, edge - 1, edge, edge + 1, edge + 30 * US];
                let dues = all.map(|due| due.max(monotonic_ns() + 10 * US));
                for (n, due) in dues.into_iter().enumerate() {
                    alarm(pid + n as u32).set(pid + n as u32, Some(due));
                }
                pass(dues[4]);
                for (n, due) in dues.into_iter().enumerate() {
                    rang_once(pid + n as u32, due);
                }
                pid += 5;
            }
        }
    });
}

#[test]
fn a_sleep_of_seventy_years_ends_at_its_time() {
    on(2, || {
        let until = 1 << 61;
        assert_eq!(
            park::sleep_until(Deadline::At(until), Interruptible::No),
            Ok(())
        );
        let now = monotonic_ns();
        assert!((until..until + MS).contains(&now), "{now}");
    });
}

#[test]
fn a_timer_that_is_due_already_expires_at_once() {
    on(1, || {
        nap(5);
        for (pid, due) in [(0, 0), (1, monotonic_ns() - MS), (2, monotonic_ns())] {
            alarm(pid).set(pid, Some(due));
            let late = monotonic_ns() + LATE;
            nap_until(late);
            let rings = alarm(pid).rings();
            assert_eq!(rings.len(), 1, "due at {due}");
            assert!(rings[0].at <= late);
        }
    });
}

#[test]
fn many_timers_of_one_instant_all_expire() {
    on(1, || {
        let due = monotonic_ns() + 50 * MS;
        for pid in 0..ALARMS as u32 {
            alarm(pid).set(pid, Some(due));
        }
        nap_until(due + MS);
        for pid in 0..ALARMS as u32 {
            let rings = alarm(pid).rings();
            assert_eq!(rings.len(), 1, "alarm {pid}");
            assert!((due..due + MS).contains(&rings[0].at), "{rings:?}");
        }
    });
}

/// One interrupt handles 128 timers, and those of the batch in which it gets there.
#[test]
fn other_code_runs_between_the_expiries_of_many_timers() {
    const MOST: usize = 128 + 16;
    on(1, || {
        let due = monotonic_ns() + 5 * MS;
        for pid in 0..ALARMS as u32 {
            alarm(pid).set(pid, Some(due));
        }
        let (mut before, mut steps) = (0, 0);
        while before < ALARMS {
            hal::time::spin_ns(US);
            let now = rung();
            assert!(now - before <= MOST, "{before} to {now} in one interrupt");
            steps += usize::from(now > before);
            before = now;
        }
        assert!(steps >= ALARMS / MOST);
    });
}

/// An interrupt ends after the expiry that makes it last 100 us, and the next one leaves as much time to others.
#[test]
fn other_code_runs_between_expiries_that_take_long() {
    const COST: u64 = 40 * US;
    on(1, || {
        expiries_take(COST);
        let due = monotonic_ns() + 5 * MS;
        for pid in 0..40 {
            alarm(pid).set(pid, Some(due));
        }
        let mut before = 0;
        while before < 40 {
            hal::time::spin_ns(US);
            let now = rung();
            assert!(now - before <= 4, "{before} to {now} in one interrupt");
            before = now;
        }
        let last = (0..40).map(|pid| alarm(pid).rings()[0].at).max();
        let took = last.expect("expiries") - due;
        assert!((70 * COST..100 * COST).contains(&took), "{took}");
    });
}

/// The first of the timers of one list that are not due when another is: those that are looked at go to the list's end.
#[test]
fn timers_of_one_list_expire_each_at_its_time() {
    on(1, || {
        let mut random = Random(0x5eed);
        for round in 0..20 {
            let list = ((monotonic_ns() >> 16) + 3) << 16;
            let dues: Vec<u64> = (0..25).map(|_| list + random.below_u64(1 << 16)).collect();
            for (n, &due) in dues.iter().enumerate() {
                let pid = round * 25 + n as u32;
                alarm(pid).set(pid, Some(due));
            }
            nap_until(list + (1 << 16) + LATE);
            for (n, &due) in dues.iter().enumerate() {
                rang_once(round * 25 + n as u32, due);
            }
        }
    });
}

/// One interrupt looks at the first of four hundred timers of a list. Then a timer is put on the list that is due before the rest.
#[test]
fn a_timer_that_comes_while_its_list_is_swept_is_on_time() {
    on(1, || {
        let list = ((monotonic_ns() >> 16) + 10) << 16;
        for pid in 0..400 {
            let due = if pid == 0 { list + US } else { list + 64 * US };
            alarm(pid).set(pid, Some(due));
        }
        while rung() == 0 {
            hal::time::spin_ns(100);
        }
        alarm(500).set(500, Some(list + 30 * US));
        nap_until(list + 200 * US);
        rang_once(500, list + 30 * US);
        assert_eq!(rung(), 401);
    });
}

/// The timers of a list that are not due yet cause no interrupt before the first of them is.
#[test]
fn a_list_is_swept_once_for_each_time_that_is_due() {
    on(1, || {
        let count = || hal::percpu::interrupt_counts(0).map_or(0, |counts| counts[0]);
        let list = ((monotonic_ns() >> 16) + 10) << 16;
        for (pid, after) in [(0, 1), (1, 40), (2, 50)] {
            alarm(pid).set(pid, Some(list + after * US));
        }
        let before = count();
        nap_until(list + 150 * US);
        assert_eq!(rung(), 3);
        assert!(count() - before <= 8, "{} interrupts", count() - before);
    });
}

#[test]
fn a_cancelled_timer_does_not_expire() {
    on(1, || {
        let due = monotonic_ns() + MS;
        alarm(1).set(1, Some(due));
        assert!(alarm(1).node().armed());
        assert!(alarm(1).set(1, None), "it was set");
        assert!(!alarm(1).node().armed());
        assert!(!alarm(1).set(1, None), "it was off");
        pass(due);
        assert_eq!(alarm(1).look(|s| (s.rings.len(), s.stale)), (0, 0));
    });
}

#[test]
fn the_neighbours_of_a_cancelled_timer_expire() {
    on(1, || {
        for cancelled in 0..5 {
            // Far enough for a list of an upper level, and near enough for one of the lowest.
            for ahead in [500 * MS, 2 * MS] {
                let due = monotonic_ns() + ahead;
                let first = rung();
                for pid in 0..5 {
                    alarm(pid).set(pid, Some(due));
                }
                alarm(cancelled).set(cancelled, None);
                pass(due);
                assert_eq!(rung() - first, 4, "all but number {cancelled}");
            }
        }
        let rings: Vec<usize> = (0..5).map(|pid| alarm(pid).rings().len()).collect();
        assert_eq!(rings, [8; 5]);
    });
}

#[test]
fn a_timer_that_is_set_anew_expires_at_the_new_time_only() {
    on(1, || {
        let now = monotonic_ns();
        for (pid, first, second) in [(0, 5, 10), (1, 10, 5), (2, 5000, 3), (3, 3, 5000)] {
            alarm(pid).set(pid, Some(now + first * MS));
            assert!(alarm(pid).set(pid, Some(now + second * MS)));
        }
        pass(now + 5000 * MS);
        for (pid, due) in [(0, 10), (1, 5), (2, 3), (3, 5000)] {
            rang_once(pid, now + due * MS);
        }
    });
}

#[test]
fn a_timer_expires_on_the_cpu_that_has_set_it() {
    on(3, || {
        for cpu in [2, 1, 0] {
            spawn(Some(cpu), move || {
                let pid = cpu as u32;
                alarm(pid).set(pid, Some(monotonic_ns() + 3 * MS));
            });
        }
        wait_for_ends(3);
        nap(10);
        for cpu in 0..3 {
            let rings = alarm(cpu as u32).rings();
            assert_eq!(rings.len(), 1);
            assert_eq!(rings[0].cpu, cpu);
        }
    });
}

#[test]
fn a_timer_can_be_cancelled_and_set_on_another_cpu() {
    on(2, || {
        let due = monotonic_ns() + 20 * MS;
        spawn(Some(1), move || {
            for pid in 0..10 {
                alarm(pid).set(pid, Some(due));
            }
        });
        wait_for_ends(1);
        assert!(sched::set_affinity(&current(), &sched::CpuMask::one(0)));
        for pid in 0..5 {
            assert!(alarm(pid).set(pid, None));
        }
        assert!(alarm(5).set(5, Some(due + 20 * MS)));
        nap_until(due + 30 * MS);
        let rings: Vec<usize> = (0..10).map(|pid| alarm(pid).rings().len()).collect();
        assert_eq!(rings, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
        assert_eq!(alarm(5).rings()[0].cpu, 0);
        assert_eq!(alarm(6).rings()[0].cpu, 1);
    });
}

#[test]
fn a_wheel_without_timers_for_a_day_is_on_time() {
    on(2, || {
        nap(24 * 60 * 60 * 1000);
        spawn(Some(1), || {
            let mut random = Random(0xda7);
            for pid in 0..50 {
                let due = monotonic_ns() + 10 * US + random.below_u64(1 << (10 + pid % 25));
                alarm(pid).set(pid, Some(due));
                pass(due);
                rang_once(pid, due);
            }
        });
        wait_for_ends(1);
    });
}

#[test]
fn the_time_left_is_told_only_of_an_armed_timer() {
    on(1, || {
        let node = alarm(0).node();
        assert_eq!(node.left(), None);
        let due = monotonic_ns() + 10 * MS;
        alarm(0).set(0, Some(due));
        let left = node.left().expect("armed");
        assert!((9 * MS..=10 * MS).contains(&left), "{left}");
        nap(4);
        let left = node.left().expect("armed");
        assert!((5 * MS..=6 * MS).contains(&left), "{left}");
        assert_eq!(node.at(), due);
        pass(due);
        assert_eq!((node.left(), node.at()), (None, due));
        // One that is due and has not expired yet has time left, for 0 means that a timer is not set.
        let irq = hal::irq::save();
        alarm(0).set(0, Some(due));
        assert_eq!(node.left(), Some(1));
        hal::irq::restore(irq);
    });
}

ksync::lock_class!(LastLock, "test, last", rank = 240);

/// What the thread holds that it interrupts does not count for the order of a handler's locks.
#[test]
fn a_timer_expires_while_a_lock_of_a_higher_rank_is_held() {
    on(1, || {
        let due = monotonic_ns() + MS;
        alarm(0).set(0, Some(due));
        let last = ksync::Spin::<(), LastLock>::new(());
        let held = last.lock();
        while monotonic_ns() < due + LATE {
            hal::time::spin_ns(US);
        }
        drop(held);
        rang_once(0, due);
    });
}

/// Random settings, cancellations and pauses, compared with a list of when each timer is due.
#[test]
fn timers_do_what_a_plain_list_does() {
    const N: u32 = 60;
    on(1, || {
        let mut random = Random(0x11f7);
        let mut due = [None; N as usize];
        let mut seen = [0; N as usize];
        for _ in 0..6000 {
            let pid = random.below_u64(u64::from(N)) as u32;
            let ahead = US + random.scaled(8..38);
            let now = monotonic_ns();
            match random.below_u64(5) {
                0 | 1 => {
                    check(pid, &mut due, &mut seen);
                    set(pid, Some(now + ahead), &mut due, &mut seen);
                }
                2 => set(pid, None, &mut due, &mut seen),
                _ => {
                    nap_until(now + ahead);
                    (0..N).for_each(|pid| check(pid, &mut due, &mut seen));
                }
            }
        }
        assert!(seen.iter().sum::<usize>() > 1000, "{seen:?}");
    });
}

/// Sets an alarm or turns it off, on the wheel and on the list. It may have expired since the last look at it.
fn set(pid: u32, at: Option<u64>, due: &mut [Option<u64>], seen: &mut [usize]) {
    let index = pid as usize;
    let was = alarm(pid).set(pid, at);
    let listed = due[index];
    if was {
        assert!(listed.is_some(), "alarm {pid} is set but not listed");
    } else if let Some(listed) = listed {
        let last = alarm(pid).rings().pop().expect("it has expired");
        assert_eq!(last.due, listed);
        seen[index] += 1;
    }
    due[index] = at;
}

/// Checks an alarm against the list. Strikes it out if it has expired.
fn check(pid: u32, due: &mut [Option<u64>], seen: &mut [usize]) {
    let index = pid as usize;
    let now = monotonic_ns();
    let rings = alarm(pid).rings();
    if rings.len() == seen[index] + 1 {
        let ring = rings[seen[index]];
        assert_eq!(Some(ring.due), due[index].take());
        assert!(
            (ring.due..ring.due + LATE).contains(&ring.at),
            "alarm {pid}: {ring:?}"
        );
        seen[index] += 1;
        return;
    }
    assert_eq!(rings.len(), seen[index], "alarm {pid} has expired twice");
    if let Some(due) = due[index] {
        assert!(due + LATE > now, "alarm {pid}, due {due}, is not on time");
    }
}

/// Threads on four CPUs set and cancel the same timers. Each setting ends once: it expires, or it is replaced or cancelled.
#[test]
fn each_setting_by_several_cpus_ends_once() {
    const N: u64 = 30;
    on(4, || {
        let (sets, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        for cpu in 0..4 {
            let (sets, ends) = (sets.clone(), ends.clone());
            spawn(Some(cpu), move || {
                let mut random = Random(0xc0 + cpu as u64);
                for _ in 0..500 {
                    let pid = random.below_u64(N) as u32;
                    let ahead = random.scaled(10..24);
                    let due = (!random.one_in(4)).then(|| monotonic_ns() + ahead);
                    sets.fetch_add(u32::from(due.is_some()), SeqCst);
                    ends.fetch_add(u32::from(alarm(pid).set(pid, due)), SeqCst);
                    if random.one_in(3) {
                        nap_until(monotonic_ns() + random.below_u64(MS));
                    }
                }
            });
        }
        wait_for_ends(4);
        nap(50);
        assert_eq!(sets.load(SeqCst), ends.load(SeqCst) + rung() as u32);
        assert!(rung() > 100, "{}", rung());
        for pid in 0..N as u32 {
            assert!(!alarm(pid).node().armed());
            for ring in alarm(pid).rings() {
                assert!((ring.due..ring.due + MS).contains(&ring.at), "{ring:?}");
            }
        }
    });
}

#[test]
fn sleepers_on_all_cpus_wake_in_the_order_of_their_deadlines() {
    on(4, || {
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut random = Random(0x0dde);
        let start = monotonic_ns() + 20 * MS;
        for _ in 0..60 {
            let (order, ms) = (order.clone(), random.below_u64(3000));
            spawn(None, move || {
                nap_until(start + ms * MS);
                let now = monotonic_ns();
                assert!(now >= start + ms * MS && now < start + (ms + 1) * MS);
                order.lock().expect("not poisoned").push(ms);
            });
        }
        wait_for_ends(60);
        let order = order.lock().expect("not poisoned");
        assert!(order.is_sorted(), "{order:?}");
    });
}

#[test]
fn a_threads_timer_that_is_set_anew_forgets_its_old_time() {
    on(1, || {
        let me = current();
        let now = monotonic_ns();
        timer::arm_thread(&me, now + 5 * MS);
        timer::arm_thread(&me, now + SECOND);
        assert_eq!(me.timer.at(), now + SECOND);
        compute(10 * MS);
        assert!(me.timer.armed());
        timer::cancel_thread(&me);
        assert!(!me.timer.armed());
        timer::cancel_thread(&me);
    });
}

#[test]
fn a_probe_interrupts_an_idle_cpu() {
    on(2, || {
        let count = || hal::percpu::interrupt_counts(1).map_or(0, |counts| counts[0]);
        let before = count();
        nap(100);
        assert!(count() - before < 5, "an idle CPU without timers sleeps");
        timer::probe_every(MS);
        // From its next interrupt on.
        spawn(Some(1), || nap(1));
        nap(2);
        let before = count();
        nap(100);
        assert!(count() - before >= 99, "{}", count() - before);
    });
}

#[test]
fn a_busy_cpu_has_ticks_and_an_idle_one_has_none() {
    on(1, || {
        nap(1000);
        let idle = ticks();
        assert!(idle < 3, "{idle} ticks in an idle second");
        let due = monotonic_ns() + 3 * MS;
        for pid in 0..200 {
            alarm(pid).set(pid, Some(due + u64::from(pid) * 50 * US));
        }
        (0..400).for_each(|_| compute(MS));
        let busy = (ticks() - idle) as u64;
        let expected = 400 * MS / sched::TICK_NS;
        assert!((expected - 3..=expected + 1).contains(&busy), "{busy}");
    });
}
