//! The Pantala kernel, the binary: joins the crates, starts the machine and ends it.
#![cfg_attr(target_os = "none", no_std, no_main)]

#[cfg(target_os = "none")]
extern crate alloc;

#[cfg(target_os = "none")]
mod boot;
#[cfg(target_os = "none")]
mod leak;
#[cfg(target_os = "none")]
mod selftest;
#[cfg(target_os = "none")]
mod shutdown;
#[cfg(target_os = "none")]
mod start;
#[cfg(target_os = "none")]
mod upcalls;

#[cfg(not(target_os = "none"))]
fn main() {}
