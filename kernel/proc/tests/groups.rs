//! Process groups and sessions: setpgid(2), setsid(2), signals to a group, and the terminal of a session.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::group::{GroupError, Session, Terminal, setpgid, setsid};
use proc::ids;
use proc::reaper::set_subreaper;
use proc::signal::{self, SendError, SigSet, sig};
use proc::wait4::Children;
use signals::*;
use support::{exited, fork, me, nap, on, user_mode, wait};

/// More members than a walk over a group looks at in one step.
const MANY: u32 = 100;

/// Group and session of the process `pid`.
fn place_of(pid: u32) -> (u32, u32) {
    let p = ids::find_process(pid).expect("a process");
    (p.pgid(), p.sid())
}

/// A child that has come so far as to set the flag, and waits.
fn prepared(prepare: fn()) -> u32 {
    let ready = Arc::new(AtomicU32::new(0));
    let theirs = ready.clone();
    let pid = fork(move || {
        prepare();
        theirs.store(1, SeqCst);
        idle()
    });
    until(|| ready.load(SeqCst) == 1);
    pid
}

#[test]
fn a_child_is_in_the_group_and_session_of_its_parent() {
    as_shell(|| {
        let pid = me().pid();
        run_child(move || assert_eq!(place_of(me().pid()), (pid, pid)));
        let leader = job(move || {
            let own = me().pid();
            run_child(move || assert_eq!(place_of(me().pid()), (own, pid)));
            0
        });
        assert_eq!(wait(Children::Any), Ok((leader, exited(0))));
    });
}

#[test]
fn setpgid_moves_the_caller_and_its_children() {
    as_shell(|| {
        let shell = me().pid();
        let (a, b) = (idler(), idler());
        assert_eq!(setpgid(a, a), Ok(()));
        assert_eq!(setpgid(b, a), Ok(()));
        assert_eq!((place_of(a), place_of(b)), ((a, shell), (a, shell)));
        assert_eq!(setpgid(b, b), Ok(()));
        assert_eq!(setpgid(b, b), Ok(()), "it leads the group already");
        assert_eq!(setpgid(b, shell), Ok(()));
        assert_eq!(place_of(b), (shell, shell));
        run_child(move || {
            let own = me().pid();
            assert_eq!(setpgid(own, own), Ok(()));
            assert_eq!(setpgid(own, a), Ok(()));
            assert_eq!(place_of(own), (a, shell));
        });
        [a, b].into_iter().for_each(end);
    });
}

#[test]
fn setpgid_refuses_other_processes() {
    as_shell(|| {
        let shell = me().pid();
        assert_eq!(setpgid(1, 1), Err(GroupError::NoProcess));
        assert_eq!(setpgid(30_000, 30_000), Err(GroupError::NoProcess));
        let pid = idler();
        run_child(move || {
            assert_eq!(setpgid(pid, pid), Err(GroupError::NoProcess));
            assert_eq!(setpgid(shell, shell), Err(GroupError::NoProcess));
        });
        end(pid);
        assert_eq!(setpgid(pid, pid), Err(GroupError::NoProcess));
    });
}

#[test]
fn setpgid_refuses_a_session_leader() {
    as_shell(|| {
        let shell = me().pid();
        let other = job(|| idle());
        assert_eq!(setpgid(shell, shell), Err(GroupError::NotPermitted));
        assert_eq!(setpgid(shell, other), Err(GroupError::NotPermitted));
        end(other);
    });
}

#[test]
fn setpgid_refuses_a_child_in_another_session() {
    as_shell(|| {
        let pid = prepared(|| {
            setsid().expect("the leader of no group");
        });
        assert_eq!(setpgid(pid, pid), Err(GroupError::NotPermitted));
        assert_eq!(setpgid(pid, me().pid()), Err(GroupError::NotPermitted));
        end(pid);
    });
}

