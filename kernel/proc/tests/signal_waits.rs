//! Waits for signals, and calls that signals interrupt.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use abi::raw::general as raw;
use abi::restart;
use hal::UserFrame;
use proc::SignalExt;
use proc::exit::exit_thread;
use proc::fork::{CloneArgs, ForkError};
use proc::signal::{SigFields, SigSet, code, sig};
use proc::wait4::{Children, Options, WaitError};
use signals::*;
use support::{exited, fork, me, nap, on, user_mode, wait};
use task::current::current;
use task::park::{Deadline, Interruptible, ParkError, sleep_until};

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// Forks a process that sends `signo` to the caller in 5 ms. Its own end sends nothing.
fn send_soon(signo: u8) {
    let target = me().pid();
    fork_with(0, 0, move || {
        nap(5);
        // The parent may have ended by then.
        let _ = kill_pid(target, signo);
        0
    });
}

/// Sleeps for a second, as nanosleep(2). A signal that ends the sleep does so before.
fn sleep() -> Result<(), ParkError> {
    let before = task::time::monotonic_ns();
    let slept = sleep_until(Deadline::after(1000 * MS), Interruptible::Yes);
    if slept.is_err() {
        // The clocks of two CPUs may differ.
        let slept = task::time::monotonic_ns().saturating_sub(before);
        assert!(slept < 900 * MS, "the timer has ended the sleep");
    }
    slept
}

#[test]
fn a_pending_signal_is_taken_at_once_and_its_action_does_not_run() {
    as_child(|| {
        block(&[TERM]);
        raise(TERM);
        assert_eq!(await_one(&[TERM, USR1]), TERM);
        unblock(&[TERM]);
        user_mode();
    });
}

#[test]
fn a_wait_ends_when_the_signal_comes() {
    as_child(|| {
        block(&[TERM]);
        send_soon(TERM);
        let info = sigwait(SigSet::of(&[TERM, USR1]), None).expect("a signal");
        assert_eq!((info.signo, info.code), (TERM, code::USER));
        assert_eq!(pending(), SigSet(0));
        user_mode();
    });
}

#[test]
fn a_wait_times_out_at_its_time() {
    as_child(|| {
        block(&[TERM, USR1]);
        raise(USR1);
        let before = task::time::monotonic_ns();
        let waited = sigwait(SigSet::one(TERM), Some(30 * MS));
        assert_eq!(waited, Err(ParkError::Timeout));
        assert!(task::time::monotonic_ns() >= before + 29 * MS);
        assert_eq!(mask(), SigSet::of(&[TERM, USR1]));
        assert_eq!(drain_numbers(ALL), [USR1]);
    });
}

#[test]
fn a_signal_that_comes_after_the_timeout_is_pending() {
    as_child(|| {
        block(&[TERM]);
        send_soon(TERM);
        let waited = sigwait(SigSet::one(TERM), Some(MS));
        assert_eq!(waited, Err(ParkError::Timeout));
        until(|| pending() == SigSet::one(TERM));
        user_mode();
        drain(ALL);
    });
}

#[test]
fn a_wait_gets_a_signal_that_is_ignored() {
    as_child(|| {
        block(&[TERM, sig::URG, RT]);
        ignore(TERM);
        ignore(RT);
        for signo in [TERM, sig::URG, RT] {
            send_soon(signo);
            assert_eq!(await_one(&[signo]), signo);
        }
    });
}

#[test]
fn a_wait_gets_the_end_of_each_child() {
    as_child(|| {
        block(&[sig::CHLD]);
        for status in 0..20 {
            let pid = fork(move || {
                nap(u64::from(status) % 3);
                status
            });
            let info = sigwait(SigSet::one(sig::CHLD), None).expect("a signal");
            let SigFields::Child {
                pid: from,
                status: told,
                ..
            } = info.fields
            else {
                panic!("{info:?}");
            };
            assert_eq!(
                (from, info.code, told),
                (pid, code::CLD_EXITED, status.into())
            );
            assert_eq!(wait(Children::Any), Ok((pid, exited(status))));
        }
    });
}

#[test]
fn a_wait_does_not_get_an_ignored_signal_that_was_not_blocked() {
    as_child(|| {
        ignore(TERM);
        send_soon(TERM);
        send_soon(sig::URG);
        let waited = sigwait(SigSet::of(&[TERM, sig::URG]), Some(30 * MS));
        assert_eq!(waited, Err(ParkError::Timeout));
        assert_eq!(mask(), SigSet(0));
    });
}

