//! Sleeps: what ends one and what does not, and which sleeper a wake-up reaches.
#![cfg(not(shuttle))]

mod gate;
mod processes;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use gate::Gate;
use processes::{
    MS, compute, ended, interrupt, kill, make, nap, nap_until, on, spawn, take_signal,
    wait_for_ends,
};
use task::ids::{self, Id};
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use task::time::monotonic_ns;
use task::wait::{WaitQueue, Waiter};
use task::{current, sched};
use vm_host::random::Random;

/// A step that passes the gate. Its first run finds the gate closed, and the permission comes before the sleep.
fn admitted_late(gate: &mut &Gate, waiter: &mut Waiter) -> Step<()> {
    waiter.listen(&gate.queue);
    let taken = gate.take();
    if gate.runs() == 1 {
        assert!(gate.admit());
    }
    taken
}

/// Starts a thread that passes the gate and then stores the result.
fn sleeper(gate: &Arc<Gate>, until: Deadline, kind: Interruptible) -> (u32, Arc<Mutex<Ended>>) {
    let ended = Arc::new(Mutex::new(None));
    let (theirs, result) = (gate.clone(), ended.clone());
    let tid = spawn(None, move || {
        let passed = theirs.pass(until, kind);
        *result.lock().expect("not poisoned") = Some(passed);
    });
    nap(1);
    (tid, ended)
}

type Ended = Option<Result<(), ParkError>>;

fn result(ended: &Mutex<Ended>) -> Ended {
    *ended.lock().expect("not poisoned")
}

#[test]
fn a_wake_up_between_the_test_and_the_sleep_is_not_lost() {
    on(1, || {
        let gate = Gate::default();
        let passed = park::park(
            &mut &gate,
            Deadline::Never,
            Interruptible::No,
            admitted_late,
        );
        assert_eq!((passed, gate.runs()), (Ok(()), 2));
    });
}

#[test]
fn a_second_wake_up_of_one_sleep_finds_nobody() {
    on(1, || {
        let gate = Arc::new(Gate::default());
        let (_, ended) = sleeper(&gate, Deadline::Never, Interruptible::No);
        let pin = ksync::pin();
        assert!(gate.admit());
        assert!(!gate.queue.wake_one(), "it has been woken");
        assert_eq!(gate.queue.wake_all(), 0);
        drop(pin);
        nap(1);
        assert_eq!((result(&ended), gate.runs()), (Some(Ok(())), 2));
    });
}

#[test]
fn a_sleep_that_has_ended_leaves_no_registration_to_wake() {
    on(1, || {
        let gate = Arc::new(Gate::default());
        let soon = Deadline::after(2 * MS);
        assert_eq!(gate.pass(soon, Interruptible::No), Err(ParkError::Timeout));
        assert!(!gate.queue.wake_one());
        gate.open.store(1, SeqCst);
        assert_eq!(gate.pass(Deadline::Never, Interruptible::No), Ok(()));
        assert_eq!(gate.queue.wake_all(), 0);
    });
}

#[test]
fn a_sleep_on_two_queues_ends_by_either_of_them() {
    on(1, || {
        for by_second in [false, true] {
            let gates = Arc::new([Gate::default(), Gate::default()]);
            let theirs = gates.clone();
            let before = ended();
            spawn(None, move || {
                let step = |gates: &mut Arc<[Gate; 2]>, waiter: &mut Waiter| {
                    gates.iter().for_each(|gate| waiter.listen(&gate.queue));
                    match (gates[0].take(), gates[1].take()) {
                        (Step::Wait, Step::Wait) => Step::Wait,
                        _ => Step::Done(()),
                    }
                };
                let mut gates = theirs;
                let passed = park::park(&mut gates, Deadline::Never, Interruptible::No, step);
                assert_eq!(passed, Ok(()));
            });
            nap(1);
            assert!(gates[usize::from(by_second)].admit());
            nap(1);
            assert_eq!(ended(), before + 1);
            assert!(!gates[usize::from(!by_second)].queue.wake_one());
        }
    });
}

