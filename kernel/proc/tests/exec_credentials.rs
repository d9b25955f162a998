//! execve(2) of files that give other rights: ids, and what a program with more rights must not inherit.
#![cfg(not(shuttle))]

mod programs;
mod support;

use abi::raw::general as raw;
use cred::{Cred, LookAs};
use elfload::stack::tag;
use hal::uaccess::UserPtr;
use proc::exec_count::ExecCount;
use proc::fork::CloneArgs;
use proc::fork::ForkError;
use proc::process::{flag, personality};
use proc::rlimit::{INFINITY, Limit};
use proc::signal::sig;
use proc::wait4::Children;
use proc::{CredentialsExt, Resource, ids, with_fs};
use programs::{
    MEMORY, become_user, clone_thread, count, elf, execute, give_file, install, install_bytes,
    next, run,
};
use std::sync::atomic::Ordering::SeqCst;
use support::{exited, fork, me, nap, on, wait};
use task::current::current;

/// Users of the tests: one that runs programs, and one that owns them.
const CALLER: u32 = 1000;
const OWNER: u32 = 2000;

/// Runs `/p`, a file of `owner` with these permissions, as the program of a child with the rights of `CALLER`: `before` is
/// called before it, and `after` is its code.
fn execute_as_caller(
    (owner, perm): ((u32, u32), u32),
    before: impl Fn() + Send + Sync + 'static,
    after: impl Fn(u64) + Send + Sync + 'static,
) {
    on(2, move || {
        install("/p", 0o755, move |frame| {
            after(frame.rsp);
            0
        });
        give_file("/p", owner, perm);
        let child = fork(move || {
            become_user(CALLER);
            before();
            panic!("{:?}", run("/p"))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

/// User and group ids: real, effective, saved, and for files.
fn ids_of(cred: &Cred) -> ([u32; 4], [u32; 4]) {
    (
        [cred.uid, cred.euid, cred.suid, cred.fsuid],
        [cred.gid, cred.egid, cred.sgid, cred.fsgid],
    )
}

/// The ids of the calling thread, which are those that others see of its process.
fn own_ids() -> ([u32; 4], [u32; 4]) {
    let own = ids_of(&current().cred());
    assert_eq!(ids_of(&me().cred()), own);
    own
}

/// An entry of the auxiliary vector on the stack at `sp`.
fn aux(mut sp: u64, wanted: u64) -> Option<u64> {
    let word = |at| UserPtr::<u64>::new(at).read().expect("a stack");
    let argc = word(sp);
    sp += 8 * (argc + 2);
    while word(sp) != 0 {
        sp += 8;
    }
    sp += 8;
    while word(sp) != tag::NULL {
        if word(sp) == wanted {
            return Some(word(sp + 8));
        }
        sp += 16;
    }
    None
}

#[test]
fn a_plain_program_keeps_the_ids_of_its_caller() {
    execute_as_caller(
        ((OWNER, OWNER), 0o755),
        || (),
        |sp| {
            assert_eq!(own_ids(), ([CALLER; 4], [CALLER; 4]));
            assert_eq!(aux(sp, tag::SECURE), Some(0));
            assert_eq!(aux(sp, tag::UID), Some(CALLER.into()));
            assert!(me().flag(flag::DUMPABLE));
        },
    );
}

#[test]
fn a_set_user_id_program_acts_as_its_owner() {
    execute_as_caller(
        ((OWNER, OWNER), 0o4755),
        || (),
        |sp| {
            let uids = [CALLER, OWNER, OWNER, OWNER];
            assert_eq!(own_ids(), (uids, [CALLER; 4]));
            assert_eq!(aux(sp, tag::SECURE), Some(1));
            assert_eq!(aux(sp, tag::UID), Some(CALLER.into()));
            assert_eq!(aux(sp, tag::EUID), Some(OWNER.into()));
            assert_eq!(aux(sp, tag::EGID), Some(CALLER.into()));
        },
    );
}

#[test]
fn a_set_group_id_program_acts_as_its_group() {
    execute_as_caller(
        ((OWNER, OWNER), 0o2755),
        || (),
        |sp| {
            let gids = [CALLER, OWNER, OWNER, OWNER];
            assert_eq!(own_ids(), ([CALLER; 4], gids));
            assert_eq!(aux(sp, tag::SECURE), Some(1));
        },
    );
}

#[test]
fn a_set_group_id_bit_without_execution_by_the_group_gives_nothing() {
    execute_as_caller(
        ((OWNER, OWNER), 0o2705),
        || (),
        |sp| {
            assert_eq!(own_ids(), ([CALLER; 4], [CALLER; 4]));
            assert_eq!(aux(sp, tag::SECURE), Some(0));
        },
    );
}

#[test]
fn a_set_user_id_program_of_root_has_all_capabilities() {
    execute_as_caller(
        ((0, 0), 0o4755),
        || assert!(!current().cred().capable(cred::Cap::Kill)),
        |_| {
            assert!(current().cred().capable(cred::Cap::Kill));
            assert!(current().cred().capable(cred::Cap::SysAdmin));
            // The next program is plain, but acts as root still.
            assert_eq!(current().cred().euid, 0);
        },
    );
}

#[test]
fn a_program_of_root_run_by_a_user_has_no_capabilities() {
    execute_as_caller(
        ((0, 0), 0o755),
        || (),
        |_| assert!(!current().cred().capable(cred::Cap::Kill)),
    );
}

/// Takes the limit of the caller's stack away.
fn unlimit_stack() {
    let large = Limit {
        soft: INFINITY,
        hard: INFINITY,
    };
    assert!(me().set_limit(Resource::Stack, large, false).is_ok());
}

/// The old memory's owner must not look at the new program, nor choose its addresses.
#[test]
fn a_program_with_other_rights_is_hidden_and_its_layout_is_its_own() {
    execute_as_caller(
        ((OWNER, OWNER), 0o4755),
        || {
            me().personality(Some(personality::CLEARED_BY_PRIVILEGE | 0x1000_0000));
            me().set_death_signal(sig::INT);
            unlimit_stack();
        },
        |_| {
            assert!(!me().flag(flag::DUMPABLE));
            assert_eq!(me().personality(None), 0x1000_0000);
            assert_eq!(me().death_signal(), 0);
            let stack = me().limit(Resource::Stack);
            assert_eq!((stack.soft, stack.hard), (8 << 20, INFINITY));
        },
    );
}

#[test]
fn a_plain_program_keeps_personality_death_signal_and_limits() {
    execute_as_caller(
        ((OWNER, OWNER), 0o755),
        || {
            me().personality(Some(personality::ADDR_NO_RANDOMIZE));
            me().set_death_signal(sig::INT);
            unlimit_stack();
        },
        |_| {
            assert_eq!(me().personality(None), personality::ADDR_NO_RANDOMIZE);
            assert_eq!(me().death_signal(), sig::INT);
            assert_eq!(me().limit(Resource::Stack).soft, INFINITY);
        },
    );
}

#[test]
fn a_program_that_its_caller_may_not_read_is_hidden() {
    execute_as_caller(
        ((OWNER, OWNER), 0o711),
        || assert!(me().flag(flag::DUMPABLE) || current().cred().uid == CALLER),
        |_| {
            assert_eq!(own_ids(), ([CALLER; 4], [CALLER; 4]));
            assert!(!me().flag(flag::DUMPABLE));
        },
    );
}

#[test]
fn a_program_whose_linker_its_caller_may_not_read_is_hidden() {
    on(1, || {
        install_bytes("/p", 0o755, &elf::dynamic(MEMORY, "/linker"));
        install("/linker", 0o755, |_| u8::from(me().flag(flag::DUMPABLE)));
        for (perm, shown) in [(0o755, 1), (0o711, 0)] {
            give_file("/linker", (OWNER, OWNER), perm);
            let child = fork(|| {
                become_user(CALLER);
                panic!("{:?}", run("/p"))
            });
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(shown))));
        }
    });
}

#[test]
fn a_plain_program_may_be_looked_at_again() {
    execute_as_caller(
        ((OWNER, OWNER), 0o755),
        || me().set_switch(flag::DUMPABLE, false),
        |_| assert!(me().flag(flag::DUMPABLE)),
    );
}

#[test]
fn a_process_that_may_gain_nothing_gains_nothing() {
    execute_as_caller(
        ((0, 0), 0o6755),
        || {
            let me = current();
            let stuck = Cred {
                no_new_privs: true,
                ..(*me.cred()).clone()
            };
            assert!(me.set_cred(stuck).is_ok());
        },
        |sp| {
            assert_eq!(own_ids(), ([CALLER; 4], [CALLER; 4]));
            assert!(!current().cred().capable(cred::Cap::Kill));
            assert_eq!(aux(sp, tag::SECURE), Some(0));
        },
    );
}

#[test]
fn a_process_that_shares_its_directories_gains_nothing() {
    on(2, || {
        let gained = count();
        let theirs = gained.clone();
        install("/p", 0o755, move |_| {
            let (uids, gids) = own_ids();
            assert_eq!(gids, [CALLER; 4]);
            if uids[1] != CALLER {
                next(&theirs);
            }
            u8::from(current().cred().capable(cred::Cap::Kill))
        });
        give_file("/p", (0, 0), 0o4755);
        let parent = fork(|| {
            become_user(CALLER);
            // While this process lives, its child's directories are its own, too.
            let child = support::clone(raw::CLONE_FS.into(), || panic!("{:?}", run("/p")));
            assert_eq!(wait(Children::Any), Ok((child.unwrap(), exited(0))));
            0
        });
        assert_eq!(wait(Children::Pid(parent)), Ok((parent, exited(0))));
        assert_eq!(gained.load(SeqCst), 0);
    });
}

#[test]
fn a_process_that_shared_its_directories_with_one_that_has_ended_gains_rights() {
    on(2, || {
        install("/p", 0o755, |_| u8::from(own_ids().0[1] == 0));
        give_file("/p", (0, 0), 0o4755);
        let child = fork(|| {
            become_user(CALLER);
            let other = support::clone(raw::CLONE_FS.into(), || 0);
            assert_eq!(wait(Children::Any), Ok((other.unwrap(), exited(0))));
            panic!("{:?}", run("/p"))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
    });
}

#[test]
fn directories_cannot_be_shared_while_an_execve_relies_on_them() {
    on(2, || {
        let clone_fs = || {
            let args = CloneArgs {
                flags: raw::CLONE_FS.into(),
                exit_signal: sig::CHLD,
                ..CloneArgs::default()
            };
            clone_thread(args, || 0)
        };
        let unshared = with_fs(|fs| fs.keep_unshared()).flatten();
        assert!(unshared.is_some());
        assert_eq!(clone_fs(), Err(ForkError::Again));
        // A thread shares the directories of its own process in any case, and a fork copies them.
        fork(|| 0);
        assert!(wait(Children::Any).is_ok());
        drop(unshared);
        assert!(clone_fs().is_ok());
        assert!(wait(Children::Any).is_ok());
    });
}

#[test]
fn the_bits_of_a_script_do_not_count_but_those_of_its_interpreter_do() {
    on(1, || {
        install("/plain", 0o755, |_| u8::from(own_ids().0[1] == CALLER));
        install("/setid", 0o755, |_| 2 * u8::from(own_ids().0[1] == OWNER));
        install_bytes("/a", 0o755, b"#!/plain\n");
        install_bytes("/b", 0o755, b"#!/setid\n");
        give_file("/a", (OWNER, OWNER), 0o4755);
        give_file("/setid", (OWNER, OWNER), 0o4755);
        for (path, status) in [("/a", 1), ("/b", 2)] {
            let child = fork(move || {
                become_user(CALLER);
                panic!("{:?}", run(path))
            });
            assert_eq!(wait(Children::Pid(child)), Ok((child, exited(status))));
        }
    });
}

#[test]
fn the_user_of_a_program_looks_at_it_unless_it_has_other_rights() {
    on(2, || {
        for (path, perm, seen) in [("/p", 0o755, true), ("/q", 0o4755, false)] {
            install(path, 0o755, |_| {
                nap(100);
                0
            });
            give_file(path, (OWNER, OWNER), perm);
            let program = fork(move || {
                become_user(CALLER);
                panic!("{:?}", run(path))
            });
            nap(30);
            let looker = fork(move || {
                become_user(CALLER);
                let p = ids::find_process(program).expect("it runs");
                let may = p.image_shown(None, LookAs::Real).is_ok();
                let owner = p.shown_owner(None, false);
                assert_eq!(owner, if seen { (CALLER, CALLER) } else { (0, 0) });
                u8::from(may)
            });
            let status = exited(u8::from(seen));
            assert_eq!(wait(Children::Pid(looker)), Ok((looker, status)));
            assert!(wait(Children::Pid(program)).is_ok());
        }
    });
}

#[test]
fn a_change_of_the_user_hides_a_process_until_its_execve() {
    on(1, || {
        install("/p", 0o755, |_| u8::from(me().flag(flag::DUMPABLE)));
        let child = fork(|| {
            me().set_death_signal(sig::INT);
            assert!(me().flag(flag::DUMPABLE));
            become_user(CALLER);
            assert!(!me().flag(flag::DUMPABLE));
            assert_eq!(me().death_signal(), 0);
            panic!("{:?}", run("/p"))
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(1))));
    });
}

#[test]
fn a_program_that_drops_rights_by_its_file_stays_hidden() {
    on(1, || {
        install("/p", 0o755, |_| u8::from(me().flag(flag::DUMPABLE)));
        give_file("/p", (OWNER, OWNER), 0o4755);
        // Root runs the file of a user.
        let child = fork(|| {
            let frame = execute("/p", &["/p"], &[]).expect("a program");
            assert_eq!(own_ids().0, [0, OWNER, OWNER, OWNER]);
            hal::context::enter_user(&frame)
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

#[test]
fn the_count_of_programs_ends_and_does_not_begin_anew() {
    on(1, || {
        let count = ExecCount::new(u32::MAX - 1);
        let then = count.get();
        assert!(count.is_still(then));
        count.advance();
        assert!(!count.is_still(then));
        // From here on no program counts as the one that a child knew.
        for _ in 0..3 {
            assert!(!count.is_still(count.get()));
            count.advance();
            assert!(!count.is_still(then) && !count.is_still(0));
        }
    });
}
