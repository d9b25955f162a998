//! Every interleaving of the life of a hub and its members, up to a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ksync --release --test loom_hub`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch raw cells, to see races that the hubs must prevent"
)]

#[expect(dead_code, reason = "hubs have a target of their own")]
mod model;

use std::ops::ControlFlow;

use ksync::{
    Epoch, HubRef, HubValue, Member, MemberSlot, NewMember, Walked,
    atomic::{AtomicBool, AtomicUsize, Ordering::*},
    pin,
};
use loom::{cell::UnsafeCell, sync::Arc};
use model::{model, spawn};

/// The value of a hub that lists its members, or only counts them.
#[derive(Default)]
struct Value<const COUNTS: bool> {
    last: AtomicUsize,
    closed: AtomicBool,
    /// Read by members, written when the last one has ended: loom checks the order.
    used: UnsafeCell<u32>,
}

// SAFETY: `used` is written in `last` only, after all other uses.
unsafe impl<const COUNTS: bool> Sync for Value<COUNTS> {}
// SAFETY: as above.
unsafe impl<const COUNTS: bool> Send for Value<COUNTS> {}

impl<const COUNTS: bool> HubValue for Value<COUNTS> {
    const MAY_COUNT: bool = COUNTS;

    fn counts(&self) -> bool {
        COUNTS
    }

    fn last(&self) {
        assert_eq!(self.last.fetch_add(1, Relaxed), 0, "last twice");
        self.closed.store(true, Relaxed);
        // SAFETY: not used by others any more.
        self.used.with_mut(|n| unsafe { *n = 1 });
    }
}

type Hub<const COUNTS: bool> = HubRef<Value<COUNTS>, usize>;

fn new_hub<const COUNTS: bool>(epoch: &Epoch) -> Hub<COUNTS> {
    HubRef::new(epoch, Value::default()).ok().unwrap()
}

fn open<const COUNTS: bool>(value: &Value<COUNTS>) {
    assert!(
        !value.closed.load(Relaxed),
        "the hub is gone under a member"
    );
    // SAFETY: written when all uses are over; loom checks it.
    assert_eq!(value.used.with(|n| unsafe { *n }), 0);
}

#[test]
fn hub_ends_once_with_the_last_of_all() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
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
    }
    model(3, run::<false>);
    model(3, run::<true>);
}

#[test]
fn a_sole_member_is_sole() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
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
    }
    model(3, run::<false>);
    model(3, run::<true>);
}

/// As `a_sole_member_is_sole`, where the other reference is a base one, and for a base reference.
#[test]
fn an_only_reference_sees_what_the_others_did() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
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
    }
    model(3, run::<false>);
    model(3, run::<true>);
}

/// A thread that finds a member only under a pin gets a reference, or learns that the last was dropped; the hub ends
/// once.
#[test]
fn a_reference_made_beside_the_end_does_not_end_the_hub_again() {
    fn run<const COUNTS: bool>() {
        let epoch = std::sync::Arc::new(Epoch::new(3));
        let hub = new_hub::<COUNTS>(&epoch);
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
    }
    model(2, run::<false>);
    model(2, run::<true>);
}

/// Of references that end at the same time, exactly one is reported to be the last.
#[test]
fn one_of_the_last_references_sees_to_the_end() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(3);
        let hub = new_hub::<COUNTS>(&epoch);
        let member = hub.attach(1).unwrap();
        let ends = Arc::new(UnsafeCell::new(0));
        let end = |ends: Arc<UnsafeCell<i32>>| {
            move |hub: Hub<COUNTS>| {
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
    }
    model(2, run::<false>);
    model(2, run::<true>);
}

#[test]
fn attaching_beside_one_that_goes_loses_nobody() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
        let a = hub.attach(1).unwrap();
        let other = spawn(1, move || drop(a));
        let b = hub.attach(2).unwrap();
        other.join().unwrap();
        if !COUNTS {
            let mut seen = Vec::new();
            let _: ControlFlow<()> = hub.scan(|m| {
                seen.push(*m);
                ControlFlow::Continue(())
            });
            assert_eq!(seen, [2]);
        }
        drop(b);
        assert!(hub.is_only());
    }
    model(3, run::<false>);
    model(3, run::<true>);
}

