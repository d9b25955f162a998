//! Every interleaving of the lock protocols, up to a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ksync --release --test loom`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see races that the locks must prevent"
)]

use std::ops::ControlFlow;

use ksync::{
    ByteMutex, Epoch, EpochPtr, HubRef, HubValue, Mutex, PcRef, RwLock, Spin,
    atomic::{AtomicBool, AtomicUsize, Ordering::*},
    host, lock_class, pin,
};
use loom::{cell::UnsafeCell, sync::Arc, thread};

lock_class!(Low, "model low", rank = 20);
lock_class!(Mid, "model middle", rank = 90);

fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(f);
}

fn spawn(cpu: usize, f: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        host::set_cpu(cpu);
        f();
    })
}

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
fn byte_mutex_hands_over() {
    struct Small {
        // Two locks in one bucket: the model's table has one.
        locks: [ByteMutex; 2],
        data: [UnsafeCell<usize>; 2],
    }
    // SAFETY: `data` is used under its lock.
    unsafe impl Sync for Small {}
    // SAFETY: as above.
    unsafe impl Send for Small {}
    fn bump(small: &Small, i: usize) {
        let _guard = small.locks[i].lock::<Low>();
        // SAFETY: the lock is held; loom checks it.
        small.data[i].with_mut(|n| unsafe { *n += 1 });
    }
    model(2, || {
        let small = Arc::new(Small {
            locks: [ByteMutex::new(), ByteMutex::new()],
            data: [UnsafeCell::new(0), UnsafeCell::new(0)],
        });
        let others: Vec<_> = (1..3)
            .map(|cpu| {
                let small = small.clone();
                spawn(cpu, move || bump(&small, cpu % 2))
            })
            .collect();
        bump(&small, 0);
        bump(&small, 1);
        others.into_iter().for_each(|t| t.join().unwrap());
        assert!(!small.locks[0].is_locked() && !small.locks[1].is_locked());
    });
}

/// Its drop makes a reader's later look fail.
struct Target(
    std::sync::Arc<std::sync::atomic::AtomicBool>,
    UnsafeCell<u32>,
);

impl Target {
    fn new() -> (Self, std::sync::Arc<std::sync::atomic::AtomicBool>) {
        let alive = std::sync::Arc::new(true.into());
        (
            Self(std::sync::Arc::clone(&alive), UnsafeCell::new(7)),
            alive,
        )
    }

    fn look(&self) {
        assert!(self.0.load(std::sync::atomic::Ordering::SeqCst), "freed");
        // SAFETY: only read while alive; loom checks that the drop's write is ordered after.
        assert_eq!(self.1.with(|v| unsafe { *v }), 7);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.0.store(false, std::sync::atomic::Ordering::SeqCst);
        // SAFETY: `&mut self`.
        self.1.with_mut(|v| unsafe { *v = 0 });
    }
}

// SAFETY: the cell is written in `drop` only.
unsafe impl Sync for Target {}
// SAFETY: as above.
unsafe impl Send for Target {}

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

#[derive(Default)]
struct Value {
    last: AtomicUsize,
    closed: AtomicBool,
    /// Read by members, written when the last is gone: loom checks the order.
    used: UnsafeCell<u32>,
}

// SAFETY: `used` is written in `last` only, after all other uses.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

impl HubValue for Value {
    fn last(&self) {
        assert_eq!(self.last.fetch_add(1, Relaxed), 0, "last twice");
        self.closed.store(true, Relaxed);
        // SAFETY: nobody else uses it any more.
        self.used.with_mut(|n| unsafe { *n = 1 });
    }
}

fn open(value: &Value) {
    assert!(
        !value.closed.load(Relaxed),
        "the hub is gone under a member"
    );
}

#[test]
fn hub_ends_once_with_the_last_of_all() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let a = hub.attach(1).unwrap();
        let other = spawn(1, {
            let hub = hub.clone();
            move || {
                let b = hub.attach(2).unwrap();
                drop(hub);
                open(b.hub());
            }
        });
        drop(hub);
        open(a.hub());
        let c = a.attach_beside(3).unwrap();
        drop(a);
        open(c.hub());
        let pin = pin();
        let value = c.hub_pinned(&pin);
        drop(c);
        let _ = value.last.load(Relaxed);
        drop(pin);
        other.join().unwrap();
        assert_eq!(epoch.pending(), 4);
    });
}

#[test]
fn a_sole_member_is_sole() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let (a, b) = (hub.attach(1).unwrap(), hub.attach(2).unwrap());
        drop(hub);
        let used = Arc::new(UnsafeCell::new(0));
        let other = spawn(1, {
            let used = used.clone();
            move || {
                // SAFETY: the model is that of an owner who writes before it lets go.
                used.with_mut(|n| unsafe { *n = 1 });
                drop(b);
            }
        });
        if a.is_sole() {
            // SAFETY: nobody else is left; loom checks it.
            used.with_mut(|n| unsafe { *n = 2 });
        }
        other.join().unwrap();
        assert!(a.is_sole());
    });
}

#[test]
fn a_scan_never_misses_a_replaced_member() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let a = hub.attach(3).unwrap();
        let other = spawn(1, move || {
            let _ = a.replace([1, 2]).ok().unwrap().map(std::mem::forget);
        });
        let mut sum = 0;
        let ControlFlow::Continue(()) = hub.scan(|m| -> ControlFlow<()> {
            sum += m;
            ControlFlow::Continue(())
        }) else {
            unreachable!()
        };
        assert_eq!(sum, 3);
        other.join().unwrap();
        // The two members are left attached for good.
        std::mem::forget(hub);
    });
}

#[test]
fn a_scan_meets_a_member_that_moves() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let a = hub.attach(1).unwrap();
        hub.grow().unwrap();
        let other = spawn(1, move || {
            let b = a.attach_elsewhere(0).unwrap();
            assert!(!a.is_sole());
            std::mem::forget((a, b));
        });
        let mut sum = 0;
        let ControlFlow::Continue(()) = hub.scan(|m| -> ControlFlow<()> {
            sum += m;
            ControlFlow::Continue(())
        }) else {
            unreachable!()
        };
        assert_eq!(sum, 1);
        other.join().unwrap();
        // The members are left attached for good.
        std::mem::forget(hub);
    });
}

#[test]
fn a_per_cpu_count_ends_once() {
    model(2, || {
        let (target, alive) = Target::new();
        let epoch = Arc::new(Epoch::new(2));
        let first = PcRef::new(2, target);
        let other = spawn(1, {
            let (mine, epoch) = (first.clone(), epoch.clone());
            move || {
                let more = mine.clone();
                drop(mine);
                more.look();
                epoch.quiescent(&mut pin());
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
