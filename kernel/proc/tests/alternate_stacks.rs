//! The alternate stack of sigaltstack(2): which handlers run on it, and where.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use abi::raw::general as raw;
use hal::UserFrame;
use hal::uaccess::UserPtr;
use proc::SignalExt;
use proc::signal::{AltStack, AltStackError, SigSet, altstack_words, change_altstack, sig};
use signals::*;
use task::current::current;

/// The lowest address of the program's own stack, where the alternate one begins.
const BASE: u64 = STACK_TOP - STACK_BYTES;
/// Bytes of the alternate stack, unless a test says otherwise.
const SIZE: u64 = 0x4000;

/// The flags of a `stack_t`, as its words have them.
const SS_ONSTACK: u64 = 1;
const SS_DISABLE: u64 = 2;
const SS_AUTODISARM: u32 = 1 << 31;

/// sigaltstack(2) by a thread whose stack pointer is `sp`.
fn change(sp: u64, new: [u64; 3]) -> Result<(), AltStackError> {
    change_altstack(&current(), sp, new)
}

/// What sigaltstack(2) says of the stack then.
fn words(sp: u64) -> [u64; 3] {
    altstack_words(&current().altstack(), sp)
}

/// The `uc_stack` in the frame of the handler that begins with these registers.
fn of_frame(frame: &UserFrame) -> UserPtr<[u64; 3]> {
    UserPtr::new(frame.rdx + 16)
}

/// Gives the caller an alternate stack of `size` bytes at `sp`, and handlers that run on it.
fn use_stack(sp: u64, size: u64, flags: u32) -> AltStack {
    let stack = AltStack { sp, size, flags };
    current().set_altstack(stack);
    for signo in [USR1, USR2] {
        action(signo, HANDLER, u64::from(raw::SA_ONSTACK | raw::SA_NODEFER));
    }
    stack
}

/// The registers of a program that computes with the stack pointer `sp`.
fn computing_at(sp: u64) -> UserFrame {
    let mut frame = computing();
    frame.rsp = sp;
    frame
}

/// Sends `signo`, and returns to user mode with these registers.
fn deliver(signo: u8, frame: &mut UserFrame) {
    raise(signo);
    return_with(frame);
}

#[test]
fn a_handler_that_does_not_fit_the_alternate_stack_does_not_begin() {
    as_program(|| {
        const PATTERN: u64 = 0x5a5a;
        let stack = use_stack(BASE + SIZE, 0x100, 0);
        let below = UserPtr::<u64>::new(stack.sp - 8);
        below.write(&PATTERN).expect("the program's stack");
        catch(sig::SEGV);
        let mut frame = computing();
        deliver(USR1, &mut frame);
        assert!(handles(&frame, sig::SEGV), "{:#x}", frame.rdi);
        assert_eq!(below.read(), Ok(PATTERN));
    });
}

/// A frame does not begin right at the stack pointer: the red zone comes first.
#[test]
fn a_handler_begins_at_the_top_if_the_red_zone_ends_below_the_stack() {
    as_program(|| {
        let stack = use_stack(BASE + SIZE, SIZE, 0);
        let mut frame = computing_at(stack.sp + 64);
        deliver(USR1, &mut frame);
        assert!(handles(&frame, USR1) && frame.rsp > stack.sp + SIZE / 2);
    });
}

/// As in Linux: a handler disables such a stack, so a thread is there only because the program itself has gone there.
#[test]
fn with_autodisarm_no_thread_counts_as_on_the_alternate_stack() {
    as_program(|| {
        let stack = use_stack(BASE, SIZE, SS_AUTODISARM);
        let context = stack.sp + SIZE / 2;
        assert_eq!(words(context), [stack.sp, SS_AUTODISARM.into(), SIZE]);
        let mut frame = computing_at(context);
        deliver(USR1, &mut frame);
        assert!(frame.rsp > context, "it begins at the top");
        assert_eq!(words(frame.rsp), [0, SS_DISABLE, 0]);
        handler_returns(&mut frame);
        assert_eq!((frame.rsp, current().altstack()), (context, stack));
        assert_eq!(change(context, [BASE, 0, SIZE]), Ok(()));
        assert_eq!(change(context, [BASE, 0, SIZE]), Err(AltStackError::InUse));
    });
}

