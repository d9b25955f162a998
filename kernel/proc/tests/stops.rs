//! Job control: processes that are stopped and continued, what their parents are told, and orphaned groups.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::group::setpgid;
use proc::ids;
use proc::signal::{SA_NOCLDSTOP, SigFields, SigSet, code, sig};
use proc::wait4::{Children, Options};
use signals::*;
use support::{exited, fork, me, nap, on, poll, user_mode, wait};
use task::current::current;

/// Signals that stop a process from the keyboard, or for its use of the terminal.
const KEYBOARD: [u8; 3] = [sig::TSTP, sig::TTIN, sig::TTOU];

/// A child that counts, in user mode but for a moment, until it is killed.
fn counter() -> (u32, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let theirs = count.clone();
    let pid = fork(move || {
        loop {
            theirs.fetch_add(1, SeqCst);
            nap(1);
            user_mode();
        }
    });
    (pid, count)
}

/// Sends `signo` to the child `pid`.
fn send(pid: u32, signo: u8) {
    kill_pid(pid, signo).expect("a child");
}

/// Continues the stopped child `pid`, and waits until that is reported.
fn go_on(pid: u32) {
    send(pid, sig::CONT);
    assert_eq!(next_event(Children::Pid(pid)), (pid, continued()));
}

#[test]
fn a_stopped_process_does_not_run_until_it_is_continued() {
    on(2, || {
        let (pid, count) = counter();
        until(|| count.load(SeqCst) > 3);
        stop(pid);
        let before = count.load(SeqCst);
        nap(50);
        assert_eq!(count.load(SeqCst), before);
        go_on(pid);
        until(|| count.load(SeqCst) > before);
        end(pid);
    });
}

#[test]
fn a_stop_and_a_continuation_are_reported_once_each() {
    on(2, || {
        let pid = idler();
        for _ in 0..3 {
            stop(pid);
            assert_eq!(poll_event(Children::Any), None);
            go_on(pid);
            assert_eq!(poll_event(Children::Any), None);
        }
        end(pid);
    });
}

#[test]
fn a_wait_that_does_not_ask_for_stops_is_not_told() {
    on(2, || {
        let pid = idler();
        send(pid, sig::STOP);
        nap(10);
        assert_eq!(poll(), Ok(None));
        let only = |stopped, continued| Options {
            stopped,
            continued,
            no_hang: true,
            ..Options::default()
        };
        let glance = |options| wait_for(Children::Any, options).expect("a child").is_some();
        assert!(!glance(only(false, true)));
        assert!(glance(only(true, false)));
        send(pid, sig::CONT);
        assert!(!glance(only(true, false)));
        assert!(glance(only(false, true)));
        end(pid);
    });
}

#[test]
fn a_report_that_is_kept_comes_again() {
    on(2, || {
        let pid = idler();
        let look = |keep| {
            let options = Options {
                stopped: true,
                continued: true,
                keep,
                ..Options::default()
            };
            let report = wait_for(Children::Pid(pid), options).expect("a child");
            format!("{:?}", report.expect("the call waits").1)
        };
        send(pid, sig::STOP);
        for keep in [true, true, false] {
            assert_eq!(look(keep), stopped_by(sig::STOP));
        }
        send(pid, sig::CONT);
        for keep in [true, true, false] {
            assert_eq!(look(keep), continued());
        }
        assert_eq!(poll_event(Children::Any), None);
        end(pid);
    });
}

#[test]
fn the_latest_change_is_reported() {
    on(2, || {
        let pid = idler();
        send(pid, sig::STOP);
        until(|| current_report(pid));
        send(pid, sig::CONT);
        assert_eq!(poll_event(Children::Any), Some(continued()));
        stop(pid);
        send(pid, sig::CONT);
        send(pid, sig::KILL);
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(sig::KILL))));
    });
}

/// Whether a change of the child `pid` waits to be reported.
fn current_report(pid: u32) -> bool {
    let options = Options {
        stopped: true,
        continued: true,
        keep: true,
        no_hang: true,
        ..Options::default()
    };
    wait_for(Children::Pid(pid), options)
        .expect("a child")
        .is_some()
}

#[test]
fn the_continuation_of_a_process_that_runs_is_not_reported() {
    on(2, || {
        let (pid, count) = counter();
        until(|| count.load(SeqCst) > 1);
        send(pid, sig::CONT);
        nap(10);
        assert_eq!(poll_event(Children::Any), None);
        end(pid);
    });
}

