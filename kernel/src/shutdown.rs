//! The end of the machine, when init has ended.
//!
//! If the leak check is on, all other processes are killed and reaped first, so that it finds a kernel at rest.

use alloc::sync::Arc;

use hal::kprintln;
use proc::process::Process;
use proc::{active_space, daemons, ids, signal, wait4};
use task::current::current;
use task::park::{Deadline, Interruptible, sleep_until};
use task::sched::{self, CpuMask};

use super::leak;

/// Nanoseconds between two looks for processes that are left.
const PAUSE_NS: u64 = 5_000_000;
/// Number of looks before the check goes on without waiting for the rest: half a minute.
const PATIENCE: u32 = 6000;

/// Ends the machine: `init` has ended with the wait4 status `status`.
///
/// With `pantala.exit=debug` the emulator exits with init's exit status, or with 128 and the number of the signal
/// that killed init; where the emulator has no port for that, the machine is turned off. Otherwise the kernel panics,
/// as Linux does: an init that means to stop the machine calls reboot(2).
///
/// Called by init's last thread, which has left its address space.
pub(super) fn init_exited(init: &Arc<Process>, status: u32) -> ! {
    mem::fail_allocations(0);
    daemons::chaos::stop();
    if leak::enabled() {
        let left = end_the_rest(init);
        if left != 0 {
            kprintln!("leakcheck: {left} processes do not end");
        }
        settle();
        leak::check();
        print_stacks();
    }
    let code = if status & 0x7f == 0 {
        status >> 8 & 0xff
    } else {
        128 + (status & 0x7f)
    };
    if hal::power::uses_debug_exit() {
        hal::power::debug_exit(code as u8);
        hal::power::off();
    }
    panic!("Attempted to kill init! exitcode={status:#010x}")
}

/// Kills all other processes and reaps them; returns how many are left after [`PATIENCE`] looks.
fn end_the_rest(init: &Arc<Process>) -> usize {
    for _ in 0..PATIENCE {
        let mut left = 0;
        ids::each_process(2, |p| {
            left += 1;
            if !p.is_zombie() {
                signal::kill_process(p);
            } else if p.ppid() == init.pid() && wait4::take_zombie(init, p) {
                wait4::release(p);
            }
            true
        });
        if left == 0 {
            return 0;
        }
        let _ = sleep_until(Deadline::after(PAUSE_NS), Interruptible::No);
    }
    let mut left = 0;
    ids::each_process(2, |_| {
        left += 1;
        true
    });
    left
}

/// Performs all deferred work, on every CPU. Sleeps for grace periods, until nothing is left.
fn settle() {
    // A CPU stays in the space of the last program that ran there until it enters another one.
    on_each_cpu(active_space::leave);
    net::collect();
    net::inet::ports::drain();
    vfs::pipe::drain();
    proc::futex::drain();
    let vm = mem::vm();
    // The spaces that are queued for background work have ended; this removes them from the queue.
    vm.tend();
    // Freeing an object can defer the freeing of others.
    while vm.epoch.pending() != 0 || vm.limbo.frames() != 0 || vfs::leftover::finish() {
        vm.epoch.drain();
        vm.drain_limbo();
    }
    on_each_cpu(leak::empty_caches);
}

/// Runs `work` on one CPU after the other, in the calling thread, which is bound to the last one afterwards.
fn on_each_cpu(work: impl Fn()) {
    let me = current();
    for cpu in 0..hal::cpu::count() {
        if sched::set_affinity(&me, &CpuMask::one(cpu)) {
            while hal::cpu::id() != cpu {
                sched::yield_now();
            }
            work();
        }
    }
}

/// Prints how much of a kernel stack was used at most.
fn print_stacks() {
    let (deepest, size) = (hal::stack::high_water(), hal::stack::STACK_SIZE);
    kprintln!("stacks: {deepest} of {size} bytes used at most");
}
