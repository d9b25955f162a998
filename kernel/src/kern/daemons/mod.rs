//! Threads of the kernel that work for the VM in the background.

mod background;
pub(super) mod chaos;
mod sleepers;

use super::{leak, oom};
use crate::boot::Options;

/// TSC ticks after which the freeing of what is past its grace period lets the CPU be preempted.
const FREE_STEP: u64 = 100_000;

/// Starts what runs in the background, once threads exist.
pub(super) fn start(options: &Options) {
    mem::vm().epoch.set_step(FREE_STEP);
    leak::enable(options.leakcheck);
    oom::start();
    sleepers::start();
    background::start();
    if options.vmchaos {
        chaos::start();
    }
}
