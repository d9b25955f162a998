//! Signals that processes send each other, the right to send them, and the signals about the end of a child.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use cred::{Cap, CapSet};
use proc::exit::exit_thread;
use proc::group::{setpgid, setsid};
use proc::signal::{self, SendError, SigFields, SigInfo, SigSet, code, sig};
use proc::wait4::{Children, Kind, Options, WaitError};
use proc::{CredentialsExt, ids};
use signals::*;
use support::{exited, fork, me, nap, on, poll, user_mode, wait};
use task::current::current;

/// A user.
const USER: u32 = 1000;

/// A child with these user ids, real, effective and saved, that waits.
fn child_of_users(users: (u32, u32, u32)) -> u32 {
    let pid = fork(move || {
        become_users(users.0, users.1, users.2);
        idle()
    });
    until(|| ids::find_thread(pid).is_some_and(|t| t.cred().suid == users.2));
    pid
}

/// Runs `body` in a child with these user ids.
fn as_users(users: (u32, u32, u32), body: impl Fn() + Send + Sync + 'static) {
    run_child(move || {
        become_users(users.0, users.1, users.2);
        body();
    });
}

#[test]
fn the_real_or_effective_user_must_be_the_real_or_saved_one_of_the_target() {
    as_child(|| {
        let (a, b, c) = (1001, 1002, 1003);
        for (sender, target, may) in [
            ((a, a, a), (a, a, a), true),
            ((a, a, a), (b, b, b), false),
            ((a, b, b), (a, c, c), true),
            ((b, a, b), (a, c, c), true),
            ((a, b, b), (c, c, a), true),
            ((b, a, b), (c, c, a), true),
            ((a, a, a), (c, a, c), false),
            ((b, b, a), (a, a, a), false),
            ((a, a, a), (0, 0, 0), false),
            ((0, 0, 0), (a, a, a), true),
        ] {
            let pid = child_of_users(target);
            let expected = if may {
                Ok(())
            } else {
                Err(SendError::NotPermitted)
            };
            as_users(sender, move || {
                let names = format!("{sender:?} to {target:?}");
                assert_eq!(kill_pid(pid, 0), expected, "{names}");
                assert_eq!(kill_pid(pid, sig::URG), expected, "{names}");
            });
            end(pid);
        }
    });
}

#[test]
fn the_capability_to_kill_is_enough() {
    as_child(|| {
        let pid = child_of_users((USER, USER, USER));
        for (cap, expected) in [
            (Cap::Kill, Ok(())),
            (Cap::SysAdmin, Err(SendError::NotPermitted)),
        ] {
            run_child(move || {
                become_user(1);
                let mut cred = (*current().cred()).clone();
                cred.caps.effective = CapSet::of(&[cap]);
                current().set_cred(cred).expect("memory for an account");
                assert_eq!(kill_pid(pid, sig::URG), expected);
            });
        }
        end(pid);
    });
}

#[test]
fn a_session_continues_its_members_whatever_their_user() {
    as_shell(|| {
        let member = child_of_users((USER, USER, USER));
        let outside = fork(|| {
            setsid().expect("the leader of no group");
            become_user(USER);
            idle()
        });
        until(|| ids::find_thread(outside).is_some_and(|t| t.cred().uid == USER));
        stop(member);
        as_users((1, 1, 1), move || {
            assert_eq!(kill_pid(member, sig::CONT), Ok(()));
            assert_eq!(kill_pid(member, TERM), Err(SendError::NotPermitted));
            assert_eq!(kill_pid(member, 0), Err(SendError::NotPermitted));
            assert_eq!(kill_pid(outside, sig::CONT), Err(SendError::NotPermitted));
        });
        assert_eq!(next_event(Children::Pid(member)), (member, continued()));
        [member, outside].into_iter().for_each(end);
    });
}

#[test]
fn a_process_may_always_signal_itself() {
    as_child(|| {
        block(&[USR1]);
        run_child(|| {
            // Neither id of the thread is one of the leader.
            thread(|| {
                let leader = ids::find_thread(me().pid()).expect("it waits");
                until(|| leader.cred().suid == 1);
                become_user(USER);
                assert_eq!(kill_pid(me().pid(), USR1), Ok(()));
            });
            become_user(1);
            assert_eq!(await_one(&[USR1]), USR1);
            join_all();
        });
    });
}

