//! A static glibc program that exits with 0: only the C runtime's start-up.
//!
//! `vmbench` executes it as an example of an ordinary static binary of several hundred kilobytes.
#![no_main]
#![expect(
    unsafe_code,
    reason = "exporting the C entry point is an unsafe attribute"
)]

/// The C entry point.
// SAFETY: the program defines no other `main`, and the signature is the one the C runtime calls.
#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    0
}
