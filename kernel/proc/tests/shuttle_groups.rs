//! Changes of process groups that meet forks, ends, reaping and one another, with a switch possible at every access to an atomic.
#![cfg(shuttle)]

mod models;
mod programs;
#[path = "support/signals.rs"]
mod signals;
mod support;
#[path = "support/terminal.rs"]
mod terminal;

use std::sync::{Arc, Mutex};

use abi::raw::general as raw;
use ksync::atomic::{AtomicU32, Ordering::SeqCst};
use models::{Body, Model, everywhere_on};
use proc::Process;
use proc::group::{GroupError, Session, Terminal, setpgid, setsid};
use proc::ids;
use proc::signal::{self, code, sig};
use proc::wait4::Children;
use signals::{
    end, ended, idle, idler, kill_group, kill_pid, my_info, next_event, poll_event, run_child,
    stop, stopped_by, thread, until,
};
use support::{clone, exited, fork, me, on, wait};
use terminal::Numbered;

/// Pids that the parts of a model tell one another.
#[derive(Clone, Default)]
struct Pids(Arc<[AtomicU32; 4]>);

impl Pids {
    fn set(&self, n: usize, pid: u32) {
        self.0[n].store(pid, SeqCst);
    }

    fn get(&self, n: usize) -> u32 {
        self.0[n].load(SeqCst)
    }
}

/// A part that uses the pids.
fn part(pids: &Pids, act: impl Fn(&Pids) + Send + Sync + 'static) -> Body {
    let pids = pids.clone();
    Arc::new(move || act(&pids))
}

/// Waits until a child has ended. It stays a zombie.
fn until_ended(pid: u32) {
    until(|| ids::find_process(pid).is_some_and(|p| p.is_zombie()));
}

/// A process that leads a group.
fn leader() -> u32 {
    let pid = idler();
    assert_eq!(setpgid(pid, pid), Ok(()));
    pid
}

/// The process `pid`, which init has got when its parent ended, gets the signals to the group that it names.
fn end_by_group(pid: u32) {
    let pgid = ids::find_process(pid).expect("it idles").pgid();
    assert_eq!(kill_group(pgid, sig::KILL), Ok(()), "group {pgid}");
    assert_eq!(
        next_event(Children::Pid(pid)),
        (pid, ended(sig::KILL.into()))
    );
}

/// As [`end_by_group`] for each of these that has not ended with one of the others. No group of theirs is left.
fn end_by_groups(pids: &Pids, members: &[usize]) {
    for pid in members.iter().map(|&n| pids.get(n)) {
        if ids::find_process(pid).is_some_and(|p| !p.is_ending() && !p.is_zombie()) {
            end_by_group(pid);
        }
    }
    while wait(Children::Any).is_ok() {}
    for pid in members.iter().map(|&n| pids.get(n)) {
        assert!(ids::find_group(pid).is_none(), "a group without a member");
    }
}

fn model(
    pids: &Pids,
    begin: impl Fn(&Pids) + Send + Sync + 'static,
    threads: Vec<Body>,
    members: &'static [usize],
) -> Model {
    let theirs = pids.clone();
    Model {
        begin: part(pids, begin),
        threads,
        check: Box::new(move |status| {
            assert_eq!(status, exited(0));
            end_by_groups(&theirs, members);
        }),
    }
}

/// Tries a model of two threads, with a CPU for each and one for init. Before that so many other processes begin.
fn explore(made: usize, make: fn() -> Model) {
    everywhere_on(3, made, make);
}

#[test]
fn a_process_joins_no_group_that_ends() {
    explore(2, || {
        let pids = Pids::default();
        let begin = |pids: &Pids| {
            let leader = fork(|| 0);
            assert_eq!(setpgid(leader, leader), Ok(()));
            until_ended(leader);
            pids.set(0, leader);
            pids.set(1, idler());
        };
        let joins = part(&pids, |pids| {
            let joined = setpgid(pids.get(1), pids.get(0));
            assert!(matches!(joined, Ok(()) | Err(GroupError::NotPermitted)));
        });
        let reaps = part(&pids, |pids| {
            assert_eq!(
                wait(Children::Pid(pids.get(0))),
                Ok((pids.get(0), exited(0)))
            );
        });
        model(&pids, begin, vec![joins, reaps], &[1])
    });
}

