//! Locks on the host: exclusion, order, hand-off, rank checks.
#![cfg(not(any(loom, shuttle)))]

mod threads;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use ksync::{IrqSpin, Mutex, Once, RawSpin, RwLock, Spin, host, lock_class};
#[cfg(debug_assertions)]
use threads::complaint;
use threads::{ROUNDS, THREADS, on_cpus};

lock_class!(Low, "test low", rank = 20);
lock_class!(Mid, "test middle", rank = 90);
lock_class!(High, "test high", rank = 140);

/// Increments without an atomic read-modify-write, so that a lock that does not exclude loses some.
fn bump(n: &mut usize) {
    let seen = *n;
    std::hint::black_box(&seen);
    *n = seen + 1;
}

#[test]
fn spin_locks_exclude() {
    let spin = Spin::<_, Mid>::new(0);
    let irq = IrqSpin::<_, High>::new(0);
    on_cpus(|_| {
        for _ in 0..ROUNDS {
            bump(&mut spin.lock());
            bump(&mut irq.lock());
        }
    });
    assert_eq!(
        (spin.into_inner(), irq.into_inner()),
        (THREADS * ROUNDS, THREADS * ROUNDS)
    );
}

#[test]
fn sleeping_locks_exclude() {
    let mutex = Mutex::<_, Low>::new(0);
    let rw = RwLock::<_, Low>::new((0, 0));
    on_cpus(|cpu| {
        for i in 0..ROUNDS {
            bump(&mut mutex.lock());
            if (i + cpu) % 4 == 0 {
                let mut both = rw.write();
                bump(&mut both.0);
                thread::yield_now();
                bump(&mut both.1);
            } else {
                let both = rw.read();
                assert_eq!(both.0, both.1);
            }
        }
    });
    assert_eq!(mutex.into_inner(), THREADS * ROUNDS);
    assert_eq!(rw.into_inner().0, THREADS * ROUNDS / 4);
}

#[test]
fn a_mutex_is_handed_over_in_order_of_arrival() {
    let mutex = Arc::new(Mutex::<_, Low>::new(Vec::new()));
    let guard = mutex.lock();
    let arrived = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..THREADS)
        .map(|i| {
            while arrived.load(SeqCst) < i {
                thread::yield_now();
            }
            let (mutex, arrived) = (mutex.clone(), arrived.clone());
            let thread = thread::spawn(move || {
                arrived.store(i + 1, SeqCst);
                mutex.lock().push(i);
            });
            thread::sleep(Duration::from_millis(50));
            thread
        })
        .collect();
    drop(guard);
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!(*mutex.lock(), (0..THREADS).collect::<Vec<_>>());
}

#[test]
fn a_waiting_writer_is_not_overtaken() {
    let rw = Arc::new(RwLock::<_, Low>::new(0));
    let reader = rw.read();
    let writer = thread::spawn({
        let rw = rw.clone();
        move || *rw.write() += 1
    });
    while rw.try_read().is_some() {
        thread::yield_now();
    }
    let late = thread::spawn({
        let rw = rw.clone();
        move || *rw.read()
    });
    thread::sleep(Duration::from_millis(20));
    drop(reader);
    writer.join().unwrap();
    assert_eq!(late.join().unwrap(), 1);
}

#[test]
fn a_downgraded_writer_lets_readers_in() {
    let rw = RwLock::<_, Low>::new(1);
    let mut guard = rw.write();
    *guard = 2;
    assert!(rw.try_read().is_none());
    let guard = guard.downgrade();
    assert_eq!(*rw.try_read().unwrap() + *guard, 4);
    drop(guard);
    assert!(rw.try_write().is_some());
}

#[test]
fn guards_turn_preemption_and_interrupts_off() {
    let (spin, irq) = (Spin::<_, Mid>::new(()), IrqSpin::<_, High>::new(()));
    let a = spin.lock();
    assert!(host::preempt_count() > 0 && !host::irqs_off());
    let b = irq.lock();
    assert!(host::irqs_off());
    // Out of order.
    drop(a);
    assert!(host::preempt_count() > 0 && host::irqs_off());
    assert!(irq.try_lock().is_none());
    assert!(host::irqs_off());
    drop(b);
    assert!(host::preempt_count() == 0 && !host::irqs_off() && host::holds_nothing());
}

#[test]
#[cfg(debug_assertions)]
fn the_order_of_ranks_is_checked() {
    let (low, mid, raw) = (
        Mutex::<_, Low>::new(0),
        Spin::<_, Mid>::new(0),
        RawSpin::new(),
    );
    {
        let _a = low.lock();
        let _b = mid.lock();
        let _c = raw.lock_nested::<Mid>();
    }
    let text = complaint(|| {
        let _b = mid.lock();
        let _c = raw.lock::<Mid>();
    });
    assert!(
        text.contains("\"test middle\" (rank 90) while holding \"test middle\""),
        "{text}"
    );
    let (high, raw) = (IrqSpin::<_, High>::new(0), RawSpin::new());
    let text = complaint(|| {
        let _b = high.lock();
        let _c = raw.lock::<Mid>();
    });
    assert!(
        text.contains("\"test middle\" (rank 90) while holding \"test high\""),
        "{text}"
    );
    let text = complaint(|| {
        let _pin = ksync::pin();
        let _a = low.lock();
    });
    assert!(text.contains("\"test low\" with preemption off"), "{text}");
}

