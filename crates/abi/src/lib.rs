//! The Linux ABI: error numbers, and the kernel's view of its constants and structures.
#![no_std]

mod errno;
pub mod restart;

pub use linux_raw_sys as raw;
