//! Backtraces by frame pointers.
use super::{memory, stack, symbols};

/// The most return addresses that are followed.
const DEPTH: usize = 32;

/// The caller's frame pointer.
#[inline(always)]
pub(super) fn frame_pointer() -> u64 {
    let rbp: u64;
    // SAFETY: reads a register.
    unsafe {
        core::arch::asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags))
    };
    rbp
}

/// Prints an address in the kernel's text, with its function.
pub(super) fn print_address(address: u64) {
    match symbols::lookup(address) {
        Some((name, offset)) => {
            kprintln!(
                "  {address:#018x} {:#}+{offset:#x}",
                rustc_demangle::demangle(name)
            );
        }
        None => kprintln!("  {address:#018x}"),
    }
}

/// Follows a chain of frame pointers, and passes the return addresses to `f`, innermost first, until `f` returns false. The
/// chain is followed only upwards and through mapped kernel stacks, so a broken chain merely ends the walk.
pub(super) fn walk(mut rbp: u64, mut f: impl FnMut(u64) -> bool) {
    for _ in 0..DEPTH {
        if !rbp.is_multiple_of(8) || !stack::is_stack(rbp) || !stack::is_stack(rbp + 15) {
            return;
        }
        // SAFETY: both words are mapped memory of a stack. A value that a running CPU changes meanwhile is checked like any
        // other.
        let (next, address) = unsafe { (*(rbp as *const u64), *((rbp + 8) as *const u64)) };
        // One byte less lies in the call: behind the last instruction of a function, the return address is that of the next
        // function.
        if !memory::is_text(address) || !f(address - 1) || next <= rbp {
            return;
        }
        rbp = next;
    }
}

/// Prints the return addresses to which a chain of frame pointers leads.
pub(super) fn print(rbp: u64) {
    walk(rbp, |address| {
        print_address(address);
        true
    });
}
