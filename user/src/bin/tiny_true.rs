//! The smallest program that exits with 0: no C runtime, no relocation, a few instructions.
//!
//! `vmbench` executes it to measure the cost of exec without the program's own start-up.
#![no_std]
#![no_main]
#![expect(unsafe_code, reason = "the entry point is assembly")]

core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "mov eax, 231", // exit_group
    "xor edi, edi",
    "syscall",
    "ud2",
);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
