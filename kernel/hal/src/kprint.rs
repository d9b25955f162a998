//! Printing from the kernel.

/// Prints to the console without a new line.
#[macro_export]
macro_rules! kprint {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*), "") };
}

/// Prints a line to the console.
#[macro_export]
macro_rules! kprintln {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*), "\n") };
}
