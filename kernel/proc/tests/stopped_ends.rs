//! Stopped processes that end: nothing reports that they were continued.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use proc::exit::exit_group;
use proc::ids;
use proc::signal::sig;
use proc::wait4::Children;
use signals::*;
use support::{exited, fork, nap, on, wait};
use task::park::{Deadline, Interruptible, sleep_until};

#[test]
fn a_stopped_process_that_is_killed_is_not_continued() {
    on(1, || {
        let pid = idler();
        stop(pid);
        // It does not run in between.
        kill_pid(pid, sig::KILL).expect("a child");
        kill_pid(pid, sig::CONT).expect("a child");
        assert_eq!(poll_event(Children::Any), None);
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(sig::KILL))));
    });
}

#[test]
fn a_stopped_process_that_exits_is_not_continued() {
    on(2, || {
        let pid = fork(|| {
            // It looks at no signal while the parent does, so the process does not end before.
            thread(|| {
                let _ = sleep_until(Deadline::after(300_000_000), Interruptible::No);
            });
            let stopped = thread(|| idle());
            until_asleep(stopped);
            tkill(stopped, sig::STOP).expect("a thread");
            nap(20);
            exit_group(5)
        });
        until(|| ids::find_process(pid).is_some_and(|p| p.is_ending()));
        kill_pid(pid, sig::CONT).expect("a child");
        assert_eq!(poll_event(Children::Any), None);
        assert_eq!(wait(Children::Any), Ok((pid, exited(5))));
    });
}
