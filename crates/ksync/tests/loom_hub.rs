//! Every interleaving of the life of a hub and its members, up to a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ksync --release --test loom_hub`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see races that the hubs must prevent"
)]

mod model;

use std::ops::ControlFlow;

use ksync::{
    Epoch, HubRef, HubValue, Member, MemberSlot,
    atomic::{AtomicBool, AtomicUsize, Ordering::*},
    pin,
};
use loom::{cell::UnsafeCell, sync::Arc};
use model::{model, spawn};

#[derive(Default)]
struct Value {
    last: AtomicUsize,
    closed: AtomicBool,
    /// Read by members, written when the last one has ended: loom checks the order.
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
        // SAFETY: not used by others any more.
        self.used.with_mut(|n| unsafe { *n = 1 });
    }
}

fn open(value: &Value) {
    assert!(
        !value.closed.load(Relaxed),
        "the hub is gone under a member"
    );
    // SAFETY: written when all uses are over; loom checks it.
    assert_eq!(value.used.with(|n| unsafe { *n }), 0);
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
        let owner = spawn(1, {
            let used = used.clone();
            move || {
                if a.is_sole() {
                    // SAFETY: no other reference is left; loom checks it.
                    used.with_mut(|n| unsafe { *n = 2 });
                }
                std::mem::forget(a);
            }
        });
        // SAFETY: the model is that of an owner that writes before it drops its reference.
        used.with_mut(|n| unsafe { *n = 1 });
        drop(b);
        owner.join().unwrap();
    });
}

/// As `a_sole_member_is_sole`, where the other reference is a base one, and for a base reference.
#[test]
fn an_only_reference_sees_what_the_others_did() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let a = hub.attach(1).unwrap();
        let used = Arc::new(UnsafeCell::new(0));
        let other = spawn(1, {
            let (used, hub) = (used.clone(), hub.clone());
            move || {
                // SAFETY: the model is that of an owner that writes before it drops its reference.
                used.with_mut(|n| unsafe { *n = 1 });
                drop(hub);
            }
        });
        // Only a read, so that the first count is of all three.
        let _ = hub.is_only();
        drop(hub);
        if a.is_sole() {
            // SAFETY: no other reference is left; loom checks it.
            used.with_mut(|n| unsafe { *n = 2 });
        }
        other.join().unwrap();
        let hub = a.hub_ref().unwrap();
        let last = spawn(1, {
            let used = used.clone();
            move || {
                // SAFETY: as above.
                used.with_mut(|n| unsafe { *n = 3 });
                drop(a);
            }
        });
        if hub.is_only() {
            // SAFETY: as above.
            used.with_mut(|n| unsafe { *n = 4 });
        }
        last.join().unwrap();
        assert!(hub.is_only());
    });
}

/// A thread that finds a member only under a pin gets a reference, or learns that the last was dropped; the hub ends
/// once.
#[test]
fn a_reference_made_beside_the_end_does_not_end_the_hub_again() {
    model(2, || {
        let epoch = std::sync::Arc::new(Epoch::new(3));
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let slot = Arc::new(MemberSlot::new(hub.attach(1).unwrap()));
        drop(hub);
        let readers = [1, 2].map(|cpu| {
            let slot = slot.clone();
            spawn(cpu, move || {
                let pin = pin();
                if let Some(hub) = slot.with(&pin, Member::hub_ref).flatten() {
                    open(&hub);
                }
            })
        });
        drop(slot.take());
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(epoch.pending(), 2, "one member and one hub, retired once");
    });
}

/// Of references that end at the same time, exactly one is reported to be the last.
#[test]
fn one_of_the_last_references_sees_to_the_end() {
    model(2, || {
        let epoch = Epoch::new(3);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let member = hub.attach(1).unwrap();
        let ends = Arc::new(UnsafeCell::new(0));
        let end = |ends: Arc<UnsafeCell<i32>>| {
            move |hub: HubRef<Value, usize>| {
                // SAFETY: written by the last one only, after the reads of the others; loom checks it.
                assert_eq!(ends.with(|n| unsafe { *n }), 0);
                if let Err(last) = hub.end_unless_only() {
                    assert_eq!(last.last.load(Relaxed), 0, "alive until it is dropped");
                    // SAFETY: only the last one gets here; loom checks that the others are done.
                    ends.with_mut(|n| unsafe { *n += 1 });
                }
            }
        };
        let (first, second) = (end(ends.clone()), end(ends.clone()));
        let other = hub.clone();
        let threads = [
            spawn(1, move || first(other)),
            spawn(2, move || member.detach().into_iter().for_each(second)),
        ];
        end(ends.clone())(hub);
        for thread in threads {
            thread.join().unwrap();
        }
        // SAFETY: the others have ended.
        assert_eq!(ends.with(|n| unsafe { *n }), 1);
    });
}

#[test]
fn attaching_beside_one_that_goes_loses_nobody() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let a = hub.attach(1).unwrap();
        let other = spawn(1, move || drop(a));
        let b = hub.attach(2).unwrap();
        other.join().unwrap();
        let mut seen = Vec::new();
        let _: ControlFlow<()> = hub.scan(|m| {
            seen.push(*m);
            ControlFlow::Continue(())
        });
        assert_eq!(seen, [2]);
        drop(b);
        assert!(hub.is_only());
    });
}

#[test]
fn a_scan_never_misses_a_replaced_member() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let a = hub.attach(3).unwrap();
        let other = spawn(1, {
            let hub = hub.clone();
            move || {
                let mut sum = 0;
                let _: ControlFlow<()> = hub.scan(|m| {
                    sum += m;
                    ControlFlow::Continue(())
                });
                assert_eq!(sum, 3);
                std::mem::forget(hub);
            }
        });
        let _ = a.replace([1, 2]).ok().unwrap().map(std::mem::forget);
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
        // Once, or in both places.
        assert!(sum == 1 || sum == 2, "met {sum} times");
        other.join().unwrap();
        // The members are left attached for good.
        std::mem::forget(hub);
    });
}

/// A reader that looks for a member's shard finds it fully built, even if the member has just moved to it.
#[test]
fn a_member_that_moves_is_found() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub: HubRef<Value, usize> = HubRef::new(&epoch, Value::default()).ok().unwrap();
        let a = std::sync::Arc::new(hub.attach(1).unwrap());
        let other = spawn(1, {
            let a = a.clone();
            move || {
                hub.grow().unwrap();
                drop(hub);
                let b = a.attach_elsewhere(0).unwrap();
                assert!(!a.is_sole());
                std::mem::forget(b);
            }
        });
        let _either = a.is_sole();
        other.join().unwrap();
        // The members are left attached for good.
        std::mem::forget(a);
    });
}
