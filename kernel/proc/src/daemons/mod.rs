//! Kernel threads that work for the VM in the background.

mod background;
pub mod chaos;
mod sleepers;

use crate::oom;

/// How many TSC ticks the freeing of memory after a grace period runs before it lets the CPU be preempted.
const FREE_STEP: u64 = 100_000;

/// Starts the background threads; with `vmchaos`, the chaos thread as well. Called once threads can run.
pub fn start(vmchaos: bool) {
    mem::vm().epoch.set_step(FREE_STEP);
    oom::start();
    sleepers::start();
    background::start();
    if vmchaos {
        chaos::start();
    }
}
