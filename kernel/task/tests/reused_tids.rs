//! Threads that get the tid of another one: what that one has left in wait queues is not theirs.
#![cfg(not(shuttle))]

mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use processes::{MS, nap, on, spawn, spawn_as, wait_for_ends};
use task::ids::{self, Id};
use task::park::{self, Deadline, Interruptible, Step};
use task::wait::{WaitQueue, Waiter};
use task::{current, sched};

/// A flag, a queue of those that wait for it, and how often a step has run.
#[derive(Default)]
struct Gate {
    open: AtomicU32,
    queue: WaitQueue,
    runs: AtomicU32,
}

impl Gate {
    /// Waits until the gate is open; false if the deadline passes first.
    fn pass(&self, deadline: Deadline) -> bool {
        let step = |gate: &mut &Gate, waiter: &mut Waiter| {
            waiter.listen(&gate.queue);
            gate.runs.fetch_add(1, SeqCst);
            match gate.open.load(SeqCst) {
                0 => Step::Wait,
                _ => Step::Done(()),
            }
        };
        park::park(&mut &*self, deadline, Interruptible::No, step).is_ok()
    }

    /// Opens the gate and wakes one thread.
    fn open(&self) {
        self.open.store(1, SeqCst);
        assert!(self.queue.wake_one());
    }
}

/// A thread waits at `gate` behind what another one has left there. The wake-up is for it, and not for the one that sleeps at
/// `other` with the tid of the one that has gone.
fn wake_behind(gate: &Arc<Gate>, other: &Gate) {
    let (theirs, before) = (gate.clone(), processes::ended());
    let runs = other.runs.load(SeqCst);
    spawn(None, move || assert!(theirs.pass(Deadline::Never)));
    nap(1);
    gate.open();
    nap(1);
    assert_eq!(processes::ended(), before + 1, "the wake-up is swallowed");
    assert_eq!(other.runs.load(SeqCst), runs, "another one is woken");
    other.open();
}

/// The calling thread takes over the tid `leader`; false if a thread has it still.
fn take_over(leader: u32) -> bool {
    let me = ids::hold_thread(current().tid()).expect("it runs");
    ids::become_leader(&me, leader, |pin, _| {
        me.set_tid(leader);
        sched::renumbered(pin, leader);
    })
}

/// A thread listens to a queue, gives up and ends. Another one with its tid sleeps elsewhere.
#[test]
fn what_a_dead_thread_has_left_swallows_no_wake_up() {
    on(1, || {
        let (gate, other) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let id = Id::alloc().expect("an id");
        let theirs = gate.clone();
        spawn_as(&id, move || assert!(!theirs.pass(Deadline::after(MS))));
        wait_for_ends(1);
        let elsewhere = other.clone();
        spawn_as(&id, move || assert!(elsewhere.pass(Deadline::Never)));
        nap(1);
        wake_behind(&gate, &other);
        wait_for_ends(3);
    });
}

/// The second thread takes the tid over, as the last thread of a process does by execve.
#[test]
fn a_thread_that_takes_a_tid_over_inherits_no_registration() {
    on(1, || {
        let (gate, other) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let id = Id::alloc().expect("an id");
        let (leader, theirs) = (id.number(), gate.clone());
        spawn_as(&id, move || {
            // So that it leaves the number of its second round, in which the other thread sleeps later.
            nap(1);
            assert!(!theirs.pass(Deadline::after(3 * MS)));
        });
        let elsewhere = other.clone();
        let old = spawn(None, move || {
            assert!(!take_over(leader), "the leader is in the table");
            nap(10);
            assert!(take_over(leader));
            assert!(elsewhere.pass(Deadline::Never));
        });
        nap(15);
        assert!(ids::hold_thread(old).is_none(), "its old tid names nobody");
        wake_behind(&gate, &other);
        wait_for_ends(3);
        assert!(ids::hold_thread(leader).is_none());
    });
}

/// The tid that a thread had before it took another one over goes to a third thread.
#[test]
fn the_former_tid_of_a_thread_carries_no_registration() {
    on(1, || {
        let (gate, other) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let (first, second) = (Id::alloc().expect("an id"), Id::alloc().expect("an id"));
        let (leader, theirs) = (first.number(), gate.clone());
        let stays = Arc::new(Gate::default());
        let until = stays.clone();
        spawn_as(&second, move || {
            assert!(!theirs.pass(Deadline::after(MS)));
            assert!(take_over(leader));
            assert!(until.pass(Deadline::Never));
        });
        nap(5);
        let elsewhere = other.clone();
        spawn_as(&second, move || assert!(elsewhere.pass(Deadline::Never)));
        nap(1);
        wake_behind(&gate, &other);
        stays.open();
        wait_for_ends(3);
    });
}
