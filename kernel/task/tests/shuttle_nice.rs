//! Two threads that change how much CPU time a third one gets, with a switch possible at every access to an atomic: what is in force is
//! what is shown.
#![cfg(shuttle)]

mod support;

use std::sync::Arc;

use support::{Stopped, on, spawn, stop_everywhere, wait_for_ends};
use task::current::current;
use task::ids;
use task::sched::{self, Policy};
use task::thread::{Thread, flag};

/// Lets another thread make `change` to this one, while this one makes `own`. Then weight is lent to this one exactly if it has less than
/// that of nice 0, as `is_less` says.
fn changed_by_two(change: fn(&Thread), own: fn(&Thread), is_less: fn(&Thread) -> bool) {
    stop_everywhere(Stopped::Other, move || {
        on(2, move || {
            let me: Arc<Thread> = ids::hold_thread(current().tid()).expect("it runs");
            let theirs = me.clone();
            spawn(None, move || change(&theirs));
            own(&me);
            wait_for_ends(1);
            sched::lend(&ksync::pin(), &me);
            assert_eq!(me.has(flag::LENT), is_less(&me));
        });
    });
}

#[test]
fn a_thread_has_the_weight_of_its_nice_value() {
    changed_by_two(|t| t.set_nice(19), |t| t.set_nice(0), |t| t.nice() > 0);
}

#[test]
fn a_thread_has_the_weight_of_its_policy() {
    changed_by_two(
        |t| t.set_policy(Policy::Idle, false),
        |t| t.set_policy(Policy::Other, false),
        |t| t.policy() == Policy::Idle,
    );
}
