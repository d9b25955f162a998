//! Every interleaving of the lock protocols, up to a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ksync --release --test loom`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see races that the locks must prevent"
)]

mod model;

use ksync::{
    Epoch, EpochPtr, IrqSpin, Mutex, PerCpuRef, RwLock, Spin, Tally,
    atomic::{AtomicBool, Ordering::*},
    lock_class, pin,
};
use loom::{cell::UnsafeCell, sync::Arc};
use model::{Target, model, spawn};

lock_class!(Low, "model low", rank = 20);
lock_class!(Mid, "model middle", rank = 90);

#[test]
fn spin_excludes() {
    model(3, || {
        let lock = Arc::new(Spin::<_, Mid>::new(0));
        let other = spawn(1, {
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        *lock.lock() += 1;
        if let Some(mut n) = lock.try_lock() {
            *n += 0;
        }
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
    });
}

/// A thread that gets a lock by trying sees what its last holder did, like one that waits for it.
#[test]
fn a_lock_that_was_tried_for_excludes_too() {
    fn both<L: Sync + Send + 'static>(lock: L, wait: fn(&L), attempt: fn(&L)) {
        let lock = std::sync::Arc::new(lock);
        let other = spawn(1, {
            let lock = lock.clone();
            move || wait(&lock)
        });
        attempt(&lock);
        other.join().unwrap();
    }
    model(2, || {
        both(
            Mutex::<_, Low>::new(0),
            |l| *l.lock() += 1,
            |l| l.try_lock().into_iter().for_each(|mut n| *n += 1),
        );
    });
    model(2, || {
        both(
            IrqSpin::<_, Mid>::new(0),
            |l| *l.lock() += 1,
            |l| l.try_lock().into_iter().for_each(|mut n| *n += 1),
        );
    });
    model(2, || {
        both(
            RwLock::<_, Low>::new(0),
            |l| *l.write() += 1,
            |l| l.try_write().into_iter().for_each(|mut n| *n += 1),
        );
    });
    model(2, || {
        both(
            RwLock::<_, Low>::new(0),
            |l| *l.write() += 1,
            |l| l.try_read().into_iter().for_each(|n| assert!(*n < 2)),
        );
    });
    model(2, || {
        both(
            RwLock::<_, Low>::new(0),
            |l| assert!(*l.read() < 2),
            |l| l.try_write().into_iter().for_each(|mut n| *n += 1),
        );
    });
}

#[test]
fn a_spin_lock_nested_in_one_of_its_rank_excludes() {
    model(2, || {
        let locks = Arc::new((IrqSpin::<_, Mid>::new(0), IrqSpin::<_, Mid>::new(0)));
        let other = spawn(1, {
            let locks = locks.clone();
            move || {
                let _first = locks.0.lock();
                *locks.1.lock_nested() += 1;
            }
        });
        *locks.1.lock() += 1;
        *locks.0.lock() += 1;
        other.join().unwrap();
        assert_eq!(*locks.1.lock(), 2);
    });
}

#[test]
fn a_writer_that_turns_reader_lets_readers_see_its_work() {
    model(2, || {
        let lock = Arc::new(RwLock::<_, Low>::new(0));
        let reader = spawn(1, {
            let lock = lock.clone();
            move || assert!(*lock.read() < 2)
        });
        let mut guard = lock.write();
        *guard += 1;
        let guard = guard.downgrade();
        assert_eq!(*guard, 1);
        drop(guard);
        reader.join().unwrap();
        assert_eq!(*lock.try_write().expect("free"), 1);
    });
}

#[test]
fn mutex_hands_over_to_all() {
    model(2, || {
        let lock = Arc::new(Mutex::<_, Low>::new(0));
        let others: Vec<_> = (1..3)
            .map(|cpu| {
                let lock = lock.clone();
                spawn(cpu, move || *lock.lock() += 1)
            })
            .collect();
        *lock.lock() += 1;
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock.lock(), 3);
    });
}

