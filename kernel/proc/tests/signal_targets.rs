//! Which threads a signal reaches, and which it leaves alone.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::exit::{exit_group, exit_thread};
use proc::signal::{self, SigInfo, SigSet, sig};
use proc::wait4::Children;
use proc::{UserThreadExt, ids};
use signals::*;
use support::{exited, fork, me, nap, on, wait};
use task::kthread;

#[test]
fn a_wait_gets_the_end_of_a_child_whose_maker_has_ended() {
    as_child(|| {
        block(&[sig::CHLD]);
        let own = me().pid();
        thread(move || {
            fork(move || {
                until(|| ids::find_process(own).is_some_and(|p| p.thread_count() == 1));
                0
            });
        });
        // The leader blocks it, so it is kept although it is ignored.
        assert_eq!(await_one(&[sig::CHLD]), sig::CHLD);
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn a_signal_does_not_wake_a_thread_that_blocks_it() {
    as_child(|| {
        let pid = fork(|| {
            block(&[USR1]);
            idle()
        });
        until_asleep(pid);
        let sleeper = ids::find_thread(pid).expect("it sleeps");
        let before = sleeper.times().voluntary;
        for _ in 0..5 {
            kill_pid(pid, USR1).expect("a child");
            nap(1);
        }
        assert_eq!(sleeper.times().voluntary, before);
        end(pid);
    });
}

#[test]
fn a_kernel_thread_takes_no_signal() {
    on(2, || {
        let done = Arc::new(AtomicU32::new(0));
        let theirs = done.clone();
        let sleeps = move || {
            while theirs.load(SeqCst) == 0 {
                nap(1);
            }
        };
        let tid = kthread::spawn("sleeps", None, 0, sleeps).expect("memory for a thread");
        let thread = ids::find_thread(tid).expect("it sleeps");
        signal::send_process(thread.process(), SigInfo::kernel(TERM));
        assert_eq!(tkill(tid, USR1), Ok(()));
        assert!(thread.process().is_kernel());
        assert_eq!(signal::pending(&thread), SigSet(0));
        done.store(1, SeqCst);
        until(|| ids::find_thread(tid).is_none());
    });
}

#[test]
fn the_mask_of_a_leader_that_has_ended_keeps_an_ignored_signal() {
    on(2, || {
        for blocks in [true, false] {
            let pid = fork(move || {
                ignore(USR1);
                thread(move || {
                    block(&[USR1]);
                    until(|| ids::find_thread(me().pid()).is_none());
                    until(|| me().thread_count() == 1);
                    raise(USR1);
                    exit_group(drain_numbers(ALL).len() as u32);
                });
                // The mask of another thread does not count, whenever it ends.
                thread(move || {
                    set_mask(if blocks { SigSet(0) } else { ALL });
                    until(|| ids::find_thread(me().pid()).is_none());
                });
                if blocks {
                    block(&[USR1]);
                }
                exit_thread(0)
            });
            let status = exited(u8::from(blocks));
            assert_eq!(wait(Children::Any), Ok((pid, status)));
        }
    });
}
