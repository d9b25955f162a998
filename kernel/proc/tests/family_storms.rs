//! Processes that fork, end, are orphaned and are waited for, all at once: each end is reported once.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
#[path = "support/storm.rs"]
mod storms;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use proc::exit::{exit_group, exit_thread};
use proc::reaper::set_subreaper;
use proc::signal::{self, sig};
use proc::wait4::{Children, Event, Kind, Options, WaitError};
use proc::{UserThreadExt, ids};
use signals::*;
use storms::{CPUS, Sum, actions_are_whole, change_action, meanwhile, on_all, storm};
use support::{clone, exited, fork, me, nap, on, user_mode, wait};
use vm_host::random::Random;

/// Children that each thread makes.
const CHILDREN: usize = 25;

/// Options of a wait for the end of a child.
const ENDED: Options = Options {
    exited: true,
    stopped: false,
    continued: false,
    keep: false,
    no_hang: false,
    own: false,
    kind: Kind::Usual,
};

/// WNOHANG.
const POLL: Options = Options {
    no_hang: true,
    ..ENDED
};

/// A child that does something for a while, or nothing, and exits with a status, which is returned, too.
fn child(random: &mut Random) -> (u32, u8) {
    let (status, pause) = (1 + random.below(100) as u8, random.below(40));
    let pid = fork(move || {
        for _ in 0..pause {
            block(&[USR1]);
        }
        assert!(actions_are_whole());
        status
    });
    (pid, status)
}

/// The exit code of a child that has ended by itself.
fn code_of(event: Event) -> u64 {
    match event {
        Event::Exited(status) if status & 0xff == 0 => u64::from(status >> 8),
        other => panic!("{other:?}"),
    }
}

/// Waits for the child `pid`, at first so many times without sleeping.
fn wait_for_one(pid: u32, polls: usize) -> u64 {
    for options in std::iter::repeat_n(POLL, polls).chain([ENDED]) {
        let report = wait_for(Children::Pid(pid), options).expect("a child until it is reported");
        if let Some((_, event)) = report {
            return code_of(event);
        }
        // Time passes.
        user_mode();
    }
    unreachable!("the last wait sleeps")
}

#[test]
fn threads_that_wait_for_their_own_children_get_each_status() {
    on_all(|| {
        storm(CPUS, |_, random| {
            for _ in 0..CHILDREN {
                let (pid, status) = child(random);
                change_action(random);
                assert_eq!(wait_for_one(pid, random.below(60)), status.into());
                let used = me().child_times().user_ns;
                assert!(me().child_times().user_ns >= used, "used time decreases");
            }
        });
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
    });
}

#[test]
fn threads_that_wait_for_any_child_get_each_once() {
    on_all(|| {
        let (made, got) = (Sum::default(), Sum::default());
        let (theirs, seen) = (made.clone(), got.clone());
        storm(CPUS, move |_, random| {
            for _ in 0..CHILDREN {
                theirs.add(child(random).1.into());
                let kept = Options { keep: true, ..POLL };
                let _ = wait_for(Children::Any, kept).expect("it has children");
                let (_, event) = wait_for(Children::Any, ENDED)
                    .expect("a child")
                    .expect("it waits");
                seen.add(code_of(event));
            }
        });
        assert_eq!(got.get(), made.get());
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
    });
}

#[test]
fn siblings_made_on_each_cpu_are_reported_once() {
    on_all(|| {
        let reported = Sum::default();
        let seen = reported.clone();
        for _ in 0..CPUS {
            fork(|| {
                for _ in 0..CHILDREN {
                    clone(raw::CLONE_PARENT.into(), || 0).expect("memory for a process");
                }
                0
            });
        }
        storm(2, move |_, _| {
            while wait(Children::Any) != Err(WaitError::NoChild) {
                seen.add(1);
            }
        });
        assert_eq!(reported.get(), (CPUS * (1 + CHILDREN)) as u64);
    });
}

/// Waits for children of the caller, asleep or not, as long as fewer than `total` have been reported.
fn reap(reported: &Sum, total: u64, asleep: bool) {
    meanwhile(
        || reported.get() < total,
        || {
            let options = if asleep { ENDED } else { POLL };
            if let Ok(Some(_)) = wait_for(Children::Any, options) {
                reported.add(1);
            }
        },
    );
}

