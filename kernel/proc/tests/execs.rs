//! execve(2): what it keeps, what it replaces, and what it refuses.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use elfload::ElfError;
use hal::uaccess::{UserPtr, read_cstr};
use proc::exec::ExecFailed;
use proc::group::{GroupError, setpgid};
use proc::image::ExecError;
use proc::process::flag;
use proc::rlimit::Limit;
use proc::signal::{Action, AltStack, SigSet, action, set_action, sig};
use proc::wait4::{Children, WaitError};
use proc::{Resource, SignalExt, UserThreadExt, exit, futex, ids, with_files, with_space};
use programs::{
    MEMORY, PAGE, Refused, catch, count, create, elf, execute, fork_with, install,
    install_bytes, is_asleep, is_pending, join, load, next, run, share_memory, store, take_memory,
    thread, until_asleep,
};
use support::{exited, fork, kill, me, nap, on, user_mode, wait};
use task::current::current;
use task::park::Deadline;
use vfs::FsError;
use vfs::file::o;

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

/// The strings that the list of addresses at `at` names, and the address behind the list.
fn list(mut at: u64) -> (Vec<String>, u64) {
    let mut all = Vec::new();
    loop {
        let word = UserPtr::<u64>::new(at).read().expect("a stack");
        at += 8;
        if word == 0 {
            return (all, at);
        }
        let text = read_cstr(word, 4096).expect("a string");
        all.push(String::from_utf8(text).expect("ASCII"));
    }
}

