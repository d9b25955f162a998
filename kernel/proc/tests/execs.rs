//! execve(2): what it keeps, what it replaces, and what it meets.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use proc::exec::ExecFailed;
use proc::group::{GroupError, setpgid};
use proc::process::flag;
use proc::signal::{Action, AltStack, SigSet, action, set_action, sig};
use proc::wait4::Children;
use proc::{SignalExt, UserThreadExt, exit, ids, with_files, with_space};
use programs::{
    MEMORY, PAGE, Refused, catch, count, create, fork_with, install, is_pending, load, next, run,
    share_memory, store, take_memory, thread, until_asleep, with_memory,
};
use support::{exited, fork, kill, me, nap, on, user_mode, wait};
use task::current::current;

/// Runs `before` and then the program `/p` in a child of init; `after` is the program's code. Returns the wait4 status.
fn status_of(
    before: impl Fn() + Send + Sync + 'static,
    after: impl Fn() -> u8 + Send + Sync + 'static,
) {
    on(2, move || {
        install("/p", 0o755, move |_| after());
        let child = fork(move || {
            take_memory();
            before();
            panic!("{:?}", run("/p"))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn the_memory_of_the_old_program_is_gone() {
    status_of(
        || {
            share_memory();
            store(MEMORY, 77);
            store(programs::SHARED, 78);
        },
        || {
            assert_eq!(load(MEMORY), Some(0));
            assert_eq!(load(programs::SHARED), None);
            store(MEMORY + 15 * PAGE, 3);
            0
        },
    );
}

#[test]
fn caught_signals_get_their_default_and_ignored_ones_stay_ignored() {
    status_of(
        || {
            catch(sig::INT);
            let ignore = Action {
                handler: 1,
                flags: 0x1000_0000,
                mask: 5,
                ..Action::default()
            };
            set_action(&me(), sig::HUP, ignore);
        },
        || {
            assert_eq!(action(&me(), sig::INT), Action::default());
            let ignored = Action {
                handler: 1,
                ..Action::default()
            };
            assert_eq!(action(&me(), sig::HUP), ignored);
            0
        },
    );
}

#[test]
fn blocked_and_pending_signals_stay_so() {
    status_of(
        || {
            current().set_blocked(SigSet::of(&[sig::INT, sig::TSTP]));
            assert!(kill(me().pid(), sig::INT));
        },
        || {
            assert_eq!(current().blocked(), SigSet::of(&[sig::INT, sig::TSTP]));
            assert!(is_pending(sig::INT));
            assert!(!is_pending(sig::TSTP));
            0
        },
    );
}

#[test]
fn the_alternate_stack_and_the_robust_list_are_not_kept() {
    status_of(
        || {
            let stack = AltStack {
                sp: MEMORY,
                size: 8192,
                flags: 0,
            };
            current().set_altstack(stack);
            current().set_robust_list(MEMORY + 64);
            current().set_clear_child_tid(MEMORY + 128);
        },
        || {
            assert_eq!(current().altstack(), AltStack::NONE);
            assert_eq!(current().robust_list(), 0);
            assert_eq!(current().clear_child_tid(), 0);
            0
        },
    );
}

#[test]
fn a_lock_that_the_old_program_held_is_marked() {
    on(2, || {
        install("/p", 0o755, |_| 0);
        programs::in_child(|| {
            share_memory();
            let (head, lock) = (programs::SHARED, programs::SHARED + 256);
            let child = fork(move || {
                store(lock, current().tid());
                let words = [lock - 16, 16, 0];
                for (i, word) in (0..).zip(words) {
                    programs::store_long(head + 8 * i, word);
                }
                programs::store_long(lock - 16, head);
                current().set_robust_list(head);
                panic!("{:?}", run("/p"))
            });
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
            assert_eq!(load(lock), Some(0x4000_0000));
        });
    });
}

#[test]
fn descriptors_are_kept_but_those_to_be_closed() {
    status_of(
        || {
            for (name, cloexec) in [("/a", false), ("/b", true), ("/c", false), ("/d", true)] {
                let file = create(name, 0o600);
                let fd = with_files(|files| files.add(file, cloexec, 0, 100));
                assert!(matches!(fd, Some(Ok(_))));
            }
        },
        || {
            let open = |fd| with_files(|files| files.get(fd).is_ok()) == Some(true);
            assert_eq!([0, 1, 2, 3].map(open), [true, false, true, false]);
            0
        },
    );
}

#[test]
fn a_table_that_another_process_shares_is_copied_first() {
    on(2, || {
        install("/p", 0o755, |_| {
            let open = |fd| with_files(|files| files.get(fd).is_ok()) == Some(true);
            assert_eq!([0, 1].map(open), [true, false]);
            let closed = with_files(|files| files.remove(0).is_ok());
            u8::from(closed != Some(true))
        });
        programs::in_child(|| {
            for (name, cloexec) in [("/a", false), ("/b", true)] {
                let file = create(name, 0o600);
                let fd = with_files(|files| files.add(file, cloexec, 0, 100));
                assert!(matches!(fd, Some(Ok(_))));
            }
            let child = support::clone(raw::CLONE_FILES.into(), || panic!("{:?}", run("/p")));
            assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(0))));
            assert_eq!(me().open_descriptors(), 2);
        });
    });
}

#[test]
fn actions_that_another_process_shares_are_copied_first() {
    on(2, || {
        install("/p", 0o755, |_| {
            assert_eq!(action(&me(), sig::INT), Action::default());
            0
        });
        programs::in_child(|| {
            catch(sig::INT);
            let flags = u64::from(raw::CLONE_VM | raw::CLONE_SIGHAND);
            let child = support::clone(flags, || panic!("{:?}", run("/p")));
            assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(0))));
            assert_ne!(action(&me(), sig::INT), Action::default());
        });
    });
}

