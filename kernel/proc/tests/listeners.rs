//! Queues of what listens to a process: to its end, and to its signals.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::atomic::Ordering::SeqCst;

use proc::process::Process;
use proc::signal::{self, SigSet};
use proc::wait4::Children;
use proc::{SignalExt, exit, ids};
use programs::{count, thread, with_memory};
use support::{fork, kill, nap, wait};
use task::current::current;
use task::park::{Deadline, Interruptible, Step, park};

const USR1: u8 = 10;
const KILL: u8 = 9;

/// Sleeps until `done`; returns how often it has looked.
fn listen(
    p: &Process,
    queue: fn(&Process) -> &task::wait::WaitQueue,
    done: impl Fn(&Process) -> bool,
) -> u32 {
    let done: &dyn Fn(&Process) -> bool = &done;
    let mut state = (p, queue, done, 0);
    let (deadline, signals) = (Deadline::after(1_000_000_000), Interruptible::Kill);
    park(
        &mut state,
        deadline,
        signals,
        |(p, queue, done, looks), waiter| {
            waiter.listen(queue(p));
            *looks += 1;
            if done(p) { Step::Done(()) } else { Step::Wait }
        },
    )
    .expect("the end comes before the deadline");
    state.3
}

/// A child that blocks a signal and sleeps until it is killed.
fn sleeper() -> u32 {
    fork(|| {
        current().set_blocked(SigSet::one(USR1));
        nap(1_000_000);
        0
    })
}

#[test]
fn a_listener_to_the_end_hears_no_signal() {
    with_memory(2, || {
        let pid = sleeper();
        let child = ids::find_process(pid).expect("a child");
        nap(1);
        thread(move || {
            for _ in 0..10 {
                nap(1);
                assert!(kill(pid, USR1));
            }
            nap(1);
            assert!(kill(pid, KILL));
        });
        assert_eq!(listen(&child, exit::ended, exit::has_ended), 2);
        // One that comes after the end finds it.
        assert_eq!(listen(&child, exit::ended, exit::has_ended), 1);
        assert_eq!(wait(Children::Pid(pid)).map(|(pid, _)| pid), Ok(pid));
    });
}

#[test]
fn a_listener_to_signals_hears_each() {
    with_memory(2, || {
        let pid = sleeper();
        let child = ids::find_process(pid).expect("a child");
        nap(1);
        let heard = count();
        let sent = heard.clone();
        thread(move || {
            for _ in 0..10 {
                nap(1);
                sent.fetch_add(1, SeqCst);
                assert!(kill(pid, USR1));
            }
        });
        let looks = listen(&child, signal::arrivals, |_| heard.load(SeqCst) == 10);
        assert_eq!(looks, 11);
        assert!(kill(pid, KILL));
        assert_eq!(wait(Children::Pid(pid)).map(|(pid, _)| pid), Ok(pid));
    });
}