#[test]
fn mutex_is_free_after_the_last_hand_over() {
    model(3, || {
        let lock = Arc::new(Mutex::<_, Low>::new(0));
        let other = spawn(1, {
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.try_lock().expect("free"), 2);
    });
}

/// Two that wait for a lock, and try it then, do not find it in each other's hands.
#[test]
fn those_that_wait_for_an_rwlock_leave_it_free() {
    for shared in [false, true] {
        model(2, move || {
            let lock = Arc::new(RwLock::<_, Low>::new(0));
            let (writer, reader) = match shared {
                true => (None, lock.try_read()),
                false => (lock.try_write(), None),
            };
            // Not part of the model.
            let released = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let others = [1, 2].map(|cpu| {
                let (lock, released) = (lock.clone(), released.clone());
                spawn(cpu, move || {
                    lock.wait();
                    assert!(released.load(SeqCst), "the lock was held all the time");
                })
            });
            released.store(true, SeqCst);
            drop((writer, reader));
            *lock.try_write().expect("handed to one that only waits") += 1;
            others.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(*lock.try_write().expect("free"), 1);
        });
    }
}

/// One that waits is told by the holder before a writer, or by that writer.
#[test]
fn one_that_waits_beside_a_writer_is_told() {
    model(2, || {
        let lock = Arc::new(RwLock::<_, Low>::new(0));
        let first = lock.try_write().expect("free");
        let looks = spawn(1, {
            let lock = lock.clone();
            move || lock.wait()
        });
        let writes = spawn(2, {
            let lock = lock.clone();
            move || *lock.write() += 1
        });
        drop(first);
        looks.join().unwrap();
        writes.join().unwrap();
        assert_eq!(*lock.try_write().expect("free"), 1);
    });
}

#[test]
fn rwlock_excludes_writers_from_readers() {
    model(2, || {
        let lock = Arc::new(RwLock::<_, Low>::new((0, 0)));
        let reader = spawn(1, {
            let lock = lock.clone();
            move || {
                let both = lock.read();
                assert_eq!(both.0, both.1);
            }
        });
        let writer = spawn(2, {
            let lock = lock.clone();
            move || {
                let mut both = lock.write();
                both.0 += 1;
                both.1 += 1;
            }
        });
        {
            let both = lock.read();
            assert_eq!(both.0, both.1);
        }
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(*lock.try_write().expect("free"), (1, 1));
    });
}

#[test]
fn rwlock_wakes_readers_behind_a_writer() {
    model(2, || {
        let lock = Arc::new(RwLock::<_, Low>::new(0));
        let guard = lock.write();
        let readers: Vec<_> = (1..3)
            .map(|cpu| {
                let lock = lock.clone();
                spawn(cpu, move || assert_eq!(*lock.read(), 1))
            })
            .collect();
        let mut guard = guard;
        *guard = 1;
        drop(guard);
        readers.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*lock.try_write().expect("free"), 1);
    });
}

#[test]
fn a_writer_queues_while_readers_are_let_in() {
    model(2, || {
        let lock = Arc::new(RwLock::<_, Low>::new(0));
        let mut guard = lock.write();
        let reader = spawn(1, {
            let lock = lock.clone();
            move || assert!(*lock.read() >= 1)
        });
        let writer = spawn(2, {
            let lock = lock.clone();
            move || *lock.write() += 1
        });
        *guard = 1;
        drop(guard);
        reader.join().unwrap();
        writer.join().unwrap();
        assert_eq!(*lock.try_write().expect("free"), 2);
    });
}