#[test]
fn a_program_has_the_name_of_its_file() {
    on(1, || {
        let name = "/a-name-with-more-than-fifteen-bytes";
        install(name, 0o755, |_| {
            let comm = me().comm();
            assert_eq!(&comm[..], b"a-name-with-mor\0");
            assert_eq!(current().comm(), comm);
            0
        });
        let child = fork(move || panic!("{:?}", run(name)));
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn the_parent_of_a_vfork_goes_on_when_the_child_executes() {
    on(2, || {
        let ended = count();
        let theirs = ended.clone();
        install("/p", 0o755, move |_| {
            nap(50);
            next(&theirs);
            3
        });
        programs::in_child(move || {
            let flags = u64::from(raw::CLONE_VM | raw::CLONE_VFORK);
            store(MEMORY, 1);
            let child = support::clone(flags, || {
                nap(20);
                store(MEMORY, 2);
                panic!("{:?}", run("/p"))
            });
            assert_eq!(load(MEMORY), Some(2));
            assert_eq!(ended.load(SeqCst), 0);
            assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(3))));
        });
    });
}

#[test]
fn a_parent_cannot_move_a_child_that_has_executed() {
    on(2, || {
        install("/p", 0o755, |_| {
            nap(50);
            0
        });
        let child = fork(|| {
            nap(20);
            panic!("{:?}", run("/p"))
        });
        assert_eq!(setpgid(child, child), Ok(()));
        assert_eq!(setpgid(child, me().pgid()), Ok(()));
        nap(40);
        assert_eq!(setpgid(child, child), Err(GroupError::Executed));
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn mappings_of_the_new_program_are_not_locked() {
    status_of(
        || me().set_switch(flag::LOCK_FUTURE | flag::LOCK_ON_FAULT, true),
        || u8::from(me().flag(flag::LOCK_FUTURE | flag::LOCK_ON_FAULT)),
    );
}

#[test]
fn the_other_threads_have_ended_when_the_program_begins() {
    let ran = count();
    let (theirs, seen) = (ran.clone(), Arc::new(AtomicU32::new(0)));
    status_of(
        move || {
            for n in 0..6 {
                let ran = theirs.clone();
                let tid = thread(move || {
                    loop {
                        if n % 2 == 0 {
                            hal::time::spin_ns(5_000);
                        } else {
                            nap(1000);
                        }
                        user_mode();
                        next(&ran);
                    }
                });
                if n % 2 == 1 {
                    until_asleep(tid);
                }
            }
        },
        move || {
            assert_eq!(me().thread_count(), 1);
            seen.store(ran.load(SeqCst), SeqCst);
            nap(100);
            assert_eq!(ran.load(SeqCst), seen.load(SeqCst));
            0
        },
    );
}

#[test]
fn a_thread_that_executes_becomes_the_leader() {
    status_of(
        || {
            let pid = me().pid();
            let tid = thread(move || {
                assert_ne!(current().tid(), pid);
                panic!("{:?}", run("/p"))
            });
            assert_ne!(tid, pid);
            loop {
                nap(1000);
                user_mode();
            }
        },
        || {
            assert_eq!(current().tid(), me().pid());
            assert_eq!(me().thread_count(), 1);
            assert_eq!(me().threads_shown(), 1);
            assert!(ids::find_thread(me().pid()).is_some());
            0
        },
    );
}

#[test]
fn a_thread_executes_after_the_leader_has_exited() {
    status_of(
        || {
            thread(|| {
                nap(30);
                panic!("{:?}", run("/p"))
            });
            exit::exit_thread(4)
        },
        || u8::from(current().tid() != me().pid()),
    );
}

#[test]
fn of_two_threads_that_execute_at_once_one_runs_its_program() {
    on(4, || {
        let begun = count();
        for name in ["/p", "/q"] {
            let begun = begun.clone();
            install(name, 0o755, move |_| {
                next(&begun);
                assert_eq!(me().thread_count(), 1);
                assert_eq!(current().tid(), me().pid());
                0
            });
        }
        for round in 0..30 {
            let child = fork(move || {
                take_memory();
                thread(|| {
                    let why = run("/q");
                    assert_eq!(why, Refused::Failed(ExecFailed::Dying));
                });
                hal::time::spin_ns(round * 1500);
                let why = run("/p");
                assert_eq!(why, Refused::Failed(ExecFailed::Dying));
                user_mode();
                panic!("a thread that lost goes on")
            });
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
            assert_eq!(begun.load(SeqCst), round as u32 + 1);
        }
    });
}

#[test]
fn an_execve_beside_an_exit_of_the_group_ends_or_runs() {
    on(2, || {
        install("/p", 0o755, |_| 1);
        for round in 0..60u64 {
            let child = fork(move || {
                take_memory();
                thread(|| {
                    hal::time::spin_ns(40_000);
                    exit::exit_group(2)
                });
                hal::time::spin_ns(round * 3000);
                let why = run("/p");
                assert_eq!(why, Refused::Failed(ExecFailed::Dying));
                user_mode();
                panic!("a process that has ended goes on")
            });
            let (_, status) = wait(Children::Pid(child)).expect("the child");
            assert!([exited(1), exited(2)].contains(&status), "{status:#x}");
        }
    });
}

#[test]
fn a_child_of_another_exit_signal_is_an_ordinary_one_after_its_execve() {
    on(2, || {
        install("/p", 0o755, |_| 0);
        current().set_blocked(SigSet::of(&[sig::INT, sig::CHLD]));
        let child = fork_with(sig::INT, 0, || panic!("{:?}", run("/p")));
        nap(30);
        assert!(is_pending(sig::CHLD) && !is_pending(sig::INT));
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn a_child_of_another_exit_signal_tells_only_the_program_that_made_it() {
    on(2, || {
        install("/p", 0o755, |_| {
            nap(50);
            assert!(is_pending(sig::CHLD) && !is_pending(sig::INT));
            0
        });
        let parent = fork(|| {
            let set = SigSet::of(&[sig::INT, sig::CHLD]);
            current().set_blocked(set);
            fork_with(sig::INT, 0, || {
                nap(20);
                1
            });
            panic!("{:?}", run("/p"))
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
    });
}

#[test]
fn a_kill_ends_a_program_that_has_just_begun() {
    on(2, || {
        install("/p", 0o755, |_| {
            loop {
                nap(1000);
                user_mode();
            }
        });
        for round in 0..40u64 {
            let child = fork(|| {
                let failed = run("/p");
                // The kill may come before the program.
                user_mode();
                panic!("{failed:?}")
            });
            hal::time::spin_ns(round * 4000);
            assert!(kill(child, sig::KILL));
            let killed = u32::from(sig::KILL);
            assert_eq!(wait(Children::Pid(child)), Ok((child, killed)));
        }
    });
}

#[test]
fn a_space_of_two_processes_stays_with_the_one_that_does_not_execute() {
    on(2, || {
        install("/p", 0o755, |_| 0);
        programs::in_child(|| {
            store(MEMORY, 9);
            let child = support::clone(raw::CLONE_VM.into(), || panic!("{:?}", run("/p")));
            assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(0))));
            assert_eq!(load(MEMORY), Some(9));
            let mapped = with_space(|space| space.usage(mem::vm()).mapped);
            assert_eq!(mapped, Some(16));
        });
    });
}

#[test]
fn the_calls_of_a_new_program_act_on_its_memory() {
    with_memory(1, || {
        let address = || with_space(|space| Arc::as_ptr(space) as usize);
        let before = address();
        take_memory();
        assert_ne!(address(), before);
        let own = me().space().map(|space| Arc::as_ptr(&space) as usize);
        assert_eq!(address(), own);
    });
}
