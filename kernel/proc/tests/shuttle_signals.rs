//! Signals that meet waits, masks, actions, stops, forks and ends, with a switch possible at every access to an atomic.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p proc --release --test shuttle_signals`; `PANTALA_SCHEDULES` says how many
//! random schedules each test tries.
#![cfg(shuttle)]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use abi::raw::general::{SA_NOCLDWAIT, SA_RESETHAND};
use ksync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use proc::exit::{exit_group, exit_thread};
use proc::group::setpgid;
use proc::signal::{self, SigSet, code, sig};
use proc::wait4::Children;
use proc::{UserThreadExt, ids};
use signals::*;
use support::{exited, fork, me, nap, on, user_mode, wait};
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, sleep_until};
use vm_host::{one_stop, random_schedules};

/// The tasks of the model checker: the test, two CPUs' first threads, the boot thread, init, and what init makes, in
/// order.
const INIT: usize = 4;
const FIRST: usize = 5;
const SECOND: usize = 6;

/// Runs `test` under random schedules, and under those in which one of `tasks` is stopped once.
fn everywhere(tasks: &[usize], test: impl Fn() + Send + Sync + Copy + 'static) {
    random_schedules::explore(test, random_schedules::asked(100) / 2);
    for &task in tasks {
        one_stop::everywhere(task, test);
    }
}

/// Forks a process that sends `signo` to the caller. Its end sends nothing.
fn send_from_child(signo: u8) {
    let target = me().pid();
    fork_with(0, 0, move || {
        kill_pid(target, signo).expect("the parent lives");
        0
    });
}

/// Sleeps until a signal comes.
fn sleep() -> Result<(), ParkError> {
    sleep_until(Deadline::Never, Interruptible::Yes)
}

#[test]
fn a_wait_gets_the_end_of_a_child_though_its_action_is_to_ignore() {
    everywhere(&[INIT], || {
        on(2, || {
            block(&[sig::CHLD]);
            let pid = fork(|| 3);
            assert_eq!(await_one(&[sig::CHLD]), sig::CHLD);
            assert_eq!(wait(Children::Any), Ok((pid, exited(3))));
        });
    });
}

#[test]
fn a_signal_is_taken_by_the_wait_or_pending_after_its_timeout() {
    /// Waits that timed out, and those that did not.
    static WAITS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    everywhere(&[INIT], || {
        on(2, || {
            block(&[USR1]);
            ignore(USR1);
            let sender = fork_with(0, 0, || {
                let _ = sleep_until(Deadline::after(2000), Interruptible::No);
                kill_pid(1, USR1).expect("init lives");
                0
            });
            let waited = sigwait(SigSet::one(USR1), Some(2000));
            WAITS[usize::from(waited.is_ok())].fetch_add(1, SeqCst);
            until(|| ids::find_process(sender).is_none_or(|p| p.is_zombie()));
            let left = pending() == SigSet::one(USR1);
            assert_eq!(waited.is_err(), left, "{waited:?}");
        });
    });
    assert!(WAITS.iter().all(|n| n.load(SeqCst) > 0), "{WAITS:?}");
}

#[test]
fn each_queued_signal_goes_to_one_of_two_waiters() {
    everywhere(&[FIRST], || {
        on(2, || {
            block(&[RT]);
            let sum = Arc::new(AtomicU32::new(0));
            for _ in 0..2 {
                let sum = sum.clone();
                thread(move || {
                    let info = sigwait(SigSet::one(RT), None).expect("a signal");
                    sum.fetch_add(value_of(&info) as u32, SeqCst);
                });
            }
            for value in [1, 2] {
                queue(1, RT, value).expect("room for a signal");
            }
            join_all();
            assert_eq!((sum.load(SeqCst), pending()), (3, SigSet(0)));
        });
    });
}

