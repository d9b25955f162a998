//! Page tables, and long chains of layers, of processes that sleep.
//!
//! Guarantee: a process that has slept for about [`LONG_NS`] or more has no page tables, those of locked memory included,
//! whether or not memory is short; when it wakes, it faults in the pages that it touches. Mechanism: a kernel thread
//! looks at a slice of all processes each [`PAUSE_NS`], so its share of a CPU does not grow with their number. Page
//! tables that a CPU still has loaded are left alone, so no CPU is interrupted.

use alloc::sync::Arc;
use core::ops::ControlFlow;

use hal::kprintln;
use ksync::CpuPin;
use mem::vm;
use task::current::current;
use task::park::{Deadline, Interruptible, sleep_until};
use task::{kthread, sched, time};

use crate::ids;
use crate::process::Process;

/// How long a process sleeps before its page tables are dropped, in nanoseconds.
const LONG_NS: u64 = 1_000_000_000;
/// Pause between two slices, in nanoseconds.
const PAUSE_NS: u64 = 500_000_000;
/// Most processes in one slice.
const SLICE: usize = 16_384;

/// Starts the thread.
pub(super) fn start() {
    if kthread::spawn("sleepers", None, 5, run).is_err() {
        kprintln!("sleepers: no memory for the thread");
    }
}

/// Looks at the next slice of processes, at most [`SLICE`], in each round, and begins anew after the last.
fn run() {
    let mut from = 1;
    loop {
        let (mut left, mut next) = (SLICE, 1);
        let now = time::monotonic_ns();
        // Most processes have not slept for long: one cache line of their first thread is read, and none is written.
        let sleeps = |pin: &CpuPin, pid| {
            if left == 0 {
                next = pid;
                return ControlFlow::Break(());
            }
            left -= 1;
            let leader = ids::thread(pin, pid);
            ControlFlow::Continue(leader.is_none_or(|leader| leader.sleeps_since(LONG_NS, now)))
        };
        ids::each_process_where(from, sleeps, |p| {
            drop_tables_of(p);
            true
        });
        from = next;
        // It has no lock here, and enters no user mode, before which others give back what they were lent.
        sched::give_back(&current());
        let _ = sleep_until(Deadline::after(PAUSE_NS), Interruptible::No);
    }
}

/// Drops the page tables of a process whose threads all sleep for long, unless a CPU has them loaded; then shortens its chains of
/// layers as long as it sleeps. Sleeps for the lock of the map.
fn drop_tables_of(p: &Arc<Process>) {
    if !p.sleeps_since(LONG_NS) {
        return;
    }
    if let Some(space) = p.space()
        && space.pmap().tables() > 0
        && space.pmap().active().snapshot().is_empty()
    {
        space.drop_tables(vm());
        // Processes that shared its memory may have ended; memory that it alone is left with needs fewer layers.
        while space.maintain(vm()) && p.sleeps_since(LONG_NS) {}
    }
}
