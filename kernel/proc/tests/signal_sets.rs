//! The sets of blocked, pending, ignored and caught signals, and what fork, clone and execve do to them.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general::{CLONE_SIGHAND, CLONE_VM};
use proc::signal::{self, Action, ActionTable, AltStack, SA_NOCLDSTOP, SigSet, sig};
use proc::wait4::Children;
use proc::{SignalExt, UserThreadExt, ids};
use signals::*;
use support::{exited, fork, nap, on, user_mode, wait};
use task::current::current;

/// The wait4 status of a child that runs `body`, returns to user mode and exits with 0.
fn status_of(body: impl Fn() + Send + Sync + 'static) -> u32 {
    let pid = fork(move || {
        body();
        user_mode();
        0
    });
    wait(Children::Pid(pid)).expect("a child").1
}

/// Whether the caller ignores or catches `signo`: the handler's number.
fn handler_of(signo: u8) -> u64 {
    signal::action(current().process(), signo).handler
}

#[test]
fn a_blocked_signal_becomes_pending_and_does_nothing() {
    as_child(|| {
        block(&[TERM]);
        raise(TERM);
        user_mode();
        assert_eq!(pending(), SigSet::one(TERM));
    });
}

#[test]
fn a_signal_acts_once_it_is_unblocked() {
    on(1, || {
        let status = status_of(|| {
            block(&[sig::QUIT]);
            raise(sig::QUIT);
            user_mode();
            unblock(&[sig::QUIT]);
        });
        assert_eq!(status, u32::from(sig::QUIT));
    });
}

#[test]
fn kill_and_stop_cannot_be_blocked() {
    as_child(|| {
        set_mask(ALL);
        assert_eq!(mask(), SigSet(!SigSet::UNMASKABLE.0));
        current().set_temporary_mask(ALL);
        assert_eq!(mask(), SigSet(!SigSet::UNMASKABLE.0));
        user_mode();
        assert_eq!(mask(), SigSet(!SigSet::UNMASKABLE.0));
    });
}

#[test]
fn a_process_that_blocks_everything_can_be_killed_and_stopped() {
    on(2, || {
        let pid = fork(|| {
            set_mask(ALL);
            loop {
                pause();
            }
        });
        until(|| ids::find_thread(pid).is_some_and(|t| t.blocked().0 != 0));
        stop(pid);
        end(pid);
    });
}

#[test]
fn an_ignored_signal_is_dropped() {
    as_child(|| {
        ignore(TERM);
        raise(TERM);
        raise_here(TERM);
        block(&[TERM]);
        assert_eq!(pending(), SigSet(0));
    });
}

#[test]
fn an_ignored_signal_that_is_blocked_stays_pending() {
    as_child(|| {
        for signo in [TERM, sig::CHLD, RT] {
            ignore(signo);
            block(&[signo]);
            raise(signo);
            assert_eq!(pending(), SigSet::one(signo));
            assert_eq!(drain_numbers(ALL), [signo]);
        }
    });
}

#[test]
fn an_ignored_signal_that_is_unblocked_goes() {
    as_child(|| {
        ignore(TERM);
        block(&[TERM]);
        raise(TERM);
        unblock(&[TERM]);
        user_mode();
        block(&[TERM]);
        assert_eq!(pending(), SigSet(0));
    });
}

#[test]
fn an_action_that_ignores_drops_what_is_pending() {
    as_child(|| {
        block(&[TERM, USR1, RT]);
        raise(TERM);
        raise_here(TERM);
        raise(USR1);
        (0..3).for_each(|_| raise(RT));
        ignore(TERM);
        ignore(RT);
        assert_eq!(pending(), SigSet::one(USR1));
        default(TERM);
        assert_eq!(drain_numbers(ALL), [USR1]);
    });
}

