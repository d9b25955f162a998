//! Interrupts between CPUs.

use crate::sim;

/// Interrupts a CPU, which then calls `reschedule_ipi` of the upcalls and looks at its run queue.
pub fn reschedule(cpu: usize) {
    if let Some(here) = sim::here() {
        let now = sim::clock::look();
        here.machine.ask(cpu, now);
    }
}