/// The information of the SIGCHLD that comes next.
fn told() -> (i32, u32, i32) {
    let info = sigwait(SigSet::one(sig::CHLD), None).expect("a signal");
    match info.fields {
        SigFields::Child { pid, status, .. } => (info.code, pid, status),
        other => panic!("{other:?}"),
    }
}

/// The signals that a process gets for a stop, a continuation and the end of a child.
fn hear_of_a_child() {
    block(&[sig::CHLD]);
    let pid = idler();
    send(pid, sig::STOP);
    assert_eq!(told(), (code::CLD_STOPPED, pid, sig::STOP.into()));
    send(pid, sig::CONT);
    assert_eq!(told(), (code::CLD_CONTINUED, pid, sig::CONT.into()));
    send(pid, sig::KILL);
    assert_eq!(told(), (code::CLD_KILLED, pid, sig::KILL.into()));
    assert!(wait(Children::Any).is_ok());
}

#[test]
fn the_parent_gets_a_signal_for_a_stop_and_for_a_continuation() {
    as_child(|| {
        block(&[USR1]);
        raise(USR1);
        drain(ALL);
        hear_of_a_child();
    });
}

#[test]
fn the_first_signal_that_a_parent_gets_says_which_child_has_stopped() {
    as_child(hear_of_a_child);
}

#[test]
fn with_nocldstop_only_the_end_is_signalled() {
    as_child(|| {
        block(&[sig::CHLD]);
        action(sig::CHLD, HANDLER, SA_NOCLDSTOP);
        let pid = idler();
        stop(pid);
        go_on(pid);
        assert_eq!(pending(), SigSet(0));
        send(pid, sig::KILL);
        assert_eq!(told(), (code::CLD_KILLED, pid, sig::KILL.into()));
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn signals_to_a_stopped_process_act_when_it_is_continued() {
    on(2, || {
        let pid = idler();
        stop(pid);
        send(pid, TERM);
        nap(10);
        assert_eq!(poll_event(Children::Any), None);
        send(pid, sig::CONT);
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(TERM))));
    });
}

#[test]
fn a_kill_ends_a_stopped_process() {
    on(2, || {
        let pid = idler();
        stop(pid);
        send(pid, sig::KILL);
        let killed = ended(u32::from(sig::KILL));
        // No continuation is reported before.
        assert_eq!(next_event(Children::Any), (pid, killed));
    });
}

#[test]
fn a_continuation_drops_pending_stops() {
    as_shell(|| {
        block(&KEYBOARD);
        let pid = job(|| {
            KEYBOARD.into_iter().for_each(raise);
            raise_here(sig::TSTP);
            assert_eq!(pending(), SigSet::of(&KEYBOARD));
            raise(sig::CONT);
            assert_eq!(pending(), SigSet(0));
            unblock(&KEYBOARD);
            user_mode();
            3
        });
        assert_eq!(next_event(Children::Any), (pid, ended(exited(3))));
        drain(ALL);
    });
}

#[test]
fn a_stop_signal_drops_a_pending_continuation() {
    as_shell(|| {
        block(&KEYBOARD);
        block(&[sig::CONT]);
        for signo in KEYBOARD {
            raise(sig::CONT);
            raise_here(sig::CONT);
            assert_eq!(pending(), SigSet::one(sig::CONT));
            raise(signo);
            assert_eq!(pending(), SigSet::one(signo));
            drain(ALL);
        }
    });
}

#[test]
fn a_stop_signal_drops_a_continuation_that_another_thread_has_pending() {
    as_shell(|| {
        block(&[sig::CONT, sig::TSTP, USR1]);
        let tid = thread(|| {
            assert_eq!(await_one(&[USR1]), USR1);
            assert_eq!(pending(), SigSet::one(sig::TSTP));
        });
        until_asleep(tid);
        tkill(tid, sig::CONT).expect("a thread");
        raise(sig::TSTP);
        tkill(tid, USR1).expect("a thread");
        join_all();
        drain(ALL);
    });
}

#[test]
fn a_stop_signal_to_a_stopped_process_is_dropped_by_the_continuation() {
    as_shell(|| {
        let pid = job(|| idle());
        stop(pid);
        KEYBOARD.into_iter().for_each(|signo| send(pid, signo));
        send(pid, sig::STOP);
        go_on(pid);
        nap(10);
        assert_eq!(poll_event(Children::Any), None);
        end(pid);
    });
}