/// A thread that is granted a lock before it sleeps sees what the last holder did.
#[test]
fn who_is_granted_a_lock_while_awake_sees_all() {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 20_000;
    builder.check(|| {
        let lock = Arc::new(Mutex::<_, Low>::new(0));
        let mut guard = lock.lock();
        let other = spawn(1, {
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        *guard += 1;
        drop(guard);
        other.join().unwrap();
        assert_eq!(*lock.try_lock().expect("free"), 2);
    });
}

#[test]
fn epoch_frees_after_readers_left() {
    model(6, || {
        let (target, alive) = Target::new();
        let epoch = Arc::new(Epoch::new(2));
        let ptr = Arc::new(EpochPtr::new(Some(Box::new(target))));
        let reader = spawn(1, {
            let (epoch, ptr) = (epoch.clone(), ptr.clone());
            move || {
                for _ in 0..3 {
                    {
                        let pin = pin();
                        if let Some(target) = ptr.load(&pin) {
                            target.look();
                        }
                    }
                    epoch.quiescent(&mut pin());
                }
                epoch.offline(1);
            }
        });
        ptr.replace(&epoch, &pin(), None);
        for _ in 0..4 {
            epoch.quiescent(&mut pin());
            epoch.reclaim(&pin());
        }
        reader.join().unwrap();
        epoch.drain();
        assert!(!alive.load(std::sync::atomic::Ordering::SeqCst));
    });
}

#[test]
fn a_count_that_moves_is_given_back_after_readers_left() {
    model(5, || {
        let (target, alive) = Target::new();
        let epoch = Arc::new(Epoch::new(2));
        let places = Arc::new([
            EpochPtr::new(Some(std::sync::Arc::new(target))),
            EpochPtr::empty(),
        ]);
        let reader = spawn(1, {
            let (epoch, places) = (epoch.clone(), places.clone());
            move || {
                {
                    let pin = pin();
                    for place in &*places {
                        if let Some(target) = place.load(&pin) {
                            target.look();
                        }
                    }
                    let count = places[1].get(&pin);
                    drop(pin);
                    // A count of one's own needs no pin.
                    if let Some(target) = count {
                        target.look();
                    }
                }
                epoch.quiescent(&mut pin());
                epoch.offline(1);
            }
        });
        // SAFETY: both live to the end of the model.
        unsafe { places[0].move_to(&places[1], &epoch, &pin()) };
        places[1].replace(&epoch, &pin(), None);
        for _ in 0..4 {
            epoch.quiescent(&mut pin());
            epoch.reclaim(&pin());
        }
        reader.join().unwrap();
        epoch.drain();
        assert!(!alive.load(std::sync::atomic::Ordering::SeqCst));
    });
}

#[test]
fn epoch_waits_for_a_cpu_that_comes_online() {
    model(6, || {
        let (target, _) = Target::new();
        let epoch = Arc::new(Epoch::new(2));
        epoch.offline(1);
        let ptr = Arc::new(EpochPtr::new(Some(Box::new(target))));
        let reader = spawn(1, {
            let (epoch, ptr) = (epoch.clone(), ptr.clone());
            move || {
                epoch.online(1);
                {
                    let pin = pin();
                    if let Some(target) = ptr.load(&pin) {
                        target.look();
                        target.look();
                    }
                }
                epoch.offline(1);
            }
        });
        ptr.replace(&epoch, &pin(), None);
        for _ in 0..4 {
            epoch.quiescent(&mut pin());
            epoch.reclaim(&pin());
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_per_cpu_count_ends_once() {
    model(2, || {
        let (target, alive) = Target::new();
        let epoch = Arc::new(Epoch::new(2));
        let first = PerCpuRef::new(2, target);
        let other = spawn(1, {
            let (mine, epoch) = (first.clone(), epoch.clone());
            move || {
                let more = mine.clone();
                drop(mine);
                more.look();
                epoch.quiescent(&mut pin());
                more.look();
                drop(more);
                epoch.offline(1);
            }
        });
        first.kill(&epoch);
        first.look();
        drop(first);
        other.join().unwrap();
        assert!(!alive.load(std::sync::atomic::Ordering::SeqCst));
    });
}

/// Two CPUs charge for the last unit: at most one gets it.
#[test]
fn a_limit_holds_for_two_who_charge_at_once() {
    fn take(tally: &Tally<1>) -> bool {
        let pin = pin();
        tally.charge(&pin, 0, 1);
        let over = tally.is_over(0, 1);
        if over {
            tally.give_back(&pin, 0, 1);
        }
        !over
    }
    for batch in [1, 2] {
        model(3, move || {
            let tally = Arc::new(Tally::<1>::new(2, [batch]));
            let theirs = Arc::new(AtomicBool::new(false));
            let other = spawn(1, {
                let (tally, theirs) = (tally.clone(), theirs.clone());
                move || theirs.store(take(&tally), Relaxed)
            });
            let mine = take(&tally);
            other.join().unwrap();
            let theirs = theirs.load(Relaxed);
            assert!(!(mine && theirs), "both have the last one");
            let had = i64::from(mine) + i64::from(theirs);
            assert_eq!(tally.outstanding(0), had);
        });
    }
}

/// A unit moves from CPU to CPU: charged on one, and another one charged on the other before the first is returned
/// there.
#[test]
fn what_is_always_charged_never_looks_settled() {
    model(3, || {
        let tally = Arc::new(Tally::<1>::new(3, [i64::MAX]));
        let handed = Arc::new(AtomicBool::new(false));
        tally.charge(&pin(), 0, 1);
        let keeper = spawn(1, {
            let (tally, handed) = (tally.clone(), handed.clone());
            move || {
                tally.charge(&pin(), 0, 1);
                handed.store(true, Release);
            }
        });
        let returner = spawn(2, {
            let (tally, handed) = (tally.clone(), handed.clone());
            move || {
                if handed.load(Acquire) {
                    tally.give_back(&pin(), 0, 1);
                }
            }
        });
        assert!(!tally.is_settled());
        keeper.join().unwrap();
        returner.join().unwrap();
        assert!(!tally.is_settled());
    });
}