#[test]
fn a_process_that_two_threads_move_is_in_one_group() {
    explore(3, || {
        let pids = Pids::default();
        let begin = |pids: &Pids| {
            (0..2).for_each(|n| pids.set(n, leader()));
            pids.set(2, idler());
        };
        let moves = |n| {
            part(&pids, move |pids| {
                assert_eq!(setpgid(pids.get(2), pids.get(n)), Ok(()));
            })
        };
        model(&pids, begin, vec![moves(0), moves(1)], &[2, 0, 1])
    });
}

#[test]
fn a_zombie_that_is_moved_while_it_is_reaped_is_in_no_group() {
    explore(2, || {
        let pids = Pids::default();
        let begin = |pids: &Pids| {
            pids.set(0, leader());
            let zombie = fork(|| 0);
            until_ended(zombie);
            pids.set(1, zombie);
        };
        let moves = part(&pids, |pids| {
            let moved = setpgid(pids.get(1), pids.get(0));
            assert!(matches!(moved, Ok(()) | Err(GroupError::NoProcess)));
        });
        let reaps = part(&pids, |pids| {
            assert_eq!(
                wait(Children::Pid(pids.get(1))),
                Ok((pids.get(1), exited(0)))
            );
        });
        model(&pids, begin, vec![moves, reaps], &[0])
    });
}

#[test]
fn a_child_is_in_no_group_that_its_parent_has_left() {
    explore(1, || {
        let pids = Pids::default();
        let begin = |pids: &Pids| {
            pids.set(0, leader());
            assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
        };
        let forks = part(&pids, |pids| pids.set(1, idler()));
        let leaves = part(&pids, |pids| {
            assert_eq!(setpgid(me().pid(), pids.get(0)), Ok(()));
        });
        model(&pids, begin, vec![forks, leaves], &[1, 0])
    });
}

#[test]
fn a_group_that_a_process_joins_when_it_looks_empty_goes_on() {
    explore(3, || {
        let pids = Pids::default();
        let begin = |pids: &Pids| {
            (0..2).for_each(|n| pids.set(n, leader()));
            pids.set(2, idler());
        };
        let leaves = part(&pids, |pids| {
            assert_eq!(setpgid(pids.get(0), pids.get(1)), Ok(()));
        });
        let joins = part(&pids, |pids| {
            let joined = setpgid(pids.get(2), pids.get(0));
            assert!(matches!(joined, Ok(()) | Err(GroupError::NotPermitted)));
        });
        model(&pids, begin, vec![leaves, joins], &[2, 0, 1])
    });
}

/// Two members leave in different shards. One of the threads that take them off ends the group; its number may be that of a
/// new group when the other one looks.
#[test]
fn a_group_is_ended_by_one_of_two_threads() {
    explore(3, || {
        let pids = Pids::default();
        let begin = |pids: &Pids| {
            pids.set(0, leader());
            let theirs = pids.clone();
            let leads = fork(move || {
                until(|| me().pgid() == me().pid());
                let sibling = clone(raw::CLONE_PARENT.into(), || 0);
                theirs.set(2, sibling.expect("memory for a process"));
                idle()
            });
            assert_eq!(setpgid(leads, leads), Ok(()));
            pids.set(1, leads);
            until(|| pids.get(2) != 0);
            until_ended(pids.get(2));
        };
        let leaves = part(&pids, |pids| {
            assert_eq!(setpgid(pids.get(1), pids.get(0)), Ok(()));
        });
        let reaps = part(&pids, |pids| {
            assert_eq!(
                wait(Children::Pid(pids.get(2))),
                Ok((pids.get(2), exited(0)))
            );
            assert_eq!(setpgid(pids.get(1), pids.get(1)), Ok(()));
        });
        model(&pids, begin, vec![leaves, reaps], &[1, 0])
    });
}

