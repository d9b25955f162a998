//! Threads and processes that clone(2) makes, what they share, and how a group of threads ends.
#![cfg(not(shuttle))]

mod programs;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use hal::UserFrame;
use hal::frame::VECTOR_SYSCALL;
use hal::sim::program;
use proc::fork::{self, CloneArgs, ForkError};
use proc::futex::{self, ANY};
use proc::process::flag;
use proc::reaper::set_subreaper;
use proc::signal::{SigSet, action, sig};
use proc::wait4::{self, Children, Kind, Options, WaitError};
use proc::{SignalExt, UserThreadExt, exit, ids, with_files, with_fs};
use programs::{
    MEMORY, THREAD, catch, clone_thread, count, create, fork_with, in_child, join, load, next,
    store, thread, until, until_asleep, with_memory,
};
use support::{exited, fork, kill, me, nap, on, poll, user_mode, wait};
use task::current::current;
use task::park::Deadline;
use vfs::FsError;

/// clone(2) with these flags and exit signal, which must fail.
fn refused(flags: u64, exit_signal: u8) -> Option<ForkError> {
    let args = CloneArgs {
        flags,
        exit_signal,
        ..CloneArgs::default()
    };
    clone_thread(args, || panic!("a thread that must not be made")).err()
}

/// Threads that run until they are killed.
fn forever() -> u32 {
    thread(|| {
        loop {
            nap(1000);
            user_mode();
        }
    })
}

#[test]
fn flags_that_contradict_one_another_are_refused() {
    with_memory(1, || {
        let flags = |flags: u32| refused(flags.into(), sig::CHLD);
        let invalid = Some(ForkError::Invalid);
        assert_eq!(flags(raw::CLONE_THREAD), invalid);
        assert_eq!(flags(raw::CLONE_THREAD | raw::CLONE_VM), invalid);
        assert_eq!(flags(raw::CLONE_THREAD | raw::CLONE_SIGHAND), invalid);
        assert_eq!(flags(raw::CLONE_SIGHAND), invalid);
        assert_eq!(flags(raw::CLONE_FS | raw::CLONE_NEWNS), invalid);
        assert_eq!(refused(0, 65), invalid);
        assert_eq!(poll(), Err(WaitError::NoChild));
        assert_eq!(me().thread_count(), 1);
    });
}

#[test]
fn init_makes_no_siblings() {
    on(1, || {
        let flags = u64::from(raw::CLONE_PARENT);
        assert_eq!(refused(flags, sig::CHLD), Some(ForkError::Invalid));
    });
}

#[test]
fn a_base_of_thread_local_storage_must_be_a_users_address() {
    with_memory(1, || {
        let args = CloneArgs {
            flags: THREAD | u64::from(raw::CLONE_SETTLS),
            tls: 1 << 63,
            ..CloneArgs::default()
        };
        let made = clone_thread(args, || 0);
        assert_eq!(made, Err(ForkError::NotPermitted));
        assert_eq!(me().thread_count(), 1);
    });
}

#[test]
fn a_thread_has_its_own_tid_and_the_pid_of_its_process() {
    with_memory(2, || {
        let (pid, seen) = (me().pid(), count());
        let theirs = seen.clone();
        let tid = thread(move || {
            assert_eq!(me().pid(), pid);
            assert_ne!(current().tid(), pid);
            theirs.store(current().tid(), SeqCst);
        });
        join(tid);
        assert_eq!(seen.load(SeqCst), tid);
        assert_eq!(poll(), Err(WaitError::NoChild));
    });
}

#[test]
fn a_new_threads_tid_is_stored_where_clone_says() {
    with_memory(2, || {
        let flags = raw::CLONE_PARENT_SETTID | raw::CLONE_CHILD_SETTID | raw::CLONE_CHILD_CLEARTID;
        let args = CloneArgs {
            flags: THREAD | u64::from(flags),
            parent_tid: MEMORY,
            child_tid: MEMORY + 8,
            ..CloneArgs::default()
        };
        let tid = clone_thread(args, || {
            nap(20);
            0
        });
        let tid = tid.expect("a thread");
        assert_eq!((load(MEMORY), load(MEMORY + 8)), (Some(tid), Some(tid)));
        join(tid);
        assert_eq!((load(MEMORY), load(MEMORY + 8)), (Some(tid), Some(0)));
    });
}

#[test]
fn a_forked_childs_tid_is_stored_in_its_own_memory() {
    with_memory(2, || {
        store(MEMORY, 7);
        let flags = raw::CLONE_CHILD_SETTID | raw::CLONE_CHILD_CLEARTID;
        let args = CloneArgs {
            flags: flags.into(),
            exit_signal: sig::CHLD,
            child_tid: MEMORY,
            ..CloneArgs::default()
        };
        let child = clone_thread(args, || u32::from(load(MEMORY) == Some(current().tid())));
        let child = child.expect("a child");
        assert_eq!(wait(Children::Any), Ok((child, exited(1))));
        assert_eq!(load(MEMORY), Some(7));
    });
}

