//! What is reported of stops where processes end: to parents, to reapers, and to groups that become orphaned.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::exit::exit_group;
use proc::group::setpgid;
use proc::ids;
use proc::reaper::set_subreaper;
use proc::signal::{SigSet, code, sig};
use proc::wait4::Children;
use signals::*;
use support::{exited, fork, me, nap, on, wait};
use task::park::{self, Deadline, Interruptible};

/// Waits until the process `pid`, which has one thread, has stopped. Takes no report.
fn until_stopped(pid: u32) {
    until(|| ids::find_thread(pid).is_some_and(|t| t.state_letter() == b'T'));
}

#[test]
fn a_reaper_is_told_of_an_orphan_that_has_stopped() {
    as_child(|| {
        set_subreaper(&me(), true);
        let reaper = me().pid();
        let stopped = Arc::new(AtomicU32::new(0));
        let theirs = stopped.clone();
        // The end of the orphan's parent is not told to the reaper itself.
        let between = fork(move || {
            let theirs = theirs.clone();
            fork(move || {
                let pid = idler();
                kill_pid(pid, sig::STOP).expect("a child");
                until_stopped(pid);
                theirs.store(pid, SeqCst);
                until_asleep(reaper);
                0
            });
            idle()
        });
        let (pid, event) = next_event(Children::Any);
        assert_eq!((pid, event), (stopped.load(SeqCst), stopped_by(sig::STOP)));
        [pid, between].into_iter().for_each(end);
    });
}

/// On one CPU the thread that exits runs on while the others, which have stopped, have not noticed yet.
#[test]
fn the_exit_of_a_process_that_is_stopping_is_no_stop() {
    on(1, || {
        run_child(|| {
            block(&[sig::CHLD]);
            let pid = fork(|| {
                let leader = me().pid();
                // It is in a call until the other thread has stopped.
                thread(move || {
                    until_stopped(leader);
                    exit_group(3)
                });
                idle()
            });
            nap(2);
            kill_pid(pid, sig::STOP).expect("a child");
            let told = sigwait(SigSet::one(sig::CHLD), None).expect("a signal");
            assert_eq!((told.code, told.signo), (code::CLD_EXITED, sig::CHLD));
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(3))));
        });
    });
}

/// A member that was killed while it was stopped, and cannot end yet, does not make its group a stopped one.
#[test]
fn an_orphaned_group_is_not_hung_up_for_a_member_that_is_ending() {
    as_shell(|| {
        let pids = Arc::new([const { AtomicU32::new(0) }; 2]);
        let theirs = pids.clone();
        let parent = fork(move || {
            let runs = job(|| {
                block(&[sig::HUP]);
                idle()
            });
            let stops = fork(|| {
                let never = Deadline::after(1 << 40);
                thread(move || {
                    // In a call that no signal ends.
                    let _ = park::sleep_until(never, Interruptible::No);
                });
                idle()
            });
            setpgid(stops, runs).expect("a child");
            theirs[0].store(runs, SeqCst);
            theirs[1].store(stops, SeqCst);
            nap(2);
            kill_pid(stops, sig::STOP).expect("a child");
            until_stopped(stops);
            kill_pid(stops, sig::KILL).expect("a child");
            until(|| ids::find_process(stops).is_some_and(|p| p.is_ending()));
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        let [runs, stops] = [0, 1].map(|n: usize| pids[n].load(SeqCst));
        let alive = ids::find_process(stops).expect("it is still in its call");
        assert!(alive.is_ending() && !alive.is_zombie());
        let runs = ids::find_thread(runs).expect("it waits");
        assert!(!proc::signal::pending(&runs).has(sig::HUP));
    });
}