#[test]
fn a_sleeper_that_another_queue_has_woken_is_passed_over() {
    on(1, || {
        let gates = Arc::new([Gate::default(), Gate::default()]);
        let both = gates.clone();
        spawn(None, move || {
            let step = |gates: &mut Arc<[Gate; 2]>, waiter: &mut Waiter| {
                gates.iter().for_each(|gate| waiter.listen(&gate.queue));
                gates[0].take()
            };
            let mut gates = both;
            let passed = park::park(&mut gates, Deadline::Never, Interruptible::No, step);
            assert_eq!(passed, Ok(()));
        });
        nap(1);
        let second = gates.clone();
        spawn(None, move || {
            let passed = second[1].pass(Deadline::Never, Interruptible::No);
            assert_eq!(passed, Ok(()));
        });
        nap(1);
        let pin = ksync::pin();
        assert!(gates[0].admit());
        assert!(gates[1].admit(), "the second thread waits there, too");
        drop(pin);
        wait_for_ends(2);
    });
}

/// More than the queue takes off in one hold of its lock.
#[test]
fn all_sleepers_are_woken_and_counted() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        for _ in 0..50 {
            sleeper(&gate, Deadline::Never, Interruptible::No);
        }
        gate.open.store(50, SeqCst);
        assert_eq!(gate.queue.wake_all(), 50);
        wait_for_ends(50);
        assert_eq!(gate.queue.wake_all(), 0);
    });
}

#[test]
fn no_signal_ends_an_uninterruptible_sleep() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let (tid, ended) = sleeper(&gate, Deadline::Never, Interruptible::No);
        interrupt(tid);
        nap(1);
        kill(tid);
        nap(1);
        assert_eq!(result(&ended), None);
        assert_eq!(gate.runs(), 1, "nor does it run the step");
        gate.admit();
        nap(1);
        assert_eq!(result(&ended), Some(Ok(())));
    });
}

#[test]
fn only_a_kill_ends_a_killable_sleep() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let (tid, ended) = sleeper(&gate, Deadline::Never, Interruptible::Kill);
        interrupt(tid);
        nap(1);
        assert_eq!(result(&ended), None);
        kill(tid);
        nap(1);
        assert_eq!(result(&ended), Some(Err(ParkError::Signal)));
    });
}

#[test]
fn any_signal_ends_an_interruptible_sleep() {
    on(2, || {
        let signals: [fn(u32); 2] = [interrupt, kill];
        for send in signals {
            let gate = Arc::new(Gate::default());
            let (tid, ended) = sleeper(&gate, Deadline::Never, Interruptible::Yes);
            assert_eq!(result(&ended), None);
            send(tid);
            nap(1);
            assert_eq!(result(&ended), Some(Err(ParkError::Signal)));
            assert_eq!(gate.runs(), 1);
        }
    });
}

#[test]
fn a_pending_signal_prevents_the_sleep_but_not_the_step() {
    on(1, || {
        let gate = Gate::default();
        interrupt(current().tid());
        let passed = gate.pass(Deadline::Never, Interruptible::Yes);
        assert_eq!((passed, gate.runs()), (Err(ParkError::Signal), 1));
        gate.open.store(1, SeqCst);
        assert_eq!(gate.pass(Deadline::Never, Interruptible::Yes), Ok(()));
        take_signal();
        let soon = Deadline::after(MS);
        assert_eq!(gate.pass(soon, Interruptible::Yes), Err(ParkError::Timeout));
    });
}

/// A signal that comes after the wake-up does not swallow it: a pipe's other reader would sleep beside its byte.
#[test]
fn a_wake_up_beside_a_signal_runs_the_step_again() {
    on(1, || {
        for signal_first in [false, true] {
            let gate = Arc::new(Gate::default());
            let (tid, ended) = sleeper(&gate, Deadline::Never, Interruptible::Yes);
            let pin = ksync::pin();
            if signal_first {
                interrupt(tid);
            }
            assert!(gate.admit());
            interrupt(tid);
            drop(pin);
            nap(1);
            assert_eq!(result(&ended), Some(Ok(())));
        }
    });
}

/// The wake-up comes after the step has looked, and the thread has a reason not to sleep at all.
#[test]
fn a_wake_up_before_a_sleep_that_does_not_begin_runs_the_step_again() {
    on(1, || {
        let gate = Gate::default();
        let now = Deadline::now();
        let passed = park::park(&mut &gate, now, Interruptible::No, admitted_late);
        assert_eq!((passed, gate.runs()), (Ok(()), 2));
        let gate = Gate::default();
        interrupt(current().tid());
        let passed = park::park(
            &mut &gate,
            Deadline::Never,
            Interruptible::Yes,
            admitted_late,
        );
        assert_eq!((passed, gate.runs()), (Ok(()), 2));
    });
}

