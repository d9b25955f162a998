//! Ends of processes as their relatives see them: orphans, signals on a parent's death, and waits for some children only.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use proc::SignalExt;
use proc::reaper::set_subreaper;
use proc::signal::{Action, SigFields, SigSet, code, set_action, sig};
use proc::wait4::{self, Children, Event, Kind, Options, WaitError};
use programs::{
    become_user, catch, count, fork_with, is_pending, join, next, take, take_memory, thread, until,
    until_asleep, with_memory,
};
use support::{exited, fork, kill, me, nap, on, poll, user_mode, wait};
use task::current::current;

/// SIGUSR1, whose default is to end the process.
const USR1: u8 = 10;

/// wait4(2) for any child that has ended, with these options.
fn wait_with(options: Options) -> Result<Option<(u32, u32)>, WaitError> {
    let options = Options {
        exited: true,
        ..options
    };
    let report = wait4::wait(Children::Any, options)?;
    Ok(report.map(|report| match report.event {
        Event::Exited(status) => (report.pid, status),
        other => panic!("{other:?}"),
    }))
}

fn of_kind(kind: Kind) -> Options {
    Options {
        kind,
        no_hang: true,
        ..Options::default()
    }
}

/// A process that sleeps until it is killed.
fn sleeper() -> u32 {
    fork(|| {
        loop {
            nap(1000);
            user_mode();
        }
    })
}

/// An orphan's parent, by the orphan itself.
fn parent_of_orphan(make: impl Fn() + Send + Sync + 'static) -> u32 {
    let seen = count();
    let theirs = seen.clone();
    let child = fork(move || {
        make();
        let theirs = theirs.clone();
        fork(move || {
            nap(30);
            theirs.store(me().ppid(), SeqCst);
            0
        });
        0
    });
    assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    until(|| seen.load(SeqCst) != 0);
    seen.load(SeqCst)
}

#[test]
fn an_orphan_goes_to_the_nearest_reaper() {
    on(2, || {
        let outer = fork(|| {
            set_subreaper(&me(), true);
            let inner = fork(|| {
                set_subreaper(&me(), true);
                assert_eq!(parent_of_orphan(|| ()), me().pid());
                assert!(wait(Children::Any).is_ok());
                // One that does not want orphans any more is passed.
                set_subreaper(&me(), false);
                assert_eq!(parent_of_orphan(|| ()), me().ppid());
                0
            });
            assert_eq!(wait(Children::Pid(inner)), Ok((inner, exited(0))));
            assert!(wait(Children::Any).is_ok());
            0
        });
        assert_eq!(wait(Children::Pid(outer)), Ok((outer, exited(0))));
    });
}