#[test]
fn a_wait_keeps_other_ignored_signals_as_the_mask_says() {
    as_child(|| {
        block(&[TERM, USR1]);
        ignore(USR1);
        ignore(USR2);
        send_soon(USR1);
        send_soon(USR2);
        let waited = sigwait(SigSet::one(TERM), Some(30 * MS));
        assert_eq!(waited, Err(ParkError::Timeout));
        block(&[USR2]);
        assert_eq!(drain_numbers(ALL), [USR1]);
    });
}

#[test]
fn a_signal_that_was_kept_for_the_wait_is_dropped_after_it() {
    as_child(|| {
        block(&[TERM]);
        ignore(TERM);
        send_soon(TERM);
        assert_eq!(await_one(&[TERM]), TERM);
        unblock(&[TERM]);
        raise(TERM);
        block(&[TERM]);
        assert_eq!(pending(), SigSet(0));
    });
}

#[test]
fn another_signal_with_a_handler_ends_a_wait() {
    as_program(|| {
        block(&[TERM]);
        catch(USR1);
        send_soon(USR1);
        let waited = sigwait(SigSet::one(TERM), None);
        assert_eq!(waited, Err(ParkError::Signal));
        assert_eq!(mask(), SigSet::one(TERM));
        let mut frame = computing();
        return_with(&mut frame);
        assert!(handles(&frame, USR1));
    });
}

#[test]
fn a_wait_for_a_caught_signal_takes_it_from_the_handler() {
    as_program(|| {
        catch(USR1);
        send_soon(USR1);
        assert_eq!(await_one(&[USR1]), USR1);
        let mut frame = computing();
        return_with(&mut frame);
        assert_eq!(frame.rip, program_at());
    });
}

#[test]
fn a_fatal_signal_ends_a_wait_and_the_process() {
    on(2, || {
        for signo in [sig::KILL, USR1, sig::QUIT] {
            let pid = fork(|| {
                block(&[TERM]);
                let _ = sigwait(SigSet::one(TERM), None);
                0
            });
            until_asleep(pid);
            kill_pid(pid, signo).expect("a child");
            assert_eq!(wait(Children::Any), Ok((pid, signo.into())));
        }
    });
}

/// As Linux does: signal(7) lists sigtimedwait among the calls that fail so.
#[test]
fn a_stop_ends_a_wait_once_the_process_is_continued() {
    on(2, || {
        let pid = fork(|| {
            block(&[TERM]);
            match sigwait(SigSet::one(TERM), None) {
                Err(ParkError::Signal) => 1,
                other => panic!("{other:?}"),
            }
        });
        until_asleep(pid);
        stop(pid);
        kill_pid(pid, sig::CONT).expect("a child");
        assert_eq!(wait(Children::Any), Ok((pid, exited(1))));
    });
}

#[test]
fn a_stop_signal_that_a_wait_takes_stops_nothing() {
    as_child(|| {
        block(&[sig::TSTP]);
        send_soon(sig::TSTP);
        assert_eq!(await_one(&[sig::TSTP]), sig::TSTP);
        user_mode();
    });
}

#[test]
fn each_queued_signal_goes_to_one_of_several_waiters() {
    as_child(|| {
        block(&[RT]);
        let sum = Arc::new(AtomicU32::new(0));
        for _ in 0..4 {
            let sum = sum.clone();
            thread(move || {
                for _ in 0..5 {
                    let info = sigwait(SigSet::one(RT), None).expect("a signal");
                    sum.fetch_add(value_of(&info) as u32, SeqCst);
                }
            });
        }
        for n in 1..=20 {
            queue(me().pid(), RT, n).expect("room for a signal");
            if n % 3 == 0 {
                nap(1);
            }
        }
        join_all();
        assert_eq!((sum.load(SeqCst), pending()), (210, SigSet(0)));
    });
}

#[test]
fn a_signal_to_a_thread_is_not_taken_by_another() {
    as_child(|| {
        block(&[USR1]);
        let tid = thread(|| {
            let waited = sigwait(SigSet::one(USR1), Some(50 * MS));
            assert_eq!(waited, Err(ParkError::Timeout));
        });
        until_asleep(tid);
        raise_here(USR1);
        join_all();
        assert_eq!(drain_numbers(ALL), [USR1]);
    });
}

