//! Queues of pending signals: what is kept, in which order it is taken, and how handlers get it.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use abi::raw::general as raw;
use hal::UserFrame;
use hal::frame::VECTOR_SYSCALL;
use hal::uaccess::UserPtr;
use proc::process::Process;
use proc::rlimit::Limit;
use proc::signal::{self, Action, AltStack, SendError, SigFields, SigInfo, SigSet, code, sig};
use proc::wait4::Children;
use proc::{Resource, SignalExt, ids};
use signals::*;
use support::{exited, fork, me, on, user_mode, wait};
use task::current::current;

/// Sets the soft RLIMIT_SIGPENDING.
fn limit_pending(p: &Process, soft: u64) {
    let hard = p.limit(Resource::Sigpending).hard;
    let new = Limit { soft, hard };
    p.set_limit(Resource::Sigpending, new, false)
        .expect("the limit falls");
}

/// Queues `signo` with each of these values to the caller's process.
fn queue_all(signo: u8, values: impl IntoIterator<Item = u64>) {
    for value in values {
        queue(me().pid(), signo, value).expect("room for a signal");
    }
}

/// The values that come with the pending signals of `set`.
fn drain_values(set: SigSet) -> Vec<u64> {
    drain(set).iter().map(value_of).collect()
}

#[test]
fn a_standard_signal_is_pending_once_with_its_first_information() {
    as_child(|| {
        block(&[TERM]);
        queue_all(TERM, [1, 2, 3]);
        raise(TERM);
        assert_eq!(drain_values(ALL), [1]);
        queue_all(TERM, [4]);
        assert_eq!(drain_values(ALL), [4]);
    });
}

#[test]
fn a_standard_signal_to_a_thread_and_to_its_process_are_two() {
    as_child(|| {
        block(&[TERM]);
        raise(TERM);
        raise_here(TERM);
        let codes: Vec<i32> = drain(ALL).iter().map(|info| info.code).collect();
        assert_eq!(codes, [code::TKILL, code::USER]);
    });
}

#[test]
fn real_time_signals_are_queued_in_the_order_in_which_they_came() {
    as_child(|| {
        block(&[RT, RT + 1]);
        queue_all(RT, [3, 1, 2]);
        queue_all(RT + 1, [9]);
        queue_all(RT, [1]);
        assert_eq!(drain_values(ALL), [3, 1, 2, 1, 9]);
    });
}

#[test]
fn a_real_time_signal_of_kill_is_queued_among_the_others() {
    as_child(|| {
        block(&[RT]);
        queue_all(RT, [1]);
        raise(RT);
        queue_all(RT, [2]);
        let codes: Vec<i32> = drain(ALL).iter().map(|info| info.code).collect();
        assert_eq!(codes, [QUEUE, code::USER, QUEUE]);
    });
}

#[test]
fn the_lowest_number_comes_first() {
    as_child(|| {
        set_mask(ALL);
        let numbers = [sig::MAX, USR2, RT, sig::HUP, sig::RTMIN, TERM];
        numbers.iter().for_each(|&signo| raise(signo));
        let taken = drain_numbers(ALL);
        assert_eq!(taken, [sig::HUP, USR2, TERM, sig::RTMIN, RT, sig::MAX]);
    });
}

#[test]
fn signals_of_an_instruction_come_before_lower_numbers() {
    as_child(|| {
        set_mask(ALL);
        [sig::HUP, sig::SEGV, sig::INT, sig::ILL]
            .into_iter()
            .for_each(raise);
        let taken = drain_numbers(ALL);
        assert_eq!(taken, [sig::ILL, sig::SEGV, sig::HUP, sig::INT]);
    });
}

#[test]
fn signals_to_the_thread_come_before_signals_to_the_process() {
    as_child(|| {
        set_mask(ALL);
        [sig::HUP, USR2].into_iter().for_each(raise);
        [TERM, RT].into_iter().for_each(raise_here);
        assert_eq!(drain_numbers(ALL), [TERM, RT, sig::HUP, USR2]);
    });
}

