//! Memory management of the kernel.
mod early;