#[test]
fn a_reaper_does_not_take_its_own_children_when_it_ends() {
    on(2, || {
        let child = fork(|| {
            set_subreaper(&me(), true);
            fork(|| {
                nap(30);
                u8::from(me().ppid() == 1)
            });
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
        assert!(matches!(wait(Children::Any), Ok((_, status)) if status == exited(1)));
    });
}

/// prctl(2): the role is for all descendants, also for those that were there before.
#[test]
fn an_orphan_of_an_older_family_goes_to_the_reaper() {
    on(2, || {
        let reaper = fork(|| {
            let seen = count();
            let theirs = seen.clone();
            let child = fork(move || {
                nap(20);
                let theirs = theirs.clone();
                fork(move || {
                    nap(30);
                    theirs.store(me().ppid(), SeqCst);
                    0
                });
                0
            });
            set_subreaper(&me(), true);
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
            until(|| seen.load(SeqCst) != 0);
            u8::from(seen.load(SeqCst) == me().pid())
        });
        assert_eq!(wait(Children::Pid(reaper)), Ok((reaper, exited(1))));
    });
}

#[test]
fn a_reaper_gets_sigchld_for_an_orphan_whatever_signal_was_agreed_on() {
    on(2, || {
        let reaper = fork(|| {
            set_subreaper(&me(), true);
            current().set_blocked(SigSet::of(&[sig::CHLD, USR1]));
            fork(|| {
                fork_with(USR1, 0, || {
                    nap(30);
                    7
                });
                0
            });
            assert!(wait(Children::Any).is_ok());
            while take(sig::CHLD).is_some() {}
            until(|| is_pending(sig::CHLD));
            assert!(!is_pending(USR1));
            let (_, status) = wait(Children::Any).expect("the orphan");
            u8::from(status == exited(7))
        });
        assert_eq!(wait(Children::Pid(reaper)), Ok((reaper, exited(1))));
    });
}

#[test]
fn a_child_that_asked_for_it_is_told_of_its_parents_death() {
    on(2, || {
        let parent = fork(|| {
            fork(|| {
                me().set_death_signal(sig::HUP);
                loop {
                    nap(1000);
                    user_mode();
                }
            });
            nap(20);
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        let (_, status) = wait(Children::Any).expect("the child");
        assert_eq!(status, u32::from(sig::HUP));
    });
}

#[test]
fn a_grandchild_is_not_told_of_a_death_that_its_parent_survives() {
    on(2, || {
        let parent = fork(|| {
            fork(|| {
                me().set_death_signal(sig::HUP);
                // The setting is not inherited.
                fork(|| {
                    nap(60);
                    8
                });
                loop {
                    nap(1000);
                    user_mode();
                }
            });
            nap(20);
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        let statuses = [wait(Children::Any), wait(Children::Any)].map(|report| report.unwrap().1);
        assert_eq!(statuses, [u32::from(sig::HUP), exited(8)]);
    });
}

#[test]
fn a_child_with_more_rights_is_not_told_of_its_parents_death() {
    on(2, || {
        let parent = fork(|| {
            fork(|| {
                me().set_death_signal(sig::HUP);
                nap(60);
                user_mode();
                9
            });
            nap(20);
            become_user(1000);
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        assert!(matches!(wait(Children::Any), Ok((_, status)) if status == exited(9)));
    });
}

#[test]
fn a_report_that_is_kept_comes_again() {
    on(2, || {
        let child = fork(|| 3);
        let keep = Options {
            keep: true,
            ..Options::default()
        };
        for _ in 0..3 {
            assert_eq!(wait_with(keep), Ok(Some((child, exited(3)))));
        }
        assert_eq!(wait(Children::Any), Ok((child, exited(3))));
        assert_eq!(wait_with(keep), Err(WaitError::NoChild));
    });
}

#[test]
fn children_of_another_exit_signal_are_waited_for_on_request() {
    on(2, || {
        for signo in [0, sig::URG] {
            let clone = fork_with(signo, 0, || 1);
            nap(20);
            assert_eq!(poll(), Err(WaitError::NoChild));
            let usual = fork(|| 2);
            nap(20);
            assert_eq!(
                wait_with(of_kind(Kind::Clones)),
                Ok(Some((clone, exited(1))))
            );
            let none = wait_with(of_kind(Kind::Clones));
            assert_eq!(none, Err(WaitError::NoChild));
            assert_eq!(wait_with(of_kind(Kind::All)), Ok(Some((usual, exited(2)))));
        }
    });
}

#[test]
fn a_parent_gets_the_signal_that_the_child_was_made_with() {
    on(2, || {
        current().set_blocked(SigSet::of(&[sig::CHLD, USR1]));
        let child = fork_with(USR1, 0, || 4);
        until(|| is_pending(USR1));
        assert!(!is_pending(sig::CHLD));
        let info = take(USR1).expect("a signal");
        assert_eq!(info.code, code::CLD_EXITED);
        let SigFields::Child { pid, status, .. } = info.fields else {
            panic!("no report about a child")
        };
        assert_eq!((pid, status), (child, 4));
        assert_eq!(wait_with(of_kind(Kind::All)), Ok(Some((child, exited(4)))));
    });
}

#[test]
fn the_signal_about_a_killed_child_names_what_killed_it() {
    on(2, || {
        current().set_blocked(SigSet::one(sig::CHLD));
        let child = sleeper();
        nap(10);
        assert!(kill(child, sig::HUP));
        until(|| is_pending(sig::CHLD));
        let info = take(sig::CHLD).expect("a signal");
        assert_eq!(info.code, code::CLD_KILLED);
        assert!(matches!(
            info.fields,
            SigFields::Child { pid, status, .. } if (pid, status) == (child, i32::from(sig::HUP))
        ));
        assert!(wait(Children::Any).is_ok());
    });
}

/// SIG_IGN and SA_NOCLDWAIT: a wait sleeps until all children have ended, and then there is none.
#[test]
fn children_of_a_parent_that_discards_them_are_no_zombies() {
    on(2, || {
        let actions = [
            Action {
                handler: 1,
                ..Action::default()
            },
            Action {
                flags: 2,
                ..Action::default()
            },
        ];
        for action in actions {
            set_action(&me(), sig::CHLD, action);
            let done = count();
            let pids: Vec<u32> = (1..4)
                .map(|n| {
                    let done = done.clone();
                    fork(move || {
                        nap(10 * n);
                        next(&done);
                        0
                    })
                })
                .collect();
            assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
            assert_eq!(done.load(SeqCst), 3);
            let gone = |&pid: &u32| proc::ids::find_process(pid).is_none();
            assert!(pids.iter().all(gone));
        }
    });
}

#[test]
fn a_zombie_goes_to_a_reaper_that_discards_its_children_and_is_gone() {
    on(2, || {
        let reaper = fork(|| {
            set_subreaper(&me(), true);
            let zombie = count();
            let theirs = zombie.clone();
            let child = fork(move || {
                theirs.store(fork(|| 1), SeqCst);
                nap(20);
                0
            });
            nap(10);
            let ignore = Action {
                handler: 1,
                ..Action::default()
            };
            set_action(&me(), sig::CHLD, ignore);
            assert!(proc::ids::find_process(zombie.load(SeqCst)).is_some());
            assert_eq!(wait(Children::Pid(child)), Err(WaitError::NoChild));
            assert!(proc::ids::find_process(zombie.load(SeqCst)).is_none());
            0
        });
        assert_eq!(wait(Children::Pid(reaper)), Ok((reaper, exited(0))));
    });
}

#[test]
fn a_signal_with_a_handler_ends_a_wait() {
    on(2, || {
        let parent = fork(|| {
            catch(sig::INT);
            let child = sleeper();
            let pid = me().pid();
            fork(move || {
                nap(20);
                u8::from(kill(pid, sig::INT))
            });
            let options = Options {
                exited: true,
                ..Options::default()
            };
            let result = wait4::wait(Children::Pid(child), options);
            assert_eq!(result.map(|_| ()), Err(WaitError::Signal));
            assert!(take(sig::INT).is_some());
            assert!(kill(child, sig::KILL));
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        while wait(Children::Any).is_ok() {}
    });
}

#[test]
fn the_children_of_another_thread_are_left_out_on_request() {
    with_memory(2, || {
        let own = Options {
            own: true,
            no_hang: true,
            ..Options::default()
        };
        let by_leader = fork(|| 1);
        let tid = thread(move || {
            assert_eq!(wait_with(own), Err(WaitError::NoChild));
            let by_thread = fork(|| 2);
            nap(20);
            assert_eq!(wait_with(own), Ok(Some((by_thread, exited(2)))));
            fork(|| 3);
            nap(40);
        });
        nap(50);
        assert_eq!(wait_with(own), Ok(Some((by_leader, exited(1)))));
        // The leader gets those of a thread that has ended.
        assert_eq!(wait_with(own), Err(WaitError::NoChild));
        join(tid);
        // No other thread does.
        join(thread(move || {
            assert_eq!(wait_with(own), Err(WaitError::NoChild))
        }));
        assert!(matches!(wait_with(own), Ok(Some((_, status))) if status == exited(3)));
    });
}

#[test]
fn each_of_two_threads_that_wait_gets_a_child_of_its_own() {
    with_memory(4, || {
        for round in 0..10u64 {
            let reports = Arc::new(Mutex::new(Vec::new()));
            let tids = [0, 1].map(|_| {
                let reports = reports.clone();
                thread(move || {
                    let report = wait(Children::Any);
                    reports.lock().unwrap().push(report);
                })
            });
            // A wait that finds no child yet fails.
            let children = [1, 2].map(|n| {
                fork(move || {
                    hal::time::spin_ns(round * 500 * u64::from(n));
                    n
                })
            });
            tids.into_iter().for_each(join);
            let mut reports = reports.lock().unwrap().clone();
            while let Ok(report) = wait(Children::Any) {
                reports.push(Ok(report));
            }
            let mut got: Vec<u32> = reports.iter().flatten().map(|report| report.0).collect();
            got.sort_unstable();
            assert_eq!(got, children);
        }
    });
}

#[test]
fn of_two_threads_that_wait_for_one_child_one_gets_it() {
    with_memory(2, || {
        let child = fork(|| {
            nap(30);
            6
        });
        let reports = Arc::new(Mutex::new(Vec::new()));
        let tids = [0, 1].map(|_| {
            let reports = reports.clone();
            thread(move || {
                let report = wait(Children::Pid(child));
                reports.lock().unwrap().push(report);
            })
        });
        tids.into_iter().for_each(join);
        let mut reports = reports.lock().unwrap().clone();
        reports.sort_by_key(Result::is_err);
        let right = [Ok((child, exited(6))), Err(WaitError::NoChild)];
        assert_eq!(reports, right);
    });
}

#[test]
fn a_wait_of_one_thread_is_ended_by_a_child_of_another() {
    with_memory(2, || {
        let first = sleeper();
        let tid = thread(move || {
            let (pid, status) = wait(Children::Any).expect("a child");
            assert_ne!(pid, first);
            assert_eq!(status, exited(5));
        });
        until_asleep(tid);
        fork(|| 5);
        join(tid);
        assert!(kill(first, sig::KILL));
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn the_children_of_a_process_that_executes_are_still_its_own() {
    on(2, || {
        let parent = fork(|| {
            let child = fork(|| {
                nap(20);
                2
            });
            take_memory();
            assert_eq!(wait(Children::Any), Ok((child, exited(2))));
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
    });
}
