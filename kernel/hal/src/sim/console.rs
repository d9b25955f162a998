//! The console: the output of the test.

use core::fmt;

/// Enables input, of which there is none.
pub fn enable_input() {}

/// Writes bytes as they are.
pub fn write_bytes(bytes: &[u8]) {
    std::print!("{}", alloc::string::String::from_utf8_lossy(bytes));
}

/// Prints a formatted message, followed by `end`. Used by [`crate::kprint!`] and `kprintln!`.
pub fn print(args: fmt::Arguments<'_>, end: &str) {
    std::print!("{args}{end}");
}
