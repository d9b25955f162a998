//! Device drivers. The files by which programs use the devices are in the crates above.
#![no_std]

extern crate alloc;

pub mod random;
pub mod serial;
