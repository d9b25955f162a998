//! Resource limits, and the accounts of users that RLIMIT_NPROC limits.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use cred::{Charge, Cred};
use hal::uio::IoBuf;
use proc::account::may_exec;
use proc::fork::{CloneArgs, ForkError};
use proc::rlimit::{COUNT, INFINITY, Limit, LimitError, max_threads};
use proc::signal::{SigSet, sig};
use proc::wait4::Children;
use proc::{CredentialsExt, Resource, SignalExt, exit};
use programs::{
    MS, THREAD, become_user, clone_thread, create, is_pending, join, next, seeded, take,
    take_memory, thread, until, with_memory,
};
use support::{exited, fork, kill, me, nap, on, user_mode, wait};
use task::current::current;
use vfs::FsError;

/// A user of the tests.
const USER: u32 = 1000;

fn limit(soft: u64, hard: u64) -> Limit {
    Limit { soft, hard }
}

/// setrlimit(2) by a process without privileges.
fn set(r: Resource, soft: u64, hard: u64) -> Result<Limit, LimitError> {
    me().set_limit(r, limit(soft, hard), false)
}

/// All resources.
fn resources() -> impl Iterator<Item = Resource> {
    (0..COUNT as u32).map(|n| Resource::from_raw(n).expect("a resource"))
}

/// A fork that may fail.
fn try_fork(body: impl Fn() -> u8 + Send + Sync + 'static) -> Result<u32, ForkError> {
    support::clone(0, body)
}

/// Threads, and processes that were not waited for, of user `uid`.
fn held(uid: u32) -> u64 {
    let mut sum = 0;
    task::account::each(|account| {
        if account.uid() == uid {
            sum += account.held(Charge::Threads);
        }
    });
    sum
}

/// Uses so many milliseconds of CPU time, and looks at the timers as a program that ticks interrupt.
fn compute(ms: u64) {
    for _ in 0..ms {
        hal::time::spin_ns(MS);
        user_mode();
    }
}

#[test]
fn a_new_system_has_the_limits_of_linux() {
    on(1, || {
        let of = |r| me().limit(r);
        assert_eq!(of(Resource::Stack), limit(8 << 20, INFINITY));
        assert_eq!(of(Resource::Core), limit(0, INFINITY));
        assert_eq!(of(Resource::Nofile).soft, 1024);
        assert_eq!(of(Resource::Nice), limit(0, 0));
        for r in [Resource::Cpu, Resource::Fsize, Resource::As, Resource::Data] {
            assert_eq!(of(r), limit(INFINITY, INFINITY));
        }
        let half = max_threads() / 2;
        assert_eq!(of(Resource::Nproc), limit(half, half));
        assert_eq!(Resource::from_raw(COUNT as u32), None);
    });
}

#[test]
fn a_soft_limit_is_not_above_the_hard_one() {
    on(1, || {
        for r in resources().filter(|&r| r != Resource::Nproc && r != Resource::Cpu) {
            let before = me().limit(r);
            let inverted = me().set_limit(r, limit(11, 10), true);
            assert_eq!(inverted, Err(LimitError::Inverted));
            assert_eq!(me().limit(r), before);
            assert_eq!(me().set_limit(r, limit(10, 10), true), Ok(before));
            assert_eq!(me().limit(r), limit(10, 10));
        }
    });
}

#[test]
fn a_hard_limit_is_raised_with_privilege_only() {
    on(1, || {
        assert!(set(Resource::Fsize, 50, 100).is_ok());
        assert_eq!(set(Resource::Fsize, 100, 100), Ok(limit(50, 100)));
        let higher = set(Resource::Fsize, 100, 101);
        assert_eq!(higher, Err(LimitError::NotPermitted));
        assert_eq!(set(Resource::Fsize, 0, 99), Ok(limit(100, 100)));
        let privileged = me().set_limit(Resource::Fsize, limit(0, 200), true);
        assert_eq!(privileged, Ok(limit(0, 99)));
        assert_eq!(me().limit(Resource::Fsize), limit(0, 200));
    });
}

#[test]
fn the_number_of_descriptors_has_a_ceiling_for_all() {
    on(1, || {
        let most = 1 << 20;
        let r = Resource::Nofile;
        assert!(me().set_limit(r, limit(most, most), true).is_ok());
        let above = me().set_limit(r, limit(5, most + 1), true);
        assert_eq!(above, Err(LimitError::NotPermitted));
    });
}