#[test]
fn the_end_of_a_thread_clears_its_word_and_wakes_a_waiter() {
    with_memory(2, || {
        let args = CloneArgs {
            flags: THREAD | u64::from(raw::CLONE_CHILD_SETTID | raw::CLONE_CHILD_CLEARTID),
            child_tid: MEMORY,
            ..CloneArgs::default()
        };
        let tid = clone_thread(args, || {
            nap(20);
            0
        });
        let tid = tid.expect("a thread");
        for shared in [true, false] {
            // As the wait of pthread_join(3) does.
            while load(MEMORY) == Some(tid) {
                let result = futex::wait(MEMORY, shared, tid, ANY, Deadline::Never);
                assert!(result.is_ok() || load(MEMORY) == Some(0), "{result:?}");
            }
        }
        assert_eq!(load(MEMORY), Some(0));
    });
}

#[test]
fn a_process_that_is_alone_with_its_memory_leaves_the_word_alone() {
    with_memory(2, || {
        programs::share_memory();
        let child = fork(|| {
            store(programs::SHARED, 5);
            current().set_clear_child_tid(programs::SHARED);
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert_eq!(load(programs::SHARED), Some(5));
    });
}

#[test]
fn threads_share_memory_and_forked_children_have_a_copy() {
    with_memory(2, || {
        store(MEMORY, 1);
        let tid = thread(|| store(MEMORY, 2));
        join(tid);
        assert_eq!(load(MEMORY), Some(2));
        let child = fork(|| {
            assert_eq!(load(MEMORY), Some(2));
            store(MEMORY, 3);
            0
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        assert_eq!(load(MEMORY), Some(2));
        let child = support::clone(raw::CLONE_VM.into(), || {
            store(MEMORY, 4);
            0
        });
        assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(0))));
        assert_eq!(load(MEMORY), Some(4));
    });
}

#[test]
fn descriptors_are_shared_or_copied_as_the_flags_say() {
    with_memory(2, || {
        let add = || {
            let file = create(&format!("/file{}", current().tid()), 0o600);
            with_files(|files| files.add(file, false, 0, 100)).expect("a table")
        };
        assert_eq!(add(), Ok(0));
        let child = fork(move || {
            assert_eq!(add(), Ok(1));
            let closed = with_files(|files| files.remove(0).is_ok());
            u8::from(closed == Some(true))
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(1))));
        assert_eq!(me().open_descriptors(), 1);
        let child = support::clone(raw::CLONE_FILES.into(), move || u8::from(add() == Ok(1)));
        assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(1))));
        assert_eq!(me().open_descriptors(), 2);
        let gone = with_files(|files| files.get(2).err());
        assert_eq!(gone, Some(Some(FsError::BadFd)));
    });
}

#[test]
fn the_file_mode_mask_is_shared_or_copied_as_the_flags_say() {
    with_memory(2, || {
        let set = |mask| with_fs(|fs| fs.set_umask(mask));
        assert_eq!(set(0o077), Some(0o022));
        fork(move || u8::from(set(0o011) == Some(0o077)));
        assert!(matches!(wait(Children::Any), Ok((_, status)) if status == exited(1)));
        assert_eq!(set(0o077), Some(0o077));
        let shares = support::clone(raw::CLONE_FS.into(), move || {
            u8::from(set(0o011) == Some(0o077))
        });
        assert_eq!(wait(Children::Any), Ok((shares.unwrap(), exited(1))));
        assert_eq!(set(0o022), Some(0o011));
    });
}

#[test]
fn signal_actions_are_shared_or_copied_as_the_flags_say() {
    with_memory(2, || {
        let caught = |signo| action(&me(), signo).handler != 0;
        fork(|| {
            catch(sig::INT);
            0
        });
        assert!(wait(Children::Any).is_ok());
        assert!(!caught(sig::INT));
        let flags = u64::from(raw::CLONE_VM | raw::CLONE_SIGHAND);
        let shares = support::clone(flags, || {
            catch(sig::INT);
            0
        });
        assert_eq!(wait(Children::Any), Ok((shares.unwrap(), exited(0))));
        assert!(caught(sig::INT));
    });
}

#[test]
fn a_child_has_the_signal_mask_of_the_thread_that_forks() {
    with_memory(2, || {
        let set = SigSet::of(&[sig::INT, sig::HUP]);
        let tid = thread(move || {
            current().set_blocked(set);
            fork(move || u8::from(current().blocked() == set));
        });
        join(tid);
        assert!(matches!(wait(Children::Any), Ok((_, status)) if status == exited(1)));
        assert_eq!(current().blocked(), SigSet::default());
    });
}

