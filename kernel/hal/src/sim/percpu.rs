//! What a CPU keeps.

use core::ptr;
use core::sync::atomic::Ordering::Relaxed;

use crate::sim::{with_cpu, with_machine};

/// The current thread, as `set_current` has set it; null before the first thread runs.
pub fn current() -> *mut () {
    with_cpu(ptr::null_mut(), |cpu| cpu.current.load(Relaxed))
}

/// Sets the thread that runs from now on. Called with preemption off.
pub(crate) fn set_current(thread: *mut ()) {
    with_cpu((), |cpu| cpu.current.store(thread, Relaxed));
}

/// Whether this CPU is in an interrupt handler that takes locks.
pub fn is_handling() -> bool {
    with_cpu(false, |cpu| cpu.handling.load(Relaxed))
}

/// Sets whether this CPU is in such a handler. Called with interrupts off.
pub fn set_handling(handling: bool) {
    with_cpu((), |cpu| cpu.handling.store(handling, Relaxed));
}

/// The interrupts that a CPU has taken so far: timer, reschedule, call, device. `None` if there is no such CPU.
pub fn interrupt_counts(cpu: usize) -> Option<[u64; 4]> {
    with_machine(None, |machine| {
        let counts = &machine.cpus.get(cpu)?.counts;
        Some(core::array::from_fn(|i| counts[i].load(Relaxed)))
    })
}