#[test]
fn a_group_signal_goes_to_the_members_that_may_be_signalled() {
    as_shell(|| {
        let theirs = child_of_users((USER, USER, USER));
        let others = child_of_users((1, 1, 1));
        for pid in [theirs, others] {
            setpgid(pid, theirs).expect("a group of the session");
        }
        as_users((USER, USER, USER), move || {
            assert_eq!(kill_group(theirs, TERM), Ok(()));
        });
        assert_eq!(wait(Children::Group(theirs)), Ok((theirs, u32::from(TERM))));
        as_users((USER, USER, USER), move || {
            assert_eq!(kill_group(theirs, TERM), Err(SendError::NotPermitted));
            assert_eq!(kill_group(theirs, 0), Err(SendError::NotPermitted));
            // Of the same session.
            assert_eq!(kill_group(theirs, sig::CONT), Ok(()));
        });
        assert_eq!(poll(), Ok(None));
        end(others);
    });
}

#[test]
fn a_kill_of_a_group_includes_the_caller() {
    on(2, || {
        let pid = fork(|| {
            setsid().expect("the leader of no group");
            become_user(USER);
            assert_eq!(kill_group(me().pgid(), TERM), Ok(()));
            user_mode();
            0
        });
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(TERM))));
    });
}

/// What kill(2) with pid -1 does in one walk.
fn kill_all(signo: u8) -> u32 {
    let own = me().pid();
    let mut sent = 0;
    ids::each_process(2, |p| {
        if p.pid() != own && signal::may_signal(p, &p.cred(), signo) {
            sent += 1;
            let _ = signal::queue_process(p, my_info(signo, code::USER, 0));
        }
        true
    });
    sent
}

#[test]
fn a_kill_of_all_processes_reaches_those_that_the_caller_may_signal() {
    as_child(|| {
        let theirs: Vec<u32> = (0..40)
            .map(|_| child_of_users((USER, USER, USER)))
            .collect();
        let others: Vec<u32> = (0..3).map(|_| idler()).collect();
        as_users((USER, USER, USER), || assert_eq!(kill_all(TERM), 40));
        for _ in theirs {
            assert_eq!(
                wait(Children::Any).map(|(_, status)| status),
                Ok(TERM.into())
            );
        }
        assert_eq!(poll(), Ok(None));
        others.into_iter().for_each(end);
    });
}

#[test]
fn a_signal_to_a_zombie_is_sent_and_does_nothing() {
    as_child(|| {
        let pid = fork(|| 3);
        until(|| ids::find_process(pid).is_some_and(|p| p.is_zombie()));
        for signo in [0, TERM, sig::KILL, sig::STOP, RT] {
            assert_eq!(kill_pid(pid, signo), Ok(()));
        }
        assert_eq!(queue(pid, RT, 1), Ok(()));
        assert_eq!(wait(Children::Any), Ok((pid, exited(3))));
        assert_eq!(kill_pid(pid, 0), Err(SendError::NoProcess));
        assert_eq!(kill_pid(pid, TERM), Err(SendError::NoProcess));
    });
}

#[test]
fn a_kill_by_the_tid_of_any_thread_is_for_the_process() {
    as_child(|| {
        block(&[USR1, USR2]);
        let tid = thread(|| {
            assert_eq!(await_one(&[USR2]), USR2);
        });
        assert_ne!(tid, me().pid());
        assert_eq!(kill_pid(tid, USR1), Ok(()));
        assert_eq!(drain_numbers(ALL), [USR1]);
        assert_eq!(tkill(tid, USR2), Ok(()));
        join_all();
    });
}

#[test]
fn a_fatal_signal_to_a_thread_ends_the_process() {
    on(2, || {
        for signo in [TERM, sig::QUIT, sig::KILL, RT] {
            let pid = fork(move || {
                let tid = thread(|| idle());
                until_asleep(tid);
                assert_eq!(tkill(tid, signo), Ok(()));
                idle()
            });
            assert_eq!(wait(Children::Any), Ok((pid, signo.into())));
        }
    });
}

#[test]
fn a_signal_that_one_thread_does_not_block_ends_the_process() {
    on(2, || {
        for signo in [TERM, sig::QUIT] {
            let pid = fork(move || {
                block(&[signo]);
                let tid = thread(move || {
                    unblock(&[signo]);
                    idle()
                });
                until_asleep(tid);
                raise(signo);
                idle()
            });
            assert_eq!(wait(Children::Any), Ok((pid, signo.into())));
        }
    });
}

