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

use ksync::{Epoch, HubRef, HubValue, Member, NewMember, host, pin};

use support::{Dropped, rounds};

/// A hub value that counts its last references and its drops. Hubs of the type may count their members if `MAY`.
struct Value<const MAY: bool> {
    counts: bool,
    last: Arc<AtomicUsize>,
    _dropped: Dropped,
}

impl<const MAY: bool> HubValue for Value<MAY> {
    const MAY_COUNT: bool = MAY;

    fn counts(&self) -> bool {
        self.counts
    }

    fn last(&self) {
        self.last.fetch_add(1, SeqCst);
    }
}

struct Fixture<const MAY: bool> {
    /// Whether its hub only counts its members.
    counts: bool,
    epoch: Epoch,
    last: Arc<AtomicUsize>,
    drops: Arc<AtomicUsize>,
}

/// Runs a test on a hub that lists its members, of a type that always does or that may count; and on one that counts.
fn on_each(always: fn(&Fixture<false>), chosen: fn(&Fixture<true>), ncpus: usize) {
    always(&Fixture::new(ncpus, false));
    chosen(&Fixture::new(ncpus, false));
    chosen(&Fixture::new(ncpus, true));
}

impl<const MAY: bool> Fixture<MAY> {
    fn new(ncpus: usize, counts: bool) -> Self {
        Self {
            counts,
            epoch: Epoch::new(ncpus),
            last: Arc::default(),
            drops: Arc::default(),
        }
    }

