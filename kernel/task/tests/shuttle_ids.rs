//! Ids that are taken, given back and looked up at once on two CPUs, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p task --release --test shuttle_ids`; `PANTALA_SCHEDULES` says how many schedules each
//! test tries.
#![cfg(shuttle)]

mod processes;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use processes::{
    Stopped, everywhere, explore, interrupt, make, nap, on, spawn, spawn_as, stop_everywhere,
    wait_for_ends,
};
use task::ids::{self, Id};
use task::park::{self, Deadline, Interruptible, Step};
use task::wait::{WaitQueue, Waiter};
use task::{current, sched};

/// A flag with a queue of those that wait for it.
#[derive(Default)]
struct Gate {
    open: AtomicU32,
    queue: WaitQueue,
}

impl Gate {
    fn open(&self) -> bool {
        self.open.store(1, SeqCst);
        self.queue.wake_one()
    }

    fn pass(&self, deadline: Deadline) -> bool {
        self.wait(deadline, Interruptible::No)
    }

    /// False if the time is over, or a signal has come.
    fn wait(&self, deadline: Deadline, signals: Interruptible) -> bool {
        let step = |gate: &mut &Gate, waiter: &mut Waiter| {
            waiter.listen(&gate.queue);
            match gate.open.load(SeqCst) {
                0 => Step::Wait,
                _ => Step::Done(()),
            }
        };
        park::park(&mut &*self, deadline, signals, step).is_ok()
    }
}

/// A thread that waited at the gate has ended, and one waits at the other gate. A third waits behind the dead one, and gets the
/// wake-up.
fn wakes_the_living(gate: &Arc<Gate>, other: &Gate) {
    let theirs = gate.clone();
    spawn(None, move || assert!(theirs.pass(Deadline::Never)));
    gate.open();
    wait_for_ends(2);
    other.open();
    wait_for_ends(3);
}

/// A thread has left a registration behind, and one with its tid sleeps elsewhere. The wake-up is for the thread that waits
/// behind the dead one.
fn a_tid_is_reused() {
    on(2, || {
        let (gate, other) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let id = Id::alloc().expect("an id");
        let theirs = gate.clone();
        spawn_as(&id, move || assert!(!theirs.pass(Deadline::after(50))));
        wait_for_ends(1);
        let elsewhere = other.clone();
        spawn_as(&id, move || assert!(elsewhere.pass(Deadline::Never)));
        wakes_the_living(&gate, &other);
    });
}

#[test]
fn a_reused_tid_swallows_no_wake_up() {
    explore(a_tid_is_reused);
    stop_everywhere(Stopped::Body, a_tid_is_reused);
    stop_everywhere(Stopped::Third, a_tid_is_reused);
}

/// Starts a thread that takes the leader's tid over, and then waits at the gate.
fn spawn_heir(cpu: Option<usize>, leader: u32, gate: &Arc<Gate>) {
    let gate = gate.clone();
    spawn(cpu, move || {
        let me = ids::hold_thread(current().tid()).expect("it runs");
        let take_over = || {
            ids::become_leader(&me, leader, |pin, _| {
                me.set_tid(leader);
                sched::renumbered(pin, leader);
            })
        };
        while !take_over() {
            nap(1);
        }
        drop(me);
        assert!(gate.pass(Deadline::Never));
    });
}

/// As above, where the leader's tid is taken over by the last thread of its process.
fn a_tid_is_taken_over() {
    on(2, || {
        let (gate, other) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
        let id = Id::alloc().expect("an id");
        let (leader, theirs) = (id.number(), gate.clone());
        spawn_as(&id, move || assert!(!theirs.pass(Deadline::after(50))));
        spawn_heir(None, leader, &other);
        wait_for_ends(1);
        wakes_the_living(&gate, &other);
    });
}

#[test]
fn a_tid_that_is_taken_over_swallows_no_wake_up() {
    explore(a_tid_is_taken_over);
    stop_everywhere(Stopped::Body, a_tid_is_taken_over);
    stop_everywhere(Stopped::Third, a_tid_is_taken_over);
}

/// As above, where the leader ends while the other one takes its tid. A thread before the leader had it, too, so the leader's
/// rounds are those that the other one would go on with if it did not know where the leader's end.
#[test]
fn a_thread_that_becomes_leader_as_the_last_one_ends_swallows_no_wake_up() {
    // Of the threads that the body starts, the third.
    vm_host::one_stop::everywhere(Stopped::Third as usize + 1, || {
        on(2, || {
            let (gate, other) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
            let id = Id::alloc().expect("an id");
            let (leader, theirs) = (id.number(), gate.clone());
            spawn_as(&id, || ());
            wait_for_ends(1);
            spawn_as(&id, move || {
                assert!(!theirs.wait(Deadline::Never, Interruptible::Yes));
            });
            spawn_heir(Some(1), leader, &other);
            // The other CPU must get to its work.
            (0..3).for_each(|_| hal::cpu::relax());
            interrupt(leader);
            wait_for_ends(2);
            let theirs = gate.clone();
            spawn(None, move || assert!(theirs.pass(Deadline::Never)));
            nap(1);
            gate.open();
            wait_for_ends(3);
            other.open();
            wait_for_ends(4);
        });
    });
}

/// Two CPUs take ids while others are given back.
#[test]
fn no_id_is_given_out_twice() {
    everywhere(|| {
        on(2, || {
            let shared = Id::alloc().expect("an id");
            let number = shared.number();
            let clone = shared.clone();
            let taken = Arc::new(AtomicU32::new(0));
            let theirs = taken.clone();
            spawn(None, move || {
                drop(clone);
                let mine = Id::alloc().expect("an id");
                assert_ne!(mine.number(), number);
                theirs.store(mine.number(), SeqCst);
                nap(1);
                drop(mine);
            });
            let again = shared.clone();
            drop(shared);
            let mine = Id::alloc().expect("an id");
            assert_ne!(mine.number(), taken.load(SeqCst));
            assert_ne!(mine.number(), number);
            wait_for_ends(1);
            drop(again);
            nap(1);
        });
    });
}

/// A look-up beside a thread's end finds the thread or nothing, and keeps what it has found.
#[test]
fn a_thread_that_ends_is_found_whole_or_not_at_all() {
    everywhere(|| {
        on(2, || {
            let id = Id::alloc().expect("an id");
            let number = id.number();
            let made = make(&id, || ());
            drop(id);
            sched::start(&made);
            drop(made);
            let found = ids::hold_thread(number);
            assert!(found.is_none_or(|thread| thread.tid() == number));
            wait_for_ends(1);
            assert!(ids::hold_thread(number).is_none());
        });
    });
}

/// A wake-up by tid beside the end of the thread and the beginning of another one with the tid.
#[test]
fn a_wake_up_by_tid_meets_a_thread_that_ends() {
    explore(|| {
        on(2, || {
            let gate = Arc::new(Gate::default());
            let id = Id::alloc().expect("an id");
            let (number, theirs) = (id.number(), gate.clone());
            spawn_as(&id, move || {
                theirs.pass(Deadline::after(100));
            });
            let pin = ksync::pin();
            if let Some(thread) = ids::thread(&pin, number) {
                sched::wake(&pin, thread);
            }
            drop(pin);
            gate.queue.wake_all();
            wait_for_ends(1);
            let theirs = gate.clone();
            spawn_as(&id, move || assert!(theirs.pass(Deadline::Never)));
            gate.open();
            wait_for_ends(2);
        });
    });
}
