//! Restartable sequences: rseq(2).
#![cfg(not(shuttle))]

mod programs;
mod support;

use hal::UserFrame;
use hal::frame::VECTOR_SYSCALL;
use proc::rseq::{self, RseqError};
use proc::signal;
use proc::wait4::Children;
use proc::{SignalExt, UserThreadExt, with_space};
use programs::{MEMORY, PAGE, load, store, store_long, with_memory};
use support::{exited, fork, nap, wait};
use task::current::current;
use task::sched;
use task::sched::CpuMask;
use vm::MapProt;

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
fn the_cpu_is_written_after_a_switch() {
    registered_on(2, || {
        for cpu in [0, 1, 0] {
            let of_cpu = (Some(cpu as u32), Some(cpu as u32));
            let written = || (load(AREA), load(AREA + 4));
            tie_to(cpu);
            goes_on(START);
            assert_eq!(written(), of_cpu, "after a move");
            // What a program has written there itself goes, too, whatever it came to the kernel for.
            for go_on in [goes_on, returns] {
                for word in [AREA, AREA + 4] {
                    store(word, 9);
                    assert_eq!(go_on(START), START);
                    assert_eq!(load(word), Some(9), "nothing has happened");
                    nap(1);
                    assert!(current().has_work());
                    go_on(START);
                    assert_eq!(written(), of_cpu);
                }
            }
        }
    });
}

/// A write would copy the page after each fork.
#[test]
fn what_is_there_is_not_written_again() {
    registered(|| {
        let fixed = with_space(|space| space.protect(mem::vm(), AREA, PAGE, MapProt::READ));
        assert_eq!(fixed, Some(Ok(())));
        nap(1);
        goes_on(START);
        assert!(!current().signal_pending());
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

#[test]
fn a_child_that_begins_where_its_maker_is_has_its_memory_left_alone() {
    registered_on(2, || {
        tie_to(1);
        // What the child finds, if its maker was `switched` before.
        let found = |switched: bool| {
            goes_on(START);
            store(AREA, 9);
            if switched {
                nap(1);
            }
            let child = fork(|| load(AREA).expect("a copy") as u8);
            wait(Children::Pid(child)).map(|(_, status)| status)
        };
        assert_eq!(found(false), Ok(exited(9)));
        assert_eq!(found(true), Ok(exited(1)));
        goes_on(START);
        store(AREA, 9);
        // The maker has moved.
        tie_to(0);
        let child = fork(|| load(AREA).expect("a copy") as u8);
        assert_eq!(wait(Children::Pid(child)), Ok((child, exited(0))));
    });
}

/// Children of a maker that computes go to the other CPU.
#[test]
fn a_child_that_begins_on_another_cpu_finds_its_number() {
    registered_on(2, || {
        assert!(sched::set_affinity(&current(), &CpuMask::all()));
        let mut elsewhere = 0;
        for _ in 0..200 {
            goes_on(START);
            let own = hal::cpu::id() as u8;
            let child = fork(|| {
                let here = hal::cpu::id() as u32;
                let found = (load(AREA), load(AREA + 4));
                // It may have been moved since it began.
                assert!(found == (Some(here), Some(here)) || current().has_work());
                here as u8
            });
            hal::time::spin_ns(200_000);
            let status = wait(Children::Pid(child)).map(|(_, status)| status);
            elsewhere += u32::from(status == Ok(exited(own ^ 1)));
        }
        assert!(elsewhere > 0, "no child began on the other CPU");
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
        store(AREA, 9);
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
        assert_eq!((load(AREA), load(AREA + 8)), (Some(0), Some(0)));
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
            assert!(rseq::refresh(current().rseq(), &mut frame).is_err());
            assert_eq!(frame.rip, START);
        });
    }
}
