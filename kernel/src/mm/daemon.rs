//! What the VM wants done now and then: polls on each CPU's tick, and the chaos thread.

use super::{background, chaos, leak, oom, slab, sleepers, vm};
use crate::boot::Options;

/// TSC ticks after which the freeing of what is past its grace period lets the CPU be preempted.
const FREE_STEP: u64 = 100_000;

/// Work for a CPU's clock tick or idle loop: frees whose time has come, drains that were asked for.
/// Interrupts are on, preemption off by `pin`. Returns whether something of this CPU still waits for a grace period.
pub fn poll(pin: &ksync::CpuPin) -> bool {
    let vm = vm();
    let retired = vm.epoch.reclaim(pin);
    let frames = vm.poll_limbo(pin);
    slab().poll(&vm.machine, &vm.alloc, pin);
    vm.alloc.poll(pin);
    retired || frames
}

/// After [`poll`], with preemption on: goes on with what that has left of what is past its grace period.
pub fn poll_more() {
    while vm().epoch.reclaim_more(&ksync::pin()) {}
}

/// Starts what runs in the background, once threads exist.
pub fn start_daemons(options: &Options) {
    vm().epoch.set_step(FREE_STEP);
    leak::enable(options.leakcheck);
    oom::start();
    sleepers::start();
    background::start();
    if options.vmchaos {
        chaos::start();
    }
}

/// Lets each `period`-th allocation that may fail do so, on each CPU; 0 for none.
pub fn fail_allocations(period: u32) {
    vm().alloc.set_injector(period, 0);
}
