//! Parents and children: fork, exit, wait4, orphans, kills.
#![cfg(not(shuttle))]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::group::setpgid;
use proc::signal::sig;
use proc::wait4::{self, Children, Event, Options, WaitError};
use support::{exited, fork, kill, me, nap, on, poll, user_mode, wait};

/// More children than a wait looks at without a pause.
const MANY: u32 = 200;

/// A child that lives until it is killed.
fn forever() -> u32 {
    fork(|| {
        loop {
            nap(1000);
            user_mode();
        }
    })
}

/// wait4(2) with WNOHANG and WUNTRACED.
fn glance(children: Children) -> Result<Option<(u32, Event)>, WaitError> {
    let options = Options {
        exited: true,
        stopped: true,
        no_hang: true,
        ..Options::default()
    };
    Ok(wait4::wait(children, options)?.map(|report| (report.pid, report.event)))
}

/// Repeats `glance` until there is a report.
fn watch(children: Children) -> (u32, Event) {
    loop {
        match glance(children) {
            Ok(Some(report)) => return report,
            Ok(None) => nap(1),
            Err(error) => panic!("{error:?}"),
        }
    }
}

#[test]
fn a_parent_gets_the_status_of_its_child() {
    on(2, || {
        let pid = fork(|| 7);
        assert_eq!(wait(Children::Any), Ok((pid, exited(7))));
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
    });
}

#[test]
fn each_child_is_reported_once() {
    on(4, || {
        let mut pids: Vec<u32> = (0..20).map(|n| fork(move || n)).collect();
        while !pids.is_empty() {
            let (pid, _) = wait(Children::Any).expect("a child is left");
            let at = pids.iter().position(|&p| p == pid);
            pids.remove(at.expect("a child that was not reported yet"));
        }
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
    });
}

#[test]
fn one_of_several_is_waited_for() {
    on(2, || {
        let slow = fork(|| {
            nap(20);
            1
        });
        let fast = fork(|| 2);
        assert_eq!(wait(Children::Pid(slow)), Ok((slow, exited(1))));
        assert_eq!(wait(Children::Pid(slow)), Err(WaitError::NoChild));
        assert_eq!(wait(Children::Pid(fast)), Ok((fast, exited(2))));
    });
}

#[test]
fn a_poll_does_not_wait() {
    on(1, || {
        assert_eq!(poll(), Err(WaitError::NoChild));
        let pid = fork(|| {
            nap(10);
            0
        });
        assert_eq!(poll(), Ok(None));
        nap(30);
        assert_eq!(poll(), Ok(Some(pid)));
        assert_eq!(poll(), Err(WaitError::NoChild));
    });
}

#[test]
fn a_child_knows_its_parent() {
    on(2, || {
        let parent = me().pid();
        let child = fork(move || u8::from(me().ppid() == parent));
        assert_eq!(wait(Children::Any), Ok((child, exited(1))));
    });
}

#[test]
fn an_orphan_goes_to_init() {
    on(2, || {
        let seen = Arc::new(AtomicU32::new(0));
        let theirs = seen.clone();
        let child = fork(move || {
            let theirs = theirs.clone();
            fork(move || {
                nap(20);
                theirs.store(me().ppid(), SeqCst);
                3
            });
            4
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(4))));
        let (_, status) = wait(Children::Any).expect("the orphan is a child now");
        assert_eq!((status, seen.load(SeqCst)), (exited(3), 1));
    });
}

#[test]
fn zombies_of_a_process_that_ends_go_to_init() {
    on(2, || {
        fork(|| {
            fork(|| 5);
            nap(10);
            6
        });
        let mut statuses = [wait(Children::Any), wait(Children::Any)]
            .map(|report| report.map(|(_, status)| status));
        statuses.sort_by_key(|status| *status.as_ref().unwrap_or(&0));
        assert_eq!(statuses, [Ok(exited(5)), Ok(exited(6))]);
    });
}

#[test]
fn a_kill_ends_a_child_that_sleeps_or_computes() {
    on(2, || {
        for computes in [false, true] {
            let pid = fork(move || {
                loop {
                    if computes {
                        hal::time::spin_ns(10_000);
                    } else {
                        nap(1000);
                    }
                    user_mode();
                }
            });
            nap(5);
            assert!(kill(pid, sig::KILL));
            assert_eq!(wait(Children::Any), Ok((pid, u32::from(sig::KILL))));
        }
    });
}

#[test]
fn a_fork_bomb_is_waited_for_whole() {
    on(4, || {
        let made = Arc::new(AtomicU32::new(1));
        fn grow(made: &Arc<AtomicU32>, depth: u32) -> u8 {
            if depth > 0 {
                for _ in 0..2 {
                    let theirs = made.clone();
                    made.fetch_add(1, SeqCst);
                    fork(move || grow(&theirs, depth - 1));
                }
            }
            0
        }
        let theirs = made.clone();
        fork(move || grow(&theirs, 5));
        let mut waited = 0;
        while wait(Children::Any).is_ok() {
            waited += 1;
        }
        assert_eq!((waited, made.load(SeqCst)), (63, 63));
    });
}