#[test]
fn a_child_of_clone_parent_is_a_sibling() {
    with_memory(2, || {
        let parent = me().pid();
        let maker = fork_with(sig::CHLD, 0, move || {
            let sibling = support::clone(raw::CLONE_PARENT.into(), move || {
                u8::from(me().ppid() == parent)
            });
            assert!(sibling.is_ok());
            assert_eq!(wait(Children::Any), Err(WaitError::NoChild));
            2
        });
        let mut all = [wait(Children::Any), wait(Children::Any)].map(Result::unwrap);
        all.sort_by_key(|report| report.0 != maker);
        assert_eq!(all.map(|report| report.1), [exited(2), exited(1)]);
        assert_eq!(poll(), Err(WaitError::NoChild));
    });
}

#[test]
fn the_parent_of_a_vfork_sleeps_until_the_child_exits() {
    with_memory(2, || {
        let done = count();
        let theirs = done.clone();
        let flags = u64::from(raw::CLONE_VM | raw::CLONE_VFORK);
        let child = support::clone(flags, move || {
            nap(30);
            theirs.store(1, SeqCst);
            5
        });
        assert_eq!(done.load(SeqCst), 1);
        assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(5))));
    });
}

#[test]
fn a_kill_ends_the_parent_of_a_vfork() {
    on(2, || {
        let parent = fork(|| {
            programs::take_memory();
            let flags = u64::from(raw::CLONE_VM | raw::CLONE_VFORK);
            let _ = support::clone(flags, || {
                nap(1000);
                3
            });
            user_mode();
            4
        });
        nap(20);
        assert!(kill(parent, sig::KILL));
        let killed = u32::from(sig::KILL);
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, killed)));
        assert!(matches!(wait(Children::Any), Ok((_, status)) if status == exited(3)));
    });
}

#[test]
fn an_exit_of_the_group_ends_all_threads() {
    on(2, || {
        for by_leader in [true, false] {
            let child = fork(move || {
                programs::take_memory();
                for _ in 0..5 {
                    until_asleep(forever());
                }
                if by_leader {
                    exit::exit_group(9);
                }
                thread(|| exit::exit_group(9));
                nap(10_000);
                user_mode();
                1
            });
            assert_eq!(wait(Children::Any), Ok((child, exited(9))));
        }
    });
}

#[test]
fn a_process_lives_on_when_its_leader_has_exited() {
    on(2, || {
        let ended = count();
        let theirs = ended.clone();
        let child = fork(move || {
            programs::take_memory();
            let theirs = theirs.clone();
            let args = CloneArgs {
                flags: THREAD,
                ..CloneArgs::default()
            };
            let other = clone_thread(args, move || {
                nap(50);
                next(&theirs);
                6
            });
            assert!(other.is_ok());
            exit::exit_thread(5)
        });
        nap(20);
        let process = ids::find_process(child).expect("it lives");
        assert!(!process.is_zombie());
        assert_eq!((process.thread_count(), process.threads_shown()), (1, 2));
        assert_eq!(poll(), Ok(None));
        assert_eq!(ended.load(SeqCst), 0);
        // The code of the thread that exits last counts.
        assert_eq!(wait(Children::Any), Ok((child, exited(6))));
        assert_eq!(ended.load(SeqCst), 1);
    });
}

#[test]
fn a_process_keeps_the_name_of_a_leader_that_has_exited() {
    on(2, || {
        let child = fork(|| {
            current().set_comm(b"leader");
            let leader = me().pid();
            let leader_is_gone = move || until(|| ids::find_thread(leader).is_none());
            thread(move || {
                leader_is_gone();
                current().set_comm(b"other");
            });
            thread(move || {
                leader_is_gone();
                until(|| me().thread_count() == 1);
                let kept = me().comm().starts_with(b"leader\0");
                exit::exit_group(u32::from(kept));
            });
            exit::exit_thread(0)
        });
        assert_eq!(wait(Children::Any), Ok((child, exited(1))));
    });
}

#[test]
fn a_new_thread_begins_outside_of_the_call_that_made_it() {
    on(2, || {
        let begin = program::add(|frame| {
            assert_eq!((frame.syscall_number(), frame.rax), (None, 0));
            exit::exit_group(3)
        });
        let mut frame = UserFrame::new_user(begin, 0);
        frame.vector = VECTOR_SYSCALL;
        frame.error = u64::from(raw::__NR_clone);
        frame.rax = frame.error;
        let child = fork::clone(&CloneArgs::default(), &frame, None).expect("memory for a process");
        let all = Options {
            exited: true,
            kind: Kind::All,
            ..Options::default()
        };
        let report = wait4::wait(Children::Any, all).expect("a child");
        assert_eq!(report.map(|report| report.pid), Some(child));
    });
}

