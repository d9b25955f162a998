//! Ids: in use as long as anything has them, and given out again without confusion.
#![cfg(not(shuttle))]

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use support::{nap, on, spawn};
use task::ids::{self, Id};
use task::park::{self, Deadline, Interruptible, Step};
use task::wait::WaitQueue;

#[test]
fn no_id_is_given_out_twice() {
    on(2, || {
        let mut seen = HashSet::new();
        let held: Vec<Id> = (0..5000).map(|_| Id::alloc().expect("an id")).collect();
        for id in &held {
            assert!(id.number() > 1 && seen.insert(id.number()));
        }
    });
}

#[test]
fn a_clone_keeps_an_id_in_use() {
    on(1, || {
        let id = Id::alloc().expect("an id");
        let number = id.number();
        let clone = id.clone();
        drop(id);
        let span = ids::span();
        for _ in 0..2 * span {
            assert_ne!(Id::alloc().map(|id| id.number()), Some(number));
        }
        drop(clone);
        let again = (0..2 * span).any(|_| Id::alloc().is_some_and(|id| id.number() == number));
        assert!(again, "nothing has the id any more");
    });
}

#[test]
fn the_span_grows_with_the_ids_in_use() {
    on(1, || {
        let first = ids::span();
        let held: Vec<Id> = (0..first).map_while(|_| Id::alloc()).collect();
        assert!(held.len() as u32 > first - 2 || ids::span() > first);
        let more: Vec<Id> = (0..first).map_while(|_| Id::alloc()).collect();
        assert_eq!(more.len() as u32, first);
        assert!(ids::span() >= 2 * first);
        assert!(ids::live() >= u64::from(2 * first) - 2);
    });
}

#[test]
fn init_is_one_and_is_taken_once() {
    on(1, || {
        let init = Id::take_init();
        assert_eq!(init.as_ref().map(Id::number), Some(1));
        assert!(Id::take_init().is_none());
        drop(init);
        assert!(Id::take_init().is_some());
    });
}

#[test]
fn an_ended_thread_is_not_found() {
    on(2, || {
        let tid = spawn(None, || ());
        support::wait_for_ends(1);
        assert!(ids::hold_thread(tid).is_none());
        assert!(ids::thread(&ksync::pin(), tid).is_none());
    });
}

#[test]
fn all_threads_are_counted() {
    on(2, || {
        let before = ids::threads();
        let go = Arc::new(AtomicU32::new(0));
        for _ in 0..7 {
            let go = go.clone();
            spawn(None, move || {
                while go.load(SeqCst) == 0 {
                    nap(1);
                }
            });
        }
        assert_eq!(ids::threads(), before + 7);
        go.store(1, SeqCst);
        support::wait_for_ends(7);
        assert_eq!(ids::threads(), before);
    });
}

/// A thread that registers with a queue and ends without a wake-up leaves a void registration there. The next thread with the
/// same id must neither be woken by it nor lose a wake-up that it swallows.
#[test]
fn a_reused_id_inherits_no_registration() {
    on(1, || {
        // Its id comes before the one that is to be reused, and is free then.
        spawn(None, || ());
        let queue = Arc::new(WaitQueue::new());
        let theirs = queue.clone();
        let first = spawn(None, move || {
            let step = |queue: &mut Arc<WaitQueue>, waiter: &mut task::wait::Waiter| {
                waiter.listen(queue);
                Step::<()>::Wait
            };
            let soon = Deadline::after(1_000_000);
            let mut queue = theirs;
            let ended = park::park(&mut queue, soon, Interruptible::No, step);
            assert!(ended.is_err());
        });
        support::wait_for_ends(2);
        // Until its id is free again, and is the next one to be given out.
        let next_is_first = || {
            let next = Id::alloc().expect("an id").number();
            next + 1 == first
        };
        for _ in 0..3 {
            nap(10);
        }
        let mut tries = 0;
        while !next_is_first() {
            tries += 1;
            assert!(tries < 200_000, "the id does not come again");
        }
        let (woken, theirs) = (Arc::new(AtomicU32::new(0)), queue.clone());
        let count = woken.clone();
        let second = spawn(None, move || {
            let step = |state: &mut (Arc<WaitQueue>, Arc<AtomicU32>, u32),
                        waiter: &mut task::wait::Waiter| {
                waiter.listen(&state.0);
                state.2 += 1;
                match state.1.load(SeqCst) {
                    0 => Step::Wait,
                    _ => Step::Done(state.2),
                }
            };
            let mut state = (theirs, count, 0);
            let runs = park::park(&mut state, Deadline::Never, Interruptible::No, step);
            assert_eq!(runs, Ok(2), "one wake-up, and no spurious one");
        });
        assert_eq!(second, first, "the test is about a reused id");
        nap(1);
        woken.store(1, SeqCst);
        assert!(
            queue.wake_one(),
            "the void registration swallows the wake-up"
        );
        support::wait_for_ends(3);
    });
}