#[test]
fn an_ignored_signal_that_a_wait_takes_is_not_another_waits() {
    everywhere(&[FIRST], || {
        on(2, || {
            block(&[RT]);
            ignore(RT);
            let get = || value_of(&sigwait(SigSet::one(RT), None).expect("a signal")) as u32;
            let sum = Arc::new(AtomicU32::new(0));
            let theirs = sum.clone();
            thread(move || {
                theirs.fetch_add(get(), SeqCst);
            });
            for value in [1, 2] {
                queue(1, RT, value).expect("room for a signal");
            }
            // The other one may have got its signal, but not ended its wait yet.
            sum.fetch_add(get(), SeqCst);
            join_all();
            assert_eq!((sum.load(SeqCst), pending()), (3, SigSet(0)));
        });
    });
}

#[test]
fn a_thread_that_would_ignore_a_signal_leaves_it_to_one_that_waits() {
    everywhere(&[FIRST], || {
        on(2, || {
            block(&[sig::URG]);
            let taken = Arc::new(AtomicU32::new(0));
            let theirs = taken.clone();
            thread(move || {
                unblock(&[sig::URG]);
                while theirs.load(SeqCst) == 0 {
                    nap(1);
                    user_mode();
                }
            });
            let waits = thread(move || {
                assert_eq!(await_one(&[sig::URG]), sig::URG);
                taken.store(1, SeqCst);
            });
            until_asleep(waits);
            // Until the thread waits, the other one may well take the signal.
            until(|| !ids::find_thread(waits).is_some_and(|t| t.blocked().has(sig::URG)));
            raise(sig::URG);
            join_all();
        });
    });
}

#[test]
fn a_signal_wakes_another_thread_when_the_first_one_blocks_it() {
    everywhere(&[INIT], || {
        on(2, || {
            catch(USR1);
            block(&[USR1]);
            thread(|| {
                unblock(&[USR1]);
                assert_eq!(sleep(), Err(ParkError::Signal));
                set_mask(ALL);
            });
            unblock(&[USR1]);
            send_from_child(USR1);
            block(&[USR1]);
            join_all();
            assert_eq!(drain_numbers(ALL), [USR1]);
        });
    });
}

#[test]
fn a_signal_wakes_another_thread_when_the_first_one_ends() {
    everywhere(&[FIRST], || {
        on(2, || {
            catch(USR1);
            block(&[USR1]);
            thread(|| {
                unblock(&[USR1]);
                exit_thread(0);
            });
            thread(|| {
                unblock(&[USR1]);
                assert_eq!(sleep(), Err(ParkError::Signal));
                set_mask(ALL);
            });
            raise(USR1);
            join_all();
            assert_eq!(drain_numbers(ALL), [USR1]);
        });
    });
}

#[test]
fn a_signal_beside_a_change_of_the_action_ends_the_process_or_is_kept() {
    /// Processes that were ended, and those that kept the signal.
    static ENDS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    everywhere(&[FIRST], || {
        on(2, || {
            let sent = Arc::new(AtomicU32::new(0));
            let theirs = sent.clone();
            let pid = fork(move || {
                catch(TERM);
                set_mask(ALL);
                until(|| theirs.load(SeqCst) == 1);
                u8::from(drain_numbers(ALL) != [TERM])
            });
            fork(move || {
                kill_pid(pid, TERM).expect("it waits for this");
                sent.store(1, SeqCst);
                0
            });
            let (_, status) = wait(Children::Pid(pid)).expect("a child");
            assert!([exited(0), TERM.into()].contains(&status), "{status:#x}");
            ENDS[usize::from(status == exited(0))].fetch_add(1, SeqCst);
            assert!(wait(Children::Any).is_ok());
        });
    });
    assert!(ENDS.iter().all(|n| n.load(SeqCst) > 0), "{ENDS:?}");
}

