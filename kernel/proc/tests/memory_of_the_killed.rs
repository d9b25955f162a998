//! A thread that has been killed takes what memory there is, and makes nobody free some for it. Nor does it make others need more.
#![cfg(not(shuttle))]

mod memory_users;
mod programs;
mod support;

use std::sync::atomic::Ordering::SeqCst;

use hal::uaccess::UserPtr;
use mem::NoMemory;
use memory_users::{ALL, HEAP, KILLED, begin, in_need, lives, user_of, with_killer};
use proc::fork::ForkError;
use proc::wait4::Children;
use programs::{MS, PAGE, count, next};
use support::{clone, exited, fork, kill, me, nap, wait};
use task::current::current;
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

/// A member of the group that has taken SIGKILL may be in the middle of fork(2): what it makes would be one more to kill.
#[test]
fn members_of_a_group_that_is_killed_make_no_children() {
    const MEMBERS: usize = 12;
    with_killer(2, || {
        let refused = count();
        let theirs = refused.clone();
        let founder = fork(move || {
            begin();
            for _ in 0..MEMBERS {
                let refused = theirs.clone();
                fork(move || {
                    for page in 0..ALL {
                        // Not back to user mode, where it would end.
                        let written = UserPtr::<u32>::new(HEAP + page * PAGE).write(&7);
                        if written.is_err() || current().signal_pending() {
                            break;
                        }
                        nap(1);
                    }
                    if clone(0, || 0) == Err(ForkError::Again) {
                        next(&refused);
                    }
                    0
                });
            }
            for _ in 0..MEMBERS {
                assert!(matches!(wait(Children::Any), Ok((_, KILLED))));
            }
            0
        });
        assert_eq!(wait(Children::Pid(founder)), Ok((founder, exited(0))));
        assert_eq!(refused.load(SeqCst) as usize, MEMBERS);
    });
}
