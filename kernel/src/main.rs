//! The Pantala kernel.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
extern crate alloc;

#[cfg(target_os = "none")]
mod boot;
#[cfg(target_os = "none")]
mod dev;
#[cfg(target_os = "none")]
mod fs;
#[cfg(target_os = "none")]
mod kern;
#[cfg(target_os = "none")]
mod syscall;

#[cfg(not(target_os = "none"))]
fn main() {}
