//! Backtraces by frame pointers.
use super::{memory, stack, symbols};

/// Frames printed at most.
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

/// Prints an address of text with its function.
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

/// Passes the return addresses that a chain of frame pointers leads to to `f`, innermost first, until it returns false.
/// Follows the chain only through mapped kernel stacks and upwards, so that a broken one ends the walk and nothing worse.
pub(super) fn walk(mut rbp: u64, mut f: impl FnMut(u64) -> bool) {
    for _ in 0..DEPTH {
        if !rbp.is_multiple_of(8) || !stack::is_stack(rbp) || !stack::is_stack(rbp + 15) {
            return;
        }
        // SAFETY: both words are mapped memory of a stack; a value torn by a running CPU is checked like any.
        let (next, address) = unsafe { (*(rbp as *const u64), *((rbp + 8) as *const u64)) };
        // The call is just before the address it returns to, maybe in another function.
        if !memory::is_text(address) || !f(address - 1) || next <= rbp {
            return;
        }
        rbp = next;
    }
}

/// Prints the return addresses that a chain of frame pointers leads to.
pub(super) fn print(rbp: u64) {
    walk(rbp, |address| {
        print_address(address);
        true
    });
}
