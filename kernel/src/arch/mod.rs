//! The machine: the only part of the kernel that touches CPU registers, devices of the platform
//! and raw memory. Everything above it is safe Rust.
pub mod current;
mod x86_64;

pub use x86_64::*;
