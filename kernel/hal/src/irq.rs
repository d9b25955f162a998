//! The CPU's interrupt flag.
use core::arch::asm;

const IF: u64 = 1 << 9;

/// State of the interrupt flag before [`save`]; give it to [`restore`].
pub type Flags = u64;

/// Turns interrupts off and says how they were.
#[inline]
pub fn save() -> Flags {
    let flags: u64;
    // SAFETY: turning interrupts off is always allowed in the kernel.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    flags
}

/// Brings interrupts back to what [`save`] found.
#[inline]
pub fn restore(flags: Flags) {
    if flags & IF != 0 {
        enable();
    }
}

/// Turns interrupts on.
#[inline]
pub fn enable() {
    // SAFETY: handlers are installed before anything enables interrupts.
    unsafe { asm!("sti", options(nostack)) };
}

/// Turns interrupts off.
#[inline]
pub fn disable() {
    // SAFETY: always allowed in the kernel.
    unsafe { asm!("cli", options(nostack)) };
}

/// Whether interrupts are on.
#[inline]
pub fn enabled() -> bool {
    let flags: u64;
    // SAFETY: reads the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags, options(preserves_flags)) };
    flags & IF != 0
}