#[test]
fn an_ignored_signal_is_not_pending_after_the_change_of_its_action() {
    everywhere(&[FIRST], || {
        on(2, || {
            block(&[TERM, USR2]);
            let pid = fork(|| {
                // It is sent before or after; the first drops it, the second keeps it, since it is blocked.
                assert_eq!(await_one(&[USR2]), USR2);
                ignore(TERM);
                u8::from(pending() != SigSet(0))
            });
            kill_pid(pid, TERM).expect("a child");
            kill_pid(pid, USR2).expect("a child");
            assert_eq!(wait(Children::Any), Ok((pid, exited(0))));
        });
    });
}

/// An action is changed from one that ignores the signal to a handler, and back. The signal ends the process at no moment.
#[test]
fn a_signal_that_is_ignored_or_caught_ends_no_process() {
    everywhere(&[FIRST, SECOND], || {
        on(2, || {
            let turn = Arc::new(AtomicU32::new(0));
            let (theirs, seen) = (turn.clone(), turn.clone());
            let pid = fork(move || {
                ignore(USR1);
                theirs.store(1, SeqCst);
                for _ in 0..2 {
                    catch(USR1);
                    ignore(USR1);
                }
                until(|| theirs.load(SeqCst) == 2);
                0
            });
            fork(move || {
                until(|| seen.load(SeqCst) == 1);
                kill_pid(pid, USR1).expect("it waits for this");
                seen.store(2, SeqCst);
                0
            });
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
            assert!(wait(Children::Any).is_ok());
        });
    });
}

/// A child ends while its parent changes the action of SIGCHLD from one that discards zombies to another such one.
#[test]
fn a_child_of_a_parent_that_discards_zombies_is_none() {
    everywhere(&[SECOND], || {
        on(2, || {
            run_child(|| {
                action(sig::CHLD, 0, SA_NOCLDWAIT.into());
                let turn = Arc::new(AtomicU32::new(0));
                let theirs = turn.clone();
                let pid = fork(move || {
                    theirs.store(1, SeqCst);
                    0
                });
                until(|| turn.load(SeqCst) == 1);
                ignore(sig::CHLD);
                assert!(wait(Children::Pid(pid)).is_err(), "a zombie");
            });
        });
    });
}

#[test]
fn a_process_goes_on_after_a_stop_beside_a_continuation() {
    everywhere(&[FIRST], || {
        on(2, || {
            let pid = fork(|| idle());
            let other = fork(move || {
                kill_pid(pid, sig::CONT).expect("it lives");
                0
            });
            kill_pid(pid, sig::STOP).expect("a child");
            assert_eq!(wait(Children::Pid(other)), Ok((other, exited(0))));
            kill_pid(pid, sig::CONT).expect("a child");
            kill_pid(pid, TERM).expect("a child");
            assert_eq!(wait(Children::Any), Ok((pid, u32::from(TERM))));
        });
    });
}

#[test]
fn a_stop_that_a_continuation_follows_is_over() {
    everywhere(&[FIRST], || {
        on(2, || {
            let pid = fork(|| idle());
            kill_pid(pid, sig::STOP).expect("a child");
            kill_pid(pid, sig::CONT).expect("a child");
            // It gets as far as it does. A stopped process would keep the next one pending.
            nap(1);
            kill_pid(pid, TERM).expect("a child");
            assert_eq!(wait(Children::Any), Ok((pid, u32::from(TERM))));
        });
    });
}

#[test]
fn a_kill_ends_a_process_that_is_about_to_stop() {
    everywhere(&[FIRST], || {
        on(2, || {
            let pid = fork(|| idle());
            let other = fork(move || {
                // The other one may have been reaped.
                let _ = kill_pid(pid, sig::STOP);
                0
            });
            kill_pid(pid, sig::KILL).expect("a child");
            let both = [(); 2].map(|()| wait(Children::Any));
            assert!(both.contains(&Ok((pid, u32::from(sig::KILL)))));
            assert!(both.contains(&Ok((other, exited(0)))));
        });
    });
}

#[test]
fn a_stopped_process_that_is_killed_takes_no_other_signal() {
    everywhere(&[INIT], || {
        on(2, || {
            let pid = fork(|| idle());
            stop(pid);
            tkill(pid, TERM).expect("a child");
            kill_pid(pid, sig::KILL).expect("a child");
            assert_eq!(wait(Children::Any), Ok((pid, u32::from(sig::KILL))));
        });
    });
}

