//! Two threads that wait for one child, with a switch possible at every access to an atomic.
#![cfg(shuttle)]

mod models;
mod programs;
mod support;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use models::{Body, Model, at_random, everywhere};
use proc::signal::{Action, set_action, sig};
use proc::wait4::{Children, WaitError};
use support::{exited, fork, me, wait};

/// Threads that wait, by whether they got the child or none.
#[derive(Clone, Default)]
struct Seen {
    child: Arc<AtomicU32>,
    got: Arc<AtomicU32>,
    none: Arc<AtomicU32>,
}

impl Seen {
    fn waiter(&self, by_pid: bool) -> Body {
        let seen = self.clone();
        Arc::new(move || {
            let child = seen.child.load(SeqCst);
            let children = if by_pid {
                Children::Pid(child)
            } else {
                Children::Any
            };
            match wait(children) {
                Ok(report) => {
                    assert_eq!(report, (child, exited(3)));
                    seen.got.fetch_add(1, SeqCst);
                }
                Err(why) => {
                    assert_eq!(why, WaitError::NoChild);
                    seen.none.fetch_add(1, SeqCst);
                }
            }
        })
    }

    fn model(&self, by_pid: bool, discards: bool) -> Model {
        let (seen, counts) = (self.clone(), self.clone());
        Model {
            begin: Arc::new(move || {
                if discards {
                    let ignore = Action {
                        handler: 1,
                        ..Action::default()
                    };
                    set_action(&me(), sig::CHLD, ignore);
                }
                seen.child.store(fork(|| 3), SeqCst);
            }),
            threads: vec![self.waiter(by_pid), self.waiter(by_pid)],
            check: Box::new(move |status| {
                assert_eq!(status, exited(0));
                let got = [counts.got, counts.none].map(|count| count.load(SeqCst));
                assert_eq!(got, if discards { [0, 2] } else { [1, 1] });
            }),
        }
    }
}

fn for_any() -> Model {
    Seen::default().model(false, false)
}

fn for_one() -> Model {
    Seen::default().model(true, false)
}

fn discarded() -> Model {
    Seen::default().model(false, true)
}

#[test]
fn a_child_is_reported_to_one_of_two_threads_that_wait_for_any() {
    everywhere(for_any);
    at_random(for_any);
}

#[test]
fn a_child_is_reported_to_one_of_two_threads_that_wait_for_it() {
    everywhere(for_one);
    at_random(for_one);
}

#[test]
fn two_threads_that_wait_for_a_discarded_child_find_none() {
    everywhere(discarded);
    at_random(discarded);
}