#[test]
fn each_limit_is_a_limit_of_its_own() {
    on(1, || {
        for r in resources().filter(|&r| r != Resource::Cpu) {
            assert!(me().set_limit(r, limit(r as u64 + 50, 1000), true).is_ok());
        }
        for r in resources().filter(|&r| r != Resource::Cpu) {
            assert_eq!(me().limit(r), limit(r as u64 + 50, 1000));
        }
        assert_eq!(me().limit(Resource::Cpu), limit(INFINITY, INFINITY));
        let both = me().rlimits([Resource::Stack, Resource::Fsize]);
        assert_eq!(both, [53, 51]);
    });
}

#[test]
fn a_child_inherits_the_limits_and_has_its_own() {
    on(2, || {
        assert!(set(Resource::Fsize, 7, 9).is_ok());
        let child = fork(|| {
            assert_eq!(me().limit(Resource::Fsize), limit(7, 9));
            assert!(set(Resource::Fsize, 1, 2).is_ok());
            assert_eq!(me().limit(Resource::Fsize), limit(1, 2));
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert_eq!(me().limit(Resource::Fsize), limit(7, 9));
    });
}

#[test]
fn the_limits_of_a_parent_that_never_changed_any_stay_when_its_child_does() {
    on(2, || {
        let child = fork(|| u8::from(set(Resource::Stack, 5, 6).is_err()));
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert_eq!(me().limit(Resource::Stack), limit(8 << 20, INFINITY));
        let child = fork(|| u8::from(me().rlimit(Resource::Stack) != 8 << 20));
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
    });
}

#[test]
fn threads_and_the_next_program_have_the_limits_of_the_process() {
    with_memory(2, || {
        let tid = thread(|| assert!(set(Resource::Fsize, 3, 4).is_ok()));
        join(tid);
        take_memory();
        assert_eq!(me().limit(Resource::Fsize), limit(3, 4));
    });
}

#[test]
fn a_file_grows_up_to_its_limit() {
    on(1, || {
        current().set_blocked(SigSet::one(sig::XFSZ));
        let file = create("/file", 0o600);
        assert!(set(Resource::Fsize, 100, INFINITY).is_ok());
        let write = |pos| file.write_at(&mut IoBuf::Drain(&[1; 80]), pos);
        assert_eq!(write(0), Ok(80));
        assert_eq!(write(80), Ok(20));
        assert!(!is_pending(sig::XFSZ));
        assert_eq!(write(100), Err(FsError::TooBig));
        assert!(take(sig::XFSZ).is_some());
        assert!(set(Resource::Fsize, INFINITY, INFINITY).is_ok());
        assert_eq!(write(100), Ok(80));
    });
}

#[test]
fn a_process_beyond_its_cpu_time_is_warned_each_second_and_killed() {
    on(1, || {
        let warned = programs::count();
        let theirs = warned.clone();
        let child = fork(move || {
            current().set_blocked(SigSet::one(sig::XCPU));
            assert!(set(Resource::Cpu, 1, 4).is_ok());
            compute(900);
            assert!(!is_pending(sig::XCPU));
            loop {
                compute(50);
                if take(sig::XCPU).is_some() {
                    next(&theirs);
                }
            }
        });
        let killed = u32::from(sig::KILL);
        assert_eq!(wait(Children::Any), Ok((child, killed)));
        assert_eq!(warned.load(SeqCst), 3);
    });
}

#[test]
fn a_limit_of_cpu_time_ends_a_process_that_does_not_catch_the_signal() {
    on(1, || {
        assert!(set(Resource::Cpu, 1, INFINITY).is_ok());
        // The limit is inherited, the time is not.
        let child = fork(|| {
            compute(800);
            fork(|| {
                compute(800);
                0
            });
            let (_, status) = wait(Children::Any).expect("a child");
            assert_eq!(status, exited(0));
            loop {
                compute(100);
            }
        });
        let ended = u32::from(sig::XCPU);
        assert_eq!(wait(Children::Any), Ok((child, ended)));
    });
}

#[test]
fn a_user_has_as_many_processes_as_the_limit_says() {
    on(2, || {
        let child = fork(|| {
            become_user(USER);
            assert!(set(Resource::Nproc, 4, 4).is_ok());
            let stop = Arc::new(AtomicBool::new(false));
            for _ in 0..3 {
                let stop = stop.clone();
                let made = try_fork(move || {
                    until(|| stop.load(SeqCst));
                    0
                });
                assert!(made.is_ok());
            }
            assert_eq!(try_fork(|| 0), Err(ForkError::Again));
            stop.store(true, SeqCst);
            nap(20);
            // Zombies count until they have been waited for.
            assert_eq!(try_fork(|| 0), Err(ForkError::Again));
            assert!(wait(Children::Any).is_ok());
            assert!(try_fork(|| 0).is_ok());
            assert_eq!(try_fork(|| 0), Err(ForkError::Again));
            while wait(Children::Any).is_ok() {}
            assert_eq!(held(USER), 1);
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert_eq!(held(USER), 0);
    });
}

#[test]
fn threads_count_like_processes() {
    with_memory(2, || {
        become_user(USER);
        assert!(set(Resource::Nproc, 3, 3).is_ok());
        let stop = Arc::new(AtomicBool::new(false));
        let tids = [0, 1].map(|_| {
            let stop = stop.clone();
            thread(move || until(|| stop.load(SeqCst)))
        });
        let args = CloneArgs {
            flags: THREAD,
            ..CloneArgs::default()
        };
        assert_eq!(clone_thread(args, || 0), Err(ForkError::Again));
        assert_eq!(try_fork(|| 0), Err(ForkError::Again));
        stop.store(true, SeqCst);
        tids.into_iter().for_each(join);
        assert_eq!(held(USER), 1);
        assert!(clone_thread(args, || 0).is_ok());
    });
}

#[test]
fn the_processes_of_another_user_do_not_count() {
    on(2, || {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..5 {
            let stop = stop.clone();
            fork(move || {
                become_user(USER + 1);
                until(|| stop.load(SeqCst));
                0
            });
        }
        nap(20);
        assert_eq!(held(USER + 1), 5);
        let child = fork(|| {
            become_user(USER);
            assert!(set(Resource::Nproc, 2, 2).is_ok());
            assert!(try_fork(|| 0).is_ok());
            assert_eq!(try_fork(|| 0), Err(ForkError::Again));
            u8::from(wait(Children::Any).is_err())
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
        stop.store(true, SeqCst);
        while wait(Children::Any).is_ok() {}
        assert_eq!(held(USER + 1), 0);
    });
}

#[test]
fn root_and_privileged_processes_are_not_limited() {
    on(2, || {
        let child = fork(|| {
            assert!(set(Resource::Nproc, 0, 0).is_ok());
            assert!(try_fork(|| 0).is_ok());
            // A user with CAP_SYS_RESOURCE.
            let me = current();
            let user = Cred {
                uid: USER,
                ..(*me.cred()).clone()
            };
            assert!(me.set_cred(user).is_ok());
            assert!(try_fork(|| 0).is_ok());
            become_user(USER);
            assert_eq!(try_fork(|| 0), Err(ForkError::Again));
            while wait(Children::Any).is_ok() {}
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
    });
}

/// Starts so many processes of the user, which run until `stop` holds. They are children of the caller.
fn others(n: u32, stop: &Arc<AtomicBool>) {
    for _ in 0..n {
        let stop = stop.clone();
        fork(move || {
            become_user(USER);
            until(|| stop.load(SeqCst));
            0
        });
    }
    nap(20);
}

/// setuid(2), execve(2): EAGAIN.
#[test]
fn a_process_of_a_user_with_too_many_may_execute_once_there_are_fewer() {
    on(2, || {
        let stop = Arc::new(AtomicBool::new(false));
        others(4, &stop);
        let theirs = stop.clone();
        let child = fork(move || {
            assert!(set(Resource::Nproc, 3, 3).is_ok());
            assert!(may_exec(&current()));
            become_user(USER);
            assert!(!may_exec(&current()));
            theirs.store(true, SeqCst);
            nap(20);
            // Zombies still count.
            assert!(!may_exec(&current()));
            nap(100);
            u8::from(may_exec(&current()))
        });
        nap(70);
        for _ in 0..4 {
            assert_ne!(wait(Children::Any).expect("a child").0, child);
        }
        assert_eq!(wait(Children::Any), Ok((child, exited(1))));
    });
}

#[test]
fn a_process_that_becomes_one_of_a_user_does_not_count_at_that_moment() {
    on(2, || {
        let stop = Arc::new(AtomicBool::new(false));
        others(3, &stop);
        let child = fork(|| {
            assert!(set(Resource::Nproc, 3, 3).is_ok());
            become_user(USER);
            assert_eq!(try_fork(|| 0), Err(ForkError::Again));
            u8::from(may_exec(&current()))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
        stop.store(true, SeqCst);
        while wait(Children::Any).is_ok() {}
    });
}

/// Root's processes do not count, whatever their number.
#[test]
fn a_child_of_a_process_that_may_not_execute_may_not_either() {
    on(2, || {
        let stop = Arc::new(AtomicBool::new(false));
        others(4, &stop);
        let child = fork(|| {
            become_user(USER);
            assert!(set(Resource::Nproc, 3, 3).is_ok());
            let me = current();
            let same = Cred {
                caps: cred::Caps::FULL,
                ..(*me.cred()).clone()
            };
            // It may fork by a privilege, but it is too many all the same.
            assert!(
                me.set_cred(Cred {
                    uid: 0,
                    ..same.clone()
                })
                .is_ok()
            );
            assert!(me.set_cred(same).is_ok());
            assert!(!may_exec(&current()));
            assert!(try_fork(|| u8::from(may_exec(&current()))).is_ok());
            let (_, status) = wait(Children::Any).expect("a child");
            // What the fork cleared for the parent, the child has.
            assert_eq!(status, exited(0));
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
        stop.store(true, SeqCst);
        while wait(Children::Any).is_ok() {}
    });
}

#[test]
fn a_process_that_reaches_the_limit_exactly_may_execute() {
    on(2, || {
        let child = fork(|| {
            assert!(set(Resource::Nproc, 1, 1).is_ok());
            become_user(USER);
            u8::from(may_exec(&current()))
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(1))));
    });
}

#[test]
fn a_thread_of_another_user_is_charged_to_that_one() {
    on(2, || {
        let child = fork(|| {
            take_memory();
            become_user(USER);
            thread(|| {
                become_any(USER + 1);
                nap(50);
            });
            nap(20);
            exit::exit_thread(0)
        });
        nap(10);
        assert_eq!((held(USER), held(USER + 1)), (1, 1));
        nap(30);
        assert_eq!(held(USER + 1), 1);
        nap(60);
        // The thread has ended: the process itself is its first user's.
        assert_eq!((held(USER), held(USER + 1)), (1, 0));
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert_eq!((held(USER), held(USER + 1)), (0, 0));
    });
}

/// The calling thread becomes one of another user, whatever its rights are.
fn become_any(uid: u32) {
    let me = current();
    let user = Cred {
        uid,
        ..(*me.cred()).clone()
    };
    me.set_cred(user).expect("memory for an account");
}

#[test]
fn the_charges_of_random_processes_agree_with_a_reference() {
    for seed in 0..8 {
        on(2, move || {
            let mut random = seeded(seed);
            // By pid: the user, and the threads; 0 threads for a zombie.
            let mut all = BTreeMap::<u32, (u32, u64)>::new();
            for step in 0..80 {
                let pids: Vec<u32> = all.keys().copied().collect();
                let one = pids.get(random.below(8)).copied();
                match (random.below(4), one) {
                    (0 | 1, None) => {
                        let (uid, more) = (1 + random.below(3) as u32, random.below(4));
                        let pid = fork(move || crowd(uid, more));
                        all.insert(pid, (uid, 1 + more as u64));
                    }
                    (2, Some(pid)) if all[&pid].1 > 0 => {
                        assert!(kill(pid, sig::KILL));
                        all.insert(pid, (all[&pid].0, 0));
                    }
                    (3, Some(pid)) if all[&pid].1 == 0 => {
                        assert!(wait(Children::Pid(pid)).is_ok());
                        all.remove(&pid);
                    }
                    _ => {}
                }
                nap(10);
                for uid in 1..4 {
                    let own = all.values().filter(|(user, _)| *user == uid);
                    let sum: u64 = own.map(|(_, threads)| (*threads).max(1)).sum();
                    assert_eq!(held(uid), sum, "user {uid}, seed {seed}, step {step}");
                }
            }
            all.keys().for_each(|&pid| assert!(kill(pid, sig::KILL)));
            while wait(Children::Any).is_ok() {}
            assert_eq!((1..4).map(held).sum::<u64>(), 0);
        });
    }
}

/// The program of a process of user `uid` with `more` threads besides its first.
fn crowd(uid: u32, more: usize) -> u8 {
    take_memory();
    become_user(uid);
    for _ in 0..more {
        thread(|| {
            loop {
                nap(1000);
                user_mode();
            }
        });
    }
    loop {
        nap(1000);
        user_mode();
    }
}