#[test]
fn a_thread_that_waits_gets_what_the_first_one_would_ignore() {
    as_child(|| {
        block(&[sig::CHLD]);
        // The leader blocks the signal, so it is kept. One thread would ignore it, another waits for it.
        let ignores = thread(|| {
            unblock(&[sig::CHLD]);
            let _ = sleep();
        });
        until_asleep(ignores);
        let waits = thread(|| {
            assert_eq!(await_one(&[sig::CHLD]), sig::CHLD);
        });
        until_asleep(waits);
        raise(sig::CHLD);
        join_all();
    });
}

#[test]
fn a_thread_that_waits_does_not_get_what_the_first_one_handles() {
    as_program(|| {
        catch(USR1);
        block(&[USR1, USR2]);
        let waits = thread(|| assert_eq!(await_one(&[USR1, USR2]), USR2));
        until_asleep(waits);
        unblock(&[USR1]);
        raise(USR1);
        let mut frame = computing();
        return_with(&mut frame);
        assert!(handles(&frame, USR1));
        tkill(waits, USR2).expect("a thread");
        join_all();
    });
}

#[test]
fn a_thread_that_blocks_a_signal_leaves_it_to_another() {
    as_child(|| {
        catch(USR1);
        let woken = Arc::new(AtomicU32::new(0));
        let theirs = woken.clone();
        let tid = thread(move || {
            assert_eq!(sleep(), Err(ParkError::Signal));
            theirs.store(1, SeqCst);
            set_mask(ALL);
        });
        until_asleep(tid);
        // The first thread is to take the signal. It blocks it before it gets to user mode.
        raise(USR1);
        nap(20);
        assert_eq!(woken.load(SeqCst), 0);
        block(&[USR1]);
        until(|| woken.load(SeqCst) == 1);
        join_all();
        drain(ALL);
    });
}

#[test]
fn a_thread_that_ends_leaves_a_signal_to_another() {
    as_child(|| {
        catch(USR1);
        block(&[USR1]);
        let ready = Arc::new(AtomicU32::new(0));
        let other = ready.clone();
        thread(move || {
            until(|| other.load(SeqCst) != 0);
            until_asleep(other.load(SeqCst));
            // It is the first that does not block the signal, so no other thread is woken for it.
            unblock(&[USR1]);
            raise(USR1);
            exit_thread(0);
        });
        let sleeper = thread(|| {
            unblock(&[USR1]);
            assert_eq!(sleep(), Err(ParkError::Signal));
            set_mask(ALL);
        });
        ready.store(sleeper, SeqCst);
        join_all();
        drain(ALL);
    });
}

#[test]
fn a_signal_ends_the_sleep_of_a_thread_that_does_not_block_it() {
    as_child(|| {
        catch(USR1);
        block(&[USR1]);
        let tid = thread(|| {
            unblock(&[USR1]);
            assert_eq!(sleep(), Err(ParkError::Signal));
            set_mask(ALL);
        });
        until_asleep(tid);
        raise(USR1);
        join_all();
        assert_eq!(drain_numbers(ALL), [USR1]);
    });
}

#[test]
fn a_sleep_is_ended_by_caught_signals_alone() {
    as_child(|| {
        catch(USR1);
        ignore(USR2);
        block(&[TERM]);
        for (signo, result) in [
            (USR2, Ok(())),
            (sig::CHLD, Ok(())),
            (TERM, Ok(())),
            (USR1, Err(ParkError::Signal)),
        ] {
            send_soon(signo);
            assert_eq!(sleep(), result, "signal {signo}");
        }
        set_mask(ALL);
        drain(ALL);
    });
}

#[test]
fn a_wait_for_children_is_ended_by_a_caught_signal_alone() {
    as_child(|| {
        let pid = idler();
        let ended = Options {
            exited: true,
            ..Options::default()
        };
        let children = Children::Pid(pid);
        catch(USR1);
        ignore(USR2);
        send_soon(USR2);
        send_soon(USR1);
        let waited = wait_for(children, ended).map(|_| ());
        assert_eq!(waited, Err(WaitError::Signal));
        set_mask(ALL);
        drain(ALL);
        end(pid);
    });
}

#[test]
fn a_fork_waits_until_a_pending_signal_is_taken() {
    as_program(|| {
        catch(USR1);
        raise(USR1);
        let made = clone_as(CloneArgs::default(), || 0);
        assert_eq!(made, Err(ForkError::Signal));
        block(&[USR1]);
        run_child(|| assert_eq!(pending(), SigSet(0)));
        unblock(&[USR1]);
        let mut frame = computing();
        return_with(&mut frame);
        assert!(handles(&frame, USR1));
        run_child(|| ());
    });
}

