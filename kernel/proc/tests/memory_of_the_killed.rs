//! A thread that has been killed takes what memory there is, and makes nobody free some for it.
#![cfg(not(shuttle))]

mod memory_users;
mod programs;
mod support;

use hal::uaccess::UserPtr;
use mem::NoMemory;
use memory_users::{ALL, HEAP, begin, in_need, lives, user_of, with_killer};
use proc::wait4::Children;
use programs::{MS, PAGE};
use support::{fork, kill, me, wait};
use task::park::{Deadline, Interruptible, sleep_until};

/// Runs `body` in a process that is killed while memory is low. It stays so for some time after. Another process sleeps, and the
/// killer would choose it: it must not end.
fn killed_in_need(body: impl Fn() + Send + Sync + 'static) {
    with_killer(2, move || {
        let other = user_of(100, 0);
        let killed = fork(move || {
            begin();
            in_need(|| {
                assert!(kill(me().pid(), 9));
                body();
                let _ = sleep_until(Deadline::after(100 * MS), Interruptible::No);
            });
            0
        });
        assert_eq!(wait(Children::Any), Ok((killed, 9)));
        assert!(lives(other));
    });
}

#[test]
fn no_other_process_is_killed_for_an_object_of_a_killed_one() {
    killed_in_need(|| assert_eq!(mem::admit_change(), Err(NoMemory)));
}

#[test]
fn no_other_process_is_killed_for_a_page_of_a_killed_one() {
    killed_in_need(|| {
        // A CPU may have some left.
        let fails = |page| UserPtr::<u32>::new(HEAP + page * PAGE).write(&7).is_err();
        assert!((0..ALL).any(fails));
    });
}
