//! The CPU's interrupt flag.

use core::sync::atomic::Ordering::Relaxed;

use crate::sim::{deliver, with_cpu};

/// The interrupt flag as [`save`] found it, for [`restore`].
pub type Flags = u64;

/// Disables interrupts, and returns the interrupt flag as it was.
pub fn save() -> Flags {
    with_cpu(0, |cpu| u64::from(cpu.irqs_on.swap(false, Relaxed)))
}

/// Enables interrupts if [`save`] found them enabled.
pub fn restore(flags: Flags) {
    if flags != 0 {
        enable();
    }
}

/// Enables interrupts.
pub fn enable() {
    with_cpu((), |cpu| cpu.irqs_on.store(true, Relaxed));
    deliver();
}

/// Disables interrupts.
pub fn disable() {
    save();
}

/// Whether interrupts are enabled.
pub fn enabled() -> bool {
    with_cpu(false, |cpu| cpu.irqs_on.load(Relaxed))
}
