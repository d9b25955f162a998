//! Devices, as the rest of the kernel uses them; the files that programs open stand above.
#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

pub mod random;
pub mod serial;