#[test]
fn a_scan_never_misses_a_replaced_member() {
    model(3, || {
        let epoch = Epoch::new(2);
        let hub = new_hub::<false>(&epoch);
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
        let hub = new_hub::<false>(&epoch);
        let a = hub.attach(1).unwrap();
        hub.grow().unwrap();
        let other = spawn(1, move || {
            let b = a.attach_elsewhere(NewMember::new(0).unwrap());
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

/// A member attaches another in a shard that a scan may have visited, and leaves one that it may not have: a whole scan has
/// seen one of the two.
#[test]
fn a_whole_scan_misses_nobody_that_hops() {
    model(3, || {
        let epoch = Epoch::new(3);
        let hub = new_hub::<false>(&epoch);
        hub.grow().unwrap();
        ksync::host::set_cpu(2);
        let a = hub.attach(1).unwrap();
        ksync::host::set_cpu(0);
        let other = spawn(1, move || {
            let b = a.attach_elsewhere(NewMember::new(1).unwrap());
            drop(a);
            std::mem::forget(b);
        });
        let mut seen = 0;
        let whole = hub.scan_whole(|m| -> ControlFlow<()> {
            seen += m;
            ControlFlow::Continue(())
        });
        assert!(whole.is_none() || seen > 0);
        other.join().unwrap();
        assert!(hub.scan_whole(|_| ControlFlow::Break(())).is_some());
        std::mem::forget(hub);
    });
}

/// A reader that looks for a member's shard finds it fully built, even if the member has just moved to it.
#[test]
fn a_member_that_moves_is_found() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
        let a = std::sync::Arc::new(hub.attach(1).unwrap());
        let other = spawn(1, {
            let a = a.clone();
            move || {
                hub.grow().unwrap();
                drop(hub);
                let b = a.attach_elsewhere(NewMember::new(0).unwrap());
                assert!(!a.is_sole());
                std::mem::forget(b);
            }
        });
        let _either = a.is_sole();
        other.join().unwrap();
        // The members are left attached for good.
        std::mem::forget(a);
    }
    model(3, run::<false>);
    model(3, run::<true>);
}

/// A member moves beside the end of the last other one of its shard: each shard's unit is returned once, and the member
/// that stays is the only one.
#[test]
fn a_member_moves_beside_the_end_of_its_neighbour() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
        let (a, b) = (hub.attach(1).unwrap(), hub.attach(2).unwrap());
        hub.grow().unwrap();
        drop(hub);
        let other = spawn(1, move || {
            let c = a.attach_elsewhere(NewMember::new(3).unwrap());
            assert!(!a.is_sole());
            drop(c);
            a
        });
        drop(b);
        let a = other.join().unwrap();
        assert!(a.is_sole());
        let last = a.detach().expect("no other is in its shard");
        assert!(last.is_only());
        open(&last);
    }
    model(3, run::<false>);
    model(3, run::<true>);
}

/// Another reference attaches a member for good and ends: the first member is never the only one, whichever shard the
/// new one is in.
#[test]
fn a_member_is_not_sole_beside_one_that_comes() {
    fn run<const COUNTS: bool, const GROWN: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
        let a = hub.attach(1).unwrap();
        if GROWN {
            hub.grow().unwrap();
        }
        let other = spawn(1, move || hub.attach(2).unwrap());
        assert!(!a.is_sole());
        let b = other.join().unwrap();
        assert!(!a.is_sole() && !b.is_sole());
        drop(b);
        assert!(a.is_sole());
    }
    model(3, run::<false, false>);
    model(3, run::<false, true>);
    model(3, run::<true, false>);
    model(3, run::<true, true>);
}

/// Two members of one shard end at once, without another reference: one of the two ends the hub.
#[test]
fn of_two_members_one_is_the_last() {
    fn run<const COUNTS: bool>() {
        let epoch = Epoch::new(2);
        let hub = new_hub::<COUNTS>(&epoch);
        let (a, b) = (hub.attach(1).unwrap(), hub.attach(2).unwrap());
        drop(hub);
        let other = spawn(1, move || a.detach().is_some_and(|hub| hub.is_only()));
        let mine = b.detach().is_some_and(|hub| hub.is_only());
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "{mine} and {theirs}");
    }
    model(3, run::<false>);
    model(3, run::<true>);
}

/// A walk beside the end of the members and a new one: its shard's unit is returned once, and a member that stays is seen.
#[test]
fn a_walk_meets_who_stays() {
    for leaves in [1, 2] {
        model(3, move || {
            let epoch = Epoch::new(2);
            let hub = new_hub::<false>(&epoch);
            let mut members = vec![hub.attach(2).unwrap(), hub.attach(1).unwrap()];
            let other = spawn(1, {
                let hub = hub.clone();
                let left = members.split_off(2 - leaves);
                move || {
                    drop(left);
                    let new = hub.attach(4).unwrap();
                    drop(hub);
                    new
                }
            });
            let mut seen = 0;
            hub.walk(1, |walked| {
                if let Walked::Member(n) = walked {
                    seen |= n;
                }
            });
            assert!(leaves == 2 || seen & 2 != 0, "one that stays was missed");
            let new = other.join().unwrap();
            drop(members);
            assert!(!hub.is_only());
            drop(hub);
            assert!(new.is_sole());
            open(new.hub());
        });
    }
}
