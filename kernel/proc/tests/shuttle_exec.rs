//! An execve that meets the end of its process, a kill, and a thread that is being made, with a switch possible at every access
//! to an atomic.
#![cfg(shuttle)]

mod models;
mod programs;
mod support;

use std::sync::Arc;

use cred::SetIds;
use hal::UserFrame;
use ksync::atomic::{AtomicBool, Ordering::SeqCst};
use models::{Body, Model, at_random, everywhere};
use proc::exec::{self, ExecFailed};
use proc::fork::CloneArgs;
use proc::signal::sig;
use proc::wait4::Children;
use proc::{exit, ids};
use programs::{THREAD, after_exec, clone_thread, loaded, take_memory, thread};
use support::{exited, fork, kill, me, on, user_mode, wait};
use task::current::current;
use task::thread::comm_from;

/// A thread that executes a program, which exits with status 1. `begun` tells that the program has begun.
fn executes(begun: &Arc<AtomicBool>) -> Body {
    let begun = begun.clone();
    Arc::new(move || {
        let (program, after) = (loaded(), after_exec(SetIds::default()));
        let mut frame = UserFrame::default();
        match exec::commit(program, b"program", after, &mut frame) {
            Ok(()) => {
                begun.store(true, SeqCst);
                assert_eq!(me().thread_count(), 1);
                assert_eq!(current().tid(), me().pid());
                user_mode();
                exit::exit_group(1)
            }
            Err(why) => {
                assert_eq!(why, ExecFailed::Dying);
                user_mode();
                panic!("a thread whose process has ended goes on")
            }
        }
    })
}

/// The file of the program, and memory.
fn begin() -> Body {
    Arc::new(take_memory)
}

/// The old program does not go on once the new one has begun.
fn old_program(begun: &AtomicBool) {
    user_mode();
    assert!(!begun.load(SeqCst), "the old program goes on");
}

fn exec_and_exit() -> Model {
    let begun = Arc::new(AtomicBool::new(false));
    let theirs = begun.clone();
    let exits: Body = Arc::new(move || {
        old_program(&theirs);
        exit::exit_group(2)
    });
    Model {
        begin: begin(),
        threads: vec![executes(&begun), exits],
        check: Box::new(move |status| {
            let right = if begun.load(SeqCst) { 1 } else { 2 };
            assert_eq!(status, exited(right));
        }),
    }
}

#[test]
fn an_execve_beside_an_exit_of_the_group_either_runs_or_dies() {
    everywhere(exec_and_exit);
    at_random(exec_and_exit);
}

fn exec_and_kill() -> Model {
    let begun = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicBool::new(false));
    let (theirs, tells) = (begun.clone(), sent.clone());
    let kills: Body = Arc::new(move || {
        old_program(&theirs);
        assert!(kill(me().pid(), sig::KILL));
        tells.store(true, SeqCst);
    });
    Model {
        begin: begin(),
        threads: vec![executes(&begun), kills],
        check: Box::new(move |status| {
            let killed = status == u32::from(sig::KILL);
            assert!(killed || status == exited(1), "status {status:#x}");
            assert!(killed || !sent.load(SeqCst), "a kill is lost");
            assert!(killed || begun.load(SeqCst));
        }),
    }
}

#[test]
fn a_kill_beside_an_execve_is_not_lost() {
    everywhere(exec_and_kill);
    at_random(exec_and_kill);
}

fn exec_and_clone() -> Model {
    let begun = Arc::new(AtomicBool::new(false));
    let theirs = begun.clone();
    let clones: Body = Arc::new(move || {
        let args = CloneArgs {
            flags: THREAD,
            ..CloneArgs::default()
        };
        let begun = theirs.clone();
        let _ = clone_thread(args, move || {
            old_program(&begun);
            0
        });
        old_program(&theirs);
    });
    Model {
        begin: begin(),
        threads: vec![executes(&begun), clones],
        check: Box::new(|status| assert_eq!(status, exited(1))),
    }
}

#[test]
fn a_thread_that_is_made_beside_an_execve_does_not_outlive_the_program() {
    everywhere(exec_and_clone);
    at_random(exec_and_clone);
}

fn two_execs() -> Model {
    let begun = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let seen = begun.clone();
    Model {
        begin: begin(),
        threads: begun.iter().map(executes).collect(),
        check: Box::new(move |status| {
            assert_eq!(status, exited(1));
            let [first, second] = seen.map(|begun| begun.load(SeqCst));
            assert!(first != second, "one of two programs runs");
        }),
    }
}

#[test]
fn of_two_execves_one_runs_its_program() {
    everywhere(two_execs);
    at_random(two_execs);
}

/// Another process asks for the name while there is no leader, and while the thread that calls execve becomes the leader.
#[test]
fn the_comm_that_is_read_beside_an_execve_is_one_of_the_two() {
    // The reader is init.
    vm_host::one_stop::everywhere(5, || {
        on(3, || {
            let reads = Arc::new(AtomicBool::new(false));
            let theirs = reads.clone();
            let pid = fork(move || {
                take_memory();
                let reads = theirs.clone();
                let executes = executes(&Arc::default());
                thread(move || {
                    while !reads.load(SeqCst) {
                        hal::cpu::relax();
                    }
                    executes();
                });
                exit::exit_thread(0)
            });
            let process = ids::find_process(pid).expect("it has not been waited for");
            // The clock stands still while one of the two is stopped, so no thread sleeps.
            while process.comm() != comm_from(b"plain") || task::ids::hold_thread(pid).is_some() {
                hal::cpu::relax();
            }
            reads.store(true, SeqCst);
            let name = process.comm();
            assert!([comm_from(b"plain"), comm_from(b"program")].contains(&name));
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(1))));
        });
    });
}
