//! Restartable sequences: rseq(2).
#![cfg(not(shuttle))]

mod programs;
mod support;

use hal::UserFrame;
use hal::frame::VECTOR_SYSCALL;
use proc::rseq::{self, RseqError};
use proc::signal;
use proc::wait4::Children;
use proc::{SignalExt, UserThreadExt};
use programs::{MEMORY, load, store, store_long, with_memory};
use support::{exited, fork, nap, wait};
use task::current::current;
use task::sched;
use task::sched::CpuMask;

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
    goes_on_from(frame)
}

fn goes_on_from(mut frame: UserFrame) -> u64 {
    hal::irq::disable();
    signal::before_user_return(&mut frame);
    hal::irq::enable();
    frame.rip
}

/// Runs `body` in a process that is registered, and has been in user mode since.
fn registered(body: impl Fn() + Send + Sync + 'static) {
    registered_on(1, body);
}

/// As above, on a machine with so many CPUs, of which the process uses the first.
fn registered_on(cpus: usize, body: impl Fn() + Send + Sync + 'static) {
    with_memory(cpus, move || {
        tie_to(0);
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

/// Lets the caller run on one CPU only.
fn tie_to(cpu: usize) {
    assert!(sched::set_affinity(&current(), &CpuMask::one(cpu)));
}

#[test]
fn the_cpu_is_written_after_a_move_to_another() {
    registered_on(2, || {
        let written = || (load(AREA), load(AREA + 4));
        for cpu in [1, 0, 1] {
            let before = written();
            tie_to(cpu);
            assert!(current().has_work());
            assert_eq!(written(), before);
            goes_on(START);
            assert_eq!(written(), (Some(cpu as u32), Some(cpu as u32)));
            // A switch is no reason to write, or each fork would copy this page.
            store(AREA, 9);
            nap(1);
            assert!(current().has_work());
            goes_on(START);
            assert_eq!(load(AREA), Some(9));
        }
    });
}

#[test]
fn a_registration_is_written_wherever_another_ended() {
    registered(|| {
        assert_eq!(unregister(AREA, SIGNATURE), Ok(()));
        assert_eq!(register(OTHER, SIGNATURE), Ok(()));
        store(OTHER, 9);
        goes_on(START);
        assert_eq!((load(OTHER), load(OTHER + 4)), (Some(0), Some(0)));
    });
}

/// Where the program goes on that called the kernel at `rip`.
fn returns(rip: u64) -> u64 {
    let mut frame = UserFrame::default();
    (frame.vector, frame.rip) = (VECTOR_SYSCALL, rip);
    goes_on_from(frame)
}

/// No sequence contains a call.
#[test]
fn the_memory_of_a_caller_is_not_looked_at() {
    registered_on(2, || {
        enter();
        for cpu in [1, 0] {
            nap(1);
            assert_eq!(returns(START), START);
            assert_eq!(load(AREA + 8), Some(DESCRIPTOR as u32));
            tie_to(cpu);
            assert_eq!(returns(START), START);
            assert_eq!(
                load(AREA + 4),
                Some(cpu as u32),
                "it is written all the same"
            );
        }
        nap(1);
        assert_eq!(goes_on(START), ABORT);
    });
}

#[test]
fn a_child_is_written_to_when_it_runs_on_another_cpu_than_its_maker_did() {
    registered_on(2, || {
        tie_to(1);
        goes_on(START);
        let seen = |cpu| {
            store(AREA, 9);
            let child = fork(move || {
                let was = load(AREA).expect("a copy") as u8;
                store(AREA, 7);
                tie_to(cpu);
                returns(START);
                16 * was + load(AREA).expect("a copy") as u8
            });
            wait(Children::Pid(child)).map(|(_, status)| status)
        };
        assert_eq!(seen(1), Ok(exited(16 * 9 + 7)));
        assert_eq!(seen(0), Ok(exited(16 * 9)));
        // The number of the maker is old, and so is that of the child, which is written before it begins.
        tie_to(0);
        assert_eq!(seen(0), Ok(exited(7)));
    });
}

#[test]
fn a_child_ends_its_sequences_from_its_second_run_on() {
    registered(|| {
        let child = fork(|| {
            enter();
            assert_eq!(goes_on(START), START);
            nap(1);
            assert_eq!(goes_on(START), ABORT);
            0
        });
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
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