#[test]
fn a_thread_that_is_made_beside_a_stop_stops_too() {
    everywhere(&[SECOND], || {
        on(2, || {
            let (began, count) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let (made, counted) = (began.clone(), count.clone());
            let pid = fork(move || {
                let (made, counted) = (made.clone(), counted.clone());
                // One thread takes the signal while another makes a third.
                thread(move || {
                    let counted = counted.clone();
                    made.store(1, SeqCst);
                    thread(move || {
                        loop {
                            counted.fetch_add(1, SeqCst);
                            nap(1);
                            user_mode();
                        }
                    });
                });
                idle()
            });
            while began.load(SeqCst) == 0 {
                hal::cpu::relax();
            }
            kill_pid(pid, sig::STOP).expect("a child");
            assert_eq!(next_event(Children::Any), (pid, stopped_by(sig::STOP)));
            let before = count.load(SeqCst);
            nap(3);
            assert_eq!(count.load(SeqCst), before);
            end(pid);
        });
    });
}

#[test]
fn a_stop_is_reported_beside_the_end_of_a_thread() {
    everywhere(&[FIRST], || {
        on(2, || {
            let pid = fork(|| {
                thread(|| exit_thread(0));
                idle()
            });
            kill_pid(pid, sig::STOP).expect("a child");
            assert_eq!(next_event(Children::Any), (pid, stopped_by(sig::STOP)));
            end(pid);
        });
    });
}

/// Sends `signo` to a group, one of whose members forks. No process may be left.
fn signal_beside_a_fork(signo: u8) {
    on(2, move || {
        let leader = fork(|| {
            try_fork(|| idle());
            idle()
        });
        setpgid(leader, leader).expect("a child");
        assert_eq!(kill_group(leader, signo), Ok(()));
        assert_eq!(wait(Children::Pid(leader)), Ok((leader, signo.into())));
        // A child that was forked before the group was made is in that of init.
        let mut left = Vec::new();
        ids::each_process(2, |p| {
            left.push((p.pid(), p.pgid()));
            true
        });
        for (pid, pgid) in left {
            match pgid {
                1 => signal::kill_process(&ids::find_process(pid).expect("not reaped")),
                _ => assert!(pgid == leader, "no other group"),
            }
        }
        while wait(Children::Any).is_ok() {}
    });
}

#[test]
fn no_child_escapes_a_kill_of_its_group() {
    everywhere(&[FIRST], || signal_beside_a_fork(sig::KILL));
}

#[test]
fn no_child_escapes_a_signal_that_ends_its_group() {
    everywhere(&[FIRST], || signal_beside_a_fork(sig::QUIT));
}

/// A member that is looked at late forks a child into the part of the group that is looked at early.
#[test]
fn no_child_escapes_that_joins_where_the_signal_has_passed() {
    everywhere(&[INIT], || {
        on(2, || {
            let steps = Arc::new(AtomicU32::new(0));
            let (theirs, now) = (steps.clone(), steps.clone());
            let reach = move |step| until(|| now.load(SeqCst) >= step);
            let leader = fork(move || {
                until(|| theirs.load(SeqCst) == 1);
                let theirs = theirs.clone();
                try_fork(move || {
                    theirs.store(2, SeqCst);
                    while theirs.load(SeqCst) == 2 && !current().kill_pending() {
                        hal::cpu::relax();
                    }
                    try_fork(|| idle());
                    idle()
                });
                idle()
            });
            setpgid(leader, leader).expect("a child");
            steps.store(1, SeqCst);
            reach(2);
            steps.store(3, SeqCst);
            assert_eq!(kill_group(leader, sig::KILL), Ok(()));
            while wait(Children::Any).is_ok() {}
        });
    });
}