/// The last member of a group is moved twice: the group that it leaves ends while the other thread looks for its session.
#[test]
fn a_process_is_in_a_session_while_it_leaves_a_group_that_ends() {
    explore(3, || {
        let pids = Pids::default();
        let begin = |pids: &Pids| {
            (0..2).for_each(|n| pids.set(n, leader()));
            pids.set(2, idler());
            assert_eq!(setpgid(pids.get(2), pids.get(0)), Ok(()));
            assert_eq!(setpgid(pids.get(0), pids.get(1)), Ok(()));
        };
        let leaves = part(&pids, |pids| {
            assert_eq!(setpgid(pids.get(2), pids.get(1)), Ok(()));
        });
        let leads = part(&pids, |pids| {
            assert_eq!(setpgid(pids.get(2), pids.get(2)), Ok(()));
        });
        model(&pids, begin, vec![leaves, leads], &[2, 0, 1])
    });
}

/// The shell moves a member of a group, and then the leader, which founds a session: that has a group with the number of the one that
/// the member has left. The member calls `ask` meanwhile, with the sid of the shell.
fn asks_while_the_number_of_its_group_goes_to_another(
    ask: impl Fn(u32) + Copy + Send + Sync + 'static,
) {
    in_session(2, move || {
        let sid = me().sid();
        let other = leader();
        let pids = Pids::default();
        let theirs = pids.clone();
        let leads = fork(move || {
            spin_until(|| me().pgid() == other);
            // A child that the member has made may be in the group still.
            let founded = setsid();
            assert!(matches!(founded, Ok(_) | Err(GroupError::NotPermitted)));
            until(|| theirs.get(0) == 2);
            0
        });
        assert_eq!(setpgid(leads, leads), Ok(()));
        let theirs = pids.clone();
        let asks = fork(move || {
            spin_until(|| theirs.get(0) == 1);
            theirs.set(1, 1);
            ask(sid);
            0
        });
        assert_eq!(setpgid(asks, leads), Ok(()));
        pids.set(0, 1);
        spin_until(|| pids.get(1) == 1);
        for pid in [asks, leads] {
            assert_eq!(setpgid(pid, other), Ok(()));
        }
        assert_eq!(wait(Children::Pid(asks)), Ok((asks, exited(0))));
        pids.set(0, 2);
        assert_eq!(wait(Children::Pid(leads)), Ok((leads, exited(0))));
        end(other);
    });
}

#[test]
fn a_process_is_in_no_session_that_it_has_not_been_in() {
    asks_while_the_number_of_its_group_goes_to_another(|sid| {
        assert_eq!(me().session().map(|session| session.sid()), Some(sid));
    });
}