#[test]
fn a_signal_that_every_thread_blocks_ends_nothing() {
    as_child(|| {
        block(&[TERM]);
        let tid = thread(|| {
            nap(20);
            user_mode();
        });
        until_asleep(tid);
        raise(TERM);
        tkill(tid, TERM).expect("a thread");
        join_all();
        user_mode();
        assert_eq!(drain_numbers(ALL), [TERM]);
    });
}

#[test]
fn a_fatal_signal_acts_before_the_next_call() {
    on(2, || {
        let pid = fork(|| {
            raise(TERM);
            assert!(current().kill_pending());
            user_mode();
            unreachable!("it returns to user mode");
        });
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(TERM))));
    });
}

#[test]
fn the_first_fatal_signal_is_the_status() {
    on(2, || {
        let pid = fork(|| {
            nap(10);
            user_mode();
            0
        });
        for signo in [TERM, sig::KILL, sig::HUP] {
            assert_eq!(kill_pid(pid, signo), Ok(()));
        }
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(TERM))));
    });
}

#[test]
fn a_process_whose_leader_has_ended_takes_signals() {
    on(2, || {
        for signo in [TERM, sig::KILL, sig::QUIT] {
            let pid = fork(|| {
                thread(|| idle());
                exit_thread(0)
            });
            until(|| ids::find_process(pid).is_some_and(|p| p.thread_count() == 1));
            nap(5);
            assert_eq!(poll(), Ok(None));
            assert_eq!(kill_pid(pid, signo), Ok(()));
            assert_eq!(wait(Children::Any), Ok((pid, signo.into())));
        }
    });
}

