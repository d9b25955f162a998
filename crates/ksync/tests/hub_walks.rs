//! Walks over the members of a hub, and what comes and goes meanwhile.
#![cfg(not(any(loom, shuttle)))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};
use std::thread;

use ksync::{Epoch, HubRef, HubValue, Member, NewMember, Walked, host};

/// Counts its last references.
struct Value(Arc<AtomicUsize>);

impl HubValue for Value {
    fn last(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Walks beside a crowd.
const ROUNDS: usize = if cfg!(miri) { 5 } else { 300 };

type Hub = HubRef<Value, usize>;

struct Fixture {
    epoch: Epoch,
    last: Arc<AtomicUsize>,
}

impl Fixture {
    fn new(ncpus: usize) -> Fixture {
        host::set_cpu(0);
        Fixture {
            epoch: Epoch::new(ncpus),
            last: Arc::default(),
        }
    }

    fn hub(&self) -> Hub {
        HubRef::new(&self.epoch, Value(self.last.clone()))
            .ok()
            .unwrap()
    }

    fn ends(&self) -> usize {
        self.last.load(SeqCst)
    }
}

/// The members that a walk with holds of `most` visits, hold by hold. Calls `between` after each hold, with its number.
fn holds(hub: &Hub, most: usize, mut between: impl FnMut(usize)) -> Vec<Vec<usize>> {
    let mut holds = vec![vec![]];
    hub.walk(most, |walked| match walked {
        Walked::Member(member) => holds.last_mut().unwrap().push(*member),
        Walked::Released => {
            between(holds.len());
            holds.push(vec![]);
        }
    });
    assert_eq!(holds.pop(), Some(vec![]), "a hold without its end");
    holds
}

/// The last that was attached comes first.
#[test]
fn a_walk_visits_all_a_few_at_a_time() {
    let f = Fixture::new(2);
    let hub = f.hub();
    assert_eq!(holds(&hub, 3, |_| {}), [[0; 0]; 0], "no member, no hold");
    let mut members: Vec<_> = (0..7).map(|n| hub.attach(n).unwrap()).collect();
    assert_eq!(
        holds(&hub, 3, |_| {}),
        [vec![6, 5, 4], vec![3, 2, 1], vec![0]]
    );
    assert_eq!(holds(&hub, 7, |_| {}).len(), 1);
    assert_eq!(holds(&hub, 0, |_| {}).len(), 7, "at least one");
    hub.grow().unwrap();
    host::set_cpu(1);
    members.extend((7..10).map(|n| hub.attach(n).unwrap()));
    let grown = [vec![6, 5, 4], vec![3, 2, 1], vec![0], vec![9, 8, 7]];
    assert_eq!(holds(&hub, 3, |_| {}), grown);
    drop(members);
    assert!(hub.is_only());
}

/// Whatever stands beside the mark may go, and whatever comes is not in its way.
#[test]
fn members_come_and_go_beside_a_walk() {
    let f = Fixture::new(2);
    let hub = f.hub();
    let all = || {
        (0..6)
            .map(|n| Some(hub.attach(n).unwrap()))
            .collect::<Vec<_>>()
    };
    // The mark stands between 4 and 3 after the first hold.
    for gone in [
        vec![3],
        vec![4],
        vec![3, 4],
        vec![0],
        vec![3, 2, 1],
        vec![5, 4],
    ] {
        let (mut members, mut come) = (all(), vec![]);
        let seen = holds(&hub, 2, |n| {
            if n == 1 {
                gone.iter().for_each(|&n| members[n] = None);
                come.push(hub.attach(100).unwrap());
            }
        });
        let stayed = [3, 2, 1, 0].into_iter().filter(|n| !gone.contains(n));
        let wanted: Vec<usize> = [5, 4].into_iter().chain(stayed).collect();
        assert_eq!(seen.concat(), wanted, "{gone:?} gone");
        drop((members, come));
        assert!(hub.is_only());
    }
    assert_eq!(f.ends(), 0);
}

/// The mark keeps its shard's unit: it is returned once, by the walk, or used by the next member.
#[test]
fn all_members_leave_during_a_walk() {
    for (come, at_end) in [(false, false), (true, false), (false, true)] {
        let f = Fixture::new(2);
        let hub = f.hub();
        let mut members: Vec<Member<_, _>> = (0..4).map(|n| hub.attach(n).unwrap()).collect();
        let seen = holds(&hub, 2, |n| {
            if n == 1 {
                assert!(members.drain(..).all(|member| member.detach().is_none()));
                assert!(!hub.is_only(), "the walk's shard has a unit");
                members.extend(come.then(|| hub.attach(4).unwrap()));
            }
            if n == 2 && at_end {
                members.push(hub.attach(5).unwrap());
            }
        });
        assert_eq!(seen.concat(), [3, 2]);
        assert_eq!(hub.is_only(), members.is_empty());
        assert!(members.iter().all(|member| !member.is_sole()));
        drop(hub);
        assert_eq!(members.len() + f.ends(), 1);
        assert!(members.iter().all(Member::is_sole));
        drop(members);
        assert_eq!(f.ends(), 1);
    }
}

/// A member that moves to a shard that the walk comes to later is seen there, and may have been seen before.
#[test]
fn a_member_moves_beside_a_walk() {
    for moves in [3, 0] {
        let f = Fixture::new(2);
        let hub = f.hub();
        let members: Vec<_> = (0..4).map(|n| hub.attach(n).unwrap()).collect();
        hub.grow().unwrap();
        let mut new = None;
        let seen = holds(&hub, 2, |n| {
            if n == 1 {
                host::set_cpu(1);
                new = Some(members[moves].attach_elsewhere(NewMember::new(9).unwrap()));
            }
        });
        for n in [0, 1, 2, 3, 9] {
            assert!(seen.concat().contains(&n), "{n} is missing: {seen:?}");
        }
    }
}

/// Two walks, and a scan, are no members to each other.
#[test]
fn walks_pass_each_other() {
    let f = Fixture::new(1);
    let hub = f.hub();
    let members: Vec<_> = (0..5).map(|n| hub.attach(n).unwrap()).collect();
    let outer = holds(&hub, 2, |_| {
        assert_eq!(holds(&hub, 1, |_| {}).concat(), [4, 3, 2, 1, 0]);
        let mut sum = 0;
        let _all: std::ops::ControlFlow<()> = hub.scan(|n| {
            sum += n;
            std::ops::ControlFlow::Continue(())
        });
        assert_eq!(sum, 10);
    });
    assert_eq!(outer.concat(), [4, 3, 2, 1, 0]);
    drop(members);
    assert!(hub.is_only());
}

/// A walk that a panic ends takes its mark, and the unit that it has, with it.
#[test]
fn a_walk_that_ends_early_leaves_no_mark() {
    let f = Fixture::new(1);
    let hub = f.hub();
    let mut members: Vec<_> = (0..3).map(|n| hub.attach(n).unwrap()).collect();
    let walk = || {
        holds(&hub, 1, |_| {
            members.clear();
            panic!("enough");
        })
    };
    assert!(catch_unwind(AssertUnwindSafe(walk)).is_err());
    assert!(hub.is_only());
    let again = hub.attach(7).unwrap();
    drop(hub);
    assert!(again.is_sole());
}

#[test]
fn walks_survive_a_crowd() {
    let f = Fixture::new(3);
    let hub = f.hub();
    let stay = hub.attach(1_000_000).unwrap();
    thread::scope(|s| {
        for cpu in 1..3 {
            let (hub, epoch) = (hub.clone(), &f.epoch);
            s.spawn(move || {
                host::set_cpu(cpu);
                let mut mine = vec![];
                for n in 0..10 * ROUNDS {
                    mine.push(hub.attach(n).unwrap());
                    if n % 5 == 4 {
                        mine.clear();
                    }
                    epoch.quiescent(&mut ksync::pin());
                    epoch.reclaim(&ksync::pin());
                }
            });
        }
        for _ in 0..ROUNDS {
            let seen = holds(&hub, 2, |_| {}).concat();
            assert!(seen.contains(&1_000_000));
            f.epoch.quiescent(&mut ksync::pin());
        }
    });
    drop(stay);
    assert!(hub.is_only());
    assert_eq!(f.ends(), 0);
}