#[test]
fn orphans_are_reported_to_a_reaper_once() {
    const ORPHANS: usize = 3;
    on_all(|| {
        set_subreaper(&me(), true);
        let reported = Sum::default();
        let total = (2 * CHILDREN * (1 + ORPHANS)) as u64;
        let seen = reported.clone();
        storm(CPUS, move |n, random| match n {
            0..2 => {
                for _ in 0..CHILDREN {
                    let seed = 1 + random.below_u64(1 << 20);
                    fork(move || {
                        let mut random = Random(seed);
                        for _ in 0..ORPHANS {
                            child(&mut random);
                        }
                        0
                    });
                    change_action(random);
                }
            }
            n => reap(&seen, total, n == 2 && random.one_in(2)),
        });
        assert_eq!(reported.get(), total);
        assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
    });
}

/// A reaper may end while it is to get the children of another process that ends.
#[test]
fn no_orphan_is_lost_between_two_processes_that_end() {
    const ORPHANS: u32 = 8;
    on(CPUS, || {
        let mut random = Random(7);
        for _ in 0..60 {
            let (first, second) = (random.below(60), random.below(60));
            let go = Arc::new(AtomicU32::new(0));
            let reaper = fork(move || {
                set_subreaper(&me(), true);
                let go = go.clone();
                let theirs = go.clone();
                fork(move || {
                    for n in 0..ORPHANS {
                        fork(move || {
                            nap(u64::from(n % 2));
                            0
                        });
                    }
                    theirs.store(1, SeqCst);
                    (0..first).for_each(|_| block(&[USR1]));
                    0
                });
                until(|| go.load(SeqCst) == 1);
                (0..second).for_each(|_| block(&[USR1]));
                0
            });
            let mut seen = 0;
            while let Ok((pid, status)) = wait(Children::Any) {
                assert_eq!(status, exited(0), "process {pid}");
                seen += 1;
            }
            assert_eq!(seen, ORPHANS + 2, "descendants of {reaper}");
        }
    });
}

/// How a process with several threads ends.
#[derive(Clone, Copy)]
enum End {
    /// Each thread by itself.
    Alone,
    /// The first one ends all.
    Together,
    /// A thread that is not the leader calls execve, and the new program ends.
    Execs,
}

/// The status of a process that does not end thread by thread.
const TOGETHER: u8 = 7;

/// Makes threads that make threads, all of which end soon, and ends as told.
fn live_and_end(end: End, pause: usize) -> ! {
    if pause.is_multiple_of(2) {
        // Memory, whose end is part of the process's.
        exec();
    }
    for n in 0..3 {
        // The process may be ending already.
        let _ = try_thread(move || {
            for _ in 0..pause {
                me().each_thread(|t| !t.is_kernel());
                block(&[USR1]);
            }
            let _ = try_thread(|| unblock(&[USR1]));
            if n == 1 && matches!(end, End::Execs) && try_exec().is_ok() {
                exit_group(TOGETHER.into());
            }
        });
    }
    match end {
        End::Alone => exit_thread(0),
        End::Together => exit_group(TOGETHER.into()),
        End::Execs => idle(),
    }
}

/// What /proc shows of a process, read while it ends, and a signal to it.
fn look(pid: u32) {
    if let Some(p) = ids::find_process(pid) {
        let before = p.times().user_ns;
        assert_ne!(p.comm()[0], 0, "a process has a name");
        let _ = signal::action(&p, USR1);
        // It ignores this one.
        assert_eq!(
            signal::queue_process(&p, my_info(sig::URG, QUEUE, 0)),
            Ok(())
        );
        p.each_thread(|t| t.process().pid() == pid);
        assert!(p.times().user_ns >= before, "used time decreases");
    }
}

#[test]
fn processes_whose_threads_end_at_once_have_the_status_that_was_asked_for() {
    on_all(|| {
        let running = Arc::new([const { AtomicU32::new(0) }; 2]);
        let busy = Sum::default();
        storm(CPUS, move |n, random| {
            if n >= running.len() {
                let mut at = 0;
                return meanwhile(
                    || busy.get() < 2,
                    || {
                        at ^= 1;
                        look(running[at].load(SeqCst));
                    },
                );
            }
            for _ in 0..CHILDREN {
                let end = [End::Alone, End::Together, End::Execs][random.below(3)];
                let pause = random.below(20);
                let pid = fork(move || live_and_end(end, pause));
                running[n].store(pid, SeqCst);
                let status = wait_for_one(pid, 0);
                let alone = matches!(end, End::Alone);
                assert_eq!(status, if alone { 0 } else { TOGETHER.into() });
            }
            busy.add(1);
        });
    });
}
