//! The CPU's interrupt flag.
use core::arch::asm;

const IF: u64 = 1 << 9;

/// The interrupt flag as [`save`] found it, for [`restore`].
pub type Flags = u64;

/// Disables interrupts, and returns the interrupt flag as it was.
#[inline]
pub fn save() -> Flags {
    let flags: u64;
    // SAFETY: turning interrupts off is always allowed in the kernel.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags
}

/// Enables interrupts if [`save`] found them enabled.
#[inline]
pub fn restore(flags: Flags) {
    if flags & IF != 0 {
        enable();
    }
}

/// Enables interrupts.
#[inline]
pub fn enable() {
    // SAFETY: handlers are installed before anything enables interrupts.
    unsafe { asm!("sti", options(nostack)) };
}

/// Disables interrupts.
#[inline]
pub fn disable() {
    // SAFETY: disabling interrupts is always allowed in the kernel.
    unsafe { asm!("cli", options(nostack)) };
}

/// Whether interrupts are enabled.
#[inline]
pub fn enabled() -> bool {
    let flags: u64;
    // SAFETY: reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & IF != 0
}
