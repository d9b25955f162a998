//! Kills that meet forks, exits and waits, with a switch possible at every access to an atomic.
#![cfg(shuttle)]

mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use proc::UserThreadExt;
use proc::signal::{self, SigInfo, code, sig};
use proc::wait4::Children;
use support::{exited, fork, nap, on, user_mode, wait};
use task::ids;

/// The tasks of the model checker: the test, two CPUs' first threads, the boot thread, init, and what init makes.
const INIT: usize = 4;

/// A kill that finds the child's thread while it is being made ends the child.
#[test]
fn a_kill_reaches_a_child_that_is_being_made() {
    /// Schedules in which the kill found the child.
    static KILLS: AtomicUsize = AtomicUsize::new(0);
    let schedules = vm_host::one_stop::everywhere(INIT, || {
        on(2, || {
            let sent = Arc::new(AtomicU32::new(0));
            // Ids are given out in order.
            let next = Arc::new(AtomicU32::new(u32::MAX));
            let (theirs, target) = (sent.clone(), next.clone());
            let killer = fork(move || {
                let tid = target.load(SeqCst);
                if let Some(thread) = ids::hold_thread(tid) {
                    let info = SigInfo::user(sig::KILL, code::USER, 1, 0);
                    signal::send_process(thread.process(), info);
                    theirs.store(1, SeqCst);
                }
                0
            });
            next.store(killer + 1, SeqCst);
            let doomed = sent.clone();
            let child = fork(move || {
                for _ in 0..3 {
                    let killed = doomed.load(SeqCst) == 1;
                    user_mode();
                    assert!(!killed, "a process that was killed returns to user mode");
                    nap(1);
                }
                5
            });
            let (_, first) = wait(Children::Pid(killer)).expect("a child");
            assert_eq!(first, exited(0));
            let (_, status) = wait(Children::Pid(child)).expect("a child");
            let killed = sent.load(SeqCst) == 1;
            KILLS.fetch_add(usize::from(killed), SeqCst);
            assert_eq!(status == u32::from(sig::KILL), killed, "status {status:#x}");
        });
    });
    let kills = KILLS.load(SeqCst);
    assert!(
        kills > 0 && kills < schedules,
        "{kills} of {schedules} kills found a child"
    );
}