#[test]
fn a_continuation_continues_though_it_is_blocked_or_ignored() {
    on(2, || {
        let ways: [fn(); 3] = [
            || block(&[sig::CONT]),
            || ignore(sig::CONT),
            || catch(sig::CONT),
        ];
        for (n, way) in ways.into_iter().enumerate() {
            let pid = fork(move || {
                way();
                raise(sig::STOP);
                user_mode();
                if n == 0 { drain_numbers(ALL)[0] } else { 0 }
            });
            assert_eq!(next_event(Children::Any), (pid, stopped_by(sig::STOP)));
            send(pid, sig::CONT);
            // It is pending where it is blocked; a handler without a stack is the end of a process.
            let status = [exited(sig::CONT), exited(0), u32::from(sig::SEGV)][n];
            assert_eq!(wait(Children::Any), Ok((pid, status)));
        }
    });
}

#[test]
fn the_keyboard_stops_a_job_and_says_by_which_signal() {
    as_shell(|| {
        let pid = job(|| idle());
        for signo in KEYBOARD {
            send(pid, signo);
            assert_eq!(next_event(Children::Any), (pid, stopped_by(signo)));
            go_on(pid);
        }
        end(pid);
    });
}

#[test]
fn the_keyboard_does_not_stop_a_job_that_blocks_ignores_or_catches_it() {
    as_shell(|| {
        let ways: [fn(); 3] = [
            || block(&KEYBOARD),
            || KEYBOARD.into_iter().for_each(ignore),
            || {
                exec();
                KEYBOARD.into_iter().for_each(catch);
            },
        ];
        for way in ways {
            let pid = job(move || {
                way();
                KEYBOARD.into_iter().for_each(raise);
                let mut frame = computing();
                return_with(&mut frame);
                0
            });
            assert_eq!(next_event(Children::Any), (pid, ended(exited(0))));
        }
    });
}

#[test]
fn the_keyboard_does_not_stop_an_orphaned_group_and_a_stop_does() {
    on(2, || {
        let pid = idler();
        for signo in KEYBOARD {
            send(pid, signo);
            nap(5);
            assert_eq!(poll_event(Children::Any), None);
        }
        stop(pid);
        end(pid);
    });
}

/// Threads that count in the calling process, beside the first.
fn count_in_threads(counts: &Arc<Vec<AtomicU32>>) {
    for n in 1..counts.len() {
        let counts = counts.clone();
        thread(move || count(&counts[n]));
    }
    count(&counts[0]);
}

fn count(n: &AtomicU32) {
    loop {
        n.fetch_add(1, SeqCst);
        nap(1);
        user_mode();
    }
}

#[test]
fn all_threads_stop_and_go_on_together() {
    on(2, || {
        let counts: Arc<Vec<AtomicU32>> = Arc::new((0..4).map(|_| AtomicU32::new(0)).collect());
        let sums = counts.clone();
        let now = move || sums.iter().map(|n| n.load(SeqCst)).collect::<Vec<_>>();
        let pid = fork(move || {
            count_in_threads(&counts);
            0
        });
        let all_past = |old: Vec<u32>| until(|| now().iter().zip(&old).all(|(new, old)| new > old));
        all_past(vec![3; 4]);
        for _ in 0..3 {
            stop(pid);
            let before = now();
            nap(30);
            assert_eq!(now(), before);
            go_on(pid);
            all_past(before);
        }
        end(pid);
    });
}

/// A child with two threads. One makes a call of 100 ms that signals do not end, and then runs `after`. Returns when it
/// has begun that call.
fn child_in_a_call(after: fn()) -> u32 {
    let began = Arc::new(AtomicU32::new(0));
    let theirs = began.clone();
    let pid = fork(move || {
        let theirs = theirs.clone();
        thread(move || {
            theirs.store(1, SeqCst);
            nap(100);
            after();
        });
        idle()
    });
    until(|| began.load(SeqCst) == 1);
    pid
}

#[test]
fn a_stop_is_reported_when_the_last_thread_has_stopped() {
    as_child(|| {
        // The parent knows of stops from now on.
        let other = idler();
        stop(other);
        end(other);
        block(&[sig::CHLD]);
        let pid = child_in_a_call(user_mode);
        send(pid, sig::STOP);
        nap(30);
        assert_eq!((poll_event(Children::Any), pending()), (None, SigSet(0)));
        assert_eq!(next_event(Children::Any), (pid, stopped_by(sig::STOP)));
        assert_eq!(pending(), SigSet::one(sig::CHLD));
        end(pid);
    });
}