#[test]
fn a_frame_keeps_the_flags_with_which_the_stack_was_set() {
    as_program(|| {
        for flags in [0, SS_ONSTACK, SS_AUTODISARM.into()] {
            assert_eq!(change(STACK_TOP, [BASE, flags, SIZE]), Ok(()));
            let mut frame = computing_at(BASE + SIZE / 2);
            action(USR1, HANDLER, u64::from(raw::SA_ONSTACK | raw::SA_NODEFER));
            deliver(USR1, &mut frame);
            assert_eq!(of_frame(&frame).read(), Ok([BASE, flags, SIZE]));
            current().set_altstack(AltStack::NONE);
        }
    });
}

/// sigreturn(2) sets the stack by the rules of sigaltstack(2), and what these refuse changes nothing.
#[test]
fn the_return_of_a_handler_sets_the_stack_of_its_frame() {
    const OTHER: u64 = BASE + 2 * SIZE;
    as_program(|| {
        let cases = [
            (0, SIZE, [OTHER, 0, SIZE]),
            (SS_ONSTACK, 2048, [OTHER, 0, 2048]),
            (0, 2047, [BASE, 0, SIZE]),
            (SS_DISABLE, SIZE, [0, SS_DISABLE, 0]),
            (SS_DISABLE | SS_ONSTACK, SIZE, [BASE, 0, SIZE]),
            (4, SIZE, [BASE, 0, SIZE]),
        ];
        for (flags, size, after) in cases {
            use_stack(BASE, SIZE, 0);
            let mut frame = computing();
            deliver(USR1, &mut frame);
            let new = of_frame(&frame).write(&[OTHER, flags, size]);
            new.expect("the alternate stack");
            handler_returns(&mut frame);
            assert_eq!(words(frame.rsp), after, "flags {flags}, {size} bytes");
        }
        use_stack(BASE, SIZE, 0);
        let mut frame = computing_at(BASE + SIZE / 2);
        deliver(USR1, &mut frame);
        let new = of_frame(&frame).write(&[0, SS_DISABLE, 0]);
        new.expect("the alternate stack");
        handler_returns(&mut frame);
        assert_eq!(words(frame.rsp), [BASE, SS_ONSTACK, SIZE]);
    });
}

#[test]
fn a_stack_that_a_handler_sets_stays_unless_it_was_disabled_before() {
    as_program(|| {
        catch(USR1);
        for before in [AltStack::NONE, AltStack::DISABLED] {
            current().set_altstack(before);
            let mut frame = computing();
            deliver(USR1, &mut frame);
            assert_eq!(change(frame.rsp, [BASE, 0, SIZE]), Ok(()));
            handler_returns(&mut frame);
            let stays = before == AltStack::NONE;
            assert_eq!(current().altstack().size, if stays { SIZE } else { 0 });
        }
    });
}

#[test]
fn a_stack_that_is_too_small_is_refused_unless_it_is_set_already() {
    as_program(|| {
        current().set_altstack(AltStack::NONE);
        assert_eq!(change(STACK_TOP, [0, 0, 0]), Ok(()));
        assert_eq!(
            change(STACK_TOP, [BASE, 0, 2047]),
            Err(AltStackError::Small)
        );
        assert_eq!(
            change(STACK_TOP, [BASE, 3, SIZE]),
            Err(AltStackError::Invalid)
        );
        assert_eq!(change(STACK_TOP, [BASE, SS_DISABLE, 5]), Ok(()));
        assert_eq!(change(STACK_TOP, [0, 0, 0]), Err(AltStackError::Small));
        assert_eq!(words(STACK_TOP), [0, SS_DISABLE, 0]);
    });
}

/// sigsuspend(2) with a bad stack pointer: the handler of SIGSEGV, on the alternate stack, returns to the mask from before.
#[test]
fn a_handler_that_cannot_begin_leaves_the_mask_from_before_a_call_to_be_restored() {
    as_program(|| {
        use_stack(BASE, SIZE, 0);
        catch(USR1);
        action(sig::SEGV, HANDLER, raw::SA_ONSTACK.into());
        block(&[USR1, sig::SEGV]);
        raise(USR1);
        current().set_temporary_mask(SigSet::one(USR2));
        let mut frame = computing_at(0x1000);
        return_with(&mut frame);
        assert!(handles(&frame, sig::SEGV));
        assert_eq!(mask(), SigSet::of(&[USR2, sig::SEGV]));
        handler_returns(&mut frame);
        assert_eq!(mask(), SigSet::of(&[USR1, sig::SEGV]));
    });
}
