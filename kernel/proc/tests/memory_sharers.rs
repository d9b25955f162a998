//! Victims that are more than one process: those that share a space, and those of one group.
#![cfg(not(shuttle))]

mod memory_users;
mod programs;
mod support;

use std::sync::atomic::Ordering::SeqCst;

use abi::raw::general as raw;
use memory_users::{
    ALL, KILLED, begin, find, lives, map_heap, stay, stay_on, touch, user_of, with_killer,
};
use proc::ids;
use proc::wait4::Children;
use programs::{count, take_memory, until, until_asleep};
use support::{clone, exited, fork, me, nap, wait};
use task::time::{SECOND, monotonic_ns};

/// Touches pages until there are no more: the caller is then killed.
fn use_all() -> u8 {
    for page in 0..ALL {
        if !touch(page) {
            stay();
        }
    }
    0
}

/// Waits until the process has ended, but not longer than three seconds; returns whether it has.
fn ends_soon(pid: u32) -> bool {
    let latest = monotonic_ns() + 3 * SECOND;
    until(|| !lives(pid) || monotonic_ns() > latest);
    !lives(pid)
}

/// The memory is free when the last of those that share it has ended. Until then no other is killed, however long another waits.
#[test]
fn a_process_that_shares_the_memory_of_a_victim_is_killed_and_waited_for() {
    with_killer(2, || {
        let other = user_of(50, 0);
        let sharer = count();
        let theirs = sharer.clone();
        let hog = fork(move || {
            begin();
            let made = clone(raw::CLONE_VM.into(), || stay_on(2000));
            theirs.store(made.expect("a child"), SeqCst);
            use_all()
        });
        until(|| sharer.load(SeqCst) != 0);
        let sharer = sharer.load(SeqCst);
        let patient = fork(move || {
            begin();
            me().set_oom_adj(-1000, true);
            until(|| find(hog).is_ending());
            u8::from((0..ALL).all(|page| !lives(sharer) || touch(page)))
        });
        assert_eq!(wait(Children::Pid(patient)), Ok((patient, exited(1))));
        for pid in [hog, sharer] {
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, KILLED)));
        }
        assert!(lives(other));
    });
}

/// Whether a process is a victim is asked once more while the others are dying.
#[test]
fn a_process_that_joins_a_group_of_victims_is_killed_with_it() {
    with_killer(2, || {
        let late = count();
        let theirs = late.clone();
        let founder = fork(move || {
            take_memory();
            let members: Vec<u32> = (0..12)
                .map(|_| {
                    fork(|| {
                        map_heap();
                        (0..100).for_each(|page| assert!(touch(page)));
                        stay_on(300)
                    })
                })
                .collect();
            let last = members[11];
            let joins = fork(move || {
                me().set_oom_adj(-1000, true);
                until(|| find(last).is_ending());
                me().set_oom_adj(0, true);
                stay()
            });
            members.into_iter().for_each(until_asleep);
            theirs.store(joins, SeqCst);
            stay()
        });
        until(|| late.load(SeqCst) != 0);
        let late = late.load(SeqCst);
        let hog = fork(move || {
            begin();
            me().set_oom_adj(-1000, true);
            let _ = (0..ALL).find(|&page| find(late).is_ending() || !touch(page));
            stay()
        });
        assert!(ends_soon(late));
        nap(100);
        assert!(lives(founder) && lives(hog));
        assert!(ids::find_process(late).is_some());
    });
}
