//! Per-CPU data, epochs and counts on the host.
#![cfg(not(any(loom, shuttle)))]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use ksync::{Counter, Epoch, EpochPtr, EpochRc, PerCpu, RcTable, Retired, host, pin};

use support::{Dropped, rounds};

/// Lets each CPU of the epoch announce itself and reclaim, `n` times; the thread then is on CPU 0.
fn tick(epoch: &Epoch, n: usize) {
    for cpu in (0..n).flat_map(|_| (0..epoch.ncpus()).rev()) {
        host::set_cpu(cpu);
        epoch.quiescent(&mut pin());
        epoch.reclaim(&pin());
    }
}

#[test]
fn per_cpu_values_are_apart() {
    let values = PerCpu::new(3, |cpu| cpu * 10);
    host::set_cpu(2);
    assert_eq!(*values.get(&pin()), 20);
    assert_eq!(values.iter().copied().collect::<Vec<_>>(), [0, 10, 20]);
    assert!(
        (values.of(1) as *const usize)
            .addr()
            .abs_diff((values.of(0) as *const usize).addr())
            >= 128
    );
}

#[test]
fn counters_lose_nothing() {
    let counter = Counter::new(4);
    thread::scope(|s| {
        for i in 0..8 {
            let counter = &counter;
            s.spawn(move || {
                host::set_cpu(i % 4);
                for _ in 0..rounds(1000) {
                    counter.add(&pin(), 3);
                    counter.add(&pin(), -1);
                }
            });
        }
    });
    assert_eq!(counter.sum(), 16 * rounds(1000) as i64);
}

#[test]
fn nothing_is_freed_while_a_cpu_stays_in_a_section() {
    let epoch = Epoch::new(2);
    let drops = Arc::new(AtomicUsize::new(0));
    host::set_cpu(0);
    epoch.retire(&pin(), Retired::from_box(Box::new(Dropped(drops.clone()))));
    // CPU 1 does not announce.
    for _ in 0..10 {
        epoch.quiescent(&mut pin());
        assert!(epoch.reclaim(&pin()));
    }
    assert_eq!((drops.load(SeqCst), epoch.pending()), (0, 1));
    // It announces, but stays within an outer section: no announcement.
    host::set_cpu(1);
    {
        let _section = pin();
        for _ in 0..10 {
            epoch.quiescent(&mut pin());
            epoch.reclaim_of(&pin(), 0);
        }
    }
    assert_eq!(drops.load(SeqCst), 0);
    tick(&epoch, 5);
    assert_eq!((drops.load(SeqCst), epoch.pending()), (1, 0));
}

#[test]
fn offline_cpus_hold_nothing_up() {
    let epoch = Epoch::new(4);
    (1..4).for_each(|cpu| epoch.offline(cpu));
    let drops = Arc::new(AtomicUsize::new(0));
    host::set_cpu(0);
    for _ in 0..rounds(1000) {
        let dropped = Dropped(drops.clone());
        epoch.retire(&pin(), Retired::from_arc(Arc::new(dropped)));
    }
    epoch.drain();
    assert_eq!((drops.load(SeqCst), epoch.pending()), (rounds(1000), 0));
    epoch.online(3);
    assert!(epoch.is_online(3) && !epoch.is_online(2));
}

#[test]
fn the_end_of_an_epoch_frees_everything() {
    let epoch = Epoch::new(2);
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..200 {
        epoch.retire(&pin(), Retired::from_box(Box::new(Dropped(drops.clone()))));
        epoch.retire(&pin(), Retired::from_arc(Arc::new(Dropped(drops.clone()))));
    }
    drop(epoch);
    assert_eq!(drops.load(SeqCst), 400);
}

#[test]
fn readers_never_meet_a_freed_target() {
    struct Target(AtomicBool);
    impl Drop for Target {
        fn drop(&mut self) {
            self.0.store(false, SeqCst);
        }
    }
    let new = || Some(Box::new(Target(AtomicBool::new(true))));
    let (epoch, ptr, stop) = (Epoch::new(4), EpochPtr::new(new()), AtomicBool::new(false));
    thread::scope(|s| {
        for cpu in 1..4 {
            let (epoch, ptr, stop) = (&epoch, &ptr, &stop);
            s.spawn(move || {
                host::set_cpu(cpu);
                while !stop.load(SeqCst) {
                    {
                        let pin = pin();
                        let target = ptr.load(&pin).unwrap();
                        for _ in 0..50 {
                            assert!(target.0.load(SeqCst));
                        }
                    }
                    epoch.quiescent(&mut pin());
                    epoch.reclaim(&pin());
                }
                epoch.offline(cpu);
            });
        }
        host::set_cpu(0);
        for _ in 0..rounds(3000) {
            ptr.replace(&epoch, &pin(), new());
            epoch.quiescent(&mut pin());
            epoch.reclaim(&pin());
        }
        stop.store(true, SeqCst);
        epoch.drain();
    });
    assert_eq!(epoch.pending(), 0);
}