#[test]
fn setpgid_refuses_an_adopted_child_of_another_session() {
    as_shell(|| {
        set_subreaper(&me(), true);
        let adopted = Arc::new(AtomicU32::new(0));
        let theirs = adopted.clone();
        let parent = fork(move || {
            setsid().expect("the leader of no group");
            theirs.store(idler(), SeqCst);
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        let pid = adopted.load(SeqCst);
        assert_eq!(place_of(pid), (parent, parent));
        assert_eq!(setpgid(pid, pid), Err(GroupError::NotPermitted));
        end(pid);
    });
}

#[test]
fn setpgid_refuses_a_child_that_has_called_execve() {
    as_shell(|| {
        let pid = prepared(exec);
        assert_eq!(setpgid(pid, pid), Err(GroupError::Executed));
        end(pid);
        // The child itself may still move.
        run_child(|| {
            exec();
            let own = me().pid();
            assert_eq!(setpgid(own, own), Ok(()));
        });
    });
}

#[test]
fn setpgid_needs_a_group_in_the_session() {
    as_shell(|| {
        let pid = idler();
        // Init's group is in another session; the last number is no group's.
        for pgid in [1, pid + 1, 30_000] {
            assert_eq!(setpgid(pid, pgid), Err(GroupError::NotPermitted), "{pgid}");
        }
        assert_eq!(place_of(pid).0, me().pid());
        end(pid);
    });
}

#[test]
fn a_zombie_can_be_moved_until_it_is_waited_for() {
    as_shell(|| {
        let pid = fork(|| 3);
        until(|| ids::find_process(pid).is_some_and(|p| p.is_zombie()));
        assert_eq!(setpgid(pid, pid), Ok(()));
        assert!(ids::find_group(pid).is_some());
        assert_eq!(wait(Children::Group(pid)), Ok((pid, exited(3))));
        assert!(ids::find_group(pid).is_none());
        assert_eq!(setpgid(pid, pid), Err(GroupError::NoProcess));
    });
}

#[test]
fn setsid_makes_a_session_and_a_group() {
    as_child(|| {
        let own = me().pid();
        assert_eq!(place_of(own), (1, 1));
        assert_eq!(setsid(), Ok(own));
        assert_eq!(place_of(own), (own, own));
        assert_eq!(me().session().map(|s| s.sid()), Some(own));
        assert_eq!(setsid(), Err(GroupError::NotPermitted));
    });
}

#[test]
fn setsid_refuses_the_leader_of_a_group() {
    as_shell(|| {
        let shell = me().pid();
        let pid = job(move || {
            nap(5);
            assert_eq!(setsid(), Err(GroupError::NotPermitted));
            // It has left its group, in which a child of its own remains.
            let child = fork(|| idle());
            setpgid(me().pid(), shell).expect("a group of the session");
            assert_eq!(setsid(), Err(GroupError::NotPermitted));
            end(child);
            assert_eq!(setsid(), Ok(me().pid()));
            0
        });
        assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
    });
}

#[test]
fn a_group_lasts_as_long_as_a_member() {
    as_shell(|| {
        let leader = job(|| 0);
        let member = idler();
        setpgid(member, leader).expect("a group of the session");
        assert!(wait(Children::Pid(leader)).is_ok());
        // The leader is gone, and the group goes on.
        assert_eq!(place_of(member).0, leader);
        assert_eq!(kill_group(leader, 0), Ok(()));
        let other = idler();
        assert_eq!(setpgid(other, leader), Ok(()));
        [member, other].into_iter().for_each(end);
        assert!(ids::find_group(leader).is_none());
        let late = idler();
        assert_eq!(setpgid(late, leader), Err(GroupError::NotPermitted));
        end(late);
    });
}

#[test]
fn a_reference_to_a_group_is_not_one_to_a_later_group_of_that_number() {
    as_shell(|| {
        let pid = job(|| idle());
        let group = ids::find_group(pid).expect("it has a member");
        end(pid);
        assert!(ids::find_group(pid).is_none());
        assert!(group.is_orphaned(), "it has no member");
        let info = my_info(TERM, 0, 0);
        let sent = signal::signal_group(&group, TERM, info, None);
        assert_eq!(sent, Err(SendError::NoProcess));
        // As long as the reference is there, no process gets the number.
        for _ in 0..20 {
            let next = fork(|| 0);
            assert_ne!(next, pid);
            assert!(wait(Children::Any).is_ok());
        }
        assert_eq!(group.id().number(), pid);
    });
}

#[test]
fn a_group_signal_reaches_each_member_and_no_other_process() {
    as_shell(|| {
        let outside = [idler(), job(|| idle())];
        let leader = job(|| idle());
        for _ in 1..MANY {
            setpgid(idler(), leader).expect("a group of the session");
        }
        assert_eq!(kill_group(leader, TERM), Ok(()));
        for _ in 0..MANY {
            let (_, status) = wait(Children::Group(leader)).expect("a member");
            assert_eq!(status, u32::from(TERM));
        }
        nap(10);
        assert_eq!(poll_event(Children::Any), None);
        outside.into_iter().for_each(end);
    });
}

/// Waits for all children of the caller, init, and checks that no process is left.
fn all_are_gone() {
    while wait(Children::Any).is_ok() {}
    let mut left = Vec::new();
    ids::each_process(2, |p| {
        left.push(p.pid());
        true
    });
    assert_eq!(left, []);
}

#[test]
fn a_group_signal_reaches_members_forked_on_each_cpu() {
    on(4, || {
        let leader = fork(|| {
            setsid().expect("the leader of no group");
            for _ in 0..10 {
                try_fork(|| {
                    try_fork(|| idle());
                    idle()
                });
            }
            idle()
        });
        nap(20);
        assert_eq!(kill_group(leader, sig::KILL), Ok(()));
        all_are_gone();
    });
}

#[test]
fn a_fork_bomb_in_a_group_is_killed_whole() {
    on(4, || {
        fn grow(depth: u32) {
            for _ in 0..3 {
                if depth > 0 {
                    try_fork(move || {
                        grow(depth - 1);
                        idle()
                    });
                }
                nap(1);
                user_mode();
            }
        }
        for delay in 1..6 {
            let leader = fork(|| {
                setsid().expect("the leader of no group");
                grow(4);
                idle()
            });
            nap(delay);
            assert_eq!(kill_group(leader, sig::KILL), Ok(()));
            all_are_gone();
        }
    });
}

#[test]
fn a_signal_to_no_group_finds_no_process() {
    as_shell(|| {
        let pid = idler();
        assert_eq!(kill_group(pid, TERM), Err(SendError::NoProcess));
        assert_eq!(kill_group(pid, 0), Err(SendError::NoProcess));
        end(pid);
    });
}

#[test]
fn a_group_of_zombies_is_found() {
    as_shell(|| {
        let pid = job(|| 0);
        until(|| ids::find_process(pid).is_some_and(|p| p.is_zombie()));
        assert_eq!(kill_group(pid, TERM), Ok(()));
        assert_eq!(wait(Children::Any), Ok((pid, exited(0))));
        assert_eq!(kill_group(pid, TERM), Err(SendError::NoProcess));
    });
}

#[test]
fn a_check_of_a_group_sends_nothing() {
    as_shell(|| {
        let pid = job(|| idle());
        for _ in 0..3 {
            assert_eq!(kill_group(pid, 0), Ok(()));
            // It ignores this one.
            assert_eq!(kill_group(pid, sig::URG), Ok(()));
        }
        nap(5);
        assert_eq!(poll_event(Children::Any), None);
        end(pid);
    });
}

#[test]
fn each_group_signal_is_got_once() {
    as_shell(|| {
        block(&[RT, USR1]);
        let pid = job(|| {
            await_one(&[USR1]);
            drain_numbers(SigSet::one(RT)).len() as u8
        });
        (0..5).for_each(|_| assert_eq!(kill_group(pid, RT), Ok(())));
        assert_eq!(kill_pid(pid, USR1), Ok(()));
        assert_eq!(
            wait(Children::Pid(pid)).map(|(_, status)| status),
            Ok(exited(5))
        );
    });
}

#[test]
fn a_member_gets_a_group_signal_once_though_others_fork() {
    as_shell(|| {
        block(&[RT, USR1]);
        let counts = job(|| {
            await_one(&[USR1]);
            drain_numbers(SigSet::one(RT)).len() as u8
        });
        let forks = fork(|| {
            ignore(RT);
            loop {
                unblock(&[RT]);
                try_fork(|| 0);
                let _ = wait(Children::Any);
                user_mode();
            }
        });
        // A walk over the group takes long enough for a fork, since these are members between the two.
        for _ in 0..MANY {
            setpgid(fork(|| 0), counts).expect("a group of the session");
        }
        setpgid(forks, counts).expect("a group of the session");
        for _ in 0..100 {
            assert_eq!(kill_group(counts, RT), Ok(()));
        }
        assert_eq!(kill_pid(counts, USR1), Ok(()));
        assert_eq!(wait(Children::Pid(counts)), Ok((counts, exited(100))));
        end(forks);
    });
}

/// A terminal that counts how often the leader of its session has exited.
struct Counting {
    exits: AtomicU32,
}

impl Terminal for Counting {
    fn number(&self) -> u64 {
        5
    }

    fn foreground(&self) -> u32 {
        0
    }

    fn leader_exited(&self, session: &Session) {
        assert!(session.terminal().is_some());
        self.exits.fetch_add(1, SeqCst);
    }

    fn hang_up(&self) {}
}

#[test]
fn a_terminal_hears_of_the_end_of_the_session_leader_alone() {
    on(2, || {
        let terminal = Arc::new(Counting {
            exits: AtomicU32::new(0),
        });
        let theirs = terminal.clone();
        let leader = fork(move || {
            setsid().expect("the leader of no group");
            let session = me().session().expect("it has a session");
            assert!(session.set_terminal(Some(theirs.clone())).is_none());
            let (in_session, leaves) = (idler(), fork(|| idle()));
            // The end of a member concerns a group that has been stopped.
            stop(in_session);
            end(in_session);
            end(leaves);
            let job = job(|| 0);
            assert!(wait(Children::Pid(job)).is_ok());
            assert_eq!(theirs.exits.load(SeqCst), 0);
            0
        });
        assert_eq!(wait(Children::Pid(leader)), Ok((leader, exited(0))));
        assert_eq!(terminal.exits.load(SeqCst), 1);
    });
}

#[test]
fn a_session_has_one_terminal_and_a_new_session_none() {
    as_shell(|| {
        let terminal: Arc<dyn Terminal> = Arc::new(Counting {
            exits: AtomicU32::new(0),
        });
        let session = me().session().expect("it has a session");
        assert!(session.set_terminal(Some(terminal.clone())).is_none());
        let old = session.set_terminal(None);
        assert!(old.is_some_and(|old| Arc::ptr_eq(&old, &terminal)));
        session.set_terminal(Some(terminal.clone()));
        run_child(|| {
            let inherited = me().session().and_then(|s| s.terminal());
            assert_eq!(inherited.map(|t| t.number()), Some(5));
            setsid().expect("the leader of no group");
            assert!(me().session().is_some_and(|s| s.terminal().is_none()));
        });
        session.set_terminal(None);
    });
}

#[test]
fn a_process_that_was_waited_for_has_no_group_and_no_session() {
    as_shell(|| {
        let pid = job(|| 0);
        let leader = ids::find_process(pid).expect("a child that was not waited for");
        until(|| leader.is_zombie());
        assert!(leader.group().is_some_and(|group| group.pgid() == pid));
        assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        assert!(leader.group().is_none() && leader.session().is_none());
    });
}

#[test]
fn a_group_is_orphaned_without_a_parent_outside_it_in_the_session() {
    as_shell(|| {
        let is_orphaned = |pgid| ids::find_group(pgid).expect("a member").is_orphaned();
        let outside = prepared(|| {
            setsid().expect("the leader of no group");
        });
        assert!(is_orphaned(outside), "the parent is in another session");
        end(outside);
        let inside = idler();
        assert!(is_orphaned(me().pgid()), "the parent is in the same group");
        end(inside);
        let pid = job(|| idle());
        assert!(!is_orphaned(pid));
        let group = ids::find_group(pid).expect("a member");
        let leader = ids::find_process(pid).expect("a child");
        let other = idler();
        setpgid(other, pid).expect("a group of the session");
        // A zombie does not count.
        kill_pid(pid, sig::KILL).expect("a child");
        until(|| leader.is_zombie());
        assert!(!group.is_orphaned());
        end(other);
        assert!(group.is_orphaned());
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn init_does_not_count_as_the_parent_that_could_continue_a_group() {
    on(2, || {
        // In the session of init, but in a group of its own.
        let pid = job(|| idle());
        assert!(ids::find_group(pid).expect("a member").is_orphaned());
        end(pid);
    });
}
