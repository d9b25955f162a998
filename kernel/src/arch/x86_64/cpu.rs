//! The CPUs, and waiting on one.
use core::arch::asm;

use super::{percpu, smp};

/// Number of the CPU this runs on; stable only while preemption is off.
#[inline]
pub fn id() -> usize {
    percpu::id() as usize
}

/// Number of CPUs that run, numbered from 0.
#[inline]
pub fn count() -> usize {
    smp::count()
}

/// NUMA node of a CPU; 0 for one that does not exist.
pub fn node(cpu: usize) -> usize {
    percpu::of(cpu).map_or(0, |area| area.node as usize)
}

/// Turns interrupts on and sleeps until one comes. An interrupt that becomes pending between the two steps
/// still ends the sleep: `sti` takes effect after the next instruction.
#[inline]
pub fn halt_until_interrupt() {
    // SAFETY: handlers are installed; nothing else changes.
    unsafe { asm!("sti", "hlt", options(nostack)) };
}

/// Stops this CPU for good.
pub(super) fn stop() -> ! {
    loop {
        // SAFETY: interrupts go off and stay off.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

/// A pause inside a loop that waits for another CPU.
#[inline]
pub fn relax() {
    core::hint::spin_loop();
}