#[test]
fn a_wake_up_beside_the_deadline_runs_the_step_again() {
    on(1, || {
        let gate = Arc::new(Gate::default());
        let (_, ended) = sleeper(&gate, Deadline::after(5 * MS), Interruptible::No);
        let pin = ksync::pin();
        // The deadline passes, but the thread does not get the CPU.
        compute(20 * MS);
        assert!(gate.admit());
        drop(pin);
        nap(1);
        assert_eq!(result(&ended), Some(Ok(())));
    });
}

#[test]
fn a_wake_up_without_the_condition_ends_the_sleep_at_its_deadline() {
    on(1, || {
        let gate = Arc::new(Gate::default());
        let until = monotonic_ns() + 10 * MS;
        let (tid, ended) = sleeper(&gate, Deadline::At(until), Interruptible::No);
        for _ in 0..3 {
            assert!(gate.queue.wake_one(), "it registers again");
            nap(1);
            let thread = ids::hold_thread(tid).expect("it sleeps");
            sched::wake(&ksync::pin(), &thread);
            nap(1);
        }
        assert_eq!((result(&ended), gate.runs()), (None, 4));
        nap_until(until + MS);
        assert_eq!(result(&ended), Some(Err(ParkError::Timeout)));
    });
}

#[test]
fn a_sleep_times_out_although_its_step_has_slept() {
    on(1, || {
        let begun = monotonic_ns();
        let until = Deadline::At(begun + 10 * MS);
        let slept: Result<(), _> = park::park(&mut 0, until, Interruptible::No, |runs, _| {
            *runs += 1;
            // The timer of this sleep is the one of the outer sleep.
            if *runs < 3 {
                nap(3);
            }
            Step::Wait
        });
        let took = monotonic_ns() - begun;
        assert_eq!(slept, Err(ParkError::Timeout));
        assert!((10 * MS..11 * MS).contains(&took), "{took}");
        assert!(!current().timer.armed());
    });
}

/// What a step has registered before it slept is void: nothing would wake the thread.
#[test]
fn a_step_that_has_slept_is_run_again_before_the_thread_sleeps() {
    on(2, || {
        let gate = Arc::new(Gate::default());
        let theirs = gate.clone();
        spawn(None, move || {
            nap(5);
            assert!(theirs.admit());
        });
        let step = |gate: &mut &Gate, waiter: &mut Waiter| {
            waiter.listen(&gate.queue);
            let taken = gate.take();
            if gate.runs() == 1 {
                nap(1);
            }
            taken
        };
        let passed = park::park(&mut &*gate, Deadline::Never, Interruptible::No, step);
        assert_eq!((passed, gate.runs()), (Ok(()), 3));
        wait_for_ends(1);
    });
}

#[test]
fn a_sleep_times_out_although_each_run_of_its_step_sleeps() {
    on(1, || {
        let until = Deadline::after(10 * MS);
        let slept: Result<(), _> = park::park(&mut 0, until, Interruptible::No, |runs, _| {
            *runs += 1;
            assert!(*runs < 100, "the sleep goes on after its deadline");
            nap(3);
            Step::Wait
        });
        assert_eq!(slept, Err(ParkError::Timeout));
    });
}

/// The wake-up reaches the thread between its look at the condition, which holds, and the end of its round.
#[test]
fn an_unneeded_wake_up_is_passed_on_once() {
    on(1, || {
        let gate = Arc::new(Gate::default());
        let (_, second) = sleeper(&gate, Deadline::Never, Interruptible::No);
        for woken in [false, true] {
            let mut state = (gate.clone(), woken);
            let step = |state: &mut (Arc<Gate>, bool), waiter: &mut Waiter| {
                // Behind the other sleeper, which is woken first.
                waiter.listen(&state.0.queue);
                if state.1 {
                    assert!(state.0.queue.wake_one());
                    assert!(state.0.admit());
                }
                Step::Done(())
            };
            let pass_on = |state: &mut (Arc<Gate>, bool)| {
                state.0.passed_on.fetch_add(1, SeqCst);
                state.0.queue.wake_one();
            };
            let (never, kind) = (Deadline::Never, Interruptible::No);
            let done = park::park_and_pass_on(&mut state, never, kind, step, pass_on);
            assert_eq!(done, Ok(()));
            assert_eq!(gate.passed_on.load(SeqCst), u32::from(woken));
        }
        nap(1);
        assert_eq!(result(&second), Some(Ok(())));
    });
}