#[test]
fn the_end_of_a_child_beside_an_execve_is_signalled_once() {
    everywhere(&[SECOND], || {
        on(2, || {
            let pid = fork(|| {
                block(&[sig::CHLD, USR1]);
                let child = fork_with(0, USR1, || 4);
                exec();
                let signo = await_one(&[sig::CHLD, USR1]);
                assert_eq!(pending(), SigSet(0));
                until(|| ids::find_process(child).is_none_or(|p| p.is_zombie()));
                assert_eq!(pending(), SigSet(0));
                signo
            });
            let (_, status) = wait(Children::Pid(pid)).expect("a child");
            let signals = [sig::CHLD, USR1].map(exited);
            assert!(signals.contains(&status), "{status:#x}");
        });
    });
}

/// A thread exits with its process while another one is stopped, and has not noticed yet.
#[test]
fn a_process_that_exits_is_not_reported_as_stopped() {
    // One more CPU, on which a thread begins.
    one_stop::everywhere(SECOND + 1, || {
        on(3, || {
            let pid = fork(|| {
                let stops = thread(|| raise_here(sig::STOP));
                while ids::find_thread(stops).is_some_and(|t| t.state_letter() != b'T') {
                    hal::cpu::relax();
                }
                exit_group(3)
            });
            let event = loop {
                match poll_event(Children::Pid(pid)) {
                    Some(event) => break event,
                    None => hal::cpu::relax(),
                }
            };
            assert_eq!(event, ended(exited(3)));
        });
    });
}

/// A thread begins a stop and is the last one left before it has stopped, since the others have gone with the process's exit.
#[test]
fn a_stop_beside_an_exit_is_signalled_to_no_parent() {
    // One more CPU, on which a thread begins.
    one_stop::everywhere(SECOND + 1, || {
        on(3, || {
            block(&[sig::CHLD]);
            let pid = fork(|| {
                thread(|| raise_here(sig::STOP));
                exit_group(3)
            });
            assert_eq!(next_event(Children::Pid(pid)), (pid, ended(exited(3))));
            let info = sigwait(SigSet::one(sig::CHLD), Some(0)).expect("the end is signalled");
            assert_eq!(info.code, code::CLD_EXITED);
        });
    });
}

/// A signal comes when another thread has given it a handler, before the thread that made the process ignore it has dropped what is
/// pending.
#[test]
fn a_signal_that_has_a_handler_again_is_not_dropped() {
    one_stop::everywhere(FIRST, || {
        on(2, || {
            block(&[USR1]);
            thread(|| ignore(USR1));
            until(|| signal::action(&me(), USR1).handler == 1);
            catch(USR1);
            raise(USR1);
            join_all();
            assert!(pending().has(USR1), "it is lost");
        });
    });
}

/// An action that another thread sets while a handler of one time begins is not taken for that one's and reset. The handler does
/// not get far, since the process has no stack for it.
#[test]
fn an_action_that_is_set_as_a_handler_of_one_time_begins_stays() {
    const OTHER: u64 = HANDLER + 64;
    one_stop::everywhere(FIRST, || {
        on(2, || {
            let last = Arc::new(AtomicU64::new(0));
            let seen = last.clone();
            let pid = fork(move || {
                action(USR1, HANDLER, SA_RESETHAND.into());
                let (seen, turn) = (seen.clone(), Arc::new(AtomicU32::new(0)));
                let theirs = turn.clone();
                thread(move || {
                    theirs.store(1, SeqCst);
                    // Also once the process has been killed.
                    while theirs.load(SeqCst) == 1 {
                        nap(1);
                    }
                    action(USR1, OTHER, 0);
                    until(|| me().is_ending());
                    seen.store(signal::action(&me(), USR1).handler, SeqCst);
                });
                until(|| turn.load(SeqCst) == 1);
                raise_here(USR1);
                turn.store(2, SeqCst);
                user_mode();
                0
            });
            let segv = u32::from(sig::SEGV);
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, segv)));
            assert_eq!(last.load(SeqCst), OTHER);
        });
    });
}
