//! The Pantala kernel.
#![cfg_attr(target_os = "none", no_std, no_main)]
#![allow(
    dead_code,
    unused_imports,
    reason = "the parts that use each other are not all here yet"
)]

#[cfg(target_os = "none")]
extern crate alloc;

#[cfg(target_os = "none")]
mod arch;
// Until memory management and files are there, `kern` in full cannot be: these upcalls bring the
// machine up alone.
#[cfg(target_os = "none")]
mod kern {
    #[path = "../bringup.rs"]
    pub mod upcall;
}
#[cfg(target_os = "none")]
mod mm;

#[cfg(not(target_os = "none"))]
fn main() {}
