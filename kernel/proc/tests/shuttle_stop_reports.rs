//! Reports of stops and ends that come while the process ends, with a switch possible at every access to an atomic.
#![cfg(shuttle)]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use proc::exit::exit_thread;
use proc::ids;
use proc::reaper::set_subreaper;
use proc::signal::{SigSet, code, sig};
use proc::wait4::Children;
use signals::*;
use support::{exited, fork, me, on, poll, wait};

/// CPUs of each model.
const CPUS: usize = 3;
/// The task of init: before it are the test, the CPUs' first threads, and the boot thread.
const INIT: usize = 2 + CPUS;

/// Runs `body` as a child of init that blocks SIGCHLD, in each schedule in which one task is stopped once: the one that is
/// made `task` tasks after that child.
fn everywhere(task: usize, body: impl Fn() + Copy + Send + Sync + 'static) {
    vm_host::one_stop::everywhere(INIT + 1 + task, move || {
        on(CPUS, move || {
            run_child(move || {
                block(&[sig::CHLD]);
                body();
            });
        });
    });
}

/// How many threads the process has.
fn threads(pid: u32) -> u32 {
    ids::find_process(pid).map_or(0, |p| p.thread_count())
}

/// The `si_code` of the next SIGCHLD.
fn next_code() -> i32 {
    let info = sigwait(SigSet::one(sig::CHLD), None);
    info.expect("a signal").code
}

/// A child with a thread that leaves without a return to user mode, once it may. Returns its pid, and a word: it holds the tid
/// of that thread, and a 0 that is written there lets the thread leave.
fn child_that_loses_a_thread() -> (u32, Arc<AtomicU32>) {
    let word = Arc::new(AtomicU32::new(0));
    let theirs = word.clone();
    let child = fork(move || {
        let may = Arc::new(AtomicU32::new(1));
        let waits = may.clone();
        let tid = thread(move || {
            until(|| waits.load(SeqCst) == 0);
            exit_thread(0)
        });
        theirs.store(tid, SeqCst);
        until(|| theirs.load(SeqCst) == 0);
        may.store(0, SeqCst);
        idle()
    });
    until(|| word.load(SeqCst) != 0);
    (child, word)
}

/// Waits until the thread has left its CPU for the last time.
fn until_gone(tid: u32) {
    until(|| task::ids::hold_thread(tid).is_none());
}

#[test]
fn a_stop_is_reported_once_when_one_thread_leaves_as_the_other_stops() {
    everywhere(2, || {
        let (child, word) = child_that_loses_a_thread();
        let tid = word.swap(0, SeqCst);
        until(|| threads(child) == 1);
        kill_pid(child, sig::STOP).expect("a child");
        assert_eq!(next_code(), code::CLD_STOPPED);
        until_gone(tid);
        assert!(!pending().has(sig::CHLD), "the stop is reported again");
        assert_eq!(
            poll_event(Children::Pid(child)),
            Some(stopped_by(sig::STOP))
        );
        end(child);
    });
}

/// A child with a thread that leaves once the other one has stopped. Returns the child's pid, and the thread's tid.
fn child_with_a_thread_that_does_not_stop() -> (u32, u32) {
    let tid = Arc::new(AtomicU32::new(0));
    let theirs = tid.clone();
    let child = fork(move || {
        let leader = me().pid();
        let leaves = thread(move || {
            until(|| ids::find_thread(leader).is_some_and(|t| t.state_letter() == b'T'));
            exit_thread(0)
        });
        theirs.store(leaves, SeqCst);
        idle()
    });
    until(|| tid.load(SeqCst) != 0);
    (child, tid.load(SeqCst))
}

/// The thread that leaves completes the stop, which the parent's wait finds before that thread has signalled it.
#[test]
fn a_stop_that_a_wait_has_reported_is_signalled() {
    everywhere(2, || {
        let (child, tid) = child_with_a_thread_that_does_not_stop();
        kill_pid(child, sig::STOP).expect("a child");
        until(|| poll_event(Children::Pid(child)) == Some(stopped_by(sig::STOP)));
        until_gone(tid);
        assert!(pending().has(sig::CHLD), "the signal is lost");
        end(child);
    });
}

/// The thread that leaves reports the stop of those that are left. They are killed meanwhile.
#[test]
fn a_stop_is_not_reported_after_the_process_was_reaped() {
    everywhere(2, || {
        let (child, tid) = child_with_a_thread_that_does_not_stop();
        kill_pid(child, sig::STOP).expect("a child");
        until(|| threads(child) == 1);
        end(child);
        drain(SigSet::one(sig::CHLD));
        until_gone(tid);
        assert!(
            !pending().has(sig::CHLD),
            "a signal about a process that was reaped"
        );
    });
}

#[test]
fn a_continuation_is_not_reported_after_the_process_was_reaped() {
    everywhere(2, || {
        let child = idler();
        stop(child);
        drain(SigSet::one(sig::CHLD));
        let sender = fork(move || {
            kill_pid(child, sig::CONT).expect("a process of the same user");
            0
        });
        until(|| poll_event(Children::Pid(child)) == Some(continued()));
        end(child);
        let seen = drain(SigSet::one(sig::CHLD));
        assert!(seen.len() <= 1);
        until(|| ids::find_process(sender).is_some_and(|p| p.is_zombie()));
        let late = drain(SigSet::one(sig::CHLD));
        assert!(
            late.iter().all(|info| info.code == code::CLD_EXITED),
            "{late:?}"
        );
        assert_eq!(wait(Children::Pid(sender)), Ok((sender, exited(0))));
    });
}

#[test]
fn a_child_is_reaped_when_the_signal_about_its_end_is_pending() {
    everywhere(1, || {
        let child = fork(|| 0);
        until(|| poll() == Ok(Some(child)));
        assert!(
            pending().has(sig::CHLD),
            "it comes after the child was reaped"
        );
    });
}

#[test]
fn an_orphan_is_reaped_when_the_signal_about_its_end_is_pending() {
    everywhere(1, || {
        set_subreaper(&me(), true);
        let parent = fork(|| {
            let zombie = fork(|| 0);
            until(|| ids::find_process(zombie).is_some_and(|p| p.is_zombie()));
            0
        });
        until(|| matches!(poll(), Ok(Some(pid)) if pid != parent));
        assert!(
            pending().has(sig::CHLD),
            "it comes after the orphan was reaped"
        );
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
    });
}
