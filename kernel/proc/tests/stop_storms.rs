//! Processes that are stopped, continued and killed while their threads come and go, and while others look at them.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
#[path = "support/storm.rs"]
mod storms;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use proc::group::setsid;
use proc::signal::{self, SA_NOCLDSTOP, sig};
use proc::wait4::Children;
use proc::{UserThreadExt, ids};
use signals::*;
use storms::{CPUS, Sum, meanwhile, on_all, storm};
use support::{exited, fork, me, nap, user_mode, wait};

/// A job whose threads come and go.
fn busy_job() -> u32 {
    job(|| {
        loop {
            if me().thread_count() < 3 {
                let _ = try_thread(|| block(&[USR1]));
            }
            nap(1);
            user_mode();
        }
    })
}

/// Reads what a stop and a continuation change in a process.
fn look(pid: u32) {
    if let Some(p) = ids::find_process(pid) {
        assert_eq!(signal::action(&p, USR2).handler, 0);
        p.each_thread(|t| t.process().pid() == pid);
    }
}

#[test]
fn a_process_can_be_stopped_and_continued_whatever_others_did_to_it() {
    const JOBS: usize = 3;
    const STEPS: usize = 150;
    on_all(|| {
        setsid().expect("the leader of no group");
        block(&[sig::CHLD]);
        let jobs: Arc<[u32]> = (0..JOBS).map(|_| busy_job()).collect();
        let theirs = jobs.clone();
        storm(CPUS, move |_, random| {
            for _ in 0..STEPS {
                let pid = theirs[random.below(JOBS)];
                let signo = [sig::STOP, sig::TSTP, sig::CONT][random.below(3)];
                match random.below(8) {
                    0..2 => kill_pid(pid, signo).expect("a child"),
                    2 => kill_group(pid, signo).expect("a group"),
                    3 => tkill(pid, signo).expect("its leader lives"),
                    4 => {
                        let flags = SA_NOCLDSTOP * random.below_u64(2);
                        action(sig::CHLD, 0, flags);
                    }
                    5 => set_mask(mask()),
                    6 => (0..10).for_each(|_| look(pid)),
                    _ => {
                        let event = poll_event(Children::Pid(pid));
                        let known = [sig::STOP, sig::TSTP].map(stopped_by);
                        assert!(event.is_none_or(|e| e == continued() || known.contains(&e)));
                    }
                }
            }
        });
        for &pid in &*jobs {
            kill_pid(pid, sig::CONT).expect("a child");
            while poll_event(Children::Pid(pid)).is_some() {}
            kill_pid(pid, sig::STOP).expect("a child");
            assert_eq!(next_event(Children::Pid(pid)), (pid, stopped_by(sig::STOP)));
            kill_pid(pid, sig::CONT).expect("a child");
            assert_eq!(next_event(Children::Pid(pid)), (pid, continued()));
            end(pid);
        }
    });
}

/// Runs `act`, which gets a place for the pid of the process that it is about, in some threads, while others look at these
/// processes.
fn under_looks(rounds: usize, act: impl Fn(&AtomicU32) + Send + Sync + 'static) {
    let act = Arc::new(act);
    on_all(move || {
        setsid().expect("the leader of no group");
        let (act, done) = (act.clone(), Sum::default());
        let about = Arc::new([const { AtomicU32::new(0) }; 2]);
        storm(CPUS, move |n, _| {
            if let Some(about) = about.get(n) {
                (0..rounds).for_each(|_| act(about));
                done.add(1);
            } else {
                let watched = &about[n - about.len()];
                meanwhile(|| done.get() < 2, || look(watched.load(SeqCst)));
            }
        });
    });
}

#[test]
fn a_stopped_process_that_is_killed_ends() {
    under_looks(15, |about| {
        let pid = job(|| {
            let _ = try_thread(|| idle());
            idle()
        });
        about.store(pid, SeqCst);
        stop(pid);
        end(pid);
    });
}

#[test]
fn a_stopped_job_whose_parent_ends_is_hung_up() {
    under_looks(10, |about| {
        let stopped = Arc::new(AtomicU32::new(0));
        let made = stopped.clone();
        let parent = fork(move || {
            let pid = job(|| idle());
            made.store(pid, SeqCst);
            stop(pid);
            0
        });
        until(|| stopped.load(SeqCst) != 0);
        let pid = stopped.load(SeqCst);
        about.store(pid, SeqCst);
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        // It is init's child now, which does not wait for it.
        until(|| ids::find_process(pid).is_none_or(|p| p.is_zombie()));
    });
}