#[test]
fn an_action_that_ignores_drops_what_is_pending_for_other_threads() {
    as_child(|| {
        block(&[USR1, USR2]);
        let tid = thread(|| {
            sigwait(SigSet::one(USR2), None).expect("no other signal comes");
            assert_eq!(pending(), SigSet(0));
        });
        until_asleep(tid);
        tkill(tid, USR1).expect("a thread");
        ignore(USR1);
        default(USR1);
        raise(USR2);
        join_all();
    });
}

#[test]
fn a_signal_that_is_dropped_while_it_is_taken_is_one_or_the_other() {
    as_child(|| {
        block(&[TERM, RT]);
        // A long queue, so that a signal is dropped slowly.
        (0..200).for_each(|_| raise(RT));
        let done = Arc::new(AtomicU32::new(0));
        let theirs = done.clone();
        thread(move || {
            while theirs.load(SeqCst) == 0 {
                let taken = signal::take(&current(), SigSet::one(TERM));
                assert!(taken.is_none_or(|info| info.signo == TERM), "{taken:?}");
                // Time passes here, too: a simulated CPU does not run far ahead of another.
                hal::time::spin_ns(100);
            }
        });
        for _ in 0..150_000 {
            raise(TERM);
            ignore(TERM);
        }
        done.store(1, SeqCst);
        join_all();
    });
}

#[test]
fn the_default_action_drops_what_it_ignores() {
    as_child(|| {
        for signo in [sig::CHLD, sig::URG, sig::WINCH] {
            catch(signo);
            block(&[signo]);
            raise(signo);
            assert_eq!(pending(), SigSet::one(signo));
            default(signo);
            assert_eq!(pending(), SigSet(0));
        }
    });
}

#[test]
fn other_changes_of_the_action_keep_what_is_pending() {
    as_child(|| {
        block(&[TERM]);
        raise(TERM);
        catch(TERM);
        assert_eq!(pending(), SigSet::one(TERM));
        default(TERM);
        assert_eq!(pending(), SigSet::one(TERM));
        drain(ALL);
    });
}

#[test]
fn a_change_of_the_action_returns_the_old_one() {
    as_child(|| {
        let new = Action {
            handler: HANDLER,
            flags: SA_NOCLDSTOP,
            restorer: RESTORER,
            mask: 5,
        };
        let me = current();
        assert_eq!(
            signal::set_action(me.process(), TERM, new),
            Action::default()
        );
        assert_eq!(signal::action(me.process(), TERM), new);
        assert_eq!(signal::action(me.process(), USR1), Action::default());
        assert_eq!(
            signal::set_action(me.process(), TERM, Action::default()),
            new
        );
    });
}

#[test]
fn each_signal_has_the_default_action_of_signal_7() {
    on(2, || {
        for signo in (1..=sig::MAX).filter(|&signo| signo != sig::STOP) {
            let status = status_of(move || raise(signo));
            let expected = match signo {
                sig::CHLD | sig::CONT | sig::URG | sig::WINCH => exited(0),
                // The group is orphaned, so signals of the keyboard do not stop it.
                sig::TSTP | sig::TTIN | sig::TTOU => exited(0),
                _ => u32::from(signo),
            };
            assert_eq!(status, expected, "signal {signo}");
        }
    });
}

#[test]
fn a_table_of_actions_tells_what_is_ignored_and_caught() {
    on(1, || {
        let table = ActionTable::new();
        let handled = |handler| Action {
            handler,
            ..Action::default()
        };
        assert!(table.ignores(sig::CHLD) && !table.ignores(TERM) && table.ends_process(TERM));
        assert!(!table.ends_process(sig::QUIT), "it would write a core file");
        table.set(TERM, handled(1));
        table.set(sig::CHLD, handled(HANDLER));
        assert!(table.ignores(TERM) && !table.ignores(sig::CHLD) && !table.ends_process(TERM));
        assert_eq!(table.ignored(), SigSet::one(TERM));
        assert_eq!(table.caught(), SigSet::one(sig::CHLD));
        table.set(TERM, handled(HANDLER));
        table.set(sig::CHLD, handled(0));
        assert!(!table.ignores(TERM) && table.ignores(sig::CHLD) && !table.ends_process(TERM));
        assert_eq!(table.ignored(), SigSet(0));
        assert_eq!(table.caught(), SigSet::one(TERM));
    });
}

