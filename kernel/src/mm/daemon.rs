//! What the VM wants done now and then: polls on each CPU's tick, and the chaos thread.

use super::{chaos, slab, vm};
use crate::boot::Options;

/// Work for a CPU's clock tick or idle loop: frees whose time has come, drains that were asked for.
/// Interrupts are on, preemption off by `pin`.
pub fn poll(pin: &ksync::CpuPin) {
    let vm = vm();
    vm.epoch.reclaim(pin);
    vm.poll_limbo(pin);
    vm.alloc.poll(pin);
    slab().poll(&vm.machine, &vm.alloc, pin);
}

/// Starts what runs in the background, once threads exist.
pub fn start_daemons(options: &Options) {
    if options.vmchaos {
        chaos::start();
    }
}
