//! Threads of the kernel that work for the VM in the background.

mod background;
pub mod chaos;
mod sleepers;

use crate::oom;

/// TSC ticks after which the freeing of what is past its grace period lets the CPU be preempted.
const FREE_STEP: u64 = 100_000;

/// Starts what runs in the background, once threads exist; `vmchaos` as well if that is wanted.
pub fn start(vmchaos: bool) {
    mem::vm().epoch.set_step(FREE_STEP);
    oom::start();
    sleepers::start();
    background::start();
    if vmchaos {
        chaos::start();
    }
}