#[test]
fn a_wait_for_some_signals_leaves_the_others_in_their_order() {
    as_child(|| {
        set_mask(ALL);
        queue_all(RT, [1, 2]);
        queue_all(RT + 1, [3]);
        raise(TERM);
        assert_eq!(await_one(&[RT + 1, RT + 2]), RT + 1);
        assert_eq!(pending(), SigSet::of(&[RT, TERM]));
        assert_eq!(drain_values(SigSet::one(RT)), [1, 2]);
        assert_eq!(drain_numbers(ALL), [TERM]);
    });
}

#[test]
fn a_long_queue_loses_nothing_while_it_grows_and_shrinks() {
    as_child(|| {
        block(&[RT]);
        let mut next = 0;
        let mut taken = 0;
        for (more, fewer) in [(300, 290), (5, 15), (1000, 999), (2, 2), (40, 41)] {
            queue_all(RT, next..next + more);
            next += more;
            for _ in 0..fewer {
                let info = sigwait(ALL, Some(0)).expect("a queued signal");
                assert_eq!(value_of(&info), taken);
                taken += 1;
            }
        }
        assert_eq!((next, taken, pending()), (1347, 1347, SigSet(0)));
    });
}

#[test]
fn an_ignored_signal_leaves_a_long_queue_as_a_whole() {
    as_child(|| {
        block(&[RT, RT + 1]);
        for n in 0..200 {
            queue_all(RT + (n % 2) as u8, [n]);
        }
        ignore(RT);
        default(RT);
        let odd: Vec<u64> = (0..200).filter(|n| n % 2 == 1).collect();
        assert_eq!(drain_values(ALL), odd);
        queue_all(RT, [1]);
        assert_eq!(drain_values(ALL), [1]);
    });
}

#[test]
fn a_signal_whose_information_finds_no_room_is_pending_all_the_same() {
    as_child(|| {
        block(&[TERM, RT, RT + 1]);
        let p = me();
        // As in an interrupt: nothing is allocated.
        signal::send_process(&p, my_info(TERM, QUEUE, 1));
        signal::send_process(&p, my_info(RT, code::USER, 1));
        signal::send_process(&p, my_info(RT + 1, QUEUE, 1));
        assert_eq!(pending(), SigSet::of(&[TERM, RT]));
        assert_eq!(drain(ALL), [SigInfo::kernel(TERM), SigInfo::lost(RT)]);
    });
}

