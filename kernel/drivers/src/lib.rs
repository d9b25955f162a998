//! Device drivers. The files by which programs use the devices are in the crates above.
#![no_std]
#![cfg(target_os = "none")]

extern crate alloc;

pub mod random;
pub mod serial;
