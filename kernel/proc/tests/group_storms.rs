//! Processes that fork and end, are moved from group to group, and get signals to their groups, all at once.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
#[path = "support/storm.rs"]
mod storms;
mod support;
#[path = "support/terminal.rs"]
mod terminal;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::group::{GroupError, Terminal, setpgid, setsid};
use proc::ids;
use proc::reaper::set_subreaper;
use proc::signal::{SendError, SigSet, sig};
use proc::wait4::{Children, WaitError};
use signals::*;
use storms::{CPUS, Sum, storm};
use support::{exited, fork, me, on, user_mode, wait};
use terminal::Numbered;

/// Runs `body` as the leader of a session on a machine with the CPUs of a storm.
fn as_leader(body: impl Fn() + Send + Sync + 'static) {
    on(CPUS, move || {
        run_child(move || {
            setsid().expect("the leader of no group");
            // So that it waits for children of children that are killed, which are members of groups, too.
            set_subreaper(&me(), true);
            body();
        });
    });
}

/// A process that forks children and waits for them, and then until it is killed. Its children are in the group that it is in.
fn forker() -> u32 {
    fork(|| {
        for _ in 0..60 {
            try_fork(|| 0);
            let _ = wait(Children::Any);
            user_mode();
        }
        idle()
    })
}

/// Each of these is in the group that it names, and the group is in the table.
fn check_groups(members: &[u32]) {
    for &pid in members {
        let p = ids::find_process(pid).expect("it has not been reaped");
        let group = p.group().expect("no thread moves it");
        assert_eq!((group.pgid(), group.session().sid()), (p.pgid(), p.sid()));
    }
}

#[test]
fn members_that_fork_are_moved_between_groups_and_none_is_lost() {
    const MEMBERS: usize = 6;
    const STEPS: usize = 80;
    as_leader(|| {
        let shell = me().pid();
        let members: Arc<[u32]> = (0..MEMBERS)
            .map(|n| if n < 2 { forker() } else { idler() })
            .collect();
        let (theirs, stays) = (members.clone(), members[MEMBERS - 1]);
        assert_eq!(setpgid(stays, stays), Ok(()));
        storm(CPUS, move |_, random| {
            for _ in 0..STEPS {
                let pid = theirs[random.below(MEMBERS - 1)];
                let pgid = theirs[random.below(MEMBERS)];
                match random.below(8) {
                    0..3 => {
                        // That group may have ended.
                        let moved = setpgid(pid, pgid);
                        assert!(matches!(moved, Ok(()) | Err(GroupError::NotPermitted)));
                    }
                    3..5 => assert_eq!(setpgid(pid, pid), Ok(())),
                    5 => assert_eq!(setpgid(pid, shell), Ok(())),
                    6 => {
                        let sent = kill_group(pgid, [0, sig::URG][random.below(2)]);
                        assert!(matches!(sent, Ok(()) | Err(SendError::NoProcess)));
                    }
                    _ => {
                        let group = ids::find_group(stays).expect("a member stays");
                        assert!(!group.is_orphaned(), "its parent leads the session");
                    }
                }
            }
        });
        check_groups(&members);
        for &pid in &*members {
            assert_eq!(setpgid(pid, pid), Ok(()));
        }
        for &pid in &*members {
            assert_eq!(kill_group(pid, TERM), Ok(()), "each leads a group");
            while wait(Children::Group(pid)).is_ok() {}
            assert!(
                ids::find_group(pid).is_none(),
                "a group ends with its last member"
            );
        }
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
    });
}

/// Each thread makes groups of a leader, which ends at once, and another process, which may join the group of another thread.
#[test]
fn groups_end_with_their_last_members() {
    const ROUNDS: usize = 32;
    as_leader(|| {
        let leaders: Arc<[[AtomicU32; ROUNDS]; CPUS]> = Arc::default();
        let theirs = leaders.clone();
        storm(CPUS, move |n, random| {
            for round in 0..ROUNDS {
                let leader = job(|| 0);
                theirs[n][round].store(leader, SeqCst);
                let pause = random.below(20);
                let member = fork(move || {
                    (0..pause).for_each(|_| block(&[USR1]));
                    let _ = setpgid(me().pid(), leader);
                    0
                });
                let other = theirs[random.below(CPUS)][round].load(SeqCst).max(2);
                // That group may have ended, or not have begun.
                let _ = kill_group(other, 0);
                let _ = setpgid(member, other);
                for pid in [leader, member] {
                    assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
                }
            }
        });
        for leader in leaders.iter().flatten() {
            assert!(ids::find_group(leader.load(SeqCst)).is_none());
        }
    });
}

/// Signals to one group from several senders: each member gets each.
#[test]
fn each_of_several_group_signals_reaches_each_member_once() {
    const MEMBERS: usize = 4;
    const SIGNALS: usize = 30;
    as_leader(|| {
        block(&[RT, USR1]);
        let members: Vec<u32> = (0..MEMBERS)
            .map(|_| {
                fork(|| {
                    try_fork(|| 0);
                    assert_eq!(await_one(&[USR1]), USR1);
                    drain_numbers(SigSet::one(RT)).len() as u8
                })
            })
            .collect();
        let leader = members[0];
        for &pid in &members {
            assert_eq!(setpgid(pid, leader), Ok(()));
        }
        storm(CPUS, move |_, _| {
            for _ in 0..SIGNALS {
                assert_eq!(kill_group(leader, RT), Ok(()));
            }
        });
        for pid in members {
            kill_pid(pid, USR1).expect("a child");
            let status = exited((CPUS * SIGNALS) as u8);
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, status)));
        }
    });
}

/// A terminal that becomes the session's is given back once.
#[test]
fn each_terminal_that_a_session_gets_is_given_back_once() {
    const STEPS: u64 = 300;
    as_leader(|| {
        let (set, back) = (Sum::default(), Sum::default());
        let (theirs, old) = (set.clone(), back.clone());
        let number = |terminal: Option<Arc<dyn Terminal>>| terminal.map_or(0, |t| t.number());
        storm(CPUS, move |n, random| {
            let session = me().session().expect("no thread moves it");
            for step in 1..=STEPS {
                let new = STEPS * n as u64 + step;
                match random.below(3) {
                    0 => old.add(number(session.set_terminal(None))),
                    1 => {
                        theirs.add(new);
                        old.add(number(session.set_terminal(Some(Arc::new(Numbered(new))))));
                    }
                    _ => assert!(number(session.terminal()) <= STEPS * CPUS as u64),
                }
                user_mode();
            }
        });
        let session = me().session().expect("no thread moves it");
        back.add(number(session.set_terminal(None)));
        assert_eq!(back.get(), set.get());
    });
}