#[test]
fn a_stop_is_reported_when_the_last_running_thread_ends() {
    on(2, || {
        let pid = child_in_a_call(|| proc::exit::exit_thread(0));
        send(pid, sig::STOP);
        nap(10);
        assert_eq!(poll_event(Children::Any), None);
        assert_eq!(next_event(Children::Any), (pid, stopped_by(sig::STOP)));
        end(pid);
    });
}

#[test]
fn a_thread_stops_its_whole_process_by_tkill() {
    on(2, || {
        let pid = fork(|| {
            thread(|| {
                nap(10);
                raise_here(sig::STOP);
                idle();
            });
            idle()
        });
        assert_eq!(next_event(Children::Any), (pid, stopped_by(sig::STOP)));
        end(pid);
    });
}

/// A child has a job, which inherits what `prepare` does, stops it, and ends. Returns the pid of the job.
fn orphan_a_stopped_job(prepare: fn()) -> u32 {
    let pids = Arc::new(AtomicU32::new(0));
    let theirs = pids.clone();
    let parent = job(move || {
        prepare();
        let pid = job(|| idle());
        stop(pid);
        theirs.store(pid, SeqCst);
        0
    });
    assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
    pids.load(SeqCst)
}

#[test]
fn a_stopped_group_that_becomes_orphaned_is_hung_up() {
    on(2, || {
        let pid = orphan_a_stopped_job(|| ());
        assert_eq!(wait(Children::Any), Ok((pid, u32::from(sig::HUP))));
    });
}

#[test]
fn a_stopped_group_that_becomes_orphaned_is_continued() {
    on(2, || {
        let pid = orphan_a_stopped_job(|| ignore(sig::HUP));
        assert_eq!(next_event(Children::Any), (pid, continued()));
        end(pid);
    });
}

#[test]
fn an_orphaned_group_without_stopped_members_is_left_alone() {
    on(2, || {
        let grandchild = Arc::new(AtomicU32::new(0));
        let theirs = grandchild.clone();
        let parent = job(move || {
            let pid = job(|| idle());
            // It has stopped before, and was continued.
            stop(pid);
            go_on(pid);
            theirs.store(pid, SeqCst);
            0
        });
        assert!(wait(Children::Pid(parent)).is_ok());
        nap(20);
        assert_eq!(poll_event(Children::Any), None);
        end(grandchild.load(SeqCst));
    });
}

#[test]
fn a_stopped_group_with_another_parent_in_the_session_is_not_orphaned() {
    as_shell(|| {
        // One member is a child of the shell, the other a child of a process that ends.
        let first = job(|| idle());
        let second = Arc::new(AtomicU32::new(0));
        let theirs = second.clone();
        let parent = job(move || {
            let pid = fork(|| idle());
            setpgid(pid, first).expect("a group of the session");
            stop(pid);
            theirs.store(pid, SeqCst);
            0
        });
        assert!(wait(Children::Pid(parent)).is_ok());
        nap(20);
        let second = second.load(SeqCst);
        let p = ids::find_process(second).expect("it lives");
        assert!(!p.is_ending());
        kill_pid(second, sig::KILL).expect("the same user");
        end(first);
    });
}

#[test]
fn the_end_of_a_member_orphans_its_group() {
    as_shell(|| {
        // The member whose parent is the shell ends, and leaves its own stopped child in the group.
        let left = Arc::new(AtomicU32::new(0));
        let theirs = left.clone();
        let parent = job(move || {
            let pid = fork(|| idle());
            stop(pid);
            theirs.store(pid, SeqCst);
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        let left = left.load(SeqCst);
        until(|| ids::find_process(left).is_none_or(|p| p.is_zombie()));
    });
}

#[test]
fn init_is_not_stopped() {
    on(2, || {
        for signo in [sig::STOP, sig::TSTP, sig::KILL, TERM] {
            raise(signo);
            user_mode();
            raise_here(signo);
            user_mode();
            // Kept while it is blocked, and then of no effect.
            block(&[signo]);
            raise(signo);
            unblock(&[signo]);
            user_mode();
        }
        assert!(!me().is_ending() && !current().kill_pending());
    });
}