/// Each step needs an announcement of every CPU, even of those that were checked for the step before.
#[test]
fn no_step_is_made_without_an_announcement() {
    let epoch = Epoch::new(3);
    let announce = |cpu| {
        host::set_cpu(cpu);
        epoch.quiescent(&mut pin());
    };
    assert!(epoch.advance());
    for _ in 0..3 {
        announce(0);
        announce(1);
        assert!(!epoch.advance() && !epoch.advance(), "CPU 2 is missing");
        announce(2);
        assert!(epoch.advance());
        announce(2);
        assert!(!epoch.advance(), "CPUs 0 and 1 are missing");
        announce(0);
        announce(1);
        assert!(epoch.advance());
    }
    epoch.offline(2);
    announce(0);
    assert!(!epoch.advance(), "CPU 1 is missing");
    announce(1);
    assert!(epoch.advance());
    host::set_cpu(0);
}

/// An announcement on the way to user mode counts like any other.
#[test]
fn an_announcer_speaks_for_its_cpu() {
    let epoch = Epoch::new(2);
    host::set_cpu(0);
    let other = epoch.announcer(1);
    assert!(epoch.advance(), "both begin with the first epoch");
    epoch.quiescent(&mut pin());
    assert!(!epoch.advance(), "CPU 1 has not announced this one");
    other.quiescent();
    assert!(epoch.advance());
    epoch.offline(1);
    other.quiescent();
    assert!(!epoch.is_online(1), "it does not come back by that");
    epoch.online(1);
    let section = pin();
    other.quiescent();
    epoch.quiescent(&mut pin());
    drop(section);
    epoch.quiescent(&mut pin());
    assert!(epoch.advance(), "it came back with the epoch of that time");
    epoch.quiescent(&mut pin());
    assert!(!epoch.advance());
}

/// Freeing many objects keeps preemption off for a bounded time only, however it is requested.
#[test]
fn freeing_stops_for_a_preemption_point() {
    const MANY: usize = 200;
    host::set_cpu(0);
    let epoch = Epoch::new(1);
    epoch.set_step(0);
    let drops = Arc::new(AtomicUsize::new(0));
    for _ in 0..MANY {
        epoch.retire(&pin(), Retired::from_box(Box::new(Dropped(drops.clone()))));
    }
    let mut before = 0;
    let mut check = || {
        let now = drops.load(SeqCst);
        assert!(now - before <= 8, "{} at once", now - before);
        assert_eq!(epoch.pending(), MANY - now);
        before = now;
    };
    epoch.reclaim_all(&mut pin());
    check();
    while epoch.reclaim_more(&pin()) {
        check();
    }
    check();
    assert_eq!(before, MANY, "all were past their grace period");
}

#[test]
fn a_withdrawn_target_is_the_callers_alone() {
    let epoch = Epoch::new(2);
    let drops = Arc::new(AtomicUsize::new(0));
    let place = EpochPtr::new(Some(Box::new(Dropped(drops.clone()))));
    let reads = AtomicUsize::new(0);
    thread::scope(|s| {
        s.spawn(|| {
            host::set_cpu(1);
            loop {
                let seen = {
                    let pin = pin();
                    let target = place.load(&pin);
                    // It is not freed while it can be read.
                    assert!(target.is_none_or(|target| target.0.load(SeqCst) == 0));
                    target.is_some()
                };
                reads.fetch_add(1, SeqCst);
                epoch.quiescent(&mut pin());
                if !seen {
                    break;
                }
            }
            epoch.offline(1);
        });
        while reads.load(SeqCst) < 10 {
            thread::yield_now();
        }
        host::set_cpu(0);
        let target = place.withdraw(&epoch).expect("it was there");
        assert!(place.withdraw(&epoch).is_none());
        assert_eq!(drops.load(SeqCst), 0);
        drop(target);
    });
    assert_eq!(drops.load(SeqCst), 1);
}

ksync::lock_class!(pub TestTable, "test table", rank = 5);

#[test]
fn the_last_of_counted_references_drops_at_once_and_frees_later() {
    let epoch = Epoch::new(1);
    host::set_cpu(0);
    let drops = Arc::new(AtomicUsize::new(0));
    let first = EpochRc::new(&epoch, Dropped(drops.clone()));
    let second = first.clone();
    assert!(EpochRc::ptr_eq(&first, &second));
    drop(first);
    assert_eq!((drops.load(SeqCst), epoch.pending()), (0, 0));
    drop(second);
    assert_eq!((drops.load(SeqCst), epoch.pending()), (1, 1));
    epoch.drain();
    assert_eq!((drops.load(SeqCst), epoch.pending()), (1, 0));
}