#[test]
#[cfg_attr(miri, ignore = "an interpreter's thread may not have begun to wait")]
fn stalls_are_booked_by_name() {
    lock_class!(Busy, "test stalls", rank = 21);
    let mutex = Arc::new(Mutex::<_, Busy>::new(()));
    let booked = || {
        let mut found = None;
        ksync::for_each_class(|c| {
            if c.name == "test stalls" {
                assert!(found.replace(c).is_none(), "listed twice");
            }
        });
        found
    };
    // On a busy host a thread may begin only after the mutex is free again: then try once more, for longer.
    let (mut tries, mut waits) = (0, 0);
    let report = loop {
        tries += 1;
        let guard = mutex.lock();
        let waiter = thread::spawn({
            let mutex = mutex.clone();
            move || drop(mutex.lock())
        });
        thread::sleep(Duration::from_millis(50 * tries));
        drop(guard);
        waiter.join().unwrap();
        if let Some(report) = booked() {
            // A thread waits once in a try, or not at all; without a wait nothing is listed.
            let most = waits + 1;
            assert!(
                (waits.max(1)..=most).contains(&report.contended),
                "{report:?}"
            );
            waits = report.contended;
            if report.stall_ticks > 1_000_000 {
                break report;
            }
        }
        assert!(tries < 50, "no thread waits for long");
    };
    assert_eq!(report.rank, 21);
}

#[test]
fn the_profile_counts_acquisitions_and_measures_holds() {
    lock_class!(Held, "test holds", rank = 22);
    lock_class!(Shared, "test shared holds", rank = 23);
    ksync::profile::switch(true);
    let (spin, mutex) = (Spin::<_, Held>::new(0), Mutex::<_, Held>::new(()));
    for _ in 0..5 {
        *spin.lock() += 1;
    }
    assert!(spin.try_lock().is_some());
    let held = mutex.lock();
    assert!(mutex.try_lock().is_none());
    thread::sleep(Duration::from_millis(20));
    drop(held);
    let shared = RwLock::<_, Shared>::new(());
    drop(shared.read());
    assert!(shared.try_read().is_some());
    let reader = shared.write().downgrade();
    thread::sleep(Duration::from_millis(20));
    drop(reader);
    ksync::profile::switch(false);
    drop(spin.lock());
    let mut found = Vec::new();
    ksync::for_each_class(|c| found.extend([c].into_iter().filter(|c| c.name.contains("holds"))));
    found.sort_by_key(|c| c.rank);
    let [alone, shared] = found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((alone.acquired, shared.acquired), (7, 3));
    // Host ticks are nanoseconds; the mutex was held for at least twenty milliseconds, and so was what a writer had made shared.
    assert!(alone.longest_hold_ticks >= 19_000_000, "{alone:?}");
    assert!(shared.longest_hold_ticks >= 19_000_000, "{shared:?}");
}

#[test]
fn locks_say_whether_they_are_held() {
    let (mutex, rwlock) = (Mutex::<_, Low>::new(()), RwLock::<_, Low>::new(()));
    let held = mutex.lock();
    assert!(mutex.is_locked());
    drop(held);
    assert!(!mutex.is_locked());
    let held = rwlock.write();
    assert!(rwlock.is_write_locked());
    drop(held);
    let held = rwlock.read();
    assert!(!rwlock.is_write_locked());
    drop(held);
}

#[test]
fn a_once_keeps_one_value() {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    static VALUE: Once<usize> = Once::new();
    on_cpus(|_| {
        let seen = *VALUE.get_or_init(|| RUNS.fetch_add(1, SeqCst) + 41);
        assert_eq!(VALUE.get(), Some(&seen));
    });
    let (runs, kept) = (RUNS.load(SeqCst), *VALUE.get().unwrap());
    assert!((41..41 + runs).contains(&kept), "{kept} of {runs}");
    let once = Once::new();
    assert!(once.get().is_none());
    assert_eq!(once.set(String::from("a")), Ok(()));
    assert_eq!(once.set(String::from("b")), Err(String::from("b")));
    assert_eq!(once.get_or_init(|| unreachable!()), "a");
    let mut once = once;
    assert_eq!(once.take().as_deref(), Some("a"));
    // No exclusive access afterwards.
    assert_eq!((once.take(), once.get_mut()), (None, None));
}