#[test]
fn a_walk_over_processes_goes_on_as_long_as_it_is_wanted() {
    on(2, || {
        let children = [(); 3].map(|()| fork(|| 0));
        let mut seen = Vec::new();
        ids::each_process(children[0], |p| {
            seen.push(p.pid());
            seen.len() < 2
        });
        assert_eq!(seen, children[..2]);
    });
}

#[test]
fn a_process_whose_leader_has_exited_can_be_killed() {
    on(2, || {
        let child = fork(|| {
            programs::take_memory();
            until_asleep(forever());
            exit::exit_thread(5)
        });
        nap(20);
        assert!(kill(child, sig::KILL));
        let killed = u32::from(sig::KILL);
        assert_eq!(wait(Children::Any), Ok((child, killed)));
    });
}

#[test]
fn the_first_of_several_exits_of_the_group_gives_the_status() {
    on(4, || {
        for round in 0..20 {
            let statuses = Arc::new(AtomicU32::new(0));
            let theirs = statuses.clone();
            let child = fork(move || {
                programs::take_memory();
                for code in 1..4u32 {
                    let statuses = theirs.clone();
                    let args = CloneArgs {
                        flags: THREAD,
                        ..CloneArgs::default()
                    };
                    // The first one may end the process before the last one is made.
                    let _ = clone_thread(args, move || {
                        hal::time::spin_ns(u64::from(code * round % 5) * 1000);
                        statuses.fetch_or(1 << code, SeqCst);
                        exit::exit_group(code)
                    });
                }
                hal::time::spin_ns(3000);
                user_mode();
                exit::exit_group(4)
            });
            let (pid, status) = wait(Children::Any).expect("the child");
            assert_eq!(pid, child);
            let code = status >> 8;
            assert_eq!(status, exited(code as u8));
            assert!(code == 4 || statuses.load(SeqCst) & 1 << code != 0);
        }
    });
}

#[test]
fn an_exit_of_the_group_beside_a_kill_has_one_of_both_statuses() {
    on(2, || {
        for round in 0..60u64 {
            let child = fork(move || {
                programs::take_memory();
                let pid = me().pid();
                thread(move || {
                    hal::time::spin_ns(2000);
                    kill(pid, sig::KILL);
                });
                hal::time::spin_ns(round * 700);
                exit::exit_group(7)
            });
            let (_, status) = wait(Children::Pid(child)).expect("the child");
            let both = [exited(7), u32::from(sig::KILL)];
            assert!(both.contains(&status), "{status:#x}");
        }
    });
}

#[test]
fn a_thread_that_is_cloned_beside_an_exit_of_the_group_is_ended_too() {
    on(4, || {
        for round in 0..40u64 {
            let child = fork(move || {
                programs::take_memory();
                for _ in 0..2 {
                    thread(|| {
                        let args = CloneArgs {
                            flags: THREAD,
                            ..CloneArgs::default()
                        };
                        let made = clone_thread(args, || {
                            nap(1000);
                            0
                        });
                        assert!(matches!(
                            made,
                            Ok(_) | Err(ForkError::Again | ForkError::Signal)
                        ));
                    });
                }
                hal::time::spin_ns(round * 500);
                exit::exit_group(1)
            });
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
        }
    });
}

#[test]
fn the_flags_of_a_process_that_fork_passes_on_are_few() {
    on(2, || {
        in_child(|| {
            me().set_switch(flag::DUMPABLE | flag::LOCK_FUTURE, true);
            set_subreaper(&me(), true);
            me().set_death_signal(sig::INT);
            me().personality(Some(0x004_0000));
            let child = fork(|| {
                let p = me();
                assert!(p.flag(flag::DUMPABLE));
                assert!(!p.flag(flag::SUBREAPER) && !p.flag(flag::LOCK_FUTURE));
                assert!(!p.flag(flag::EXECED));
                assert_eq!(p.death_signal(), 0);
                assert_eq!(p.personality(None), 0x004_0000);
                0
            });
            assert_eq!(wait(Children::Any), Ok((child, exited(0))));
        });
    });
}

#[test]
fn a_walk_over_the_threads_ends_where_it_is_told_to() {
    with_memory(2, || {
        let tid = thread(|| nap(50));
        let seen = |most| {
            let mut seen = 0;
            me().each_thread(|_| {
                seen += 1;
                seen < most
            });
            seen
        };
        assert_eq!([1, 2, 3].map(seen), [1, 2, 2]);
        join(tid);
    });
}