#[test]
fn one_of_many_children_ends() {
    on(2, || {
        let pids: Vec<u32> = (0..MANY).map(|_| forever()).collect();
        assert_eq!(poll(), Ok(None));
        for &pid in pids.iter().rev() {
            assert!(kill(pid, sig::KILL));
            assert_eq!(wait(Children::Any), Ok((pid, u32::from(sig::KILL))));
        }
        assert_eq!(poll(), Err(WaitError::NoChild));
    });
}

#[test]
fn one_of_many_children_stops() {
    on(2, || {
        let pids: Vec<u32> = (0..MANY).map(|_| forever()).collect();
        for &pid in [pids.last(), pids.first()].into_iter().flatten() {
            assert!(kill(pid, sig::STOP));
            let (stopped, event) = watch(Children::Any);
            assert_eq!(stopped, pid);
            assert!(matches!(event, Event::Stopped(sig::STOP)), "{event:?}");
            assert!(matches!(glance(Children::Any), Ok(None)));
        }
        pids.iter().for_each(|&pid| assert!(kill(pid, sig::KILL)));
        (0..MANY).for_each(|_| assert!(wait(Children::Any).is_ok()));
    });
}

#[test]
fn a_group_is_found_behind_many_children() {
    on(2, || {
        // Some end, and remain on the list of zombies; the others live.
        let pids: Vec<u32> = (0..2 * MANY).map(|_| forever()).collect();
        let (dead, alive) = pids.split_at(MANY as usize);
        let (&last_dead, &last_alive) = (dead.last().unwrap(), alive.last().unwrap());
        for pgid in [last_dead, last_alive] {
            setpgid(pgid, pgid).expect("a group of its own");
        }
        dead.iter().for_each(|&pid| assert!(kill(pid, sig::KILL)));
        let (pid, _) = watch(Children::Group(last_dead));
        assert_eq!(pid, last_dead);
        let gone = glance(Children::Group(last_dead));
        assert!(matches!(gone, Err(WaitError::NoChild)), "{gone:?}");
        let lives = glance(Children::Group(last_alive));
        assert!(matches!(lives, Ok(None)), "{lives:?}");
        alive.iter().for_each(|&pid| assert!(kill(pid, sig::KILL)));
        let (pid, _) = wait(Children::Group(last_alive)).expect("a child");
        assert_eq!(pid, last_alive);
        (0..2 * MANY - 2).for_each(|_| assert!(wait(Children::Any).is_ok()));
        assert_eq!(poll(), Err(WaitError::NoChild));
    });
}

/// Children of two groups end in a different order than they were made, while one group is polled.
#[test]
fn each_of_many_children_that_end_meanwhile_is_reported_once() {
    on(4, || {
        let end_in = |n: u32| {
            fork(move || {
                nap(u64::from(n * 37 % 20));
                0
            })
        };
        let leader = forever();
        setpgid(leader, leader).expect("a group of its own");
        let mut theirs = vec![leader];
        for n in 0..2 * MANY {
            let pid = end_in(n);
            if n % 2 == 0 && setpgid(pid, leader).is_ok() {
                theirs.push(pid);
            }
        }
        let mut killed = false;
        while !theirs.is_empty() {
            match glance(Children::Group(leader)) {
                Ok(Some((pid, _))) => {
                    let at = theirs.iter().position(|&p| p == pid);
                    theirs.remove(at.expect("a child that was not reported yet"));
                }
                Ok(None) if theirs.len() == 1 && !killed => killed = kill(leader, sig::KILL),
                Ok(None) => nap(1),
                Err(error) => panic!("{error:?} with {} children left", theirs.len()),
            }
        }
        let over = glance(Children::Group(leader));
        assert!(matches!(over, Err(WaitError::NoChild)), "{over:?}");
        (0..MANY).for_each(|_| assert!(wait(Children::Any).is_ok()));
        assert_eq!(poll(), Err(WaitError::NoChild));
    });
}

/// waitid(2) without WEXITED: a child that has ended does not stop any more, so there is none to wait for.
#[test]
fn a_wait_for_stops_alone_does_not_wait_for_children_that_have_ended() {
    on(2, || {
        let pid = fork(|| {
            nap(5);
            0
        });
        for children in [
            Children::Pid(pid),
            Children::Any,
            Children::Group(me().pgid()),
        ] {
            let options = Options {
                stopped: true,
                continued: true,
                ..Options::default()
            };
            // The first of them begins while the child lives.
            assert_eq!(
                wait4::wait(children, options).err(),
                Some(WaitError::NoChild)
            );
            assert_eq!(
                wait4::wait(
                    children,
                    Options {
                        no_hang: true,
                        ..options
                    }
                )
                .err(),
                Some(WaitError::NoChild)
            );
        }
        assert_eq!(wait(Children::Any), Ok((pid, exited(0))));
    });
}
