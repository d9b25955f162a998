//! Hubs and their members on the host.
#![cfg(not(any(loom, shuttle)))]

mod support;

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use ksync::{Epoch, HubRef, HubValue, Member, host, pin};

use support::{Dropped, rounds};

/// A hub value that counts its last references and its drops.
struct Value {
    last: Arc<AtomicUsize>,
    _dropped: Dropped,
}

impl HubValue for Value {
    fn last(&self) {
        self.last.fetch_add(1, SeqCst);
    }
}

struct Fixture {
    epoch: Epoch,
    last: Arc<AtomicUsize>,
    drops: Arc<AtomicUsize>,
}

impl Fixture {
    fn new(ncpus: usize) -> Self {
        Self {
            epoch: Epoch::new(ncpus),
            last: Arc::default(),
            drops: Arc::default(),
        }
    }

    fn hub(&self) -> HubRef<Value, usize> {
        let value = Value {
            last: self.last.clone(),
            _dropped: Dropped(self.drops.clone()),
        };
        HubRef::new(&self.epoch, value).ok().unwrap()
    }

    /// Lets each CPU announce itself and reclaim, `n` times; the thread then is on CPU 0.
    fn tick(&self, n: usize) {
        for cpu in (0..n).flat_map(|_| (0..self.epoch.ncpus()).rev()) {
            host::set_cpu(cpu);
            self.epoch.quiescent(&mut pin());
            self.epoch.reclaim(&pin());
        }
    }

    fn counts(&self) -> (usize, usize) {
        (self.last.load(SeqCst), self.drops.load(SeqCst))
    }
}

fn seen(hub: &Member<Value, usize>) -> Vec<usize> {
    let mut all = Vec::new();
    let ControlFlow::Continue(()) = hub.scan(|m| -> ControlFlow<()> {
        all.push(*m);
        ControlFlow::Continue(())
    }) else {
        unreachable!()
    };
    all.sort();
    all
}

#[test]
fn members_keep_the_hub_and_the_last_one_ends_it() {
    let f = Fixture::new(2);
    let hub = f.hub();
    assert!(hub.is_only());
    let a = hub.attach(1).unwrap();
    assert!(!a.is_sole() && !hub.is_only());
    drop(hub);
    assert!(a.is_sole());
    let b = a.attach_beside(2).unwrap();
    host::set_cpu(1);
    let c = b.attach_elsewhere(3).unwrap();
    assert!(!a.is_sole() && a.same_hub(&c));
    assert_eq!(seen(&a), [1, 2, 3]);
    let d = c.attach_beside(4).unwrap();
    assert!(d.detach().is_none(), "the shard has others");
    assert_eq!(f.counts(), (0, 0));
    drop(a);
    assert_eq!(seen(&b), [2, 3]);
    let [d, e] = b.replace([4, 5]).ok().unwrap();
    assert_eq!((*d, *e), (4, 5));
    assert_eq!(seen(&c), [3, 4, 5]);
    drop((d, e));
    assert!(c.is_sole());
    assert_eq!(f.counts(), (0, 0));
    let pin = pin();
    let (value, member) = (c.hub_pinned(&pin), c.pinned(&pin));
    drop(c);
    // At once, except the drop: this CPU may still use it.
    assert_eq!(f.counts(), (1, 0));
    assert_eq!((*member, value.last.load(SeqCst)), (3, 1));
    drop(pin);
    f.tick(5);
    assert_eq!(f.counts(), (1, 1));
    assert_eq!(f.epoch.pending(), 0);
}

#[test]
fn who_sees_a_member_under_a_pin_sees_it_though_it_is_replaced() {
    let (epoch, drops) = (Epoch::new(1), Arc::new(AtomicUsize::new(0)));
    let fixture = Fixture::new(1);
    host::set_cpu(0);
    let value = Value {
        last: fixture.last.clone(),
        _dropped: Dropped(fixture.drops.clone()),
    };
    let hub: HubRef<Value, Dropped> = HubRef::new(&epoch, value).ok().unwrap();
    let member = hub.attach(Dropped(drops.clone())).ok().unwrap();
    let section = pin();
    let old = member.pinned(&section) as *const Dropped;
    let [new] = member.replace([Dropped(drops.clone())]).ok().unwrap();
    assert!(!std::ptr::eq(old, new.pinned(&section)));
    epoch.reclaim(&section);
    assert_eq!(drops.load(SeqCst), 0, "the section goes on");
    drop(section);
    epoch.drain();
    assert_eq!(drops.load(SeqCst), 1);
    drop((new, hub));
    epoch.drain();
    assert_eq!((drops.load(SeqCst), fixture.counts()), (2, (1, 1)));
}

#[test]
fn a_grown_hub_is_scanned_whole() {
    let f = Fixture::new(4);
    let hub = f.hub();
    let mut members = vec![hub.attach(100).unwrap()];
    hub.grow().unwrap();
    assert!(hub.is_grown());
    for cpu in 0..4 {
        host::set_cpu(cpu);
        members.push(hub.attach(cpu).unwrap());
    }
    drop(hub);
    assert_eq!(seen(&members[0]), [0, 1, 2, 3, 100]);
    let stopped = members[0].scan(|m| {
        if *m == 2 {
            ControlFlow::Break(*m)
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(stopped, ControlFlow::Break(2));
    members.truncate(1);
    assert_eq!(seen(&members[0]), [100]);
    assert!(members[0].is_sole());
    let back = members[0].hub_ref().unwrap();
    members.clear();
    assert!(back.is_only() && f.counts() == (0, 0));
    drop(back);
    assert_eq!(f.counts(), (1, 0));
    host::set_cpu(0);
    drop(f.epoch);
    assert_eq!(f.drops.load(SeqCst), 1);
}

#[test]
fn hubs_survive_a_crowd() {
    let f = Fixture::new(4);
    let hub = f.hub();
    thread::scope(|s| {
        for cpu in 0..4 {
            let (hub, epoch) = (hub.clone(), &f.epoch);
            s.spawn(move || {
                host::set_cpu(cpu);
                let mut mine: Vec<_> = (0..8).map(|i| hub.attach(cpu * 100 + i).unwrap()).collect();
                drop(hub);
                for i in 0..rounds(2000) {
                    let at = i % mine.len();
                    let old = mine.swap_remove(at);
                    match i % 3 {
                        0 => mine.extend(old.replace([cpu * 100 + i % 7]).ok().unwrap()),
                        1 => mine.push(old.attach_elsewhere(cpu * 100).unwrap()),
                        _ => mine.push(old.attach_beside(cpu * 100).unwrap()),
                    }
                    if i % 200 == 0 {
                        let own = seen(&mine[0]).iter().filter(|m| **m / 100 == cpu).count();
                        // The member that `old` was is detached at the end of each round.
                        assert!(own >= mine.len());
                    }
                    epoch.quiescent(&mut pin());
                    epoch.reclaim(&pin());
                }
                drop(mine);
                epoch.offline(cpu);
            });
        }
        drop(hub);
    });
    assert_eq!(f.last.load(SeqCst), 1);
    f.epoch.drain();
    assert_eq!((f.counts(), f.epoch.pending()), ((1, 1), 0));
}