#[test]
fn a_child_is_in_no_session_that_its_parent_has_not_been_in() {
    asks_while_the_number_of_its_group_goes_to_another(|sid| {
        let child = fork(|| 0);
        let process = ids::find_process(child).expect("nobody has waited for it");
        assert_eq!(process.sid(), sid);
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

/// kill(2) with pid 0.
#[test]
fn a_process_can_signal_its_own_group_while_it_is_moved() {
    in_session(0, || {
        let ready = Pids::default();
        let theirs = ready.clone();
        let moved = fork(move || {
            spin_until(|| theirs.get(0) == 1);
            theirs.set(1, 1);
            let info = my_info(sig::CONT, code::USER, 0);
            assert_eq!(signal::signal_own_group(sig::CONT, info, None), Ok(()));
            0
        });
        let other = leader();
        assert_eq!(setpgid(moved, moved), Ok(()));
        ready.set(0, 1);
        spin_until(|| ready.get(1) == 1);
        assert_eq!(setpgid(moved, other), Ok(()));
        assert_eq!(wait(Children::Pid(moved)), Ok((moved, exited(0))));
        end(other);
    });
}

#[test]
fn the_leader_of_a_session_stays_in_its_group() {
    explore(1, || {
        let pids = Pids::default();
        let process: Arc<Mutex<Option<Arc<Process>>>> = Arc::default();
        let (own, theirs) = (process.clone(), pids.clone());
        let begin = part(&pids, move |pids| {
            pids.set(0, leader());
            *own.lock().unwrap() = Some(me());
        });
        let leads = part(&pids, |_| assert_eq!(setsid(), Ok(me().pid())));
        let joins = part(&pids, |pids| {
            let moved = setpgid(me().pid(), pids.get(0));
            assert!(matches!(moved, Ok(()) | Err(GroupError::NotPermitted)));
        });
        Model {
            begin,
            threads: vec![leads, joins],
            check: Box::new(move |status| {
                assert_eq!(status, exited(0));
                let p = process.lock().unwrap().take().expect("it has begun");
                assert_eq!((p.sid(), p.pgid()), (p.pid(), p.pid()));
                drop(p);
                end_by_groups(&theirs, &[0]);
            }),
        }
    });
}

/// Each of two members could continue the third, which is stopped, by their parent, the shell. They end at once.
#[test]
fn the_last_of_two_members_that_end_at_once_finds_the_group_orphaned() {
    const CPUS: usize = 3;
    // Before it are the test, the CPUs' first threads, the boot thread, init, and the shell.
    vm_host::one_stop::everywhere(4 + CPUS, || {
        on(CPUS, || {
            run_child(|| {
                setsid().expect("the leader of no group");
                let pids = Pids::default();
                let theirs = pids.clone();
                let first = fork(move || {
                    assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
                    let stops = idler();
                    theirs.set(2, stops);
                    until(|| theirs.get(1) != 0);
                    stop(stops);
                    theirs.set(0, 1);
                    0
                });
                until(|| pids.get(2) != 0);
                let stopped = ids::find_process(pids.get(2)).expect("it idles");
                let theirs = pids.clone();
                let second = fork(move || {
                    until(|| theirs.get(0) != 0 && is_ending(first));
                    0
                });
                assert_eq!(setpgid(second, first), Ok(()));
                pids.set(1, second);
                for pid in [first, second] {
                    assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
                }
                // SIGHUP ends it, and init gets it.
                until(|| stopped.is_ending());
            });
            while wait(Children::Any).is_ok() {}
        });
    });
}

/// Runs `shell` as the leader of a session, in each schedule in which its child number `n`, counting all that are made after it, is
/// stopped once. What it leaves behind is ended by the signals of the kernel.
fn in_session(n: usize, shell: impl Fn() + Copy + Send + Sync + 'static) {
    const CPUS: usize = 3;
    vm_host::one_stop::everywhere(4 + CPUS + n, move || {
        on(CPUS, move || {
            run_child(move || {
                setsid().expect("the leader of no group");
                shell();
            });
            while wait(Children::Any).is_ok() {}
        });
    });
}

/// As [`in_session`], with a shell whose only child runs `scene`, which returns a child of its own that is stopped, and ends. The kernel
/// continues the stopped one.
fn leaves_no_orphan_stopped(n: usize, scene: impl Fn() -> u32 + Copy + Send + Sync + 'static) {
    in_session(n, move || {
        let pids = Pids::default();
        let theirs = pids.clone();
        let parent = fork(move || {
            theirs.set(0, scene());
            0
        });
        until(|| pids.get(0) != 0);
        let stopped = ids::find_process(pids.get(0));
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        // SIGHUP ends it. It may be gone already.
        until(|| stopped.as_ref().is_none_or(|p| p.is_ending()));
    });
}

/// A member that could continue the stopped one by its parent ends just when that parent, which ends, has given it to init.
#[test]
fn a_member_that_ends_when_its_parent_has_given_it_away_leaves_none_stopped() {
    leaves_no_orphan_stopped(0, || {
        let own = me().pid();
        let stops = idler();
        assert_eq!(setpgid(stops, stops), Ok(()));
        let ends = fork(move || {
            until(|| me().ppid() != own);
            0
        });
        assert_eq!(setpgid(ends, stops), Ok(()));
        stop(stops);
        stops
    });
}

/// A process begins a stop while its parent moves it to a group of its own. Its new group knows that it is stopped.
#[test]
fn a_stop_is_known_to_the_group_that_the_process_is_moved_to() {
    leaves_no_orphan_stopped(1, || {
        let stops = idler();
        kill_pid(stops, sig::STOP).expect("a child");
        assert_eq!(setpgid(stops, stops), Ok(()));
        until(|| poll_event(Children::Pid(stops)).is_some());
        stops
    });
}

/// A shell's child takes SIGTSTP while the shell moves it. Neither of its groups is orphaned.
#[test]
fn a_process_stops_while_it_leaves_a_group_that_ends() {
    in_session(2, || {
        let (moved, other) = (leader(), leader());
        thread(move || assert_eq!(setpgid(moved, other), Ok(())));
        kill_pid(moved, sig::TSTP).expect("a child");
        until(|| poll_event(Children::Pid(moved)) == Some(stopped_by(sig::TSTP)));
        [moved, other].into_iter().for_each(end);
    });
}

/// A process that ends is moved to a group, in which it is the only one then that could continue the stopped member.
#[test]
fn a_process_that_is_moved_when_it_ends_leaves_none_stopped() {
    in_session(0, || {
        let pids = Pids::default();
        let theirs = pids.clone();
        let moved = fork(move || {
            until(|| theirs.get(0) != 0);
            0
        });
        let theirs = pids.clone();
        let leads = fork(move || {
            assert_eq!(setpgid(me().pid(), me().pid()), Ok(()));
            let stops = idler();
            stop(stops);
            theirs.set(0, stops);
            spin_until(|| theirs.get(1) != 0);
            0
        });
        until(|| pids.get(0) != 0);
        let stopped = ids::find_process(pids.get(0)).expect("it is stopped");
        spin_until(|| is_ending(moved));
        assert_eq!(setpgid(moved, leads), Ok(()));
        pids.set(1, 1);
        for pid in [leads, moved] {
            assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        }
        // SIGHUP ends it, and init gets it.
        until(|| stopped.is_ending());
    });
}

/// Waits until `happened` also if that is while another CPU stands still, with which time does.
fn spin_until(happened: impl Fn() -> bool) {
    while !happened() {
        hal::cpu::relax();
    }
}

/// Whether the process is ending or gone.
fn is_ending(pid: u32) -> bool {
    ids::find_process(pid).is_none_or(|p| p.is_ending())
}

/// The number of a terminal that a session has had.
fn number(terminal: Option<Arc<dyn Terminal>>) -> u32 {
    terminal.map_or(0, |terminal| terminal.number() as u32)
}

#[test]
fn each_terminal_that_two_threads_set_is_given_back_once() {
    explore(0, || {
        let (pids, session) = (Pids::default(), Arc::new(Mutex::new(None)));
        let (theirs, back) = (session.clone(), Arc::new(AtomicU32::new(0)));
        let sets = |n| {
            let (session, back) = (session.clone(), back.clone());
            part(&pids, move |_| {
                let session: Arc<Session> = session.lock().unwrap().clone().expect("a session");
                let old = session.set_terminal(Some(Arc::new(Numbered(n))));
                back.fetch_add(number(old), SeqCst);
            })
        };
        let begin = part(&pids, move |_| {
            setsid().expect("it leads no group");
            *theirs.lock().unwrap() = me().session();
        });
        let threads = vec![sets(1), sets(2)];
        let check = Box::new(move |status| {
            assert_eq!(status, exited(0));
            let session = session.lock().unwrap().take().expect("a session");
            let left = number(session.set_terminal(None));
            assert_eq!(back.load(SeqCst) + left, 3);
        });
        Model {
            begin,
            threads,
            check,
        }
    });
}
