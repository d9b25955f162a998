//! CPUs: their number, identity and node, and waiting on them.

use core::sync::atomic::Ordering::Relaxed;

use crate::sim;

/// Number of the CPU that runs the caller; stable only while preemption is off.
pub fn id() -> usize {
    sim::here().map_or(0, |here| here.cpu)
}

/// Number of CPUs that run, numbered from 0.
pub fn count() -> usize {
    sim::with_machine(1, |machine| machine.cpus.len())
}

/// NUMA node of a CPU.
pub fn node(cpu: usize) -> usize {
    vm::Machine::domain_of(sim::memory(), cpu)
}

/// Enables interrupts and halts until one comes.
pub fn halt_until_interrupt() {
    sim::halt();
    crate::irq::enable();
}

/// Pauses briefly, in a loop that waits for another CPU.
pub fn relax() {
    // Waiting takes time, too.
    sim::clock::look();
    sim::deliver();
    sim::threads::yield_now();
}

/// A random word from the CPU's generator. Each machine gives the same ones.
pub fn hardware_random() -> Option<u64> {
    sim::with_machine(None, |machine| {
        let mut word = machine.random.load(Relaxed);
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        machine.random.store(word, Relaxed);
        Some(word)
    })
}

/// Nanoseconds that a CPU has spent in interrupt handlers so far: handlers take no time.
pub fn interrupt_ns(_cpu: usize) -> u64 {
    0
}

/// Nanoseconds since boot that a CPU has not spent in interrupt handlers.
pub fn undisturbed_ns(_cpu: usize) -> u64 {
    sim::clock::look()
}