#[test]
fn a_table_of_actions_keeps_all_of_them() {
    on(1, || {
        let table = ActionTable::new();
        for signo in 1..=sig::MAX {
            let new = Action {
                handler: u64::from(signo) * 16,
                flags: u64::from(signo),
                restorer: RESTORER,
                mask: 1,
            };
            assert_eq!(table.set(signo, new), Action::default());
        }
        let copy = table.fork();
        for signo in 1..=sig::MAX {
            assert_eq!(copy.get(signo), table.get(signo));
            assert_eq!(copy.get(signo).handler, u64::from(signo) * 16);
        }
        copy.reset_for_exec();
        assert_eq!(copy.caught(), SigSet(0));
        assert_eq!(table.caught(), ALL);
    });
}

#[test]
fn a_child_inherits_the_mask_and_nothing_that_is_pending() {
    as_child(|| {
        block(&[TERM, RT]);
        raise(TERM);
        raise_here(RT);
        run_child(|| {
            assert_eq!(mask(), SigSet::of(&[TERM, RT]));
            assert_eq!(pending(), SigSet(0));
        });
        assert_eq!(pending(), SigSet::of(&[TERM, RT]));
        drain(ALL);
    });
}

#[test]
fn a_child_has_a_copy_of_the_actions() {
    as_child(|| {
        ignore(TERM);
        catch(USR1);
        run_child(|| {
            assert_eq!((handler_of(TERM), handler_of(USR1)), (1, HANDLER));
            default(TERM);
            ignore(USR1);
        });
        assert_eq!((handler_of(TERM), handler_of(USR1)), (1, HANDLER));
    });
}

#[test]
fn a_process_made_with_clone_sighand_shares_the_actions() {
    as_child(|| {
        ignore(TERM);
        let pid = fork_with(CLONE_VM | CLONE_SIGHAND, sig::CHLD, || {
            assert_eq!(handler_of(TERM), 1);
            ignore(USR1);
            0
        });
        assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        assert_eq!(handler_of(USR1), 1);
        // A signal that is sent to one of them is not pending for the other.
        block(&[USR2]);
        let pid = fork_with(CLONE_VM | CLONE_SIGHAND, sig::CHLD, || {
            assert_eq!(pending(), SigSet(0));
            raise(USR2);
            drain(ALL);
            0
        });
        raise(USR2);
        assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        assert_eq!(drain_numbers(ALL), [USR2]);
    });
}

#[test]
fn execve_leaves_shared_actions_to_the_other_process() {
    as_child(|| {
        catch(USR1);
        ignore(USR2);
        let pid = fork_with(CLONE_VM | CLONE_SIGHAND, sig::CHLD, || {
            exec();
            assert_eq!((handler_of(USR1), handler_of(USR2)), (0, 1));
            ignore(USR1);
            0
        });
        assert_eq!(wait(Children::Pid(pid)), Ok((pid, exited(0))));
        assert_eq!((handler_of(USR1), handler_of(USR2)), (HANDLER, 1));
    });
}

#[test]
fn execve_resets_handlers_and_keeps_what_is_ignored() {
    as_child(|| {
        catch(TERM);
        catch(sig::CHLD);
        action(USR1, 1, SA_NOCLDSTOP);
        action(USR2, 0, SA_NOCLDSTOP);
        exec();
        let me = current();
        let actions = [TERM, sig::CHLD, USR1, USR2].map(|s| signal::action(me.process(), s));
        let plain = |handler| Action {
            handler,
            ..Action::default()
        };
        assert_eq!(actions, [plain(0), plain(0), plain(1), plain(0)]);
        // The sets agree with the actions: two are dropped, the other is not.
        raise(USR1);
        raise(sig::CHLD);
        block(&[USR1, USR2, sig::CHLD]);
        raise(USR2);
        assert_eq!(drain_numbers(ALL), [USR2]);
    });
}

