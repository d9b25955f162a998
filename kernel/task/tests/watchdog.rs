//! The watchdog: it reports long waits for locks and CPUs that stand still, and nothing else.
#![cfg(not(shuttle))]

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use processes::{MS, nap, on, spawn, wait_for_ends};
use task::time::{SECOND, monotonic_ns};
use task::{current, ids, sched, watchdog};

ksync::lock_class!(TestLock, "test mutex", rank = 1);

type Lock = ksync::Mutex<(), TestLock>;

/// Runs `body` on a machine of two CPUs whose watchdog has a limit of so many seconds: three times as long for locks.
fn watched(seconds: u32, body: impl FnOnce() + Send + 'static) {
    watched_on(2, seconds, body);
}

/// As above, on so many CPUs.
fn watched_on(cpus: usize, seconds: u32, body: impl FnOnce() + Send + 'static) {
    on(cpus, move || {
        watchdog::start(seconds);
        body();
        // The two threads of the watchdog sleep as the machine ends. Each gives a level of preemption back on the first CPU,
        // which has only one.
        assert!(sched::set_affinity(&current(), &sched::CpuMask::one(0)));
        hal::preempt::disable();
    });
}

/// A thread holds a lock for so many seconds while another one waits. Returns the reports of the wait.
fn reports_of_a_wait(seconds: u64) -> u64 {
    let lock = Arc::new(Lock::new(()));
    let (theirs, before) = (lock.clone(), processes::ended());
    let held = lock.lock();
    spawn(None, move || drop(theirs.lock()));
    nap(seconds * 1000);
    let reports = watchdog::asleep();
    drop(held);
    wait_for_ends(before + 1);
    reports
}

#[test]
fn a_wait_of_more_than_thirty_seconds_is_reported() {
    watched(10, || {
        assert_eq!(watchdog::limit_ns(), Some(10 * SECOND));
        assert_eq!(reports_of_a_wait(35), 1);
        assert_eq!(watchdog::still(), 0, "idle CPUs do not stand still");
    });
}

#[test]
fn a_wait_of_less_than_thirty_seconds_is_not_reported() {
    watched(10, || {
        assert_eq!(reports_of_a_wait(29), 0);
        // Nor are many short ones that take as long together.
        for _ in 0..5 {
            assert_eq!(reports_of_a_wait(20), 0);
        }
    });
}

#[test]
fn a_wait_that_goes_on_is_reported_each_thirty_seconds() {
    watched(10, || {
        assert_eq!(reports_of_a_wait(135), 4);
    });
}

#[test]
fn each_thread_that_waits_is_reported() {
    watched(1, || {
        let lock = Arc::new(Lock::new(()));
        let held = lock.lock();
        for _ in 0..3 {
            let theirs = lock.clone();
            spawn(None, move || drop(theirs.lock()));
        }
        nap(4000);
        assert_eq!(watchdog::asleep(), 3);
        drop(held);
        wait_for_ends(3);
    });
}

#[test]
fn other_sleeps_are_not_reported() {
    watched(1, || {
        spawn(None, || nap(60_000));
        nap(60_000);
        wait_for_ends(1);
        assert_eq!((watchdog::asleep(), watchdog::still()), (0, 0));
    });
}

#[test]
fn a_wait_is_watched_on_a_machine_of_one_cpu() {
    on(1, || {
        watchdog::start(2);
        let lock = Arc::new(Lock::new(()));
        let theirs = lock.clone();
        let held = lock.lock();
        spawn(None, move || drop(theirs.lock()));
        nap(5000);
        assert_eq!(watchdog::asleep(), 0);
        nap(3000);
        assert_eq!(watchdog::asleep(), 1);
        drop(held);
        wait_for_ends(1);
    });
}

/// A thread that has slept since before the watchdog was started ends no sleep that the watchdog knows of.
#[test]
fn a_wait_from_before_the_watchdog_hides_no_later_one() {
    on(1, || {
        let lock = Arc::new(Lock::new(()));
        let theirs = lock.clone();
        let held = lock.lock();
        spawn(None, move || drop(theirs.lock()));
        nap(1);
        watchdog::start(10);
        drop(held);
        wait_for_ends(1);
        assert_eq!(reports_of_a_wait(35), 1);
    });
}

#[test]
fn a_thread_that_is_woken_without_its_lock_reports_no_short_wait() {
    on(1, || {
        watchdog::start(10);
        let lock = Arc::new(Lock::new(()));
        let theirs = lock.clone();
        let held = lock.lock();
        let tid = spawn(None, move || drop(theirs.lock()));
        for _ in 0..20 {
            nap(1000);
            let waits = ids::hold_thread(tid).expect("it waits");
            sched::wake(&ksync::pin(), &waits);
        }
        assert_eq!(watchdog::asleep(), 0);
        drop(held);
        wait_for_ends(1);
    });
}

/// CPU `cpu` takes no interrupt for so many seconds.
fn stand_still(cpu: usize, seconds: u64) {
    let before = processes::ended();
    spawn(Some(cpu), move || {
        let irq = hal::irq::save();
        let until = monotonic_ns() + seconds * SECOND;
        while monotonic_ns() < until {
            hal::time::spin_ns(MS / 10);
        }
        hal::irq::restore(irq);
    });
    wait_for_ends(before + 1);
}

#[test]
fn a_cpu_without_interrupts_is_reported() {
    watched(10, || {
        for cpu in [1, 0] {
            assert!(sched::set_affinity(
                &current(),
                &sched::CpuMask::one(1 - cpu)
            ));
            let before = watchdog::still();
            stand_still(cpu, 15);
            assert_eq!(watchdog::still(), before + 1, "CPU {cpu}");
        }
        assert_eq!(watchdog::asleep(), 0);
    });
}

#[test]
fn a_cpu_without_interrupts_for_less_than_the_limit_is_not_reported() {
    watched(10, || {
        assert!(sched::set_affinity(&current(), &sched::CpuMask::one(0)));
        stand_still(1, 7);
        assert_eq!(watchdog::still(), 0);
    });
}

/// A CPU that has nothing to do gets an interrupt from the watchdog, by which it shows that it takes some.
#[test]
fn a_cpu_that_is_idle_for_long_is_not_reported() {
    watched_on(4, 10, || {
        nap(100_000);
        assert_eq!((watchdog::still(), watchdog::asleep()), (0, 0));
    });
}

#[test]
fn a_cpu_with_preemption_off_takes_interrupts() {
    watched(2, || {
        assert!(sched::set_affinity(&current(), &sched::CpuMask::one(0)));
        let over = Arc::new(AtomicBool::new(false));
        let theirs = over.clone();
        spawn(Some(1), move || {
            let pin = ksync::pin();
            let until = monotonic_ns() + 6 * SECOND;
            while monotonic_ns() < until {
                hal::time::spin_ns(MS);
            }
            drop(pin);
            theirs.store(true, SeqCst);
        });
        wait_for_ends(1);
        assert!(over.load(SeqCst));
        assert_eq!(watchdog::still(), 0);
    });
}

#[test]
fn a_limit_of_0_starts_no_watchdog() {
    on(2, || {
        let threads = task::ids::threads();
        watchdog::start(0);
        assert_eq!(watchdog::limit_ns(), None);
        assert_eq!(task::ids::threads(), threads);
        assert_eq!(reports_of_a_wait(300), 0);
        assert_eq!((watchdog::asleep(), watchdog::still()), (0, 0));
    });
}