#[test]
fn a_weak_reference_keeps_the_memory_and_not_the_object() {
    let epoch = Epoch::new(1);
    host::set_cpu(0);
    let drops = Arc::new(AtomicUsize::new(0));
    let state = |epoch: &Epoch| (drops.load(SeqCst), epoch.pending());
    let object = EpochRc::new(&epoch, Dropped(drops.clone()));
    let (first, second) = (EpochRc::downgrade(&object), EpochRc::downgrade(&object));
    assert_eq!(first.addr(), second.addr());
    assert_eq!(first.addr(), std::ptr::from_ref::<Dropped>(&object).addr());
    drop(first);
    let again = second.upgrade().expect("it has not ended");
    assert!(EpochRc::ptr_eq(&object, &again));
    drop(object);
    assert_eq!(state(&epoch), (0, 0));
    drop(again);
    assert_eq!(state(&epoch), (1, 0), "the weak one has the memory");
    assert!(second.upgrade().is_none());
    drop(second);
    assert_eq!(state(&epoch), (1, 1));
    epoch.drain();
    assert_eq!(state(&epoch), (1, 0));
    // Weak references that end first leave it as it was.
    let object = EpochRc::new(&epoch, Dropped(drops.clone()));
    drop(EpochRc::downgrade(&object));
    drop(object);
    assert_eq!(state(&epoch), (2, 1));
    epoch.drain();
}

#[test]
fn a_table_keeps_what_stands_in_it_while_it_grows() {
    let epoch = Epoch::new(1);
    host::set_cpu(0);
    let drops = Arc::new(AtomicUsize::new(0));
    let table: RcTable<Dropped, u32, TestTable> = RcTable::new(7);
    let new = || EpochRc::new(&epoch, Dropped(drops.clone()));
    assert!(table.get(&pin(), 0).is_none());
    let mut locked = table.lock();
    assert!(locked.is_empty() && locked.take(3).is_none() && !locked.is_marked(3));
    locked.make(&epoch, 0).unwrap();
    let (a, b) = (new(), new());
    assert!(locked.put(0, a.clone(), true).is_none());
    assert_eq!(epoch.pending(), 0);
    locked.make(&epoch, 99).unwrap();
    assert_eq!(epoch.pending(), 1, "readers may be in the old array still");
    assert!(locked.len() >= 100 && locked.has(0) && locked.is_marked(0) && !locked.has(1));
    assert!(locked.put(99, b.clone(), false).is_none());
    locked.set_mark(0, false);
    locked.set_mark(99, true);
    locked.set_mark(50, true);
    assert_eq!(
        [0, 50, 99].map(|i| locked.is_marked(i)),
        [false, false, true]
    );
    *locked += 1;
    assert_eq!(*locked, 8);
    drop(locked);
    let copy = table.copy(8, |_, _| 1).unwrap();
    for table in [&table, &copy] {
        assert!(
            table
                .get(&pin(), 0)
                .is_some_and(|found| EpochRc::ptr_eq(&found, &a))
        );
        assert!(
            table
                .get(&pin(), 99)
                .is_some_and(|found| EpochRc::ptr_eq(&found, &b))
        );
        assert!(table.get(&pin(), 50).is_none() && table.get(&pin(), 1 << 20).is_none());
    }
    assert!(copy.lock().is_marked(99));
    drop((a, b));
    assert!(table.lock().take(99).is_some());
    assert!(table.get(&pin(), 99).is_none());
    assert_eq!(drops.load(SeqCst), 0, "the copy has both");
    let replaced = copy.lock().put(99, new(), false);
    drop(replaced);
    assert_eq!(drops.load(SeqCst), 1, "nobody has the one from place 99");
    drop(table);
    assert_eq!(drops.load(SeqCst), 1, "the copy still has the first");
    drop(copy);
    assert_eq!(drops.load(SeqCst), 3);
    epoch.drain();
}

#[test]
fn a_table_is_read_while_it_changes() {
    const PLACES: usize = 8;
    let epoch = Epoch::new(3);
    let table: RcTable<(usize, Dropped), (), TestTable> = RcTable::new(());
    let drops = Arc::new(AtomicUsize::new(0));
    let (done, made) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|s| {
        for cpu in 0..2 {
            let (epoch, table, done) = (&epoch, &table, &done);
            s.spawn(move || {
                host::set_cpu(cpu);
                let mut i = cpu;
                while !done.load(SeqCst) {
                    i = (i + 1) % PLACES;
                    let found = table.get(&pin(), i);
                    epoch.quiescent(&mut pin());
                    if let Some(found) = found {
                        assert_eq!(found.0, i);
                    }
                    epoch.quiescent(&mut pin());
                }
                epoch.offline(cpu);
            });
        }
        host::set_cpu(2);
        for round in 0..rounds(20_000) {
            let i = round % PLACES;
            let mut locked = table.lock();
            locked.make(&epoch, i).unwrap();
            let old = if round % 3 == 0 {
                locked.take(i)
            } else {
                made.fetch_add(1, SeqCst);
                locked.put(i, EpochRc::new(&epoch, (i, Dropped(drops.clone()))), false)
            };
            drop(locked);
            drop(old);
            epoch.quiescent(&mut pin());
            epoch.reclaim(&pin());
        }
        done.store(true, SeqCst);
    });
    drop(table);
    assert_eq!(drops.load(SeqCst), made.load(SeqCst));
    epoch.drain();
    assert_eq!(epoch.pending(), 0);
}