#[test]
fn a_handler_that_execve_resets_ends_the_process() {
    on(2, || {
        let status = status_of(|| {
            catch(TERM);
            exec();
            raise(TERM);
        });
        assert_eq!(status, u32::from(TERM));
    });
}

#[test]
fn execve_keeps_the_mask_and_what_is_pending() {
    as_child(|| {
        block(&[TERM, USR1, RT]);
        raise(TERM);
        raise_here(USR1);
        queue(current().process().pid(), RT, 7).expect("room for a signal");
        exec();
        assert_eq!(mask(), SigSet::of(&[TERM, USR1, RT]));
        assert_eq!(pending(), SigSet::of(&[TERM, USR1, RT]));
        assert_eq!(drain(SigSet::one(RT)).iter().map(value_of).sum::<u64>(), 7);
        drain(ALL);
    });
}

#[test]
fn execve_by_another_thread_keeps_that_threads_mask_and_signals() {
    as_child(|| {
        block(&[USR2]);
        thread(|| {
            set_mask(SigSet::of(&[USR1, USR2, TERM]));
            raise_here(USR1);
            raise(USR2);
            exec();
            let me = current();
            assert_eq!(me.tid(), me.process().pid());
            assert_eq!(mask(), SigSet::of(&[USR1, USR2, TERM]));
            assert_eq!(drain_numbers(ALL), [USR1, USR2]);
            proc::exit::exit_group(0);
        });
        loop {
            nap(10);
            user_mode();
        }
    });
}

#[test]
fn execve_drops_the_alternate_stack_and_fork_keeps_it() {
    as_child(|| {
        let stack = AltStack {
            sp: 0x1000,
            size: 0x4000,
            flags: 0,
        };
        current().set_altstack(stack);
        run_child(move || assert_eq!(current().altstack(), stack));
        thread(|| assert_eq!(current().altstack(), AltStack::DISABLED));
        join_all();
        assert_eq!(current().altstack(), stack);
        exec();
        assert_eq!(current().altstack(), AltStack::NONE);
    });
}

#[test]
fn a_new_thread_inherits_the_mask_and_no_signal_of_its_maker() {
    as_child(|| {
        block(&[USR1, USR2]);
        raise_here(USR1);
        raise(USR2);
        thread(|| {
            assert_eq!(mask(), SigSet::of(&[USR1, USR2]));
            // What is sent to the process is pending for each of its threads.
            assert_eq!(pending(), SigSet::one(USR2));
            set_mask(SigSet::one(USR2));
        });
        join_all();
        assert_eq!(mask(), SigSet::of(&[USR1, USR2]));
        assert_eq!(drain_numbers(ALL), [USR1, USR2]);
    });
}

#[test]
fn a_temporary_mask_lasts_until_the_return_to_user_mode() {
    as_child(|| {
        let me = current();
        block(&[USR1]);
        me.set_temporary_mask(SigSet::one(USR2));
        assert_eq!(mask(), SigSet::one(USR2));
        user_mode();
        assert_eq!(mask(), SigSet::one(USR1));
        me.set_temporary_mask(SigSet::one(USR2));
        me.restore_mask();
        assert_eq!(mask(), SigSet::one(USR1));
        // Restored once: a later change stays.
        set_mask(SigSet::one(TERM));
        me.restore_mask();
        user_mode();
        assert_eq!(mask(), SigSet::one(TERM));
    });
}

#[test]
fn a_signal_that_only_the_old_mask_blocks_acts_under_a_temporary_mask() {
    on(2, || {
        let status = status_of(|| {
            block(&[sig::QUIT]);
            raise(sig::QUIT);
            current().set_temporary_mask(SigSet(0));
        });
        assert_eq!(status, u32::from(sig::QUIT));
        let status = status_of(|| {
            current().set_temporary_mask(SigSet::one(sig::QUIT));
            raise(sig::QUIT);
        });
        assert_eq!(status, u32::from(sig::QUIT));
    });
}