/// Sleepers come, are woken one by one or all at once, time out and are interrupted at random. The queue wakes those that a
/// plain list says, in its order.
#[test]
fn a_queue_wakes_in_the_order_of_a_plain_list() {
    on(1, || {
        let mut random = Random(0x0f1f0);
        let queue = Arc::new(WaitQueue::new());
        let woken = Arc::new(Mutex::new(Vec::new()));
        let (mut waiting, mut expected) = (VecDeque::new(), Vec::new());
        for _ in 0..1500 {
            match random.below_u64(8) {
                0..=3 => waiting.push_back(listener(&queue, &woken)),
                4 if !waiting.is_empty() => {
                    let gone = waiting.remove(random.below(waiting.len()));
                    gone.into_iter().for_each(interrupt);
                }
                5 if random.one_in(6) => {
                    assert_eq!(queue.wake_all(), waiting.len());
                    let from = expected.len();
                    expected.extend(waiting.drain(..));
                    nap(1);
                    // They are woken in order, but the scheduler decides which one runs first.
                    woken.lock().expect("not poisoned")[from..].sort();
                }
                _ => {
                    let first = waiting.pop_front();
                    assert_eq!(queue.wake_one(), first.is_some());
                    expected.extend(first);
                }
            }
            nap(1);
            assert_eq!(*woken.lock().expect("not poisoned"), expected);
        }
        assert!(expected.len() > 300);
        queue.wake_all();
        nap(5);
    });
}

/// Starts a thread that sleeps on the queue for once, and adds its tid to the list when it is woken. Returns the tid.
fn listener(queue: &Arc<WaitQueue>, woken: &Arc<Mutex<Vec<u32>>>) -> u32 {
    let (queue, woken) = (queue.clone(), woken.clone());
    let tid = spawn(None, move || {
        let step = |state: &mut (Arc<WaitQueue>, u32), waiter: &mut Waiter| {
            waiter.listen(&state.0);
            state.1 += 1;
            if state.1 == 1 {
                Step::Wait
            } else {
                Step::Done(())
            }
        };
        let slept = park::park(&mut (queue, 0), Deadline::Never, Interruptible::Yes, step);
        if slept.is_ok() {
            let mut woken = woken.lock().expect("not poisoned");
            woken.push(current().tid());
        }
    });
    nap(1);
    tid
}

/// A hundred threads with deadlines of their own wait for permissions, which come one by one: none is lost, and none is left
/// while a thread waits.
#[test]
fn timeouts_and_signals_swallow_no_permission() {
    on(4, || {
        let mut random = Random(0x9a7e);
        let gate = Arc::new(Gate::default());
        let passed = Arc::new(AtomicU32::new(0));
        for _ in 0..100 {
            let (theirs, count) = (gate.clone(), passed.clone());
            let first = monotonic_ns() + random.below_u64(20 * MS);
            let until = Deadline::At(first + random.below_u64(20 * MS));
            let tid = spawn(None, move || {
                nap_until(first);
                if theirs.pass(until, Interruptible::Yes).is_ok() {
                    count.fetch_add(1, SeqCst);
                }
            });
            if random.one_in(5) {
                let at = first + random.below_u64(20 * MS);
                spawn(None, move || {
                    nap_until(at);
                    interrupt(tid);
                });
            }
        }
        let mut admitted = 0;
        while admitted < 60 {
            nap_until(monotonic_ns() + random.below_u64(MS));
            gate.admit();
            admitted += 1;
        }
        let last = gate.clone();
        // One that waits for ever gets a permission if there is any.
        let waits = sleeper(&last, Deadline::Never, Interruptible::No).1;
        nap(100);
        let (taken, left) = (passed.load(SeqCst), gate.open.load(SeqCst));
        let mine = u32::from(result(&waits).is_some());
        assert_eq!(taken + mine + left, admitted);
        assert!(left == 0 || mine == 1, "{left} are left beside a sleeper");
        assert!(taken > 20, "{taken}");
        gate.admit();
    });
}

#[test]
fn a_thread_that_runs_is_not_woken() {
    on(1, || {
        let me = current();
        let before = sched::runnable();
        sched::wake(&ksync::pin(), &me);
        assert_eq!(sched::runnable(), before);
        let id = Id::alloc().expect("an id");
        let ran = Arc::new(AtomicBool::new(false));
        let theirs = ran.clone();
        let made = make(&id, move || theirs.store(true, SeqCst));
        // A thread that has been made and not started counts as one that runs.
        sched::wake(&ksync::pin(), &made);
        nap(5);
        assert!(!ran.load(SeqCst));
        sched::start(&made);
        drop(made);
        wait_for_ends(1);
        assert!(ran.load(SeqCst));
    });
}
