//! The alternate stack of sigaltstack(2): which handlers run on it, and where.
#![cfg(not(shuttle))]

#[path = "support/signals.rs"]
mod signals;
mod support;

use abi::raw::general as raw;
use hal::UserFrame;
use hal::uaccess::UserPtr;
use proc::SignalExt;
use proc::signal::{AltStack, sig};
use signals::*;
use task::current::current;

/// The lowest address of the program's own stack, where the alternate one begins.
const BASE: u64 = STACK_TOP - STACK_BYTES;
/// Bytes of the alternate stack, unless a test says otherwise.
const SIZE: u64 = 0x4000;

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
