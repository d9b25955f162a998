//! Sleeps on a queue that has no memory for the sleeper, and so cannot wake it.
#![cfg(not(shuttle))]

mod gate;
mod support;

use std::alloc::Layout;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use gate::Gate;
use support::{MS, nap, on, spawn, wait_for_ends};
use task::park::{self, Deadline, Interruptible, ParkError, Step};
use task::time::monotonic_ns;
use task::wait::Waiter;
use vm_host::heap;

#[global_allocator]
static HEAP: heap::Heap = heap::Heap;

/// A queue with a sleeper before this one, how often the step has run, and after how many runs it is done.
struct Second {
    gate: Arc<Gate>,
    runs: u32,
    enough: u32,
}

/// Sleeps on such a queue. Returns the result, and the milliseconds that it took.
fn sleep(enough: u32, deadline: Deadline) -> (Result<u32, ParkError>, u64) {
    let gate = Arc::new(Gate::default());
    let theirs = gate.clone();
    spawn(None, move || {
        let passed = theirs.pass(Deadline::Never, Interruptible::No);
        assert_eq!(passed, Ok(()));
    });
    nap(1);
    // The list of a queue that has more than one sleeper.
    heap::know(Layout::new::<VecDeque<ksync::Registration>>());
    let step = |second: &mut Second, waiter: &mut Waiter| {
        heap::refuse_each(1, &Cell::new(1), || waiter.listen(&second.gate.queue));
        assert!(waiter.unheard());
        second.runs += 1;
        assert!(second.runs < 100, "it does not sleep");
        match second.runs < second.enough {
            true => Step::Wait,
            false => Step::Done(second.runs),
        }
    };
    let mut second = Second {
        gate,
        runs: 0,
        enough,
    };
    let begun = monotonic_ns();
    let slept = park::park(&mut second, deadline, Interruptible::No, step);
    let took = (monotonic_ns() - begun) / MS;
    assert!(second.gate.admit(), "the other one sleeps");
    wait_for_ends(1);
    (slept, took)
}

#[test]
fn a_sleeper_without_a_place_in_the_queue_looks_again_each_five_milliseconds() {
    on(1, || assert_eq!(sleep(4, Deadline::Never), (Ok(4), 15)));
}

#[test]
fn a_sleeper_without_a_place_in_the_queue_gives_up_at_its_deadline() {
    on(1, || {
        let until = Deadline::after(12 * MS);
        assert!(matches!(
            sleep(100, until),
            (Err(ParkError::Timeout), 10..=12)
        ));
    });
}