#[test]
fn sigsuspend_waits_for_a_signal_that_its_mask_lets_through() {
    as_program(|| {
        catch(USR1);
        block(&[USR1, TERM]);
        raise(TERM);
        send_soon(USR1);
        current().set_temporary_mask(SigSet::one(TERM));
        assert_eq!(sleep(), Err(ParkError::Signal));
        let mut frame = after_call(restart::WITHOUT_HANDLER);
        return_with(&mut frame);
        assert!(handles(&frame, USR1));
        handler_returns(&mut frame);
        assert_eq!(mask(), SigSet::of(&[USR1, TERM]));
        drain(ALL);
    });
}

#[test]
fn a_call_is_restarted_after_a_handler_as_its_action_says() {
    as_program(|| {
        let again = |frame: &UserFrame| (frame.rip, frame.rax) == (program_at(), 1);
        let fails =
            |frame: &UserFrame| (frame.rip, frame.rax) == (program_at() + 2, restart::INTERRUPTED);
        for (flags, result, restarts) in [
            (0, restart::UNLESS_HANDLED, false),
            (raw::SA_RESTART, restart::UNLESS_HANDLED, true),
            (0, restart::ALWAYS, true),
            (raw::SA_RESTART, restart::WITHOUT_HANDLER, false),
            (raw::SA_RESTART, restart::BY_BLOCK, false),
        ] {
            action(TERM, HANDLER, u64::from(flags));
            raise(TERM);
            let mut frame = after_call(result);
            return_with(&mut frame);
            assert!(handles(&frame, TERM));
            handler_returns(&mut frame);
            assert!(again(&frame) || fails(&frame), "{frame:?}");
            assert_eq!(again(&frame), restarts, "{flags:#x} {result:#x}");
        }
    });
}

#[test]
fn of_two_handlers_the_first_decides_about_the_restart() {
    as_program(|| {
        action(USR1, HANDLER, 0);
        action(USR2, HANDLER, u64::from(raw::SA_RESTART));
        [USR1, USR2].into_iter().for_each(raise);
        let mut frame = after_call(restart::UNLESS_HANDLED);
        return_with(&mut frame);
        handler_returns(&mut frame);
        handler_returns(&mut frame);
        assert_eq!(frame.rax, restart::INTERRUPTED);
    });
}

#[test]
fn without_a_handler_a_call_is_restarted() {
    as_child(|| {
        for result in [
            restart::UNLESS_HANDLED,
            restart::ALWAYS,
            restart::WITHOUT_HANDLER,
        ] {
            let mut frame = after_call(result);
            return_with(&mut frame);
            assert_eq!((frame.rip, frame.rax), (program_at(), 1));
            assert_eq!(frame.syscall_number(), None, "the call is still to begin");
        }
        let mut frame = after_call(restart::BY_BLOCK);
        return_with(&mut frame);
        let number = u64::from(raw::__NR_restart_syscall);
        assert_eq!((frame.rip, frame.rax), (program_at(), number));
        // A result of the program's own, and a frame that no call made.
        let mut frame = after_call(5);
        return_with(&mut frame);
        assert_eq!((frame.rip, frame.rax), (program_at() + 2, 5));
        let mut frame = UserFrame::new_user(program_at(), STACK_TOP);
        frame.rax = restart::ALWAYS;
        return_with(&mut frame);
        assert_eq!((frame.rip, frame.rax), (program_at(), restart::ALWAYS));
    });
}

#[test]
fn a_handler_that_interrupts_sigsuspend_returns_to_the_old_mask() {
    as_program(|| {
        [USR1, USR2].into_iter().for_each(catch);
        block(&[USR1]);
        raise(USR1);
        current().set_temporary_mask(SigSet::one(TERM));
        let mut frame = after_call(restart::WITHOUT_HANDLER);
        return_with(&mut frame);
        assert!(handles(&frame, USR1));
        assert_eq!(mask(), SigSet::of(&[USR1, TERM]));
        handler_returns(&mut frame);
        assert_eq!(
            (mask(), frame.rax),
            (SigSet::one(USR1), restart::INTERRUPTED)
        );
    });
}

/// kill(2): init gets only the signals that it has installed handlers for.
#[test]
fn a_signal_without_a_handler_does_not_wake_init() {
    on(2, || {
        let child = fork(|| {
            nap(5);
            kill_pid(1, sig::ALRM).expect("init lives");
            nap(5);
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
        block(&[sig::ALRM]);
        kill_pid(1, sig::ALRM).expect("init lives");
        assert_eq!(
            pending(),
            SigSet::one(sig::ALRM),
            "it may get a handler before it is unblocked"
        );
    });
}