/// Waits for the signal about a child: signal, code, pid and status.
fn told(signo: u8) -> (i32, u32, i32) {
    let info = sigwait(SigSet::one(signo), None).expect("a signal");
    match info.fields {
        SigFields::Child { pid, status, .. } => (info.code, pid, status),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_end_of_a_child_is_signalled_with_its_status() {
    as_child(|| {
        block(&[sig::CHLD]);
        let pid = fork(|| 9);
        assert_eq!(told(sig::CHLD), (code::CLD_EXITED, pid, 9));
        assert!(wait(Children::Any).is_ok());
        let pid = child_of_users((USER, USER, USER));
        kill_pid(pid, TERM).expect("root may");
        let info = sigwait(SigSet::one(sig::CHLD), None).expect("a signal");
        let SigFields::Child { uid, status, .. } = info.fields else {
            panic!("{info:?}");
        };
        assert_eq!(
            (info.code, uid, status),
            (code::CLD_KILLED, USER, TERM.into())
        );
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn the_ends_of_two_children_are_one_signal() {
    as_child(|| {
        block(&[sig::CHLD]);
        let first = fork(|| 1);
        until(|| pending() == SigSet::one(sig::CHLD));
        fork(|| 2);
        nap(10);
        assert_eq!(told(sig::CHLD), (code::CLD_EXITED, first, 1));
        assert_eq!(pending(), SigSet(0));
        assert!(wait(Children::Any).is_ok() && wait(Children::Any).is_ok());
    });
}

#[test]
fn children_of_a_parent_that_ignores_their_end_leave_no_zombies() {
    as_child(|| {
        ignore(sig::CHLD);
        block(&[sig::CHLD]);
        let pids: Vec<u32> = (0..5).map(|n| fork(move || n)).collect();
        // The wait lasts until the last has ended.
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
        assert!(pids.into_iter().all(|pid| ids::find_process(pid).is_none()));
        assert_eq!(pending(), SigSet(0));
    });
}

#[test]
fn with_nocldwait_there_are_no_zombies_but_a_signal() {
    as_child(|| {
        block(&[sig::CHLD]);
        action(sig::CHLD, HANDLER, u64::from(raw::SA_NOCLDWAIT));
        let pid = fork(|| 4);
        assert_eq!(wait(Children::Pid(pid)), Err(WaitError::NoChild));
        assert_eq!(told(sig::CHLD), (code::CLD_EXITED, pid, 4));
        assert!(ids::find_process(pid).is_none());
    });
}

#[test]
fn a_zombie_stays_though_its_parent_ignores_the_signal_later() {
    as_child(|| {
        let pid = fork(|| 4);
        until(|| ids::find_process(pid).is_some_and(|p| p.is_zombie()));
        ignore(sig::CHLD);
        assert_eq!(wait(Children::Any), Ok((pid, exited(4))));
    });
}

/// wait4(2) with `__WCLONE`.
fn wait_for_clone() -> Result<u32, WaitError> {
    let options = Options {
        exited: true,
        kind: Kind::Clones,
        ..Options::default()
    };
    Ok(wait_for(Children::Any, options)?.expect("the call waits").0)
}

#[test]
fn a_child_may_end_with_another_signal_or_none() {
    as_child(|| {
        block(&[sig::CHLD, USR1]);
        // It leaves a zombie although the end of a usual child is ignored.
        ignore(sig::CHLD);
        let pid = fork_with(0, USR1, || 4);
        assert_eq!(told(USR1), (code::CLD_EXITED, pid, 4));
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
        assert_eq!(wait_for_clone(), Ok(pid));
        let pid = fork_with(0, 0, || 4);
        assert_eq!(wait_for_clone(), Ok(pid));
        assert_eq!(pending(), SigSet(0));
    });
}

#[test]
fn an_orphan_ends_with_the_usual_signal() {
    on(2, || {
        fork(|| {
            fork_with(0, USR1, || {
                nap(20);
                5
            });
            0
        });
        let statuses = [(); 2].map(|()| wait(Children::Any).map(|(_, status)| status));
        assert_eq!(statuses, [Ok(exited(0)), Ok(exited(5))]);
    });
}

#[test]
fn a_child_that_calls_execve_ends_with_the_usual_signal() {
    as_child(|| {
        block(&[sig::CHLD, USR1]);
        let pid = fork_with(0, USR1, || {
            exec();
            4
        });
        assert_eq!(told(sig::CHLD), (code::CLD_EXITED, pid, 4));
        assert_eq!(wait(Children::Any), Ok((pid, exited(4))));
        assert_eq!(pending(), SigSet(0));
    });
}

#[test]
fn a_parent_that_calls_execve_gets_the_usual_signal() {
    as_child(|| {
        block(&[sig::CHLD, USR1]);
        let pid = fork_with(0, USR1, || {
            nap(20);
            4
        });
        exec();
        assert_eq!(told(sig::CHLD), (code::CLD_EXITED, pid, 4));
        assert_eq!(pending(), SigSet(0));
        // What the new program forks is its own.
        let pid = fork_with(0, USR1, || 5);
        assert_eq!(told(USR1), (code::CLD_EXITED, pid, 5));
    });
}

#[test]
fn a_sibling_made_by_clone_parent_ends_with_the_signal_of_its_maker() {
    as_child(|| {
        block(&[sig::CHLD, USR1, USR2]);
        for execs in [false, true] {
            let maker = fork_with(0, USR1, move || {
                fork_with(raw::CLONE_PARENT, USR2, move || {
                    if execs {
                        exec();
                    }
                    nap(20);
                    u8::try_from(me().ppid()).unwrap_or(0)
                });
                0
            });
            assert_eq!(told(USR1), (code::CLD_EXITED, maker, 0));
            let signo = if execs { sig::CHLD } else { USR1 };
            let (how, pid, ppid) = told(signo);
            assert_eq!((how, ppid), (code::CLD_EXITED, me().pid() as i32));
            assert_ne!(pid, maker);
            assert_eq!(pending(), SigSet(0));
        }
    });
}

#[test]
fn a_child_gets_the_signal_that_it_chose_for_its_parents_end() {
    on(2, || {
        let parent = fork(|| {
            let ready = Arc::new(AtomicU32::new(0));
            let (a, b) = (ready.clone(), ready.clone());
            fork(move || {
                me().set_death_signal(TERM);
                // Its own child has chosen none.
                fork(|| {
                    nap(50);
                    u8::from(me().death_signal() == 0)
                });
                a.store(1, SeqCst);
                idle()
            });
            until(|| b.load(SeqCst) == 1);
            0
        });
        assert_eq!(wait(Children::Any), Ok((parent, exited(0))));
        let statuses = [(); 2].map(|()| wait(Children::Any).map(|(_, status)| status));
        assert_eq!(statuses, [Ok(u32::from(TERM)), Ok(exited(1))]);
    });
}

#[test]
fn the_kernel_kills_whatever_the_process_blocks() {
    on(2, || {
        let pid = fork(|| {
            set_mask(ALL);
            idle()
        });
        until_asleep(pid);
        let p = ids::find_process(pid).expect("a child");
        signal::kill_process(&p);
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(sig::KILL))));
        signal::send_process(&p, SigInfo::kernel(TERM));
    });
}
