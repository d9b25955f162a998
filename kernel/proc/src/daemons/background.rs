//! The background work of the VM and of file systems.
//!
//! Guarantee: private memory that no mapping reaches any more is free two seconds after the operation that made it so,
//! as long as two rounds take less than half of that. Mechanism: a kernel thread moves to each CPU that has
//! queued spaces, calls [`Vm::tend_of`](vm::Vm::tend_of) there, and then pauses for [`PAUSE_NS`], or for as long as the round took if
//! that is longer. A round without work takes one uncontended lock of each CPU.

use hal::kprintln;
use mem::vm;
use task::current::current;
use task::park::{Deadline, Interruptible, sleep_until};
use task::sched::{self, CpuMask};
use task::{kthread, time};

/// Pause between two rounds, in nanoseconds.
const PAUSE_NS: u64 = 400_000_000;
/// Starts the thread.
pub(super) fn start() {
    if kthread::spawn("background", None, 0, run).is_err() {
        kprintln!("background: no memory for the thread");
    }
}

fn run() {
    loop {
        let began = time::monotonic_ns();
        tend();
        vfs::leftover::finish();
        // So the thread takes half of one CPU at most.
        let took = time::monotonic_ns() - began;
        let _ = sleep_until(Deadline::after(PAUSE_NS.max(took)), Interruptible::No);
    }
}

/// Tends the spaces that each CPU has queued on that CPU, which has their lines.
fn tend() {
    let me = current();
    for cpu in (0..hal::cpu::count()).filter(|&cpu| vm().is_queued(cpu)) {
        // Moves the thread; the other CPUs' lines stay where they are.
        sched::set_affinity(&me, &CpuMask::one(cpu));
        vm().tend_of(cpu);
    }
}