#[test]
fn the_limit_refuses_real_time_signals_but_not_those_of_kill() {
    as_child(|| {
        block(&[RT, RT + 1, RT + 2]);
        let pid = me().pid();
        limit_pending(&me(), 2);
        queue_all(RT, [1, 2]);
        assert_eq!(queue(pid, RT, 3), Err(SendError::Full));
        assert_eq!(queue(pid, RT + 1, 3), Err(SendError::Full));
        assert_eq!(kill_pid(pid, RT + 2), Ok(()));
        let left = drain(ALL);
        assert_eq!(left.iter().map(value_of).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(left[2], SigInfo::lost(RT + 2));
        queue_all(RT, [4]);
        assert_eq!(drain_values(ALL), [4]);
    });
}

#[test]
fn the_limit_lets_standard_signals_through() {
    as_child(|| {
        block(&[TERM, USR1, sig::HUP]);
        let pid = me().pid();
        limit_pending(&me(), 0);
        assert_eq!(queue(pid, RT, 1), Err(SendError::Full));
        assert_eq!(queue(pid, TERM, 1), Ok(()));
        assert_eq!(tkill(current().tid(), USR1), Ok(()));
        assert_eq!(kill_pid(pid, sig::HUP), Ok(()));
        // Only that of kill keeps its information.
        let hup = my_info(sig::HUP, code::USER, 0);
        let expected = [SigInfo::lost(USR1), hup, SigInfo::lost(TERM)];
        assert_eq!(drain(ALL), expected);
    });
}

#[test]
fn signals_to_a_zombie_count_for_nobody() {
    as_child(|| {
        become_user(1000);
        limit_pending(&me(), 2);
        block(&[RT]);
        let zombie = fork(|| 0);
        until(|| ids::find_process(zombie).is_some_and(|p| p.is_zombie()));
        for value in 0..5 {
            assert_eq!(queue(zombie, RT, value), Ok(()));
        }
        queue_all(RT, 0..2);
        assert_eq!(drain_values(SigSet::one(RT)), [0, 1]);
        assert!(wait(Children::Pid(zombie)).is_ok());
    });
}

#[test]
fn a_full_queue_does_not_stop_a_kill() {
    on(2, || {
        let pid = fork(|| {
            block(&[RT]);
            limit_pending(&me(), 1);
            queue_all(RT, [1]);
            loop {
                pause();
            }
        });
        until(|| ids::find_thread(pid).is_some_and(|t| signal::pending(&t).0 != 0));
        assert_eq!(queue(pid, RT, 2), Err(SendError::Full));
        end(pid);
    });
}

#[test]
fn the_signals_that_a_user_has_queued_count_together() {
    as_child(|| {
        limit_pending(&me(), 3);
        become_user(1000);
        block(&[RT]);
        let (a, b) = (idler(), idler());
        for (pid, value) in [(a, 1), (b, 2), (a, 3)] {
            assert_eq!(queue(pid, RT, value), Ok(()));
        }
        assert_eq!(queue(a, RT, 4), Err(SendError::Full));
        assert_eq!(queue(b, RT, 4), Err(SendError::Full));
        // The end of a process gives back what is pending for it.
        end(b);
        assert_eq!(queue(a, RT, 4), Ok(()));
        assert_eq!(queue(a, RT, 5), Err(SendError::Full));
        end(a);
        // What is taken, or dropped, is given back as well.
        queue_all(RT, [1, 2, 3]);
        assert_eq!(drain_values(ALL), [1, 2, 3]);
        queue_all(RT, [1, 2, 3]);
        ignore(RT);
        default(RT);
        queue_all(RT, [1, 2, 3]);
        drain(ALL);
    });
}

#[test]
fn the_information_has_the_layout_of_linux() {
    let words = |info: SigInfo| info.to_raw().map(u64::to_le_bytes).concat();
    let int = |bytes: &[u8], at: usize| i32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let long =
        |bytes: &[u8], at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
    let fields = SigFields::Sender {
        pid: 7,
        uid: 8,
        value: 1 << 40,
    };
    let queued = SigInfo {
        signo: RT,
        code: QUEUE,
        fields,
    };
    let bytes = words(queued);
    assert_eq!(
        (int(&bytes, 0), int(&bytes, 4), int(&bytes, 8)),
        (40, 0, -1)
    );
    assert_eq!((int(&bytes, 16), int(&bytes, 20)), (7, 8));
    assert_eq!(long(&bytes, 24), 1 << 40);
    assert_eq!(SigInfo::from_raw(RT, &queued.to_raw()), queued);
    let fields = SigFields::Child {
        pid: 7,
        uid: 8,
        status: -9,
        utime: 10,
        stime: 11,
    };
    let child = words(SigInfo {
        signo: sig::CHLD,
        code: code::CLD_KILLED,
        fields,
    });
    assert_eq!(
        (int(&child, 8), int(&child, 16), int(&child, 20)),
        (2, 7, 8)
    );
    assert_eq!(
        (int(&child, 24), long(&child, 32), long(&child, 40)),
        (-9, 10, 11)
    );
    let fault = words(SigInfo::fault(sig::SEGV, code::SEGV_MAPERR, 0x1234));
    assert_eq!((int(&fault, 8), long(&fault, 16)), (1, 0x1234));
}

#[test]
fn a_handler_blocks_its_signal_and_its_mask_until_it_returns() {
    as_program(|| {
        catch(TERM);
        let new = Action {
            mask: SigSet::of(&[USR2, sig::KILL]).0,
            ..signal::action(&me(), TERM)
        };
        signal::set_action(&me(), TERM, new);
        block(&[USR1]);
        raise(TERM);
        let mut frame = computing();
        return_with(&mut frame);
        assert!(handles(&frame, TERM), "{frame:?}");
        assert_eq!(mask(), SigSet::of(&[TERM, USR1, USR2]));
        assert_eq!(frame.syscall_number(), None);
        frame.rbx = 0;
        // sigreturn(2) is a system call, which is over when it has restored the registers.
        (frame.vector, frame.error) = (VECTOR_SYSCALL, u64::from(raw::__NR_rt_sigreturn));
        handler_returns(&mut frame);
        assert_eq!(frame.syscall_number(), None);
        assert_eq!(mask(), SigSet::one(USR1));
        let before = computing();
        assert_eq!(
            (frame.rip, frame.rsp, frame.rbx),
            (before.rip, before.rsp, before.rbx)
        );
        return_with(&mut frame);
        assert_eq!(frame.rip, program_at());
    });
}

#[test]
fn a_handler_that_interrupts_a_call_is_not_part_of_it() {
    as_program(|| {
        catch(TERM);
        raise(TERM);
        let mut frame = after_call(5);
        return_with(&mut frame);
        assert!(handles(&frame, TERM));
        assert_eq!(frame.syscall_number(), None);
    });
}

#[test]
fn a_program_does_not_return_from_a_handler_to_an_address_of_the_kernel() {
    /// The offset of the saved `rip` in the context, which is at the stack pointer when the handler has returned.
    const RIP: u64 = 8 * (5 + 16);
    as_program(|| {
        for (rip, ok) in [(hal::USER_END - 1, true), (hal::USER_END, false)] {
            catch(TERM);
            raise(TERM);
            let mut frame = computing();
            return_with(&mut frame);
            frame.rsp += 8;
            let saved = UserPtr::<u64>::new(frame.rsp + RIP);
            assert_eq!(saved.read(), Ok(program_at()));
            saved.write(&rip).expect("the program's stack");
            assert_eq!(signal::sigreturn(&current(), &mut frame).is_ok(), ok);
        }
    });
}

#[test]
fn with_nodefer_a_handler_does_not_block_its_signal() {
    as_program(|| {
        action(TERM, HANDLER, u64::from(raw::SA_NODEFER));
        raise(TERM);
        let mut frame = computing();
        return_with(&mut frame);
        assert!(handles(&frame, TERM));
        assert_eq!(mask(), SigSet(0));
    });
}

#[test]
fn with_resethand_a_handler_runs_once() {
    on(2, || {
        let pid = fork(|| {
            exec();
            action(sig::QUIT, HANDLER, u64::from(raw::SA_RESETHAND));
            raise(sig::QUIT);
            let mut frame = computing();
            return_with(&mut frame);
            assert!(handles(&frame, sig::QUIT));
            let now = signal::action(&me(), sig::QUIT);
            assert_eq!(now.handler, 0);
            assert_ne!(now.flags & u64::from(raw::SA_RESETHAND), 0);
            handler_returns(&mut frame);
            raise(sig::QUIT);
            0
        });
        let status = u32::from(sig::QUIT);
        assert_eq!(wait(Children::Pid(pid)), Ok((pid, status)));
    });
}

#[test]
fn handlers_of_two_signals_are_nested_and_the_last_runs_first() {
    as_program(|| {
        [USR1, USR2].into_iter().for_each(catch);
        [USR2, USR1].into_iter().for_each(raise);
        let mut frame = computing();
        return_with(&mut frame);
        assert!(handles(&frame, USR2));
        assert_eq!(mask(), SigSet::of(&[USR1, USR2]));
        handler_returns(&mut frame);
        assert!(handles(&frame, USR1));
        assert_eq!(mask(), SigSet::one(USR1));
        handler_returns(&mut frame);
        assert_eq!((frame.rip, mask()), (program_at(), SigSet(0)));
    });
}

#[test]
fn a_handler_gets_the_information_and_the_place_to_return_to() {
    as_program(|| {
        action(RT, HANDLER, u64::from(raw::SA_SIGINFO));
        queue_all(RT, [77]);
        let mut frame = computing();
        return_with(&mut frame);
        let info: [u64; 16] = UserPtr::new(frame.rsi).read().expect("the stack");
        assert_eq!(info, my_info(RT, QUEUE, 77).to_raw());
        let restorer: u64 = UserPtr::new(frame.rsp).read().expect("the stack");
        assert_eq!(restorer, RESTORER);
        assert_eq!(frame.rsp % 16, 8, "as after a call");
        assert!(frame.rsp < STACK_TOP - 128, "below the red zone");
    });
}

#[test]
fn a_handler_with_onstack_runs_on_the_alternate_stack() {
    as_program(|| {
        let stack = AltStack {
            sp: STACK_TOP - STACK_BYTES,
            size: 0x4000,
            flags: 0,
        };
        current().set_altstack(stack);
        action(USR1, HANDLER, u64::from(raw::SA_ONSTACK));
        catch(USR2);
        raise(USR2);
        let mut frame = computing();
        return_with(&mut frame);
        assert!(!stack.contains(frame.rsp), "it did not ask for the stack");
        raise(USR1);
        return_with(&mut frame);
        assert!(handles(&frame, USR1) && stack.contains(frame.rsp));
        // The next one goes on below, on the same stack.
        let outer = frame.rsp;
        unblock(&[USR1]);
        raise(USR1);
        return_with(&mut frame);
        assert!(stack.contains(frame.rsp) && frame.rsp < outer);
        (0..3).for_each(|_| handler_returns(&mut frame));
        assert_eq!((frame.rip, frame.rsp), (program_at(), STACK_TOP));
        assert_eq!(current().altstack(), stack);
    });
}

/// The status of a program that takes `signo` with the registers that `change` has changed.
fn status_of_delivery(prepare: impl Fn(&mut UserFrame) + Send + Sync + 'static) -> u32 {
    let pid = fork(move || {
        exec();
        let mut frame = computing();
        prepare(&mut frame);
        return_with(&mut frame);
        user_mode();
        0
    });
    wait(Children::Pid(pid)).expect("a child").1
}

#[test]
fn a_handler_without_room_for_its_frame_ends_the_process() {
    on(2, || {
        let segv = u32::from(sig::SEGV);
        let no_stack = status_of_delivery(|frame| {
            catch(USR1);
            raise(USR1);
            frame.rsp = 0x1000;
        });
        assert_eq!(no_stack, segv);
        let no_restorer = status_of_delivery(|_| {
            let new = Action {
                handler: HANDLER,
                ..Action::default()
            };
            signal::set_action(&me(), USR1, new);
            raise(USR1);
        });
        assert_eq!(no_restorer, segv);
        let no_stack_for_segv = status_of_delivery(|frame| {
            catch(sig::SEGV);
            raise(sig::SEGV);
            frame.rsp = 0x1000;
        });
        assert_eq!(no_stack_for_segv, segv);
        let full_stack = status_of_delivery(|frame| {
            let stack = AltStack {
                sp: STACK_TOP - STACK_BYTES / 2,
                size: 0x1000,
                flags: 0,
            };
            current().set_altstack(stack);
            catch(USR1);
            raise(USR1);
            // There is memory below, but it is not part of the stack.
            frame.rsp = stack.sp + 0x100;
        });
        assert_eq!(full_stack, segv);
    });
}

#[test]
fn a_fault_ends_a_process_that_blocks_or_ignores_its_signal() {
    on(2, || {
        let fault = || SigInfo::fault(sig::SEGV, code::SEGV_MAPERR, 0x1234);
        let blocked = status_of_delivery(move |_| {
            catch(sig::SEGV);
            block(&[sig::SEGV]);
            signal::deliver_fault(fault());
        });
        assert_eq!(blocked, u32::from(sig::SEGV));
        let ignored = status_of_delivery(move |_| {
            ignore(sig::SEGV);
            signal::deliver_fault(fault());
        });
        assert_eq!(ignored, u32::from(sig::SEGV));
        let caught = status_of_delivery(move |frame| {
            catch(sig::SEGV);
            signal::deliver_fault(fault());
            return_with(frame);
            assert!(handles(frame, sig::SEGV));
            handler_returns(frame);
        });
        assert_eq!(caught, exited(0));
    });
}
