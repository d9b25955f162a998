//! What others see of a thread: its letter in /proc, its name, and how long it has slept.
#![cfg(not(shuttle))]

mod processes;

use std::sync::Arc;

use processes::{MS, interrupt, nap, on, spawn, wait_for_ends};
use task::park::{self, Deadline, Interruptible, Step};
use task::thread::{comm_from, flag};
use task::time::monotonic_ns;
use task::wait::{WaitQueue, Waiter};
use task::{current, ids};

/// Starts a thread that sleeps until the queue wakes it, or a signal that `kind` allows comes. Returns its tid.
fn sleeper(queue: &Arc<WaitQueue>, kind: Interruptible) -> u32 {
    let queue = queue.clone();
    let tid = spawn(None, move || {
        let step = |state: &mut (Arc<WaitQueue>, u32), waiter: &mut Waiter| {
            waiter.listen(&state.0);
            state.1 += 1;
            match state.1 {
                1 => Step::Wait,
                _ => Step::Done(()),
            }
        };
        let _ = park::park(&mut (queue, 0), Deadline::Never, kind, step);
    });
    nap(1);
    tid
}

fn letter(tid: u32) -> Option<char> {
    ids::hold_thread(tid).map(|thread| thread.state_letter().into())
}

/// proc(5): R is running, S sleeping in an interruptible wait, D in an uninterruptible one, T stopped.
#[test]
fn the_letter_of_a_thread_says_what_it_does() {
    on(1, || {
        assert_eq!(letter(current().tid()), Some('R'));
        let queue = Arc::new(WaitQueue::new());
        let kinds = [
            (Interruptible::Yes, 'S'),
            (Interruptible::Kill, 'D'),
            (Interruptible::No, 'D'),
        ];
        for (kind, shown) in kinds {
            let tid = sleeper(&queue, kind);
            assert_eq!(letter(tid), Some(shown), "{kind:?}");
            let pin = ksync::pin();
            assert!(queue.wake_one());
            assert_eq!(letter(tid), Some('R'), "it is queued");
            drop(pin);
            nap(1);
            assert_eq!(letter(tid), None);
        }
    });
}

/// A wake-up comes between the look at the condition and the sleep.
#[test]
fn a_thread_that_is_woken_before_it_sleeps_is_shown_as_running() {
    on(1, || {
        let step = |state: &mut (WaitQueue, u32), waiter: &mut Waiter| {
            assert_eq!(current().state_letter(), b'R');
            waiter.listen(&state.0);
            state.1 += 1;
            match state.1 {
                1 => {
                    assert!(state.0.wake_one());
                    Step::Wait
                }
                _ => Step::Done(()),
            }
        };
        let mut state = (WaitQueue::new(), 0);
        let woken = park::park(&mut state, Deadline::Never, Interruptible::No, step);
        assert_eq!(woken, Ok(()));
        assert_eq!(current().state_letter(), b'R');
    });
}

/// Among them deadlines that pass while the timer is being armed.
#[test]
fn a_thread_whose_sleep_is_over_at_once_is_shown_as_running() {
    on(1, || {
        for ahead in (0..2000).step_by(10) {
            let _ = park::sleep_until(Deadline::after(ahead), Interruptible::No);
            assert_eq!(current().state_letter(), b'R', "{ahead} ns ahead");
        }
    });
}

#[test]
fn a_sleeper_that_has_been_asked_to_stop_is_shown_as_stopped() {
    on(1, || {
        let queue = Arc::new(WaitQueue::new());
        let tid = sleeper(&queue, Interruptible::Yes);
        let thread = ids::hold_thread(tid).expect("it sleeps");
        thread.set(flag::ATTENTION);
        assert_eq!(letter(tid), Some('T'));
        thread.clear(flag::ATTENTION);
        assert_eq!(letter(tid), Some('S'));
        thread.set(flag::RECLAIM);
        assert_eq!(letter(tid), Some('S'), "another flag");
        drop(thread);
        interrupt(tid);
        wait_for_ends(1);
    });
}

#[test]
fn a_thread_sleeps_since_it_gave_the_cpu_up() {
    on(1, || {
        let queue = Arc::new(WaitQueue::new());
        let tid = sleeper(&queue, Interruptible::No);
        nap(50);
        let thread = ids::hold_thread(tid).expect("it sleeps");
        let now = monotonic_ns();
        assert!(thread.sleeps_since(50 * MS, now));
        assert!(!thread.sleeps_since(55 * MS, now));
        assert!(!current().sleeps_since(0, now), "the caller runs");
        drop(thread);
        queue.wake_all();
        wait_for_ends(1);
    });
}

#[test]
fn a_deadline_says_how_much_time_is_left() {
    on(1, || {
        assert_eq!(Deadline::Never.left(), None);
        assert_eq!(Deadline::now().left(), Some(0));
        assert_eq!(Deadline::after(u64::MAX), Deadline::At(u64::MAX));
        let deadline = Deadline::after(10 * MS);
        nap(4);
        let left = deadline.left().expect("a deadline");
        assert!((5 * MS..=6 * MS).contains(&left), "{left}");
        nap(10);
        assert_eq!(deadline.left(), Some(0));
    });
}

/// prctl(2), PR_SET_NAME: "The name can be up to 16 bytes long, including the terminating null byte."
#[test]
fn a_name_is_cut_to_fifteen_bytes() {
    assert_eq!(&comm_from(b"sh")[..3], b"sh\0");
    let long = comm_from(b"a-name-of-sixteen");
    assert_eq!(&long, b"a-name-of-sixte\0");
    assert_eq!(comm_from(b""), [0; 16]);
    on(1, || {
        let me = current();
        assert_eq!(&me.comm()[..5], b"test\0");
        me.set_comm(b"another");
        assert_eq!(&me.comm()[..8], b"another\0");
        me.set_comm(b"x");
        assert_eq!(me.comm()[..], comm_from(b"x"), "nothing is left of it");
    });
}