    fn hub(&self) -> HubRef<Value<MAY>, usize> {
        let value = Value {
            counts: self.counts,
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

    fn ends(&self) -> (usize, usize) {
        (self.last.load(SeqCst), self.drops.load(SeqCst))
    }
}

fn seen<const MAY: bool>(hub: &Member<Value<MAY>, usize>) -> Vec<usize> {
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
    fn run<const MAY: bool>(f: &Fixture<MAY>) {
        host::set_cpu(0);
        let hub = f.hub();
        let shows = |member: &_, those: &[usize]| f.counts || seen(member) == those;
        assert!(hub.is_only());
        let a = hub.attach(1).unwrap();
        assert!(!a.is_sole() && !hub.is_only());
        drop(hub);
        assert!(a.is_sole());
        let b = a.attach_beside(2).unwrap();
        assert!(!a.is_sole() && !b.is_sole(), "two in one shard");
        host::set_cpu(1);
        let c = b.attach_elsewhere(NewMember::new(3).unwrap());
        assert!(!a.is_sole() && a.same_hub(&c));
        assert!(shows(&a, &[1, 2, 3]));
        let d = c.attach_beside(4).unwrap();
        assert!(d.detach().is_none(), "the shard has others");
        assert_eq!(f.ends(), (0, 0));
        drop(a);
        assert!(shows(&b, &[2, 3]) && !b.is_sole());
        let [d, e] = b.replace([4, 5]).ok().unwrap();
        assert_eq!((*d, *e), (4, 5));
        assert!(shows(&c, &[3, 4, 5]) && !c.is_sole());
        drop(d);
        assert!(!c.is_sole() && !e.is_sole());
        drop(e);
        assert!(c.is_sole());
        assert_eq!(f.ends(), (0, 0));
        let pin = pin();
        let (value, member) = (c.hub_pinned(&pin), c.pinned(&pin));
        drop(c);
        // At once, except the drop: this CPU may still use it.
        assert_eq!(f.ends(), (1, 0));
        assert_eq!((*member, value.last.load(SeqCst)), (3, 1));
        drop(pin);
        f.tick(5);
        assert_eq!(f.ends(), (1, 1));
        assert_eq!(f.epoch.pending(), 0);
    }
    on_each(run, run, 2);
}

/// A member that moves to its CPU's shard is one of that shard, and of no other.
#[test]
fn a_member_that_has_moved_is_one_of_its_new_shard() {
    fn run<const MAY: bool>(f: &Fixture<MAY>) {
        host::set_cpu(0);
        let hub = f.hub();
        let (a, b) = (hub.attach(1).unwrap(), hub.attach(2).unwrap());
        hub.grow().unwrap();
        drop(hub);
        host::set_cpu(1);
        let c = a.attach_elsewhere(NewMember::new(3).unwrap());
        let unit = b.detach().expect("the first shard is empty");
        assert!(
            unit.end_unless_only().is_ok(),
            "the other shard has its own"
        );
        assert!(!a.is_sole() && !c.is_sole());
        drop(c);
        assert!(a.is_sole());
        let d = a.attach_beside(4).unwrap();
        assert!(a.detach().is_none(), "the shard has another");
        assert!(d.is_sole());
        // Alone in the first shard, and the last to leave it.
        let hub = d.hub_ref().unwrap();
        let [e] = d.replace([5]).ok().unwrap();
        assert!(e.detach().is_some() && f.ends() == (0, 0));
        assert!(hub.is_only());
        let (a, b) = (hub.attach(1).unwrap(), hub.attach(2).unwrap());
        assert!(a.detach().is_none() && b.detach().is_some());
        drop(hub);
        assert_eq!(f.ends(), (1, 0));
        host::set_cpu(0);
    }
    on_each(run, run, 2);
}

/// The only member moves: the shard that it leaves has none.
#[test]
fn an_only_member_that_moves_stays_the_only_one() {
    fn run<const MAY: bool>(f: &Fixture<MAY>) {
        host::set_cpu(0);
        let hub = f.hub();
        let a = hub.attach(1).unwrap();
        hub.grow().unwrap();
        drop(hub);
        host::set_cpu(1);
        let b = a.attach_elsewhere(NewMember::new(2).unwrap());
        drop(b);
        assert!(a.is_sole());
        assert!(a.detach().is_some_and(|hub| hub.is_only()));
        assert_eq!(f.ends(), (1, 0));
        host::set_cpu(0);
    }
    on_each(run, run, 2);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "only counts its members is scanned")]
fn a_hub_that_only_counts_is_not_scanned() {
    host::set_cpu(0);
    let f = Fixture::<true>::new(1, true);
    let hub = f.hub();
    let _never = hub.scan(|_| ControlFlow::<()>::Continue(()));
}

#[test]
fn who_sees_a_member_under_a_pin_sees_it_though_it_is_replaced() {
    let (epoch, drops) = (Epoch::new(1), Arc::new(AtomicUsize::new(0)));
    let fixture = Fixture::<false>::new(1, false);
    host::set_cpu(0);
    let value = Value::<false> {
        counts: false,
        last: fixture.last.clone(),
        _dropped: Dropped(fixture.drops.clone()),
    };
    let hub: HubRef<Value<false>, Dropped> = HubRef::new(&epoch, value).ok().unwrap();
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
    assert_eq!((drops.load(SeqCst), fixture.ends()), (2, (1, 1)));
}

#[test]
fn a_grown_hub_is_scanned_whole() {
    fn stops<const MAY: bool>(member: &Member<Value<MAY>, usize>) {
        let stopped = member.scan(|m| {
            if *m == 2 {
                ControlFlow::Break(*m)
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(stopped, ControlFlow::Break(2));
    }
    fn run<const MAY: bool>(f: &Fixture<MAY>) {
        host::set_cpu(0);
        let hub = f.hub();
        let mut members = vec![hub.attach(100).unwrap()];
        hub.grow().unwrap();
        assert!(hub.is_grown());
        for cpu in 0..4 {
            host::set_cpu(cpu);
            members.push(hub.attach(cpu).unwrap());
        }
        drop(hub);
        assert!(!members[0].is_sole());
        if !f.counts {
            assert_eq!(seen(&members[0]), [0, 1, 2, 3, 100]);
            stops(&members[0]);
        }
        members.truncate(1);
        assert!(f.counts || seen(&members[0]) == [100]);
        assert!(members[0].is_sole());
        let back = members[0].hub_ref().unwrap();
        members.clear();
        assert!(back.is_only() && f.ends() == (0, 0));
        drop(back);
        assert_eq!(f.ends(), (1, 0));
        host::set_cpu(0);
        (1..4).for_each(|cpu| f.epoch.offline(cpu));
        f.epoch.drain();
        assert_eq!(f.ends(), (1, 1));
    }
    on_each(run, run, 4);
}

#[test]
fn hubs_survive_a_crowd() {
    fn run<const MAY: bool>(f: &Fixture<MAY>) {
        let hub = f.hub();
        thread::scope(|s| {
            for cpu in 0..4 {
                let (hub, epoch) = (hub.clone(), &f.epoch);
                s.spawn(move || {
                    host::set_cpu(cpu);
                    let mut mine: Vec<_> =
                        (0..8).map(|i| hub.attach(cpu * 100 + i).unwrap()).collect();
                    drop(hub);
                    for i in 0..rounds(2000) {
                        let at = i % mine.len();
                        let old = mine.swap_remove(at);
                        match i % 3 {
                            0 => mine.extend(old.replace([cpu * 100 + i % 7]).ok().unwrap()),
                            1 => {
                                mine.push(old.attach_elsewhere(NewMember::new(cpu * 100).unwrap()))
                            }
                            _ => mine.push(old.attach_beside(cpu * 100).unwrap()),
                        }
                        if i % 200 == 0 && !f.counts {
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
        assert_eq!((f.ends(), f.epoch.pending()), ((1, 1), 0));
    }
    on_each(run, run, 4);
}