#[test]
fn a_program_finds_its_arguments_and_environment_on_its_stack() {
    on(1, || {
        install("/p", 0o755, |frame| {
            let argc = UserPtr::<u64>::new(frame.rsp).read();
            let (argv, next) = list(frame.rsp + 8);
            let (envp, aux) = list(next);
            assert_eq!(argc.ok(), Some(3));
            assert_eq!(argv, ["one", "", "three"]);
            assert_eq!(envp, ["HOME=/", "X="]);
            assert_eq!(frame.rsp % 16, 0);
            // A tag of the auxiliary vector follows.
            assert!(UserPtr::<u64>::new(aux).read().is_ok_and(|tag| tag != 0));
            0
        });
        let child = fork(|| {
            let frame = execute("/p", &["one", "", "three"], &["HOME=/", "X="]);
            hal::context::enter_user(&frame.expect("a program"))
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
fn code_may_not_be_written() {
    status_of(
        || (),
        || {
            let code = 0x40_0000;
            assert_eq!(load(code), Some(u32::from_le_bytes(*b"\x7fELF")));
            u8::from(UserPtr::<u32>::new(code).write(&1).is_ok())
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
        let mut seen = [0; 2];
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
            let which = [exited(1), exited(2)].iter().position(|&s| s == status);
            seen[which.expect("one of both")] += 1;
        }
        assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
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
fn a_program_that_cannot_be_loaded_leaves_the_caller_as_it_was() {
    on(2, || {
        install_bytes("/text", 0o755, b"not a program");
        install_bytes("/short", 0o755, &elf::program(0)[..100]);
        install("/private", 0o644, |_| 0);
        install("/huge", 0o755, |_| 0);
        let [code, mut data] = elf::segments();
        data.len = 1 << 47;
        install_bytes("/toolong", 0o755, &elf::file(0, &[code, data], &[]));
        programs::in_child(|| {
            store(MEMORY, 5);
            catch(sig::INT);
            let tid = thread(|| {
                let result = futex::wait(MEMORY, false, 5, futex::ANY, Deadline::Never);
                assert_eq!(result, Ok(()));
            });
            until_asleep(tid);
            let refused = |path| run(path);
            let file = |error| Refused::Exec(ExecError::File(error));
            assert_eq!(refused("/none"), file(FsError::NotFound));
            assert_eq!(refused("/private"), file(FsError::Access));
            assert_eq!(refused("/"), file(FsError::Access));
            let not_elf = Refused::Exec(ExecError::Format(ElfError::NotElf));
            assert_eq!(refused("/text"), not_elf);
            assert!(matches!(refused("/short"), Refused::Exec(ExecError::Format(_))));
            assert!(matches!(refused("/toolong"), Refused::Exec(_)));
            assert!(is_asleep(tid));
            assert_eq!(load(MEMORY), Some(5));
            assert_ne!(action(&me(), sig::INT), Action::default());
            assert_eq!(futex::wake(MEMORY, false, 1, futex::ANY), Ok(1));
            join(tid);
        });
    });
}

#[test]
fn a_file_that_is_open_for_writing_is_not_executed() {
    on(1, || {
        install("/p", 0o755, |_| 0);
        programs::in_child(|| {
            let file = programs::open("/p", o::WRONLY);
            assert!(file.is_some());
            let busy = Refused::Exec(ExecError::File(FsError::TextBusy));
            assert_eq!(run("/p"), busy);
            drop(file);
            assert!(execute("/p", &[], &[]).is_ok());
            // Now it runs.
            assert!(programs::open("/p", o::WRONLY).is_none());
        });
    });
}

#[test]
fn a_limit_of_memory_refuses_a_program_that_is_larger() {
    on(1, || {
        install("/p", 0o755, |_| 0);
        programs::in_child(|| {
            let limit = |soft| Limit {
                soft,
                hard: u64::MAX,
            };
            for which in [Resource::As, Resource::Data] {
                assert!(me().set_limit(which, limit(8 * PAGE), true).is_ok());
                assert_eq!(run("/p"), Refused::Exec(ExecError::NoMemory));
                let none = limit(u64::MAX);
                assert_eq!(me().set_limit(which, none, true), Ok(limit(8 * PAGE)));
            }
            assert!(execute("/p", &[], &[]).is_ok());
        });
    });
}

#[test]
fn a_script_is_run_by_its_interpreter() {
    on(1, || {
        install("/bin", 0o755, |frame| {
            let (argv, _) = list(frame.rsp + 8);
            assert_eq!(argv, ["/bin", "-x y", "/script", "last"]);
            assert_eq!(&me().comm()[..7], b"script\0");
            0
        });
        install_bytes("/script", 0o755, b"#! /bin -x y \nignored\n");
        let child = fork(|| {
            let frame = execute("/script", &["first", "last"], &[]);
            hal::context::enter_user(&frame.expect("a program"))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn scripts_may_interpret_one_another_but_not_without_end() {
    on(1, || {
        install("/s0", 0o755, |_| 0);
        for n in 1..8 {
            let line = format!("#!/s{}\n", n - 1);
            install_bytes(&format!("/s{n}"), 0o755, line.as_bytes());
        }
        install_bytes("/self", 0o755, b"#!/self\n");
        install_bytes("/empty", 0o755, b"#!\n");
        install_bytes("/lost", 0o755, b"#!/none\n");
        programs::in_child(|| {
            assert_eq!(run("/self"), Refused::Exec(ExecError::Loop));
            assert_eq!(run("/s6"), Refused::Exec(ExecError::Loop));
            assert_eq!(run("/empty"), Refused::Exec(ExecError::Script));
            let lost = Refused::Exec(ExecError::File(FsError::NotFound));
            assert_eq!(run("/lost"), lost);
            assert!(execute("/s5", &["/s5"], &[]).is_ok());
        });
    });
}

#[test]
fn a_dynamic_program_begins_in_its_linker() {
    on(1, || {
        let began = count();
        let theirs = began.clone();
        install("/linker", 0o755, move |_| {
            next(&theirs);
            0
        });
        install_bytes("/p", 0o755, &elf::dynamic(MEMORY, "/linker"));
        install_bytes("/q", 0o755, &elf::dynamic(MEMORY, "/none"));
        install_bytes("/text", 0o755, b"no linker, but a text of some length that ends here.......................");
        install_bytes("/r", 0o755, &elf::dynamic(MEMORY, "/text"));
        programs::in_child(move || {
            let lost = Refused::Exec(ExecError::File(FsError::NotFound));
            assert_eq!(run("/q"), lost);
            assert_eq!(run("/r"), Refused::Exec(ExecError::BadInterp));
            let child = fork(|| panic!("{:?}", run("/p")));
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
            assert_eq!(began.load(SeqCst), 1);
            assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
        });
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
            let child = fork(move || panic!("{:?}", run("/p")));
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
