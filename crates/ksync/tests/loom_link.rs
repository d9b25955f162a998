//! Links of a tree whose nodes are linked and unlinked: every order that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ksync --release --test loom_link`
#![cfg(loom)]
#![expect(
    unsafe_code,
    reason = "the models watch a raw cell, to see races that the links must prevent"
)]

mod model;

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ksync::{Epoch, EpochLink, Part, close_all, fence_after_rmw, pin};
use loom::{cell::UnsafeCell, sync::Arc, thread};
use model::{Target, model, spawn};

fn target() -> Box<Target> {
    Box::new(Target::new().0)
}

/// State that the CPUs share. They take turns, which order nothing.
#[derive(Clone)]
struct World {
    turn: StdArc<AtomicUsize>,
    epoch: Arc<Epoch>,
    link: Arc<EpochLink<u32>>,
    /// Written before the first target is unlinked.
    before: Arc<UnsafeCell<u32>>,
}

// SAFETY: loom checks all accesses to the cell.
unsafe impl Send for World {}

impl World {
    fn new() -> World {
        let link = EpochLink::new();
        link.load_or_set(&pin(), Box::new(1));
        World {
            turn: StdArc::default(),
            epoch: Arc::new(Epoch::new(3)),
            link: Arc::new(link),
            before: Arc::new(UnsafeCell::new(0)),
        }
    }

    fn take(&self, n: usize, step: impl FnOnce()) {
        while self.turn.load(SeqCst) < n {
            thread::yield_now();
        }
        step();
        self.turn.store(n + 1, SeqCst);
    }

    fn unlink(&self) {
        // SAFETY: read only by threads that have seen what follows; loom checks it.
        self.before.with_mut(|n| unsafe { *n = 1 });
        let pin = pin();
        let target = self.link.load(&pin).expect("linked");
        self.link.unlink(&self.epoch, &pin, target);
    }

    fn look(&self) {
        // SAFETY: as above.
        assert_eq!(self.before.with(|n| unsafe { *n }), 1);
    }
}

/// CPU 0 unlinks the first target; then CPUs 1 and 2 do something.
fn after_an_unlink(first: fn(&World), second: fn(&World)) {
    model(0, move || {
        let world = World::new();
        let others = [(1, first), (2, second)].map(|(cpu, act)| {
            let world = world.clone();
            spawn(cpu, move || world.take(cpu, || act(&world)))
        });
        world.take(0, || world.unlink());
        others.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn all_who_set_a_target_find_one_whole() {
    model(3, || {
        let link = Arc::new(EpochLink::new());
        let other = spawn(1, {
            let link = link.clone();
            move || link.load_or_set(&pin(), target()).expect("open").look()
        });
        let pin = pin();
        link.load(&pin).into_iter().for_each(Target::look);
        link.load_or_set(&pin, target()).expect("open").look();
        other.join().unwrap();
    });
}

/// A CPU whose section began before still uses the unlinked target.
#[test]
fn a_target_outlives_the_sections_that_found_it() {
    model(0, || {
        let turn = StdArc::new(AtomicUsize::new(0));
        let take = |n: usize, turn: &AtomicUsize| {
            while turn.load(SeqCst) < n {
                thread::yield_now();
            }
        };
        let (epoch, link) = (Arc::new(Epoch::new(2)), Arc::new(EpochLink::new()));
        link.load_or_set(&pin(), target());
        let reader = spawn(1, {
            let (turn, link) = (turn.clone(), link.clone());
            move || {
                let section = pin();
                let found = link.load(&section).expect("linked");
                turn.store(1, SeqCst);
                take(2, &turn);
                found.look();
            }
        });
        take(1, &turn);
        {
            let pin = pin();
            link.unlink(&epoch, &pin, link.load(&pin).expect("linked"));
        }
        for _ in 0..3 {
            epoch.quiescent(&mut pin());
            epoch.reclaim(&pin());
        }
        turn.store(2, SeqCst);
        reader.join().unwrap();
    });
}

#[test]
fn who_finds_a_new_target_sees_what_was_done_before_the_old_one_went() {
    after_an_unlink(
        |world| {
            world.link.load_or_set(&pin(), Box::new(2));
        },
        |world| {
            if world.link.load(&pin()) == Some(&2) {
                world.look();
            }
        },
    );
}

#[test]
fn who_sets_a_target_sees_what_was_done_before_the_old_one_went() {
    after_an_unlink(
        |world| {
            assert!(Part::close(&*world.link));
            Part::open(&*world.link);
        },
        |world| {
            let pin = pin();
            world.link.load_or_set(&pin, Box::new(2));
            fence_after_rmw();
            world.look();
        },
    );
}

/// A node of three links, and the number of threads that have closed it.
struct Node {
    epoch: Epoch,
    links: [EpochLink<u32>; 3],
    closed: AtomicUsize,
}

impl Node {
    fn with(linked: &[usize]) -> Arc<Node> {
        let node = Node {
            epoch: Epoch::new(3),
            links: std::array::from_fn(|_| EpochLink::new()),
            closed: AtomicUsize::new(0),
        };
        linked.iter().for_each(|&at| node.come(at));
        Arc::new(node)
    }

    /// Links a target, unless the node is closed.
    fn come(&self, at: usize) {
        self.links[at].load_or_set(&pin(), Box::new(1));
    }

    /// Unlinks the target, and closes the node if it is empty then.
    fn go(&self, at: usize) {
        let pin = pin();
        if let Some(target) = self.links[at].load(&pin) {
            self.links[at].unlink(&self.epoch, &pin, target);
            if close_all(&self.links, at) {
                self.closed.fetch_add(1, SeqCst);
            }
        }
    }
}

/// However many threads empty it, one of them closes it.
#[test]
fn an_empty_node_is_closed_once() {
    model(3, || {
        let node = Node::with(&[0, 1, 2]);
        let others = [1, 2].map(|at| {
            let node = node.clone();
            spawn(at, move || node.go(at))
        });
        node.go(0);
        others.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(node.closed.load(SeqCst), 1);
    });
}

/// One thread finds a filled part, and another leaves the node to the one that is closing it.
#[test]
fn a_node_is_closed_that_something_comes_to_and_leaves() {
    model(4, || {
        let node = Node::with(&[0]);
        let other = spawn(1, {
            let node = node.clone();
            move || {
                node.come(2);
                node.go(2);
            }
        });
        node.go(0);
        other.join().unwrap();
        assert_eq!(node.closed.load(SeqCst), 1);
    });
}

/// An inserted target is there, or the node is closed.
#[test]
fn nothing_comes_to_a_node_that_goes() {
    model(3, || {
        let node = Node::with(&[0]);
        let other = spawn(1, {
            let node = node.clone();
            move || node.links[2].load_or_set(&pin(), Box::new(1)).is_some()
        });
        node.go(0);
        let came = other.join().unwrap();
        assert_eq!(node.closed.load(SeqCst), usize::from(!came));
        assert_eq!(node.links[2].load(&pin()).is_some(), came);
    });
}

#[test]
fn who_closes_sees_what_was_done_before_the_target_went() {
    after_an_unlink(
        |world| {
            assert!(Part::close(&*world.link));
            world.look();
        },
        |world| assert!(world.link.load_or_set(&pin(), Box::new(2)).is_none()),
    );
}
