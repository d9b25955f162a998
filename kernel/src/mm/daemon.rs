//! What the VM wants done now and then: polls on each CPU's tick, and the chaos thread.

use super::{chaos, leak, oom, slab, sleepers, vm};
use crate::boot::Options;

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

/// Starts what runs in the background, once threads exist.
pub fn start_daemons(options: &Options) {
    leak::enable(options.leakcheck);
    oom::start();
    sleepers::start();
    if options.vmchaos {
        chaos::start();
    }
}

/// Lets each `period`-th allocation that may fail do so, on each CPU; 0 for none.
pub fn fail_allocations(period: u32) {
    vm().alloc.set_injector(period, 0);
}
