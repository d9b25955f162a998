//! Restartable sequences: rseq(2).
#![cfg(not(shuttle))]

mod programs;
mod support;

use hal::UserFrame;
use proc::rseq::{self, RseqError};
use proc::signal;
use proc::{SignalExt, UserThreadExt};
use programs::{MEMORY, load, store, store_long, with_memory};
use support::nap;
use task::current::current;

const AREA: u64 = MEMORY;
const OTHER: u64 = MEMORY + 64;
/// A sequence's descriptor; its first address, length and abort handler; the word before that.
const DESCRIPTOR: u64 = MEMORY + 128;
const START: u64 = MEMORY + 0x1000;
const LEN: u64 = 32;
const ABORT: u64 = MEMORY + 0x2000;
const SIGNATURE: u32 = 0x5305_3053;

fn register(at: u64, signature: u32) -> Result<(), RseqError> {
    let me = current();
    rseq::register(&me, me.rseq(), at, signature)
}

fn unregister(at: u64, signature: u32) -> Result<(), RseqError> {
    rseq::unregister(current().rseq(), at, signature)
}

/// Enters the sequence.
fn enter() {
    store_long(DESCRIPTOR, 0);
    store_long(DESCRIPTOR + 8, START);
    store_long(DESCRIPTOR + 16, LEN);
    store_long(DESCRIPTOR + 24, ABORT);
    store(ABORT - 4, SIGNATURE);
    store_long(AREA + 8, DESCRIPTOR);
}

/// Where the program goes on that the kernel was entered from at `rip`.
fn goes_on(rip: u64) -> u64 {
    let mut frame = UserFrame::default();
    frame.rip = rip;
    hal::irq::disable();
    signal::before_user_return(&mut frame);
    hal::irq::enable();
    frame.rip
}

/// Runs `body` in a process that is registered, and has been in user mode since.
fn registered(body: impl Fn() + Send + Sync + 'static) {
    with_memory(1, move || {
        register(AREA, SIGNATURE).expect("none is registered");
        assert!(current().has_work(), "the registration is written");
        assert_eq!(goes_on(START), START);
        assert!(!current().has_work());
        body();
    });
}

#[test]
fn registrations_are_checked() {
    registered(|| {
        let own = [
            register(AREA, SIGNATURE),
            register(AREA, 1),
            register(OTHER, SIGNATURE),
        ];
        let (busy, other) = (RseqError::Busy, RseqError::Invalid);
        assert_eq!(own, [Err(busy), Err(RseqError::NotPermitted), Err(other)]);
        assert_eq!(unregister(OTHER, SIGNATURE), Err(RseqError::Invalid));
        assert_eq!(unregister(AREA, 1), Err(RseqError::NotPermitted));
        assert_eq!((load(AREA), load(AREA + 4)), (Some(0), Some(0)));
        assert_eq!(unregister(AREA, SIGNATURE), Ok(()));
        assert_eq!((load(AREA), load(AREA + 4)), (Some(0), Some(u32::MAX)));
        assert_eq!(unregister(AREA, SIGNATURE), Err(RseqError::Invalid));
        assert_eq!(register(AREA + 8, 1), Err(RseqError::Invalid));
        assert_eq!(register(0, 1), Err(RseqError::Invalid));
        assert_eq!(register(1 << 63, 1), Err(RseqError::Fault));
        // A switch means nothing without a registration.
        nap(1);
        assert!(!current().has_work());
    });
}

#[test]
fn the_cpu_is_written_after_a_switch() {
    registered(|| {
        store(AREA, 9);
        store(AREA + 4, 9);
        assert_eq!(goes_on(START), START);
        assert_eq!(load(AREA + 4), Some(9), "nothing has happened");
        nap(1);
        assert!(current().has_work());
        goes_on(START);
        assert_eq!((load(AREA), load(AREA + 4)), (Some(0), Some(0)));
    });
}

#[test]
fn a_switch_ends_the_sequence_that_it_meets() {
    registered(|| {
        for (rip, next) in [
            (START, ABORT),
            (START + LEN - 1, ABORT),
            (START + LEN, START + LEN),
            (START - 1, START - 1),
        ] {
            enter();
            assert_eq!(goes_on(rip), rip, "no switch");
            nap(1);
            assert_eq!(goes_on(rip), next);
            // It is in none any more.
            assert_eq!(load(AREA + 8), Some(0));
            nap(1);
            assert_eq!(goes_on(rip), rip);
        }
    });
}

#[test]
fn a_signal_ends_the_sequence_before_its_handler_begins() {
    registered(|| {
        enter();
        let mut frame = UserFrame::default();
        frame.rip = START;
        frame.rsp = MEMORY + 0xf000;
        let action = signal::Action {
            handler: MEMORY + 0x3000,
            flags: 0x0400_0000,
            restorer: MEMORY + 0x3100,
            mask: 0,
        };
        signal::set_action(current().process(), 10, action);
        signal::raise(10);
        hal::irq::disable();
        signal::before_user_return(&mut frame);
        hal::irq::enable();
        assert_eq!(frame.rip, MEMORY + 0x3000);
        assert_eq!(load(AREA + 8), Some(0));
        // The handler returns to the abort handler: the saved address, behind flags, link, stack and sixteen registers.
        assert_eq!(load(frame.rsp + 8 + 21 * 8), Some(ABORT as u32));
    });
}

#[test]
fn a_malformed_sequence_is_a_fault() {
    let cases: [(u64, u64); 5] = [
        (DESCRIPTOR, 1),
        (DESCRIPTOR + 8, 1 << 63),
        (DESCRIPTOR + 16, u64::MAX),
        (DESCRIPTOR + 24, START + 4),
        (ABORT - 8, 0),
    ];
    for (at, value) in cases {
        registered(move || {
            enter();
            store_long(at, value);
            let mut frame = UserFrame::default();
            frame.rip = START;
            // Only the look itself: the signal of it would end the process.
            assert!(rseq::leave_sequence(current().rseq(), &mut frame).is_err());
            assert_eq!(frame.rip, START);
        });
    }
}
